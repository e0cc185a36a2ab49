"The parts: their imports, no circles, and one module for each notebook."

import ast
import functools
import re
import sys
from collections import Counter

import pytest
from repo import (
    ROOT,
    cells,
    directives,
    is_exported,
    makes_module,
    module_name,
    module_path,
    notebooks,
    numbered,
    pages,
    project,
)

# part -> the parts that its modules may import, in the order of the folders; late imports count too
MAY_IMPORT = {
    'core': '',
    'models': 'core',
    'logits': 'core models',
    'strategies': 'core models logits',
    'zoo': 'core models',
    'evaluate': 'core models logits strategies',
    'speculative': 'core models strategies evaluate',
    'drafters': 'core models logits strategies zoo speculative',
    'tuning': 'core models strategies evaluate speculative drafters',
    'watermark': 'core models logits strategies evaluate speculative',
    'detection': 'core models logits strategies watermark',
    'hf': 'core models logits strategies speculative drafters watermark',
    'engines': 'core models logits strategies evaluate speculative',
    'explorers': 'core models logits strategies zoo evaluate speculative drafters tuning watermark detection hf engines',
    'lab': 'core models logits strategies zoo evaluate speculative drafters tuning watermark detection hf engines',
    'cli': 'core models logits strategies zoo evaluate speculative drafters tuning watermark detection hf engines lab explorers',
}
# Modules that may import each other, because the import is late.
CIRCLES = [
    {
        'core.trace',
        'core.metrics',
        'core.plot',
    },  # a trace knows its metrics and its picture, which are functions of traces
    {'speculative.loop', 'speculative.device'},  # an accelerator's rounds are a kind of the loop's
    {
        'explorers.explorer',
        'explorers.panel',
    },  # an explorer shows itself in its panel, the form over explorers
]
DEVELOPMENT = 'nbdev', 'IPython', 'execnb', 'pytest'  # what only developers have
MODULES = {module_name(p): p for p in notebooks()}
every = pytest.mark.parametrize('path', notebooks(), ids=module_name)


@functools.cache
def imports(source, module):
    "The modules that a module imports, wherever the import stands: `part.name` for our own."
    package = ['decodelab', *module.split('.')]
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            name = '.'.join([*base, *([node.module] if node.module else [])])
            names += resolved(name, [a.name for a in node.names])
    return names


@functools.cache
def homes(stub):
    "Name → module of it, as a stub has them."
    body = ast.parse(stub.read_text()).body
    froms = (n for n in body if isinstance(n, ast.ImportFrom))
    return {a.name: n.module or a.name for n in froms for a in n.names}


def resolved(name, names):
    "`from name import names` as modules: a part's or the root's own names count as their homes."
    if name.split('.')[0] != 'decodelab' or name.count('.') == 2:
        return [name]
    known = homes(ROOT / name.replace('.', '/') / '__init__.pyi')
    return [f'{name}.{known.get(n, n)}' for n in names if n != '__version__']


def graph():
    "Module -> the modules of the package that it imports."
    edges = {}
    for m in MODULES:
        names = imports(module_path(m).read_text(), m)
        ours = {n.removeprefix('decodelab.') for n in names if n.startswith('decodelab.')}
        edges[m] = ours - {m}
    return edges


def circles(edges):
    "The sets of nodes that reach each other."

    def reach(start):
        seen, todo = set(), [start]
        while todo:
            for n in edges.get(todo.pop(), ()):
                if n not in seen:
                    seen.add(n)
                    todo.append(n)
        return seen

    reached = {n: reach(n) for n in edges}
    circle = lambda n: frozenset(m for m in reached[n] if n in reached.get(m, ()))
    return {circle(n) for n in edges if n in reached[n]}


def test_a_part_imports_what_it_may():
    parts = list(MAY_IMPORT)
    folders = {int(p.name[:2]): p.name[3:] for p in (ROOT / 'nbs').glob('[0-9]*') if p.is_dir()}
    assert folders == {i: part for i, part in enumerate(parts, 1)}
    for i, names in enumerate(MAY_IMPORT.values()):
        assert set(names.split()) <= set(parts[:i])  # acyclic by its order
    wrong = [
        f'{m} imports {target}'
        for m, targets in graph().items()
        for target in targets
        if (part := target.split('.')[0]) != m.split('.')[0]
        and part not in MAY_IMPORT[m.split('.')[0]].split()
    ]
    assert wrong == []


def test_no_notebook_imports_a_later_one_of_its_part():
    numbers = {module: path.name for module, path in MODULES.items()}
    allowed = lambda *modules: any(set(modules) <= set(circle) for circle in CIRCLES)
    assert [
        f'{numbers[module]} imports {numbers[target]}'
        for module, targets in graph().items()
        for target in targets
        if target in numbers
        and target.split('.')[0] == module.split('.')[0]
        and numbers[target] > numbers[module]
        and not allowed(module, target)
    ] == []


