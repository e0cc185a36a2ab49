"""DFlash against plain decoding, the exact distribution and the authors' formulas.

The stand-in for a published draft model has the configuration fields, tensor names and file format of the
authors' checkpoints and random numbers; its rows are computed once more with nothing but torch, in float64.
"""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from decodelab import (
    FixedLookahead,
    Greedy,
    RepetitionPenalty,
    Sample,
    Speculative,
    Stop,
    Temperature,
    TreeDrafter,
    decode,
    decode_batch,
    load_heads,
    random_lm,
    train_heads,
)
from decodelab.core.driver import Request, Rng
from decodelab.drafters import DFlashDrafter, DFlashHeads, save_heads
from decodelab.drafters.assistant import AssistantState
from decodelab.drafters.dflash import block_attention, draw_anchors, spread_layers
from tests.fuzz import law
from tests.fuzz.cases import Case, FailedError

PROMPTS = ([5], [7, 3], [11, 12, 13, 11, 12, 9, 40])
NAME = 'z-lab/Qwen3-8B-DFlash-b16'


@pytest.fixture(scope='module')
def target():
    return random_lm('qwen3', seed=3, layers=8, scale=0.3)


@pytest.fixture(scope='module')
def heads(target):
    return DFlashHeads.of(target, block=5, depth=2).randomized(target)


def block_of(heads, lm, ids, scorer=None):
    "The rows `(B - 1, V)` of the block behind some ids."
    if scorer is None:
        request = Request(lm, ids, 20, Rng(0))
        scorer = heads.scorer(request, Greedy(), Greedy().bind(request))
    scorer.begin_round(ids)
    return torch.stack([scorer.next_scores(ids + [0] * k) for k in range(heads.max_draft)])


# Lossless, whatever the rows are


@pytest.mark.parametrize('architecture', ['gpt2', 'gemma3_text'])
def test_greedy_texts_are_those_of_plain_decoding(architecture):
    lm = random_lm(architecture, seed=2, layers=3)
    heads = DFlashHeads.of(lm, block=4, depth=2).randomized(lm)
    for base in (Greedy(), Greedy([RepetitionPenalty(1.3)])):
        for prompt in PROMPTS:
            plain = decode(lm, prompt, base, 14).tokens
            for drafter in (DFlashDrafter(heads), TreeDrafter(heads, (2, 1, 1))):
                trace = decode(lm, prompt, Speculative(drafter, base), 14)
                assert trace.tokens == plain
                assert {s.draft_passes for s in trace.steps if s.drafted} == {1}


DISTRIBUTIONS = {
    'chain': ('DFlashDrafter(heads=dflash)', 'TokenVerifier()'),
    'blocks': ('DFlashDrafter(heads=dflash)', 'BlockVerifier()'),
    'another base': ('DFlashDrafter(heads=dflash, base=Greedy())', 'None'),
}


def case_of(name, processors=()):
    drafter, verifier = DISTRIBUTIONS[name]
    return Case('llama', drafter, verifier, 'FixedLookahead(2)', processors, ((1, 0, 2),), 3)


@pytest.mark.parametrize('name', DISTRIBUTIONS)
def test_the_distribution_is_the_targets(name):
    "Every outcome of every draw over three tokens, through the draft model's own code."
    assert law.check(case_of(name, ('Temperature(0.7)',)))


def test_a_wrong_q_is_caught(monkeypatch):
    "Rows in the wrong order, under the same drafts: the certificate is no tautology."
    draft = AssistantState.draft

    def shifted(self, ids, keep_drafting, rng):
        made = draft(self, ids, keep_drafting, rng)
        made.q = made.q and [*made.q[1:], made.q[0]]
        return made

    monkeypatch.setattr(AssistantState, 'draft', shifted)
    with pytest.raises(FailedError, match='TV = 0'):
        law.check(case_of('chain'))


