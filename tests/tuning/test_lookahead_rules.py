"Any lookahead rule with any drafter: greedy tokens, and counts that replay reproduces."

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from decodelab import (
    LM,
    AssistantDrafter,
    BlockVerifier,
    ClassifierLookahead,
    ConfidenceLookahead,
    CostAwareLookahead,
    CumulativeLookahead,
    DraftTable,
    EarlyExitDrafter,
    EntropyLookahead,
    FixedLookahead,
    Greedy,
    HeuristicLookahead,
    OracleLookahead,
    PromptLookupDrafter,
    RocLookahead,
    RoundCosts,
    Sample,
    Speculative,
    Step,
    Stop,
    SuffixDrafter,
    SyntheticDrafter,
    TopK,
    decode,
    decode_batch,
    random_lm,
    replay,
)
from decodelab.drafters import PardDrafter
from decodelab.evaluate.certify import exact_check
from decodelab.speculative import BackoffLookahead, BanditLookahead
from decodelab.speculative.protocol import DraftProbs, Verification, Verifier

COSTS = RoundCosts.from_ratio(0.15, 0.05)
K = 6


def made(seed, vocab=23, layers=2):
    "A small model whose texts repeat themselves now and then."
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocab,
            hidden_size=32,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=512,
            eos_token_id=0,
        )
        return LM(LlamaForCausalLM(config).double().eval())


@pytest.fixture(scope='module')
def models():
    target = made(0, layers=3)
    near = made(0, layers=3)  # the target, a little off
    with torch.no_grad():
        for n, p in enumerate(near.model.parameters()):
            p.add_(
                torch.randn(p.shape, generator=torch.Generator().manual_seed(n), dtype=p.dtype),
                alpha=0.004,
            )
    return target, near


@pytest.fixture(scope='module')
def table(models):
    return DraftTable.build(
        models[0],
        AssistantDrafter(models[1]),
        [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [3, 3], [11, 2]],
        32,
        K,
    )


RULES = dict(
    fixed=st.builds(FixedLookahead, st.integers(1, K)),
    heuristic=st.builds(
        lambda k, up, down: HeuristicLookahead(k, up, down, max_k=K),
        st.integers(1, K),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    confidence=st.builds(
        lambda t, k: ConfidenceLookahead(t, k), st.floats(0, 1), st.integers(1, K)
    ),
    roc=st.builds(lambda t, w: RocLookahead(t, K, w), st.floats(0, 1), st.floats(0.1, 9)),
    entropy=st.builds(lambda t, g: EntropyLookahead(t, K, g), st.floats(0, 1), st.floats(0.01, 2)),
    cumulative=st.builds(
        lambda h, least: CumulativeLookahead(h, K, least), st.floats(0, 1), st.integers(1, K)
    ),
    bandit=st.builds(
        lambda b, arms: BanditLookahead(COSTS, tuple(sorted(arms)), b),
        st.floats(0, 2),
        st.sets(st.integers(0, K), min_size=1, max_size=4),
    ),
    backoff=st.builds(
        lambda k, p, c: BackoffLookahead(FixedLookahead(k), p, c),
        st.integers(1, K),
        st.floats(0.01, 1),
        st.floats(0.05, 2),
    ),
    cost=st.builds(
        lambda c, s, p: CostAwareLookahead(RoundCosts.from_ratio(c, s), K, p),
        st.floats(0, 1),
        st.floats(0, 0.5),
        st.floats(0, 0.1),
    ),
)
ANY = st.one_of(*RULES.values())
DRAFTERS = dict(
    assistant=lambda t, d: AssistantDrafter(d),
    lookup=lambda t, d: PromptLookupDrafter(),
    suffix=lambda t, d: SuffixDrafter(),
    pard=lambda t, d: PardDrafter(d, 1, max_draft=K),
    early=lambda t, d: EarlyExitDrafter(2),
)


def seen(steps):
    return [
        (
            s.tokens,
            s.drafted,
            s.accepted,
            s.rejected,
            s.draft_tokens,
            s.draft_passes,
            s.target_passes,
        )
        for s in steps
    ]


@pytest.mark.parametrize('name', DRAFTERS)
@settings(max_examples=12, deadline=None)
@given(
    rule=ANY,
    prompt=st.lists(st.integers(1, 22), min_size=1, max_size=12),
    budget=st.integers(1, 40),
)
def test_any_rule_decodes_greedily_and_replay_counts_as_a_live_run(
    models, name, rule, prompt, budget
):
    target, near = models
    strategy = Speculative(DRAFTERS[name](target, near), lookahead=rule)
    live = decode(target, prompt, strategy, budget)
    assert live.tokens == decode(target, prompt, Greedy(), budget).tokens
    assert all(s.drafted <= K for s in live.steps)
    assert seen(
        replay(DraftTable.build(target, strategy.drafter, [prompt], budget, K), rule)[0]
    ) == seen(live.steps)


@settings(max_examples=20, deadline=None)
@given(rule=ANY)
def test_nothing_is_learned_from_one_text_to_the_next(models, rule):
    target, near = models
    strategy = Speculative(AssistantDrafter(near), lookahead=rule)
    alone = [seen(decode(target, p, strategy, 24).steps) for p in ([1, 2], [9, 9, 9])]
    assert [seen(decode(target, p, strategy, 24).steps) for p in ([9, 9, 9], [1, 2])] == alone[::-1]


@settings(max_examples=10, deadline=None)
@given(rule=ANY, rows=st.integers(2, 4))
def test_rules_keep_to_their_own_text_in_a_batch(models, rule, rows):
    target, near = models
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8], [2, 2]]
    strategy = Speculative(AssistantDrafter(near), lookahead=rule)
    assert [seen(t.steps) for t in decode_batch(target, prompts, strategy, rows, 20)] == [
        seen(decode(target, p, strategy, 20, seed=i).steps) for i, p in enumerate(prompts)
    ]


