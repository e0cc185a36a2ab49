"Rules that stop drafting when it does not pay: bounds on counts, and tokens that no clock chooses."

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from decodelab import (
    LM,
    AssistantDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    RoundCosts,
    Sample,
    Speculative,
    Step,
    Stop,
    SuffixDrafter,
    Temperature,
    decode,
    decode_batch,
)
from decodelab.drafters import TreeDrafter
from decodelab.speculative import (
    BackoffLookahead,
    BlockVerifier,
    ExactMatchVerifier,
    SelfMeasuringLookahead,
    TokenVerifier,
    recorded,
)
from tests.tuning.test_lookahead_rules import simulated


def played(rule, outcomes):
    """The steps of a rule whose rounds end as `outcomes` say, without a model.

    Each is the number of tokens that could be copied, and of those that are right; None: no match.
    """
    rule = rule.start()
    steps = []
    for outcome in outcomes:
        k = 0
        longest = 0 if outcome is None else outcome[0]
        while rule.keep_drafting(k, None, 1 if k else None) and k < longest:
            k += 1
        right = 0 if outcome is None else min(k, outcome[1])
        steps.append(Step([1] * (right + 1), k, right, right < k, [1] * k, [], 1, k))
        rule.update(steps[-1])
    return steps


class Watched(FixedLookahead):
    "A fixed lookahead that counts the trials."

    trials = 0

    def keep_drafting(self, n, probs, token):
        if n == 0:
            Watched.trials += 1
        return super().keep_drafting(n, probs, token)


OUTCOMES = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(0, 9))), max_size=300
)


@settings(max_examples=200, deadline=None)
@given(
    outcomes=OUTCOMES,
    k=st.integers(1, 8),
    price=st.floats(0.01, 2),
    credit=st.floats(0.05, 3),
    trial=st.floats(0.001, 0.2),
)
def test_no_text_loses_more_than_the_bound(outcomes, k, price, credit, trial):
    rule = BackoffLookahead(FixedLookahead(k), price, credit, trial)
    lost, n = 0.0, 0
    for step in played(rule, outcomes):
        n += len(step.tokens)
        lost += (trial if step.drafted else 0.0) + price * step.drafted - step.accepted
        assert lost <= credit * (1 + math.log2(1 + n)) + trial + price * k + 1e-9


@pytest.mark.parametrize('n', [50, 400, 3000, 20_000])
def test_where_nothing_repeats_trials_are_logarithmic(n):
    rule = BackoffLookahead(Watched(5))
    Watched.trials = 0
    played(rule, [None] * n)
    assert 3 <= Watched.trials <= rule.credit * (1 + math.log2(1 + n)) / rule.trial + 2
    wrong = played(rule, [(5, 0)] * n)
    failed = sum(step.drafted > 0 for step in wrong)
    price = rule.trial + 5 * rule.price
    assert 2 <= failed <= rule.credit * (1 + math.log2(1 + n)) / price + 2


@pytest.mark.parametrize('silent', [0, 10, 100, 1000])
def test_a_text_that_begins_to_repeat_itself_is_noticed(silent):
    steps = played(BackoffLookahead(), [None] * silent + [(5, 5)] * (2 * silent + 20))
    drafting = [i for i, step in enumerate(steps) if step.drafted]
    assert drafting[0] <= 1.3 * silent + 2
    assert drafting == list(range(drafting[0], len(steps)))  # and then in every round
    if not silent:
        assert len(drafting) == len(steps)


@pytest.fixture(scope='module')
def models():
    "A target whose texts repeat themselves now and then, and an unrelated draft."
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=512,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [LM(LlamaForCausalLM(config).double().eval()) for _ in range(2)]


@pytest.mark.parametrize('drafter', [PromptLookupDrafter(), SuffixDrafter()], ids=repr)
def test_lookup_on_a_repeating_text_keeps_its_acceptance(models, drafter):
    prompt = [1, 2, 3]
    fixed, backoff = (
        decode(models[0], prompt, Speculative(drafter, lookahead=rule), 200, stop=Stop(eos=()))
        for rule in (FixedLookahead(5), BackoffLookahead())
    )
    assert backoff.tokens == fixed.tokens
    accepted = lambda trace: sum(step.accepted for step in trace.steps)
    assert accepted(fixed) > 100  # the text does repeat itself
    assert len(backoff.steps) <= len(fixed.steps) + 12
    assert accepted(backoff) >= accepted(fixed) - 12


def timed(step, costs, noise=1.0):
    "The step as if its round had taken what the costs say."
    verify = costs.target_pass(step.drafted + 1)
    draft = costs.round(step.drafted) - verify
    return replace(step, draft_seconds=draft * noise, verify_seconds=verify * noise)


class Clocked(SelfMeasuringLookahead):
    "The rule on a machine where rounds take what `true_costs` say, some of them much longer."

    def __init__(self, true_costs, k=20, carry=False, disturbed=0.0):
        super().__init__(k, carry=carry)
        self.true_costs = true_costs
        self.disturbed = disturbed
        self.random = random.Random(0)

    def update(self, step):
        noise = 20.0 if self.random.random() < self.disturbed else 1.0
        super().update(timed(step, self.true_costs, noise))


