"Every notebook of experiments/ has the form that the runner and the README rely on."

import ast
import builtins
import json
import re

import pandas as pd
import pytest
from audit import defined_names, words_of
from repo import ROOT
from words import FORBIDDEN

NOTEBOOKS = sorted((ROOT / 'experiments').glob('[0-9]*.ipynb'))


def sections(path):
    "(section, type, source) of each cell; the section is the first word of the last heading among the four."
    section, out = 'Set-up', []
    for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown' and (
            heading := re.match(r'## (Claim|Measure|Figure|Agreement)\b', source)
        ):
            section = heading[1]
        out.append((section, cell['cell_type'], source))
    return out


def bound(tree):
    "Names that the cell leaves behind."
    out = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    } | {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    return out | {
        (a.asname or a.name).split('.')[0]
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
    }


def used(tree):
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_figures_are_drawn_from_what_is_stored(path):
    known, measured = set(dir(builtins)) | {'display', 'get_ipython'}, set()
    for section, kind, source in sections(path):
        if kind != 'code':
            continue
        tree = ast.parse(source)
        if section in ('Figure', 'Agreement'):
            lost = sorted(
                (used(tree) & measured)
                - known
                - bound(tree)
                - {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
            )
            assert not lost, (
                f'{path.name}: {", ".join(lost)} come from cells under Measure, which are left '
                'out when figures are drawn from stored rows: read them with ex.read, or define '
                'them under Claim'
            )
        (measured if section == 'Measure' else known).update(bound(tree))


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_an_experiment_has_its_parts(path):
    cells = sections(path)
    code = '\n'.join(s for _, k, s in cells if k == 'code')
    order = [s for i, (s, _, _) in enumerate(cells) if not i or cells[i - 1][0] != s]
    assert order == ['Set-up', 'Claim', 'Measure', 'Figure', 'Agreement'], order
    assert re.search(r'^NEEDS = dict\(', code, re.M)
    assert re.search(rf"Experiment\(\s*'{path.stem}',\s*NEEDS", code)
    assert 'ex.verdicts(' in ''.join(s for n, k, s in cells if k == 'code' and n == 'Agreement')
    assert not re.search(r'DECODELAB_(SCALE|QUICK|WHOLE|RESULTS)', code), (
        'the experiment object knows these'
    )


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_its_claims_are_judged_by_rules(path):
    "Thresholds stand under Claim, before rows are read; verdicts follow from them alone."
    code = {}
    for section, kind, source in sections(path):
        if kind == 'code':
            code[section] = code.get(section, '') + source + '\n'
    assert 'Claim(' in code['Claim']
    assert re.search(r'ex\.verdicts\(\s*judge\(', code['Agreement'])
    for section in ('Measure', 'Figure', 'Agreement'):
        assert not re.search(r'\bClaim\(', code[section]), section
    assert 'agrees=' not in code['Agreement']


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_its_verdicts_are_stored(path):
    table = ROOT / 'experiments' / 'results' / f'{path.stem}.pico.verdicts.csv'
    rows = pd.read_csv(table, keep_default_na=False)
    assert list(rows) == ['claim', 'source', 'measured', 'agrees', 'why', 'rule', 'p']
    assert len(rows)


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def nested(node, kinds):
    "Is one of these kinds of nodes inside a node?"
    return any(isinstance(n, kinds) for n in ast.walk(node) if n is not node)


def shape_problems(tree):
    "What needs a second reading in a cell: the rules of the exported code that hold here, too."
    for n in ast.walk(tree):
        both = isinstance(n, ast.Assert) and isinstance(n.test, ast.BoolOp)
        if both and isinstance(n.test.op, ast.And):
            yield f'two claims in one assertion: {ast.unparse(n)[:60]}'
        if isinstance(n, COMPREHENSIONS) and nested(n, COMPREHENSIONS):
            yield f'a comprehension in a comprehension: {ast.unparse(n)[:60]}'
        if isinstance(n, ast.IfExp) and nested(n, ast.IfExp):
            yield f'nested conditional expression: {ast.unparse(n)[:60]}'
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Tuple):
            yield f'a tuple as a statement: {ast.unparse(n)[:60]}'


@pytest.mark.parametrize(
    'path', [*NOTEBOOKS, *sorted((ROOT / 'experiments').glob('*.py'))], ids=lambda p: p.name
)
def test_it_is_written_as_the_library_is(path):
    "Nouns as names, one claim an assertion, no comprehension in a comprehension, no tuple to look at."
    sources = [path.read_text(encoding='utf-8')]
    if path.suffix == '.ipynb':
        sources = [source for _, kind, source in sections(path) if kind == 'code']
    problems = []
    for i, source in enumerate(sources):
        tree = ast.parse(source)
        words = {word: name for name in defined_names(ast.walk(tree)) for word in words_of(name)}
        problems += [f'cell {i}: {name}: {words[name]!r}' for name in words.keys() & set(FORBIDDEN)]
        problems += [f'cell {i}: {problem}' for problem in shape_problems(tree)]
    assert problems == []
