"""Experiments in short form on the pretend accelerator (`evaluate.pretend`), where their models are loaded by default.

The cheapest are run here; all others pass by the same call but 11_compiled_generation, since nothing compiles
for the device. They take minutes each: run them by hand when they or the device change.
"""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from repo import ROOT

from decodelab.lab.requirements import requirements
from tests.stand_ins import paper_environment

CHEAPEST = ('08_watermark_attacks', '09_whisper', '12_how_to_generate')
MIXED = (
    'import torch; from decodelab.models.loading import default_device\n'
    'x = torch.ones(2, device=default_device(None)) + torch.ones(2)'
)


@pytest.mark.parametrize('name', CHEAPEST)
def test_runs_on_the_pretend_accelerator(name, shelf, runner, tmp_path):
    path = ROOT / 'experiments' / f'{name}.ipynb'
    env = paper_environment(requirements(path)['paper'], shelf, tmp_path)
    counts = tmp_path / 'traffic.json'
    failed = runner.run(path, env, skipped=('#| net', '#| gpu'), traffic=counts)
    assert not failed, failed[-3000:]
    results = tmp_path / 'quick'
    assert not (results / f'{name}.paper.failures.csv').exists()
    assert json.loads((results / f'{name}.paper.json').read_text())['device'] == 'pretend:0'
    traffic = json.loads(counts.read_text())
    assert traffic['kernels'] > 10_000
    assert traffic['reads'] > 100


def test_mixed_devices_fail_there_only(runner, tmp_path):
    path, counts = tmp_path / 'mixed.ipynb', tmp_path / 'traffic.json'
    nbformat.write(new_notebook(cells=[new_code_cell(MIXED)]), path)
    assert not runner.run(path, {})
    assert 'on the same device' in runner.run(path, {}, traffic=counts)
    assert not counts.exists()
