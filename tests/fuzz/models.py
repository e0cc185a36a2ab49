"Tiny random models of the architectures in transformers' own list of causal language models."

import contextlib
import functools
import io
import logging
import warnings

import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from decodelab import LM
from decodelab.models.session import Session

VOCABULARY = 40

# Sizes by every name that configurations have for them
SIZES = dict(
    hidden_size=32,
    n_embd=32,
    d_model=32,
    num_hidden_layers=2,
    n_layer=2,
    num_layers=2,
    n_layers=2,
    decoder_layers=2,
    encoder_layers=2,
    num_attention_heads=4,
    n_head=4,
    n_heads=4,
    num_heads=4,
    decoder_attention_heads=4,
    encoder_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    intermediate_size=48,
    ffn_dim=48,
    decoder_ffn_dim=48,
    encoder_ffn_dim=48,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
    moe_shared_expert_intermediate_size=16,
    max_position_embeddings=96,
    n_positions=96,
    n_ctx=96,
    sliding_window=6,
    attention_window=6,
    window_size=6,
    num_experts=4,
    num_local_experts=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    qk_nope_head_dim=8,
    v_head_dim=8,
    rotary_dim=4,
    word_embed_proj_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
    state_size=4,
    mamba_d_state=4,
    mamba_n_heads=8,
    mamba_d_head=8,
    mamba_expand=2,
    mamba_chunk_size=8,
    linear_head_dim=8,
    linear_num_heads=4,
    shared_intermediate_size=16,
    num_experts_per_token=2,
    sliding_window_size=6,
    swa_num_attention_heads=4,
    swa_num_key_value_heads=2,
    swa_head_dim=8,
    lru_width=32,
    embedding_size=32,
    hidden_size_per_layer_input=8,
    vocab_size_per_layer_input=VOCABULARY,
    mlp_only_layers=[],
)

# Sizes that some configurations leave open though their models need them
UNSET = [
    'head_dim',
    'num_key_value_heads',
    'num_experts',
    'n_routed_experts',
    'num_experts_per_tok',
]

# What a few need besides
SPECIAL = dict(
    gpt_neo=dict(attention_types=[[['global', 'local'], 1]], num_layers=2),
    mpt=dict(max_seq_len=96, expansion_ratio=2),
    recurrent_gemma=dict(num_hidden_layers=3, attention_window_size=6, lru_width=32),
    bamba=dict(attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1),
    falcon_h1=dict(mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_ssm=64),
    mamba2=dict(num_heads=8, head_dim=8, n_groups=1, chunk_size=8),
    cwm=dict(bos_token_id=0),
    modernbert_decoder=dict(bos_token_id=0),
    jamba=dict(
        attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1
    ),
    granitemoehybrid=dict(
        layer_types=['mamba', 'attention'], layers_block_type=['mamba', 'attention']
    ),
    gemma3n_text=dict(
        num_hidden_layers=4,
        layer_types=['sliding_attention', 'full_attention'] * 2,
        num_kv_shared_layers=2,
        intermediate_size=[48] * 4,
        activation_sparsity_pattern=[0.0] * 4,
    ),
    lfm2_moe=dict(layer_types=['conv', 'full_attention'], num_dense_layers=1),
    nemotron_h=dict(
        layer_types=['linear_attention', 'full_attention'],
        mamba_num_heads=8,
        mamba_head_dim=8,
        n_groups=1,
        ssm_state_size=4,
        chunk_size=8,
    ),
    smollm3=dict(no_rope_layers=[1, 0], num_hidden_layers=2),
    qwen3_next=dict(num_hidden_layers=4, layer_types=['linear_attention'] * 3 + ['full_attention']),
)


