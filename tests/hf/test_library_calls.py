"""Calls of `generate` from the READMEs and sources of TRL, PEFT, lm-eval, smolagents, from model cards and documentation.

Each is made with tiny models: greedy calls and searches give transformers' ids and fields, samples its scores at the
first step, and its ids with `seed_like`.
"""

import copy
import functools
import threading
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from decodelab import generate, load
from decodelab.evaluate.certify import random_lm
from tests.hf.test_encoder_decoders import made
from tests.hf.test_generate_caches_and_draws import at_random
from tests.hf.test_prepared_inputs import inputs as picture_inputs
from tests.hf.test_prepared_inputs import llava, qwen

logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings('ignore')
PAD, END = 0, 2
STOPS = 20, 30, 40, 50  # ids at which a caller's criteria end a sequence
ROWS = torch.tensor([[PAD, PAD, 5, 6, 7, 5], [8, 9, 10, 11, 12, 13]])
TEXT = dict(input_ids=ROWS[1:], attention_mask=torch.ones(1, 6).long())
BATCH = dict(input_ids=ROWS, attention_mask=(ROWS != PAD).long())
PROMPT = dict(input_ids=ROWS[1:])
INPUTS = dict(inputs=ROWS[1:])  # by the name of `generate`'s first argument
SOURCE = dict(input_ids=torch.tensor([[5, 6, 7, 8, 9]]), attention_mask=torch.ones(1, 5).long())
SOURCE_IDS = dict(input_ids=SOURCE['input_ids'])
SOURCES = dict(
    input_ids=torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 1, 1]]),
    attention_mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
)


@functools.cache
def model_of(kind: str):
    "A tiny random model of a kind, in float64."
    if kind in ('t5', 'bart', 'marian', 'mbart', 'pegasus'):
        return made(kind)
    if kind in ('llava', 'qwen'):
        return dict(llava=llava, qwen=qwen)[kind]()
    if kind == 'whisper':
        return load('pico-whisper', device='cpu', dtype=torch.float64).model
    if kind == 'caption':
        return captioner()
    model = random_lm(kind, 3, layers=2, scale=0.3).model
    model.generation_config.update(pad_token_id=PAD, eos_token_id=END)
    return model


def captioner():
    "A model of pictures and a decoder, as TrOCR and Donut."
    eye = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
    )
    words = transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(eye, words)
    config.decoder_start_token_id = 1
    config.pad_token_id = PAD
    model = at_random(transformers.VisionEncoderDecoderModel, config)
    model.generation_config.update(decoder_start_token_id=1, pad_token_id=PAD, eos_token_id=END)
    return model


@dataclass
class Call:
    "A call: where it comes from, the kind of model, its inputs and its other arguments."

    source: str
    kind: str
    inputs: dict
    arguments: dict = field(default_factory=dict)
    own: dict = field(default_factory=dict)  # the model's own generation configuration

    def model(self):
        model = model_of(self.kind)
        if not self.own:
            return model
        model = copy.copy(model)
        model.generation_config = copy.deepcopy(model.generation_config)
        model.generation_config.update(**self.own)
        return model

    @property
    def samples(self):
        config = self.arguments.get('generation_config')
        sources = (self.arguments, vars(config) if config else {}, self.own)
        return next((s['do_sample'] for s in sources if s.get('do_sample') is not None), False)


class StopOnEnds(StoppingCriteria):
    "StableLM's card: stop when row 0 ends with one of some ids; one truth value for the batch."

    def __call__(self, input_ids, scores, **kwargs):
        return any(input_ids[0][-1] == i for i in STOPS)


class LmEvalStop(StoppingCriteria):
    "lm-eval's MultiTokenEOSCriteria: it remembers which rows have had their stop sequence."

    def __init__(self):
        self.done = None

    def __call__(self, input_ids, scores, **kwargs):
        self.done = self.done or [False] * len(input_ids)
        for i, row in enumerate(input_ids[:, 6:].tolist()):
            self.done[i] = self.done[i] or bool({*row[-3:]} & {*STOPS})
        return False not in self.done


class SmolStop(StoppingCriteria):
    "smolagents' StopOnStrings: a stream of the text of row 0."

    def __init__(self):
        self.stream = ''

    def __call__(self, input_ids, scores, **kwargs):
        self.stream += f'<{input_ids[0][-1]}>'
        return any(self.stream.endswith(f'<{i}>') for i in STOPS)


