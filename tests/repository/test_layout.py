"""The shape of a notebook, as CONTRIBUTING and the conventions ask: width, words, definitions apart from
demonstrations, claims that can fail, links that lead somewhere."""

import ast
import base64
import re
from collections import Counter

import nbformat
import pytest

import audit
from fold import unfolded
from repo import (
    ROOT,
    cells,
    exported_names,
    is_exported,
    module_name,
    module_path,
    notebooks,
)

EVERY = [*notebooks(), *notebooks(pattern='index.ipynb'), *notebooks('experiments')]
every = pytest.mark.parametrize('path', notebooks(), ids=module_name)
saved = pytest.mark.parametrize('path', EVERY, ids=lambda p: p.stem)
modules = pytest.mark.parametrize(
    'path',
    [module_path(module_name(p)) for p in notebooks()],
    ids=lambda p: f'{p.parent.name}.{p.stem}',
)
DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
)


@every
def test_hidden_cells_are_folded(path):
    assert unfolded(path) == [], 'python tools/fold.py folds them'


@pytest.mark.parametrize('check', audit.CHECKS)
@every
def test_the_audit_finds_nothing(path, check):
    assert list(audit.CHECKS[check](path)) == []


@pytest.mark.parametrize(
    'path', [*notebooks('experiments'), *notebooks(pattern='index.ipynb')], ids=lambda p: p.stem
)
def test_no_line_runs_out_of_the_window(path):
    assert list(audit.wide(path)) == []


def test_the_audit_sees_what_it_should(tmp_path):
    bad = {
        'wide': 'x = 1  # ' + 'y' * 110,
        'large': '#| export\n' + 'x = 1\n' * 400,
        'attached': '#| export\nSession.read = read',
        'shapes': '#| export\na, b, c = 1, 2, 3',
        'flags': "#| export\ndef f(drafter):\n    'Trees?'\n    return getattr(drafter, 'trees', False)",
        'vocabulary': '#| export\ndef base_law():\n    "The distribution."',
        'documented': '#| export\ndef f(): ...',
    }
    assert bad.keys() == audit.CHECKS.keys()
    for name, source in bad.items():
        nbformat.write(
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]),
            tmp_path / f'{name}.ipynb',
        )
        assert [c for c in bad if list(audit.CHECKS[c](tmp_path / f'{name}.ipynb'))] == [name]


def defined(path):
    "The names that the top level of a module defines, as often as it does; `X = X | …` goes on with one."
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            patched = any(ast.unparse(d).startswith('patch') for d in node.decorator_list)
            yield (
                f'{ast.unparse(node.args.args[0].annotation)}.{node.name}' if patched else node.name
            )
        elif isinstance(node, ast.Assign):
            used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            flat = [t for target in node.targets for t in getattr(target, 'elts', [target])]
            yield from (t.id for t in flat if isinstance(t, ast.Name) and t.id not in used)


@modules
def test_no_later_cell_takes_a_name_away(path):
    """A cell may use a name that a later cell of the module defines anew.

    The notebook passes, the module is wrong.
    """
    assert [name for name, n in Counter(defined(path)).items() if n > 1] == []


@saved
def test_something_can_fail(path):
    source = '\n'.join(s for s in cells(path) if not is_exported(s))
    assert re.search(r'\bassert\b|\bpytest\.raises\(', source)


@saved
def test_no_cell_is_switched_off(path):
    assert [
        s for s in cells(path) if re.search(r'^#\|\s*eval:\s*false', s, flags=re.M | re.I)
    ] == []


def late_directives(source):
    "Directives below the first line of code."
    body = source.lstrip('\n').splitlines()
    first = next(
        (i for i, line in enumerate(body) if line.strip() and not line.startswith('#|')), len(body)
    )
    return [line for line in body[first:] if line.startswith('#|')]


@saved
def test_directives_stand_on_top(path):
    assert [line for s in cells(path) for line in late_directives(s)] == []


def is_definition(node):
    if isinstance(node, ast.If):
        return '__name__' in ast.unparse(node.test)
    return isinstance(node, DEFINITIONS)


@every
def test_exported_cells_only_define(path):
    results = [
        ast.unparse(n)
        for s in cells(path)
        if is_exported(s)
        for n in ast.parse(s).body
        if not is_definition(n)
    ]
    assert results == []


@every
def test_docstrings_begin_with_a_short_paragraph(path):
    "A sentence of at most three lines, and below an empty line whatever else there is to say."
    nodes = [
        n
        for s in cells(path)
        if is_exported(s)
        for n in ast.walk(ast.parse(s))
        if isinstance(n, (ast.FunctionDef, ast.ClassDef))
    ]
    docs = {n.name: ast.get_docstring(n) or 'none' for n in nodes}
    assert [name for name, d in docs.items() if len(d.partition('\n\n')[0].splitlines()) > 3] == []


@every
def test_headings_stand_alone(path):
    assert [
        s for s in cells(path, 'markdown') if re.match(r'##+ ', s) and s.strip().count('\n')
    ] == []


# the error of a pickle that is refused may be named
PICKLE = r'^\s*(?:import|from) pickle(?! import UnpicklingError$)|\btorch\.load\('


@modules
def test_no_global_randomness_and_no_pickle(path):
    whole = text = path.read_text()
    for node in ast.walk(ast.parse(whole)) if 'fork_rng(' in whole else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            source = ast.get_source_segment(whole, node)
            if 'fork_rng(' in source:
                text = text.replace(source, '')  # the global generator is put back there
    seeds = r'\btorch\.manual_seed|\b(?:np|numpy)\.random\.(?!default_rng|Generator)\w+|\brandom\.seed|\bset_seed\('
    assert re.findall(seeds, text) == []
    assert re.findall(PICKLE, text, flags=re.M) == []


@saved
def test_saved_outputs_are_small_and_quiet(path):
    outputs = [o for c in nbformat.read(path, 4).cells if c.cell_type == 'code' for o in c.outputs]
    loud = [o for o in outputs if o.output_type == 'error' or o.get('name') == 'stderr']
    assert [o.get('text', o.get('evalue')) for o in loud] == []
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


# References


def links(path):
    "Targets of the relative links of a notebook."
    text = '\n'.join(cells(path, 'markdown'))
    return [
        t.partition('#')[0]
        for t in re.findall(r'\]\(([^)\s]+)\)', text)
        if not re.match(r'[a-z]+:|#', t)
    ]


@saved
def test_links_lead_somewhere(path):
    assert [t for t in links(path) if not (path.parent / t).exists()] == []


@every
def test_a_notebook_links_to_another(path):
    assert [t for t in links(path) if t.endswith('.ipynb') and (path.parent / t).resolve() != path]


@saved
def test_no_reference_is_a_number_in_quotes(path):
    "Notebooks are linked, not quoted by the number of their file."
    text = '\n'.join([*cells(path, 'markdown'), *cells(path)])
    files = {p.stem for p in EVERY} | {f'experiments/{p.stem}' for p in EVERY}
    assert [
        r
        for r in re.findall(r'`([\w/]*\d\d_\w+)`', text)
        if r not in files and not (ROOT / r).exists()
    ] == []