def test_batches_are_single_runs(target, heads):
    for base in (Greedy(), Sample([Temperature(0.7)])):
        strategy = Speculative(DFlashDrafter(heads), base, lookahead=FixedLookahead(4))
        batch = decode_batch(target, list(PROMPTS), strategy, 2, max_new_tokens=12)
        for prompt, result in zip(PROMPTS, batch):
            alone = decode(target, prompt, strategy, 12, seed=result.metadata['seed'])
            assert [s.draft_tokens for s in alone.steps] == [s.draft_tokens for s in result.steps]
            assert alone.tokens == result.tokens


def test_rounds_after_rejections_are_fresh_rounds(target, heads):
    "The injected keys after any accepted length are those of a scorer that has seen nothing else."
    draw = np.random.default_rng(0)
    ids = [1, 2, 3]
    request = Request(target, ids, 60, Rng(0))
    scorer = heads.scorer(request, Greedy(), Greedy().bind(request))
    for _ in range(8):
        ids = (
            ids[: draw.integers(2, len(ids) + 1)]
            + draw.integers(0, 64, draw.integers(1, 5)).tolist()
        )
        passes = scorer.passes
        rows = block_of(heads, target, ids, scorer)
        assert scorer.passes == passes + 1
        assert torch.allclose(rows, block_of(heads, target, ids), atol=1e-9)


# Training


def test_the_loss_is_that_of_the_equation(target, heads):
    "Against the rows of drafting: cross-entropy of the true tokens, weighted by exp(-(k - 1) / gamma)."
    ids = torch.randint(64, (2, 15), generator=torch.Generator().manual_seed(1))
    value = heads.training_loss(target)(heads, ids, 0, np.random.default_rng(4))
    anchors = draw_anchors(15, 5, heads.anchors, np.random.default_rng(4))
    total, weights = 0.0, [np.exp(-k / heads.gamma) for k in range(4)]
    for row in ids.tolist():
        for a in anchors.tolist():
            log_q = block_of(heads, target, row[: a + 1]).log_softmax(-1)
            total -= sum(w * float(log_q[k, row[a + 1 + k]]) for k, w in enumerate(weights))
    assert abs(value.item() - total / (2 * len(anchors) * sum(weights))) < 1e-3
    value.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in heads.parameters())
    heads.zero_grad()
    drawn = {tuple(draw_anchors(40, 5, 3, np.random.default_rng(s)).tolist()) for s in range(9)}
    assert len(drawn) > 5
    assert all(1 <= a <= 10 for a in draw_anchors(15, 5, 99, np.random.default_rng(0)).tolist())
    seen = block_attention(torch.tensor([1, 3]), 4, 2).int().tolist()
    assert seen == [[1, 0, 0, 0, 1, 1, 0, 0]] * 2 + [[1, 1, 1, 0, 0, 0, 1, 1]] * 2


