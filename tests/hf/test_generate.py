"""`generate` against transformers' own on tiny random models in float64: the same arguments, the same ids.

Where transformers can decode one text only (drafts), or a text depends on the padding beside it (rules that look at the whole text), it is asked text by text.
"""

import copy
import re

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    JambaConfig,
    MambaConfig,
    StopStringCriteria,
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
    WatermarkingConfig,
)
from transformers.utils import logging

from decodelab import generate, load
from decodelab.evaluate.certify import random_lm
from decodelab.hf import explain_config
from decodelab.logits import TopNSigma
from tests.hf.test_encoder_decoders import SIZES

logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings(
    'ignore:Using the model-agnostic', 'ignore:neither max_new_tokens nor max_length'
)
FAMILIES = 'llama', 'gpt2', 'mistral', 'opt', 'gpt_neox', 'qwen3'
PAD = 63
IDS = torch.tensor([[PAD, PAD, 5, 6, 7, 5, 6], [8, 9, 10, 11, 12, 13, 14], [PAD, 3, 4, 3, 4, 3, 4]])
MASK = (IDS != PAD).long()
named = lambda value: re.sub(r' at 0x\w+', '', str(value))  # two processes have the same names
BATCH = dict(input_ids=IDS, attention_mask=MASK, pad_token_id=PAD, max_new_tokens=12)
ENDS = [4, 9, 17, 30]


@pytest.fixture(scope='module', params=FAMILIES)
def model(request):
    return random_lm(request.param, 3, layers=3, scale=0.3).model


@pytest.fixture(scope='module')
def llama():
    return random_lm('llama', 3, layers=3, scale=0.3).model


def draft_of(model):
    "Another model of the same family, with one layer."
    return random_lm(model.config.model_type, 3, layers=1, scale=0.3).model


def one_by_one(model, call):
    "What transformers says of each text alone, as rows of a batch."
    options = {k: v for k, v in BATCH.items() if k not in ('input_ids', 'attention_mask')} | call
    rows = []
    for ids, mask in zip(IDS, MASK):
        row = model.generate(ids[mask.bool()][None], do_sample=False, **options)
        rows.append(row[0, int(mask.sum()) :])
    return torch.cat(
        [
            IDS,
            torch.nn.utils.rnn.pad_sequence(
                rows, batch_first=True, padding_value=call.get('pad_token_id', PAD)
            ),
        ],
        1,
    )


@pytest.mark.parametrize(
    'call',
    [
        {},
        dict(eos_token_id=ENDS),
        dict(eos_token_id=ENDS, min_new_tokens=6),
        dict(eos_token_id=ENDS, min_length=12),
        dict(max_new_tokens=None, max_length=15),
        dict(max_new_tokens=None),
        dict(bad_words_ids=[[20], [21, 22], [5]]),
        dict(suppress_tokens=list(range(20, 40))),
        dict(forced_eos_token_id=3, max_new_tokens=5),
        dict(forced_bos_token_id=None, begin_suppress_tokens=[5, 6]),
        dict(sequence_bias=[[[11], 3.0], [[12], -3.0]]),
        dict(prefix_allowed_tokens_fn=lambda row, ids: [row + 20, row + 30, int(ids[-1]) % 60 + 1]),
        dict(exponential_decay_length_penalty=(2, 1.3), eos_token_id=ENDS),
        dict(num_beams=3),
        dict(num_beams=4, num_return_sequences=3, eos_token_id=ENDS),
        dict(num_beams=3, eos_token_id=ENDS, early_stopping=True, length_penalty=0.3),
        dict(num_beams=3, eos_token_id=9, early_stopping='never', length_penalty=2.0),
        dict(num_beams=2, bad_words_ids=[[20], [21]], min_new_tokens=4, eos_token_id=ENDS),
        dict(
            generation_config=GenerationConfig(num_beams=2, max_new_tokens=7, eos_token_id=ENDS),
            max_new_tokens=None,
        ),
    ],
    ids=named,
)
def test_a_batch_equals_that_of_transformers(model, call):
    call = BATCH | call
    assert torch.equal(generate(model, **call), model.generate(**call, do_sample=False))


@pytest.mark.parametrize(
    'call',
    [
        dict(repetition_penalty=1.4),
        dict(no_repeat_ngram_size=2),
        dict(num_beams=3, no_repeat_ngram_size=2),
        dict(repetition_penalty=1.2, eos_token_id=ENDS, num_beams=2),
        dict(guidance_scale=1.5),
        dict(guidance_scale=1.7, negative_prompt_ids=torch.tensor([[20, 21]])),
        dict(encoder_repetition_penalty=1.5),
        dict(watermarking_config=WatermarkingConfig(bias=4.0)),
        dict(watermarking_config=WatermarkingConfig(bias=4.0, seeding_scheme='selfhash')),
    ],
    ids=named,
)
def test_rules_do_not_see_the_padding(llama, call):
    assert torch.equal(generate(llama, **BATCH | call), one_by_one(llama, call))


DRAFTS = [
    dict(assistant=True),
    dict(assistant=True, num_assistant_tokens=3, assistant_confidence_threshold=0.0),
    dict(
        assistant=True, num_assistant_tokens_schedule='heuristic_transient', num_assistant_tokens=2
    ),
    dict(prompt_lookup_num_tokens=4),
    dict(prompt_lookup_num_tokens=5, max_matching_ngram_size=3),
    dict(assistant_early_exit=1),
    dict(assistant=True, prompt_lookup_num_tokens=3),
]


