"experiments/watermark_tradeoff.py against closed forms and an oracle in NumPy."

import itertools
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from repo import ROOT

from decodelab import AssistantDrafter, GreenList, SynthID, Temperature, decode, load
from decodelab.watermark import DiPmark
from decodelab.watermark.dual_gumbel import DualGumbel, HarmonicGumbel, TripleGumbel, harmonic_score
from decodelab.watermark.null import GammaNull

sys.path.insert(0, str(ROOT / 'experiments'))
from watermark_tradeoff import (
    cyclic_model,
    evidence_rate,
    markov_pair,
    mean_acceptance,
    schemes,
    tradeoff_rows,
)

TARGET, OTHER = markov_pair()
P, Q = (m.logits.softmax(-1)[0].numpy() for m in (TARGET, OTHER))
BETA, ALIKE = mean_acceptance(TARGET, OTHER), float(P @ Q)


def prompts(n, vocab_size=50, seed=0):
    return np.random.default_rng(seed).integers(0, vocab_size, (n, 5)).tolist()


def expected(rate, n):
    "Tokens of a pass, where each of n drafted tokens is accepted at this rate."
    return (1 - rate ** (n + 1)) / (1 - rate)


def test_models_have_the_same_agreement_at_each_position():
    p, q = (m.logits.softmax(-1) for m in (TARGET, OTHER))
    betas = torch.minimum(p, q).sum(-1)
    assert torch.allclose(betas, betas[0])
    assert torch.equal(p[7], p[0].roll(7))
    assert pytest.approx(betas[0].item()) == BETA
    assert mean_acceptance(TARGET, TARGET) == pytest.approx(1)
    assert TARGET.session().logits([3, 4, 5], 2).equal(TARGET.logits[[4, 5]])
    assert mean_acceptance(*markov_pair(distance=0)) == pytest.approx(1)
    assert mean_acceptance(*markov_pair(distance=3.0)) < betas[0]


def test_schemes_of_a_watermark():
    four = ['no mark', 'mark on p', 'mark on q', 'mark on both']
    both = schemes(AssistantDrafter(OTHER), DualGumbel(7), [Temperature(0.8)], 3)
    assert list(both) == [*four, 'dual key, as published', 'dual key', 'keyed acceptance']
    assert list(schemes(AssistantDrafter(OTHER), GreenList(7))) == four
    assert both['keyed acceptance'][1] == TripleGumbel(7)
    assert both['mark on p'][1] == DualGumbel(7).a


def test_rows_and_errors():
    drafter = AssistantDrafter(OTHER)
    names = ['no mark', 'dual key']
    rows = tradeoff_rows(TARGET, drafter, prompts(1), names=names, lengths=(2,), max_new_tokens=20)
    assert [(r['scheme'], r['n']) for r in rows] == [
        ('no drafter', 0),
        ('no mark', 2),
        ('dual key', 2),
    ]
    assert rows[0]['aatps'] == 1
    assert math.isnan(rows[0]['anlppt_se'])
    with pytest.raises(ValueError, match="no scheme 'dual key' with GreenList"):
        tradeoff_rows(TARGET, drafter, prompts(1), GreenList(7), ['dual key'], max_new_tokens=4)
    flat = cyclic_model(torch.zeros(200, dtype=torch.float64))
    with pytest.raises(ValueError, match='fewer new tokens'):
        tradeoff_rows(flat, drafter, prompts(1), names=[], lengths=(), max_new_tokens=400)


@pytest.fixture(scope='module')
def table():
    "Six texts of 60 tokens for each point."
    watermark = HarmonicGumbel(42, alpha=0.3)
    rows = tradeoff_rows(TARGET, AssistantDrafter(OTHER), prompts(6), watermark, lengths=(1, 3))
    frame = pd.DataFrame(rows)
    assert len(frame) == 1 + 2 * 7
    assert (frame.tokens == 360).all()
    return frame.set_index(['n', 'scheme'])


def test_speed_is_that_of_theory(table):
    by_ratio = ('no mark', 'mark on q', 'dual key', 'dual key, as published', 'keyed acceptance')
    for n in (1, 3):
        for name in by_ratio:
            assert abs(table.aatps[n, name] / expected(BETA, n) - 1) < 0.15, (n, name)
        assert abs(table.aatps[n, 'mark on p'] / expected(ALIKE, n) - 1) < 0.1
        on_both = table.aatps[n, 'mark on both']
        assert table.aatps[n, 'mark on p'] < on_both < expected(BETA, n) * 1.02


def test_strength_has_the_order_of_the_sources(table):
    strong = table.anlppt.unstack()
    plain = strong.loc[0, 'no drafter']
    full = strong.loc[[1, 3], ['mark on p', 'mark on both']]
    assert (abs(full / plain - 1) < 0.2).all(axis=None)
    assert (strong['no mark'].dropna() < 0.1).all()
    assert (strong['mark on q'].dropna() < strong['dual key'].dropna()).all()
    assert (strong[['dual key', 'keyed acceptance']].dropna() < plain).all(axis=None)


def picked(probabilities, u):
    "The token of each row that the Gumbel trick draws by the uniform numbers u."
    return (np.log(np.maximum(probabilities, 1e-300)) - np.log(-np.log(u))).argmax(-1)


