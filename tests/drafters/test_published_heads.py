"""Draft heads in the files of their authors against the formulas of their papers.

The stand-ins have the names, shapes and formats of the published files and random numbers. Each kind's
scores are computed once more from the tensors of the file, in float64 and with nothing but torch.
"""

import json
import warnings

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from decodelab import (
    AssistantDrafter,
    DynamicTreeDrafter,
    FixedLookahead,
    Greedy,
    MedusaDrafter,
    Sample,
    Speculative,
    Temperature,
    TreeDrafter,
    certify,
    decode,
    decode_batch,
    load,
    load_heads,
    random_lm,
)
from decodelab.core.driver import Request, Rng
from decodelab.drafters import EagleDrafter, save_heads
from decodelab.drafters.hydra import HydraHeads
from decodelab.drafters.medusa import MedusaHeads
from decodelab.drafters.published_heads import Eagle1Heads, Eagle3Heads
from decodelab.drafters.train_heads import target_outputs
from decodelab.lab.requirements import missing_model
from tests.stand_ins import HEADS, snapshot

KINDS = dict(medusa=MedusaHeads, eagle=Eagle1Heads, eagle3=Eagle3Heads, hydra=HydraHeads)
KINDS['speculators'] = Eagle3Heads
pytestmark = pytest.mark.filterwarnings('ignore:.*no safetensors')
PROMPTS = ([5], [7, 3], [11, 12, 13, 11, 12, 9, 40])