@pytest.mark.parametrize('call', DRAFTS, ids=named)
def test_drafts_in_batches_generate_the_greedy_sequences(model, call):
    call = dict(call)
    if call.pop('assistant', False):
        call['assistant_model'] = draft_of(model)
    for more in (
        {},
        dict(eos_token_id=ENDS, min_new_tokens=3),
        dict(bad_words_ids=[[20], [21, 22]]),
    ):
        assert torch.equal(
            generate(model, **BATCH | more | call), model.generate(**BATCH | more, do_sample=False)
        )


def test_numbers_and_tensors_of_other_kinds(llama):
    import numpy as np

    want = generate(llama, IDS[1:2], max_new_tokens=4, do_sample=True, temperature=0.5, seed=1)
    assert torch.equal(
        want,
        generate(
            llama,
            IDS[1:2].numpy(),
            max_new_tokens=np.int64(4),
            do_sample=True,
            temperature=np.float32(0.5),
            seed=1,
        ),
    )
    assert torch.equal(
        want,
        generate(
            llama,
            IDS[1:2].int(),
            attention_mask=torch.ones(1, 7),
            max_new_tokens=4,
            do_sample=True,
            temperature=0.5,
            seed=1,
        ),
    )
    assert torch.equal(
        want,
        generate(
            llama, IDS[1:2].tolist(), max_new_tokens=4, do_sample=True, temperature=0.5, seed=1
        ),
    )
    with pytest.raises(TypeError, match=r'unpack it, generate\(model, \*\*inputs\)'):
        generate(llama, dict(input_ids=IDS))
    for dtype in (torch.bfloat16, torch.float16):
        low = copy.deepcopy(llama).to(dtype)
        for more in (
            {},
            dict(num_beams=2),
            dict(prompt_lookup_num_tokens=3),
            dict(penalty_alpha=0.6, top_k=3),
            dict(inputs_embeds=low.get_input_embeddings()(IDS).float()),
        ):
            assert generate(low, **BATCH | more).shape == (3, 19)


def test_drafts_by_themselves_are_those_of_transformers(llama):
    draft = draft_of(llama)
    for call in (
        dict(assistant_model=draft),
        dict(prompt_lookup_num_tokens=4),
        dict(assistant_early_exit=1),
        dict(assistant_model=draft, no_repeat_ngram_size=2),
        dict(prompt_lookup_num_tokens=4, repetition_penalty=1.3),
    ):
        assert torch.equal(generate(llama, **BATCH | call), one_by_one(llama, call)), call


def test_an_assistants_arguments_arrive(llama):
    "transformers takes num_assistant_tokens from the assistant's configuration, and drops the caller's."
    draft = copy.deepcopy(llama)
    options = dict(assistant_model=draft, max_new_tokens=24, return_dict_in_generate=True)
    passes = []
    for k in (1, 5):
        drafts = dict(num_assistant_tokens=k, assistant_confidence_threshold=0.0)
        trace = generate(llama, IDS[1:2], **options, **drafts).trace[0]
        passes.append(sum(s.target_passes for s in trace.steps))
    draft.generation_config.update(num_assistant_tokens=2, assistant_confidence_threshold=0.0)
    drafted = [
        s.drafted
        for s in generate(
            llama, IDS[1:2], max_new_tokens=24, assistant_model=draft, return_dict_in_generate=True
        )
        .trace[0]
        .steps
    ]
    assert passes == [12, 4]
    assert max(drafted) == 2


@pytest.mark.parametrize('config', [MambaConfig, JambaConfig])
def test_models_with_a_state_are_drafted_for_in_batches(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        more = (
            dict(state_size=4)
            if config is MambaConfig
            else dict(
                num_key_value_heads=2,
                num_experts=2,
                mamba_d_state=4,
                mamba_dt_rank=4,
                attn_layer_offset=1,
                attn_layer_period=2,
                expert_layer_offset=1,
                expert_layer_period=2,
                use_mamba_kernels=False,
            )
        )
        made = config(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            pad_token_id=PAD,
            eos_token_id=None,
            bos_token_id=None,
            **more,
        )
        made._experts_implementation = 'eager'  # the grouped kernel has no float64
        model = AutoModelForCausalLM.from_config(made, dtype=torch.float64).eval()
    greedy = generate(model, **BATCH | dict(max_new_tokens=6))
    for i in range(3):
        ids = IDS[i][MASK[i].bool()]
        for _ in range(6):
            ids = torch.cat([ids, model(ids[None]).logits[0, -1:].argmax(-1)])
        assert greedy[i, -6:].tolist() == ids[-6:].tolist()
    assert torch.equal(
        generate(model, **BATCH | dict(max_new_tokens=6), prompt_lookup_num_tokens=3), greedy
    )


def test_a_family_that_transformers_cannot_read_with_padding():
    """Windows shorter than the padding.

    Transformers' scores are not numbers then, and it says the first token of all.
    """
    gemma = random_lm('gemma2', 3, layers=3, scale=0.3).model
    for more in ({}, dict(num_beams=3)):
        assert torch.equal(generate(gemma, **BATCH | more), one_by_one(gemma, more))
    assert torch.equal(
        generate(gemma, **BATCH, assistant_model=draft_of(gemma)), generate(gemma, **BATCH)
    )


def test_padding_behind_the_text_is_no_text(llama):
    right = torch.stack([torch.cat([row[m.bool()], row[~m.bool()]]) for row, m in zip(IDS, MASK)])
    for more in ({}, dict(num_beams=3), dict(assistant_early_exit=1)):
        left = generate(llama, **BATCH | more)
        ours = generate(
            llama,
            right,
            attention_mask=(right != PAD).long(),
            pad_token_id=PAD,
            max_new_tokens=12,
            **more,
        )
        assert torch.equal(ours[:, 7:], left[:, 7:])
        assert torch.equal(ours[:, :7], right)
        assert torch.equal(
            ours, generate(llama, right, pad_token_id=PAD, max_new_tokens=12, **more)
        )  # without a mask, by the pad id


# Encoder–decoders


def seq2seq(kind, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == 'bart':
            model = BartForConditionalGeneration(
                BartConfig(
                    **SIZES, decoder_layers=2, decoder_start_token_id=2, forced_eos_token_id=2
                )
            )
        else:
            model = T5ForConditionalGeneration(
                T5Config(
                    vocab_size=64,
                    d_model=32,
                    d_kv=8,
                    d_ff=48,
                    num_layers=2,
                    num_heads=4,
                    pad_token_id=0,
                    eos_token_id=1,
                    decoder_start_token_id=0,
                    initializer_factor=3.0,
                )
            )
    return model.double().eval()


@pytest.mark.parametrize('kind', ['t5', 'bart'])
@pytest.mark.parametrize(
    'call',
    [
        {},
        dict(num_beams=3, num_return_sequences=2),
        dict(num_beams=4, length_penalty=2.0, early_stopping=True),
        dict(decoder_input_ids=torch.tensor([[7, 8], [9, 10]])),
        dict(min_new_tokens=5),
        dict(max_length=9, min_length=7),
        dict(no_repeat_ngram_size=2),
        dict(forced_bos_token_id=7),
        dict(bad_words_ids=[[20], [21, 22]]),
        dict(repetition_penalty=1.5),
        dict(num_beams=3, forced_bos_token_id=7, forced_eos_token_id=3),
        dict(encoder_no_repeat_ngram_size=2),
    ],
    ids=named,
)
def test_encoder_decoders(kind, call):
    model = seq2seq(kind)
    pad = model.config.pad_token_id
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, pad, pad]])
    call = (
        dict(
            input_ids=ids,
            attention_mask=(ids != pad).long(),
            max_new_tokens=None if 'max_length' in call else 10,
        )
        | call
    )
    before = model.generation_config.to_dict()
    plain = model.generate(**call, do_sample=False)
    if 'encoder_no_repeat_ngram_size' not in call:
        assert torch.equal(generate(model, **call), plain)
    assert generate(model, **call).shape[1] <= 14
    if 'num_beams' not in call:
        for more in (dict(assistant_model=seq2seq(kind, 1)), dict(prompt_lookup_num_tokens=3)):
            assert torch.equal(generate(model, **call | more), generate(model, **call))
    assert model.generation_config.to_dict() == before


