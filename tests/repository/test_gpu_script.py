"""experiments/gpu.py, in a small form: after a kill it does the rest and nothing twice.

All of it on the pretend accelerator.
"""

import json
import os
import time

import nbformat
import preloaded
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from repo import ROOT

from decodelab.evaluate.pretend import count_traffic, pretend_device

SETUP = '''import time, pandas as pd
from pathlib import Path
from decodelab import Experiment, Greedy, decode; from decodelab.evaluate import run_jobs
NEEDS = dict(gpu=dict(models=('nano',), data=(), memory_gb=.1, minutes=.1))
ex = Experiment('90_tiny', NEEDS)'''
MEASURE = '''lm = ex.load('nano')
def slow(i):
    time.sleep(.2)
    with open(ex.rows_folder('did'), 'a') as f: f.write(f'{i}\\n')
    return dict(i=i, new_tokens=len(decode(lm, 'def', Greedy(), 8).tokens))
ex.save(pd.DataFrame(run_jobs({str(i): lambda i=i: slow(i) for i in range(10)}, output_dir=ex.rows_folder('rows'), progress=False))); ex.save_metadata()'''
VERDICT = (
    "ex.verdicts([dict(claim='all are there', source='10', measured=str(len(ex.read())), "
    "agrees=len(ex.read()) == 10, why='they were kept')])\n"
    # a kernel that is slow to end is stopped before it reports by itself
    'import sitecustomize; sitecustomize.report()'
)
CALL = 'nano,90_tiny'
EVERY_KIND = 'tests,pico,pico-draft,plain-0.5B,plain-8B,rounds-8B,nano,90_tiny'


def write_notebook(folder, measure=MEASURE):
    cells = [
        new_code_cell(SETUP),
        new_markdown_cell('## Measure'),
        new_code_cell(measure),
        new_markdown_cell('## Agreement'),
        new_code_cell(VERDICT),
    ]
    nbformat.write(new_notebook(cells=cells), folder / '90_tiny.ipynb')


def call(folder, *more, **variables):
    options = ['--out', folder / 'out', '--nano', folder / 'nano', '--experiments', folder]
    options += ['--only', CALL, '--toy', '--tokens', '4096', *more]
    script = ROOT / 'experiments/gpu.py'
    env = os.environ | dict(CUDA_VISIBLE_DEVICES='') | variables
    return preloaded.start([script, *options], cwd=folder, env=env)


def printed(child):
    out, err = child.communicate(timeout=240)
    assert child.returncode == 0, err
    return json.loads(out.splitlines()[-1])


def test_a_killed_run_goes_on(tmp_path):
    "On the pretend accelerator, which every process that computes has by default, and uses."
    write_notebook(tmp_path)
    traffic = tmp_path / 'traffic.jsonl'
    paths = [str(ROOT / 'tests/pretend_site'), str(ROOT), os.environ.get('PYTHONPATH')]
    pretend = dict(PYTHONPATH=os.pathsep.join(filter(None, paths)), PRETEND_TRAFFIC=str(traffic))
    runs = tmp_path / 'out/runs/90_tiny.gpu.quick'
    first, begun = call(tmp_path, **pretend), time.monotonic()
    while not (runs / 'did').exists() or (runs / 'did').read_text().count('\n') < 2:
        assert first.poll() is None, first.communicate()
        assert time.monotonic() - begun < 240, first.communicate()
        time.sleep(0.05)
    first.kill()
    first.communicate()
    second = printed(call(tmp_path, **pretend))
    assert second['done']
    assert second['finished'] == ['nano', '90_tiny']
    assert not second['left']
    assert not second['failed']
    assert second['megabytes'] < 1
    did = (runs / 'did').read_text().split()
    # what was on its way when it was killed
    assert set(did) == {str(i) for i in range(10)}
    assert len(did) <= 12
    rows = [json.loads(line) for line in (runs / 'rows/rows.jsonl').read_text().splitlines()]
    assert sorted(r['job'] for r in rows) == sorted(map(str, range(10)))
    results = tmp_path / 'out/results/quick'
    assert (results / '90_tiny.gpu.verdicts.csv').exists()
    assert json.loads((results / '90_tiny.gpu.json').read_text())['device'] == 'pretend'
    assert (tmp_path / 'nano/nano/config.json').exists()
    state = json.loads((tmp_path / 'out/gpu.json').read_text())
    assert state['seconds'] > 2
    assert abs(second['minutes'] - state['seconds'] / 60) < 0.01
    used = [json.loads(line) for line in traffic.read_text().splitlines()]
    training = [u['traffic'] for u in used if 'nano' in u['command']]
    kernels = [u['traffic'] for u in used if 'ipykernel' in u['command'][0]]
    assert training[-1]['kernels'] > 1000
    assert training[-1]['reads'] > 50
    assert kernels[0]['kernels'] > 1000
    assert kernels[0]['reads'] > 50


