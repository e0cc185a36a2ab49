"Rollouts of earlier epochs as drafts: the samples of a seed, the estimator of a gradient, batches and changes of weights."

import random

import pytest
import torch

from decodelab import (
    BlockVerifier,
    ExactMatchVerifier,
    FixedLookahead,
    Sample,
    Speculative,
    Stop,
    Temperature,
    TopP,
    decode,
    decode_batch,
    load,
    random_lm,
)
from decodelab.core.driver import Request, Rng
from decodelab.core.trace import Step, Trace
from decodelab.drafters import FirstOfDrafter, PromptLookupDrafter, RolloutCache, RolloutDrafter
from decodelab.speculative import ReuseVerifier, TokenVerifier


@pytest.fixture(scope='module')
def pico():
    return load('pico', device='cpu', dtype=torch.float64)


def cache_of(prompt, answers, **options):
    "A store with these answers to a prompt."
    rollouts = RolloutCache(**options)
    rollouts.add(*(Trace(list(prompt), [Step(tokens=list(answer))]) for answer in answers))
    return rollouts


@pytest.mark.parametrize('seed', range(4))
def test_answers_of_a_seed_do_not_depend_on_the_store(seed):
    draw = random.Random(seed)
    lm = random_lm(seed=seed, vocab_size=11, dtype=torch.float64)
    prompt = [draw.randrange(11) for _ in range(draw.randrange(1, 30))]
    base = Sample([Temperature(0.7)] if seed % 2 else [])
    plain = [decode(lm, prompt, base, 20, seed=s).tokens for s in range(4)]
    other = [draw.choices(range(11), k=20) for _ in range(3)]
    accepted = 0
    for answers in ([], plain, other, [*other, plain[0][:9]]):
        drafter = RolloutDrafter(cache_of(prompt, answers, depth=draw.choice([1, 4, 24])))
        strategy = Speculative(drafter, base, ExactMatchVerifier(), FixedLookahead(7))
        batch = list(decode_batch(lm, [prompt] * 4, strategy, max_new_tokens=20, seed=0))
        assert [t.tokens for t in batch] == plain
        accepted += sum(step.accepted for t in batch for step in t.steps)
    assert accepted


def test_drafts_come_from_the_prompts_own_answers():
    lm = random_lm(seed=0, vocab_size=40)
    template = list(range(30))
    rollouts = cache_of([31, *template], [[35, 36, 37, 38]])
    rollouts.add(Trace([32, *template], [Step(tokens=[31, 33, 34, 30])]))
    strategy = Speculative(RolloutDrafter(rollouts), Sample(), lookahead=FixedLookahead(3))
    drafts = {
        p: decode(lm, [p, *template], strategy, 5).steps[0].draft_tokens for p in (31, 32, 33)
    }
    assert drafts == {31: [35, 36, 37], 32: [31, 33, 34], 33: []}


def test_most_frequent_answer_is_drafted_and_old_ones_are_dropped():
    lm = random_lm(seed=0, vocab_size=40)
    rollouts = cache_of([1, 2, 3], [[5, 6], [5, 7], [8, 9]], max_tokens=24, depth=3)
    strategy = Speculative(RolloutDrafter(rollouts), Sample(), lookahead=FixedLookahead(1))
    assert decode(lm, [1, 2, 3], strategy, 3).steps[0].draft_tokens == [5]
    rollouts.add(*(Trace([1, 2, 3], [Step(tokens=[8, 4])]) for _ in range(3)))
    assert decode(lm, [1, 2, 3], strategy, 3).steps[0].draft_tokens == [8]
    assert rollouts.of([1, 2, 3]).tokens <= 24


def test_a_store_that_grows_during_a_sequence_is_an_error():
    lm = random_lm(seed=0, vocab_size=40)
    rollouts = cache_of([1, 2], [[3, 4]])
    steps = Speculative(RolloutDrafter(rollouts), Sample()).decode(Request(lm, [1, 2], 9, Rng(0)))
    next(steps)
    rollouts.add(Trace([1, 3], [Step(tokens=[5])]))  # of another prompt
    next(steps)
    rollouts.add(Trace([1, 2], [Step(tokens=[5])]))
    with pytest.raises(ValueError, match='between calls'):
        next(steps)


def test_another_drafter_where_there_is_no_answer(pico):
    prompt = 'for x in rows:\n    print(x)\nfor x in rows:\n'
    both = FirstOfDrafter(RolloutDrafter(RolloutCache()), PromptLookupDrafter())
    strategy = Speculative(both, Sample([TopP(0.5)]), ExactMatchVerifier())
    plain = decode(pico, prompt, Sample([TopP(0.5)]), 24, seed=2)
    trace = decode(pico, prompt, strategy, 24, seed=2)
    assert trace.tokens == plain.tokens
    assert sum(step.accepted for step in trace.steps)


SMALL = [3, 1, 4]  # a prompt
REWARDED = 5  # an answer with this token has a reward of 1


def gradient_terms(lm, traces):
    """A term of the policy gradient of each trace: R(y) ∇ log π(y) along one direction, float64 `(n,)`.

    The parameters are biases of the logits: ∇ log π(v) is one-hot(v) minus π.
    """
    direction = torch.randn(lm.vocab_size, generator=torch.Generator().manual_seed(5)).double()
    ids = torch.tensor([t.prompt + t.tokens for t in traces])
    with torch.no_grad():
        p = lm.model(ids).logits[:, len(traces[0].prompt) - 1 : -1].softmax(-1)
    taken = direction[ids[:, len(traces[0].prompt) :]]
    score = (taken - p @ direction).sum(1)
    rewards = torch.tensor([float(REWARDED in t.tokens) for t in traces])
    return torch.stack([score, rewards * score, rewards.double()])


def z_scores(a, b):
    "The difference of two means in standard deviations, for each row."
    spread = (a.var(1) / a.shape[1] + b.var(1) / b.shape[1]) ** 0.5
    return (a.mean(1) - b.mean(1)) / spread


def answers(lm, verifier, rollouts, seed, n=240):
    "Answers of eight tokens, each with a seed of its own."
    strategy = Sample()
    if verifier is not None:
        strategy = Speculative(RolloutDrafter(rollouts), Sample(), verifier, FixedLookahead(7))
    return list(
        decode_batch(lm, [SMALL] * n, strategy, 60, max_new_tokens=8, seed=seed, stop=Stop(eos=()))
    )


def test_gradient_estimates_agree_and_a_lossy_rule_is_seen():
    "Fresh seeds: the estimator's terms are compared with those of plain sampling by z-tests."
    lm = random_lm(seed=0, vocab_size=11, scale=0.3, dtype=torch.float64)
    plain = gradient_terms(lm, answers(lm, None, None, seed=10_000))
    rollouts = RolloutCache()
    rollouts.add(*answers(lm, None, None, seed=20_000, n=6))
    for seed, verifier in enumerate((TokenVerifier(), BlockVerifier()), 3):
        traces = answers(lm, verifier, rollouts, seed=10_000 * seed)
        assert sum(step.accepted for t in traces for step in t.steps) > 20
        assert z_scores(gradient_terms(lm, traces), plain).abs().max() < 3.5, verifier
    lossy = answers(lm, ReuseVerifier(0.02), rollouts, seed=70_000)
    assert z_scores(gradient_terms(lm, lossy), plain).abs().max() > 4
