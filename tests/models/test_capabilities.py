"On every kind of architecture, each way of reading equals the full forward pass, is replaced, or raises one sentence."

import functools

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from decodelab import (
    LM,
    AssistantDrafter,
    BeamSearch,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    Speculative,
    TreeDrafter,
    decode,
    decode_batch,
    random_lm,
)
from decodelab.models import capabilities as module
from decodelab.models.capabilities import WAYS

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=128,
    initializer_range=0.15,
    eos_token_id=None,
    bos_token_id=None,
)
KIN = dict(is_decoder=True, pad_token_id=1)  # of RoBERTa
GQA = dict(num_key_value_heads=2, pad_token_id=0)
MAMBA = dict(
    GQA, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=4, mamba_n_groups=1, mamba_chunk_size=4
)
TROCR = dict(
    d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, pad_token_id=1
)
MODELS = dict(
    llama=GQA,
    gpt2=dict(bos_token_id=None),
    mistral=dict(GQA, sliding_window=5),
    gemma2=dict(GQA, head_dim=8, sliding_window=6),
    gpt_oss=dict(GQA, head_dim=8, sliding_window=4, num_local_experts=2, num_experts_per_tok=1),
    cohere2=dict(GQA, sliding_window=4, layer_types=['sliding_attention', 'full_attention']),
    smollm3=dict(GQA, num_hidden_layers=4, no_rope_layer_interval=2),
    opt=dict(ffn_dim=48, word_embed_proj_dim=32, pad_token_id=0),
    gptj=dict(n_embd=32, n_head=4, n_layer=2, n_positions=128, rotary_dim=4),
    biogpt=dict(pad_token_id=1),
    gpt_neo=dict(
        attention_types=[[['global', 'local'], 1]], num_layers=2, num_heads=4, window_size=4
    ),
    mpt=dict(d_model=32, n_heads=4, n_layers=2, max_seq_len=128, expansion_ratio=2),
    bloom=dict(n_layer=2, n_head=4),
    trocr=TROCR,
    bart=TROCR | dict(is_decoder=True),
    llama4_text=dict(
        GQA, head_dim=8, attention_chunk_size=4, num_local_experts=2, intermediate_size_mlp=48
    ),
    mamba=dict(state_size=4),
    bamba=dict(MAMBA, attn_layer_indices=[1], mamba_expand=2),
    falcon_h1=dict(MAMBA, mamba_d_ssm=32, head_dim=8, mamba_n_heads=4),
    recurrent_gemma=dict(
        num_hidden_layers=3,
        num_key_value_heads=1,
        lru_width=32,
        attention_window_size=6,
        pad_token_id=0,
    ),
    lfm2=dict(GQA, block_ff_dim=48, layer_types=['conv', 'full_attention']),
    roberta=KIN,
    camembert=KIN,
    data2vec_text=KIN,
    xmod=dict(KIN, languages=['en_XX'], default_language='en_XX'),
    xlm_roberta=KIN,
    bert=KIN,
) | {'xlm-roberta-xl': KIN, 'roberta-prelayernorm': KIN}
RENAMED = dict(data2vec_text='data2vec-text', xlm_roberta='xlm-roberta')
DIFFERS = dict(
    gpt_neo={'trees', 'batch'},
    mpt={'trees'},
    trocr={'trees', 'batch'},
    bart={'trees', 'batch'},
)
NOT_IN_PARTS = {
    'bloom',
    'llama4_text',
    'bert',
    *(k for k, v in MODELS.items() if v.get('is_decoder')),
}
RECURRENT = {'mamba', 'bamba', 'falcon_h1', 'recurrent_gemma', 'lfm2'}
IN_PARTS = {'trees', 'batch', 'early exit'}
PROMPTS = [[7], [3, 4, 5, 3, 4], list(range(2, 24))]  # with the padding ids 0 and 1 left out …
PADDED = [9, 1, 5, 3, 1, 1, 30, 0, 12]  # … and with them
NEW = 10


def built(config, model_class=None):
    config._experts_implementation = 'eager'
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if model_class is None:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
        else:
            model = model_class(config).double()
        for p in model.parameters():
            p.data += 0.05 * torch.randn_like(p)  # biases that do something
    return model.eval()


def made(kind):
    return built(AutoConfig.for_model(RENAMED.get(kind, kind), **SIZES | MODELS[kind]))


@pytest.fixture(scope='module', params=MODELS)
def lm(request):
    return LM(made(request.param), name=request.param)


@pytest.fixture(scope='module')
def draft():
    return random_lm(seed=1, layers=1)


def full(model, ids):
    "Logits `(n, V)` of the model's own forward over all of `ids`, without a cache."
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()


