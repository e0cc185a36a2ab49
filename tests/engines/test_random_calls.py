"Enumerated distributions of random functions against their own draws."

import random

import numpy as np
import pytest
import torch

from decodelab.engines import certify_sampler, enumerate_draws, one_hot
from decodelab.evaluate.certify import g_test


def random_program(seed):
    "A function of a few draws by several libraries, made up from a seed."
    make = np.random.default_rng(seed)
    steps = [(int(make.integers(7)), make.dirichlet([1.0] * 3)) for _ in range(3)]

    def program():
        value = 0
        for kind, weights in steps:
            w = torch.tensor(weights)
            if kind == 0:
                drawn = torch.multinomial(w, 1).item()
            elif kind == 1:
                drawn = int((w / torch.empty_like(w).exponential_()).argmax())
            elif kind == 2:
                drawn = int((torch.rand(2, dtype=torch.float64).log() < w[:2].log()).sum())
            elif kind == 3:
                drawn = int(np.random.choice(3, p=weights))
            elif kind == 4:
                drawn = int(torch.searchsorted(w.cumsum(0), torch.rand(1, dtype=torch.float64)))
            elif kind == 5:
                drawn = random.choices(range(3), weights)[0]
            else:
                drawn = int(np.argmax(np.log(weights) + np.random.gumbel(size=3)))
            value = 3 * value + min(drawn, 2)
            if value % 5 == 4:  # the number of draws depends on them
                break
        return value

    return program


@pytest.mark.parametrize('seed', range(12))
def test_draws_follow_the_enumeration(seed):
    program = random_program(seed)
    exact = enumerate_draws(program)
    assert sum(exact.values()) == pytest.approx(1)
    state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        drawn = [program() for _ in range(3000)]
    np.random.set_state(state[0])
    random.setstate(state[1])
    assert set(drawn) <= set(exact)
    counts = np.array([drawn.count(value) for value in exact], float)
    p_value, _ = g_test(counts, np.array(list(exact.values())))
    assert p_value > 1e-4


def leviathan(p, q, draft, uniform, index, residual=True):
    "The rule by Leviathan et al., with functions that draw a number and an index."
    for i, x in enumerate(draft.tolist()):
        if uniform() >= p[i, x] / q[i, x]:
            row = (p[i] - q[i]).clamp(min=0) if residual else p[i]
            return [*draft[:i].tolist(), index(row)]
    return [*draft.tolist(), index(p[-1])]


SOURCES = {
    'torch': (lambda: torch.rand(()), lambda w: torch.multinomial(w, 1).item()),
    'numpy': (
        np.random.random,
        lambda w: int(np.random.choice(len(w), p=(w.double() / w.double().sum()).numpy())),
    ),
    'random': (random.random, lambda w: random.choices(range(len(w)), w.tolist())[0]),
    'races': (
        lambda: -torch.empty(()).exponential_(),
        lambda w: int((w.log() - (-torch.rand(len(w)).log()).log()).argmax()),
    ),
}


@pytest.mark.parametrize('source', ['torch', 'numpy', 'random'])
@pytest.mark.parametrize('residual', [True, False])
def test_a_rule_by_every_library(source, residual):
    uniform, index = SOURCES[source]
    rule = lambda p, q, draft: leviathan(p, q, draft, uniform, index, residual)
    certificate = certify_sampler(rule, sizes=((3, 1), (3, 2)), pairs=1)
    assert certificate.checks[0].kind == 'exact'
    assert certificate.lossless is residual


def test_logarithms_and_gumbel_numbers():
    "Acceptance by -E < log(p/q), the index by Gumbel numbers."
    uniform, index = SOURCES['races']

    def rule(p, q, draft):
        for i, x in enumerate(draft.tolist()):
            if uniform() >= (p[i, x] / q[i, x]).log():
                return [*draft[:i].tolist(), index((p[i] - q[i]).clamp(min=0))]
        return [*draft.tolist(), index(p[-1])]

    certificate = certify_sampler(rule, sizes=((3, 1), (3, 2)), pairs=1)
    assert certificate.checks[0].kind == 'exact', certificate
    assert certificate.lossless, certificate


def accepted_below(flaw, p, q, draft, i):
    "The number below which a uniform one accepts a drafted token."
    k, x = len(draft), draft[i]
    bound = p[i, x] / q[i, x]
    if flaw == 'ratio of the next row' and i + 1 < k:
        return p[i + 1, x] / q[i, x]
    if flaw == 'third token free' and i == 2:
        return 1.0
    if flaw == 'last token half accepted' and i == k - 1 and k > 1:
        return 0.5 * bound
    return 1.5 * bound if flaw == 'lenient' and i > 1 else bound


def residual(flaw, p, q):
    "The weights of the token after a rejection."
    if flaw == 'absolute residual':
        return (p - q).abs()
    return (p - q).clamp(min=0) + (0.05 * p if flaw == 'residual keeps the token' else 0)


def flawed(flaw):
    "A sampler with one flaw."
    bonus_row = (lambda p, q: q[-1]) if flaw == 'bonus by q' else (lambda p, q: p[-1])

    def sampler(p, q, draft):
        for i in range(len(draft)):
            if torch.rand(()) >= accepted_below(flaw, p, q, draft, i):
                row = residual(flaw, p[i], q[i])
                return [*draft[:i].tolist(), torch.multinomial(row, 1).item()]
        row = bonus_row(p, q)
        token = row.argmax() if flaw == 'bonus by argmax' else torch.multinomial(row, 1)
        return [*draft.tolist(), token.item()]

    return sampler


FLAWS = {
    'ratio of the next row': 'acceptance at position 1',
    'lenient': 'acceptance at position 3',
    'third token free': 'acceptance at position 3',
    'last token half accepted': 'acceptance at position 2',
    'absolute residual': 'residual',
    'residual keeps the token': 'residual',
    'bonus by argmax': 'bonus row',
    'bonus by q': 'bonus row',
}


@pytest.mark.parametrize('flaw', FLAWS)
def test_a_flaw_is_found_and_named(flaw):
    certificate = certify_sampler(flawed(flaw), pairs=1)
    assert certificate.verdict == 'lossy'
    assert FLAWS[flaw] in repr(certificate)


def test_without_a_flaw():
    assert certify_sampler(flawed(''), pairs=1).lossless
    assert certify_sampler(flawed(''), one_hot, pairs=1).lossless


LATE = """
import random
from random import random as drawn


def sampler(p, q, draft):
    ids = []
    for i, x in enumerate(draft.tolist()):
        if drawn() >= p[i, x] / q[i, x]:
            rest = (p[i] - q[i]).clamp(min=0).tolist()
            return [*ids, random.choices(range(len(rest)), rest)[0]]
        ids.append(x)
    return [*ids, random.choices(range(p.shape[1]), p[-1].tolist())[0]]
"""


def test_a_module_that_a_sampler_imports_late_keeps_the_real_generators(tmp_path, monkeypatch):
    (tmp_path / 'late_sampler.py').write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path)

    def late(p, q, draft):
        from late_sampler import sampler

        return sampler(p, q, draft)

    certificate = certify_sampler(late, pairs=1)
    from late_sampler import drawn

    assert drawn == random.random
    assert certificate.lossless, certificate
    assert certificate.checks[0].kind == 'exact', certificate
