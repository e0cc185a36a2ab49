"The nano family: its sizes, and a small training run that continues after a kill."

import time

import preloaded
import torch

from decodelab import load
from decodelab.models.loading import NANO, NANO_PARAMETERS
from decodelab.zoo.nano import CONFIGS, train
from decodelab.zoo.training import new_model

STEPS = 20  # of 1,024 tokens; the toy leaves a checkpoint after every fourth
CODE = (
    'import sys; from decodelab.zoo.nano import train; train("nano", sys.argv[1], '
    f'tokens={1024 * STEPS}, toy=True)'
)


def test_a_killed_run_ends_with_the_same_weights(tmp_path):
    whole = train('nano', tmp_path / 'whole', tokens=1024 * STEPS, toy=True)
    child = preloaded.start(['-c', CODE, tmp_path / 'killed'])
    begun = time.monotonic()
    while not (tmp_path / 'killed/checkpoint.safetensors').exists():
        assert child.poll() is None
        assert time.monotonic() - begun < 120
        time.sleep(0.002)
    child.kill()
    child.wait()
    assert not (tmp_path / 'killed/config.json').exists()
    killed = train('nano', tmp_path / 'killed', tokens=1024 * STEPS, toy=True)
    a, b = (load(folder, device='cpu').model.state_dict() for folder in (whole, killed))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)
    steps = [
        line.split('"step": ')[1].split(',')[0]
        for line in (killed / 'log.jsonl').read_text().splitlines()
    ]
    assert steps[-1] == str(STEPS - 1)


def test_the_sizes_of_the_nano_models_are_those_of_their_configurations():
    for name in NANO:
        with torch.device('meta'):
            model = new_model(name, 0, CONFIGS)
        assert model.num_parameters() == NANO_PARAMETERS[name]