class RepetitionStop(StoppingCriteria):
    "Nougat's: the variance of the largest scores, which it needs at each step."

    def __init__(self):
        self.largest = []

    def __call__(self, input_ids, scores, **kwargs):
        last = scores[-1] if isinstance(scores, tuple) else scores
        self.largest.append(last.max(1).values.float())
        return torch.full((len(input_ids),), len(self.largest) > 4)


class Bias(LogitsProcessor):
    "A processor of a library of grammars: one state a row, found by its number."

    def __init__(self):
        self.states = {}

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for i in range(len(scores)):
            state = self.states[i] = self.states.get(i, i) + 1
            scores[i, state % 60] += 5
        return scores


def only(ids):
    return lambda row, sequence: ids


DICT = dict(return_dict_in_generate=True)
SCORES = DICT | dict(output_scores=True)
QWEN = dict(do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)
LLAMA2 = dict(do_sample=True, temperature=0.6, top_p=0.9)
GRPO = dict(
    max_new_tokens=8,
    do_sample=True,
    pad_token_id=PAD,
    bos_token_id=1,
    eos_token_id=[END, 3],
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=None,
    repetition_penalty=1.0,
    cache_implementation=None,
)
BART = dict(num_beams=4, length_penalty=2.0, early_stopping=True, no_repeat_ngram_size=3)
PICTURE = dict(pixel_values=torch.ones(1, 3, 8, 8, dtype=torch.float64))
STOP = lambda kind: dict(stopping_criteria=lambda: StoppingCriteriaList([kind()]))
LM_EVAL = dict(max_length=14, pad_token_id=PAD, use_cache=True, do_sample=False, **STOP(LmEvalStop))