def test_other_inputs_pass_through_to_the_encoder():
    model = seq2seq('bart')
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    embeds = model.get_encoder().embed_tokens(ids) * getattr(
        model.get_encoder().embed_tokens, 'embed_scale', 1.0
    )
    with torch.no_grad():
        want = model.generate(inputs_embeds=embeds, max_new_tokens=8, do_sample=False)
    assert torch.equal(generate(model, inputs_embeds=embeds.detach(), max_new_tokens=8), want)


def test_sounds_pass_through():
    "A tiny Whisper: features in, the same ids as transformers' plain loop, plain, searched and drafted for."
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    from transformers.generation.utils import GenerationMixin

    sizes = dict(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=40,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = (
            WhisperForConditionalGeneration(
                WhisperConfig(
                    vocab_size=64,
                    pad_token_id=1,
                    bos_token_id=0,
                    eos_token_id=2,
                    decoder_start_token_id=3,
                    init_std=0.6,
                    begin_suppress_tokens=None,
                    **sizes,
                )
            )
            .double()
            .eval()
        )
        sound = 3 * torch.randn(2, 8, 100, dtype=torch.float64)
    for call in ({}, dict(num_beams=3), dict(decoder_input_ids=torch.tensor([[7, 8], [9, 10]]))):
        theirs = GenerationMixin.generate(
            model, input_features=sound, max_new_tokens=8, do_sample=False, **call
        )
        assert torch.equal(
            generate(model, sound, max_new_tokens=8, force_unique_generate_call=True, **call),
            theirs,
        )
        assert torch.equal(
            generate(
                model, sound, max_new_tokens=8, return_dict_in_generate=True, **call
            ).sequences,
            theirs,
        )
        assert torch.equal(
            generate(model, sound, max_new_tokens=8, **call),
            model.generate(sound, max_new_tokens=8, **call),
        )
    assert torch.equal(
        generate(model, input_features=sound, max_new_tokens=8, prompt_lookup_num_tokens=3),
        generate(model, sound, max_new_tokens=8),
    )
    model.generation_config.forced_decoder_ids = [[1, 20], [2, 21]]
    theirs = model.generate(input_features=sound, max_new_tokens=8, do_sample=False)
    ours = generate(model, sound, max_new_tokens=8, force_unique_generate_call=True)
    assert ours[:, :3].tolist() == [[3, 20, 21]] * 2
    assert torch.equal(ours[:, 3:][:, : theirs.shape[1]], theirs)
    assert torch.equal(generate(model, sound, max_new_tokens=8), theirs)


def test_whisper_gives_back_what_its_own_generate_gives_back():
    """Short sound, long sound, times, segments, dictionaries.

    The embedded model, and a random one that knows languages and times.
    """
    from decodelab.models.audio import audio_features
    from decodelab.zoo.signals import sample

    lm = load('pico-whisper', device='cpu')
    draft = load('pico-whisper-draft', device='cpu')
    features = torch.cat(
        [audio_features(lm, sample(i, test=True).wave)['input_features'] for i in range(3)]
    )
    for call in (
        {},
        dict(max_new_tokens=4),
        dict(max_length=4),
        dict(max_length=3, force_unique_generate_call=True),
        dict(force_unique_generate_call=True),
        dict(decoder_input_ids=torch.tensor([[1, 5], [1, 6], [1, 7]])),
    ):
        theirs = lm.model.generate(features, **call)
        for more in ({}, dict(assistant_model=draft.model), dict(prompt_lookup_num_tokens=3)):
            assert torch.equal(generate(lm.model, features, **call, **more), theirs), call
    a = generate(lm, features, return_dict_in_generate=True, output_scores=True)
    b = lm.model.generate(features, return_dict_in_generate=True, output_scores=True)
    assert type(a) is type(b)
    assert torch.equal(a.sequences, b.sequences)
    assert len(a.scores) == len(b.scores)
    ours = generate(lm, features, num_beams=2)
    theirs = lm.model.generate(features, num_beams=2)
    for a, b in zip(ours, theirs, strict=True):
        assert a[a != 0].tolist() == b[b != 2].tolist()  # transformers fills a beam up with the end
    sound = 3 * torch.randn(
        2, 8, 260, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    model = speaker()
    before = copy.deepcopy(model.generation_config.to_dict())
    for call in (
        dict(return_timestamps=True),
        dict(return_timestamps=True, language='de'),
        dict(return_timestamps=True, task='translate', language='en'),
        dict(return_timestamps=True, suppress_tokens=[8, 37]),
    ):
        for x in (sound, sound[..., :100]):
            mask = dict(attention_mask=torch.ones(2, 260, dtype=torch.long)) if x is sound else {}
            assert torch.equal(
                generate(model, x, max_new_tokens=6, **mask, **call),
                model.generate(x, max_new_tokens=6, **mask, **call),
            ), call
    for call in (
        dict(language='de'),
        dict(language=['de', 'en']),
        dict(language='en', task='translate'),
    ):
        quiet = dict(suppress_tokens=[2, *range(61, 120)], max_new_tokens=6)
        assert torch.equal(
            generate(model, sound[..., :100], **call, **quiet),
            model.generate(sound[..., :100], **call, **quiet),
        ), call
    for given, words in (
        (dict(input_ids=torch.tensor([[3]])), 'reads no ids: give input_features'),
        (dict(inputs=sound[0, :, :100]), r'give \(rows, 8, frames\)'),
        ({}, 'give input_features'),
        (dict(inputs=sound[..., :100], language=['de'] * 3), 'one for each'),
    ):
        with pytest.raises(ValueError, match=words):
            generate(model, **given)
    with pytest.raises(TypeError, match='language'):
        generate(seq2seq('t5'), torch.tensor([[5, 6]]), language='de')
    assert model.generation_config.to_dict() == before


def speaker():
    "A random Whisper with languages, tasks and times."
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = dict(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=40,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = (
            WhisperForConditionalGeneration(
                WhisperConfig(
                    vocab_size=120,
                    pad_token_id=1,
                    bos_token_id=0,
                    eos_token_id=2,
                    decoder_start_token_id=3,
                    init_std=0.6,
                    begin_suppress_tokens=None,
                    **sizes,
                )
            )
            .double()
            .eval()
        )
    known = dict(
        no_timestamps_token_id=60,
        max_initial_timestamp_index=5,
        return_timestamps=False,
        is_multilingual=True,
        lang_to_id={'<|de|>': 50, '<|en|>': 51},
        task_to_id=dict(transcribe=52, translate=53),
    )
    for name, value in known.items():
        setattr(model.generation_config, name, value)
    return model


# Stops, scores, chance


def test_stop_strings_and_criteria_in_batches():
    pico = load('pico', device='cpu', dtype=torch.float64)
    pico.tokenizer.padding_side = 'left'
    batch = pico.tokenizer(
        ['def add(a, b):\n    return', 'class Reader:\n', 'import os'],
        return_tensors='pt',
        padding=True,
    )
    theirs = pico.model.generate(**batch, max_new_tokens=20, do_sample=False)
    width = batch['input_ids'].shape[1]
    text = pico.tokenizer.decode(theirs[0, width:])
    string = next(text[i : i + 3] for i in range(4, 30) if text[i : i + 3].strip())
    for one in (
        dict(input_ids=row[m.bool()][None])
        for row, m in zip(batch['input_ids'], batch['attention_mask'])
    ):
        want = pico.model.generate(
            **one,
            max_new_tokens=20,
            do_sample=False,
            stop_strings=[string, 'import'],
            tokenizer=pico.tokenizer,
        )
        for more in (
            {},
            dict(assistant_model=load('pico-draft', device='cpu', dtype=torch.float64)),
            dict(assistant_early_exit=1),
        ):
            assert torch.equal(
                generate(pico, **one, max_new_tokens=20, stop_strings=[string, 'import'], **more),
                want,
            )
        assert torch.equal(
            generate(
                pico,
                **one,
                max_new_tokens=20,
                stopping_criteria=[StopStringCriteria(pico.tokenizer, [string, 'import'])],
            ),
            want,
        )
    assert torch.equal(generate(pico, **batch, max_new_tokens=20), theirs)


def test_universal_assistants_in_batches():
    pico, alt = (load(name, device='cpu', dtype=torch.float64) for name in ('pico', 'pico-alt'))
    pico.tokenizer.padding_side = 'left'
    batch = pico.tokenizer(
        ['def add(a, b):\n    return', 'import os'], return_tensors='pt', padding=True
    )
    call = dict(
        assistant_model=alt.model, tokenizer=pico.tokenizer, assistant_tokenizer=alt.tokenizer
    )
    weights = {k: v.clone() for k, v in alt.model.state_dict().items()}
    assert torch.equal(
        generate(pico.model, **batch, **call, max_new_tokens=12),
        pico.model.generate(**batch, max_new_tokens=12, do_sample=False),
    )
    drawn = [
        generate(pico.model, **batch, **call, max_new_tokens=12, do_sample=True, seed=3)
        for _ in range(2)
    ]
    # transformers rewrites the draft
    assert torch.equal(*drawn)
    assert all(torch.equal(v, weights[k]) for k, v in alt.model.state_dict().items())


def test_scores_of_a_padded_batch(llama):
    asked = dict(return_dict_in_generate=True, output_scores=True, output_logits=True)
    for more in (
        {},
        dict(suppress_tokens=[5, 6]),
        dict(num_beams=3, num_return_sequences=2),
        dict(num_beams=2, eos_token_id=ENDS),
    ):
        a = generate(llama, **BATCH | asked | more)
        b = llama.generate(**BATCH | asked | more, do_sample=False)
        assert type(a) is type(b)
        assert torch.equal(a.sequences, b.sequences)
        assert len(a.trace) == 3
        if 'num_beams' in more:
            assert torch.equal(a.beam_indices, b.beam_indices.long())
            assert torch.allclose(a.sequences_scores.float(), b.sequences_scores, atol=1e-4)
        if 'eos_token_id' in more:
            continue  # transformers goes on with texts that have ended
        for name in ('scores', 'logits'):
            torch.testing.assert_close(
                torch.stack(getattr(a, name)).float(),
                torch.stack(getattr(b, name)),
                atol=1e-4,
                rtol=1e-4,
            )


@pytest.mark.parametrize(
    'call',
    [
        {},
        dict(num_beams=3, num_return_sequences=2),
        dict(eos_token_id=ENDS),
        dict(prompt_lookup_num_tokens=3),
        dict(num_beams=2, eos_token_id=ENDS),
    ],
    ids=named,
)
def test_hidden_states_and_attentions(llama, call, monkeypatch):
    "In the model's float64: eager attention has a float32 softmax, which rounds by the number of keys."
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, 'softmax', lambda x, dim, dtype=None: softmax(x, dim))
    eager = copy.deepcopy(llama)
    eager.set_attn_implementation('eager')
    asked = dict(
        return_dict_in_generate=True,
        output_hidden_states=True,
        output_attentions=True,
        max_new_tokens=8,
        pad_token_id=PAD,
    )
    a = generate(eager, IDS[1:2], **asked | call)
    b = eager.generate(IDS[1:2], **asked | call, do_sample=False)
    assert torch.equal(a.sequences, b.sequences)
    for name in ('hidden_states', 'attentions'):
        for ours, theirs in zip(
            getattr(a, name), getattr(b, name)
        ):  # transformers goes on with beams that nobody wants
            for x, y in zip(ours, theirs, strict=True):
                assert x.shape == y.shape
                assert torch.allclose(x, y, atol=1e-7)
    with pytest.raises(ValueError, match="attn_implementation='eager'"):
        generate(llama, IDS[1:2], **asked)
    hidden = generate(
        llama,
        **BATCH,
        return_dict_in_generate=True,
        output_hidden_states=True,
        assistant_model=draft_of(llama),
    )
    theirs = llama.generate(
        **BATCH, return_dict_in_generate=True, output_hidden_states=True, do_sample=False
    )
    for ours, want in list(zip(hidden.hidden_states, theirs.hidden_states, strict=True))[1:]:
        for x, y in zip(ours, want, strict=True):
            assert torch.allclose(x, y, atol=1e-7)


def test_hidden_states_of_encoder_decoders_and_prepared_prompts():
    from tests.hf.test_prepared_inputs import inputs, llava

    asked = dict(return_dict_in_generate=True, output_hidden_states=True, max_new_tokens=6)
    for kind in ('t5', 'bart'):
        model, ids = seq2seq(kind), torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
        model.set_attn_implementation('eager')
        for call in (
            dict(output_attentions=True),
            dict(output_attentions=True, num_beams=3),
            dict(encoder_outputs=model.get_encoder()(ids), output_attentions=True),
        ):
            given = {} if 'encoder_outputs' in call else dict(input_ids=ids)
            a = generate(model, **given, **asked | call)
            b = model.generate(**given, **asked | call, do_sample=False)
            for name in ('decoder_hidden_states', 'decoder_attentions', 'cross_attentions'):
                for ours, theirs in zip(getattr(a, name), getattr(b, name)):
                    for x, y in zip(ours, theirs, strict=True):
                        assert x.shape == y.shape, (kind, name)
                        assert torch.allclose(x, y, atol=1e-7), (kind, name)
            if given:
                assert all(
                    torch.allclose(x[:1], y[:1], atol=1e-7)
                    for x, y in zip(a.encoder_hidden_states, b.encoder_hidden_states, strict=True)
                )
    model, one = llava(), inputs('llava', 1)
    vectors = model.get_input_embeddings()(torch.tensor([[5, 6, 7]])).detach()
    for given in (one, dict(inputs_embeds=vectors)):
        a = generate(model, **given, **asked)
        b = model.generate(**given, **asked, do_sample=False)
        assert all(
            torch.allclose(x, y, atol=1e-7)
            for s, t in zip(a.hidden_states, b.hidden_states, strict=True)
            for x, y in zip(s, t, strict=True)
        )
    a = generate(model, **inputs('llava'), **asked)
    b = model.generate(**inputs('llava'), **asked, do_sample=False)
    for ours, theirs in zip(a.hidden_states, b.hidden_states, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))
    with pytest.raises(ValueError, match='one sequence at a time'):
        generate(model, **inputs('llava'), **asked, prompt_lookup_num_tokens=3)


def test_scores_of_other_strategies(llama):
    """Greedy strategies say the token with the largest of the scores that are returned.

    A draft changes none of them.
    """
    asked = dict(return_dict_in_generate=True, output_scores=True)
    for more in (dict(dola_layers=[0, 1]), dict(dola_layers=[1], repetition_penalty=1.2)):
        plain, fast = (
            generate(llama, **BATCH | asked | more | d)
            for d in ({}, dict(assistant_model=draft_of(llama)))
        )
        assert torch.equal(torch.stack(plain.scores).argmax(-1).T, plain.sequences[:, 7:])
        assert torch.equal(plain.sequences, fast.sequences)
        torch.testing.assert_close(torch.stack(plain.scores), torch.stack(fast.scores))
    drawn = generate(
        llama, **BATCH | asked, do_sample=True, top_k=5, seed=1, assistant_early_exit=1
    )
    assert all((row.isfinite().sum(-1) == 5).all() for row in drawn.scores)
    assert drawn.logits is None
    searched = generate(llama, **BATCH | asked, penalty_alpha=0.6, top_k=4)
    assert len(searched.scores) == 12
    assert all(
        s.topk(4).indices.eq(t[:, None]).any(-1).all()
        for s, t in zip(searched.scores, searched.sequences[:, 7:].T)
    )


def test_arguments_that_differ_for_each_sequence(llama):
    def allowed(row, ids):
        return [row + 20, row + 30, row + 40]

    for more in (dict(num_beams=2), dict(num_beams=3, num_return_sequences=2)):
        call = BATCH | more | dict(prefix_allowed_tokens_fn=allowed)
        assert torch.equal(generate(llama, **call), llama.generate(**call, do_sample=False))
    drawn = generate(
        llama,
        **BATCH,
        prefix_allowed_tokens_fn=allowed,
        do_sample=True,
        num_return_sequences=2,
        seed=0,
    )[:, 7:]
    assert all(
        set(t.tolist()) <= {i // 2 + 20, i // 2 + 30, i // 2 + 40} for i, t in enumerate(drawn)
    )
    negative = torch.tensor([[PAD, 20, 21], [22, 23, 24], [PAD, PAD, 25]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 1]])
    call = dict(guidance_scale=1.8)
    ours = generate(
        llama, **BATCH | call, negative_prompt_ids=negative, negative_prompt_attention_mask=mask
    )
    for i in range(3):
        alone = llama.generate(
            IDS[i][MASK[i].bool()][None],
            do_sample=False,
            max_new_tokens=12,
            pad_token_id=PAD,
            negative_prompt_ids=negative[i][mask[i].bool()][None],
            **call,
        )
        assert ours[i, 7:].tolist() == alone[0, -12:].tolist()


def test_sampling_has_the_distribution_of_transformers(llama):
    "The first token of many texts, held against the law that transformers' own scores give."
    from decodelab.evaluate.certify import g_test

    call = dict(max_new_tokens=1, do_sample=True, temperature=1.4, top_p=0.95)
    scores = llama.generate(
        IDS[1:2], **call, return_dict_in_generate=True, output_scores=True
    ).scores[0][0]
    for more in ({}, dict(prompt_lookup_num_tokens=3), dict(assistant_early_exit=1)):
        drawn = torch.cat(
            [
                generate(llama, IDS[1:2], **call, **more, num_return_sequences=200, seed=200 * i)[
                    :, -1
                ]
                for i in range(5)
            ]
        )
        assert g_test(torch.bincount(drawn, minlength=64), scores.softmax(-1))[0] > 0.001


def test_the_default_top_k_acts_and_is_shown(llama):
    first = generate(
        llama,
        IDS[1:2],
        max_new_tokens=1,
        do_sample=True,
        temperature=50.0,
        num_return_sequences=600,
        seed=0,
    )[:, -1]
    free = generate(
        llama,
        IDS[1:2],
        max_new_tokens=1,
        do_sample=True,
        temperature=50.0,
        top_k=0,
        num_return_sequences=600,
        seed=0,
    )[:, -1]
    assert len(set(first.tolist())) <= 50 < len(set(free.tolist()))
    table = explain_config(llama, do_sample=True)
    assert table.loc['top_k', 'from'] == 'default'
    assert 'top_k=0' in table.loc['top_k', 'does']
    assert 'top_k' not in explain_config(llama).index


def test_watermarks_survive_drafts(llama):
    "transformers' SynthID is switched off by assisted decoding; guidance breaks."
    watermark = SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 2, 3, 4])
    for call in (dict(watermarking_config=watermark), dict(guidance_scale=1.6)):
        plain = generate(llama, **BATCH | call)
        for more in (
            dict(assistant_model=draft_of(llama)),
            dict(prompt_lookup_num_tokens=4),
            dict(assistant_early_exit=1),
        ):
            assert torch.equal(generate(llama, **BATCH | call | more), plain)
    assert not torch.equal(plain, generate(llama, **BATCH))