def full_greedy(model, prompt, n=NEW):
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(full(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


@functools.cache
def greedy_of(lm):
    "The greedy tokens of each prompt by full forwards, once for all tests of a model."
    return [full_greedy(lm.model, prompt) for prompt in PROMPTS]


def full_beams(model, prompt, size, n=NEW):
    "The best of `size` beams of `n` tokens by full forwards, without an end of text."
    beams = [(0.0, [])]
    for _ in range(n):
        grown = []
        for score, tokens in beams:
            logp = full(model, [*prompt, *tokens])[-1].log_softmax(-1)
            best = logp.topk(size)
            grown += [(score + float(v), [*tokens, int(i)]) for v, i in zip(*best)]
        beams = sorted(grown, reverse=True)[:size]
    return beams[0][1]


def test_the_table(lm):
    "What differs is known by name; nothing else is refused, and nothing is called unsupported."
    table = lm.capabilities
    assert list(table) == list(WAYS)
    differs = {way for way, outcome in table.items() if outcome.state == 'differs'}
    assert differs == DIFFERS.get(lm.name, set())
    unsupported = {way for way, outcome in table.items() if outcome.state == 'unsupported'}
    in_parts = lm.name not in (NOT_IN_PARTS | RECURRENT) - {'trocr', 'bart'}
    assert unsupported == (set() if in_parts else IN_PARTS)
    assert all(outcome.error < 1e-5 for outcome in table.values() if outcome.works)
    for way, outcome in table.items():
        assert way in repr(table)
        assert outcome.works or len(table.why(way)) > 40


def test_every_strategy_is_greedy_by_full_forwards(lm, draft):
    "Steps, blocks, rollbacks and exits; a way that is not offered raises a sentence."
    look = FixedLookahead(4)
    for prompt, want in zip(PROMPTS, greedy_of(lm)):
        assert decode(lm, prompt, Greedy(), NEW).tokens == want
        for drafter in (AssistantDrafter(draft), AssistantDrafter(lm), PromptLookupDrafter()):
            assert decode(lm, prompt, Speculative(drafter, lookahead=look), NEW).tokens == want
        assert decode(lm, prompt, Speculative(TreeDrafter(draft, (2, 2, 1))), NEW).tokens == want
        exits = Speculative(EarlyExitDrafter(1), lookahead=look)
        if lm.capabilities['early exit'].works:
            assert decode(lm, prompt, exits, NEW).tokens == want
        else:
            with pytest.raises(ValueError, match=r'\w+ .*'):
                decode(lm, prompt, exits, NEW)


def test_batches_are_greedy_by_full_forwards(lm, draft):
    for strategy in (Greedy(), Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(3))):
        batch = decode_batch(lm, PROMPTS, strategy, max_new_tokens=NEW)
        assert [t.tokens for t in batch] == greedy_of(lm)


def test_beams_are_those_of_full_forwards(lm):
    for prompt in PROMPTS[1:]:
        assert decode(lm, prompt, BeamSearch(3), 6).tokens == full_beams(lm.model, prompt, 3, 6)


def test_sessions_do_not_meet(lm):
    "Two sequences in turns, with a rollback: each is that of a session of its own."
    a, b = PROMPTS[2][:14], PROMPTS[2][:8] + [40, 41, 42, 43]
    want_a, want_b = full(lm.model, a), full(lm.model, b)
    one, two = lm.session(), lm.session()
    for n in range(6, 12):
        assert torch.allclose(one.logits(a[:n])[0].double(), want_a[n - 1], atol=1e-4)
        assert torch.allclose(two.logits(b[:n])[0].double(), want_b[n - 1], atol=1e-4)
    other = [*a[:9], *b[8:]]
    assert torch.allclose(one.logits(other, 3).double(), full(lm.model, other)[-3:], atol=1e-4)
    assert torch.allclose(two.logits(b, 2).double(), want_b[-2:], atol=1e-4)


def test_padding_ids_within_a_sequence(lm):
    "RoBERTa and its kin do not count them as positions, and have fewer positions than it seems."
    if lm.name == 'bert':
        return
    want = full(lm.model, PADDED)
    session = lm.session()
    steps = [session.logits(PADDED[:n])[0] for n in range(1, len(PADDED) + 1)]
    assert torch.allclose(torch.stack(steps).double(), want, atol=1e-4)
    session.logits(PADDED[:4])
    assert torch.allclose(session.logits(PADDED, 5).double(), want[-5:], atol=1e-4)
    if lm.max_length:
        assert full(lm.model, [7] * lm.max_length).isfinite().all()


# encoder–decoders

PAIRS = dict(vocab_size=64, d_model=32, pad_token_id=1, eos_token_id=2, decoder_start_token_id=3)
LAYERS = dict(encoder_layers=2, decoder_layers=2, encoder_ffn_dim=48, decoder_ffn_dim=48)
HEADS = dict(encoder_attention_heads=4, decoder_attention_heads=4)
SEQ2SEQ = dict(
    t5=lambda: built(
        T5Config(**PAIRS, d_kv=8, d_ff=48, num_layers=2, num_heads=4), T5ForConditionalGeneration
    ),
    bart=lambda: built(BartConfig(**PAIRS | LAYERS | HEADS), BartForConditionalGeneration),
    whisper=lambda: built(
        WhisperConfig(
            **PAIRS | LAYERS | HEADS, max_source_positions=32, num_mel_bins=8, bos_token_id=0
        ),
        WhisperForConditionalGeneration,
    ),
)


@pytest.mark.parametrize('kind', SEQ2SEQ)
def test_encoder_decoders_are_probed_without_an_encoder(kind):
    lm = LM(SEQ2SEQ[kind](), name=kind)
    runs = []
    hook = lm.model.get_encoder().register_forward_hook(lambda *_: runs.append(1))
    table = lm.capabilities
    hook.remove()
    assert not runs
    assert {way for way, o in table.items() if o.works} == {
        'steps',
        'blocks',
        'rollback',
        'branches',
    }


# the mechanism


def test_a_model_that_attends_to_later_tokens_is_rejected():
    model = built(AutoConfig.for_model('roberta', **SIZES, pad_token_id=1))
    with pytest.raises(ValueError, match='set is_decoder=True'):
        decode(LM(model), PROMPTS[1], Greedy(), 4)


class Broken(torch.nn.Module):
    "A decoder layer that is wrong behind a cache, as `when(new tokens, cached tokens)` says."

    def __init__(self, layer, when):
        super().__init__()
        self.layer = layer
        self.when = when

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.layer, name)

    def forward(self, x, *args, **kwargs):
        cache = kwargs.get('past_key_values')
        cached = cache.get_seq_length() if cache is not None else 0
        out = self.layer(x, *args, **kwargs)
        return out + 1 if self.when(x.shape[1], cached) else out


