"""The code blocks of transformers' guides on generation run with decodelab's `generate` and `pipeline`.

The blocks are read from the guides, where a folder `shared` with them lies beside the checkout; small local models stand in for the checkpoints they name.
"""

import copy
import re
import warnings

import pytest
import torch
import transformers
from repo import ROOT
from transformers import T5Config, T5ForConditionalGeneration

import decodelab
from decodelab import load
from decodelab.evaluate.certify import random_lm
from decodelab.models.session import EMBEDDED

GUIDES = ROOT.parent / 'shared' / 'guides'
pytestmark = pytest.mark.skipif(
    not GUIDES.is_dir(), reason='no folder shared/guides beside the checkout'
)
CALL = re.compile(r'\b(\w+)\.generate\(')
PIPE = 'from transformers import pipeline\n'
HERE_ONLY = (
    'penalty_alpha',
    'dola_layers',
    'num_beam_groups',
    'custom_generate',
)  # what the installed transformers does not have


def code(block):
    "The code of a block; of a session with prompts, without what it prints."
    if '>>>' not in block:
        return block
    return '\n'.join(line[4:] for line in block.splitlines() if line.startswith(('>>> ', '... ')))


def blocks(asked=CALL.search):
    "`(guide and number, code, all code blocks of the guide)` of each block that calls `generate`, or of which something else is true."
    for path in sorted(GUIDES.glob('*.md')) if GUIDES.is_dir() else ():
        results = [
            code(b)
            for b in re.findall(
                r'^```(?:py|python)\n(.*?)^```', path.read_text(), flags=re.S | re.M
            )
        ]
        for i, block in enumerate(results):
            if asked(block):
                yield pytest.param(block, results, id=f'{path.stem}-{i}')


@pytest.fixture(scope='module')
def models():
    "What stands in for the checkpoints, by a part of their names."
    pico, draft, alt = (
        load(name, device='cpu', dtype=torch.float64) for name in ('pico', 'pico-draft', 'pico-alt')
    )
    size = pico.vocab_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        t5 = (
            T5ForConditionalGeneration(
                T5Config(
                    vocab_size=size,
                    d_model=32,
                    d_kv=8,
                    d_ff=48,
                    num_layers=2,
                    num_heads=4,
                    pad_token_id=1,
                    eos_token_id=0,
                    decoder_start_token_id=0,
                    initializer_factor=2.0,
                )
            )
            .double()
            .eval()
        )
    deep, shallow = (
        random_lm('llama', 1, vocab_size=size, layers=n, scale=0.2, tokenizer=pico.tokenizer).model
        for n in (32, 2)
    )
    gpt2 = copy.deepcopy(pico.model)
    gpt2.config.bos_token_id = (
        2  # the padding is not the begin of a text, which transformers' detector takes away
    )
    return {
        '135M': (shallow, pico),
        'SmolLM': (deep, pico),
        'huggyllama': (deep, pico),
        'pythia-160m': (draft.model, pico),
        'vicuna': (alt.model, alt),
        'gpt2': (gpt2, pico),
        't5': (t5, pico),
        'pegasus': (t5, pico),
        '': (pico.model, pico),
    }


class Stand:
    "In the place of an Auto class: a copy of what stands in for a checkpoint."

    def __init__(self, models, which):
        self.models, self.which = models, which

    def from_pretrained(self, name, **options):
        result = next(pair for part, pair in self.models.items() if part in name)
        return (
            copy.deepcopy(result[0])
            if self.which == 'model'
            else copy.deepcopy(result[1].tokenizer)
        )


def compared(calls):
    "`decodelab.generate` that holds its answer against transformers' own, where that can give one."

    def generate(model, **arguments):
        calls.append(arguments)
        config = copy.deepcopy(model.generation_config)
        ours = decodelab.generate(model, **arguments)
        assert model.generation_config == config
        width = 1 if model.config.is_encoder_decoder else arguments['input_ids'].shape[1]
        assert ours.shape[1] > width
        assert (
            model.config.is_encoder_decoder
            or torch.equal(ours[:, :width], arguments['input_ids'])
            or 'left_padding' in arguments
        )
        if arguments.get('do_sample') or any(name in arguments for name in HERE_ONLY):
            return ours
        theirs = model.generate(**{k: v for k, v in arguments.items() if k != 'streamer'})
        assert torch.equal(ours, theirs)
        return ours

    return generate


@pytest.fixture
def local(models, monkeypatch):
    for name in ('AutoModelForCausalLM', 'AutoModelForSeq2SeqLM'):
        monkeypatch.setattr(f'transformers.{name}', Stand(models, 'model'))
    monkeypatch.setattr('transformers.AutoTokenizer', Stand(models, 'tokenizer'))
    transformers.logging.set_verbosity_error()
    return models


def recipe_of(guide):
    "The custom decoding method that a guide writes."
    source = next((b for b in guide if b.startswith('import torch\n\ndef generate(model')), None)
    space = {}
    if source:
        exec(source, space)
    return space.get('generate')


@pytest.mark.parametrize('block,guide', list(blocks()))
def test_blocks_of_the_guides_run(block, guide, local, tmp_path, capsys):
    calls = []
    pico = local[''][1]
    space = dict(
        compared=compared(calls),
        my_model=pico.model,
        inputs=pico.tokenizer('Once', return_tensors='pt'),
        model=pico.model,
        tokenizer=pico.tokenizer,
        the_guides_own=recipe_of(guide),
    )
    source = (
        CALL.sub(r'compared(\1, ', block)
        .replace('"cuda"', '"cpu"')
        .replace('"/tmp"', repr(str(tmp_path)))
    )
    source = re.sub(
        r'recipe="[^"]*"', 'custom_generate=the_guides_own', source
    )  # a repository that is not here; the guide shows what it holds
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        exec(compile(source, 'guide', 'exec'), space)
    assert len(calls) == len(CALL.findall(block))


def test_the_guides_have_not_lost_their_blocks():
    assert len(list(blocks())) >= 30


def pipes(block):
    return PIPE in block and not CALL.search(block)


def compared_pipeline(texts):
    "`decodelab.pipeline` whose answers are held against transformers' own, assistant and all."

    def pipeline(task, **options):
        ours = decodelab.pipeline(task, **options)
        theirs = transformers.pipeline(task, **options)

        def call(text, **arguments):
            result = ours(text, **arguments)
            assert result == theirs(text, **arguments)
            assert len(ours.traces) == 1
            assert any(step.drafted for step in ours.traces[0].steps) == (
                'assistant_model' in options
            )
            texts.append(result)
            return result

        return call

    return pipeline


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('block,guide', list(blocks(pipes)))
def test_blocks_that_make_a_pipeline_run(block, guide):
    transformers.logging.set_verbosity_error()
    source = (
        block.replace(PIPE, '')
        .replace('meta-llama/Llama-3.1-8B', str(EMBEDDED / 'pico'))
        .replace('meta-llama/Llama-3.2-1B', str(EMBEDDED / 'pico-draft'))
    )
    source = re.sub(r'dtype=(torch\.bfloat16|"auto")', 'dtype=torch.float64', source)
    texts = []  # so that no rounding decides
    exec(compile(source, 'guide', 'exec'), dict(pipeline=compared_pipeline(texts)))
    assert len(texts) == 1
    assert len(texts[0][0]['generated_text']) > 40


def test_the_guides_have_not_lost_their_pipelines():
    assert len(list(blocks(pipes))) >= 4
