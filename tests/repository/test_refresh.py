"""`tools/refresh.py`: the states of stored rows, a quiet machine, the plan, and the adoption of a run."""

import io
import json
import os
import re
import sys
from dataclasses import replace

import nbformat
import pytest
import refresh
from figures import CARD, WIDGET, store
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from refresh import (
    adopt_run,
    clean_notebook,
    machine_seconds,
    other_load,
    plan_text,
    refresh_plan,
    select_results,
    status_text,
    wait_until_quiet,
)

from decodelab.lab.freshness import STATES, current_fingerprint, stored_freshness

SOURCE = (
    'from decodelab.core.files import write_atomic',
    'NEEDS = dict(pico=dict(models=("pico",), data=(), memory_gb=1, minutes={minutes}))',
    '## Measure',
    'write_atomic("x", "y")',
    '## Figure',
)


def write_result(tmp, name, minutes, change=None):
    "A notebook with a stored result; `change` alters its fingerprint."
    sources = [source.format(minutes=minutes) for source in SOURCE]
    cells = [(new_markdown_cell if s.startswith('#') else new_code_cell)(s) for s in sources]
    nbformat.write(new_notebook(cells=cells), tmp / f'{name}.ipynb')
    metadata = dict(commit='a7dc08193a5cdc85c4dd3fa2d7b4cd5d988c55cc', date='2026-11-21T00:02:23')
    if change is not None:
        now = current_fingerprint(name, 'pico', tmp)
        metadata['fingerprint'] = now | dict(modules=now['modules'] | change)
    (tmp / 'results').mkdir(exist_ok=True)
    (tmp / 'results' / f'{name}.pico.json').write_text(json.dumps(metadata))


@pytest.fixture
def folder(tmp_path):
    "Three measured experiments: with the code of today, before a change, before fingerprints."
    write_result(tmp_path, '01_now', 3, change={})
    write_result(tmp_path, '02_before', 8, change={'core.files': 'another'})
    write_result(tmp_path, '03_early', 2)
    return tmp_path


def test_the_table_counts_each_state(folder):
    results = stored_freshness(folder)
    assert [r.state for r in results] == ['fresh', 'stale', 'unknown']
    assert status_text(results).endswith('results: 3, 1 fresh, 1 stale, 1 unknown')
    chosen = select_results(results, 'pico', ('02', '01'), folder)
    assert [r.name for r in chosen] == ['01_now', '02_before']
    with pytest.raises(ValueError, match='stored at scale gpu: measure .* 01_now --scale gpu'):
        select_results(results, 'gpu', ('01',), folder)


def test_the_plan_is_sorted_by_its_time(folder):
    results = stored_freshness(folder)
    plan = refresh_plan(results, folder=folder)
    assert [item.name for item in plan] == ['03_early', '02_before']
    assert plan_text(plan).endswith('experiments: 2, 10 min')
    assert [i.name for i in refresh_plan(results, names=('02',), folder=folder)] == ['02_before']
    assert refresh_plan(results, names=('01',), folder=folder) == []
    assert refresh_plan(results, 'gpu', folder=folder) == []
    part = replace(results[0], part='more', state='stale')
    plan = refresh_plan([*results, part], folder=folder)
    assert [i.name for i in plan] == ['03_early', '02_before']
    assert plan_text([]) == 'there is nothing to measure again'
    with pytest.raises(ValueError, match='no experiment'):
        refresh_plan(results, names=('44',), folder=folder)


def test_the_plan_of_the_repository():
    plan = refresh_plan(stored_freshness())
    mains = [r for r in stored_freshness() if r.scale == 'pico' and not r.part]
    stale = {r.name for r in mains if r.state != 'fresh'}
    assert {r.state for r in mains} <= {*STATES}
    assert {item.name for item in plan} == stale
    assert [item.minutes for item in plan] == sorted(item.minutes for item in plan)


def test_the_command_prints_states_and_plans(capsys):
    assert refresh.main(['status', '00_tour']) == 0
    assert re.search(r'^00_tour\.pico +(fresh|stale|unknown) ', capsys.readouterr().out, re.M)
    assert refresh.main(['refresh', '00', '02', '--dry-run']) == 0
    out = capsys.readouterr().out
    assert 'there is nothing to measure' in out or re.search(r'experiments: \d, \d+ (s|min)', out)
    assert refresh.main(['refresh', '--dry-run', '--resume', '--out', 'x']) == 2
    assert '--dry-run measures nothing' in capsys.readouterr().err
    assert refresh.main(['refresh', '--dry-run', '--adopt']) == 2
    assert 'leave --adopt out' in capsys.readouterr().err
    assert refresh.main(['refresh', '--resume']) == 2
    assert 'give it with --out' in capsys.readouterr().err