def configuration(architecture: str, vocab_size: int):
    "A configuration of small sizes; raises what the configuration raises."
    plain = AutoConfig.for_model(architecture)
    options = dict(vocab_size=vocab_size, eos_token_id=None, bos_token_id=None)
    known = set(plain.to_dict()) | set(plain.attribute_map)
    for name, size in SIZES.items():
        if name in known and plain_value(plain, name) is not None:
            options[name] = size
    if 'kv_lora_rank' in known:  # latent attention has no groups of heads
        options['num_key_value_heads'] = options['num_attention_heads']
    options |= {
        name: SIZES[name] for name in UNSET if name in known and plain_value(plain, name) is None
    }
    options |= SPECIAL.get(architecture.replace('-', '_'), {})
    if 'pad_token_id' in known and (plain.pad_token_id or 0) >= vocab_size:
        options['pad_token_id'] = 0
    layers = options.get('num_hidden_layers', 2)
    for name in ('layer_types', 'layers_block_type'):
        types = getattr(plain, name, None)
        if types and name not in options and name in known and not is_derived(plain, name):
            kinds = list(dict.fromkeys(types))
            options[name] = (kinds * layers)[:layers]
    if 'initializer_range' in known:
        options['initializer_range'] = 0.2
    return AutoConfig.for_model(architecture, is_decoder=True, **options)


def plain_value(config, name: str):
    "An attribute of a configuration; None where it has none, or one for each layer."
    try:
        return getattr(config, name, None)
    except RuntimeError:  # transformers' answer where the layers differ
        return None


def is_derived(config, name: str) -> bool:
    "Is an attribute computed from others, so that it cannot be given?"
    names = [name, config.attribute_map.get(name, name)]
    return any(isinstance(getattr(type(config), n, None), property) for n in names)


@contextlib.contextmanager
def quiet():
    "Without the warnings of models that are built from odd configurations."
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter('ignore')
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@functools.lru_cache(maxsize=256)
def build(architecture: str, seed: int = 0, vocab_size: int = VOCABULARY) -> LM | None:
    "A tiny model in float64, whose full forward pass gives finite logits; None where there is none."
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            config = configuration(architecture, vocab_size)
            config._experts_implementation = 'eager'
            with torch.device('meta'):  # its size, at no cost
                size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            if size > 2_000_000:
                return None
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
            scale_up(model)
            logits = full_logits(model, [1, min(2, vocab_size - 1), 1])
            ok = logits.shape == (vocab_size,) and bool(logits.isfinite().all())
            return LM(model, letters(vocab_size), f'{architecture}-{seed}') if ok else None
        except Exception:
            return None


def scale_up(model):
    "Weights that make distributions differ: matrices with a standard deviation of 0.2."
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31)
    for p in model.parameters():
        if p.ndim == 2 and p.is_floating_point() and p.numel() and float(p.detach().std()) < 0.1:
            p.data.normal_(std=0.2, generator=generator)


@torch.no_grad()
def full_logits(model, ids: list[int]) -> torch.Tensor:
    "Logits `(V,)` after `ids`, by one forward pass without a cache."
    rows = torch.tensor([ids])
    inputs = dict(input_ids=rows, use_cache=False)
    if model.config.model_type == 'xlm':  # it predicts at a mask token that it appends itself
        inputs = model.prepare_inputs_for_generation(rows)
    return model(**inputs).logits[0, -1].double()


