"`help()` of an installed package shows the comments beside parameters, by every road to a name."

import ast
import json
import subprocess
import sys

import parameter_docs
import pytest
from parameter_docs import HEADING, Package, Parameter, document_folder, document_source
from repo import ROOT, module_name, module_path, notebooks

from tests.repository.test_package import PARTS, offered

# Docstrings and signatures of all public names and of their methods, as JSON
REPORT = '''
import importlib, inspect, json, pydoc, sys

report = {}
for package, name in json.loads(sys.argv[1]):
    item = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(item) or inspect.isroutine(item)):
        continue
    if inspect.isclass(item) and issubclass(item, Exception) and '__init__' not in vars(item):
        continue  # Python gives it no signature
    members = vars(item).items() if inspect.isclass(item) else ()
    methods = [m for n, m in members if inspect.isfunction(m) and n[0] != '_']
    for function in [item, *methods]:
        if function.__module__.startswith('decodelab.'):
            report[f'{function.__module__}:{function.__qualname__}'] = dict(
                doc=inspect.getdoc(function) or '',
                own=bool(function.__doc__),
                names=[n for n in inspect.signature(function).parameters if n not in ('self', 'cls')],
            )
for name in sys.argv[2:]:
    package, name = name.split(':')
    item = getattr(importlib.import_module(package), name)
    report[f'{package}:{name}']['help'] = pydoc.plain(pydoc.render_doc(item))
print(json.dumps(report))
'''


# whose help() is read whole
HELPED = (
    'core.driver:decode',
    'speculative.loop:Speculative',
    'watermark.green_list:GreenList',
    'models.session:load',
    'hf.generate:generate',
    'detection.detect:detect',
)


def public():
    "`(package, name)` of every name that the root and the parts offer."
    for part in ['', *PARTS]:
        for name in offered(ROOT / 'decodelab' / part):
            yield f'decodelab.{part}'.strip('.'), name


def python(code, folder, *args):
    "The output of a fresh interpreter that imports the package of a folder."
    run = subprocess.run(
        [sys.executable, '-c', f'import sys; sys.path.insert(0, {str(folder)!r})\n{code}', *args],
        cwd=folder,
        env=dict(PYTHONPATH=str(folder), PATH='', HOME=str(folder)),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    "A folder with the package as a wheel has it, without weights and data."
    folder = tmp_path_factory.mktemp('built')
    for path in (ROOT / 'decodelab').rglob('*.py*'):
        if path.suffix in ('.py', '.pyi'):
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text(encoding='utf-8'), encoding='utf-8')
    document_folder(folder / 'decodelab')
    return folder


@pytest.fixture(scope='module')
def report(built):
    helped = (f'decodelab.{name}' for name in HELPED)
    return json.loads(python(REPORT, built, json.dumps(list(public())), *helped))


@pytest.fixture(scope='module')
def rows():
    "`module:name` -> parameters, of all public functions, classes and methods, from the sources."
    package = Package(ROOT / 'decodelab')

    def of(name):
        source = package.definition(*name.split(':'))
        return package.parameters(*source) if source else []

    return of


def test_every_public_name_shows_its_parameters(report, rows):
    items = {name: rows(name) for name, item in report.items() if item['own']}
    assert [
        f'{name}: {row.name}'
        for name, parameters in items.items()
        for row in parameters
        if str(row) not in report[name]['doc']
    ] == []
    assert len(items) > 350
    assert sum(map(len, items.values())) > 800


FOREIGN = {'decodelab.models.batching:Batch'}  # a list, with the signature of one


def test_parameters_are_those_of_the_signature(report, rows):
    for name in report.keys() - FOREIGN:
        assert [row.name.lstrip('*') for row in rows(name)] == report[name]['names'], name


@pytest.mark.parametrize('name', HELPED)
def test_help_prints_the_comments(name, report, rows):
    parameters = rows(f'decodelab.{name}')
    assert any(row.comment for row in parameters)
    for row in parameters:
        assert row.name in report[f'decodelab.{name}']['help']
        assert row.comment in report[f'decodelab.{name}']['help']


def test_most_parameters_have_a_comment(report, rows):
    "A parameter needs one unless its name and its annotation are enough."
    parameters = [row for name in report for row in rows(name)]
    assert sum(bool(row.comment) for row in parameters) > len(parameters) / 2


def test_help_is_the_same_by_every_road(built):
    code = (
        'from decodelab.core.driver import decode as by_module\n'
        'first = by_module.__doc__\n'
        'from decodelab import decode\n'
        'from decodelab.core import decode as by_part\n'
        'assert decode.__doc__ == by_part.__doc__ == first\n'
        'print(first)'
    )
    assert 'max_new_tokens : int, default 64\n        the budget' in python(code, built)


def test_importing_the_package_reads_no_source(built):
    code = (
        'import sys, decodelab\n'
        'print({"inspect", "fastcore", "decodelab.core.driver"} & set(sys.modules))'
    )
    args = [
        sys.executable,
        '-S',
        '-c',
        f'import sys; sys.path[:] = {[str(built), *sys.path]!r}\n{code}',
    ]
    run = subprocess.run(args, capture_output=True, text=True, check=True)
    assert run.stdout == 'set()\n'


def without_docstrings(source):
    "A module as its tree, without docstrings."
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, 'body', [])
        if isinstance(body, list) and isinstance(node, parameter_docs.DEFINITIONS):
            first = parameter_docs.docstring_of(node)
            node.body = body[1:] if first else body
    return ast.dump(tree)