def broken(when, kind='olmo2'):
    model = built(AutoConfig.for_model(kind, **SIZES | GQA))
    model.model.layers[0] = Broken(model.model.layers[0], when)
    module.OUTCOMES.clear()  # the layers of all these models are of one class
    return LM(model)


def test_blocks_that_differ_are_read_token_by_token(draft):
    lm = broken(lambda new, cached: cached and new > 1)
    assert lm.outcome('blocks').state == 'differs'
    assert lm.outcome('steps').works
    assert lm.capabilities.verdict('blocks') == 'replaced'
    for prompt in PROMPTS:
        want = full_greedy(lm.model, prompt)
        strategy = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(4))
        assert decode(lm, prompt, strategy, NEW).tokens == want
        assert decode_batch(lm, [prompt, [5]], strategy, max_new_tokens=NEW)[0].tokens == want
    module.OUTCOMES.clear()


def test_steps_that_differ_are_rejected():
    lm = broken(lambda new, cached: cached > 0)
    with pytest.raises(ValueError, match=r'cannot be read token by token: .*use_cache=False'):
        lm.session()
    with pytest.raises(ValueError, match='cannot be read token by token'):
        decode_batch(lm, PROMPTS, Greedy(), max_new_tokens=4)
    module.OUTCOMES.clear()


def test_what_a_probe_costs(monkeypatch):
    "Six forwards for an ordinary sequence, none the second time, none for a native forward."
    module.OUTCOMES.clear()
    lm = LM(
        made('olmo2') if 'olmo2' in MODELS else built(AutoConfig.for_model('olmo2', **SIZES | GQA))
    )
    runs = []
    forward = type(lm.model).forward

    @functools.wraps(forward)
    def count(self, *args, **kwargs):
        runs.append(1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(lm.model), 'forward', count)
    state = torch.get_rng_state()
    lm.session()
    assert len(runs) == 6
    lm.session()
    LM(lm.model).session()
    assert len(runs) == 6
    native = LM(made('llama'))
    monkeypatch.setattr(type(native.model), 'forward', count)
    native.session()  # compared when it was loaded
    assert len(runs) == 6
    assert torch.equal(torch.get_rng_state(), state)
    hidden_hook = lm.model.register_forward_hook(lambda *_: runs.append('hook'))
    assert lm.capabilities
    assert 'hook' not in runs
    hidden_hook.remove()


def test_a_changed_configuration_is_probed_again():
    lm = LM(made('gemma2'))
    # all is known now
    assert lm.capabilities
    assert lm.capabilities.seconds == 0
    lm.model.config.sliding_window = 3
    assert lm.capabilities.seconds > 0
    ids = PROMPTS[2]
    tree = lm.session().tree_logits(ids[:10], ids[10:14], range(-1, 3))
    assert torch.allclose(tree.double(), full(lm.model, ids[:14])[-5:], atol=1e-4)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_other_number_formats(dtype):
    "Rounding is no difference, and a difference is no rounding."
    for kind in ('llama', 'gemma2', 'mamba', 'gpt_oss', 'mpt', 'gpt_neo', 'trocr'):
        table = LM(made(kind).to(dtype)).capabilities
        result = {way for way, outcome in table.items() if outcome.state == 'differs'}
        assert result == DIFFERS.get(kind, set()), (kind, table)