def relative(rule, acceptance, costs, tokens, seed):
    "The cost of a simulated text in plain rounds a token."
    return simulated(rule, acceptance, costs, tokens, seed) / tokens / costs.round(0)


MACHINES = {
    'wide passes are free': RoundCosts.from_ratio(0.05, 0.01),
    'a costly draft': RoundCosts.from_ratio(0.6, 0.05),
    'a jump from one to two': RoundCosts((1.0, 1.8, 1.85, 1.9), 0.1),
    'a cold draft model': RoundCosts((1.0, 1.1), 0.1, first=0.5),
    'copied guesses': RoundCosts((1.0, 1.3, 1.4), 0.0, first=0.02),
}


@pytest.mark.parametrize('disturbed', [0.0, 0.1])
@pytest.mark.parametrize('machine', MACHINES)
def test_a_bad_draft_costs_at_most_three_percent(machine, disturbed):
    costs = MACHINES[machine]
    for acceptance in (0.0, 0.03):
        runs = [
            relative(Clocked(costs, disturbed=disturbed), acceptance, costs, 400, seed)
            for seed in range(4)
        ]
        assert np.mean(runs) <= 1.03


@pytest.mark.parametrize('acceptance', [0.6, 0.9])
@pytest.mark.parametrize('machine', MACHINES)
def test_a_good_draft_is_used(machine, acceptance):
    costs = MACHINES[machine]
    cost = lambda rule: np.mean([relative(rule, acceptance, costs, 1500, s) for s in range(4)])
    best = min(1.0, *(cost(FixedLookahead(k)) for k in (1, 2, 4, 8, 16)))
    assert cost(Clocked(costs)) <= 1.12 * best + 0.01


def test_costs_are_learned_through_disturbances():
    costs = RoundCosts((1.0, 1.3, 1.4), 0.2, first=0.4)
    rule = Clocked(costs, carry=True, disturbed=0.2)
    for seed in range(4):
        relative(rule, 0.7, costs, 200, seed)
    learned = rule.history_.costs()
    for k in (0, 1, 3):
        assert learned.round(k) == pytest.approx(costs.round(k), rel=0.1)


def test_tries_double_their_distance():
    steps = []

    class Recorded(Clocked):
        def update(self, step):
            steps.append(step.drafted)
            super().update(step)

    costs = RoundCosts.from_ratio(0.5, 0.2)
    relative(Recorded(costs), 0.0, costs, 20_000, 0)
    tries = [i for i, drafted in enumerate(steps) if drafted]
    assert 5 <= len(tries) <= 30
    distances = np.diff(tries[-4:])
    assert (distances[1:] >= 1.9 * distances[:-1]).all()


class ErraticClock(SelfMeasuringLookahead):
    "The rule with a clock that shows anything."

    def update(self, step):
        draft, verify = (random.choice((1e-6, 1e-3, 1.0)) for _ in range(2))
        super().update(replace(step, draft_seconds=draft, verify_seconds=verify))


@settings(max_examples=15, deadline=None)
@given(
    prompt=st.lists(st.integers(1, 22), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    which=st.sampled_from(['lookup', 'suffix', 'itself', 'unrelated', 'tree']),
    base=st.sampled_from([Greedy(), Sample(), Sample(Temperature(0.5))]),
)
def test_no_clock_chooses_a_token(models, prompt, seed, which, base):
    target, other = models
    drafter = {
        'lookup': PromptLookupDrafter(),
        'suffix': SuffixDrafter(),
        'itself': AssistantDrafter(target),
        'unrelated': AssistantDrafter(other),
        'tree': TreeDrafter(other),
    }[which]
    strategy = Speculative(drafter, base, lookahead=ErraticClock(6))
    expected = decode(target, prompt, base, 40, seed=seed, stop=Stop(eos=())).tokens
    assert decode(target, prompt, strategy, 40, seed=seed, stop=Stop(eos=())).tokens == expected


def test_no_clock_chooses_a_token_in_a_batch(models):
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8], [2, 2]]
    strategy = Speculative(PromptLookupDrafter(), Sample(), lookahead=ErraticClock(6))
    for rows in (2, 4):
        plain = decode_batch(models[0], prompts, Sample(), rows, 30)
        traces = decode_batch(models[0], prompts, strategy, rows, 30)
        assert [t.tokens for t in traces] == [t.tokens for t in plain]


def test_other_verifiers_are_rejected_under_a_clock(models):
    for verifier in (TokenVerifier(), BlockVerifier()):
        for rule in (SelfMeasuringLookahead(), BackoffLookahead(SelfMeasuringLookahead())):
            strategy = Speculative(PromptLookupDrafter(), Sample(), verifier, rule)
            with pytest.raises(ValueError, match=r'ExactMatchVerifier\(\), or CostAware'):
                decode(models[0], [1, 2], strategy, 4)
    strategy = Speculative(
        PromptLookupDrafter(), Sample(), ExactMatchVerifier(), SelfMeasuringLookahead()
    )
    plain = decode(models[0], [1, 2], Sample(), 20, seed=5)
    assert decode(models[0], [1, 2], recorded(strategy), 20, seed=5).tokens == plain.tokens
