"experiments/pico.py, in a small form: after a kill it resumes, and everything is measured."

import importlib.util
import json
import time

import preloaded
import pytest
import torch
from repo import ROOT
from safetensors.torch import load_file

from decodelab import load

SCRIPT = ROOT / 'experiments/pico.py'
STEPS = 24  # of 1,024 tokens; the toy leaves a checkpoint after every fourth
spec = importlib.util.spec_from_file_location('pico_script', SCRIPT)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)


def run(*arguments):
    threads = torch.get_num_threads()
    try:
        script.main([*map(str, arguments), '--toy'])
    finally:
        torch.set_num_threads(threads)


@pytest.fixture(scope='module')
def home(tmp_path_factory):
    "A home with the data of a toy, so that the calls of the tests begin at once."
    folder = tmp_path_factory.mktemp('home')
    run('train', 'pico', '--home', folder, '--tokens', 1024 * STEPS)
    return folder


def test_a_killed_run_ends_with_the_same_weights(home, tmp_path):
    (tmp_path / 'data').symlink_to(home / 'data')
    call = ['train', 'pico', '--home', tmp_path, '--tokens', str(1024 * STEPS), '--toy']
    child = preloaded.start([SCRIPT, *call])
    begin = time.monotonic()
    while not (tmp_path / 'pico/checkpoint.safetensors').exists():
        assert child.poll() is None
        assert time.monotonic() - begin < 120
        time.sleep(0.002)
    child.kill()
    child.wait()
    assert not (tmp_path / 'pico/config.json').exists()
    run(*call[:-1])
    whole, killed = (load_file(f / 'pico/checkpoint.safetensors') for f in (home, tmp_path))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[k], killed[k]) for k in whole)
    log = (tmp_path / 'pico/log.jsonl').read_text().splitlines()
    assert [json.loads(line)['step'] for line in log] == list(range(STEPS))
    assert len(json.loads((tmp_path / 'pico/run.json').read_text())) == 2


def test_sizes_are_measured(capsys):
    run('sizes')
    line = capsys.readouterr().out
    assert line.startswith('pico: 0.1')
    assert 'T(5)/T(1)' in line
    assert '; draft: c ' in line


def test_a_run_goes_on_from_a_trained_model(home, tmp_path):
    (tmp_path / 'data').symlink_to(home / 'data')
    call = ['train', 'pico', '--home', tmp_path, '--tokens', 1024 * STEPS]
    run(*call, '--init', home / 'pico')
    log = lambda folder: (folder / 'pico/log.jsonl').read_text().splitlines()
    losses = lambda folder: [json.loads(line)['loss'] for line in log(folder)]
    before, after = losses(home), losses(tmp_path)
    assert after[0] < (before[0] + before[-1]) / 2
    assert after[-1] < before[-1]
    for other in ((), ('--init', home / 'other')):
        with pytest.raises(ValueError, match='holds a run that began from .*/pico, not from'):
            run(*call, *other)


def test_the_family_is_distilled_and_measured(home, tmp_path):
    run('train', 'pico-draft', '--home', home)
    for kind in ('medusa', 'eagle'):
        run('heads', kind, '--home', home)
    for name in ('data', 'pico'):
        (tmp_path / name).symlink_to(home / name)
    run('heads', 'eagle', '--home', tmp_path, '--init', home / 'pico-eagle')
    assert (tmp_path / 'pico-eagle/heads.json').exists()
    with pytest.raises(ValueError, match='are EagleHeads: give MedusaHeads'):
        run('heads', 'medusa', '--home', tmp_path, '--init', home / 'pico-eagle')
    run('export', 'pico', '--home', home)
    trained, exported = (load(home / n, device='cpu').model.state_dict() for n in NAMES)
    assert all(torch.equal(trained[k], exported[k]) for k in trained)
    run('evaluate', '--home', home)
    stored = json.loads((home / 'evaluation.json').read_text())
    assert set(script.TARGETS) <= set(stored['result'])
    assert 0 <= stored['result']['token_acceptance'] <= 1 <= stored['result']['eagle_tokens_a_pass']
    lines = [row['repeated'] for row in stored['texts']]
    assert stored['result']['texts_with_repeats'] == sum(map(bool, lines))


def test_a_draft_learns_from_the_texts_of_its_target(home, tmp_path, monkeypatch):
    monkeypatch.setenv('DECODELAB_CACHE', str(tmp_path / 'libraries'))
    run('train', 'pico-draft', '--home', home)
    (tmp_path / 'data').symlink_to(home / 'data')
    call = ['distil', 'pico-draft', '--home', tmp_path, '--init', home / 'pico-draft']
    call += ['--target', home / 'pico', '--files', 5, '--rounds', 2]
    run(*call, '--pause', 0)
    assert not (tmp_path / 'pico-draft/config.json').exists()
    run(*call)
    log = (tmp_path / 'pico-draft/log.jsonl').read_text().splitlines()
    assert [json.loads(line)['step'] for line in log] == list(range(1, 9))  # one file is held out
    assert load(tmp_path / 'pico-draft', device='cpu').depth == 1
    with pytest.raises(SystemExit):
        run(*call, '--tokens', 9)  # not an option of this command
    with pytest.raises(ValueError, match='pico-draft has other sizes'):
        run('distil', 'pico-draft', '--home', tmp_path / 'new', '--target', home / 'pico')
    with pytest.raises(ValueError, match='give it with --home'):
        run('distil', 'pico-draft')


NAMES = ('pico', 'pico-so-far')


def test_repeated_lines_are_counted_without_their_indentation():
    looping = 'self.items = []\n' + '  self.items = []\n' * 2 + 'else:\n' * 5
    assert script.repeated_lines(looping) == ['self.items = []']
    assert script.repeated_lines('one line here\n' * 2) == []
