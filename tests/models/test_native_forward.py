"The native forward pass equals the model's own, for any configuration, chunks, rows and strategy."

import copy
import functools
import os
import random
import warnings

import preloaded
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DynamicCache,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from decodelab import (
    LM,
    AssistantDrafter,
    BlockVerifier,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    Sample,
    Speculative,
    SuffixDrafter,
    SyntheticDrafter,
    Temperature,
    TokenIntersectionDrafter,
    TokenVerifier,
    UniversalDrafter,
    check_drafter,
    check_verifier,
    decode,
    decode_batch,
    load,
    random_lm,
)
from decodelab.drafters import PardDrafter, SuffixAutomatonDrafter, TokenRecyclingDrafter
from decodelab.evaluate.certify import own_evidence, token_check
from decodelab.evaluate.exact import ExactSample
from decodelab.models.compile import run_traced

ROOMY = 256  # positions a model is made for, unless it says less
ROPES = dict(
    default={},
    linear=dict(factor=2.0),
    llama3=dict(
        factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
    yarn=dict(factor=4.0, original_max_position_embeddings=64),
    dynamic=dict(factor=2.0),
)


def examples(n):
    return settings(
        derandomize=True, deadline=None, database=None, max_examples=n
    )  # the same ones every time


def made(config=LlamaConfig, dtype=torch.float64, seed=0, **kw):
    "A model with random weights, biases and gains included; the global generator is left as it was."
    sizes = dict(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=ROOMY,
        bos_token_id=None,
        eos_token_id=None,
    )
    if config is not GPT2Config:
        sizes |= dict(num_key_value_heads=2, pad_token_id=0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config(**sizes | kw), dtype=dtype).eval()
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    return model


def rotary(kind, share=None):
    "The keyword argument that asks for rotary positions of a kind, for a share of each head."
    return dict(
        rope_parameters=dict(rope_type=kind, rope_theta=1e4, **ROPES[kind])
        | ({} if share is None else dict(partial_rotary_factor=share))
    )


@st.composite
def configs(draw):
    "`(config class, its arguments)`: any that a family allows."
    pick = lambda *these: draw(st.sampled_from(these))
    config = pick(
        LlamaConfig,
        MistralConfig,
        Qwen2Config,
        Qwen3Config,
        Phi3Config,
        SmolLM3Config,
        GPTNeoXConfig,
        GPT2Config,
    )
    heads = pick(1, 2, 4, 6)
    width = pick(4, 8, 12)
    layers = pick(1, 2, 3)
    kw = dict(
        num_attention_heads=heads,
        hidden_size=heads * width,
        num_hidden_layers=layers,
        tie_word_embeddings=pick(True, False),
    )
    act = pick('silu', 'gelu', 'gelu_new', 'relu')
    if config is GPT2Config:
        return config, kw | dict(
            activation_function=act,
            n_inner=pick(None, 20),
            scale_attn_by_inverse_layer_idx=pick(True, False),
            scale_attn_weights=pick(True, False),
        )
    kw |= dict(hidden_act=act, intermediate_size=pick(20, 36))
    if config is GPTNeoXConfig:
        return config, kw | dict(
            use_parallel_residual=pick(True, False), attention_bias=pick(True, False)
        ) | rotary(pick(*ROPES), pick(0.5, 1.0) if width > 4 else 1.0)
    kw |= dict(num_key_value_heads=pick(*(g for g in (1, 2, 3, 6) if heads % g == 0))) | (
        rotary('default', pick(0.5, 1.0)) if config is Phi3Config else rotary(pick(*ROPES))
    )
    if config in (LlamaConfig, MistralConfig, Qwen3Config) and pick(True, False):
        kw['head_dim'] = pick(4, 16)
    if config in (LlamaConfig, SmolLM3Config):
        kw |= dict(attention_bias=pick(True, False), mlp_bias=pick(True, False))
    if config is Qwen3Config:
        kw['attention_bias'] = pick(True, False)
    if config in (MistralConfig, Phi3Config):
        kw['sliding_window'] = pick(None, 1, 3, 8)
    if config in (Qwen2Config, Qwen3Config) and pick(True, False):
        kw |= dict(
            use_sliding_window=True,
            sliding_window=pick(2, 7),
            max_window_layers=pick(*range(layers + 1)),
        )
    if config is SmolLM3Config and pick(True, False):
        kw |= dict(use_sliding_window=True, sliding_window=pick(2, 7))
    if config is SmolLM3Config:
        kw['no_rope_layers'] = draw(
            st.lists(st.sampled_from((0, 1)), min_size=layers, max_size=layers)
        )
    return config, kw


def wander(lm, whole, ids, steps):
    "The largest error of a session that reads `ids` in the given pieces, with detours in between, as a share of the largest logit."
    session = lm.session()
    worst = 0.0
    at = 0
    for n, detour in steps:
        at = min(len(ids), at + n)
        if detour:
            session.logits(
                ids[: max(1, at - detour)] + [7] * detour, last=detour
            )  # a draft that is refused
        last = min(n, at)
        worst = max(
            worst, (session.logits(ids[:at], last=last) - whole[at - last : at]).abs().max().item()
        )
    return worst / whole.abs().max().item()


@examples(150)
@given(
    configs(),
    st.lists(
        st.tuples(st.sampled_from((1, 1, 2, 5, 17)), st.sampled_from((0, 0, 1, 4))),
        min_size=3,
        max_size=7,
    ),
    st.integers(0, 3),
)
def test_any_config_in_any_pieces(config, steps, seed):
    model = made(config[0], seed=seed, **config[1])
    ids = random.Random(seed).choices(range(61), k=60)
    with torch.no_grad():
        whole = model(torch.tensor([ids])).logits[0]
    lm = LM(model)
    assert lm.backend == 'native forward'
    assert wander(lm, whole, ids, steps) < 1e-12


@examples(40)
@given(configs(), st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(2, 3))
def test_any_config_in_rows(config, lengths, size):
    model = made(config[0], **config[1])
    texts = [random.Random(n).choices(range(61), k=n) for n in lengths]
    fast = decode_batch(LM(model), texts, Greedy(), size, 8)
    slow = decode_batch(LM(model, native=False), texts, Greedy(), size, 8)
    assert [t.tokens for t in fast] == [t.tokens for t in slow]
    assert fast.unbatched == {}


@torch.no_grad()
def by_transformers(model, prompt, ids):
    """`(n, V)`.

    A prompt and then single tokens, read by a model that has read nothing yet, into a cache of its
    own.
    """
    model, cache = copy.deepcopy(model), DynamicCache()
    read = lambda ids: model(
        input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True
    ).logits[0, -1:]
    return torch.cat([read(prompt), *(read([i]) for i in ids)])


@pytest.mark.parametrize('config', [LlamaConfig, GPTNeoXConfig, Qwen3Config])
@pytest.mark.parametrize('begin', [20, 31, 32, 33, 50])
def test_texts_longer_than_dynamic_positions_were_trained_for(config, begin):
    model = made(
        config,
        max_position_embeddings=32,
        **rotary('dynamic', 0.5 if config is GPTNeoXConfig else None),
    )
    ids = random.Random(begin).choices(range(61), k=80)
    want, lm = by_transformers(model, ids[:begin], ids[begin:]), LM(model)
    for session in (lm.session(), lm.session()):  # what else was read changes nothing
        got = torch.cat([session.logits(ids[:n]) for n in range(begin, len(ids) + 1)])
        assert (got - want).abs().max() / want.abs().max() < 1e-12
    assert (lm.session().logits(ids[:begin]) - want[:1]).abs().max() / want.abs().max() < 1e-12
    session.logits(ids[: begin + 5])
    assert (
        session.logits(ids[: begin + 9], last=4) - want[6:10]
    ).abs().max() / want.abs().max() < 1e-12  # several at once: each turned by its own length


def test_such_texts_in_a_batch():
    lm = LM(made(max_position_embeddings=32, **rotary('dynamic')))
    lm.max_length = None
    texts = [random.Random(n).choices(range(61), k=n) for n in (50, 40, 3, 70, 31)]
    alone = [decode(lm, t, Greedy(), 8).tokens for t in texts]
    for size in (2, 5):
        assert [t.tokens for t in decode_batch(lm, texts, Greedy(), size, 8)] == alone
    assert alone == [decode(forgetful(lm), t, Greedy(), 8).tokens for t in texts]


def forgetful(lm):
    "The same model, read by transformers, before it has read anything."
    new = LM(copy.deepcopy(lm.model), native=False)
    new.max_length = None
    return new


@pytest.mark.parametrize(
    'config, kw',
    [
        (LlamaConfig, {}),
        (MistralConfig, dict(sliding_window=40)),
        (GPT2Config, {}),
        (LlamaConfig, rotary('dynamic') | dict(max_position_embeddings=100)),
    ],
)
def test_a_long_prompt_is_read_in_chunks(config, kw):
    model = made(config, **dict(max_position_embeddings=1300) | kw)
    ids = random.Random(0).choices(range(61), k=1200)
    with torch.no_grad():
        whole = model(torch.tensor([ids])).logits[0]
    lm = LM(model)
    for last in (1, 300, 900):
        assert (
            lm.session().logits(ids, last) - whole[-last:]
        ).abs().max() / whole.abs().max() < 1e-12


# Strategies


class Pair:
    "A target and a draft, each read both ways: `lean[True]`, `lean[False]`."

    def __init__(self, target, draft, *args):
        self.native = {
            native: (LM(target, *args, native=native), LM(draft, *args, native=native))
            for native in (True, False)
        }
        assert [lm.backend for lm in self.native[True]] == ['native forward'] * 2
        assert all('native=False' in lm.backend for lm in self.native[False])


@pytest.fixture(scope='module')
def small():
    return Pair(made(num_hidden_layers=3), made(seed=1, num_hidden_layers=1))


@pytest.fixture(scope='module')
def pico():
    models = {
        name: load(name, device='cpu', dtype=torch.float64)
        for name in ('pico', 'pico-draft', 'pico-alt')
    }
    wrapped = lambda native: [
        LM(lm.model, lm.tokenizer, name, native=native) for name, lm in models.items()
    ]
    return {True: wrapped(True), False: wrapped(False)}


DRAFTERS = dict(
    none=lambda draft: None,
    assistant=AssistantDrafter,
    lookup=lambda draft: PromptLookupDrafter(),
    suffix=lambda draft: SuffixDrafter(),
    automaton=lambda draft: SuffixAutomatonDrafter(nodes=5),
    recycling=lambda draft: TokenRecyclingDrafter((2, 2)),
    pard=lambda draft: PardDrafter(draft, 1, max_draft=4),
    exit=lambda draft: EarlyExitDrafter(1),
    synthetic=lambda draft: SyntheticDrafter(0.7),
    paid=lambda draft: SyntheticDrafter(0.7, cost=draft),
)
TEXTS = [random.Random(n).choices(range(4, 61), k=n) for n in (1, 12, 5, 30, 2)]


def tokens_of(lm, texts, strategy, size, n=12):
    "Tokens and counts of each text."
    rows = []
    for trace in decode_batch(lm, texts, strategy, size, n, seed=3):
        steps = [(s.drafted, s.accepted, s.target_passes, s.draft_passes) for s in trace.steps]
        rows.append((trace.tokens, steps))
    return rows


@pytest.mark.parametrize('size', [1, 3])
@pytest.mark.parametrize(
    'name, base',
    [
        (name, base)
        for name in DRAFTERS
        for base in (Greedy(), Sample([Temperature(0.8)]))
        if base.greedy or name not in ('synthetic', 'paid')
    ],
    ids=str,
)
def test_every_drafter(small, name, base, size):
    table = {}
    for native, (lm, draft) in small.native.items():
        drafter = DRAFTERS[name](draft)
        table[native] = tokens_of(
            lm,
            TEXTS,
            base
            if drafter is None
            else Speculative(drafter, base=base, lookahead=FixedLookahead(3)),
            size,
        )
    assert table[True] == table[False]
    if base.greedy:
        assert [t for t, _ in table[True]] == [
            decode(small.native[False][0], p, Greedy(), 12).tokens for p in TEXTS
        ]


@pytest.mark.parametrize('make', [UniversalDrafter, TokenIntersectionDrafter])
def test_drafts_with_another_tokenizer(pico, make):
    texts = ['def f(x):', 'import os\n', 'for name in sorted(']
    base = Greedy() if make is UniversalDrafter else Sample([Temperature(0.8)])

    def run(native, size):
        lm, _, alt = pico[native]
        return tokens_of(
            lm,
            [lm.encode(t) for t in texts],
            Speculative(make(alt), base=base, lookahead=FixedLookahead(3)),
            size,
            6,
        )

    for size in (1, 3):
        assert run(True, size) == run(False, size)


@pytest.mark.parametrize('native', [True, False])
@pytest.mark.parametrize('name', ['assistant', 'lookup', 'suffix', 'exit'])
def test_certificates(small, name, native):
    lm, draft = small.native[native]
    for base in (Greedy(), Sample()):
        check_drafter(DRAFTERS[name](draft), lm, TEXTS[:2], base)
        strategy = Speculative(DRAFTERS[name](draft), base=base, lookahead=FixedLookahead(3))
        check = own_evidence(strategy, lm, TEXTS[:2], 6, samples=34, seed=0)
        assert check.passed, check


@pytest.mark.parametrize('native', [True, False])
@pytest.mark.parametrize('verifier', [TokenVerifier(), BlockVerifier()], ids=repr)
def test_verifiers(small, verifier, native):
    check_verifier(
        verifier,
        lambda verifier, q: Speculative(
            AssistantDrafter(q), base=ExactSample(), verifier=verifier, lookahead=FixedLookahead(2)
        ),
    )
    lm, draft = small.native[native]
    strategy = Speculative(AssistantDrafter(draft), base=Sample(), verifier=verifier)
    assert token_check({'': strategy}, lm, TEXTS[:2], samples=400).passed


# What happens to the model meanwhile

IDS = random.Random(0).choices(range(61), k=40)
FLOAT = torch.float32  # in which weights are stored the other way round


def right(lm, ids=IDS, session=None):
    "Whether a session, at first a new one, says what the model's own forward says."
    with torch.no_grad():
        want = lm.model(torch.tensor([ids])).logits[0, -2:]
    return torch.allclose(
        (session or lm.session()).logits(ids, 2).to(want.dtype),
        want,
        atol=1e-4 if lm.dtype == FLOAT else 1e-11,
        rtol=0,
    )


def storage(model):
    "Bytes of all the memory in which the model's weights lie."
    return sum(
        {
            p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()
        }.values()
    )


EVERY = [
    (LlamaConfig, dict(tie_word_embeddings=True)),
    (LlamaConfig, dict(tie_word_embeddings=False, attention_bias=True)),
    (Phi3Config, {}),
    (GPTNeoXConfig, {}),
    (GPT2Config, {}),
]
every = pytest.mark.parametrize(
    'config, kw', EVERY, ids=lambda x: x.__name__ if isinstance(x, type) else str(x)
)


@pytest.mark.parametrize(
    'path',
    [
        '',
        'model',
        'model.embed_tokens',
        'model.layers.1',
        'model.layers.0.self_attn',
        'model.layers.0.self_attn.q_proj',
        'model.layers.1.mlp.act_fn',
        'model.norm',
        'lm_head',
    ],
)
@pytest.mark.parametrize('kind', ['register_forward_hook', 'register_forward_pre_hook'])
def test_a_hook_sees_every_pass_while_it_is_registered(path, kind):
    lm, calls = LM(made()), []
    session = lm.session()
    session.logits(IDS[:10])
    hook = getattr(lm.model.get_submodule(path), kind)(lambda module, args, *out: calls.append(1))
    assert not lm.native.has_no_hooks()
    assert lm.native.is_current()
    session.logits(IDS[:20])  # in the middle of a text, with the cache as it is
    session.logits(IDS[:21])
    assert len(calls) == 2
    hook.remove()
    got = session.logits(IDS, 2)
    assert lm.native.has_no_hooks()
    assert len(calls) == 2
    assert lm.backend == 'native forward'
    assert torch.allclose(
        got, LM(lm.model, native=False).session().logits(IDS, 2), atol=1e-11, rtol=0
    )


def test_a_hook_that_changes_something_changes_the_text():
    lm = LM(made())
    plain = decode(lm, IDS, Greedy(), 12).tokens
    hook = lm.model.model.layers[0].mlp.register_forward_hook(lambda module, args, out: -3 * out)
    hooked = decode(lm, IDS, Greedy(), 12).tokens
    assert hooked == decode(LM(lm.model, native=False), IDS, Greedy(), 12).tokens != plain
    assert decode_batch(lm, [IDS, IDS[:9]], Greedy(), 2, 12)[0].tokens == hooked
    hook.remove()
    assert decode(lm, IDS, Greedy(), 12).tokens == plain


@every
def test_weights_that_are_overwritten_are_seen(config, kw):
    lm = LM(made(config, dtype=FLOAT, **kw))
    forward = lm.native
    for name, p in lm.model.named_parameters():
        before = lm.session().logits(IDS, 2)
        with torch.no_grad():
            p.mul_(1.2).add_(torch.linspace(-0.1, 0.1, p.numel()).view(p.shape))
        assert right(lm), name
        assert not torch.equal(lm.session().logits(IDS, 2), before), name
    assert lm.native is forward


def swap_weight(m):
    m.model.layers[1].mlp.down_proj.weight = torch.nn.Parameter(
        m.model.layers[1].mlp.down_proj.weight * 2
    )


def swap_data(m):
    m.model.layers[0].self_attn.k_proj.weight.data = (
        m.model.layers[0].self_attn.k_proj.weight.data * 2
    )


def swap_bias(m):
    m.model.layers[0].self_attn.k_proj.bias.data = m.model.layers[0].self_attn.k_proj.bias.data + 2


def swap_linear(m):
    m.lm_head = torch.nn.Linear(32, 61, bias=False).double()


def swap_mlp(m):
    m.model.layers[1].mlp = copy.deepcopy(m.model.layers[0].mlp)


def swap_block(m):
    m.model.layers[0] = copy.deepcopy(m.model.layers[0]).requires_grad_(False)
    m.model.layers[0].mlp.up_proj.weight.mul_(2)


@pytest.mark.parametrize(
    'change',
    [swap_weight, swap_data, swap_bias, swap_linear, swap_mlp, swap_block],
    ids=lambda f: f.__name__,
)
def test_what_was_moved_or_replaced_is_read_again(change):
    lm = LM(made(attention_bias=True))
    old, before = lm.native, lm.session().logits(IDS, 2)
    change(lm.model)
    assert right(lm)
    assert lm.native is not old
    assert lm.backend == 'native forward'
    assert not torch.equal(lm.session().logits(IDS, 2), before)


def test_another_forward_is_obeyed():
    for path in ('model.layers.0.mlp', 'model.layers.1', 'lm_head', ''):
        lm = LM(made())
        module, calls = lm.model.get_submodule(path), []
        own = module.forward
        module.forward = functools.wraps(own)(
            lambda *args, own=own, **kwargs: (calls.append(1), own(*args, **kwargs))[1]
        )
        lm.session().logits(IDS)
        assert calls, path
        assert 'replaced' in lm.backend, path


def test_what_it_does_not_know_goes_to_transformers():
    lm = LM(made())
    lm.model.model.layers[0].mlp.up_proj = torch.nn.Sequential(lm.model.model.layers[0].mlp.up_proj)
    assert right(lm)
    assert 'Sequential' in lm.backend
    torch.nn.utils.parametrizations.weight_norm((lm := LM(made())).model.lm_head)
    assert right(lm)
    assert lm.backend.startswith("transformers' forward: ")


@every
def test_a_model_that_was_read_is_saved_as_it_was(config, kw, tmp_path):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model = made(config, dtype=dtype, **kw)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        size = storage(model)
        lm = LM(model)
        # no second copy
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert storage(model) == size
        model.save_pretrained(tmp_path)
        again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        assert all(torch.equal(v, before[k]) for k, v in again.state_dict().items())
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for p in twin.parameters():
                p.add_(0.05)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        model.load_state_dict({k: v + 0.25 for k, v in before.items()})
        assert all(torch.equal(v, before[k] + 0.25) for k, v in model.state_dict().items())
        if dtype != torch.bfloat16:
            assert right(lm)
            assert right(LM(twin))


@every
def test_training_goes_through_the_views(config, kw):
    model, plain = made(config, **kw), made(config, **kw)
    lm = LM(model)
    for m in (model, plain):
        m(torch.tensor([IDS]), labels=torch.tensor([IDS])).loss.backward()
        torch.optim.SGD(m.parameters(), lr=0.1).step()
    assert all(
        torch.allclose(a, b, atol=1e-12) for a, b in zip(model.parameters(), plain.parameters())
    )
    assert right(lm)


@every
def test_two_lms_on_one_model_share_its_memory(config, kw):
    model = made(config, dtype=FLOAT, **kw)
    size, one = storage(model), LM(model)
    lies, two = [p.data_ptr() for p in model.parameters()], LM(model)
    assert [p.data_ptr() for p in model.parameters()] == lies
    assert storage(model) == size
    assert right(one)
    assert right(two)
    assert one.native.is_current()
    assert two.native.is_current()
    for a, b in zip(one.native.weights.layers, two.native.weights.layers):
        assert [m.weight.data_ptr() for m in (*a.qkv, *a.up)] == [
            m.weight.data_ptr() for m in (*b.qkv, *b.up)
        ]


def test_inference_mode():
    model = made(dtype=FLOAT)
    with torch.inference_mode():
        lm = LM(model)
        assert right(lm)
        assert lm.backend == 'native forward'
        made_there = LM(made(dtype=FLOAT))
        assert right(made_there)
        assert 'inference tensors' in made_there.backend
    assert right(lm)
    assert not any(p.is_inference() for p in model.parameters())
    model(torch.tensor([IDS])).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


UNSUPPORTED = [
    ('not one of', lambda: made(BloomConfig)),
    ('attention is eager', lambda: made(attn_implementation='eager')),
    ('hidden states', lambda: made(output_hidden_states=True)),
    ('several', lambda: mixed(made())),
    (
        'longrope',
        lambda: made(
            Phi3Config,
            rope_parameters=dict(
                rope_type='longrope',
                rope_theta=1e4,
                short_factor=[1.0] * 4,
                long_factor=[2.0] * 4,
                original_max_position_embeddings=64,
            ),
        ),
    ),
    ('cross-attention', lambda: made(GPT2Config, add_cross_attention=True)),
    ('replaced or compiled', lambda: patched(made())),
    ('is a Sequential', lambda: wrapped(made())),
    ('off by', lambda: doubled(made())),
    ('Derived is not one of', lambda: derived(made())),
]


def mixed(m):
    return m.model.norm.half() and m


def patched(m):
    m.model.layers[0].forward = m.model.layers[0].forward
    return m


def wrapped(m):
    m.model.layers[0].mlp.gate_proj = torch.nn.Sequential(m.model.layers[0].mlp.gate_proj)
    return m


def doubled(m):
    m.model.norm.__class__ = type(
        'OddRMSNorm', (type(m.model.norm),), dict(forward=lambda self, x: 2 * x * self.weight)
    )
    return m


def derived(m):
    m.__class__ = type('Derived', (type(m),), {})
    return m


@pytest.fixture
def traced(monkeypatch):
    "Graphs run as they were traced, without a C++ compiler: for tests of what is compiled, and when."
    monkeypatch.setattr('torch._inductor.compile', run_traced)


@pytest.mark.parametrize('why, make', UNSUPPORTED, ids=[why for why, _ in UNSUPPORTED])
def test_reasons(why, make, traced):
    lm = LM(make())
    assert lm.native is None
    assert lm.backend.startswith("transformers' forward: ")
    assert why in lm.backend
    with pytest.raises(ValueError, match='only the native forward can be'):
        lm.pack_weights()
    engine, before = lm.backend, lm.session().logits([3, 4, 5, 6], 2)
    with warnings.catch_warnings(record=True) as calls:
        warnings.simplefilter('always')
        lm.compile(width=1)
    assert lm.backend == engine + ', compiled' or (
        lm.backend.startswith(engine + ', not compiled: ')
        and sum('not compiled' in str(w.message) for w in calls) == 1
    )
    session = lm.session()
    after = torch.cat([session.logits([3, 4, 5]), session.logits([3, 4, 5, 6])])
    assert torch.allclose(
        after.double(), before.double(), atol=0.1 if after.dtype == torch.float32 else 1e-5
    )


def test_packed():
    wide = dict(hidden_size=256, intermediate_size=2048)
    model, plain = made(dtype=FLOAT, **wide), LM(made(dtype=FLOAT, **wide))
    lm, size = LM(model), storage(model)
    if not lm.native.weights.layers[0].down.fast:
        pytest.skip('a PyTorch without oneDNN')
    lm.pack_weights()
    blocks = sum(
        m.weight.numel() * 4
        for l in lm.native.weights.layers
        for m in (*l.qkv, l.out, *l.up, l.down)
        if m.packed
    )
    # blocks may be padded
    assert storage(model) + blocks <= size * 1.02
    assert storage(model) < 0.2 * size
    assert lm.backend == 'native forward, packed'
    want, got = plain.session().logits(IDS, 8), lm.session().logits(IDS, 8)
    assert torch.allclose(got, want, atol=1e-4, rtol=0)
    for strategy in (Greedy(), Speculative(PromptLookupDrafter())):
        assert (
            decode(lm, IDS[:9], strategy, 16).tokens == decode(plain, IDS[:9], Greedy(), 16).tokens
        )
    assert [t.tokens for t in decode_batch(lm, TEXTS, Greedy(), 3, 8)] == [
        t.tokens for t in decode_batch(plain, TEXTS, Greedy(), 3, 8)
    ]
    with pytest.raises(RuntimeError, match='load the model again'):
        model(torch.tensor([IDS]))
    with pytest.raises(RuntimeError, match='load the model again'):
        model.generate(torch.tensor([IDS]), max_new_tokens=2)
    with pytest.raises(ValueError, match='float32'):
        LM(made()).pack_weights()
    small = LM(made(dtype=FLOAT, hidden_size=128))
    assert small.pack_weights().backend == 'native forward'
    assert small.model(torch.tensor([IDS])).logits.isfinite().all()


# CompiledForward


@pytest.fixture(scope='module')
def compiled():
    models = [LM(made(num_hidden_layers=1)) for _ in range(2)]
    return models[0].compile(width=2), models[1]


def test_no_graph_is_added_after_the_warm_up(compiled):
    lm, plain = compiled
    graphs, draft = set(lm.native.graphs), LM(made(seed=1, num_hidden_layers=1))
    assert {g[0] for g in graphs} == {1, 2}
    for strategy in (
        Greedy(),
        *(
            Speculative(d, lookahead=FixedLookahead(1))
            for d in (AssistantDrafter(draft), PromptLookupDrafter(), SyntheticDrafter(0.7))
        ),
    ):
        for size in (1, 3):
            assert tokens_of(lm, TEXTS, strategy, size) == tokens_of(plain, TEXTS, strategy, size)
        for p in TEXTS:
            assert decode(lm, p, strategy, 30).tokens == decode(plain, p, Greedy(), 30).tokens
    assert set(lm.native.graphs) == graphs
    strategy = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(1))
    check = own_evidence(strategy, lm, TEXTS, 8, samples=0, seed=0)
    assert check.passed, check
    assert set(lm.native.graphs) == graphs, check