def test_our_rules_and_theirs_stand_in_one_list(llama):
    from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor

    both = LogitsProcessorList([SuppressTokensLogitsProcessor([20, 21, 22, 23])])
    assert torch.equal(
        generate(llama, **BATCH, logits_processor=both),
        llama.generate(**BATCH, do_sample=False, logits_processor=both),
    )
    assert generate(
        llama, **BATCH, do_sample=True, seed=1, logits_processor=[TopNSigma(0.1)]
    ).shape == (3, 19)


def test_recipes_from_a_folder(llama, tmp_path):
    (tmp_path / 'custom_generate').mkdir()
    (tmp_path / 'custom_generate' / 'generate.py').write_text(
        'import torch\ndef generate(model, input_ids, loud=1, **kwargs):\n    return '
        'torch.cat([input_ids, input_ids.new_full((len(input_ids), loud), 7)], 1)\n'
    )
    for name in ('custom_generate',):
        assert (
            generate(llama, input_ids=IDS, **{name: str(tmp_path)}, trust_remote_code=True, loud=2)[
                :, 7:
            ].tolist()
            == [[7, 7]] * 3
        )
        with pytest.raises(ValueError, match='trust_remote_code=True'):
            generate(llama, IDS, **{name: str(tmp_path)})
    from decodelab import PromptLookupDrafter, Speculative, as_custom_generate

    assert torch.equal(
        generate(
            llama, **BATCH, custom_generate=as_custom_generate(Speculative(PromptLookupDrafter()))
        ),
        generate(llama, **BATCH),
    )