def test_modules_make_no_circle():
    edges = graph()
    assert sum(map(len, edges.values())) > 500  # it saw the imports
    assert circles(edges) == {frozenset(c) for c in CIRCLES}
    assert len(CIRCLES) <= 3


def test_the_checks_see_what_they_should():
    assert circles(dict(a={'b'}, b={'c'}, c={'a'}, d={'a'})) == {frozenset('abc')}
    assert circles(dict(a={'b'}, b=set())) == set()
    source = 'from ..core.trace import Step\ndef f():\n    from decodelab import load\n    from .plot import x\nfrom decodelab.detection import Paraphrase'
    assert list(imports(source, 'hf.generate')) == [
        'decodelab.core.trace',
        'decodelab.detection.attacks_models',
        'decodelab.models.session',
        'decodelab.hf.plot',
    ]


@every
def test_a_module_imports_nothing_of_development(path):
    result = {
        i.split('.')[0]
        for i in imports(module_path(module_name(path)).read_text(), module_name(path))
    }
    assert result & set(DEVELOPMENT) == set()


def python(source):
    "A cell as code; magics and cells in other languages count as empty."
    source = '\n'.join(l for l in source.splitlines() if not l.startswith(('%', '!')))
    try:
        ast.parse(source)
    except SyntaxError:
        return ''
    return source


# PyTorch registers a device once in a process: the notebook takes the objects that its module registered
ITS_OWN = {'evaluate.pretend'}


@every
def test_a_notebook_does_not_import_its_own_module(path):
    own = module_name(path)
    results = [s for s in cells(path) if f'decodelab.{own}' in imports(python(s), 'none.none')]
    assert len(results) == (own in ITS_OWN), results


def test_no_two_notebooks_make_one_module():
    counts = Counter(map(module_name, notebooks()))
    assert [n for n, k in counts.items() if k > 1] == []


@every
def test_the_first_cell_names_the_module(path):
    exports = [
        s.split()[2]
        for source in cells(path)
        for s in source.splitlines()
        if s.startswith('#| default_exp')
    ]
    assert exports == [module_name(path)]
    assert cells(path)[0].startswith('#| default_exp')
    assert not [d for source in cells(path) for d in directives(source) if d == 'exports']
    targets = [
        l
        for source in cells(path)
        for l in source.splitlines()
        if l.startswith('#| export') and len(l.split()) > 2
    ]
    assert targets == []  # a cell exported into another notebook's module


def test_a_page_exports_nothing():
    "A notebook that makes no module has no cell for one, and no file in the package."
    assert [p.stem for p in pages()] == ['12_glossary', '10_explorers', '14_write_your_own']
    exported = [(p.stem, s) for p in pages() for s in cells(p) if is_exported(s)]
    assert exported == []
    assert [p for p in pages() if module_path(module_name(p)).exists()] == []
    assert sorted([*notebooks(), *pages()]) == sorted(numbered())


def test_pages_are_distinguished_from_notebooks_with_a_module(tmp_path):
    page = tmp_path / 'page.ipynb'
    page.write_text('{"cells": [{"source": ["No `#| default_exp` here"]}]}')
    assert not makes_module(page)
    module = tmp_path / 'module.ipynb'
    module.write_text('{"cells": [{"source": ["#| default_exp core.x"]}]}')
    assert makes_module(module)


def test_notebooks_of_a_part_are_numbered_as_they_are_read():
    for folder in {p.parent for p in numbered()}:
        numbers = [int(p.stem[:2]) for p in sorted(folder.glob('[0-9]*.ipynb'))]
        assert numbers == list(range(1, len(numbers) + 1)), folder.name


def test_what_is_imported_is_declared():
    normal = dict(sklearn='scikit-learn', yaml='pyyaml', PIL='pillow')
    meta = project()['project']
    extras = [
        d
        for extra in ('quantized', 'experiments', 'lm-eval', 'submitit', 'lab')
        for d in meta['optional-dependencies'][extra]
    ]
    declared = {
        re.split(r'[<>=!~\[ ;]', d)[0].lower().replace('-', '_')
        for d in [*meta['dependencies'], *extras]
    }
    used = {
        i.split('.')[0]
        for p in notebooks()
        for s in cells(p)
        if is_exported(s)
        for i in imports(s, module_name(p))
    }
    used -= {*sys.stdlib_module_names, 'decodelab'}
    assert {normal.get(u, u).replace('-', '_') for u in used} <= declared


def test_the_modules_are_the_notebooks():
    made = {
        '.'.join(p.relative_to(ROOT / 'decodelab').with_suffix('').parts)
        for p in (ROOT / 'decodelab').glob('*/*.py')
        if p.stem != '__init__'
    }
    assert made - {n for n in made if n.startswith('experiments.')} == set(MODULES)
