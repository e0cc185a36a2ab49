"The shape of a notebook, as CONTRIBUTING and the conventions ask: small cells, definitions apart from demonstrations, claims that can fail."

import ast
import base64
import re
from collections import Counter

import nbformat
import pytest

from repo import ROOT, cells, directives, exported_names, is_exported, lines, module_name, notebooks

LONGEST, LARGEST = (
    30,
    250,
)  # lines that hold something: of a cell or function; of a module, nbdev's cell marks aside
every = pytest.mark.parametrize('path', notebooks(), ids=lambda p: p.stem)
saved = pytest.mark.parametrize(
    'path',
    [*notebooks(), *notebooks(pattern='index.ipynb'), *notebooks('experiments')],
    ids=lambda p: p.stem,
)
modules = pytest.mark.parametrize(
    'path', [ROOT / 'decodelab' / f'{module_name(p)}.py' for p in notebooks()], ids=lambda p: p.stem
)
DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)


def functions(path):
    "Every function of a module with its source."
    text = path.read_text()
    return [
        (n, ast.get_source_segment(text, n))
        for n in ast.walk(ast.parse(text))
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


@saved
def test_cells_are_short(path):
    assert [
        f'{len(lines(s))} lines: {lines(s)[0]}' for s in cells(path) if len(lines(s)) > LONGEST
    ] == []


@modules
def test_functions_and_modules_are_short(path):
    assert [
        f'{n.name}: {len(lines(s))} lines' for n, s in functions(path) if len(lines(s)) > LONGEST
    ] == []
    assert len([l for l in lines(path.read_text()) if not l.startswith('# %%')]) <= LARGEST


def defined(path):
    "The names that the top level of a module defines, as often as it does; `X = X | …` goes on with one."
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign):
            used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            flat = [
                t
                for target in node.targets
                for t in (target.elts if isinstance(target, ast.Tuple) else [target])
            ]
            yield from (t.id for t in flat if isinstance(t, ast.Name) and t.id not in used)


@modules
def test_no_later_cell_takes_a_name_away(path):
    "A cell may use a name that a later cell of the module defines anew: the notebook passes, the module is wrong."
    assert [name for name, n in Counter(defined(path)).items() if n > 1] == []


@every
def test_a_notebook_is_one_idea(path):
    assert 25 <= len(nbformat.read(path, 4).cells) <= 60


@saved
def test_something_can_fail(path):
    source = '\n'.join(s for s in cells(path) if not is_exported(s))
    assert re.search(r'\bassert\b|\bpytest\.raises\(', source)


@saved
def test_no_cell_is_switched_off(path):
    assert [
        s for s in cells(path) if re.search(r'^#\|\s*eval:\s*false', s, flags=re.M | re.I)
    ] == []


@saved
def test_directives_stand_on_top(path):
    def late(source):
        body = '\n'.join(source.splitlines()).lstrip('\n').splitlines()
        first = next(
            (i for i, l in enumerate(body) if l.strip() and not l.startswith('#|')), len(body)
        )
        return [l for l in body[first:] if l.startswith('#|')]

    assert [l for s in cells(path) for l in late(s)] == []


@every
def test_exported_cells_only_define(path):
    def is_definition(node):
        if isinstance(node, ast.If):
            return '__name__' in ast.unparse(node.test)
        return isinstance(node, DEFINITIONS)

    found = [
        ast.unparse(n)
        for s in cells(path)
        if is_exported(s)
        for n in ast.parse(s).body
        if not is_definition(n)
    ]
    assert found == []


@every
def test_public_definitions_say_what_they_are_in_one_line(path):
    nodes = [
        n
        for s in cells(path)
        if 'export' in directives(s)
        for n in ast.parse(s).body
        if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith('_')
    ]
    assert [n.name for n in nodes if not (d := ast.get_docstring(n)) or '\n' in d] == []


@every
def test_headings_stand_alone(path):
    found = [s for s in cells(path, 'markdown') if re.match(r'##+ ', s) and s.strip().count('\n')]
    assert found == []


@modules
def test_no_global_randomness_and_no_pickle(path):
    text = path.read_text()
    for _, source in functions(path):
        if 'fork_rng(' in source:
            text = text.replace(source, '')  # the global generator is put back there
    assert (
        re.findall(
            r'\btorch\.manual_seed|\b(?:np|numpy)\.random\.(?!default_rng|Generator)\w+|\brandom\.seed|\bset_seed\(',
            text,
        )
        == []
    )
    assert re.findall(r'^\s*(?:import|from) pickle|\btorch\.load\(', text, flags=re.M) == []


@saved
def test_saved_outputs_are_small_and_quiet(path):
    outputs = [o for c in nbformat.read(path, 4).cells if c.cell_type == 'code' for o in c.outputs]
    assert [
        o.get('text', o.get('evalue'))
        for o in outputs
        if o.output_type == 'error' or o.get('name') == 'stderr'
    ] == []
    pictures = [
        len(base64.b64decode(o.data['image/png']))
        for o in outputs
        if 'image/png' in o.get('data', {})
    ]
    assert [size for size in pictures if size > 60_000] == []


@modules
def test_exported_names_are_unique(path):
    names = exported_names(path)
    assert len(names) == len(set(names))