class ShapeRounding(torch.nn.Linear):
    "A head whose rounding depends on the shape of its input, as kernels of a GPU do; by `share` of the spread."

    share = 0.1

    def forward(self, x):
        out = super().forward(x)
        draw = torch.Generator().manual_seed(100 * x.shape[0] + x.shape[1])
        noise = torch.randn(out.shape[1:], generator=draw)
        return out + (self.share * noise * out.float().std(-1, keepdim=True)).to(out.dtype)


@pytest.mark.parametrize(
    ('dtype', 'share', 'state'),
    [
        (torch.bfloat16, 0.1, 'works'),  # above the fixed bound
        (torch.bfloat16, 0.4, 'differs'),
        (torch.float32, 0.005, 'works'),  # as TF32
        (torch.float32, 0.1, 'differs'),
        (torch.float64, 0.005, 'differs'),
    ],
)
def test_the_rounding_of_a_model_is_its_tolerance(dtype, share, state, monkeypatch):
    model = (
        made('olmo2') if 'olmo2' in MODELS else built(AutoConfig.for_model('olmo2', **SIZES | GQA))
    )
    model.lm_head.__class__ = ShapeRounding
    monkeypatch.setattr(ShapeRounding, 'share', share)
    module.OUTCOMES.clear()
    lm = LM(model.to(dtype))
    for way in ('steps', 'batch'):
        assert lm.outcome(way).state == state, lm.outcome(way)
        assert ('in another shape' in lm.outcome(way).reason) == (state == 'differs')
    module.OUTCOMES.clear()


def test_what_differs_from_a_model_that_rounds_is_noticed(monkeypatch):
    "The second shape has the fault too only if it is no fault of the way."
    monkeypatch.setattr(ShapeRounding, 'share', 0.02)
    lm = broken(lambda new, cached: cached and new > 1)
    lm.model.lm_head.__class__ = ShapeRounding
    lm = LM(lm.model.to(torch.bfloat16))
    assert lm.outcome('blocks').state == 'differs'
    assert lm.outcome('steps').works
    module.OUTCOMES.clear()


@pytest.mark.parametrize('native', [True, False])
@pytest.mark.parametrize('rope', [[1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]], ids=str)
def test_exits_between_layers_without_rotary_positions(rope, native):
    "SmolLM3 after each layer: the exit's logits, and those of all layers after it."
    config = AutoConfig.for_model(
        'smollm3', **SIZES | GQA | dict(num_hidden_layers=4, no_rope_layers=rope)
    )
    lm, ids = LM(built(config), native=native), PROMPTS[2]
    with torch.no_grad():
        out = lm.model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        for layer in range(1, lm.depth):
            session = lm.session()
            early = lm.model.lm_head(lm.model.model.norm(out.hidden_states[layer]))[0, -3:]
            assert torch.allclose(session.exit_logits(ids, layer, 3), early, atol=1e-9)
            session.exit_logits(ids[:12], layer)
            assert torch.allclose(session.logits(ids, 8), out.logits[0, -8:], atol=1e-9)
            want = full_greedy(lm.model, ids, 6)
            exits = Speculative(EarlyExitDrafter(layer), lookahead=FixedLookahead(3))
            assert decode(lm, ids, exits, 6).tokens == want


@pytest.mark.parametrize('kind', ['gpt2', 'gpt_neox', 'llama', 'gemma', 'cohere', 'olmo'])
def test_a_window_that_the_model_does_not_have(kind, draft):
    "A configuration may name one; transformers' cache would take it for every layer's."
    lm = LM(
        built(
            AutoConfig.for_model(
                kind,
                **SIZES | dict(pad_token_id=0, head_dim=8, num_key_value_heads=4, sliding_window=5),
            )
        )
    )
    looks = Speculative(PromptLookupDrafter(), lookahead=FixedLookahead(4))
    tree = Speculative(TreeDrafter(draft, (2, 2, 1)))
    for prompt in PROMPTS:
        want = full_greedy(lm.model, prompt)
        for strategy in (Greedy(), looks, tree):
            assert decode(lm, prompt, strategy, NEW).tokens == want
        assert decode_batch(lm, [prompt, [5]], looks, max_new_tokens=NEW)[0].tokens == want
    assert decode(lm, PROMPTS[2], BeamSearch(3), 6).tokens == full_beams(lm.model, PROMPTS[2], 3, 6)
