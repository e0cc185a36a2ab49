"experiments/beside_transformers.py runs on a CPU, and its greedy sequences agree."

import importlib.util
import json

from repo import ROOT


def test_the_benchmark_runs(tmp_path, capsys):
    path = ROOT / 'experiments/beside_transformers.py'
    spec = importlib.util.spec_from_file_location('beside_transformers', path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    options = ['--device', 'cpu', '--prompts', '1', '--new', '6', '--repeats', '1']
    frame = script.main([*options, '--out', str(tmp_path)])
    assert len(frame) == 8
    assert (frame.seconds > 0).all()
    greedy = frame[frame['mode'] != 'sampled']
    assert len({tuple(t) for t in greedy.tokens}) == 1
    assert 'over_generate' in capsys.readouterr().out
    assert json.loads((tmp_path / 'beside.json').read_text())['torch']
    assert len((tmp_path / 'beside.csv').read_text().splitlines()) == 9