# What is refused

WRONG = [
    (dict(banana=1), TypeError, 'banana'),
    (dict(max_new_tokens=0), ValueError, '1 or more'),
    (dict(max_new_tokens=-2), ValueError, '1 or more'),
    (dict(max_length=7, max_new_tokens=None), ValueError, 'raise it'),
    (dict(max_new_tokens=4, min_new_tokens=5, strict=True), ValueError, 'must have 5'),
    (dict(max_new_tokens=2.5), ValueError, 'integer'),
    (dict(max_new_tokens=251), ValueError, 'do not fit'),
    (dict(temperature=0.7, strict=True), ValueError, 'do_sample=True'),
    (dict(temperature=-1.0, do_sample=True), ValueError, 'temperature'),
    (dict(top_p=3.0, do_sample=True), ValueError, 'top_p'),
    (dict(num_beams=0), ValueError, 'num_beams'),
    (dict(num_beams=2, num_return_sequences=3), ValueError, 'num_return_sequences'),
    (dict(num_beams=4, num_beam_groups=3, diversity_penalty=1.0), ValueError, 'divides'),
    (dict(assistant_early_exit=3), ValueError, 'layer'),
    (dict(assistant_early_exit=40), ValueError, 'layer'),
    (dict(dola_layers=[40]), ValueError, 'layer'),
    (dict(stop_strings='x'), ValueError, 'give tokenizer'),
    (dict(assistant_model='pico'), TypeError, 'assistant_model'),
    (dict(streamer=object()), TypeError, 'put and end'),
    (dict(output_hidden_states=True, strict=True), ValueError, 'return_dict_in_generate=True'),
    (dict(decoder_input_ids=[[3]]), ValueError, 'encoder'),
    (dict(pixel_values=torch.ones(1)), TypeError, 'pixel_values'),
    (dict(input_ids=torch.zeros(1, 0, dtype=torch.long)), ValueError, 'empty'),
    (dict(input_ids='hello'), TypeError, 'is text'),
    (dict(input_ids=dict(input_ids=[[3]])), TypeError, 'give a tensor'),
    (dict(input_ids=[[64]]), ValueError, 'outside the vocabulary'),
    (dict(input_ids=None), ValueError, 'empty'),
    (dict(recipe='someone/something'), TypeError, 'knows no recipe'),
    (dict(custom_generate='nowhere'), ValueError, 'nowhere'),
    (dict(force_words_ids=[[5]], num_beams=3, eos_token_id=5), ValueError, 'end of text'),
    (dict(generation_config=3), TypeError, 'GenerationConfig'),
    (dict(input_ids=torch.full((1, 300), 5)), ValueError, 'do not fit'),
    (dict(input_ids=torch.full((1, 300), 5), max_new_tokens=None), ValueError, 'shorten it'),
    (
        dict(input_ids=torch.full((1, 300), 5), max_new_tokens=None, max_length=400),
        ValueError,
        'do not fit',
    ),
    (dict(input_ids=[[5, -1]]), ValueError, 'outside the vocabulary'),
    (dict(attention_mask=torch.zeros(1, 7), penalty_alpha=0.6, top_k=4), ValueError, 'is empty'),
    (dict(encoder_outputs=(torch.ones(1, 2, 32),)), TypeError, 'encoder_outputs'),
    (dict(temperature='hot', do_sample=True), ValueError, 'give a finite number'),
    (dict(tokenizer='pico', stop_strings='x'), TypeError, 'such as AutoTokenizer'),
    (dict(pad_token_id=[3]), ValueError, 'give an integer'),
    (dict(output_attentions=True, return_dict_in_generate=True), ValueError, 'eager'),
    (dict(num_return_sequences=0), ValueError, '1 or more'),
    (dict(min_new_tokens=-1), ValueError, '0 or more'),
    (dict(bad_words_ids=[]), ValueError, 'bad_words_ids'),
    (dict(guidance_scale=1.5, negative_prompt_ids=[3]), ValueError, 'negative_prompt_ids'),
]