def test_nothing_is_timed_beside_other_work(capsys):
    loads = [2.0, 0.6, 0.1]
    assert wait_until_quiet(sys.stderr, measure=lambda: loads.pop(0), pause=lambda s: None) == 0.1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert '2.0 cores' in lines[0]
    assert '--anyway' in lines[0]
    assert wait_until_quiet(sys.stderr, anyway=True, measure=lambda: 2.0) == 2.0
    assert capsys.readouterr().err == ''
    assert wait_until_quiet(io.StringIO(), measure=lambda: None) is None
    load = other_load(0.05)
    assert load is None or load >= 0


def test_the_load_is_that_of_other_processes(tmp_path):
    stat = tmp_path / 'stat'
    tick = os.sysconf('SC_CLK_TCK')
    stat.write_text(f'cpu {tick} 0 {tick} {9 * tick} {tick} 0 0 0 0 0\ncpu0 1 2 3 4\n')
    assert machine_seconds(stat) == 2
    assert machine_seconds(tmp_path / 'none') is None

    def busy_pause(seconds):
        "A machine on which others use five seconds of a core at once."
        stat.write_text(f'cpu {6 * tick} 0 {tick} {9 * tick} {tick} 0 0 0 0 0\n')

    assert other_load(0, stat, busy_pause) > refresh.QUIET
    assert other_load(0.01, stat) == 0


def test_a_run_is_adopted_whole(folder):
    tmp = folder
    out = tmp / 'run'
    (out / 'results').mkdir(parents=True)
    with pytest.raises(ValueError, match='run it first'):
        adopt_run('02_before', 'pico', out, tmp)
    now = current_fingerprint('02_before', 'pico', tmp)
    (out / 'results' / '02_before.pico.json').write_text(json.dumps(dict(fingerprint=now)))
    (out / 'results' / '02_before.pico.csv').write_text('a\n2\n')
    (tmp / 'results' / '02_before.pico.more.csv').write_text('a\n1\n')
    nb = json.loads((tmp / '02_before.ipynb').read_text())
    nb['cells'][0]['metadata']['run'] = True
    stderr = dict(output_type='stream', name='stderr', text=['a warning'])
    stdout = dict(output_type='stream', name='stdout', text=[f'{out}/results/x.csv'])
    nb['cells'][0] |= dict(execution_count=3, outputs=[stderr, stdout])
    (out / '02_before.pico.ipynb').write_text(json.dumps(nb))
    record = dict(fingerprint=now | dict(notebook='x'))
    for finished, words in [({}, 'run it first'), (dict(finished='now'), 'measure changed during')]:
        (out / '02_before.pico.run.json').write_text(json.dumps(record | finished))
        with pytest.raises(ValueError, match=words):
            adopt_run('02_before', 'pico', out, tmp)
    assert [r.state for r in stored_freshness(tmp)] == ['fresh', 'stale', 'unknown']
    (out / '02_before.pico.run.json').write_text(json.dumps(dict(fingerprint=now, finished='now')))
    assert adopt_run('02_before', 'pico', out, tmp) == ['02_before.pico.more.csv']
    states = {f'{r.name} {r.part}'.strip(): r.state for r in stored_freshness(tmp)}
    assert states['02_before'] == 'fresh'  # of its own day
    assert states['02_before more'] == 'stale'
    nb['cells'][0] |= dict(execution_count=None, outputs=[stdout | dict(text=['results/x.csv'])])
    assert json.loads((tmp / '02_before.ipynb').read_text()) == nb
    assert (tmp / 'results' / '02_before.pico.csv').read_text() == 'a\n2\n'
    own = tmp / 'results' / '02_before.pico.more.json'
    assert own.is_file()  # of the day on which these rows were measured
    nb['cells'][-1]['source'] = ['## A later heading']
    (tmp / '02_before.ipynb').write_text(json.dumps(nb))
    stay = ['02_before.pico.more.csv', '02_before.ipynb']
    assert adopt_run('02_before', 'pico', out, tmp) == stay
    assert not [*tmp.rglob('*.tmp')]
    assert json.loads((tmp / '02_before.ipynb').read_text()) == nb
    (out / 'results' / '02_before.pico.more.csv').write_text('a\n3\n')
    adopt_run('02_before', 'pico', out, tmp)
    assert not own.exists()  # the rows are of this day, as the others are
    states = {f'{r.name} {r.part}'.strip(): r.state for r in stored_freshness(tmp)}
    assert states['02_before'] == 'fresh'
    assert 'stale' not in states.values()


