"""Tiny random language models, the same under any version of transformers and torch: their weights come from numpy.

A recipe is a dictionary that can stand in a JSON file: `dict(family='llama', seed=1, layers=4, tied=False, …)`."""

import hashlib

import numpy as np
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

IDS = dict(
    pad_token_id=0, bos_token_id=1, eos_token_id=None
)  # no text ends by itself: a case names its own eos
CLASSES = dict(
    gpt2=(GPT2Config, GPT2LMHeadModel),
    llama=(LlamaConfig, LlamaForCausalLM),
    opt=(OPTConfig, OPTForCausalLM),
    t5=(T5Config, T5ForConditionalGeneration),
    bart=(BartConfig, BartForConditionalGeneration),
)

OUT = (
    '.o.',
    '.wo.',
    'c_proj',
    'out_proj',
    'o_proj',
    'fc2',
    'down_proj',
)  # what a layer adds to the stream
SCALE = dict(
    gpt2=(0.45, 4.0), llama=(0.5, 3.0), opt=(0.6, 4.0), t5=(2.0, 10.0, 0.5), bart=(0.5, 12.0, 0.15)
)  # of embeddings, of OUT, of cross attention, which would drown the text: texts that wander, some entropy


def arguments(family, layers, tied, vocab, width, heads):
    "What the family's config calls these sizes."
    if family == 'gpt2':
        return dict(n_layer=layers, n_embd=width, n_head=heads, n_positions=128)
    if family == 'llama':
        return dict(
            num_hidden_layers=layers,
            hidden_size=width,
            intermediate_size=2 * width,
            num_attention_heads=heads,
            num_key_value_heads=max(1, heads // 2),
            max_position_embeddings=128,
        )
    if family == 'opt':
        return dict(
            num_hidden_layers=layers,
            hidden_size=width,
            ffn_dim=2 * width,
            num_attention_heads=heads,
            max_position_embeddings=128,
            word_embed_proj_dim=width,
            dropout=0.0,
        )
    if family == 't5':
        return dict(
            num_layers=layers,
            num_decoder_layers=layers,
            d_model=width,
            d_kv=width // heads,
            d_ff=2 * width,
            num_heads=heads,
            decoder_start_token_id=0,
        )
    return dict(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=width,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        max_position_embeddings=128,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )


def weight(seed, name, shape, scale):
    "A parameter from its name (numpy float64): norms near one, biases small, matrices by their width."
    rng = np.random.default_rng(list(hashlib.sha256(f'{seed} {name}'.encode()).digest()))
    value = rng.standard_normal(shape)
    if 'norm' in name or '.ln_' in name:
        return value * 0.1 + (0 if name.endswith('bias') else 1)
    if len(shape) == 1:
        return value * 0.1
    if any(part in name for part in ('wte', 'wpe', 'embed', 'shared', 'relative_attention_bias')):
        return value * scale['embed']
    kind = 'out' if any(part in name for part in OUT) else 'inner'
    kind = 'head' if 'lm_head' in name else kind
    return (
        value
        * scale[kind]
        / max(shape) ** 0.5
        * (scale['cross'] if 'encoder_attn' in name or 'EncDec' in name else 1)
    )


def parameters(model):
    "`(name, parameter)`, once each, tied ones under one name in every version of transformers."
    return sorted((name, p) for name, p in model.named_parameters())


@torch.no_grad()
def build(
    family,
    seed=0,
    layers=None,
    tied=True,
    vocab=80,
    width=32,
    heads=4,
    embed=None,
    head=3.0,
    inner=2.0,
    out=None,
    cross=None,
    dtype=torch.float64,
):
    "The model of a recipe, in evaluation mode."
    config_class, model_class = CLASSES[family]
    layers = layers or (2 if family in ('t5', 'bart') else 4)
    scale = (
        dict(zip(('embed', 'out', 'cross'), SCALE[family]))
        | dict(inner=inner, head=head)
        | {n: v for n, v in dict(embed=embed, out=out, cross=cross).items() if v}
    )
    config = config_class(
        vocab_size=vocab,
        tie_word_embeddings=tied,
        **IDS,
        **arguments(family, layers, tied, vocab, width, heads),
    )
    model = model_class(config)
    model.tie_weights()
    for name, p in parameters(model):
        p.copy_(torch.from_numpy(weight(seed, name, tuple(p.shape), scale)))
    model.tie_weights()
    start = getattr(config, 'decoder_start_token_id', None)
    model.generation_config = GenerationConfig(**IDS, decoder_start_token_id=start)
    return model.to(dtype).eval()


def fingerprint(model):
    "sha256 over the names and the values of the parameters."
    digest = hashlib.sha256()
    for name, p in parameters(model):
        digest.update(name.encode() + p.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
