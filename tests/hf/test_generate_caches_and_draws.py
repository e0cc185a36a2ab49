"`generate` with caches in and out, without a cache, with transformers' draws, scores of searches and pipelines."

import copy

import pytest
import torch
import transformers
from transformers import (
    DynamicCache,
    GitConfig,
    GitForCausalLM,
    GPT2Config,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    RwkvConfig,
    RwkvForCausalLM,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    XLMConfig,
    XLMWithLMHeadModel,
    XLNetConfig,
    XLNetLMHeadModel,
)
from transformers.utils import logging

from decodelab import generate, load, pipeline
from decodelab.evaluate.certify import random_lm
from decodelab.hf import explain_config

logging.set_verbosity_error()
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
IDS = torch.tensor([[5, 6, 7, 5, 6, 8, 9]])
CALL = dict(max_new_tokens=8, pad_token_id=0, eos_token_id=None, attention_mask=IDS != 0)


@pytest.fixture(scope='module')
def llama():
    return random_lm('llama', 3, layers=3, scale=0.3).model


def at_random(kind, config, dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config).to(dtype).eval()


def count_tokens(model):
    "A list that grows by the number of ids of each forward pass, and the hook's handle."
    counts = []
    embeddings = model.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda m, x, y: counts.append(x[0].numel()))
    return counts, handle


# Models without a cache


def uncached_models():
    gpt = dict(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3)
    xlm = dict(vocab_size=40, emb_dim=32, n_layers=2, n_heads=4, init_std=0.3, embed_init_std=0.3)
    xlnet = dict(vocab_size=40, d_model=32, n_layer=2, n_head=4, d_inner=48, initializer_range=0.3)
    rwkv = dict(vocab_size=40, attention_hidden_size=32, **SIZES)
    rwkv.pop('num_attention_heads')
    return dict(
        gpt=at_random(OpenAIGPTLMHeadModel, OpenAIGPTConfig(**gpt)),
        xlm=at_random(XLMWithLMHeadModel, XLMConfig(**xlm)),
        causal_xlm=at_random(XLMWithLMHeadModel, XLMConfig(causal=True, **xlm)),
        xlnet=at_random(XLNetLMHeadModel, XLNetConfig(use_mems_eval=False, **xlnet), torch.float32),
        rwkv=at_random(RwkvForCausalLM, RwkvConfig(**rwkv)),
    )


@pytest.mark.parametrize('name', ['gpt', 'xlm', 'causal_xlm', 'xlnet', 'rwkv'])
def test_models_that_store_nothing(name):
    model = uncached_models()[name]
    call = CALL | dict(attention_mask=None)
    greedy = model.generate(IDS, do_sample=False, **call)
    assert torch.equal(generate(model, IDS, **call), greedy)
    assert torch.equal(generate(model, IDS, **call, prompt_lookup_num_tokens=3), greedy)
    call |= dict(num_beams=3, num_return_sequences=2)
    beams = model.generate(IDS, do_sample=False, use_cache=False, **call)
    assert torch.equal(generate(model, IDS, **call), beams)


def test_xlnet_with_its_memory():
    "Its own loop reads it token by token; a draft cannot be verified by passes over a part."
    config = XLNetConfig(vocab_size=40, d_model=32, n_layer=1, n_head=4, d_inner=48)
    model = at_random(XLNetLMHeadModel, config, torch.float32)
    call = dict(max_new_tokens=4, pad_token_id=0)
    for more in ({}, dict(num_beams=2)):
        theirs = model.generate(IDS, do_sample=False, **call, **more)
        assert torch.equal(generate(model, IDS, **call, **more), theirs)
    with pytest.raises(ValueError, match='use_mems_eval = False'):
        generate(model, IDS, prompt_lookup_num_tokens=3, **call)


def test_captions_of_git():
    eye = SIZES | dict(image_size=32, patch_size=16)
    ends = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    config = GitConfig(vocab_size=40, initializer_range=0.3, vision_config=eye, **SIZES, **ends)
    model = at_random(GitForCausalLM, config)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=generator)
    for ids, n in ((None, 2), (torch.tensor([[1, 5, 6]] * 2), 2), (torch.tensor([[1, 5]]), 1)):
        for call in ({}, dict(num_beams=3)):
            call |= dict(input_ids=ids, pixel_values=pixels[:n], max_new_tokens=8)
            assert torch.equal(generate(model, **call), model.generate(**call, do_sample=False))


