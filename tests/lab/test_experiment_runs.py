"Experiments from the command line: killed, resumed, shared, from a wheel, and reported on."

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import preloaded
import pytest
from huggingface_hub.constants import HF_HUB_CACHE
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from repo import ROOT, notebooks

from decodelab.core.files import may_be_alive
from decodelab.lab import merge_runs
from decodelab.lab.requirements import free_disk
from tests.lab.test_distributed import Forks

pytest.importorskip('nbclient')
SETUP = '''import os, time
from pathlib import Path
import pandas as pd
from decodelab import Experiment
from decodelab.evaluate.jobs import run_jobs'''
NEEDS = "NEEDS = dict(pico=dict(models=(), data=(), memory_gb=.1, minutes=.2))\nex = Experiment('01_slow', NEEDS)"
MEASURE = '''def one(i):
    Path(os.environ['DECODELAB_RUNS'], 'begun').open('a').write(f'{i} {os.environ.get("RANK", 0)}\\n')
    time.sleep(float(os.environ['PACE']))
    return dict(i=i, square=i * i)
rows = run_jobs({str(i): lambda i=i: one(i) for i in range(6)}, output_dir=ex.rows_folder('rows'), progress=False)
ex.save(pd.DataFrame(rows))
ex.save_metadata();'''
FIGURE = 'ex.read().square.sum()'
AGREEMENT = (
    "ex.verdicts([dict(claim='squares add up', source='55', measured=str(ex.read().square.sum()), "
    "agrees=bool(ex.read().square.sum() == 55), why='counted')])"
)


def write(folder, name='01_slow', *cells):
    "A notebook that measures six rows, or of the cells given."
    cells = cells or (
        '# Slow',
        SETUP,
        NEEDS,
        '## Claim',
        'The post *On sums of squares* says 55.',
        '## Measure',
        MEASURE,
        '## Figure',
        FIGURE,
        '## Agreement',
        AGREEMENT,
    )
    folder.mkdir(exist_ok=True)
    nbformat.write(
        new_notebook(
            cells=[
                (new_markdown_cell if re.match('#+ |The ', c) else new_code_cell)(c) for c in cells
            ]
        ),
        folder / f'{name}.ipynb',
    )
    return folder / f'{name}.ipynb'


def environment(pace=0, **more):
    "The environment of a command: this one's, without what the project's variables say."
    own = {k: v for k, v in os.environ.items() if not k.startswith('DECODELAB_')}
    return own | dict(PYTHONPATH=str(ROOT), PACE=str(pace), OMP_NUM_THREADS='1') | more


def start(*args, cwd, pace=0, **env):
    "The command, started in a fork."
    return preloaded.start(['-m', 'decodelab', *args], cwd=cwd, env=environment(pace, **env))


def run(*args, **how):
    "`(status, output, errors)` of the command."
    process = start(*args, **how)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def wait(what, process, seconds=120):
    "Wait until something is so."
    until = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate(timeout=5)
        assert time.monotonic() < until, process.communicate(timeout=5)
        time.sleep(0.02)


def begun(folder):
    "The jobs that were begun, in order."
    path = folder / 'runs' / 'begun'
    return [int(l.split()[0]) for l in path.read_text().splitlines()] if path.exists() else []


# Killed at any moment


