"""The shape of a notebook, as CONTRIBUTING and the conventions ask: width, words, definitions apart from
demonstrations, claims that can fail, links that lead somewhere."""

import ast
import base64
import itertools
import re
from collections import Counter

import audit
import links
import nbformat
import pytest
from fold import unfolded
from repo import (
    ROOT,
    cells,
    exported_names,
    is_exported,
    module_name,
    module_path,
    notebooks,
    numbered,
    tracked,
)

EVERY = [*numbered(), *notebooks(pattern='index.ipynb'), *notebooks('experiments')]
every = pytest.mark.parametrize('path', numbered(), ids=module_name)
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


def problems(path, checks=tuple(audit.CHECKS)):
    "Check -> the problems of a notebook, for those that find some."
    results = {name: list(audit.CHECKS[name](path)) for name in checks}
    return {name: result for name, result in results.items() if result}


@every
def test_the_audit_finds_nothing(path):
    assert problems(path) == {}


PAGES = [*notebooks('experiments'), *notebooks(pattern='index.ipynb')]
SCRIPTS = [
    p for p in map(ROOT.__truediv__, tracked() or ()) if p.suffix == '.py' and p.parts[-2] != 'docs'
]
SCRIPTS = [p for p in SCRIPTS if (ROOT / 'decodelab') not in p.parents]


@pytest.mark.parametrize('path', PAGES, ids=lambda p: p.stem)
def test_the_audit_finds_nothing_in_experiments(path):
    checks = [c for c in audit.READ_CHECKS if c != 'diagrams' or path.stem != 'index']
    assert problems(path, checks) == {}


@pytest.mark.parametrize('path', SCRIPTS, ids=lambda p: f'{p.parent.name}.{p.stem}')
def test_the_audit_finds_nothing_in_scripts(path):
    source = path.read_text(encoding='utf-8')
    assert list(audit.forbidden_names(source)) == []
    assert list(audit.compound_assertions(source)) == []


def test_few_comprehensions_of_notebooks_are_nested():
    "Those of experiments and scripts: `test_experiments_form`, `test_form_of_tests`."
    sources = itertools.chain.from_iterable(map(cells, numbered()))
    nested = list(itertools.chain.from_iterable(map(audit.nested_comprehensions, sources)))
    assert len(nested) <= 30, nested


def test_exported_cells_follow_a_sentence():
    counts = audit.cell_counts(notebooks())
    assert counts['exported'] > 1000
    assert counts['in_runs'] <= 0.19 * counts['exported']
    assert counts['silent'] == 0


@pytest.mark.parametrize('path', links.files(), ids=lambda p: p.stem)
def test_a_link_bears_the_title_of_its_notebook(path):
    assert links.wrong_links(path) == [], 'python tools/links.py sets them'


def test_the_audit_sees_what_it_should(tmp_path):
    bad = {
        'wide': 'x = 1  # ' + 'y' * 110,
        'diagrams': '1',
        'attached': '#| export\nSession.read = read',
        'shapes': '#| export\na, b, c = 1, 2, 3',
        'flags': "#| export\ndef f(drafter):\n    'Trees?'\n    return getattr(drafter, 'trees', False)",
        'vocabulary': 'def base_law():\n    "The distribution."',
        'documented': '#| export\ndef f(): ...',
        'openings': '#| export\ndef f():\n    "What it does."',
        'silent': "#| export\nx = 1\n~~\n#| export\n@patch\ndef f(self: C):\n    'It is one.'",
        'empty': '#| export\n',
        'compound': 'assert a and b and c',
        'walls': 'assert a\n' * 5,
        'tuples': 'a, b',
        'long_floats': '1',
        'first_screen': "#| export\ndef f():\n    'A function.'",
    }
    assert bad.keys() == audit.CHECKS.keys()
    folder = tmp_path / '04_strategies'
    folder.mkdir()
    for name, source in bad.items():
        code = [nbformat.v4.new_code_cell(s) for s in source.split('\n~~\n')]
        if name == 'long_floats':
            text = ' '.join(['0.123456789012345678'] * 3)
            code[0].outputs = [nbformat.v4.new_output('stream', text=text)]
        texts = dict(first_screen='# Title', diagrams='![](a.svg)\n\n    ' + '─' * 79)
        title = nbformat.v4.new_markdown_cell(texts.get(name, '![](a.svg)'))
        path = folder / f'{name}.ipynb'
        nbformat.write(nbformat.v4.new_notebook(cells=[title, *code]), path)
        assert [c for c in bad if list(audit.CHECKS[c](path))] == [name]


