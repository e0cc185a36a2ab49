"Repositories without safetensors are read as tensors alone, with a warning, or not at all."

import os
import warnings

import pytest
import torch
from repo import ROOT

from decodelab import load
from decodelab.lab.requirements import missing_model, weight_files, weights_in
from tests.stand_ins import snapshot, to_pickle, write_model


class Runs:
    "What a pickle may do where it is opened as one: run a command."

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.system, (f'touch {self.path}',)


@pytest.fixture(scope='module')
def safe(tmp_path_factory):
    folder = tmp_path_factory.mktemp('weights') / 'safe'
    write_model('facebook/opt-125m', folder)
    return folder


def pickled(safe, folder, shards):
    "The same model as pytorch_model.bin."
    import shutil

    shutil.copytree(safe, folder)
    to_pickle(folder, shards)
    return folder


@pytest.mark.parametrize('shards', [1, 3])
def test_the_logits_are_those_of_the_safetensors(safe, tmp_path, shards):
    folder = pickled(safe, tmp_path / 'old', shards)
    assert len(weight_files(folder)) == shards
    assert weights_in(folder) > 0
    with pytest.warns(UserWarning, match='no safetensors: .*torch.load, weights_only=True'):
        old = load(folder, device='cpu')
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        new = load(safe, device='cpu')
    ids = new.encode('the people of the river')
    assert torch.equal(old.session().logits(ids), new.session().logits(ids))


def test_it_is_rejected_on_request(safe, tmp_path):
    folder = pickled(safe, tmp_path / 'old', 1)
    with pytest.raises(ValueError, match='leave safetensors_only=True out') as caught:
        load(folder, device='cpu', safetensors_only=True)
    assert '\n' not in str(caught.value)
    assert load(safe, device='cpu', safetensors_only=True).n_params
    with pytest.raises(ValueError, match='safetensors_only is .*: give True or False'):
        load(folder, device='cpu', safetensors_only='yes')


@pytest.mark.parametrize('shards', [1, 2])
@pytest.mark.filterwarnings('ignore:.*no safetensors')
def test_a_pickle_that_runs_code_is_not_opened_as_one(safe, tmp_path, shards):
    folder = pickled(safe, tmp_path / 'bad', shards)
    file = weight_files(folder)[0]
    state = torch.load(file, weights_only=True)
    torch.save(state | {'more': Runs(tmp_path / 'ran')}, file)
    with pytest.raises(ValueError, match='holds more than tensors') as caught:
        load(folder, device='cpu')
    assert not (tmp_path / 'ran').exists()
    assert '\n' not in str(caught.value)
    torch.load(file, weights_only=False)  # what it would have done
    assert (tmp_path / 'ran').exists()


def test_a_repository_in_the_cache_of_the_hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    snapshot('Salesforce/codegen-6B-mono', tmp_path)
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr('transformers.utils.hub.constants.HF_HUB_CACHE', str(tmp_path))
    assert missing_model('Salesforce/codegen-6B-mono') is None
    with pytest.warns(UserWarning, match='no safetensors'):
        lm = load('Salesforce/codegen-6B-mono', device='cpu')
    assert lm.revision
    assert lm.depth == 8


def test_nothing_else_opens_a_pickle():
    import ast

    calls = []
    for path in (ROOT / 'decodelab').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node.func)
            unsafe = call.startswith(
                ('pickle.', 'cloudpickle', 'dill.', 'joblib.load', 'torch.load')
            )
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            if unsafe or keywords.get('weights_only') == 'False':
                calls.append((path.name, call))
            if call == 'np.load':
                assert keywords.get('allow_pickle') == 'False', path
    assert calls == []