MODEL_CARDS = [
    Call('gpt2', 'gpt2', TEXT, dict(max_length=12, num_return_sequences=5, do_sample=True)),
    Call('openai-community/gpt2-large', 'gpt2', TEXT, dict(max_new_tokens=8)),
    Call('DialoGPT', 'gpt2', PROMPT, dict(max_length=20, pad_token_id=END)),
    Call(
        'DialoGPT-large',
        'gpt2',
        PROMPT,
        dict(
            max_length=20,
            pad_token_id=END,
            no_repeat_ngram_size=3,
            do_sample=True,
            top_k=100,
            top_p=0.7,
            temperature=0.8,
        ),
    ),
    Call('CTRL', 'gpt2', TEXT, dict(max_length=12, repetition_penalty=1.2)),
    Call(
        'GPT-J',
        'gpt2',
        PROMPT,
        dict(do_sample=True, temperature=0.9, max_length=14),
    ),
    Call(
        'Cerebras-GPT',
        'gpt2',
        TEXT,
        dict(num_beams=5, max_new_tokens=8, early_stopping=True, no_repeat_ngram_size=2),
    ),
    Call('OPT', 'opt', TEXT, dict(do_sample=True, num_return_sequences=5, max_length=10)),
    Call('OPT-30b', 'opt', PROMPT),
    Call('GPT-NeoX', 'gpt_neox', TEXT, dict(do_sample=True, temperature=0.9, max_length=12)),
    Call('Pythia', 'gpt_neox', TEXT),
    Call('Dolly', 'gpt_neox', TEXT, dict(do_sample=True, max_new_tokens=8, top_p=0.92, top_k=0)),
    Call(
        'RedPajama',
        'gpt_neox',
        TEXT,
        DICT | dict(max_new_tokens=8, do_sample=True, temperature=0.7, top_p=0.7, top_k=50),
    ),
    Call(
        'OpenAssistant',
        'gpt_neox',
        TEXT,
        dict(max_new_tokens=8, do_sample=True, typical_p=0.2, temperature=0.6),
    ),
    Call(
        'StableLM',
        'gpt_neox',
        TEXT,
        dict(max_new_tokens=8, temperature=0.7, do_sample=True, **STOP(StopOnEnds)),
    ),
    Call('StableLM, greedy', 'gpt_neox', BATCH, dict(max_new_tokens=8, **STOP(StopOnEnds))),
    Call('Llama 2', 'llama', PROMPT, dict(max_length=14), LLAMA2),
    Call(
        'Llama 2, greedy by the call',
        'llama',
        TEXT,
        dict(max_new_tokens=8, do_sample=False),
        LLAMA2,
    ),
    Call(
        'Llama 3',
        'llama',
        PROMPT,
        LLAMA2 | dict(max_new_tokens=8, eos_token_id=[END, 9]),
    ),
    Call(
        'Llama 3.1, a batch',
        'llama',
        BATCH,
        dict(max_new_tokens=8),
        LLAMA2 | dict(eos_token_id=[END, 8, 9]),
    ),
    Call(
        'Code Llama',
        'llama',
        TEXT,
        dict(
            max_new_tokens=8,
            do_sample=True,
            top_k=10,
            temperature=0.1,
            top_p=0.95,
            num_return_sequences=1,
            eos_token_id=END,
        ),
    ),
    Call(
        'Vicuna',
        'llama',
        TEXT,
        dict(do_sample=True, temperature=0.7, repetition_penalty=1.0, max_new_tokens=8),
    ),
    Call(
        'Alpaca-LoRA',
        'llama',
        PROMPT,
        SCORES
        | dict(
            generation_config=GenerationConfig(temperature=0.1, top_p=0.75, top_k=40, num_beams=4),
            max_new_tokens=8,
        ),
    ),
    Call(
        'OpenHermes',
        'llama',
        PROMPT,
        dict(
            max_new_tokens=8,
            temperature=0.8,
            repetition_penalty=1.1,
            do_sample=True,
            eos_token_id=END,
        ),
    ),
    Call(
        'TinyLlama',
        'llama',
        TEXT,
        dict(max_new_tokens=8, do_sample=True, temperature=0.7, top_k=50, top_p=0.95),
    ),
    Call(
        'SmolLM2',
        'llama',
        INPUTS,
        dict(max_new_tokens=8, temperature=0.2, top_p=0.9, do_sample=True),
    ),
    Call('Yi', 'llama', PROMPT, dict(eos_token_id=END)),
    Call(
        'DeepSeek-Coder',
        'llama',
        INPUTS,
        dict(
            max_new_tokens=8,
            do_sample=False,
            top_k=50,
            top_p=0.95,
            num_return_sequences=1,
            eos_token_id=END,
        ),
    ),
    Call('Granite', 'llama', TEXT, dict(max_new_tokens=8)),
    Call('OLMo', 'llama', TEXT, dict(max_new_tokens=8, do_sample=True, top_k=50, top_p=0.95)),
    Call(
        'Falcon',
        'llama',
        TEXT,
        dict(max_length=14, do_sample=True, top_k=10, num_return_sequences=1, eos_token_id=END),
    ),
    Call('Phi-2', 'llama', PROMPT, dict(max_length=14)),
    Call('Phi-3', 'llama', TEXT, dict(max_new_tokens=8, temperature=0.0, do_sample=False)),
    Call('Gemma', 'llama', TEXT, dict(max_new_tokens=8)),
    Call('Gemma 2', 'llama', TEXT, dict(max_new_tokens=8, cache_implementation='static')),
    Call('Gemma 3', 'llama', INPUTS, dict(max_new_tokens=8, do_sample=False)),
    Call('Mistral', 'mistral', INPUTS, dict(max_new_tokens=8, do_sample=True)),
    Call('Mixtral', 'mistral', TEXT, dict(max_new_tokens=8)),
    Call(
        'Zephyr',
        'mistral',
        TEXT,
        dict(max_new_tokens=8, do_sample=True, temperature=0.7, top_k=50, top_p=0.95),
    ),
    Call('Qwen 1.5', 'llama', INPUTS, dict(max_new_tokens=8)),
    Call('Qwen 2.5', 'llama', TEXT, dict(max_new_tokens=8), QWEN),
    Call(
        'Qwen 2.5, a batch',
        'llama',
        BATCH,
        dict(max_new_tokens=8),
        QWEN | dict(repetition_penalty=1.0),
    ),
    Call('Qwen 3', 'qwen3', TEXT, dict(max_new_tokens=8), QWEN | dict(top_p=0.95, min_p=0.0)),
    Call(
        'Qwen 3, greedy by the call',
        'qwen3',
        TEXT,
        dict(max_new_tokens=8, do_sample=False, temperature=None, top_p=None, top_k=None),
        QWEN,
    ),
    Call('T5', 't5', SOURCE_IDS),
    Call('Flan-T5', 't5', dict(inputs=SOURCE['input_ids']), dict(max_length=12)),
    Call('T5, summaries', 't5', SOURCE, BART | dict(min_length=4, max_length=12)),
    Call(
        'mT5 (XLSum)',
        't5',
        dict(input_ids=SOURCES['input_ids']),
        dict(max_length=12, no_repeat_ngram_size=2, num_beams=4),
    ),
    Call('CodeT5', 't5', SOURCE_IDS, dict(max_length=8)),
    Call(
        'BART',
        'bart',
        SOURCE_IDS,
        dict(num_beams=4, min_length=0, max_length=10),
    ),
    Call('BART-CNN', 'bart', SOURCES, dict(max_length=14, min_length=6, do_sample=False), BART),
    Call('BART, masks', 'bart', SOURCE_IDS, dict(forced_bos_token_id=0)),
    Call('Pegasus', 'pegasus', SOURCES, dict(max_new_tokens=8)),
    Call(
        'Pegasus, paraphrases',
        'pegasus',
        SOURCE,
        dict(max_length=10, num_beams=10, num_return_sequences=10, temperature=1.5),
    ),
    Call(
        'Opus-MT', 'marian', SOURCES, dict(max_new_tokens=8), dict(num_beams=4, bad_words_ids=[[1]])
    ),
    Call('mBART-50', 'mbart', SOURCE, dict(forced_bos_token_id=9, max_new_tokens=8)),
    Call('NLLB', 'mbart', SOURCES, dict(forced_bos_token_id=9, max_length=12)),
    Call('M2M-100', 'mbart', SOURCE, dict(forced_bos_token_id=9, num_beams=5, max_length=12)),
    Call('TrOCR', 'caption', PICTURE),
    Call('ViT-GPT2', 'caption', PICTURE, dict(max_length=16, num_beams=4)),
    Call(
        'Donut',
        'caption',
        PICTURE,
        DICT
        | dict(
            decoder_input_ids=torch.tensor([[1, 5]]),
            max_length=12,
            pad_token_id=PAD,
            eos_token_id=END,
            use_cache=True,
            bad_words_ids=[[3]],
        ),
    ),
    Call(
        'Nougat',
        'caption',
        PICTURE,
        SCORES | dict(min_length=1, max_length=12, bad_words_ids=[[3]], **STOP(RepetitionStop)),
    ),
    Call('LLaVA', 'llava', picture_inputs('llava', 1), dict(max_new_tokens=6, do_sample=False)),
    Call('LLaVA, a batch', 'llava', picture_inputs('llava'), dict(max_new_tokens=6)),
    Call('Qwen2-VL', 'qwen', picture_inputs('qwen', 1), dict(max_new_tokens=6)),
    Call(
        'Qwen2-VL, a batch', 'qwen', picture_inputs('qwen'), dict(max_new_tokens=6, use_cache=True)
    ),
]
LIBRARIES = [
    Call(
        'TRL: GRPO and RLOO',
        'llama',
        BATCH,
        dict(generation_config=GenerationConfig(**GRPO, disable_compile=True)),
    ),
    Call(
        'TRL: GRPO, static cache',
        'llama',
        BATCH,
        dict(
            generation_config=GenerationConfig(
                **GRPO | dict(cache_implementation='static'), disable_compile=True
            )
        ),
    ),
    Call(
        'TRL: online DPO',
        'llama',
        BATCH,
        dict(
            generation_config=GenerationConfig(
                max_new_tokens=8,
                temperature=0.9,
                top_k=50,
                top_p=1.0,
                do_sample=True,
                use_cache=True,
            )
        ),
    ),
    Call(
        'TRL: distillation',
        'llama',
        BATCH,
        DICT
        | dict(
            generation_config=GenerationConfig(
                max_new_tokens=8,
                temperature=0.9,
                do_sample=True,
                top_k=0,
                use_cache=False,
                pad_token_id=PAD,
                eos_token_id=END,
            )
        ),
    ),
    Call(
        'TRL: PPO rollouts',
        'llama',
        BATCH,
        SCORES
        | dict(
            generation_config=GenerationConfig(
                max_new_tokens=8, temperature=0.7 + 1e-7, top_k=0, top_p=1.0, do_sample=True
            )
        ),
    ),
    Call(
        'TRL: logged completions',
        'llama',
        BATCH,
        dict(generation_config=GenerationConfig(max_new_tokens=8)),
    ),
    Call(
        'TRL: no generation config', 'llama', BATCH, dict(generation_config=None, max_new_tokens=8)
    ),
    Call(
        'lm-eval: generate_until',
        'llama',
        BATCH,
        LM_EVAL,
    ),
    Call(
        'lm-eval: without a mask',
        'llama',
        dict(input_ids=ROWS),
        LM_EVAL,
    ),
    Call(
        'lm-eval: sampled',
        'llama',
        PROMPT,
        LM_EVAL | dict(do_sample=True, temperature=0.8, top_p=0.95),
    ),
    Call(
        'lm-eval: an encoder–decoder',
        't5',
        SOURCES,
        LM_EVAL | dict(max_length=10, pad_token_id=1),
    ),
    Call(
        'smolagents: chat',
        'llama',
        INPUTS,
        dict(use_cache=True, max_new_tokens=8, stopping_criteria=None),
    ),
    Call(
        'smolagents: stop sequences',
        'llama',
        INPUTS,
        dict(use_cache=True, max_new_tokens=8, **STOP(SmolStop)),
    ),
    Call(
        'grammars: one state a row',
        'llama',
        BATCH,
        dict(max_new_tokens=8, logits_processor=lambda: [Bias()]),
    ),
    Call(
        'grammars: beams',
        'llama',
        BATCH,
        dict(max_new_tokens=8, num_beams=2, logits_processor=lambda: [Bias()]),
    ),
    Call(
        'lm-format-enforcer',
        'llama',
        BATCH,
        dict(max_new_tokens=8, prefix_allowed_tokens_fn=only([7, 8, 9, 20])),
    ),
    Call(
        'sentence completion with scores',
        'llama',
        BATCH,
        SCORES | dict(max_new_tokens=8, output_logits=True),
    ),
    Call(
        'interpretability: states',
        'llama',
        BATCH,
        DICT | dict(max_new_tokens=4, output_hidden_states=True),
    ),
    Call('docs: padding side', 'llama', BATCH, dict(max_new_tokens=8)),
    Call(
        'docs: contrast of configs',
        'llama',
        TEXT,
        dict(max_new_tokens=8, num_beams=4, do_sample=True),
    ),
    Call('docs: chunked prefill', 'llama', TEXT, dict(max_new_tokens=8, prefill_chunk_size=2)),
    Call(
        'docs: offloaded cache',
        'llama',
        TEXT,
        dict(max_new_tokens=8, cache_implementation='dynamic'),
    ),
    Call('docs: no cache', 'llama', BATCH, dict(max_new_tokens=8, use_cache=False)),
    Call('docs: prompt lookup', 'llama', TEXT, dict(max_new_tokens=8, prompt_lookup_num_tokens=3)),
    Call(
        'docs: assistant', 'llama', TEXT, dict(max_new_tokens=8, assistant_model=model_of('llama'))
    ),
    Call(
        'docs: watermark',
        'llama',
        TEXT,
        dict(
            max_new_tokens=8,
            watermarking_config=transformers.WatermarkingConfig(
                bias=2.5, seeding_scheme='selfhash'
            ),
        ),
    ),
    Call('docs: guidance', 'llama', TEXT, dict(max_new_tokens=8, guidance_scale=1.5)),
    Call(
        'docs: sequence bias',
        'llama',
        BATCH,
        dict(max_new_tokens=8, sequence_bias=[[[9], -10.0], [[7], 3.0]]),
    ),
    Call(
        'docs: minimum length',
        'llama',
        BATCH,
        dict(max_new_tokens=8, min_new_tokens=4, eos_token_id=[END, 20, 30]),
    ),
    Call(
        'docs: labels and logits_to_keep', 'llama', BATCH, dict(max_new_tokens=8, logits_to_keep=1)
    ),
    Call(
        'docs: embeddings',
        'llama',
        dict(inputs_embeds=torch.ones(1, 4, 32, dtype=torch.float64)),
        dict(max_new_tokens=8),
    ),
]
CALLS = MODEL_CARDS + LIBRARIES