def test_preformatted_text_and_its_columns():
    text = (
        'One.\n```text\na\n\n  b\n```\nTwo.\n    not code\n\n    c\n\n    d\n~~~\n```\n~~~\nThree.'
    )
    assert list(audit.preformatted(text)) == ['a', '', '  b', 'c', 'd', '```']
    assert [audit.columns(line) for line in ('t̂₅ →', '😀😀', '', '│ ├─')] == [4, 4, 0, 4]


def test_counts_of_nested_comprehensions_and_runs(tmp_path):
    nested = '[[y for y in x] for x in z]', '[y for x in z for y in x]', '[x for x in z]'
    assert [len(list(audit.nested_comprehensions(s))) for s in nested] == [1, 1, 0]
    code = [nbformat.v4.new_code_cell('#| export\nx = 1') for _ in range(3)]
    nbformat.write(nbformat.v4.new_notebook(cells=code), tmp_path / 'a.ipynb')
    counts = audit.cell_counts([tmp_path / 'a.ipynb'])
    assert counts == dict(exported=3, in_runs=3, patched=0, silent=0)


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
    if path.stem == 'random_calls':  # follows the calls of others, and puts the generators back
        return
    for node in ast.walk(ast.parse(whole)) if 'fork_rng(' in whole else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            source = ast.get_source_segment(whole, node)
            if 'fork_rng(' in source:
                text = text.replace(source, '')  # the global generator is put back there
    seeds = r'\btorch\.manual_seed|\b(?:np|numpy)\.random\.(?!default_rng|Generator)\w+|\brandom\.seed|(?<!llama\.)\bset_seed\('
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


def import_blocks(source):
    "Imports that follow each other without a line between, as pairs: from a module? and which."
    block, end = [], None
    for n in audit.tree_of(source).body:
        if not isinstance(n, (ast.Import, ast.ImportFrom)) or n.lineno != end:
            yield block
            block = []
        if isinstance(n, ast.Import):
            block.append((False, n.names[0].name.lower()))
        elif isinstance(n, ast.ImportFrom):
            block.append((True, n.module.lower()))
        end = n.end_lineno + 1
    yield block


@every
def test_imports_are_in_order(path):
    "As ruff's rule I sorts them, but that one module may have several lines."
    for source in cells(path):
        for block in import_blocks(source):
            assert block == sorted(block)


def test_the_order_of_imports_is_seen():
    blocks = list(import_blocks('import re\nimport ast\n\nfrom b import c\nfrom b import a\nx = 1'))
    assert [block == sorted(block) for block in blocks if block] == [False, True]


@modules
def test_names_of_the_package_are_imported_relatively(path):
    absolute = re.findall(r'^from decodelab[. ].*', path.read_text(), flags=re.M)
    assert absolute == [], 'one import a line: nbdev makes only those relative'


@modules
def test_exported_names_are_unique(path):
    names = exported_names(path)
    assert len(names) == len(set(names))


# References


def link_targets(path):
    "Targets of the relative links of a notebook."
    text = '\n'.join(cells(path, 'markdown'))
    return [
        t.partition('#')[0]
        for t in re.findall(r'\]\(([^)\s]+)\)', text)
        if not re.match(r'[a-z]+:|#', t)
    ]


@saved
def test_links_lead_somewhere(path):
    assert [t for t in link_targets(path) if not (path.parent / t).exists()] == []


@every
def test_a_notebook_links_to_another(path):
    assert [
        t
        for t in link_targets(path)
        if t.endswith('.ipynb') and (path.parent / t).resolve() != path
    ]


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
