"The numbers of the sources are data, and each is measured at scale `paper` or left out with a reason."

import csv
import datetime
import json
import re

import pytest
from repo import ROOT, notebooks

from decodelab.evaluate.datasets import SOURCES
from decodelab.lab.experiment import SOURCE_FIELDS
from decodelab.lab.requirements import requirements

FOLDER = ROOT / 'experiments' / 'sources'
FACTS = {'checkpoints', 'datasets'}
CALLS = {'guides': '21_guides'}  # calls and printed texts, which its experiment compares one by one
TABLES = sorted(p for p in FOLDER.glob('*.csv') if p.stem not in {*FACTS, *CALLS})
PAPER = [p for p in notebooks('experiments') if 'paper' in requirements(p)]
WITH_TABLE = [p for p in PAPER if p.stem not in CALLS.values()]


def rows_of(path):
    with open(path, newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def cells(path):
    "(kind, source) of the cells of a notebook."
    rows = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [(c['cell_type'], ''.join(c['source'])) for c in rows]


def test_every_experiment_with_a_source_has_its_rows():
    assert {p.stem for p in TABLES} == {p.stem for p in WITH_TABLE}
    assert {p.stem for p in PAPER} - {p.stem for p in WITH_TABLE} == set(CALLS.values())


@pytest.mark.parametrize('path', TABLES, ids=lambda p: p.stem)
def test_each_row_names_its_table_in_the_source(path):
    rows = rows_of(path)
    keys = [name for name in rows[0] if name not in SOURCE_FIELDS]
    seen = set()
    for row in rows:
        assert row['url'].startswith('https://'), row
        assert row['table'], row
        assert row['quantity'], row
        assert datetime.date.fromisoformat(row['accessed']), row
        assert row['unit'], row
        assert row['value'], row
        about = (row['table'], *(row[k] for k in keys), row['quantity'])
        assert about not in seen, f'twice: {about}'
        seen.add(about)
    for k in keys:
        assert any(row[k] for row in rows), f'no row uses the column {k}'


@pytest.mark.parametrize('path', TABLES, ids=lambda p: p.stem)
def test_models_and_data_of_a_row_are_needed_or_it_is_left_out(path):
    "A row that must be measured names models and data that the experiment needs at scale paper."
    need = requirements(ROOT / 'experiments' / f'{path.stem}.ipynb')['paper']
    models = {*need['models'], *need.get('further', ())}
    for row in rows_of(path):
        if row['left_out']:
            continue
        named = {row.get(k) for k in ('target', 'draft', 'model')}
        hub = {name for name in named if name and '/' in name}
        assert hub <= models, f'{hub - models} are not among the models of {path.stem}'
        data = row.get('data')
        assert data not in SOURCES or data in need['data'], data


@pytest.mark.parametrize('path', WITH_TABLE, ids=lambda p: p.stem)
def test_each_notebook_puts_ours_beside_them(path):
    code = '\n'.join(source for kind, source in cells(path) if kind == 'code')
    assert 'ex.beside(' in code, 'its source is not joined with what it measures'
    owed = [row for row in rows_of(FOLDER / f'{path.stem}.csv') if not row['left_out']]
    assert owed or 'ex.beside({})' in code


@pytest.mark.parametrize('path', notebooks('experiments'), ids=lambda p: p.stem)
def test_no_number_is_from_memory(path):
    for _, source in cells(path):
        match = re.search(r'from memory|as remembered|not checked against its text', source)
        assert not match or 'none is given from memory' in source or 'from memory only' in source, (
            source
        )


def test_facts_of_checkpoints_and_data_sets():
    need = [requirements(p)['paper'] for p in PAPER]
    models = {m for n in need for m in (*n['models'], *n.get('further', ()))}
    known = {row['name']: row for row in rows_of(FOLDER / 'checkpoints.csv')}
    assert models <= set(known), models - set(known)
    gated = {name for name, row in known.items() if row['gate']}
    for family in ('meta-llama/', 'google/gemma', 'mistralai/'):
        assert {m for m in models if m.startswith(family)} <= gated, family
    assert all(float(row['parameters_b']) > 0 and row['licence'] for row in known.values())
    assert {d for n in need for d in n['data']} <= {
        r['name'] for r in rows_of(FOLDER / 'datasets.csv')
    }


def test_a_row_that_is_neither_measured_nor_left_out_ends_a_run(tmp_path, monkeypatch):
    from decodelab import Experiment

    monkeypatch.setenv('DECODELAB_SCALE', 'paper')
    monkeypatch.setenv('DECODELAB_RESULTS', str(tmp_path))
    monkeypatch.chdir(ROOT / 'experiments')
    path = ROOT / 'experiments' / '05_universal_assisted_generation.ipynb'
    ex = Experiment(path.stem, requirements(path))
    with pytest.raises(ValueError, match='have none of ours .*measure them, or say in its column'):
        ex.beside({})
    ex.failures['google/gemma-2-9b, double7/vicuna-68m, cnn_dailymail'] = 'OutOfMemoryError'
    with pytest.raises(ValueError, match='CodeLlama-13b-Instruct-hf'):
        ex.beside({})


def test_one_page_lists_what_all_of_them_take():
    from decodelab.lab.run_plan import run_plan

    page = run_plan(PAPER, 'paper')
    for path in PAPER:
        assert path.stem in page
    for words in (
        'huggingface.co/meta-llama/Llama-3.1-8B',
        'hf auth login',
        'GB to fetch',
        'To do:',
    ):
        assert words in page
    assert page.count('decodelab experiment all --scale paper') == 2
    assert max(map(len, page.splitlines()[:20])) < 400
