"Wrong calls of public functions raise one sentence that names the right call."

import numpy as np
import pytest
import torch

from decodelab import (
    AssistantDrafter,
    DoLa,
    DraftTable,
    FixedLookahead,
    Greedy,
    GreenList,
    Sample,
    Speculative,
    Temperature,
    TopP,
    as_custom_generate,
    decode,
    decode_batch,
    detect,
    generate,
    load,
    load_heads,
    load_strategy,
    pipeline,
    stream,
    tune_lookahead,
)
from tests.refusals import error_message

PROMPT = 'def is_even(n):\n'


@pytest.fixture(scope='module')
def lm():
    return load('pico', device='cpu')


@pytest.fixture(scope='module')
def draft():
    return load('pico-draft', device='cpu')


def test_a_strategy_by_name_or_without_parentheses(lm):
    assert 'give an object such as Greedy()' in error_message(lambda: decode(lm, PROMPT, 'greedy'))
    words = error_message(lambda: decode(lm, PROMPT, Greedy))
    assert 'the class Greedy' in words
    assert 'with parentheses' in words
    assert 'such as Greedy()' in error_message(lambda: decode_batch(lm, [PROMPT], 'greedy'))


def test_a_model_by_name(lm):
    for call in (decode, stream):
        assert "load('pico')" in error_message(lambda call=call: call('pico', PROMPT, Greedy()))
    assert "load('pico')" in error_message(lambda: decode_batch('pico', [PROMPT], Greedy()))
    assert 'LM(model, tokenizer)' in error_message(lambda: decode(lm.model, PROMPT, Greedy()))


def test_several_prompts_where_one_belongs(lm):
    for prompts in (['a', 'b'], ('a',), [[5], [6, 7]], torch.tensor([[5, 6], [7, 8]]), ['1', '2']):
        assert 'decode_batch' in error_message(
            lambda prompts=prompts: decode(lm, prompts, Greedy())
        )
    inputs = lm.tokenizer(PROMPT, return_tensors='pt')
    assert 'input_ids' in error_message(lambda: decode(lm, inputs, Greedy()))
    one = decode(lm, inputs['input_ids'][0], Greedy(), 4)
    assert one.tokens == decode(lm, np.array(one.prompt), Greedy(), 4).tokens


def test_one_processor_needs_no_list(lm):
    processor = Temperature(0.8)
    alone, listed = Sample(processor), Sample([processor])
    assert repr(alone) == repr(listed) == 'Sample(Temperature(0.8))'
    assert decode(lm, PROMPT, alone, 8).tokens == decode(lm, PROMPT, listed, 8).tokens
    two = Sample(Temperature(0.8), TopP(0.9))
    assert repr(eval(repr(two))) == repr(two) == repr(Sample([Temperature(0.8), TopP(0.9)]))


@pytest.mark.parametrize(
    'name, value, class_name',
    [
        ('temperature', 0.8, 'Temperature'),
        ('top_p', 0.9, 'TopP'),
        ('top_k', 5, 'TopK'),
        ('repetition_penalty', 1.3, 'RepetitionPenalty'),
    ],
)
def test_a_setting_of_transformers_names_its_processor(name, value, class_name):
    for base in (Sample, Greedy):
        words = error_message(lambda base=base: base(**{name: value}))
        assert f'{base.__name__}({class_name}({value}))' in words
    assert 'logits processors' in error_message(lambda: Sample(colour='red'))


def test_a_model_where_a_drafter_belongs(lm, draft):
    prompts = [f'def f{i}(x):' for i in range(6)]
    words = error_message(lambda: tune_lookahead(lm, draft, prompts, max_new_tokens=8))
    assert 'AssistantDrafter(' in words
    assert 'drafter' in words
    assert 'AssistantDrafter(' in error_message(lambda: DraftTable.build(lm, draft, prompts, 8))
    assert 'AssistantDrafter(' in error_message(lambda: decode(lm, PROMPT, Speculative(draft), 8))


def test_a_model_where_a_tokenizer_belongs(lm):
    assert 'lm.tokenizer' in error_message(lambda: detect(GreenList(1), 'some text', tokenizer=lm))
    assert detect(GreenList(1), 'some text', tokenizer=lm.tokenizer).p <= 1


def test_a_model_where_a_task_or_a_name_belongs(lm, tmp_path):
    words = error_message(lambda: pipeline(lm))
    assert 'pipeline("text-generation", lm' in words
    for call in (load, load_heads, lambda name: load_strategy(name, lm)):
        assert 'give a name or a folder' in error_message(lambda call=call: call(lm))


def test_dola_layers_as_a_number(lm):
    ids = torch.tensor([lm.encode(PROMPT)])
    for call in (
        lambda: generate(lm, ids, dola_layers=4, max_new_tokens=4),
        lambda: decode(lm, PROMPT, DoLa(4), 4),
    ):
        assert "'high' or a list of layers, as in [4]" in error_message(call)
    assert generate(lm, ids, dola_layers=[4], max_new_tokens=4).shape[1] == ids.shape[1] + 4


def test_a_recipe_without_a_tokenizer(lm, draft):
    ids = torch.tensor([lm.encode(PROMPT)])
    strategy = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(3))

    def run(**options):
        recipe = as_custom_generate(strategy, **options)
        return lm.model.generate(ids, custom_generate=recipe, max_new_tokens=8, do_sample=False)

    words = error_message(run)
    assert 'as_custom_generate(strategy, tokenizer=tokenizer)' in words
    assert 'UniversalDrafter' not in words
    plain = decode(lm, PROMPT, Greedy(), 8)
    assert run(tokenizer=lm.tokenizer)[0].tolist() == plain.prompt + plain.tokens
