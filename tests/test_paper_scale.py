"""The short form of every experiment at scale `paper`, offline, with tiny stand-ins under the names of the checkpoints and data sets.

What is shown is that the cells run: names, architectures, tokenizers, files. Their figures mean nothing. Experiments without that scale, and why:
00_tour measures this package, 08_watermark_speed what marks cost by themselves, 16_drafters, 16_engine and 17_search this package's parts beside
transformers', 18_scaling processes: no source names checkpoints for them."""

import json
import os

import pandas as pd
import pytest

from decodelab.lab.requirements import requirements
from preloaded import Runner
from repo import ROOT, notebooks
from stand_ins import snapshot, write_data

WITHOUT = {
    '00_tour',
    '08_watermark_speed',
    '16_drafters',
    '16_engine',
    '17_search',
    '18_scaling',
    '20_trees',
}
NOT_HERE = {  # parts that need a package that is not here, and are reported as failed
    '01_assisted_generation': {'INT8'},
}
PAPER = [p for p in notebooks('experiments') if p.stem not in WITHOUT]


@pytest.fixture(scope='session')
def shelf(tmp_path_factory):
    "One folder of stand-ins for all workers."
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base) / 'paper'
    for part in ('hub', 'data'):
        (folder / part).mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope='session')
def runner(shelf):
    "Runs notebooks with nothing of this environment's settings, offline, beside the stand-ins."
    foreign = ('DECODELAB_', 'HF_', 'HUGGINGFACE_', 'TRANSFORMERS_')
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    env |= dict(
        HF_HOME=str(shelf), HF_HUB_OFFLINE='1', CUDA_VISIBLE_DEVICES='', OMP_NUM_THREADS='1'
    )
    runner = Runner(env)
    yield runner
    runner.close()


def test_who_has_no_such_scale():
    assert {p.stem for p in notebooks('experiments') if 'paper' not in requirements(p)} == WITHOUT


def every_call_has_a_verdict(results):
    "Each call of the guides was run, beside the text that its guide prints, if it prints one."
    call = ['guide', 'block', 'part', 'method']
    read = dict(index_col=call, keep_default_na=False, dtype=str)
    calls = pd.read_csv(ROOT / 'experiments' / 'sources' / 'guides.csv', **read)
    found = pd.read_csv(results, **read)
    assert len(calls) and found.index.is_unique and set(found.index) == set(calls.index)
    assert found.verdict.ne('').all()
    assert found.printed_verdict[calls.printed.ne('').reindex(found.index)].ne('').all()


@pytest.mark.parametrize('path', PAPER, ids=lambda p: p.stem)
def test_runs_with_the_names_of_the_source(path, shelf, runner, tmp_path):
    need = requirements(path)['paper']
    for name in (*need['models'], *need.get('further', ())):
        snapshot(name, shelf / 'hub')
    for name in need['data']:
        write_data(name, shelf / 'data')
    env = dict(
        DECODELAB_SCALE='paper',
        DECODELAB_QUICK='1',
        DECODELAB_DATA=str(shelf / 'data'),
        DECODELAB_RESULTS=str(tmp_path),
    )
    failed = runner.run(path, env, skipped=('#| net', '#| gpu'))
    assert not failed, failed[-3000:]
    found = pd.read_csv(tmp_path / 'quick' / f'{path.stem}.paper.verdicts.csv')
    assert len(found) and list(found) == ['claim', 'source', 'measured', 'agrees', 'why']
    about = [
        json.loads(p.read_text()) for p in (tmp_path / 'quick').glob(f'{path.stem}.paper*.json')
    ]
    assert any(a['experiment'] == path.stem and a['scale'] == 'paper' and a['quick'] for a in about)
    failures = tmp_path / 'quick' / f'{path.stem}.paper.failures.csv'
    failed = set(pd.read_csv(failures).part) if failures.exists() else set()
    assert failed <= NOT_HERE.get(path.stem, set()), pd.read_csv(failures).to_string()
    if path.stem == '21_guides':  # its source is calls with printed texts, not a table of numbers
        return every_call_has_a_verdict(tmp_path / 'quick' / '21_guides.paper.csv')
    beside = pd.read_csv(
        tmp_path / 'quick' / f'{path.stem}.paper.beside.csv', keep_default_na=False
    )
    owed = beside[beside.left_out.eq('') & beside.ours.eq('')]
    assert failed or owed.empty