@pytest.mark.parametrize('call,kind,words', WRONG, ids=lambda x: named(x)[:40])
def test_a_wrong_call_is_one_error_and_leaves_nothing_behind(llama, call, kind, words):
    before = llama.generation_config.to_dict(), llama.config.to_dict(), torch.random.get_rng_state()
    with pytest.raises(kind, match=words):
        generate(llama, **dict(input_ids=IDS[1:2], max_new_tokens=6) | call)
    assert (llama.generation_config.to_dict(), llama.config.to_dict()) == before[:2]
    assert torch.equal(torch.random.get_rng_state(), before[2])


def hooks(model):
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


@pytest.mark.filterwarnings('ignore:(?s).*cannot be honoured')
@pytest.mark.parametrize(
    'value', ['x', -1, 1.5, [], {}, [[]], object(), float('nan'), torch.ones(2, 2)], ids=named
)
def test_no_argument_fails_in_the_depths(llama, value):
    """Whatever is given under whatever name.

    An answer, or a TypeError or ValueError, and a model that is as it was.
    """
    from decodelab.hf.settings import CALL_NAMES, INPUTS, config_names

    before = (llama.generation_config.to_dict(), llama.config.to_dict())
    weights = [p.clone() for p in llama.parameters()]
    hung = hooks(
        llama
    )  # transformers' own forward hangs some up for good where it was asked for states
    for name in [*config_names(), *CALL_NAMES, *INPUTS, 'inputs_embeds']:
        try:
            generate(llama, **dict(input_ids=IDS[1:2], max_new_tokens=2) | {name: value})
        except (TypeError, ValueError) as error:
            assert str(error), name
    assert (llama.generation_config.to_dict(), llama.config.to_dict()) == before
    assert all(torch.equal(a, b) for a, b in zip(llama.parameters(), weights))
    assert hooks(llama) == hung


