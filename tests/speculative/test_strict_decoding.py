"`deterministic=True` in bfloat16 generates plain greedy tokens to the last bit, and counts its cost."

import pytest
import torch
from repo import ROOT

from decodelab import (
    AssistantDrafter,
    ClassifierFreeGuidance,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    RepetitionPenalty,
    Sample,
    Speculative,
    Temperature,
    builtin_prompts,
    decode,
    decode_batch,
    load,
    random_lm,
)
from decodelab.evaluate.certify import ARCHITECTURES
from tests.random_prompts import random_prompts

HALF = torch.bfloat16
MODELS = ROOT.parent / 'shared' / 'data' / 'models'
loose_ = {}  # family → how many texts differ without strict


def passes(trace):
    return sum(step.target_passes for step in trace.steps)


def compared(lm, drafters, prompts, n, base=Greedy(), k=4):
    "`(texts, identical with strict, identical without)`; checks the counts as it goes."
    results = [0, 0, 0]
    for prompt in prompts:
        plain = decode(lm, prompt, base, n)
        for drafter in drafters:
            loose, strict = (
                decode(
                    lm,
                    prompt,
                    Speculative(drafter, base=base, lookahead=FixedLookahead(k), deterministic=s),
                    n,
                )
                for s in (False, True)
            )
            results = [
                results[0] + 1,
                results[1] + (strict.tokens == plain.tokens),
                results[2] + (loose.tokens == plain.tokens),
            ]
            if loose.tokens == strict.tokens:
                assert passes(strict) >= passes(loose)
                assert len(strict.steps) == len(loose.steps)
    return results


@pytest.mark.parametrize('family', ARCHITECTURES)
def test_random_models(family):
    lm = random_lm(family, dtype=HALF)
    draft = random_lm(family, seed=1, layers=1, dtype=HALF)
    prompts = random_prompts((1, 8, 40))
    texts, strict, loose_[family] = compared(lm, [AssistantDrafter(draft)], prompts, 40)
    assert (texts, strict) == (3, 3)


def test_without_it_some_texts_differ():
    if len(loose_) < len(ARCHITECTURES):
        pytest.skip('run with the families above')
    assert sum(loose_.values()) < 3 * len(ARCHITECTURES)


def test_pico():
    lm = load('pico', device='cpu', dtype=HALF)
    draft = load('pico-draft', device='cpu', dtype=HALF)
    prompts = [p if isinstance(p, str) else p['prompt'] for p in builtin_prompts()][:4]
    texts, strict, _ = compared(lm, [AssistantDrafter(draft), PromptLookupDrafter()], prompts, 28)
    assert strict == texts == 8


@pytest.mark.skipif(not MODELS.is_dir(), reason='no folder shared/data/models beside the checkout')
@pytest.mark.parametrize('name', ['stories260K', 'babyllama361'])
def test_checkpoints(name):
    lm = load(MODELS / name, device='cpu', dtype=HALF)
    prompts = [
        'Once upon a time',
        'One day, a little girl named Lily',
        'The sun was',
        'Tom and his dog',
        'There was a',
        'She said',
    ]
    texts, strict, _ = compared(lm, [PromptLookupDrafter()], prompts, 40)
    assert strict == texts == 6


@pytest.mark.parametrize(
    'rule', [ClassifierFreeGuidance(3.0), RepetitionPenalty(1.3), Temperature(0.05)], ids=repr
)
def test_the_tolerance_is_that_of_the_scores_after_the_rules(rule):
    # a rule may stretch differences; guidance reads a second text, whose cache must be the plain one too
    for family, seed in (('llama', 3), ('qwen2', 5)):
        lm = random_lm(family, seed=seed, layers=3, dtype=HALF)
        prompts = random_prompts((2, 9), seed=seed)
        texts, strict, _ = compared(lm, [EarlyExitDrafter(1)], prompts, 28, Greedy([rule]))
        assert strict == texts == 2


def test_what_is_read_again_is_counted():
    lm, draft = (random_lm(seed=s, layers=2 - s, dtype=HALF) for s in (0, 1))
    passes = []
    hook = lm.model.model.layers[0].register_forward_pre_hook(lambda *_: passes.append(1))
    decode(
        lm, [3, 4], Speculative(AssistantDrafter(draft), deterministic=True), 4
    )  # measures the tolerance, once
    passes.clear()
    trace = decode(lm, [3, 4, 5], Speculative(AssistantDrafter(draft), deterministic=True), 40)
    hook.remove()
    again = [s.target_passes - 1 for s in trace.steps]
    assert sum(s.target_passes for s in trace.steps) == len(passes)
    assert 0 < sum(again) <= 40
    assert min(again) == 0
    exact = random_lm(dtype=torch.float64)
    assert all(
        s.target_passes == 1
        for s in decode(
            exact, [3, 4, 5], Speculative(AssistantDrafter(draft), deterministic=True), 40
        ).steps
    )


def test_strict_is_rejected_if_it_cannot_be_promised():
    lm = random_lm(dtype=HALF)
    with pytest.raises(ValueError, match='Greedy base'):
        decode(lm, [1], Speculative(PromptLookupDrafter(), base=Sample(), deterministic=True), 4)
    with pytest.raises(ValueError, match='decoded alone'):
        decode_batch(lm, [[1], [2]], Speculative(PromptLookupDrafter(), deterministic=True), 2, 4)
    assert 'deterministic=True' in repr(Speculative(PromptLookupDrafter(), deterministic=True))
