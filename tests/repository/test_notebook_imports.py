"`pip install '.[lab]'` is enough for every notebook: what they import is in the closure of that extra."

import ast
import functools
import re
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repo import ROOT, cells, notebooks, numbered, project

EVERY = [*numbered(), *notebooks(pattern='index.ipynb'), *notebooks('experiments')]
# Imported in functions and under conditions only; without their extra a sentence names it.
OPTIONAL = dict(
    datasets='experiments',
    pyarrow='experiments',
    soundfile='experiments',
    torchao='quantized',
    ctranslate2='bench',
    lm_eval='lm-eval',
    submitit='submitit',
)
OF_A_CHECKOUT = {p.stem for p in (ROOT / 'tests' / 'golden').glob('*.py')}  # where there is one
PROVIDERS = packages_distributions()


def code(source):
    "A cell without its magics."
    return '\n'.join('' if l.lstrip().startswith(('%', '!')) else l for l in source.splitlines())


def imported(node):
    "The top-level names that an import statement imports; none for other nodes and relative imports."
    if isinstance(node, ast.Import):
        return {a.name.split('.')[0] for a in node.names}
    if isinstance(node, ast.ImportFrom) and not node.level:
        return {node.module.split('.')[0]}
    return set()


@functools.cache
def imports(source):
    "`(all names, those that every run imports)`: what stands in a function or under a condition may wait."
    tree = ast.parse(code(source))
    blocks = (ast.FunctionDef, ast.AsyncFunctionDef, ast.If)
    late = {id(m) for n in ast.walk(tree) if isinstance(n, blocks) for m in ast.walk(n)}
    nodes = list(ast.walk(tree))
    every = set().union(*map(imported, nodes))
    return every, set().union(*(imported(n) for n in nodes if id(n) not in late))


def installed_requirements(name, extras):
    "The requirements of an installed distribution, under some of its extras; none where it is not there."
    try:
        lines = requires(name) or []
    except PackageNotFoundError:
        return []
    results = [Requirement(line) for line in lines]
    environments = [dict(extra=e) for e in ('', *extras)]
    return [r for r in results if r.marker is None or any(map(r.marker.evaluate, environments))]


def closure(roots):
    "The names of all distributions that some requirements bring."
    result, todo = set(), [(r.name, frozenset(r.extras)) for r in roots]
    while todo:
        name, extras = todo.pop()
        key = canonicalize_name(name), extras
        if key not in result:
            result.add(key)
            todo += [(r.name, frozenset(r.extras)) for r in installed_requirements(name, extras)]
    return {name for name, _ in result}


@pytest.fixture(scope='module')
def lab():
    "What `pip install '.[lab]'` brings."
    meta = project()['project']
    return closure(map(Requirement, meta['dependencies'] + meta['optional-dependencies']['lab']))


def is_there(name, path, lab):
    "Does `.[lab]` bring a module, or does it lie beside the notebook?"
    ours = {'decodelab', *sys.stdlib_module_names, *(p.stem for p in path.parent.glob('*.py'))}
    return name in ours or any(canonicalize_name(d) in lab for d in PROVIDERS.get(name, ()))


@pytest.mark.parametrize('path', EVERY, ids=lambda p: f'{p.parent.name}.{p.stem}')
def test_lab_brings_what_a_notebook_imports(path, lab):
    missing = set()
    for source in cells(path):
        every, at_once = imports(source)
        needed = at_once | {n for n in every if n not in OPTIONAL and n not in OF_A_CHECKOUT}
        missing |= {n for n in needed if not is_there(n, path, lab)}
    assert missing == set()


def test_optional_packages_are_in_their_extra():
    extras = project()['project']['optional-dependencies']
    for name, extra in OPTIONAL.items():
        assert name in {Requirement(line).name for line in extras[extra]}


def test_the_check_sees_what_it_should(lab):
    assert imports('%pip install x\nimport a.b\ndef f():\n    from c import d') == (
        {'a', 'c'},
        {'a'},
    )
    here = EVERY[0]
    assert is_there('pytest', here, lab)
    assert is_there('IPython', here, lab)
    assert not is_there('nbdev', here, lab)
    assert not is_there('hypothesis', here, lab)
    assert not is_there('no_such_module', here, lab)
    names = set().union(*(imports(s)[0] for p in EVERY for s in cells(p)))
    assert {'pytest', 'pandas', 'jiwer', 'torch'} <= names


def test_paths_on_the_first_page_hold_from_the_root():
    "What the README and CONTRIBUTING write in code quotes with a slash is in the clone's root."
    for name in ('README.md', 'CONTRIBUTING.md'):
        text = (ROOT / name).read_text()
        paths = {
            p
            for p in re.findall(
                r'(?<=[`\s(])((?:nbs|experiments|tests|tools|docs|decodelab)/[\w./-]*)', text
            )
        }
        paths = {p for p in paths if not p.startswith('docs/_build')}  # a build makes it
        assert paths
        assert [p for p in paths if not (ROOT / p.rstrip('.')).exists()] == []
