"What a type checker reads: stubs of the modules, their signatures, and a user's program."

import ast
from importlib.util import find_spec

import pytest
import stubs
from repo import ROOT

PATCHED = '''
from fastcore.basics import patch
from .other import helper

LIMITS = dict(a=1)
Rows = list[int] | None
SIZE = 3


class Trace:
    "A run."

    rule = None

    def __init__(self, steps: int, *, seed=make_seed()):
        self.steps = steps
        self.total = 0
        self.seed = seed


@patch(as_prop=True)
def length(self: Trace) -> int:
    "The number of steps."
    return helper(self.steps)


if __name__ == '__main__':
    print(Trace(1))
'''


def test_a_stub_has_signatures_and_methods_in_their_classes():
    text = stubs.module_stub(PATCHED)
    assert 'from .other import helper as helper' in text
    assert 'LIMITS: Any' in text
    assert 'Rows = list[int] | None' in text
    assert 'SIZE = 3' in text
    assert '__main__' not in text
    trace = next(n for n in ast.parse(text).body if isinstance(n, ast.ClassDef))
    lines = [line.strip() for line in ast.unparse(trace).splitlines()]
    assert [line for line in lines if line.startswith('@')] == ['@property']
    assert 'def length(self) -> int:' in lines
    assert 'def __init__(self, steps: int, *, seed=...):' in lines
    assert {'rule: Any', 'steps: int', 'total: Any', 'seed: Any'} <= set(lines)


def test_a_method_that_another_module_adds_stands_in_its_class(tmp_path):
    (tmp_path / 'home.py').write_text('class Heads:\n    width = 1\n')
    (tmp_path / 'other.py').write_text(
        'from .home import Heads\n\n@patch(cls_method=True)\ndef read(cls: Heads) -> bool:\n    ...\n'
    )
    assert [p.name for p in stubs.write(tmp_path)] == ['home.pyi']
    text = (tmp_path / 'home.pyi').read_text()
    assert '@classmethod\n    def read(cls) -> bool:' in text


def test_the_wheel_has_a_stub_where_cells_add_methods(wheel):
    "A user's type checker knows `trace.metrics()`."
    names = set(wheel.namelist())
    homes = stubs.patched_modules(ROOT / 'decodelab')
    expected = {p.relative_to(ROOT).with_suffix('.pyi').as_posix() for p in homes}
    assert 'decodelab/core/trace.pyi' in expected
    assert len(expected) > 20
    assert expected <= names
    text = wheel.read('decodelab/core/trace.pyi').decode()
    assert '    def to_frame(self, by: str' in text


@pytest.mark.skipif(find_spec('mypy') is None, reason="pip install -c constraints.txt '.[dev]'")
def test_signatures_and_a_user_s_program_hold():
    "One run of mypy, with one wrong module that it must find, and nothing else."
    import signatures

    planted = 'def f(n: int = None) -> str: ...\n'
    errors, unused = signatures.check(planted)
    assert [line.partition(':')[0] for line in errors] == ['decodelab/planted.pyi']
    assert 'Incompatible default' in errors[0]
    assert unused == []