@functools.cache
def letters(vocab_size: int, reverse: bool = False) -> PreTrainedTokenizerFast:
    "A tokenizer with a token per letter, of which some are pairs."
    pairs = min(4, (vocab_size - 1) // 2)
    alphabet = [chr(ord('A') + i) for i in range(vocab_size - pairs)]
    if reverse:
        alphabet = alphabet[::-1]
    merges = [tuple(alphabet[i : i + 2]) for i in range(pairs)]
    tokens = [*alphabet, *(a + b for a, b in merges)]
    fast = Tokenizer(BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    fast.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=fast)


class MemoSession(Session):
    """Looks logits up that a session of the model has computed before; the cache reads what is missing later.

    A tree that grows, and a drafter that copies keys and values, read the cache as it is: there it is filled.
    """

    unread = ()  # ids whose logits were looked up last, and are not in the cache

    def logits(self, ids, last=1):
        memo = self.lm.memo
        keys = [tuple(ids[:n]) for n in range(len(ids) - last + 1, len(ids) + 1)]
        if self.ahead or self._keeps_states or not all(key in memo for key in keys):
            self.unread = ()
            rows = super().logits(ids, last)
            memo |= zip(keys, rows)
            return rows
        self.passes += 1
        self.unread = tuple(ids)
        return torch.stack([memo[key] for key in keys])

    def fill(self):
        "Read the ids that were looked up."
        ids, self.unread = self.unread, ()
        if ids:
            super().logits(list(ids))

    def begin_tree(self):
        self.fill()
        super().begin_tree()

    def _kv_buffers(self):
        self.fill()
        return super()._kv_buffers()


class MemoLM(LM):
    "A model whose logits are computed once, for enumerations of thousands of paths."

    def __init__(self, *args):
        super().__init__(*args)
        self.memo = {}

    def open_session(self, encoder=None):
        return MemoSession(self, encoder)


@functools.cache
def build_memo(architecture: str, seed: int, vocab_size: int) -> MemoLM:
    "A tiny model that remembers its logits."
    lm = build(architecture, seed, vocab_size)
    return MemoLM(lm.model, lm.tokenizer, lm.name)


class ReplayedSession(Session):
    """Answers a call from the answer to the same call after the same calls, of an earlier session of the model.

    A session computes its answers from nothing but its calls. Those that were answered this way are made after
    all, in their order, before the first new one: the cache has then been filled and cut as it would have been.
    """

    def __init__(self, lm, encoder=None):
        super().__init__(lm, encoder)
        self.waiting = []  # calls that were answered, and not made yet
        self.known = lm.known  # call → (its answer, what is known after it); None: not any more

    def answer(self, name: str, *args):
        "The answer to a call of a method, which is a tensor."
        make = self.compact if name == 'compact' else getattr(super(), name)
        if self.known is None or self.ahead or self._keeps_states:
            self.catch_up()
            self.known = None
            return make(*args)
        call = repr((name, args))
        if call in self.known:
            answer, passes, _ = self.known[call]
            self.waiting.append((make, args))
            self.passes += passes
        else:
            self.catch_up()
            before = self.passes
            answer = make(*args)
            self.known[call] = (answer, self.passes - before, {})
        self.known = self.known[call][2]
        return answer.clone()

    def catch_up(self):
        "Make the calls that wait."
        waiting, self.waiting = self.waiting, []
        passes = self.passes
        for make, args in waiting:
            make(*args)
        self.passes = passes

    def logits(self, ids, last=1):
        return self.answer('logits', list(ids), last)

    def tree_logits(self, ids, tokens, parents):
        return self.answer('tree_logits', list(ids), list(tokens), list(parents))

    def accept_path(self, nodes):
        self.answer('compact', list(nodes))
        return self

    def compact(self, nodes):
        "Extend the sequence; the answer is empty."
        super().accept_path(nodes)
        return torch.empty(0)

    def begin_tree(self):
        self.catch_up()
        self.known = None
        super().begin_tree()

    def exit_logits(self, *args, **options):
        self.catch_up()
        self.known = None
        return super().exit_logits(*args, **options)

    def _kv_buffers(self):
        self.catch_up()
        return super()._kv_buffers()


class ReplayedLM(LM):
    "A model whose sessions answer the same calls once, for enumerations of hundreds of paths."

    def __init__(self, *args):
        super().__init__(*args)
        self.known = {}

    def open_session(self, encoder=None):
        session = super().open_session(encoder)
        return ReplayedSession(self, encoder) if type(session) is Session else session


@functools.cache
def build_replayed(architecture: str, seed: int, vocab_size: int) -> ReplayedLM:
    "A tiny model that answers the same calls once."
    lm = build(architecture, seed, vocab_size)
    return ReplayedLM(lm.model, lm.tokenizer, lm.name)


def architectures() -> list[str]:
    "All of transformers' names; `build` knows which of them can be tiny."
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


# What the two fuzzers before this one were run on, and what they broke
USUAL = (
    'llama', 'mistral', 'qwen2', 'qwen3', 'gemma2', 'gemma3_text', 'phi3', 'gpt2', 'gpt_neox', 'opt',
    'mixtral', 'falcon', 'bloom', 'gpt_neo', 'recurrent_gemma', 'mpt', 'trocr', 'bamba', 'roberta',
    'camembert', 'xlm-roberta', 'data2vec-text', 'smollm3', 'olmo2', 'cohere2', 'granite', 'starcoder2',
)  # fmt: skip