def test_packed_weights_and_a_window_in_a_real_graph():
    wide = dict(hidden_size=256, intermediate_size=640, num_hidden_layers=1, sliding_window=6)
    lm, plain = (LM(made(MistralConfig, dtype=FLOAT, **wide)) for _ in range(2))
    if not lm.native.weights.layers[0].down.fast:
        pytest.skip('a PyTorch without oneDNN')
    lm.pack_weights().compile(width=1)
    assert lm.backend == 'native forward, packed, compiled'
    for prompt in TEXTS:
        assert decode(lm, prompt, Greedy(), 24).tokens == decode(plain, prompt, Greedy(), 24).tokens
    assert len(lm.compiled) == 1
    assert lm.compiled.passes.min() >= 24 * len(TEXTS) - len(TEXTS)


def test_a_compiled_model_runs_hooks_and_sees_edits(compiled):
    lm, _ = compiled
    session, calls = lm.session(), []
    session.logits(IDS[:10])
    session.logits(IDS[:11])
    hook = lm.model.model.layers[0].mlp.register_forward_hook(lambda *args: calls.append(1))
    session.logits(IDS[:13], 2)
    hook.remove()
    assert len(calls) == 1
    assert torch.allclose(
        session.logits(IDS[:14]),
        LM(lm.model, native=False).session().logits(IDS[:14]),
        atol=1e-6,
        rtol=0,
    )  # sums in another order, in float32
    for name, p in lm.model.named_parameters():
        with torch.no_grad():
            p.mul_(1.1).add_(torch.linspace(-0.1, 0.1, p.numel()).view(p.shape))
        session = lm.session()
        session.logits(IDS[:-2])
        with torch.no_grad():
            want = lm.model(torch.tensor([IDS])).logits[0, -2:]
        assert ((session.logits(IDS, 2) - want).abs().max() / want.abs().max()) < 1e-6, name
    assert lm.backend == 'native forward, compiled'