def test_what_is_left_is_printed_first(tmp_path):
    write_notebook(tmp_path)
    out, err = call(tmp_path, '--plan').communicate(timeout=120)
    assert [line.split()[:2] for line in err.splitlines()] == [
        ['nano', '6.0'],
        ['90_tiny', '0.1'],
        ['2', 'tasks,'],
    ]
    assert not out
    assert not (tmp_path / 'out').exists()
    assert not (tmp_path / 'nano').exists()


def test_unknown_arguments_are_rejected(tmp_path):
    child = call(tmp_path, '--only', 'nano,91_other')
    assert "no piece '91_other'" in child.communicate(timeout=120)[1]
    assert child.returncode == 1


def test_every_piece_is_listed(tmp_path):
    write_notebook(tmp_path)
    out, _ = call(tmp_path, '--list', '--only', EVERY_KIND).communicate(timeout=120)
    pieces = [line.split()[0] for line in out.splitlines()[1:]]
    assert pieces == EVERY_KIND.split(',')
    assert all(line.endswith('left') for line in out.splitlines()[1:])


@pytest.mark.parametrize('piece', ['plain-0.5B', 'rounds-8B'])
def test_speeds_on_the_pretend_accelerator(tmp_path, piece, monkeypatch):
    "A toy of each piece has a row for each way, none of them an error; a second call measures nothing."
    monkeypatch.syspath_prepend(str(ROOT / 'experiments'))
    import gpu_speed

    with pretend_device() as device:
        rows = gpu_speed.measure(piece, tmp_path, device, toy=True)
        with count_traffic() as traffic:
            again = gpu_speed.measure(piece, tmp_path, device, toy=True)
    assert {row['way'] for row in rows} >= {'eager', 'graphs'}
    assert not [row for row in rows if 'error' in row]
    assert [row['step_ms'] for row in again] == [row['step_ms'] for row in rows]
    assert traffic['reads'] == 0
    assert (tmp_path / f'pretend/{piece}.csv').read_text().count('\n') == len(rows) + 1


TRAIN = '''import json, sys
sys.path.insert(0, sys.argv[1])
import gpu
from decodelab.evaluate.pretend import count_traffic, pretend_device
with pretend_device() as device, count_traffic() as traffic:
    args = gpu.arguments().parse_args(sys.argv[2:])
    args.tokens = 4096
    assert gpu.train_pico(args, str(device)) == 0
print(json.dumps(traffic))'''


def test_pico_is_trained_on_the_device_and_brought_back(tmp_path):
    "In a process of its own: PyTorch counts the devices before its first gradient, once."
    options = ['--out', tmp_path / 'out', '--nano', tmp_path, '--toy', '--task', 'pico']
    child = preloaded.start(['-c', TRAIN, ROOT / 'experiments', *options, '--pause', '60'])
    traffic = printed(child)
    assert traffic['kernels'] > 1000
    brought = {file.name for file in (tmp_path / 'out/weights/pico').iterdir()}
    assert {'config.json', 'model.safetensors', 'tokenizer.json', 'log.jsonl'} <= brought
    assert not [name for name in brought if name.startswith('checkpoint')]