def prepared(call, **more):
    "The arguments of one run, with new objects where they have a state."
    result = call.inputs | call.arguments | more
    for name in ('stopping_criteria', 'logits_processor'):
        if callable(result.get(name)):
            result[name] = result[name]()
    return result


def check_fields(ours, theirs):
    "The fields that both have are equal."
    assert type(ours) is type(theirs)
    assert torch.equal(ours.sequences, theirs.sequences)
    for name in ('scores', 'logits'):
        a, b = ours.get(name), theirs.get(name)
        assert (a is None) == (b is None), name
        for x, y in zip(a or (), b or (), strict=True):
            assert torch.allclose(x.double(), y.double(), atol=1e-4), name
    a, b = ours.get('hidden_states') or (), theirs.get('hidden_states') or ()
    for x, y in zip(a, b, strict=True):
        assert torch.allclose(x[-1], y[-1])
    assert (ours.get('past_key_values') is None) == (theirs.get('past_key_values') is None)


@pytest.mark.parametrize('call', CALLS, ids=lambda call: call.source)
def test_a_call_of_a_library(call):
    model = call.model()
    if not call.samples:
        ours, theirs = generate(model, **prepared(call)), model.generate(**prepared(call))
        if torch.is_tensor(theirs):
            assert torch.equal(ours, theirs)
        else:
            check_fields(ours, theirs)
        return
    ours = generate(model, **prepared(call, **SCORES), seed=3)
    theirs = model.generate(**prepared(call, **SCORES))
    assert ours.sequences.shape[0] == theirs.sequences.shape[0]
    assert ours.sequences.shape[1] <= call.inputs.get('input_ids', ROWS).shape[1] + 20
    assert torch.allclose(ours.scores[0].double(), theirs.scores[0].double(), atol=1e-4)
    if len(ours.sequences) == 1:
        torch.manual_seed(3)
        theirs = model.generate(**prepared(call))
        ours = generate(model, **prepared(call), seed=3, seed_like='transformers')
        same = [x if torch.is_tensor(x) else x.sequences for x in (ours, theirs)]
        assert torch.equal(*same)


