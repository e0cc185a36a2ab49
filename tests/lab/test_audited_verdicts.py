"""Verdicts that an audit found unfounded: rows that do not carry a claim leave it open, or refute it.

The figures are those that the audit read in the tables of that time.
"""

import csv

import numpy as np
import pytest
from repo import ROOT

from decodelab.core.metrics import Interval
from decodelab.lab import Claim, Difference, Monotone, Ratio, Turning, judge

TABLES = sorted((ROOT / 'experiments' / 'results').glob('*.verdicts.csv'))


def units(means, n=6, spread=0.03):
    "A row for each of `n` units around the means of some positions, `(n, positions)`."
    noise = np.random.default_rng(0).normal(size=(n, len(means)))
    return np.array(means) * (1 + spread * (noise - noise.mean(0)))


def verdict(rule, sample):
    "True, False, or None for an open claim."
    (row,) = judge({'x': Claim('a claim', 'a source', rule)}, {'x': (sample, 'why')})
    return row['agrees']


FALLS_FIRST = 1.09, 1.01, 0.91, 1.17, 1.08, 0.99, 0.96  # over exits
NEVER_TURNED = 0.69, 0.75, 0.78, 0.73, 0.63, 0.64, 0.64  # over batches
SHAPES = {
    'the best exit is inside, and the first step falls': (Turning(), units(FALLS_FIRST)),
    'the last gain is below the first, and steps between rise': (
        Monotone(rises=False),
        units(NEVER_TURNED),
    ),
    'a loss at every batch is no turn into a loss': (
        Difference(low=0),
        {'gain at 1': units(NEVER_TURNED)[:, 0] - 1, 'loss at 64': 1 - units(NEVER_TURNED)[:, -1]},
    ),
    'T(9) costs what T(1) costs, and T(65) does not': (
        Ratio(high=1.1),
        {'T(9)': units([0.85])[:, 0], 'T(65)': units([2.67])[:, 0]},
    ),
    'one pass of each width': (Ratio(high=1.1), {'T(9)': [0.85], 'T(17)': [0.9]}),
    'no loss in the measured range': (Difference(low=0), {'loss at 16': units([-0.02])[:, 0]}),
    'an interval that only touches 5 to 8 %': (Ratio(1.05, 1.08), Interval(1.099, 1.005, 1.172)),
}


@pytest.mark.parametrize('name', SHAPES)
def test_rows_that_do_not_carry_a_claim_do_not_agree(name):
    rule, sample = SHAPES[name]
    assert verdict(rule, sample) is not True


def test_rows_that_carry_it_do():
    assert verdict(Turning(), units([0.9, 1.0, 1.2, 1.0, 0.9])) is True
    assert verdict(Monotone(rises=False), units([1.2, 1.0, 0.8])) is True
    assert verdict(Ratio(1.05, 1.08), Interval(1.065, 1.06, 1.07)) is True


def test_a_theorem_is_not_refuted_by_eighteen_texts():
    "Never fewer tokens, measured at −8 % with an interval across 0: open."
    assert verdict(Ratio(low=1), Interval(0.92, 0.80, 1.06)) is None


def test_a_verdict_pays_for_the_others_of_its_notebook():
    claims = {str(i): Claim(f'claim {i}', 'a source', Difference(low=0)) for i in range(8)}
    rng = np.random.default_rng(1)
    noise = {str(i): (rng.normal(size=12), 'why') for i in range(1, 8)}
    effect = 0.12 + np.linspace(-0.25, 0.25, 12)
    alone = judge({'0': claims['0']}, {'0': (effect, 'why')})
    beside = judge(claims, {'0': (effect, 'why')} | noise)
    assert alone[0]['agrees'] is True
    assert beside[0]['agrees'] is None
    assert 'one of 8 claims, and alone it would decide' in beside[0]['why']


def stored():
    "`(table, row)` of each stored verdict."
    for path in TABLES:
        with open(path, newline='', encoding='utf-8') as file:
            for row in csv.DictReader(file):
                yield path.name.split('.')[0], row


def test_stored_claims_name_the_shape_that_they_state():
    rules = {(name[:2], row['claim']): row['rule'] for name, row in stored()}
    turning = 'rises to a best position between the ends, then falls'
    assert rules['04', 'speed rises to a best exit and falls'] == turning
    shrinks = 'the gain of speculation shrinks as the batch grows'
    assert rules['14', shrinks] == 'falls with each step'


def test_one_claim_has_one_rule():
    rules = {}
    for name, row in stored():
        rules.setdefault((name, row['claim']), set()).add((row['source'], row['rule']))
    assert all(len(of_one) == 1 for of_one in rules.values())
    in_percent = {name for name, claim in rules if '7 to 10 %' in claim}
    assert in_percent == {'13_block_verification'}  # judged once, with eight drafted tokens


def test_token_verification_is_compared_with_itself():
    sources = {row['claim']: row['source'] for _, row in stored()}
    processors = 'logits processors applied once accept more than those applied twice'
    assert 'token verification on both sides' in sources[processors]


def test_no_stored_verdict_is_decided_above_the_level():
    decided = [row for _, row in stored() if row['p'] and row['agrees']]
    assert len(decided) > 40
    assert max(float(row['p']) for row in decided) <= 0.05