def test_an_adopted_notebook_stores_no_widget(tmp_path):
    "As `python tools/figures.py --clean NOTEBOOK`."
    view = dict(
        output_type='display_data', metadata={}, data={WIDGET: {}, 'text/plain': 'a button'}
    )
    card = dict(output_type='display_data', metadata={CARD: 'light'}, data={'text/plain': 'a'})
    value = dict(output_type='execute_result', metadata={}, data={'text/plain': '2'})
    nb = new_notebook(cells=[new_code_cell('2')], metadata=dict(widgets={WIDGET: {}}))
    nb.cells[0].outputs = [nbformat.from_dict(o) for o in (view, card, value)]
    nb.cells[0].outputs[-1].execution_count = 7
    nbformat.write(nb, tmp_path / 'executed.ipynb')
    adopted = json.loads(clean_notebook(tmp_path / 'executed.ipynb', tmp_path))
    outputs = adopted['cells'][0]['outputs']
    assert [o['data']['text/plain'] for o in outputs] == [['a'], ['2']]
    assert outputs[0]['metadata'] == {}
    assert outputs[1]['execution_count'] is None
    assert adopted['metadata'] == {}
    store(tmp_path / 'executed.ipynb', {})
    cleaned = json.loads((tmp_path / 'executed.ipynb').read_text())
    assert cleaned['cells'][0]['outputs'] == outputs
    assert cleaned['metadata'] == {}


# A refresh from the command to the stored rows

CODE = {
    '## Measure': '''import json
import os
from pathlib import Path
from decodelab.lab.fingerprint import experiment_fingerprint
to = Path(os.environ['DECODELAB_RESULTS'])
to.mkdir(parents=True, exist_ok=True)
(to / '04_again.pico.csv').write_text('a\\n1\\n')
about = dict(commit='c' * 40, date='2026-11-23', load=os.environ.get('DECODELAB_OTHER_LOAD'))
about['libraries'] = os.listdir(os.environ['DECODELAB_CACHE'])
about['fingerprint'] = experiment_fingerprint('04_again.ipynb', NEEDS['pico'])
(to / '04_again.pico.json').write_text(json.dumps(about))
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.title('A line');
''',
    '## Figure': '2',
}
OLD = '{"commit": "b", "date": "2026-10-01"}'


@pytest.fixture
def experiments(tmp_path, monkeypatch):
    "A folder with one experiment, whose stored rows have no fingerprint."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(refresh, 'wait_until_quiet', lambda stream, anyway: 0.25)
    needs = dict(pico=dict(models=('pico',), data=(), memory_gb=0.1, minutes=0.1))
    cells = [new_markdown_cell('# Again'), new_code_cell(f'NEEDS = {needs!r}')]
    for heading, code in CODE.items():
        cells += [new_markdown_cell(heading), new_code_cell(code)]
    folder = tmp_path / 'experiments'
    (folder / 'results').mkdir(parents=True)
    nbformat.write(new_notebook(cells=cells), folder / '04_again.ipynb')
    (folder / 'results' / '04_again.pico.json').write_text(OLD)
    return folder


def run(capsys, *argv):
    "`(status, output, errors)` of the command."
    status = refresh.main([*argv, '--notebooks', 'experiments'])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_refresh_measures_and_stores(experiments, capsys, tmp_path, monkeypatch):
    cache = tmp_path / 'cache'
    cache.mkdir()
    (cache / 'compiled.so').touch()
    monkeypatch.setenv('DECODELAB_CACHE', str(cache))
    stored = experiments / 'results' / '04_again.pico.json'
    status, out, err = run(capsys, 'refresh', '04', '--out', 'again', '--adopt')
    assert status == 0, err
    assert 'the rows are stored' in out
    assert '1 fresh, 0 stale, 0 unknown' in run(capsys, 'status')[1]
    about = json.loads(stored.read_text())
    assert about['load'] == '0.25'
    assert about['libraries'] == []  # what the user has compiled is not measured
    cells = nbformat.read(experiments / '04_again.ipynb', 4).cells
    metadata = [o.metadata for c in cells for o in c.get('outputs', ()) if 'data' in o]
    assert metadata[0]['image/png']['alt'] == 'A line'  # as `figures.py` stores it
    assert 'there is nothing to measure' in run(capsys, 'refresh', '--dry-run')[1]
    stored.write_text(OLD)
    assert run(capsys, 'refresh', '--out', 'again')[0] == 2  # the folder holds a finished run
    status, out, err = run(capsys, 'refresh', '--out', 'again', '--resume', '--adopt')
    assert status == 0
    assert 'left as it is' in out
    assert '1 fresh' in run(capsys, 'status', '04')[1]
    changed = about | dict(fingerprint=about['fingerprint'] | dict(notebook='x'))
    (experiments.parent / 'again' / 'results' / stored.name).write_text(json.dumps(changed))
    stored.write_text(json.dumps(changed))
    status, out, err = run(capsys, 'refresh', '--out', 'again', '--resume', '--adopt')
    assert status == 1
    assert 'changed during the run' in err
    assert '1 stale' in run(capsys, 'status')[1]