def test_there_are_a_hundred_calls():
    assert len({call.source for call in CALLS}) == len(CALLS)
    assert len(CALLS) + 3 >= 100


def test_an_agents_stream_in_a_thread():
    "smolagents' generate_stream: the model in a thread, the reader beside it."
    lm = load('pico', device='cpu')
    prompt = lm.tokenizer('def add(a, b):', return_tensors='pt')
    texts = []
    for decode in (generate, type(lm.model).generate):
        streamer = transformers.TextIteratorStreamer(lm.tokenizer, skip_prompt=True)
        call = dict(inputs=prompt['input_ids'], max_new_tokens=12, streamer=streamer)
        call |= dict(do_sample=False, use_cache=True, stopping_criteria=None)
        thread = threading.Thread(target=decode, args=(lm.model,), kwargs=call)
        thread.start()
        texts.append(''.join(streamer))
        thread.join()
    assert texts[0] == texts[1]
    assert texts[0]


def test_adapters_of_peft():
    "PEFT's README and several adapters; rows of a batch that name theirs are refused."
    peft = pytest.importorskip('peft')
    base = copy.deepcopy(model_of('llama'))
    options = dict(r=4, lora_alpha=16, task_type='CAUSAL_LM', init_lora_weights=False)
    torch.manual_seed(0)
    model = peft.get_peft_model(base, peft.LoraConfig(**options), adapter_name='first')
    model.add_adapter('second', peft.LoraConfig(**options))
    model = model.double().eval()
    call = dict(max_new_tokens=8, **BATCH)
    results = []
    for name in ('first', 'second'):
        model.set_adapter(name)
        results.append(generate(model, **call))
        assert torch.equal(results[-1], model.generate(**call))
    assert not torch.equal(*results)
    with model.disable_adapter():
        assert torch.equal(generate(model, **call), model_of('llama').generate(**call))
    with pytest.raises(ValueError, match='knows no adapter_names'):  # in the table of refusals
        generate(model, **call, adapter_names=['first', 'second'])


def test_speech():
    "Whisper's card."
    from decodelab.models.audio import audio_features
    from decodelab.zoo.signals import sample

    lm = load('pico-whisper', device='cpu', dtype=torch.float64)
    sounds = [audio_features(lm, sample(i, 3, test=True).wave)['input_features'] for i in range(2)]
    for features in (sounds[0], torch.cat(sounds)):
        call = dict(input_features=features, max_new_tokens=12)
        assert torch.equal(generate(lm.model, **call), lm.model.generate(**call))
