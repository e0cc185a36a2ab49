"""Random combinations of parts, for a short time: with a fixed seed and with the date's.

`python -m tests.fuzz --minutes 30 --seed 1` is the long form. A failure prints one line of Python that repeats it.
"""

import datetime
import itertools
import os
import random

import pytest

from decodelab.speculative.protocol import Drafter, Verifier
from tests.fuzz import deep, greedy, law
from tests.fuzz.cases import Case, FailedError, RejectedError
from tests.fuzz.models import USUAL, architectures, build
from tests.fuzz.parts import Maker, classes, verifier_call
from tests.fuzz.run import KINDS, run

SECONDS = float(os.environ.get('DECODELAB_FUZZ_SECONDS', 32))  # of processor time, of all searches
PARTS = dict(greedy=9, law=7, around=9, deep=7)  # of each kind
SEEDS = dict(fixed=1, today=datetime.date.today().toordinal())
SHARES = dict(fixed=3 / 4, today=1 / 4)
LEAST = dict(greedy=20, law=20, around=20, deep=3)  # cases that are compared, with the fixed seed


@pytest.mark.parametrize('seed', SEEDS)
@pytest.mark.parametrize('kind', KINDS)
def test_random_combinations(kind, seed):
    names = USUAL
    if seed == 'today':
        names = random.Random(SEEDS[seed]).sample(architectures(), 12)
    seconds = SECONDS * SHARES[seed] * PARTS[kind] / sum(PARTS.values())
    least = LEAST[kind] // (1 if seed == 'fixed' else 5)
    report = run(kind, seconds, SEEDS[seed], names=('llama', *names), least=least)
    assert not report.failed, str(report)
    assert report.compared >= least, str(report)
    assert all(len(sentence.split()) >= 5 for sentence in report.rejected), str(report)


def test_a_long_draft_of_another_vocabulary():
    "A longer one has more paths than a short search has time for."
    case = Case(
        'gpt2',
        'StringRejectionDrafter(lm=other)',
        'ExactMatchVerifier()',
        'FixedLookahead(4)',
        ('DRY(multiplier=1.59)',),
        ((1, 0, 1),),
        4,
    )
    assert deep.check(case)


def test_architectures_that_can_be_tiny():
    assert all(build(a) for a in USUAL)
    assert sum(build(a) is not None for a in architectures()) > 150


# Every drafter in every combination under every verifier, pairwise

COMBINATIONS = dict(
    none='{a}',
    first='FirstOfDrafter({a}, {b})',
    parallel='ParallelDrafter({a}, {b})',
    capped='CappedDrafter(drafter={a}, max_tokens=2)',
    cascade='CascadeDrafter(lm=draft, drafter={a})',
    nested='FirstOfDrafter(CappedDrafter(drafter={a}, max_tokens=1), {b})',
    parallel_of_first='ParallelDrafter(FirstOfDrafter({a}, {b}), {a})',
)
OUTER = ('FirstOfDrafter', 'ParallelDrafter', 'CappedDrafter', 'CascadeDrafter')


def leaves(enumerated: bool) -> dict:
    "Name → expression of each drafter that stands for itself."
    maker = Maker(random.Random(5), 3 if enumerated else 40, enumerated=True)
    return {n: maker.make(c, 0) for n, c in classes(Drafter).items() if n not in OUTER}


def pairs_of(row) -> set[tuple]:
    "The pairs of values that a row has in two columns, with their columns."
    return {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(enumerate(row), 2)}


def rows(*values) -> list[tuple]:
    "Rows in which every pair of values of two columns occurs, chosen greedily with a fixed seed."
    draw = random.Random(0)
    pairs = {
        (i, a, j, b)
        for i, j in itertools.combinations(range(len(values)), 2)
        for a in values[i]
        for b in values[j]
    }
    table = []
    while pairs:
        candidates = []
        for _ in range(60):
            candidates.append(tuple(draw.choice(v) for v in values))
        best = max(candidates, key=lambda row: len(pairs_of(row) & pairs))
        if not pairs_of(best) & pairs:
            i, a, j, b = min(pairs)
            forced = {i: a, j: b}
            best = tuple(forced[k] if k in forced else draw.choice(v) for k, v in enumerate(values))
        pairs -= pairs_of(best)
        table.append(best)
    return table


@pytest.mark.parametrize('kind', ['greedy', 'law'])
def test_every_pair_of_drafter_combination_and_verifier(kind):
    names = leaves(kind == 'law')
    lossless = [c for c in classes(Verifier).values() if c.lossless]
    verifiers = ['None', *(verifier_call(c, lambda: 'TokenVerifier()') for c in lossless)]
    if kind == 'greedy':
        verifiers = ['None', 'ExactMatchVerifier()']
    check = dict(greedy=greedy.check, law=law.check)[kind]
    compared, rejected = 0, 0
    cases = {}  # each once: not every form has a second drafter
    for form, a, b, verifier in rows(list(COMBINATIONS), sorted(names), sorted(names), verifiers):
        cases[COMBINATIONS[form].format(a=names[a], b=names[b]), verifier] = None
    for drafter, verifier in cases:
        n = 2 if kind == 'law' else 8
        case = Case('llama', drafter, verifier, 'FixedLookahead(2)', (), ((1, 2, 1, 2, 1),), n)
        try:
            compared += check(case)
        except RejectedError:
            rejected += 1
        except FailedError as error:
            raise AssertionError(f'{error}\n{kind}.check({case!r})') from error
    assert compared >= 40, (compared, rejected)


PROCESSORS = 'Mirostat(tau=0.7, eta=0.4)', 'Mirostat(tau=2.0, eta=0.1)'


@pytest.mark.parametrize('architecture', ['llama', 'qwen3', 'gpt_neox'])
@pytest.mark.parametrize('verifier', ['ExactMatchVerifier()', 'MultiDraftVerifier()'])
@pytest.mark.parametrize('shape', ['(2,)', '(2, 1)'])
def test_trees_under_a_processor_that_learns_from_scores(architecture, verifier, shape):
    "The rows of the accepted path are those that Mirostat learns from, not those of the last branch."
    drafter = f'TreeDrafter(lm=draft, shape={shape})'
    prompts = [(2,), (0, 1, 0)]
    if ('Multi' in verifier) == (len(shape) > 4):  # so any three of the five meet
        prompts.reverse()
    compared = 0
    for prompt, processor in zip(prompts, PROCESSORS):
        case = Case(
            architecture, drafter, verifier, 'FixedLookahead(2)', (processor,), (prompt,), 3
        )
        compared += law.check(case)
    assert compared >= 1