def simulated(n, alpha, rng, texts=500, length=60):
    "ANLPPT of each scheme from tokens drawn one by one."
    N = texts * length
    A = rng.random((N, len(P)))
    B = rng.random((N, len(P)))
    coin = rng.random(N)
    x, bonus = picked(Q, A), rng.random(N) < BETA**n / expected(BETA, n)
    accepted = coin < (P / Q)[x]
    residual = np.maximum(P - Q, 0)
    rows = np.arange(N)

    def judged(u_replaced, u_bonus):
        "Tokens where replacements and bonus tokens are drawn by these uniform numbers."
        replaced = np.where(accepted, x, picked(residual, u_replaced))
        return np.where(bonus, picked(P, u_bonus), replaced)

    def scores(tokens, u):
        return -np.log1p(-u[rows, tokens])

    coin = np.where(bonus, rng.random(N), coin)
    routed = np.where(bonus & (coin >= 1 - alpha), picked(P, B), judged(B, A))
    weighted = {
        'mark on both': (picked(P, A), 1.0),
        'mark on q': (judged(rng.random(A.shape), rng.random(A.shape)), 1.0),
        'dual key, as published': (judged(B, B), 1 - alpha),
        'dual key': (judged(B, A), 1 - alpha),
        'keyed acceptance': (routed, np.clip(1 - 2 * alpha * coin, 0, 1)),
    }
    result = {}
    for name, (tokens, weight) in weighted.items():
        total = harmonic_score(scores(tokens, A), scores(tokens, B), weight)
        sums = total.reshape(texts, length).sum(1)
        logs = [math.log(GammaNull().tail(s, length)) for s in sums]
        result[name] = -np.mean(logs) / length
    return result


def test_strength_is_that_of_single_tokens(table):
    rng = np.random.default_rng(0)
    theory = pd.DataFrame({n: simulated(n, 0.3, rng) for n in (1, 2, 3, 4)})
    strong, error = table.anlppt.unstack(), table.anlppt_se.unstack()
    for n, name in itertools.product((1, 3), theory.index):
        bound = 4 * max(error.loc[n, name], 0.02)
        assert abs(theory.loc[name, n] - strong.loc[n, name]) < bound, (n, name)
    order = ['mark on q', 'dual key, as published', 'dual key', 'keyed acceptance', 'mark on both']
    for weaker, stronger in itertools.pairwise(order):
        assert (theory.loc[weaker] < theory.loc[stronger]).all(), (weaker, stronger)
    uniform = rng.random((20_000, len(P)))
    same = (picked(P, uniform) == picked(Q, uniform)).mean()
    assert BETA / (2 - BETA) < same < BETA
    for n in (1, 3):
        assert abs(table.aatps[n, 'mark on both'] / expected(same, n) - 1) < 0.1


def test_other_watermarks():
    watermarks = {
        'GreenList': GreenList(42, 0.5, 2.0, 2),
        'SynthID': SynthID(tuple(range(1001, 1031)), ngram_len=3),
        'DiPmark': DiPmark(42, context=2),
    }
    for name, watermark in watermarks.items():
        rows = tradeoff_rows(TARGET, AssistantDrafter(OTHER), prompts(3), watermark, lengths=(3,))
        frame = pd.DataFrame(rows).set_index('scheme')
        assert frame.anlppt['mark on p'] > 2 * frame.anlppt['no mark'], name
        assert frame.aatps['mark on p'] < frame.aatps['no mark'], name


def test_the_harmonic_mean_forgives_a_wrong_weight():
    "The same eight texts, read with several weights of key B, by the sum and by the harmonic mean."
    scores = {}
    for name in ('dual key', 'dual key, as published'):
        strategy = schemes(AssistantDrafter(OTHER), DualGumbel(42), n=3)[name][0]
        traces = [
            decode(TARGET, prompt, strategy, 60, seed=i) for i, prompt in enumerate(prompts(8))
        ]
        for kind in (DualGumbel, HarmonicGumbel):
            rates = scores[name, kind.__name__] = {}
            for alpha in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5):
                watermark = kind(42, alpha=alpha)
                rates[alpha] = float(np.mean([evidence_rate(watermark, t) for t in traces]))
    frame = pd.DataFrame(scores)
    published = frame['dual key, as published']
    assert published.HarmonicGumbel[0.1] > 1.1 * published.DualGumbel[0.1]
    loss = (frame.min() / frame.max())['dual key, as published']
    assert loss.HarmonicGumbel > loss.DualGumbel
    assert published.max().max() < frame['dual key'].max().max()


def test_a_real_pair():
    lm, draft = load('pico', device='cpu'), load('pico-draft', device='cpu')
    rows = tradeoff_rows(
        lm,
        AssistantDrafter(draft),
        ['import os\n', 'class Reader:\n', 'def main(args):\n'],
        HarmonicGumbel(42, alpha=0.4),
        ['no mark', 'mark on both', 'dual key', 'keyed acceptance'],
        (3,),
        [Temperature(0.9)],
        40,
    )
    frame = pd.DataFrame(rows).set_index('scheme')
    columns = frame.anlppt[['mark on both', 'dual key', 'keyed acceptance']]
    assert min(columns) > 5 * frame.anlppt['no mark']
    assert frame.aatps['no drafter'] == 1 < frame.aatps['dual key']
