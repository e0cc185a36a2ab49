"""The short form of every experiment at scale `paper`, with tiny stand-ins for checkpoints and data.

What is shown is that the cells run: names, architectures, tokenizers, files. Their figures mean nothing. Experiments without that scale, and why:
00_tour measures this package, 08_watermark_speed what marks cost by themselves, 16_drafters, 16_engine, 16_engine_sizes and 17_search this package's
parts beside transformers' and other engines, 18_scaling processes: no source names checkpoints for them.
"""

import json

import pandas as pd
import pytest
from repo import ROOT, notebooks

from decodelab.lab.requirements import requirements
from tests.stand_ins import paper_environment

WITHOUT = {
    '00_tour',
    '08_watermark_speed',
    '16_drafters',
    '16_engine',
    '16_engine_sizes',
    '17_search',
    '18_scaling',
    '20_trees',
}
NOT_HERE = {  # parts that need a package that is not here, and are reported as failed
    '01_assisted_generation': {'INT8'},
}
PAPER = [p for p in notebooks('experiments') if p.stem not in WITHOUT]


def test_who_has_no_such_scale():
    assert {p.stem for p in notebooks('experiments') if 'paper' not in requirements(p)} == WITHOUT


def every_call_has_a_verdict(results):
    "Each call of the guides was run, beside the text that its guide prints, if it prints one."
    call = ['guide', 'block', 'part', 'method']
    read = dict(index_col=call, keep_default_na=False, dtype=str)
    calls = pd.read_csv(ROOT / 'experiments' / 'sources' / 'guides.csv', **read)
    rows = pd.read_csv(results, **read)
    assert len(calls)
    assert rows.index.is_unique
    assert set(rows.index) == set(calls.index)
    assert rows.verdict.ne('').all()
    assert rows.printed_verdict[calls.printed.ne('').reindex(rows.index)].ne('').all()


@pytest.mark.parametrize('path', PAPER, ids=lambda p: p.stem)
def test_runs_with_the_names_of_the_source(path, shelf, runner, tmp_path):
    env = paper_environment(requirements(path)['paper'], shelf, tmp_path)
    failed = runner.run(path, env, skipped=('#| net', '#| gpu'))
    assert not failed, failed[-3000:]
    rows = pd.read_csv(tmp_path / 'quick' / f'{path.stem}.paper.verdicts.csv')
    assert len(rows)
    assert list(rows) == ['claim', 'source', 'measured', 'agrees', 'why', 'rule', 'p']
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
