"""Calls that transformers runs, by habit or by accident, are run here as well, with its warning where it has one."""

import copy

import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.utils import logging

from decodelab import generate, load
from decodelab.evaluate.certify import random_lm
from tests.hf.test_generate import BATCH, IDS, seq2seq

logging.set_verbosity_error()
ONE = dict(input_ids=IDS[1:2], pad_token_id=63, max_new_tokens=6)


@pytest.fixture(scope='module')
def llama():
    return random_lm('llama', 3, layers=2, scale=0.3).model


def test_a_configuration_by_position(llama):
    config = GenerationConfig(max_new_tokens=5, num_beams=2, pad_token_id=63)
    ours = generate(llama, IDS[1:2], config)
    assert torch.equal(ours, llama.generate(IDS[1:2], config))
    assert torch.equal(ours, generate(llama, IDS[1:2], generation_config=config))


class WithFactor(LlamaForCausalLM):
    "A subclass whose `forward` takes an argument of its own."

    def forward(self, input_ids=None, attention_mask=None, factor=1.0, **kwargs):
        out = super().forward(input_ids, attention_mask, **kwargs)
        out.logits = out.logits * factor
        return out


def test_a_keyword_that_the_models_own_forward_takes(llama):
    model = WithFactor(llama.config).double().eval()
    model.load_state_dict(llama.state_dict())
    flags = dict(return_dict_in_generate=True, output_logits=True)
    ours = generate(model, **ONE, **flags, factor=-1.0)
    theirs = model.generate(**ONE, **flags, factor=-1.0, do_sample=False)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert not torch.equal(ours.sequences, generate(model, **ONE))
    with pytest.raises(ValueError, match='factr'):  # transformers' type of error, for a typo
        generate(model, **ONE, factr=-1.0)


def test_a_folder_whose_function_takes_everything(llama, tmp_path):
    folder = tmp_path / 'custom_generate'
    folder.mkdir()
    code = 'def generate(*args, **kwargs):\n    return kwargs.get("number", "nothing")\n'
    (folder / 'generate.py').write_text(code)
    call = ONE | dict(custom_generate=str(tmp_path), trust_remote_code=True)
    assert generate(llama, **call, number=3) == 3
    assert generate(llama, **call) == 'nothing'


@pytest.mark.parametrize('kind', ['t5', 'bart'])
def test_an_encoder_decoder_without_any_input(kind):
    model = copy.deepcopy(seq2seq(kind))
    model.generation_config.bos_token_id = 5
    ours = generate(model, max_new_tokens=5)
    assert torch.equal(ours, model.generate(max_new_tokens=5, do_sample=False))


@pytest.mark.parametrize(
    'unused',
    [dict(temperature=0.5), dict(top_p=0.9), dict(early_stopping=True), dict(output_scores=True)],
    ids=str,
)
def test_an_argument_without_effect(llama, unused):
    with pytest.warns(UserWarning, match=next(iter(unused))):
        ours = generate(llama, **BATCH, **unused)
    assert torch.equal(ours, generate(llama, **BATCH))
    with pytest.raises(ValueError, match=next(iter(unused))):
        generate(llama, **BATCH, **unused, strict=True)


@pytest.mark.filterwarnings('ignore')
def test_an_assistant_whose_head_was_pruned():
    "transformers' sampled universal decoding leaves another head in the assistant."
    target = load('pico', device='cpu', dtype=torch.float64)
    draft = load('pico-alt', device='cpu', dtype=torch.float64)
    assistant = copy.deepcopy(draft.model)
    tokenizers = dict(tokenizer=target.tokenizer, assistant_tokenizer=draft.tokenizer)
    call = dict(assistant_model=assistant, max_new_tokens=8, **tokenizers)
    prompt = target.tokenizer('def add(a, b):', return_tensors='pt')
    torch.manual_seed(0)
    target.model.generate(**prompt, **call, do_sample=True)
    assert not isinstance(assistant.get_output_embeddings(), torch.nn.Linear)
    with pytest.raises(ValueError, match='cut its head to the tokens of a target: load it anew'):
        generate(target.model, **prompt, **call)
