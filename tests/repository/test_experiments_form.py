"Every notebook of experiments/ has the form that the runner and the README rely on."

import ast
import builtins
import json
import re

import pandas as pd
import pytest

from repo import ROOT

NOTEBOOKS = sorted((ROOT / 'experiments').glob('[0-9]*.ipynb'))


def sections(path):
    "(section, type, source) of each cell; the section is the first word of the last heading among the four."
    section, out = 'Set-up', []
    for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown' and (
            result := re.match(r'## (Claim|Measure|Figure|Agreement)\b', source)
        ):
            section = result[1]
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
def test_its_verdicts_are_stored(path):
    result = ROOT / 'experiments' / 'results' / f'{path.stem}.pico.verdicts.csv'
    rows = pd.read_csv(result, keep_default_na=False)
    assert list(rows) == ['claim', 'source', 'measured', 'agrees', 'why']
    assert len(rows)