def test_no_cache_on_request(llama):
    plain = llama.generate(IDS, do_sample=False, **CALL)
    counts, handle = count_tokens(llama)
    try:
        ids = generate(llama, IDS, use_cache=False, **CALL)
        assert torch.equal(ids, plain)
        assert counts[-8:] == list(range(7, 15))
    finally:
        handle.remove()
    for call in (dict(num_beams=3), dict(penalty_alpha=0.6, top_k=4), dict(guidance_scale=1.5)):
        assert torch.equal(
            generate(llama, IDS, use_cache=False, **CALL, **call),
            generate(llama, IDS, **CALL, **call),
        )
    with pytest.raises(ValueError, match='leave one out'):
        generate(llama, IDS, use_cache=False, past_key_values=DynamicCache(), **CALL)


def test_early_exit_of_a_vision_encoder_decoder():
    vision = ViTConfig(image_size=32, patch_size=16, **SIZES)
    text = GPT2Config(
        vocab_size=40, n_embd=32, n_layer=3, n_head=4, n_positions=64, initializer_range=0.4
    )
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    model = at_random(VisionEncoderDecoderModel, config)
    model.generation_config.update(decoder_start_token_id=1, eos_token_id=None, pad_token_id=0)
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    plain = model.generate(pixels, max_new_tokens=8, do_sample=False)
    assert torch.equal(generate(model, pixels, max_new_tokens=8, assistant_early_exit=1), plain)


# Caches in and out


@pytest.mark.parametrize('draft', [{}, dict(prompt_lookup_num_tokens=3)], ids=str)
def test_the_second_turn_reads_what_is_new(llama, draft):
    ours, theirs = DynamicCache(), DynamicCache()
    ids = IDS
    counts, handle = count_tokens(llama)
    try:
        for turn in range(3):
            call = dict(max_new_tokens=6, pad_token_id=0, attention_mask=torch.ones_like(ids))
            known = ours.get_seq_length()
            counts.clear()
            out = generate(llama, ids, past_key_values=ours, **call, **draft)
            if not draft:
                assert sum(counts) == ids.shape[1] - known + 5
            want = llama.generate(ids, past_key_values=theirs, do_sample=False, **call)
            assert torch.equal(out, want)
            assert ours.get_seq_length() == theirs.get_seq_length()
            for a, b in zip(ours.layers, theirs.layers):
                assert torch.allclose(a.keys, b.keys)
                assert torch.allclose(a.values, b.values)
            ids = torch.cat([out, torch.tensor([[20 + turn, 21, 22]])], 1)
    finally:
        handle.remove()


def test_a_prefix_for_many_questions(llama):
    with torch.no_grad():
        prefix = llama(IDS, past_key_values=DynamicCache()).past_key_values
    for more in (11, 12):
        ids = torch.cat([IDS, torch.tensor([[more, 13]])], 1)
        call = dict(max_new_tokens=6, pad_token_id=0, attention_mask=torch.ones_like(ids))
        plain = llama.generate(ids, do_sample=False, **call)
        out = generate(llama, ids, past_key_values=copy.deepcopy(prefix), **call)
        assert torch.equal(out, plain)
    assert prefix.get_seq_length() == 7


def test_rows_of_a_padded_cache(llama):
    ids = torch.tensor([[0, 0, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]])
    mask = (ids != 0).long()
    positions = (mask.cumsum(1) - 1).clamp(0)
    cache = DynamicCache()
    llama(
        ids[:, :4], attention_mask=mask[:, :4], position_ids=positions[:, :4], past_key_values=cache
    )
    call = dict(attention_mask=mask, max_new_tokens=6, pad_token_id=0)
    plain = llama.generate(ids, do_sample=False, **call)
    assert torch.equal(generate(llama, ids, past_key_values=cache, **call), plain)


def test_the_cache_of_an_output_and_prompts_in_pieces(llama):
    out = generate(llama, IDS, return_dict_in_generate=True, **CALL)
    want = llama.generate(IDS, return_dict_in_generate=True, do_sample=False, **CALL)
    assert torch.equal(out.sequences, want.sequences)
    for a, b in zip(out.past_key_values.layers, want.past_key_values.layers, strict=True):
        assert torch.allclose(a.keys, b.keys)
    counts, handle = count_tokens(llama)
    try:
        ids = generate(llama, IDS, prefill_chunk_size=3, **CALL)
        assert torch.equal(ids, want.sequences)
        assert counts[-10:] == [3, 3, 1] + [1] * 7
    finally:
        handle.remove()