@pytest.fixture(scope='module')
def hub(tmp_path_factory):
    "The cache of the Hub with all heads and their targets."
    from huggingface_hub import constants

    folder = tmp_path_factory.mktemp('hub')
    for name, (_, target) in HEADS.items():
        snapshot(name, folder)
        snapshot(target, folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(constants, 'HF_HUB_CACHE', str(folder))
        patched.setattr('transformers.utils.hub.constants.HF_HUB_CACHE', str(folder))
        yield folder


@pytest.fixture(scope='module')
def targets(hub):
    "Each target once, in float64."
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        return {t: load(t, device='cpu', dtype=torch.float64) for _, t in HEADS.values()}


def files(hub, name):
    "The folder of a snapshot."
    return next((hub / f'models--{name.replace("/", "--")}' / 'snapshots').iterdir())


def tensors(hub, name):
    "The tensors of a published file in float64."
    ends = '.pt', '.bin', '.safetensors'
    path = next(p for p in files(hub, name).iterdir() if p.suffix in ends)
    state = load_file(path) if path.suffix == ends[-1] else torch.load(path, weights_only=True)
    return {k: v.double() if v.is_floating_point() else v for k, v in state.items()}


def rms(x, gain, eps=1e-6):
    "RMSNorm."
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * gain


def turned(x):
    "Rotary positions of `(T, h, d)`, by the complex product."
    n, _, d = x.shape
    angles = torch.arange(n)[:, None] * 10_000.0 ** (-torch.arange(0, d, 2).double() / d)
    rotation = torch.polar(torch.ones_like(angles), angles)[:, None]
    z = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * rotation
    return torch.cat([z.real, z.imag], -1)


def llama_layer(state, prefix, y, x, heads, kv_heads):
    "One Llama layer over a whole sequence: the attention reads `y` and adds to `x`."
    n, d = len(x), x.shape[-1] // heads
    w = lambda name: state[f'{prefix}.{name}.weight']
    q = turned((y @ w('self_attn.q_proj').T).view(n, heads, d))
    k = turned((y @ w('self_attn.k_proj').T).view(n, kv_heads, d))
    v = (y @ w('self_attn.v_proj').T).view(n, kv_heads, d)
    out = []
    for h in range(heads):
        kv = h * kv_heads // heads
        p = (q[:, h] @ k[:, kv].T / d**0.5).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        out.append(p.softmax(-1) @ v[:, kv])
    x = x + torch.cat(out, -1) @ w('self_attn.o_proj').T
    z = rms(x, w('post_attention_layernorm'))
    gated = F.silu(z @ w('mlp.gate_proj').T) * (z @ w('mlp.up_proj').T)
    return x + gated @ w('mlp.down_proj').T


@torch.no_grad()
def hidden_states(lm, ids):
    "`(T, L + 1, D)` by transformers: the last one after the norm."
    out = lm.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return torch.stack([h[0] for h in out.hidden_states], 1)


def continued(state, lm, ids, path, first, inputs, prefix, heads):
    """The layer's outputs after a path: states of the target first, its own for the tokens drafted after `ids`.

    `inputs(embedded, states)` are what the attention reads and what it adds to.
    """
    states, out = first[:-1], None
    for n in range(len(path) + 1):
        tokens = [*ids[1:], *path[:n]]
        if n:
            states = torch.cat([states, out[-1:]])
        y, x = inputs(embedding(state, lm)[tokens], states)
        out = llama_layer(state, prefix, y, x, heads, lm.text_config.num_key_value_heads)
    return out[-1]


def embedding(state, lm):
    "The matrix that embeds tokens."
    return state.get('embed_tokens.weight', lm.model.get_input_embeddings().weight.detach())


def medusa_scores(state, lm, ids, path):
    "arXiv 2401.10774, equation 1, with a matrix for each head."
    h = hidden_states(lm, ids)[-2, -1]
    k = len(path)
    h = h + F.silu(state[f'{k}.0.linear.weight'] @ h + state[f'{k}.0.linear.bias'])
    return state[f'{k}.1.weight'] @ h


def eagle_scores(state, lm, ids, path):
    "SafeAILab/EAGLE, cnets1.py: token before state, no norm before the attention nor after the layer."

    def inputs(embedded, states):
        x = torch.cat([embedded, states], -1) @ state['fc.weight'].T + state['fc.bias']
        return x, x

    first = hidden_states(lm, ids)[:, -1]
    out = continued(state, lm, ids, path, first, inputs, 'layers.0', 4)
    return lm.model.get_output_embeddings().weight.detach() @ out


def eagle3_scores(state, lm, ids, path, prefix='midlayer', normed_residual=False):
    "SafeAILab/EAGLE, cnets.py: three states, two norms, side by side; a vocabulary of its own."

    def inputs(embedded, states):
        embedded = rms(embedded, state[f'{prefix}.input_layernorm.weight'])
        normed = rms(states, state[f'{prefix}.hidden_norm.weight'])
        return torch.cat([embedded, normed], -1), normed if normed_residual else states

    layers = [2, lm.depth // 2, lm.depth - 3]
    first = hidden_states(lm, ids)[:, layers].flatten(1) @ state['fc.weight'].T
    out = continued(state, lm, ids, path, first, inputs, prefix, 4)
    scores = torch.full((lm.vocab_size,), -torch.inf, dtype=torch.float64)
    scores[state['t2d']] = state['lm_head.weight'] @ rms(out, state['norm.weight'])
    return scores


def speculators_scores(state, lm, ids, path):
    "vllm-project/speculators, model_definitions.py: the layer of EAGLE-3, its residual behind the norm."
    return eagle3_scores(state, lm, ids, path, 'layers.0', normed_residual=True)


def hydra_scores(state, lm, ids, path):
    "zankner/Hydra, prefix_mlp_head.py: prefix attention, its norm, state and tokens side by side."
    x = hidden_states(lm, ids)[:-1, -1]
    prefix = 'prefix_embeding_layer.layers.0'
    y = rms(x, state[f'{prefix}.input_layernorm.weight'])
    x = llama_layer(state, prefix, y, x, 4, lm.text_config.num_key_value_heads)
    h = rms(x, state['prefix_embeding_layer.norm.weight'])[-1]
    tokens = lm.model.get_input_embeddings().weight.detach()[[ids[-1], *path]]
    k, z = len(path), torch.cat([h, *tokens])
    w = lambda name: state[f'hydra_{name}.weight'] @ z + state[f'hydra_{name}.bias']
    z = w(f'mlp.{k}.1.res_connection') + F.silu(w(f'mlp.{k}.1.linear'))
    z = z + F.silu(w(f'mlp.{k}.3.linear'))
    return w(f'lm_head.{k}.1')


FORMULAS = dict(medusa=medusa_scores, eagle=eagle_scores, eagle3=eagle3_scores, hydra=hydra_scores)
FORMULAS['speculators'] = speculators_scores


def read_heads(name, layout):
    "The heads, read with a warning where the file is a pickle, which is not read on demand."
    if layout == 'speculators':
        return load_heads(name, safetensors_only=True)
    with pytest.raises(ValueError, match='leave safetensors_only=True out') as caught:
        load_heads(name, safetensors_only=True)
    assert '\n' not in str(caught.value)
    with pytest.warns(UserWarning, match=r'(head\.pt|model\.bin) is read with torch.load'):
        return load_heads(name)


@pytest.mark.parametrize('name', HEADS)
def test_a_name_of_the_hub_is_read_from_its_cache(hub, targets, name):
    layout, target = HEADS[name]
    heads = read_heads(name, layout)
    assert type(heads) is KINDS[layout]
    assert not heads.training
    assert repr(heads).startswith(KINDS[layout].__name__)
    assert 'by the depth' in repr(heads)
    heads.check_fits(targets[target])
    assert missing_model(name) is None
    unused = ('t2d', 'input_embed_fn.weight', 'prefix_embeding_layer.embed_tokens.weight')
    used = [t for name, t in tensors(hub, name).items() if name not in unused]
    assert sum(t.numel() for t in heads.state_dict().values()) == sum(t.numel() for t in used)


@pytest.mark.parametrize('name', HEADS)
def test_the_scores_are_those_of_the_formulas(hub, targets, name):
    "After the committed ids, along a chain, for two branches of a tree, and after further tokens."
    layout, target = HEADS[name]
    lm, formula = targets[target], FORMULAS[layout]
    state = tensors(hub, name)
    request = Request(lm, [4, 9], 20, Rng(0))
    scorer = load_heads(name).scorer(request, Greedy(), Greedy().bind(request))
    for ids in ([4, 9], [4, 9, 30, 31, 32], [4, 9, 30, 8, 8, 8, 3]):
        scorer.begin_round(ids)
        levels = [[[]], [[17]], [[17, 5], [17, 6]]]
        if layout != 'medusa':
            levels = [[[]], [[17], [60]], [[17, 5], [60, 5], [60, 6]], [[60, 6, 1]]]
        for paths in levels:
            rows = scorer.level_scores([ids + path for path in paths])
            for path, row in zip(paths, rows):
                want = formula(state, lm, ids, path)
                assert torch.equal(torch.isfinite(row), torch.isfinite(want))
                seen = torch.isfinite(want)
                assert torch.allclose(row[seen].double(), want[seen], atol=1e-4), (ids, path)


@pytest.mark.parametrize('name', HEADS)
def test_a_formula_that_is_slightly_wrong_is_noticed(hub, targets, name):
    "The comparison above has teeth: swapped halves of what is joined, or a state one position off, are far away."
    layout, target = HEADS[name]
    lm, formula = targets[target], FORMULAS[layout]
    state = tensors(hub, name)
    ids, path = [4, 9, 30, 31, 32], [17]
    want = formula(state, lm, ids, path)
    wrong = dict(state)
    key = dict(
        medusa='1.1.weight',
        eagle='fc.weight',
        eagle3='midlayer.self_attn.q_proj.weight',
        hydra='hydra_mlp.1.1.linear.weight',
        speculators='layers.0.self_attn.q_proj.weight',
    )[layout]
    wrong[key] = state[key].roll(state[key].shape[1] // 2, 1)
    seen = torch.isfinite(want)
    assert (formula(wrong, lm, ids, path)[seen] - want[seen]).abs().max() > 1e-2
    assert (formula(state, lm, [4, 9, 30, 32, 31], path)[seen] - want[seen]).abs().max() > 1e-2


def drafters(heads):
    "Everything that drafts with heads."
    kinds = [
        AssistantDrafter(heads),
        TreeDrafter(heads, (2, 2, 1)),
        DynamicTreeDrafter(heads, 6, 2),
    ]
    if isinstance(heads, MedusaHeads):
        return [*kinds, MedusaDrafter(heads, (3, 1, 1, 1, 1))]
    return [*kinds, EagleDrafter(heads, 5, 1)]


NORMS = (
    dict(norm_before_residual=True),
    dict(norm_before_fc=True, norm_output=True),
    dict(norm_before_residual=True, fc_norm=True, norm_output=True),
)


@pytest.mark.parametrize('norms', NORMS, ids=repr)
def test_the_norms_of_eagle_3_1(norms, tmp_path):
    "The scores of heads that were written for vLLM, computed from their file with nothing but torch."
    lm = random_lm(seed=3, layers=8)
    heads = Eagle3Heads(32, 64, **norms).randomized(lm)
    for name, weight in heads.named_parameters():
        if 'norm' in name:
            weight.data += 0.2 * torch.randn(weight.shape)
    save_heads(heads, tmp_path, format='speculators')
    state = {k: v.double() for k, v in load_file(tmp_path / 'model.safetensors').items()}
    layers = json.loads((tmp_path / 'config.json').read_text())['eagle_aux_hidden_state_layer_ids']
    tokens = (torch.arange(len(state['d2t'])) + state['d2t']).long()
    assert torch.equal(state['t2d'].nonzero()[:, 0], tokens)

    def inputs(embedded, states):
        embedded = rms(embedded, state['layers.0.input_layernorm.weight'])
        normed = rms(states, state['layers.0.hidden_norm.weight'])
        residual = normed if 'norm_before_residual' in norms else states
        return torch.cat([embedded, normed], -1), residual

    ids, path = [4, 9, 30, 8], [17, 5]
    first = hidden_states(lm, ids)[:, layers]
    if 'fc_norm' in norms:
        gains = torch.stack([state[f'fc_norm.{i}.weight'] for i in range(3)])
        first = rms(first, gains)
    first = first.flatten(1)
    if 'norm_before_fc' in norms:
        first = rms(first, state['input_norm.weight'])
    states = (first @ state['fc.weight'].T)[:-1]
    scorer = load_heads(tmp_path).scorer(
        Request(lm, ids, 9, Rng(0)), Greedy(), Greedy().bind(Request(lm, ids, 9, Rng(0)))
    )
    for n in range(3):
        y, x = inputs(embedding(state, lm)[[*ids[1:], *path[:n]]], states)
        out = llama_layer(state, "layers.0", y, x, 2, 2)[-1]
        normed = rms(out, state['norm.weight'])
        row = scorer.next_scores([*ids, *path[:n]]).double()
        assert torch.allclose(row[tokens], state['lm_head.weight'] @ normed, atol=1e-4)
        states = torch.cat([states, (normed if 'norm_output' in norms else out)[None]])


@pytest.mark.parametrize('name', HEADS)
def test_texts_are_those_of_plain_decoding(hub, targets, name):
    _, target = HEADS[name]
    lm, heads = targets[target], load_heads(name)
    for prompt in PROMPTS:
        plain = decode(lm, prompt, Greedy(), 20).tokens
        for drafter in drafters(heads):
            assert decode(lm, prompt, Speculative(drafter), 20).tokens == plain, drafter
    sampled = Speculative(
        AssistantDrafter(heads), Sample([Temperature(0.7)]), lookahead=FixedLookahead(3)
    )
    together = decode_batch(lm, list(PROMPTS), sampled, 2, max_new_tokens=10)
    alone = [decode(lm, p, sampled, 10, seed=i).tokens for i, p in enumerate(PROMPTS)]
    assert [t.tokens for t in together] == alone


@pytest.mark.parametrize('kind', [Eagle1Heads, Eagle3Heads, HydraHeads])
def test_certificates_and_files_of_our_own(kind, tmp_path):
    "The notebooks certify a chain of EAGLE-3 and a tree of Hydra."
    lm = random_lm(seed=3, layers=8)
    options = dict(layer=dict(hidden_size=32, num_attention_heads=4, intermediate_size=48))
    heads = kind(32, 64, (), **options).randomized(lm)
    save_heads(heads, tmp_path)
    again = load_heads(tmp_path)
    assert type(again) is kind
    assert again.config == heads.config
    chain = Speculative(AssistantDrafter(heads), Sample(), lookahead=FixedLookahead(3))
    tree = Speculative(TreeDrafter(heads, (2, 2)), Sample([Temperature(0.8)]))
    for scheme in {Eagle1Heads: (chain, tree), Eagle3Heads: (tree,), HydraHeads: (chain,)}[kind]:
        certificate = certify(scheme, samples=300)
        assert certificate.lossless, certificate
        assert [c.kind for c in certificate.checks] == ['exact', 'every token'], certificate
    half = load('pico', device='cpu', dtype=torch.bfloat16)
    wide = kind(256, 4096, ()).randomized(half)
    trace = decode(half, [3, 4, 5], Speculative(AssistantDrafter(wide), deterministic=True), 12)
    assert trace.tokens == decode(half, [3, 4, 5], Greedy(), 12).tokens


@pytest.mark.parametrize('blocks', [2, 3])
def test_medusa_heads_of_several_blocks(tmp_path, blocks):
    "Each block of a head is its own, in the order of its numbers."
    lm = random_lm(seed=4, layers=2)
    g = torch.Generator().manual_seed(0)
    state = {f'{k}.{blocks}.weight': torch.randn(64, 32, generator=g) for k in range(3)}
    for k in range(3):
        for block in range(blocks):
            state[f'{k}.{block}.linear.weight'] = 0.2 * torch.randn(32, 32, generator=g)
            state[f'{k}.{block}.linear.bias'] = 0.2 * torch.randn(32, generator=g)
    torch.save(state, tmp_path / 'medusa_lm_head.pt')
    config = dict(medusa_num_heads=3, medusa_num_layers=blocks)
    (tmp_path / 'config.json').write_text(json.dumps(config))
    request = Request(lm, [3, 1, 4], 8, Rng(0))
    scorer = load_heads(tmp_path).scorer(request, Greedy(), Greedy().bind(request))
    scorer.begin_round([3, 1, 4])
    for k in range(3):
        h = hidden_states(lm, [3, 1, 4])[-2, -1].float()
        for block in range(blocks):
            weight, bias = (state[f'{k}.{block}.linear.{part}'] for part in ('weight', 'bias'))
            h = h + F.silu(weight @ h + bias)
        got = scorer.level_scores([[3, 1, 4] + [9] * k])[0]
        assert torch.allclose(got.float(), state[f'{k}.{blocks}.weight'] @ h, atol=1e-4)


def test_training_hydra_sees_what_decoding_sees():
    "Row k of the training scores at a position equals the scores of a round at that position."
    lm = random_lm(seed=5, layers=3)
    heads = HydraHeads.of(lm, 3, blocks=2, own=True, prefix=True).randomized(lm)
    ids = torch.randint(64, (1, 9), generator=torch.Generator().manual_seed(1))
    states, _, embedded = target_outputs(lm, heads, ids)
    with torch.no_grad():
        rows = list(heads.training_scores(states, None, embedded))
    tokens = ids[0].tolist()
    for k, scores in enumerate(rows):
        assert scores.shape == (1, 9 - 1 - k, 64)
        for t in (1, 4):
            prompt, path = tokens[: t + 1], tokens[t + 1 : t + 1 + k]
            request = Request(lm, prompt, 20, Rng(0))
            scorer = heads.scorer(request, Greedy(), Greedy().bind(request))
            scorer.begin_round(prompt)
            got = scorer.level_scores([prompt + path])[0]
            assert torch.allclose(got.float(), scores[0, t - 1], atol=1e-4)


def edited(hub, name, folder, weights=lambda s: s, config=lambda c: c):
    "A copy of published heads with other tensors or another configuration."
    source = files(hub, name)
    folder.mkdir(exist_ok=True)
    path = next(p for p in source.iterdir() if p.suffix in ('.pt', '.bin'))
    torch.save(weights(torch.load(path, weights_only=True)), folder / path.name)
    about = config(json.loads((source / 'config.json').read_text()))
    (folder / 'config.json').write_text(json.dumps(about))
    return folder


def without(*names):
    return lambda state: {k: v for k, v in state.items() if k not in names}


def more(**items):
    return lambda state: state | items


MEDUSA, EAGLE, EAGLE3, _, HYDRA, _ = HEADS
BAD = {  # heads, tensors, configuration, message
    'no bias': (MEDUSA, without('3.0.linear.bias'), None, r'has no tensor 3\.0\.linear\.bias \(1 of 15'),
    'two layers': (MEDUSA, None, more(medusa_num_layers=2), r'has no tensor 0\.1\.linear\.'),
    'nothing': (MEDUSA, lambda s: {}, None, 'has no tensor 0.1.weight'),
    'no fc': (EAGLE, without('fc.weight'), None, 'has no tensor fc.weight'),
    'a norm': (EAGLE, more(**{'layers.0.input_layernorm.weight': torch.ones(48)}), None, 'which no layout'),
    'narrow': (EAGLE, more(**{'fc.bias': torch.ones(3)}), None, r'join\.bias is \(3,\) for \(48,\)'),
    'EAGLE-3 as EAGLE': (EAGLE3, None, lambda c: {k: v for k, v in c.items() if k != 'draft_vocab_size'}, 'has no tensor'),
    'no d2t': (EAGLE3, without('d2t'), None, 'has no tensor d2t'),
    'wrong d2t': (EAGLE3, more(d2t=torch.full((100,), 9999)), None, 'd2t names tokens twice or outside'),
    'a norm that is missing': (EAGLE3, None, more(norm_before_fc=True), 'has no tensor input_norm.weight'),
    'no states': (EAGLE3, None, more(eagle_config=dict(use_aux_hidden_state=False)), 'use_aux_hidden_state is False'),
    'layers that are none': (EAGLE3, None, more(eagle_aux_hidden_state_layer_ids=3), 'does not describe the weights'),
    'hydra': (HYDRA, without('hydra_lm_head.2.1.bias'), None, r'has no tensor hydra_lm_head\.2\.1\.bias'),
    'architecture': (HYDRA, None, more(hydra_head_arch='eagle-attn'), "hydra_head_arch is 'eagle-attn'"),
    'unknown': (MEDUSA, None, lambda c: dict(model_type='bert'), 'none of Medusa, EAGLE, EAGLE-3, Hydra or DFlash'),
}  # fmt: skip


@pytest.mark.parametrize('case', BAD)
def test_bad_files_raise_one_sentence(hub, tmp_path, case):
    name, weights, config, message = BAD[case]
    same = lambda x: x
    folder = edited(hub, name, tmp_path / 'heads', weights or same, config or same)
    with pytest.raises(ValueError, match=message) as caught:
        load_heads(folder)
    assert '\n' not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_names_and_targets_that_do_not_fit(hub, targets, tmp_path):
    with pytest.raises(ValueError, match='nobody/nothing') as caught:
        load_heads('nobody/nothing')
    assert '\n' not in str(caught.value)
    (tmp_path / 'config.json').write_text(json.dumps(dict(medusa_num_layers=1)))
    with pytest.raises(ValueError, match='has no medusa_lm_head.safetensors and no'):
        load_heads(tmp_path)
    pico = load('pico')
    for name in HEADS:
        with pytest.raises(ValueError, match='made for states of 48 numbers'):
            decode(pico, [1, 2], Speculative(AssistantDrafter(load_heads(name))), 4)
    with pytest.raises(ValueError, match='made for states of'):  # another vocabulary
        llama = targets['meta-llama/Llama-3.1-8B-Instruct']
        decode(llama, [1, 2], Speculative(AssistantDrafter(load_heads(MEDUSA))), 4)


def test_a_pickle_that_runs_code_is_not_opened_as_one(hub, tmp_path):
    from tests.models.test_pickled_weights import Runs

    folder = edited(hub, MEDUSA, tmp_path / 'heads', more(more=Runs(tmp_path / 'ran')))
    with pytest.raises(ValueError, match='holds more than tensors') as caught:
        load_heads(folder)
    assert not (tmp_path / 'ran').exists()
    assert '\n' not in str(caught.value)


def test_safetensors_are_taken_first_and_without_a_warning(hub, targets, tmp_path):
    from safetensors.torch import save_file

    folder = edited(hub, MEDUSA, tmp_path / 'heads')
    state = torch.load(folder / 'medusa_lm_head.pt', weights_only=True)
    save_file({k: v.contiguous() for k, v in state.items()}, folder / 'medusa_lm_head.safetensors')
    (folder / 'medusa_lm_head.pt').write_bytes(b'no pickle')
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        heads = load_heads(folder, safetensors_only=True)
    assert heads.max_draft == 5