def test_training_teaches_and_files_keep_it(tmp_path):
    "The agreement with the target's choices doubles; saved and loaded heads draft the same."
    lm = random_lm(seed=2, layers=2, dtype=torch.float32, scale=0.3)
    corpus = torch.randint(64, (9000,), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    untrained = DFlashHeads.of(lm, block=4, anchors=8)
    options = dict(tokens=20_000, rows=8, length=64, own_batches=1)
    trained = train_heads(lm, corpus, untrained, tmp_path, **options)
    log = [json.loads(line) for line in open(tmp_path / 'log.jsonl')]
    assert log[-1]['loss'] < log[0]['loss']
    assert log[-1]['agreement'][0] > 2 * log[0]['agreement'][0]
    save_heads(trained, tmp_path / 'again')
    again = load_heads(tmp_path / 'again')
    assert type(again) is DFlashHeads
    assert again.config == trained.config
    runs = []
    for loaded in (trained, again):
        strategy = Speculative(DFlashDrafter(loaded), Sample())
        steps = [step for p in PROMPTS for step in decode(lm, p, strategy, 12, seed=1).steps]
        runs.append([(s.draft_tokens, s.draft_probs, s.tokens) for s in steps])
    assert runs[0] == runs[1]


# As published


def config_of(target, **changes):
    "A configuration with the fields of the authors' checkpoints."
    config = dict(
        architectures=['DFlashDraftModel'],
        auto_map=dict(AutoModel='dflash.DFlashDraftModel'),
        model_type='qwen3',
        attention_bias=False,
        attention_dropout=0.0,
        block_size=6,
        dflash_config=dict(mask_token_id=60, target_layer_ids=[1, 3, 5]),
        dtype='bfloat16',
        head_dim=6,
        hidden_act='silu',
        hidden_size=32,
        intermediate_size=40,
        layer_types=['full_attention', 'sliding_attention', 'full_attention'],
        max_position_embeddings=40960,
        max_window_layers=3,
        num_attention_heads=4,
        num_hidden_layers=3,
        num_key_value_heads=2,
        num_target_layers=target.depth,
        rms_norm_eps=1e-6,
        rope_scaling=None,
        rope_theta=1000.0,
        sliding_window=4,
        tie_word_embeddings=True,
        use_sliding_window=True,
        vocab_size=64,
    )
    return config | changes


def tensors_of(config):
    "Random tensors under the authors' names: `DFlashDraftModel.state_dict()`."
    wide, inner = config['hidden_size'], config['intermediate_size']
    d = config['head_dim']
    q, kv = d * config['num_attention_heads'], d * config['num_key_value_heads']
    shapes = {'fc.weight': (wide, 3 * wide), 'hidden_norm.weight': (wide,), 'norm.weight': (wide,)}
    for i in range(config['num_hidden_layers']):
        layer = dict(q_proj=(q, wide), k_proj=(kv, wide), v_proj=(kv, wide), o_proj=(wide, q))
        layer |= dict(q_norm=(d,), k_norm=(d,))
        shapes |= {f'layers.{i}.self_attn.{n}.weight': shape for n, shape in layer.items()}
        mlp = dict(gate_proj=(inner, wide), up_proj=(inner, wide), down_proj=(wide, inner))
        shapes |= {f'layers.{i}.mlp.{n}.weight': shape for n, shape in mlp.items()}
        norms = ('input_layernorm', 'post_attention_layernorm')
        shapes |= {f'layers.{i}.{n}.weight': (wide,) for n in norms}
    g = torch.Generator().manual_seed(5)
    return {
        name: 0.3 * torch.randn(shape, generator=g) + (1.0 if 'norm' in name else 0.0)
        for name, shape in shapes.items()
    }


def write(folder, config, state):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / 'model.safetensors', metadata=dict(format='pt'))
    (folder / 'config.json').write_text(json.dumps(config))
    return folder