@pytest.mark.parametrize(
    'call,words',
    [
        (dict(past_key_values=3), 'past_key_values'),
        (
            dict(cache_implementation='quantized', prompt_lookup_num_tokens=3),
            'prefill_chunk_size',
        ),
        (dict(cache_implementation='paged'), 'cache_implementation'),
        (dict(prefill_chunk_size=0), '1 or more'),
        (dict(compile_config=transformers.CompileConfig(), strict=True), 'LM.compile'),
        (dict(num_beams=4, num_beam_groups=2), 'set diversity_penalty'),
    ],
    ids=lambda x: str(x)[:30],
)
def test_one_sentence_names_the_alternative(llama, call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        generate(llama, IDS, **CALL | call)


def test_a_static_cache_changes_nothing(llama):
    plain = llama.generate(IDS, do_sample=False, **CALL)
    assert torch.equal(generate(llama, IDS, cache_implementation='static', **CALL), plain)


def test_caches_that_no_session_can_begin_with(llama):
    full = llama(IDS, past_key_values=DynamicCache()).past_key_values
    with pytest.raises(ValueError, match='with at least one new'):
        generate(llama, IDS, past_key_values=full, max_new_tokens=2)
    with pytest.raises(ValueError, match='give encoder_outputs'):
        seq2seq = load('pico-seq2seq', device='cpu')
        generate(seq2seq, [[5, 6]], past_key_values=DynamicCache())


# Limits, a temperature of zero


def test_limits_that_are_both_given_warn_as_in_transformers(llama):
    both = dict(max_new_tokens=4, max_length=30, pad_token_id=0)
    with pytest.warns(UserWarning, match='max_new_tokens goes before max_length'):
        ids = generate(llama, IDS, **both)
    assert torch.equal(ids, llama.generate(IDS, do_sample=False, **both))
    with pytest.warns(UserWarning, match='min_new_tokens goes before min_length'):
        generate(llama, IDS, min_new_tokens=2, min_length=9, max_new_tokens=3)


@pytest.mark.parametrize('more', [{}, dict(top_k=5, top_p=0.9), dict(num_beams=3)], ids=str)
def test_a_temperature_of_zero_is_greedy(llama, more):
    beams = {k: v for k, v in more.items() if k == 'num_beams'}
    plain = llama.generate(IDS, do_sample=False, **CALL, **beams)
    for sampling in ({}, dict(do_sample=True)):
        ids = generate(llama, IDS, temperature=0.0, **sampling, **CALL, **more)
        assert torch.equal(ids, plain)
    table = explain_config(llama, temperature=0.0, do_sample=True, top_p=0.9)
    assert 'temperature=0 is greedy search' in table.loc['top_p', 'does']
    assert table.loc['strategy', 'value'] == 'Greedy()'


# transformers' own draws

SAMPLERS = [
    dict(top_k=0),
    dict(temperature=0.7, top_k=20, top_p=0.9),
    dict(typical_p=0.8, repetition_penalty=1.2, eos_token_id=[4, 9, 17]),
    dict(num_beams=3, top_k=0, num_return_sequences=2, eos_token_id=9),
]


@pytest.mark.parametrize('sampler', SAMPLERS, ids=str)
def test_the_same_seed_draws_the_tokens_of_transformers(llama, sampler):
    different = set()
    for seed in range(10):
        call = CALL | dict(do_sample=True, pad_token_id=63) | sampler
        torch.manual_seed(seed)
        want = llama.generate(IDS, **call)
        torch.manual_seed(seed)
        assert torch.equal(generate(llama, IDS, seed_like='transformers', **call), want)
        assert torch.equal(generate(llama, IDS, seed_like='transformers', seed=seed, **call), want)
        different.add(tuple(want[0].tolist()))
    assert len(different) > 5


def test_draws_that_cannot_be_repeated(llama):
    call = CALL | dict(do_sample=True, seed_like='transformers')
    for more, words in (
        (dict(num_return_sequences=2), 'draws those of a batch together'),
        (dict(prompt_lookup_num_tokens=3), 'leave one out'),
        (dict(seed_like='numpy'), "'transformers'"),
    ):
        with pytest.raises(ValueError, match=words):
            generate(llama, IDS, **call | more)


# Scores and states of all searches

SEARCHES = [
    dict(num_beams=4, num_beam_groups=2, diversity_penalty=0.7, num_return_sequences=4),
    dict(num_beams=3, num_beam_groups=3, diversity_penalty=2.0, eos_token_id=[4, 9, 17, 30]),
    dict(num_beams=3, force_words_ids=[[9, 11]], num_return_sequences=2),
    dict(num_beams=3, force_words_ids=[[[9], [11, 12]]], repetition_penalty=1.3),
]


@pytest.mark.parametrize('search', SEARCHES, ids=str)
def test_scores_of_groups_and_constraints(llama, search):
    "transformers' own compute_transition_scores finds the scores of the sequences in ours."
    call = CALL | search | dict(return_dict_in_generate=True, output_scores=True)
    ids = torch.cat([IDS, IDS.flip(1)])
    out = generate(llama, ids, **call | dict(attention_mask=ids != 0))
    parts = llama.compute_transition_scores(out.sequences, out.scores, out.beam_indices)
    lengths = (out.beam_indices >= 0).sum(1)
    first = out.sequences[:, :7].tolist()  # a constrained search may find fewer than were asked for
    assert [row for row in ids.tolist() if row in first] == ids.tolist()
    assert torch.allclose(parts.sum(1) / lengths, out.sequences_scores.to(parts.dtype), atol=1e-6)
    rows = len(ids) * search['num_beams']
    assert all(step.shape == (rows, llama.config.vocab_size) for step in out.scores)


@pytest.mark.parametrize('search', SEARCHES[::2], ids=str)
def test_states_of_groups_and_constraints(llama, search):
    call = CALL | search | dict(return_dict_in_generate=True, output_hidden_states=True)
    out = generate(llama, IDS, **call)
    full = llama(out.sequences[:1], output_hidden_states=True).hidden_states[-1][0]
    for step in range(1, int((out.beam_indices[0] >= 0).sum())):
        row = out.beam_indices[0, step]
        assert torch.allclose(out.hidden_states[step][-1][row, 0], full[6 + step], atol=1e-9)


# Pipelines without a strategy


@pytest.fixture(scope='module')
def pipes():
    lm = load('pico', device='cpu', dtype=torch.float64)
    options = dict(model=lm.model, tokenizer=copy.deepcopy(lm.tokenizer), device='cpu')
    return pipeline('text-generation', lm), transformers.pipeline('text-generation', **options)


@pytest.mark.parametrize(
    'call',
    [
        dict(do_sample=False),
        dict(do_sample=False, num_beams=3),
        dict(do_sample=False, prompt_lookup_num_tokens=4),
        dict(do_sample=False, assistant_model='pico-draft'),
        dict(do_sample=True, top_k=1),
    ],
    ids=str,
)
def test_a_pipeline_decodes_with_its_arguments(pipes, call):
    if 'assistant_model' in call:
        call |= dict(assistant_model=load('pico-draft', device='cpu', dtype=torch.float64).model)
    ours, theirs = pipes
    text = 'for i in range(10):\n    print(i)\nfor'
    assert ours(text, max_new_tokens=12, **call) == theirs(text, max_new_tokens=12, **call)
    drafts = 'assistant_model' in call or 'prompt_lookup_num_tokens' in call
    assert bool(sum(step.drafted for step in ours.traces[0].steps)) == drafts


def test_a_pipeline_samples_by_default(pipes):
    ours, theirs = pipes
    texts = set()
    for seed in range(4):
        torch.manual_seed(seed)
        want = theirs('import os\n', max_new_tokens=8)
        torch.manual_seed(seed)
        assert ours('import os\n', max_new_tokens=8, seed_like='transformers') == want
        texts.add(want[0]['generated_text'])
    assert len(texts) > 1


# DoLa as transformers 4.49 had it


def test_dola_through_the_door_is_that_of_transformers_449():
    "Every recorded call with one prompt, held against the recorded tokens themselves."
    from tests.strategies.test_search_golden import CASES, DEAD_END, RAISES, lm_of

    count = 0
    for name, case in CASES.items():
        usable = case['strategy'] == 'dola' and 'tokens' in case and len(case['prompts']) == 1
        if not usable or name in (*RAISES, DEAD_END):
            continue
        ids = torch.tensor(case['prompts'])
        args = dict(case['args'], attention_mask=torch.ones_like(ids))
        out = generate(lm_of(case['model']), ids, **args)[0, ids.shape[1] :].tolist()
        assert out == case['tokens'][0], name
        count += 1
    assert count >= 36
