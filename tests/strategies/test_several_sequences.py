"Best of n, self-consistency and DeepConf against exact distributions, counts and plain computations."

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch

from decodelab import (
    AssistantDrafter,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    RepetitionPenalty,
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
from decodelab.core.driver import Request, Rng, Strategy
from decodelab.drafters import EagleDrafter, MedusaDrafter, TreeDrafter
from decodelab.drafters.eagle import EagleHeads
from decodelab.drafters.medusa import MedusaHeads
from decodelab.evaluate.exact import ExactLM, ExactSample, exact_distribution, total_variation
from decodelab.models.batching import Batcher
from decodelab.models.shared_prompt import SharedPrompt, run_side_by_side
from decodelab.strategies import (
    BestOfN,
    BottomGroups,
    CandidateScorer,
    ConfidentMajority,
    Decided,
    DeepConf,
    LogProbability,
    LowestGroup,
    MeanConfidence,
    SelfConsistency,
    SequenceProbability,
    TailConfidence,
    best_of_n_distribution,
    count_votes,
    drawn_sequences,
    votes,
)
from decodelab.strategies.streaming import stream, stream_batch

LM = random_lm(layers=3)
SMALL = random_lm(seed=1, layers=1)
WARM = Sample([Temperature(0.8), TopP(0.95)])
PROMPT = list(range(5, 25))
PROMPTS = [PROMPT, [9, 8], [3, 3, 3, 4]]


def speculative(drafter, base=WARM):
    return Speculative(drafter, base, None, FixedLookahead(3))


BASES = {
    'sample': WARM,
    'penalty': Sample([RepetitionPenalty(1.3)]),
    'assistant': speculative(AssistantDrafter(SMALL)),
    'early exit': speculative(EarlyExitDrafter(1)),
    'prompt lookup': speculative(PromptLookupDrafter()),
    'tree': speculative(TreeDrafter(SMALL)),
    'medusa': speculative(MedusaDrafter(MedusaHeads.of(LM, 4))),
    'eagle': speculative(EagleDrafter(EagleHeads.of(LM))),
}


def read(trace):
    "Tokens read by each model, by the strategy's own count."
    return trace.steps[0].info['tokens_read']


class Largest(CandidateScorer):
    "The sum of the ids."

    def score(self, candidate):
        return sum(candidate.tokens)


class Likeliest(CandidateScorer):
    "The probability in a table."

    def score(self, candidate):
        return sequence_prob(candidate.request.lm, candidate.tokens)


def sequence_prob(table, tokens, prompt=(0,)):
    ids, prob = list(prompt), Fraction(1)
    for token in tokens:
        prob *= table.probs(ids)[token]
        ids.append(token)
    return prob


# The law


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('n', [1, 2, 3])
def test_the_distribution_of_the_best(seed, n):
    table = ExactLM(3, seed)
    one = exact_distribution(ExactSample(), table, [0], 2)
    for scorer, score in ((Largest(), sum), (Likeliest(), lambda y: sequence_prob(table, y))):
        exact = exact_distribution(BestOfN(ExactSample(), n, scorer), table, [0], 2)
        distribution = best_of_n_distribution(one, score, n)
        assert total_variation(exact, distribution) == 0
        assert sum(exact.values()) == 1
        brute = dict.fromkeys(one, Fraction(0))
        for draw in np.ndindex(*[len(one)] * n):
            ys = [list(one)[i] for i in draw]
            brute[max(ys, key=score)] += math.prod(one[y] for y in ys)
        assert total_variation(brute, distribution) == 0


def test_the_distribution_of_a_vote():
    table = ExactLM(3, 5)
    one = exact_distribution(ExactSample(), table, [0], 2)
    table.decode = lambda ids: ''.join(map(str, ids))

    votes_exact = {}

    def observe(steps):
        for step in steps:
            if 'votes' in step.info:
                votes_exact[str(step.info['answers'])] = step.info['votes']

    strategy = SelfConsistency(lambda text: text[-1], ExactSample(), 3)
    exact = exact_distribution(strategy, table, [0], 2, observe=observe)
    brute = {}
    for draw in np.ndindex(*[len(one)] * 3):
        ys = [list(one)[i] for i in draw]
        counted = Counter(y[-1] for y in ys)
        winner = max(counted, key=lambda a: (counted[a], -[y[-1] for y in ys].index(a)))
        y = next(y for y in ys if y[-1] == winner)
        brute[y] = brute.get(y, 0) + math.prod(one[y] for y in ys)
    assert total_variation(exact, brute) == 0
    assert votes_exact


def test_sampled_answers_fit_the_distribution():
    "By chi-square, on a model with five tokens."
    lm = random_lm(vocab_size=5, layers=1)
    logits = lm.model(torch.tensor([[1]])).logits[0, -1].double()
    probs = logits.softmax(-1).tolist()
    distribution = best_of_n_distribution(dict(enumerate(probs)), lambda y: probs[y], 3)
    batch = decode_batch(lm, [[1]] * 600, BestOfN(Sample(), 3), 50, 1)
    counts = Counter(t.tokens[0] for t in batch)
    chi2 = sum((counts[y] - 600 * p) ** 2 / (600 * p) for y, p in distribution.items() if p > 1e-6)
    assert chi2 < 23.5  # 4 degrees of freedom: one in ten thousand


# Tokens read, passes, seeds


@pytest.mark.parametrize('name', BASES)
def test_each_sequence_is_that_of_its_seed(name):
    base = BASES[name]
    trace = decode(LM, PROMPT, BestOfN(base, 4), 9, seed=3)
    for s in drawn_sequences(trace):
        alone = decode(LM, PROMPT, base, 9, seed=s['seed'])
        assert alone.tokens == s['tokens']
        assert alone.stopped == s['stopped']
        ids = torch.tensor([PROMPT + s['tokens'][:-1]])
        rows = LM.model(ids).logits[0, len(PROMPT) - 1 :].log_softmax(-1)
        by_hand = rows.gather(1, torch.tensor(s['tokens'])[:, None]).sum().item()
        assert s['logp'] == pytest.approx(by_hand, abs=1e-3)
        assert s['score'] == pytest.approx(by_hand / 9, abs=1e-3)
    best = max(drawn_sequences(trace), key=lambda s: s['score'])
    assert trace.tokens == best['tokens']
    assert trace.stopped == 'length'
    assert trace.tokens == decode(LM, PROMPT, BestOfN(base, 4), 9, seed=3).tokens
    assert [t.tokens for t in decode_batch(LM, PROMPTS, BestOfN(base, 3), 2, 9, seed=3)] == [
        decode(LM, p, BestOfN(base, 3), 9, seed=3 + i).tokens for i, p in enumerate(PROMPTS)
    ]


def test_the_prompt_is_read_once():
    n, length = 6, 9
    trace = decode(LM, PROMPT, BestOfN(WARM, n), length)
    assert read(trace) == {LM.name: len(PROMPT) - 1 + n * length}
    assert trace.metrics()['target_passes'] == 1 + n * length
    in_turn = decode(LM, PROMPT, BestOfN(WARM, n, at_once=1), length)
    assert read(in_turn) == read(trace)
    assert in_turn.tokens == trace.tokens
    batch = decode_batch(LM, PROMPTS, BestOfN(WARM, n), 2, length)
    assert [read(t) for t in batch] == [{LM.name: len(p) - 1 + n * length} for p in PROMPTS]
    assert sum(sum(read(t).values()) for t in batch) == batch.costs[0]['tokens']


@pytest.mark.parametrize('name', ['assistant', 'early exit', 'tree', 'medusa', 'eagle'])
def test_a_draft_reads_the_prompt_once_too(name):
    long = PROMPT * 5
    n, length = 5, 4
    trace = decode(LM, long, BestOfN(BASES[name], n, score=len), length)
    for count in read(trace).values():
        assert len(long) <= count < len(long) + n * 60 < n * len(long)


def test_every_position_is_read_once_and_by_whom(monkeypatch):
    "Counted at the model's layers, not by the strategy."
    from decodelab.models import batching

    counted = Counter()
    run_pass = batching.run_pass

    def counting(batch, requests):
        counted['tokens'] += sum(len(r) for r in requests)
        run_pass(batch, requests)

    monkeypatch.setattr(batching, 'run_pass', counting)
    monkeypatch.setattr('decodelab.models.shared_prompt.run_pass', counting)
    trace = decode(LM, PROMPT, BestOfN(WARM, 4, score=len), 6)
    assert counted['tokens'] == len(PROMPT) - 1 + 4 * 6 == read(trace)[LM.name]


def test_models_that_cannot_be_joined_give_the_same():
    lm = random_lm(layers=2)
    lm.use_cache = False
    trace = decode(lm, PROMPT, BestOfN(WARM, 3), 5)
    for s in drawn_sequences(trace):
        assert s['tokens'] == decode(lm, PROMPT, WARM, 5, seed=s['seed']).tokens


def test_an_encoder_reads_its_input_once(monkeypatch):
    from decodelab.models import shared_prompt

    made = []

    class Counted(shared_prompt.EncodedInput):
        def __init__(self, *args):
            made.append(1)
            super().__init__(*args)

    monkeypatch.setattr(shared_prompt, 'EncodedInput', Counted)
    lm = load('pico-seq2seq', device='cpu')
    prompt = lm.encode('forty-two')
    trace = decode(lm, prompt, BestOfN(Sample(Temperature(1.5)), 4), 12)
    assert len(made) == 1
    for s in drawn_sequences(trace):
        alone = decode(lm, prompt, Sample(Temperature(1.5)), 12, seed=s['seed'])
        assert alone.tokens == s['tokens']


def test_stops_reach_every_sequence():
    eos = decode(LM, PROMPT, WARM, 6, seed=2).tokens[2]
    trace = decode(LM, PROMPT, BestOfN(WARM, 8), 6, stop=Stop(eos=(eos,)))
    for s in drawn_sequences(trace):
        assert (s['stopped'] == 'eos') == (s['tokens'][-1] == eos)
        assert eos not in s['tokens'][:-1]
    assert trace.stopped in ('eos', 'length')
    timed = decode(LM, PROMPT, BestOfN(WARM, 3), 30, stop=Stop(seconds=0))
    assert [len(s['tokens']) for s in drawn_sequences(timed)] == [1, 1, 1]
    assert timed.stopped == 'time'
    assert len(timed.tokens) == 1
    hour = decode(LM, PROMPT, BestOfN(WARM, 3), 5, stop=Stop(seconds=3600))
    assert hour.tokens == decode(LM, PROMPT, BestOfN(WARM, 3), 5).tokens
    assert hour.metrics()['target_passes'] == 1 + 3 * 5


def test_streams_and_json():
    trace = decode(LM, PROMPT, BestOfN(WARM, 3), 6)
    flow = stream(LM, PROMPT, BestOfN(WARM, 3), 6)
    assert ''.join(flow) == trace.text
    assert flow.trace.tokens == trace.tokens
    pieces = Counter()
    texts = {i: '' for i in range(3)}
    for i, piece in stream_batch(LM, PROMPTS, BestOfN(WARM, 3), 2, 6):
        texts[i] += piece
        pieces[i] += 1
    assert list(texts.values()) == [
        decode(LM, p, BestOfN(WARM, 3), 6, seed=i).text for i, p in enumerate(PROMPTS)
    ]
    again = type(trace).from_json(trace.to_json())
    assert drawn_sequences(again) == drawn_sequences(trace)


def test_a_failing_reward_costs_only_its_prompt():
    def reward(text):
        if '<63>' in text or text.startswith(first):
            raise RuntimeError('no reward')
        return len(text)

    first = decode(LM, PROMPTS[1], BestOfN(WARM, 2, score=len), 4, seed=1).text[:3]
    batch = decode_batch(LM, PROMPTS, BestOfN(WARM, 2, score=reward), 3, 4, on_error='keep')
    assert 1 in batch.errors
    assert 'no reward' in str(batch.errors[1])
    good = [i for i in range(3) if i not in batch.errors]
    for i in good:
        alone = decode(LM, PROMPTS[i], BestOfN(WARM, 2, score=reward), 4, seed=i)
        assert batch[i].tokens == alone.tokens


def test_nested_choices():
    "The best of majorities, in a batch and alone."
    strategy = BestOfN(SelfConsistency(lambda text: text[:4], WARM, 3), 2)
    alone = [decode(LM, p, strategy, 5, seed=i) for i, p in enumerate(PROMPTS)]
    batch = decode_batch(LM, PROMPTS, strategy, 3, 5)
    assert [t.tokens for t in batch] == [t.tokens for t in alone]
    assert all(len(drawn_sequences(t)) == 2 for t in alone)


def test_nested_choices_count_each_pass_once():
    length = 5
    trace = decode(LM, PROMPT, BestOfN(BestOfN(WARM, 2, score=len), 3, score=len), length)
    assert read(trace) == {LM.name: len(PROMPT) - 1 + 6 * length}
    assert trace.metrics()['target_passes'] == 1 + 6 * length


def test_what_is_read_again_is_not_shared():
    "A sequence that reads other ids from the beginning gets the states of these, in all layers."
    other = [i + 1 for i in PROMPT]
    batcher = Batcher()
    shared = SharedPrompt(batcher)

    def read_layers(first, then=None):
        session = shared.session(LM)
        hidden = session.forward_layers(first, 0, 0, 1)
        if then:
            hidden = session.forward_layers(then, 0, 0, 1)
        return session.forward_layers(hidden, 0, 1, LM.depth)

    runs = [lambda: read_layers(PROMPT), lambda: read_layers(PROMPT, other)]
    with torch.inference_mode():
        values = run_side_by_side(Request(LM, PROMPT, 1, Rng(0)), batcher, runs, 1)
        for value, ids in ((values[0], PROMPT), (values[1], other)):
            session = LM.session()
            hidden = session.forward_layers(ids, 0, 0, 1)
            plain = session.forward_layers(hidden, 0, 1, LM.depth)
            assert torch.allclose(value, plain, atol=1e-4)


def test_a_score_may_read_with_another_model():
    "In a batch and alone; the passes of all judges of a request are joined."

    class Judge(CandidateScorer):
        def score(self, candidate):
            session = candidate.request.batcher.session(SMALL)
            ids = candidate.request.prompt + candidate.tokens
            return session.logits(ids)[0].max().item()

    alone = [decode(LM, p, BestOfN(WARM, 4, Judge()), 5, seed=i) for i, p in enumerate(PROMPTS)]
    batch = decode_batch(LM, PROMPTS, BestOfN(WARM, 4, Judge()), 2, 5)
    assert [t.tokens for t in batch] == [t.tokens for t in alone]
    for trace in alone:
        for s in drawn_sequences(trace):
            by_hand = SMALL.session().logits(trace.prompt + s['tokens'])[0].max().item()
            assert s['score'] == pytest.approx(by_hand, abs=1e-3)
    assert batch.costs[1]['model'] == SMALL.name
    assert batch.costs[1]['passes'] < 3 * 4


# Scores


def test_length_penalties():
    eos = decode(LM, PROMPT, WARM, 6, seed=2).tokens[2]
    for penalty in (0.0, 0.5, 1.0, 2.0):
        strategy = BestOfN(Sample(), 6, LogProbability(penalty))
        trace = decode(LM, PROMPT, strategy, 6, stop=Stop(eos=(eos,)))
        for s in drawn_sequences(trace):
            assert s['score'] == pytest.approx(s['logp'] / len(s['tokens']) ** penalty)


def test_a_reward_reads_nothing_more():
    spec = BASES['assistant']
    with_logps = decode(LM, PROMPT, BestOfN(spec, 3), 8)
    without = decode(LM, PROMPT, BestOfN(spec, 3, score=len), 8)
    more = read(with_logps)[LM.name] - read(without)[LM.name]
    assert more == 3 * 8  # the prompt's last token and the tokens of each but its last, once more


# Votes


def test_votes_are_counted():
    rng = np.random.default_rng(0)
    for _ in range(200):
        answers = [rng.choice(['a', 'b', 'c', None]) for _ in range(9)]
        given = [a for a in answers if a is not None]
        assert count_votes(answers) == dict(Counter(given))
        assert list(count_votes(answers)) == [a for a, _ in Counter(given).most_common()]


@pytest.mark.parametrize('stop', [None, Decided(), ConfidentMajority(0.8)])
def test_voters_do_not_depend_on_the_schedule(stop):
    def answer(text):
        return text[:3] if text[1] != '1' else None

    results = set()
    for at_once in (1, 2, 5, None):
        trace = decode(LM, [7], SelfConsistency(answer, WARM, 9, stop=stop, at_once=at_once), 3)
        results.add(str((trace.tokens, trace.steps[0].info['answers'], votes(trace))))
    batch = decode_batch(LM, [[7]], SelfConsistency(answer, WARM, 9, stop=stop), 1, 3)[0]
    results.add(str((batch.tokens, batch.steps[0].info['answers'], votes(batch))))
    assert len(results) == 1
    whole = decode(LM, [7], SelfConsistency(answer, WARM, 9), 3)
    answers = whole.steps[0].info['answers']
    assert trace.steps[0].info['answers'] == answers[: len(trace.steps[0].info['answers'])]
    if isinstance(stop, Decided):
        assert next(iter(votes(trace))) == next(iter(votes(whole)))


def test_weights_are_probabilities():
    strategy = SelfConsistency(lambda text: text[:2], Sample(), 6, SequenceProbability(0))
    trace = decode(LM, [7], strategy, 2)
    info = trace.steps[0].info
    for s, weight in zip(info['sequences'], info['weights']):
        assert weight == pytest.approx(math.exp(s['logp']))
    assert votes(trace) == count_votes(info['answers'], info['weights'])
    assert [s['weight'] for s in drawn_sequences(trace)] == info['weights']
    assert [s['answer'] for s in drawn_sequences(trace)] == info['answers']
    heaviest = max(
        (i for i, a in enumerate(info['answers']) if a == next(iter(votes(trace)))),
        key=lambda i: info['weights'][i],
    )
    assert trace.tokens == info['sequences'][heaviest]['tokens']
    assert info['winner'] == heaviest


def test_a_weight_that_is_no_weight():
    for weight in (LogProbability(), lambda text: -1, lambda text: math.nan):
        with pytest.raises(ValueError, match='the weight of sequence'):
            decode(LM, PROMPT, SelfConsistency(len, WARM, 3, weight), 3)


def test_answers_that_cannot_be_counted():
    def answer(text):
        return [text]

    for strategy in (SelfConsistency(answer, WARM, 3), DeepConf(answer, WARM, 3, LowestGroup(2))):
        with pytest.raises(TypeError, match='cannot be counted'):
            decode(LM, PROMPT, strategy, 3)


class Silent(Strategy):
    "Draws tokens, or ends at once."

    def decode(self, request):
        if request.rng.uniform() < 0.5:
            yield from WARM.decode(request)


def test_sequences_without_tokens():
    for strategy in (
        BestOfN(Silent(), 8),
        SelfConsistency(len, Silent(), 8, SequenceProbability()),
        DeepConf(len, Silent(), 8, MeanConfidence()),
    ):
        trace = decode(LM, PROMPT, strategy, 3)
        lengths = [len(s['tokens']) for s in drawn_sequences(trace)]
        assert len(trace.tokens) == 3
        assert sorted({*lengths}) == [0, 3]
        assert len(lengths) == 8
    empty = decode(LM, PROMPT, BestOfN(Silent(), 8, score=lambda text: -len(text)), 3)
    assert empty.tokens == []
    assert drawn_sequences(empty)[empty.steps[0].info['winner']]['score'] == 0


# Confidence

MEASURES = {
    MeanConfidence(): lambda c: np.mean(c),
    TailConfidence(3): lambda c: np.mean(c[-3:]),
    LowestGroup(3): lambda c: np.convolve(c, np.ones(3) / 3, 'valid').min(),
    BottomGroups(0.5, 3): lambda c: np.sort(np.convolve(c, np.ones(3) / 3, 'valid'))[
        : (len(c) - 2) // 2
    ].mean(),
}


@pytest.mark.parametrize('base', ['sample', 'assistant'])
@pytest.mark.parametrize('measure', MEASURES, ids=repr)
def test_confidences(measure, base):
    strategy = DeepConf(lambda text: text[:2], BASES[base], 5, measure, keep=0.6, k=4)
    trace = decode(LM, PROMPT, strategy, 8)
    info = trace.steps[0].info
    expected = []
    for s in info['sequences']:
        ids = torch.tensor([PROMPT + s['tokens'][:-1]])
        rows = LM.model(ids).logits[0, len(PROMPT) - 1 :].log_softmax(-1)
        tokens = [-row.sort().values[-4:].mean().item() for row in rows]
        expected.append(MEASURES[measure](np.array(tokens)))
    assert info['confidences'] == pytest.approx(expected, abs=1e-3)
    threshold = np.percentile(info['confidences'], 40)
    voters = [i for i, c in enumerate(info['confidences']) if c >= threshold]
    assert info['voters'] == voters
    assert info['threshold'] == pytest.approx(threshold)
    weights = {}
    for i in voters:
        answer = LM.decode(info['sequences'][i]['tokens'])[:2]
        weights[answer] = weights.get(answer, 0) + info['confidences'][i]
    assert votes(trace) == pytest.approx(weights)


def test_online_ends_where_a_group_falls_below():
    window = 3
    n, warm = 10, 4
    online = DeepConf(lambda text: text[:2], WARM, n, LowestGroup(window), 0.5, warmup=warm, k=4)
    offline = DeepConf(lambda text: text[:2], WARM, n, LowestGroup(window), 0.5, k=4)
    early, whole = (decode(LM, PROMPT, s, 12, seed=1) for s in (online, offline))
    threshold = early.steps[0].info['threshold']
    assert threshold == pytest.approx(np.percentile(whole.steps[0].info['confidences'][:warm], 50))
    ended = 0
    for i, (a, b) in enumerate(zip(drawn_sequences(whole), drawn_sequences(early))):
        ids = torch.tensor([PROMPT + a['tokens'][:-1]])
        rows = LM.model(ids).logits[0, len(PROMPT) - 1 :].log_softmax(-1)
        c = rows.topk(4).values.mean(-1).neg().tolist()
        groups = np.convolve(c, np.ones(window) / window, 'valid')
        low = np.flatnonzero(groups < threshold - 1e-4)
        end = low[0] + window if i >= warm and len(low) else 12
        assert b['tokens'] == a['tokens'][:end], i
        assert (b['stopped'] == 'confidence') == (end < 12)
        ended += end < 12
    assert ended
    assert read(early)[LM.name] < read(whole)[LM.name]
    assert read(early)[LM.name] == len(PROMPT) - 1 + sum(
        len(s['tokens']) for s in drawn_sequences(early)
    )


# Errors


@pytest.mark.parametrize(
    'make, words',
    [
        (lambda: BestOfN(WARM, 0), 'n is 0'),
        (lambda: BestOfN(Greedy(), 2), 'draws no tokens'),
        (lambda: BestOfN(Speculative(AssistantDrafter(SMALL)), 2), 'draws no tokens'),
        (lambda: BestOfN(WARM, 2, at_once=0), 'at_once is 0'),
        (lambda: SelfConsistency(len, WARM, 0), 'n is 0'),
        (lambda: DeepConf(len, WARM, 0), 'n is 0'),
        (lambda: DeepConf(len, WARM, 4, keep=0), 'keep'),
        (lambda: DeepConf(len, WARM, 4, MeanConfidence(), warmup=2), 'only at the end'),
        (
            lambda: DeepConf(len, BASES['assistant'], 4, LowestGroup(2), warmup=2),
            'one token a pass',
        ),
    ],
)
def test_errors(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_no_answer():
    for strategy in (
        SelfConsistency(lambda text: None, WARM, 3),
        DeepConf(lambda text: None, WARM, 3, LowestGroup(2)),
    ):
        with pytest.raises(ValueError, match='sequences that vote has an answer'):
            decode(LM, PROMPT, strategy, 3)
    batch = decode_batch(
        LM, PROMPTS, SelfConsistency(lambda text: None, WARM, 3), 3, 3, on_error='keep'
    )
    assert len(batch.errors) == 3


def test_a_batcher_forgets_what_was_ended():
    "Nothing waits and no slot is taken after an early end."
    batcher = Batcher()
    request = Request(LM, [7], 3, Rng(0))
    request.batcher = batcher
    from decodelab.models.batching import Queue, run_batch

    strategy = SelfConsistency(lambda text: 'same', WARM, 9, stop=Decided(), at_once=3)
    [trace], _ = run_batch(batcher, Queue([request], 1), strategy)
    assert votes(trace) == {'same': 5}
    assert all(not pool.waiting and not pool.sessions for pool in batcher.pools.values())
    assert not batcher.opened
    assert not batcher.transfers