def rms(x, gain):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def turned(x, positions, theta):
    "Rotary positions of `(n, h, d)`, by the complex product."
    d = x.shape[-1]
    angles = positions[:, None] * theta ** (-torch.arange(0, d, 2).double() / d)
    z = torch.complex(x[..., : d // 2], x[..., d // 2 :])
    z = z * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([z.real, z.imag], -1)


def layer_by_formula(config, w, i, x, context):
    "z-lab/dflash, `Qwen3DFlashDecoderLayer`: keys of context and block; a windowed layer is causal."
    n, m = len(context), len(x)
    d = config['head_dim']
    positions, theta = torch.arange(n + m), config['rope_theta']
    y = rms(x, w('input_layernorm'))
    both = torch.cat([context, y])
    q = rms((y @ w('self_attn.q_proj').T).view(m, -1, d), w('self_attn.q_norm'))
    k = rms((both @ w('self_attn.k_proj').T).view(n + m, -1, d), w('self_attn.k_norm'))
    v = (both @ w('self_attn.v_proj').T).view(n + m, -1, d)
    q, k = turned(q, positions[n:], theta), turned(k, positions, theta)
    distance = positions[n:, None] - positions
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if config['layer_types'][i] == 'sliding_attention':
        hidden = (distance < 0) | (distance >= config['sliding_window'])
    out = []
    for h in range(q.shape[1]):
        kv = h * k.shape[1] // q.shape[1]
        p = (q[:, h] @ k[:, kv].T / d**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        out.append(p @ v[:, kv])
    x = x + torch.cat(out, -1) @ w('self_attn.o_proj').T
    z = rms(x, w('post_attention_layernorm'))
    gated = F.silu(z @ w('mlp.gate_proj').T) * (z @ w('mlp.up_proj').T)
    return x + gated @ w('mlp.down_proj').T


@torch.no_grad()
def rows_by_formula(config, state, lm, ids, late=0):
    "The rows of the block behind `ids`; `late`: layers too late that the states are taken."
    hidden = lm.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    layers = config['dflash_config']['target_layer_ids']
    states = torch.cat([hidden[layer + 1 + late][0, :-1] for layer in layers], -1)
    state = {name: tensor.double() for name, tensor in state.items()}
    context = rms(states @ state['fc.weight'].T, state['hidden_norm.weight'])
    block = [ids[-1]] + [config['dflash_config']['mask_token_id']] * (config['block_size'] - 1)
    x = lm.model.get_input_embeddings().weight[torch.tensor(block)]
    for i in range(config['num_hidden_layers']):
        x = layer_by_formula(
            config, lambda name, i=i: state[f'layers.{i}.{name}.weight'], i, x, context
        )
    return lm.model.lm_head(rms(x, state['norm.weight']))[1:]


IDS = [4, 9, 30, 31, 32, 8, 8]


def test_published_rows_are_those_of_the_formula(target, tmp_path):
    config = config_of(target)
    state = tensors_of(config)
    heads = load_heads(write(tmp_path / 'a', config, state))
    assert (heads.block, heads.mask, heads.layers) == (6, 60, (2, 4, 6))
    for ids in (IDS, IDS[:3], [7]):
        want = rows_by_formula(config, state, target, ids)
        assert torch.allclose(block_of(heads, target, ids), want, atol=1e-5)
    got = block_of(heads, target, IDS)
    other = config | dict(layer_types=['full_attention'] * 3)
    for change in (
        rows_by_formula(other, state, target, IDS),
        rows_by_formula(config, state, target, IDS, late=1),
        rows_by_formula(config, state | {'fc.weight': state['fc.weight'].roll(32, 1)}, target, IDS),
        rows_by_formula(config, state, target, [4, 9, 30, 31, 8, 32, 8]),
    ):
        assert (got - change).abs().max() > 1e-2
    whole = load_heads(write(tmp_path / 'b', config | dict(is_causal=False), state))
    assert (got - block_of(whole, target, IDS)).abs().max() > 1e-3
    plain = load_heads(write(tmp_path / 'c', other, state))
    assert torch.allclose(
        block_of(plain, target, IDS), rows_by_formula(other, state, target, IDS), atol=1e-5
    )


def test_a_name_of_the_hub_is_read_and_drafts(target, tmp_path, monkeypatch):
    "From the Hub's cache, in bfloat16, with the newer places of the fields."
    from huggingface_hub import constants

    config = config_of(target)
    config['dflash_config'] |= dict(block_size=config.pop('block_size'), causal=None)
    state = {name: tensor.bfloat16() for name, tensor in tensors_of(config).items()}
    repo = tmp_path / f'models--{NAME.replace("/", "--")}'
    write(repo / 'snapshots' / 'abc', config, state)
    (repo / 'refs').mkdir()
    (repo / 'refs' / 'main').write_text('abc')
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr('transformers.utils.hub.constants.HF_HUB_CACHE', str(tmp_path))
    heads = load_heads(NAME, safetensors_only=True)
    assert type(heads) is DFlashHeads
    assert not heads.training
    assert sum(p.numel() for p in heads.parameters()) == sum(t.numel() for t in state.values())
    for prompt in PROMPTS:
        trace = decode(target, prompt, Speculative(DFlashDrafter(heads)), 12, stop=Stop(eos=()))
        assert trace.tokens == decode(target, prompt, Greedy(), 12, stop=Stop(eos=())).tokens


def test_layers_without_ids_are_spread_as_the_authors_do():
    published = {(36, 5): [1, 9, 17, 25, 33], (64, 10): [1, 8, 14, 21, 28, 34, 41, 48, 54, 61]}
    for (depth, n), ids in published.items():
        assert [layer - 1 for layer in spread_layers(depth, n)] == ids
    assert spread_layers(24, 1) == [13]
    assert spread_layers(4, 5) == [1, 2, 3, 4]


def draft(**changes):
    return dict(dflash_config=dict(mask_token_id=60, target_layer_ids=[1, 3, 5]) | changes)


BAD = {  # changes of the configuration, of the tensors, message
    'DFlash 2': (dict(architectures=['DFlash2DraftModel']), {}, r"architectures is \['DFlash2DraftModel'\]"),
    'scaled': (draft(output_multiplier=0.2), {}, 'output_multiplier is 0.2'),
    'capped': (draft(final_logit_softcapping=20.0), {}, 'final_logit_softcapping is 20.0'),
    'sinks': (draft(attention_sink_bias=True), {}, 'attention_sink_bias is True'),
    'no mask': (dict(dflash_config=dict(target_layer_ids=[1, 3, 5])), {}, 'has no mask_token_id'),
    'no block': (dict(block_size=None), {}, 'has no block_size'),
    'a mask outside': (draft(mask_token_id=64), {}, 'mask is 64'),
    'a wide target': (dict(target_hidden_size=48), {}, 'target_hidden_size is 48'),
    'a tensor too many': ({}, {'candidate_selector.x': torch.ones(2)}, 'which no layout'),
    'another width': ({}, {'fc.weight': torch.ones(32, 64)}, r'fuse\.weight is \(32, 64\)'),
    'a tensor less': ({}, {'hidden_norm.weight': None}, r'has no tensor hidden_norm\.weight'),
}  # fmt: skip


@pytest.mark.parametrize('case', BAD)
def test_other_layouts_raise_one_sentence(target, tmp_path, case):
    changes, tensors, message = BAD[case]
    config = config_of(target) | changes
    state = tensors_of(config_of(target)) | tensors
    folder = write(tmp_path / 'bad', config, {n: t for n, t in state.items() if t is not None})
    with pytest.raises(ValueError, match=message) as caught:
        load_heads(folder)
    assert '\n' not in str(caught.value)


def test_the_layout_of_speculators_is_named_as_unknown(target, tmp_path):
    layers = {n: config_of(target)[n] for n in ('hidden_size', 'head_dim', 'num_hidden_layers')}
    config = dict(speculators_model_type='dflash', transformer_layer_config=layers)
    config |= dict(architectures=['DFlashDraftModel'], aux_hidden_state_layer_ids=[2, 4, 6])
    folder = write(
        tmp_path / 'other', config | dict(draft_vocab_size=32), tensors_of(config_of(target))
    )
    with pytest.raises(
        ValueError, match='none of Medusa, EAGLE, EAGLE-3, Hydra or DFlash'
    ) as caught:
        load_heads(folder)
    assert '\n' not in str(caught.value)


def test_what_does_not_fit_raises_one_sentence(target, heads):
    narrow = random_lm(seed=1, vocab_size=31)
    calls = (
        (lambda: DFlashDrafter(target), 'reads no states of a target'),
        (lambda: DFlashHeads.of(target, block=1), 'block is 1'),
        (lambda: DFlashHeads.of(target, mask=64), 'mask is 64'),
        (lambda: DFlashHeads.of(target, anchors=0), 'anchors is 0'),
        (lambda: heads.with_block(0), 'block is 0'),
        (lambda: draw_anchors(5, 5, 1, np.random.default_rng(0)), 'no room for a block of 5'),
        (lambda: decode(narrow, [1], Speculative(DFlashDrafter(heads)), 4), 'and 64 tokens'),
    )
    for call, message in calls:
        with pytest.raises(ValueError, match=message) as caught:
            call()
        assert '\n' not in str(caught.value)
    assert repr(DFlashDrafter(heads)).startswith("DFlashDrafter('DFlashHeads of random-qwen3-3'")
    short = heads.with_block(3)
    assert short.max_draft == 2
    assert heads.max_draft == 4
    assert torch.equal(short.fuse.weight, heads.fuse.weight)