@pytest.mark.parametrize('name', RULES)
@settings(max_examples=3, deadline=None)
@given(data=st.data())
def test_every_rule_is_lossless_under_sampling_over_several_rounds(name, data):
    check = exact_check(
        Speculative(
            AssistantDrafter(random_lm(seed=1)),
            Sample(),
            BlockVerifier() if data.draw(st.booleans()) else None,
            data.draw(RULES[name]),
        ),
        paths=150,
    )
    assert check.passed
    assert check.distance == 0


@pytest.fixture(scope='module')
def text(models):
    "Three hundred tokens of the target."
    return decode(models[0], [1, 2, 3], Greedy(), 300, stop=Stop(eos=())).tokens


@settings(max_examples=15, deadline=None)
@given(
    c=st.floats(0.02, 1.0),
    wider=st.floats(0, 0.3),
    acceptance=st.floats(0, 0.04),
    seed=st.integers(0, 99),
)
def test_a_poor_drafter_costs_at_most_three_percent(models, text, c, wider, acceptance, seed):
    target, near = models
    costs, n = RoundCosts.from_ratio(c, wider), len(text)
    steps = decode(
        target,
        [1, 2, 3],
        Speculative(
            SyntheticDrafter(acceptance, text, seed=seed, cost=near),
            lookahead=CostAwareLookahead(costs),
        ),
        n,
        stop=Stop(eos=()),
    ).steps
    assert costs.of(steps) <= 1.03 * n * costs.round(0)


def simulated(rule, acceptance, costs, tokens, seed):
    "The cost of a text whose drafted tokens are right independently of each other."
    rule = rule.start()
    rng = np.random.default_rng(seed)
    generated = 0
    spent = 0.0
    while generated < tokens:
        k = 0
        while rule.keep_drafting(k, None, 1 if k else None):
            k += 1
        right = next((i for i in range(k) if rng.random() >= acceptance), k)
        step = Step([1] * (right + 1), k, right, right < k, [1] * k, [], 1, k)
        rule.update(step)
        generated, spent = generated + right + 1, spent + costs.round(k)
    return spent