def test_prompts_of_ten_lengths_compile_nothing_new(traced):
    "Greedy, sampling and assisted, with prompts in buckets; the texts are those of the uncompiled model."
    lm, plain, draft = (LM(made(seed=seed)) for seed in (0, 0, 1))
    lm.compile(width=3, length=64, prompts=True)
    draft.compile(width=1, length=64, prompts=True)
    before = set(lm.graphs.graphs), set(draft.graphs.graphs)
    assert {g[0] for g in before[0]} == {1, 2, 3, 16, 32, 64}
    assert {g[0] for g in before[1]} == {
        1,
        16,
        32,
        64,
    }
    for n in range(2, 42, 4):
        prompt = [3 + i * i % 50 for i in range(n)]
        for strategy in (
            Greedy(),
            Sample([Temperature(0.8)]),
            Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(2)),
        ):
            assert (
                decode(lm, prompt, strategy, 12, seed=n).tokens
                == decode(plain, prompt, strategy, 12, seed=n).tokens
            )
    assert (set(lm.graphs.graphs), set(draft.graphs.graphs)) == before
    table = lm.compiled
    assert len(table) == 6
    assert (table.passes > 0).all()
    assert (table.first_seconds * 1000 > table.steady_ms).all()


def test_transformers_forward_is_compiled_if_there_is_no_native_one():
    lm, plain = (random_lm('opt', layers=1) for _ in range(2))
    lm.compile(width=2)
    assert lm.native is None
    assert lm.backend.endswith(', compiled')
    assert len(lm.compiled) == 2
    for strategy in (Greedy(), Speculative(PromptLookupDrafter(), lookahead=FixedLookahead(1))):
        assert (
            decode(lm, [5, 6, 7, 5, 6], strategy, 20).tokens
            == decode(plain, [5, 6, 7, 5, 6], Greedy(), 20).tokens
        )
    assert len(lm.compiled) == 2
    assert lm.compiled.passes.min() > 2


def test_without_a_compiler_one_warning_and_the_same_text(tmp_path):
    script = """
import sys, warnings
import torch._inductor.config
torch._inductor.config.cpp.cxx = (None, sys.argv[1])  # as CXX sets it
from decodelab import Greedy, decode, random_lm
for family in ('llama', 'opt'):
    lm, plain = random_lm(family), random_lm(family)
    backend = lm.backend
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter('always')
        lm.compile(width=2).compile(width=2)
        assert decode(lm, [1, 2, 3], Greedy(), 8).tokens == decode(plain, [1, 2, 3], Greedy(), 8).tokens
    messages = [str(w.message) for w in warned if 'compiled' in str(w.message)]
    assert len(messages) == 1 and 'g++' in messages[0] and lm.backend.startswith(backend + ', not compiled: '), (messages, lm.backend)
"""
    env = os.environ | dict(TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    done = preloaded.start(['-c', script, tmp_path / 'no-compiler'], env=env)
    _, message = done.communicate(timeout=240)
    assert done.returncode == 0, message
