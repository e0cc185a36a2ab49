"experiments/beside_transformers.py runs on a CPU, and its greedy sequences agree."

import importlib.util
import json

import pytest
from repo import ROOT

OPTIONS = ['--device', 'cpu', '--prompts', '1', '--new', '6']


@pytest.fixture(scope='module')
def script():
    path = ROOT / 'experiments/beside_transformers.py'
    spec = importlib.util.spec_from_file_location('beside_transformers', path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_the_benchmark_runs(script, tmp_path, capsys):
    options = [*OPTIONS, '--repeats', '1']
    frame = script.main([*options, '--out', str(tmp_path)])
    assert len(frame) == 8
    assert (frame.seconds > 0).all()
    greedy = frame[frame['mode'] != 'sampled']
    assert len({tuple(t) for t in greedy.tokens}) == 1
    assert 'over_generate' in capsys.readouterr().out
    assert json.loads((tmp_path / 'beside.json').read_text())['torch']
    assert len((tmp_path / 'beside.csv').read_text().splitlines()) == 9


def test_it_ends_in_time_with_whole_turns(script, tmp_path, capsys):
    frame = script.main([*OPTIONS, '--repeats', '3', '--minutes', '1e-9', '--out', str(tmp_path)])
    assert len(frame) == 8
    assert '2 of 3 turns are left out: 0.0 minutes are over' in capsys.readouterr().out
    assert len((tmp_path / 'beside.csv').read_text().splitlines()) == 9
