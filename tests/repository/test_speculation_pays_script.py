"experiments/speculation_pays.py, in its smallest form."

import importlib.util

from repo import ROOT


def test_the_benchmark_runs(capsys):
    path = ROOT / 'experiments/speculation_pays.py'
    spec = importlib.util.spec_from_file_location('speculation_pays', path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(['--prompts', '1', '--new', '6', '--repeats', '1', '--cases', 'never right'])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split('  ')[0] for row in rows] == ['never right'] * 3
    assert all(float(row[35:43]) > 0 for row in rows)