def test_only_docstrings_change(built):
    for path in notebooks():
        module = module_path(module_name(path))
        copy = built / module.relative_to(ROOT)
        assert without_docstrings(copy.read_text()) == without_docstrings(module.read_text())


def test_a_documented_package_stays_as_it_is(built):
    package = Package(built / 'decodelab')
    for name in ('core.driver', 'strategies.beam_search', 'detection.detect'):
        module = package.module(f'decodelab.{name}')
        assert document_source(package, module) == module.source


# The tool


SMALL = {
    'a.py': '''
"A module."
import dataclasses
from dataclasses import dataclass, field
from fastcore.basics import patch

LIMIT = 7

# above a definition
def spread(
    first,  # the first
    *others: int,  # the others
    flag=len,
    limit: 'int | None' = LIMIT,
    # on a line of
    # its own
    late=None,
    **named,  # by name
):
    "A function with everything."


def short(x, y=1): "One line."; return x


def undocumented(x): ...


def _private(
    x,  # it
):
    "Not public."


class Base:
    "It has `a \\\\ b`."

    def __init__(
        self,
        size: int = 3,  # how large
    ):
        "Not shown."

    @staticmethod
    def make(
        n,  # how many
    ):
        """Several lines.

        Below.
        """

    def none(self):
        "No parameters."


class Point:
    def __new__(cls, x): ...


@patch
def grow(
    self: Base,
    by,  # times
):
    "Grow."


@dataclass
class Row:
    "A row."
    x: int  # the x
    y: float = 0.5
    table: list = field(default_factory=list, repr=False)  # cells
    hidden: int = field(init=False)
    zero: int = field(default_factory=lambda: 0 + 1)
''',
    'b.py': '''
"Another module."
import typing
from typing import NamedTuple
from .a import Base, Row as Line
from dataclasses import dataclass


class Derived(Base):
    "Inherits."


@dataclass
class Long(Line):
    r"A row with \\d."
    y: float = 1.0  # the height
    z: int = 0


class Pair(NamedTuple):
    "Two."
    left: int  # one
    right: int = 2
''',
    '__init__.pyi': 'from .a import spread as spread\n',
    '__init__.py': '',
}


@pytest.fixture
def small(tmp_path):
    for name, text in SMALL.items():
        path = tmp_path / 'small' / 'part' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.lstrip())
    return tmp_path / 'small'


def shown(folder, name):
    "The parameters of a definition as lines."
    package = Package(folder)
    return list(map(str, package.parameters(*package.definition(*name.split(':')))))


def test_every_kind_of_parameter(small):
    assert shown(small, 'small.part.a:spread') == [
        'first\n    the first',
        '*others : int\n    the others',
        'flag : default len',
        'limit : int | None, default 7',
        'late : default None\n    on a line of its own',
        '**named\n    by name',
    ]
    assert shown(small, 'small.part.a:short') == ['x', 'y : default 1']
    assert shown(small, 'small.part.a:Base.make') == ['n\n    how many']
    assert shown(small, 'small.part.a:Base.grow') == ['by\n    times']
    assert shown(small, 'small.part.a:Base.none') == []
    assert shown(small, 'small.part.a:Point') == ['x']
    assert str(Parameter('x')) == 'x'


def test_fields_and_inherited_parameters(small):
    row = [
        'x : int\n    the x',
        'y : float, default 0.5',
        'table : list, default list()\n    cells',
    ]
    assert shown(small, 'small.part.a:Row') == [*row, 'zero : int, default 0 + 1']
    assert shown(small, 'small.part.b:Derived') == ['size : int, default 3\n    how large']
    assert shown(small, 'small.part.b:Long') == [
        row[0],
        'y : float, default 1.0\n    the height',
        row[2],
        'zero : int, default 0 + 1',
        'z : int, default 0',
    ]
    assert shown(small, 'small.part.b:Pair') == ['left : int\n    one', 'right : int, default 2']


def test_names_of_others_have_no_definition(small):
    package = Package(small)
    assert package.definition('small.part.a', 'nothing') is None
    assert package.definition('json', 'loads') is None
    assert package.find(package.module('small.part'), 'spread')[1].name == 'spread'


def test_docstrings_of_a_documented_folder(small):
    document_folder(small)
    names = {}
    source = (small / 'part' / 'a.py').read_text().replace('from fastcore.basics import patch', '')
    exec(source.replace('@patch\n', '').replace(': Base', ''), names)
    assert names['spread'].__doc__.startswith('A function with everything.\n\n    Parameters\n')
    assert names['short'].__doc__.rstrip().endswith('y : default 1')
    assert names['short'](3) == 3
    assert names['Base'].__doc__.startswith('It has `a \\ b`.')
    assert 'size : int, default 3' in names['Base'].__doc__
    assert HEADING not in names['Base'].__init__.__doc__
    assert 'Below.' in names['Base'].make.__doc__
    assert 'how many' in names['Base'].make.__doc__
    assert names['undocumented'].__doc__ is None
    assert names['_private'].__doc__ == 'Not public.'
    assert names['Base'].none.__doc__ == 'No parameters.'
    before = (small / 'part' / 'a.py').read_text()
    document_folder(small)
    assert (small / 'part' / 'a.py').read_text() == before