@pytest.mark.parametrize('acceptance', [0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
@pytest.mark.parametrize('c,wider', [(0.05, 0.02), (0.15, 0.1), (0.4, 0.05)])
def test_the_cost_rule_is_near_the_best_fixed_length(acceptance, c, wider):
    costs, n = RoundCosts.from_ratio(c, wider), 3000
    cost = lambda rule: np.mean([simulated(rule, acceptance, costs, n, s) for s in range(3)])
    best = min(
        n * costs.round(0), *(cost(FixedLookahead(k)) for k in (1, 2, 3, 4, 6, 8, 12, 16, 20))
    )
    assert (
        cost(CostAwareLookahead(costs)) <= 1.05 * best
    )  # the price of finding out, of probing, and of noise
    assert cost(BanditLookahead(costs, (0, 1, 2, 4, 8, 16))) <= 1.15 * best


def test_the_oracle_is_never_beaten(table):
    passes = lambda rule: sum(map(len, replay(table, rule)))
    drafted = lambda rule: sum(s.drafted for steps in replay(table, rule) for s in steps)
    oracle = OracleLookahead(table)
    for rule in (
        *map(FixedLookahead, range(1, K + 1)),
        ConfidenceLookahead(0.3, K),
        HeuristicLookahead(2, max_k=K),
    ):
        assert passes(oracle) <= passes(rule)
    assert drafted(oracle) == sum(s.accepted for steps in replay(table, oracle) for s in steps)


def test_sampling_tables_are_reproducible_and_of_their_own_seed(models):
    build = lambda seed: DraftTable.build(
        models[0],
        AssistantDrafter(models[1]),
        [[1, 2, 3], [4]],
        12,
        4,
        base=Sample([TopK(5)]),
        seed=seed,
    )
    one = build(0)
    again = build(0)
    other = build(1)
    assert one.sequences == again.sequences
    for a, b in zip(one.records, again.records, strict=True):
        assert [p.tokens for p in a] == [p.tokens for p in b]
    assert other.sequences != one.sequences
    with pytest.raises(ValueError, match='greedy base'):
        OracleLookahead(one)


def test_a_twin_is_always_accepted_in_a_sampled_table(models):
    table = DraftTable.build(
        models[0],
        AssistantDrafter(models[0]),
        [[1, 2, 3], [4, 4]],
        16,
        4,
        base=Sample(),
        stop=Stop(eos=()),
    )
    assert all(s.accepted == s.drafted for steps in replay(table, FixedLookahead(4)) for s in steps)


def test_rows_survive_the_way_to_disk(table, tmp_path):
    table.save(tmp_path / 't.safetensors')
    again = DraftTable.load(tmp_path / 't.safetensors')
    for rule in (
        ConfidenceLookahead(0.2, K),
        EntropyLookahead(k=K),
        CostAwareLookahead(COSTS, K),
        ClassifierLookahead(None, 0.4, K).fit(table),
    ):
        assert replay(again, rule) == replay(table, rule)
    assert [p.name for p in tmp_path.iterdir()] == ['t.safetensors']


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(-30, 30), min_size=2, max_size=40))
def test_rows_of_scores_and_of_probabilities_agree(values):
    scores = torch.tensor(values, dtype=torch.float64)
    one = DraftProbs(scores, False)
    other = DraftProbs(scores.softmax(-1), True)
    token = len(values) // 2
    p = scores.softmax(-1)
    assert one.prob(token) == pytest.approx(other.prob(token))
    assert one.top(3) == pytest.approx(other.top(3))
    assert one.entropy() == pytest.approx(torch.special.entr(p).sum().item(), abs=1e-9)


@pytest.mark.parametrize(
    'make,words',
    [
        (lambda: ConfidenceLookahead(2), 'from 0 to 1'),
        (lambda: ConfidenceLookahead(k=0), 'integer'),
        (lambda: HeuristicLookahead(5, max_k=3), 'limit'),
        (lambda: CumulativeLookahead(k=2, min_k=3), 'at most k'),
        (lambda: BanditLookahead(COSTS, ()), 'arms'),
        (lambda: CostAwareLookahead(COSTS, probe=-1), 'from 0 to 1'),
        (lambda: RoundCosts((), 0.1), r'T\(1\)'),
        (lambda: RocLookahead(weight=0), 'above 0'),
        (lambda: EntropyLookahead(gamma=0), 'above 0'),
        (lambda: ClassifierLookahead(features=()), 'choose from'),
        (lambda: CostAwareLookahead(COSTS, weight=0), 'above 0'),
    ],
)
def test_errors_of_bad_settings_name_good_ones(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_nan_is_detected_by_every_rule_that_looks(table):
    row = DraftProbs(torch.tensor([torch.nan, 1.0]), True)
    for rule in (
        ConfidenceLookahead(),
        RocLookahead(),
        CumulativeLookahead(),
        CostAwareLookahead(COSTS),
        ClassifierLookahead(None, 0.5, K).fit(table),
        EntropyLookahead(),
    ):
        started = rule.start()
        assert started.keep_drafting(0, None, None)
        with pytest.raises(ValueError, match='NaN'):
            started.keep_drafting(1, row, 0)


class Walk(Verifier):
    "Records the functions between `decode` and itself."

    def verify(self, p, draft, rng):
        frames = [f for f in inspect.stack()[1:] if 'decodelab' in f.frame.f_globals['__name__']]
        self.modules = [f.frame.f_globals['__name__'] for f in frames]
        return Verification(0, rng.categorical(p[0]))


def test_seven_functions_and_the_verifier(models):
    walk = Walk()
    decode(models[0], [1, 2], Speculative(PromptLookupDrafter(), verifier=walk), 2)
    assert len(walk.modules) <= 7
    assert set(walk.modules) <= {'decodelab.core.driver', 'decodelab.speculative.loop'}
