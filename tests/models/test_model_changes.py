"Changes of a model after it was wrapped are seen."

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from decodelab import LM, Greedy, decode

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=128,
    initializer_range=0.15,
    pad_token_id=0,
    eos_token_id=None,
    bos_token_id=None,
)
ROUNDING = 1e-4  # some norms and rotations compute in float32 whatever the model is
IDS = [7, 12, 5, 33, 18, 40, 2, 9, 61, 22, 30, 11, 3, 47, 8, 50]


def made(kind, **kw):
    if kind in ('gpt2', 'gpt_neox'):
        kw = dict(num_key_value_heads=None) | kw
    config = AutoConfig.for_model(kind, **SIZES | kw)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
        for p in model.parameters():
            p.data += 0.05 * torch.randn_like(p)
    return model.eval()


def attentions(model):
    return [m for m in model.modules() if hasattr(m, 'scaling')]


def norms(model):
    return [m for m in model.modules() if hasattr(m, 'variance_epsilon')]


def rotary(model):
    return next(m for m in model.modules() if hasattr(m, 'inv_freq'))


def each(modules, name, value):
    for m in modules:
        setattr(m, name, value)


def double_weights(model):
    with torch.no_grad():
        rotary(model).inv_freq.mul_(2)


def double_without_trace(model):
    rotary(model).inv_freq.data.mul_(2)


def another_buffer(model):
    rotary(model).inv_freq = rotary(model).inv_freq * 2


def no_positions(model):
    model.model.layers[1].self_attn.use_rope = False


def reluctant(model):
    each([m for m in model.modules() if hasattr(m, 'act_fn')], 'act_fn', torch.nn.ReLU())


def replaced_layer(model):
    layer = copy.deepcopy(model.model.layers[0])
    layer.post_feedforward_layernorm.weight.data += 3
    model.model.layers[0] = layer


CHANGES = {
    'narrower window': (
        'mistral',
        dict(sliding_window=9),
        lambda m: setattr(m.config, 'sliding_window', 3),
    ),
    'no window': (
        'mistral',
        dict(sliding_window=3),
        lambda m: setattr(m.config, 'sliding_window', 100),
    ),
    'scaling': ('llama', {}, lambda m: each(attentions(m), 'scaling', 1.5)),
    'scaling of one layer': (
        'qwen3',
        dict(head_dim=8),
        lambda m: each(attentions(m)[2:3], 'scaling', 2.0),
    ),
    'scaling of GPT-2': ('gpt2', {}, lambda m: each(attentions(m), 'scaling', 2.0)),
    'scaling of GPT-NeoX': ('gpt_neox', {}, lambda m: each(attentions(m), 'scaling', 2.0)),
    'eps of RMSNorm': ('llama', {}, lambda m: each(norms(m), 'variance_epsilon', 2.0)),
    'eps of one norm': ('qwen2', {}, lambda m: each(norms(m)[-1:], 'variance_epsilon', 2.0)),
    'eps of LayerNorm': ('gpt2', {}, lambda m: setattr(m.transformer.ln_f, 'eps', 2.0)),
    'rotary, in place': ('llama', {}, double_weights),
    'rotary, without a trace': ('llama', {}, double_without_trace),
    'rotary, another buffer': ('phi3', {}, another_buffer),
    'rotary, attention scaling': (
        'llama',
        {},
        lambda m: setattr(rotary(m), 'attention_scaling', 3.0),
    ),
    'no positions': ('smollm3', dict(no_rope_layers=[1, 1, 0, 1]), no_positions),
    'residual': ('gpt_neox', {}, lambda m: each(m.gpt_neox.layers, 'use_parallel_residual', False)),
    'activation': ('llama', {}, reluctant),
    'softcapping of logits': (
        'gemma2',
        dict(head_dim=8),
        lambda m: setattr(m.config, 'final_logit_softcapping', 1.0),
    ),
    'softcapping of attention': (
        'gemma2',
        dict(head_dim=8, attn_implementation='eager'),
        lambda m: each(attentions(m), 'attn_logit_softcapping', 0.5),
    ),
    'embedding multiplier': (
        'granite',
        {},
        lambda m: setattr(m.model, 'embedding_multiplier', 3.0),
    ),
    'logit scale': ('cohere', {}, lambda m: setattr(m, 'logit_scale', 2.0)),
    'replaced layer': ('gemma2', dict(head_dim=8), replaced_layer),
}


def full(model, ids):
    "Logits of transformers' forward over all of `ids`, without a cache."
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def difference(a, b):
    return float((a - b).abs().max() / b.std())


@pytest.mark.parametrize('name', CHANGES)
def test_a_change_is_seen(name):
    "In steps, in blocks, along a tree, and after an early exit."
    kind, options, change = CHANGES[name]
    model = made(kind, **options)
    lm = LM(model)
    before = full(model, IDS)
    assert difference(lm.session().logits(IDS, len(IDS)), before) < ROUNDING
    lm.session().tree_logits(IDS[:8], IDS[8:], range(-1, 7))  # builds the partial forward, too
    change(model)
    want = full(model, IDS)
    assert difference(want, before) > 1e-3  # the change means something
    session = lm.session()
    steps = [session.logits(IDS[:n])[0] for n in range(1, len(IDS) + 1)]
    assert difference(torch.stack(steps), want) < ROUNDING
    assert difference(lm.session().logits(IDS, len(IDS)), want) < ROUNDING
    tree = lm.session().tree_logits(IDS[:8], IDS[8:], range(-1, 7))
    assert difference(tree, want[7:]) < ROUNDING
    session = lm.session()
    session.exit_logits(IDS[:9], 2)
    assert difference(session.logits(IDS, 8), want[-8:]) < ROUNDING


@pytest.mark.parametrize('name', CHANGES)
def test_greedy_after_a_change_is_greedy_by_full_forwards(name):
    kind, options, change = CHANGES[name]
    model = made(kind, **options)
    lm = LM(model)
    decode(lm, IDS, Greedy(), 4)
    change(model)
    ids = list(IDS)
    for _ in range(8):
        ids.append(int(full(model, ids)[-1].argmax()))
    assert decode(lm, IDS, Greedy(), 8).tokens == ids[len(IDS) :]


def test_nothing_is_read_again_without_a_change():
    "Not even where the forward of transformers changes its own rotary buffers on the way."
    rope = dict(rope_parameters=dict(rope_type='dynamic', rope_theta=1e4, factor=2.0))
    for options in ({}, rope | dict(max_position_embeddings=12)):
        model = made('llama', **options)
        lm = LM(model)
        native = lm.native
        full(model, IDS)
        full(model, IDS[:4])
        lm.session().logits(IDS)
        assert LM(model).native is native
        assert lm.session().lm.native is native