@pytest.mark.parametrize('call', [dict(dola_layers='high'), dict(guidance_scale=2.0)], ids=named)
def test_an_encoder_decoder_given_to_a_decoder_only_strategy(call):
    for kind in ('t5', 'bart'):
        with pytest.raises(ValueError):
            generate(seq2seq(kind), torch.tensor([[5, 6, 7]]), **call)


def test_a_model_that_gives_no_numbers(llama):
    for value in (float('nan'), float('inf')):
        broken = copy.deepcopy(llama)
        torch.nn.init.constant_(broken.lm_head.weight, value)
        for call in (
            {},
            dict(do_sample=True),
            dict(num_beams=2),
            dict(prompt_lookup_num_tokens=3),
            dict(penalty_alpha=0.6, top_k=4),
            dict(num_beams=2, do_sample=True),
            dict(num_beams=4, num_beam_groups=2, diversity_penalty=1.0),
            dict(assistant_model=draft_of(llama)),
            dict(assistant_early_exit=1),
            dict(dola_layers=[0]),
            dict(num_beams=3, force_words_ids=[[5]]),
        ):
            for batch in (
                dict(input_ids=IDS[1:2]),
                dict(input_ids=IDS, attention_mask=MASK, pad_token_id=PAD),
            ):
                with pytest.raises(
                    ValueError,
                    match='usable logits|every token|no continuation|by nan of the largest',
                ):
                    generate(broken, **batch, max_new_tokens=4, **call)
    for kind in ('t5', 'bart'):
        broken = seq2seq(kind)
        torch.nn.init.constant_(broken.get_output_embeddings().weight, float('nan'))
        for call in ({}, dict(do_sample=True), dict(num_beams=2), dict(prompt_lookup_num_tokens=3)):
            with pytest.raises(ValueError, match='usable logits|every token|no continuation'):
                generate(broken, torch.tensor([[5, 6, 7]]), max_new_tokens=4, **call)