def test_a_killed_run_loses_one_row_at_most_and_its_kernel_ends(tmp_path):
    write(tmp_path / 'e')
    args = 'experiment', '01', '--notebooks', 'e', '--out', 'out'
    process = start(*args, cwd=tmp_path, pace=0.4)
    wait(lambda: len(begun(tmp_path / 'out')) == 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = tmp_path / 'out' / 'runs' / '01_slow.pico' / 'rows' / 'rows.jsonl'
    writer = json.loads(next(rows.parent.glob('.*lock')).read_text())
    until = time.monotonic() + 60
    while may_be_alive(writer):  # the kernel looks for its parent once a second
        assert time.monotonic() < until
        time.sleep(0.05)
    lines, jobs = rows.read_text().count('\n'), len(begun(tmp_path / 'out'))
    time.sleep(0.6)
    # nobody goes on in secret
    assert (rows.read_text().count('\n'), len(begun(tmp_path / 'out'))) == (
        lines,
        jobs,
    )
    assert lines < 6
    status, out, err = run(*args, '--resume', cwd=tmp_path)
    assert status == 0, err
    assert 'agrees: squares add up (source: 55; here: 55)' in out, err
    done = begun(tmp_path / 'out')
    # at most one was measured twice
    assert sorted(set(done)) == list(range(6))
    assert len(done) <= 6 + 1
    stored = (tmp_path / 'out' / 'results' / '01_slow.pico.csv').read_text()
    assert stored == 'i,square\n' + ''.join(f'{i},{i * i}\n' for i in range(6))
    record = json.loads((tmp_path / 'out' / '01_slow.pico.run.json').read_text())
    assert len(record['parts']) == 2
    assert record['finished']


def test_two_shards_of_an_experiment_and_a_merge_have_the_rows_of_one_process(tmp_path):
    write(tmp_path / 'nb')
    command = ['experiment', '01_slow', '--notebooks', 'nb', '--out']
    how = dict(cwd=tmp_path, pace=0.1)
    late, first = (
        start(*command, 'shards', '--resume', '--shard', f'{i}/2', **how) for i in (1, 0)
    )
    outputs = [process.communicate(timeout=240) for process in (late, first)]
    assert [late.returncode, first.returncode] == [0, 0], outputs
    assert 'shard 0 judges and draws them' in ' '.join(outputs[0][0].split())
    assert 'agrees: squares add up' in outputs[1][0]
    merged = merge_runs([tmp_path / 'shards'])
    assert [(r['rows'], r['missing'], r['doubled'], r['failed']) for r in merged] == [(6, 0, 0, 0)]
    assert sorted(begun(tmp_path / 'shards')) == list(range(6))
    stored = (tmp_path / 'shards' / 'results' / '01_slow.pico.csv').read_text()
    assert stored == 'i,square\n' + ''.join(f'{i},{i * i}\n' for i in range(6))


def test_two_runs_cannot_share_a_folder(tmp_path):
    write(tmp_path / 'e')
    args = 'experiment', '01', '--notebooks', 'e', '--out', 'out'
    process = start(*args, cwd=tmp_path, pace=60)
    try:
        wait(lambda: begun(tmp_path / 'out'), process)
        status, out, err = run(*args, '--resume', cwd=tmp_path)
        assert status == 2
        assert 'runs 01_slow.pico in' in err
        assert f'process {process.pid} on' in err
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
        assert '--out out --resume' in process.stderr.read()


# What is needed


def test_what_is_missing_is_reported_before_anything_runs(tmp_path):
    need = (
        "NEEDS = dict(paper=dict(models=('someone/large', 'nano'), data=('cnn_dailymail',), "
        "memory_gb=1e6, minutes=600))"
    )
    write(tmp_path / 'e', '03_large', '# Large', need, "Path('ran').touch()")
    args = 'experiment', '03', '--scale', 'paper', '--notebooks', 'e'
    status, out, err = run(*args, '--out', 'out', cwd=tmp_path, HF_HOME=str(tmp_path / 'hub'))
    assert status == 2
    assert [
        w
        for w in ('model someone/large', 'model nano', 'data cnn_dailymail', 'memory of')
        if w not in err
    ] == []
    assert not (tmp_path / 'out').exists()
    (tmp_path / 'cnn_dailymail.validation.jsonl').write_text('{"article": "a"}\n')
    status, out, err = run(
        *args, '--check', cwd=tmp_path, HF_HOME=str(tmp_path / 'hub'), DECODELAB_DATA=str(tmp_path)
    )
    assert status == 1
    assert sum(not line.startswith(' ' * 8) for line in out.splitlines()) == 6  # others go on
    out = ' '.join(out.split())
    assert 'perhaps disk at' in out
    assert 'time: 10.0 h on one NVIDIA H100 (estimated); here: ' in out
    assert 'cnn_dailymail' not in out
    assert '--fetch' in out
    assert 'zoo train nano' in out


def test_a_check_of_all_is_a_page_to_act_on(tmp_path):
    "It installs from the clone, since a name on PyPI may belong to others; and it knows disk and device."
    args = 'experiment', 'all', '--scale', 'paper', '--check'
    status, out, err = run(*args, cwd=tmp_path)
    assert status == 1, err
    assert out.startswith('Experiments: ')
    to_do = out[out.index('To do:') :].splitlines()[1]
    assert to_do == '1. pip install -e ".[lab,experiments,quantized]" # in the clone'
    assert 'install "decodelab[' not in out
    assert re.search(r' h on one NVIDIA H100 \(estimated\); here: ', out.splitlines()[0])
    disk = re.search(r'(\d+) GB to fetch into (\S+), where (\d+) are free', out)
    assert disk[2] == HF_HUB_CACHE
    assert abs(int(disk[3]) - free_disk(HF_HUB_CACHE)) < 20
    assert ('make room for ' in out) == (int(disk[1]) > int(disk[3]))


@pytest.mark.parametrize('path', notebooks('experiments'), ids=lambda p: p.stem)
def test_every_experiment_names_its_needs_and_its_figures(path):
    from decodelab.lab.notebook_runner import cell_sections, without_measuring
    from decodelab.lab.requirements import assigned_literal, requirements

    if assigned_literal(path, 'NEEDS') is None:
        pytest.skip('repeats no source')
    nb = nbformat.read(path, 4)
    assert 'pico' in requirements(path)
    assert requirements(path)['pico']['memory_gb'] <= 8
    assert {'Claim', 'Measure', 'Figure', 'Agreement'} <= set(cell_sections(nb))
    assert len(without_measuring(nb).cells) < len(nb.cells)
    source = '\n'.join(c.source for c in nb.cells if c.cell_type == 'code')
    assert f"Experiment('{path.stem}', NEEDS)" in source
    assert 'ex.verdicts(' in source


# Several processes


def test_two_processes_share_one_experiment_after_the_other_and_the_main_one_writes(tmp_path):
    write(tmp_path / 'e')
    cells = (
        '# Next',
        SETUP,
        NEEDS.replace('01_slow', '02_next'),
        '## Claim',
        '## Measure',
        MEASURE,
        '## Figure',
        FIGURE,
        '## Agreement',
        AGREEMENT,
    )
    write(tmp_path / 'e', '02_next', *cells)  # its processes must find each other again
    options = ['experiment', 'all', '--notebooks', tmp_path / 'e', '--out', tmp_path / 'out']
    env = environment(pace=0.3, CUDA_VISIBLE_DEVICES='')
    processes = Forks(2, ['-m', 'decodelab', *options], env)
    try:
        out, err = processes.communicate(timeout=400)
    finally:
        processes.kill()
    assert processes.returncode == 0, err[-3000:]
    assert out.count('squares add up') == 2, err[-3000:]
    jobs = [l.split() for l in (tmp_path / 'out' / 'runs' / 'begun').read_text().splitlines()]
    assert sorted(int(i) for i, _ in jobs) == sorted([*range(6)] * 2)
    assert {r for _, r in jobs} == {
        '0',
        '1',
    }
    for name in ('01_slow', '02_next'):
        assert (
            tmp_path / 'out' / 'results' / f'{name}.pico.csv'
        ).read_text() == 'i,square\n' + ''.join(f'{i},{i * i}\n' for i in range(6))
        assert (
            json.loads((tmp_path / 'out' / 'results' / f'{name}.pico.json').read_text())[
                'processes'
            ]
            == 2
        )
    assert {p.name for p in (tmp_path / 'out').glob('*.ipynb')} == {
        '01_slow.pico.ipynb',
        '02_next.pico.ipynb',
    }


# From a wheel


def test_an_installed_package_has_its_experiments(tmp_path, wheel):
    wheel.extractall(tmp_path / 'site-packages')
    (tmp_path / 'work').mkdir()
    command = [sys.executable, '-m', 'decodelab', 'experiment', '12', '--figures', '--out', 'out']
    env = environment(PYTHONPATH=str(tmp_path / 'site-packages'))
    done = subprocess.run(command, cwd=tmp_path / 'work', env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path = tmp_path / 'work' / 'out' / 'figures' / '12_how_to_generate.pico.ipynb'
    outputs = [o for c in nbformat.read(path, 4).cells for o in c.get('outputs', [])]
    assert any('image/png' in o.get('data', {}) for o in outputs)


# Reports


def test_a_report_of_the_experiments_loads_and_runs_nothing(tmp_path):
    status, out, err = run(
        'report', ROOT / 'experiments', '--out', tmp_path / 'r.html', cwd=tmp_path
    )
    assert status == 0, err
    assert 'claims' in out, err
    page = (tmp_path / 'r.html').read_text()
    fetched = re.findall(
        r'''<(?:script|link|iframe|object|embed|form|base)\b|\bon\w+\s*=\s*["']|(?:src|href)\s*=\s*["'](?!data:|#)[^"']*|@import|url\(''',
        re.sub(r'>[^<]*<', '><', page),
    )
    assert fetched == []
    assert "default-src &#x27;none&#x27;" in page
    assert page.count('<img') > 20


def test_chromium_shows_a_report_and_asks_for_nothing(tmp_path):
    playwright = pytest.importorskip('playwright.sync_api')
    if not shutil.which('chromium'):
        pytest.skip('no chromium')
    bad = (
        '<img src="http://127.0.0.1:9/x.png"><script>document.title = "ran"</script><b '
        'onclick="x()">bold</b>'
    )
    nb = new_notebook(
        cells=[
            new_markdown_cell('## Figure'),
            new_code_cell('HTML(bad)', outputs=[new_output('execute_result', {'text/html': bad})]),
        ]
    )
    (tmp_path / 'out' / 'results').mkdir(parents=True)
    nbformat.write(nb, tmp_path / 'out' / '01_bad.pico.ipynb')
    (tmp_path / 'out' / 'results' / '01_bad.pico.verdicts.csv').write_text(
        'claim,source,measured,agrees,why\n<i>it</i> is so,1,1,True,"<script>x()</script>"\n'
    )
    assert run('report', 'out', cwd=tmp_path)[0] == 0
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which('chromium'), args=['--no-sandbox'])
        page = browser.new_page()
        asked = []
        wrong = []
        page.on('request', lambda r: asked.append(r.url))
        page.on('console', lambda m: wrong.append(m.text) if m.type == 'error' else None)
        page.goto((tmp_path / 'out' / 'report.html').as_uri())
        assert page.title() == 'Experiments'
        assert page.locator('table.verdicts .yes').first.inner_text() == 'agrees'
        page.locator('summary', has_text='the notebook of').click()
        assert page.locator('b', has_text='bold').is_visible()
        browser.close()
    assert [a for a in asked if not a.startswith(('file:', 'data:'))] == []
    assert wrong == []