def test_mismatched_and_missing_tokenizers(llama):
    pico, alt = load('pico', device='cpu'), load('pico-alt', device='cpu')
    ids = torch.tensor([[5, 6, 7]])
    for call, words in [
        (dict(assistant_model=alt.model), 'assistant_tokenizer'),
        (dict(assistant_model=alt.model, assistant_tokenizer=alt.tokenizer), 'give tokenizer'),
        (dict(assistant_tokenizer=alt.tokenizer, strict=True), 'no assistant_model'),
        (dict(assistant_model=alt.model, tokenizer=pico.tokenizer), 'assistant_tokenizer'),
    ]:
        with pytest.raises(ValueError, match=words):
            generate(pico.model, ids, **call)


def test_training_mode_matters_where_there_is_dropout(llama):
    "Without dropout the mode changes nothing; with it passes are random, as in transformers."
    training = copy.deepcopy(llama).train()
    for more in ({}, dict(num_beams=3), dict(assistant_early_exit=1)):
        assert torch.equal(generate(training, **BATCH | more), generate(llama, **BATCH | more))
    training.config.attention_dropout = 0.3
    for layer in training.model.layers:
        layer.self_attn.attention_dropout = 0.3
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        with pytest.warns(UserWarning, match='in training mode'):
            draws.append(generate(training, **BATCH))
    torch.manual_seed(1)
    theirs = training.generate(**BATCH, do_sample=False)
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[2], theirs)
    assert not torch.equal(draws[0], draws[2])
    with pytest.warns(UserWarning), pytest.raises(ValueError, match='model.eval'):
        generate(training, IDS[1:2], assistant_early_exit=1)
    assert training.training


# The strategies that transformers 5 has no more: the arguments of the recorded calls


def recorded(every=4):
    from tests.strategies.test_search_golden import STRATEGIES, works

    return [case for s in STRATEGIES for case in works(s)[::every]]


@pytest.mark.parametrize('case', recorded())
def test_the_arguments_of_removed_strategies(case):
    "As the strategies themselves say it, which are held against the originals' texts in test_search_golden."
    from tests.strategies.test_search_golden import constraints, lm_of, tokens_of

    args = {k: v for k, v in case['args'].items() if k != 'low_memory'}
    prompts = case['prompts']
    if case['strategy'] == 'constrained':
        args |= dict(
            force_words_ids=None, constraints=constraints(args), num_beams=args['num_beams']
        )
    lm, width = lm_of(case['model']), max(map(len, prompts))
    behind = lm.decoder_start_ids  # an encoder's padding stands behind the text
    pad = lambda x, fill: x + [fill] * (width - len(x)) if behind else [fill] * (width - len(x)) + x
    ids = torch.tensor([pad(p, 0) for p in prompts])
    mask = torch.tensor([pad([1] * len(p), 0) for p in prompts])
    mended = case['strategy'] != 'dola'  # the door has the original's divergence
    want = tokens_of(case, mended)[0]
    begin = (
        [list(lm.decoder_start_ids)] * len(want)
        if lm.decoder_start_ids
        else [row for row in ids.tolist() for _ in range(len(want) // len(prompts))]
    )
    longest = max(map(len, want))
    before = lm.model.generation_config.to_dict()
    assert generate(lm, ids, attention_mask=mask, **args).tolist() == [
        b + t + [args['pad_token_id']] * (longest - len(t)) for b, t in zip(begin, want)
    ]
    assert lm.model.generation_config.to_dict() == before
