"""Parts with one flaw each (`flaws.py`), and the evidence that finds it in its smallest form.

`python experiments/mutations.py` makes whole certificates of all of them; its table is stored beside it.
"""

import pytest

from decodelab import certify, random_lm
from decodelab.evaluate.certify import (
    compare_greedy,
    exact_check,
    perturbed,
    varied_prompts,
    with_draft_model,
    with_near_ties,
)
from tests.speculative import flaws

ON_TABLES = [
    'accepts all where four are drafted',
    'accepts all for prompts over five ids',
    'accepts all after an end of text',
    'accepts all every third round',
    'bonus of the row before, after four',
    'uniform kept for the next round',
    'siblings wrong from depth 3',
    'a child stands twice',
    'rows it did not draw from',
    'drops the unlikely',
    'accepts over 0.6',
    'one uniform for a draft',
    'block verification, first failure',
    'colder from the second round on',
]
ON_MODELS = [
    'accepts all in a batch',
    'drafter peeks',
    'lookahead rule peeks',
    'row of the request before',
    'processors late',
    'blocks cut to the top twenty',
    'stale row after a rollback of three',
]
RAREST = 'row of the request before'
RIGHT = 'token verification', 'trees', 'copies'


@pytest.mark.parametrize('flaw', ON_TABLES)
def test_tables_show_a_flaw(flaw):
    check = exact_check(flaws.SAMPLED[flaw](), paths=500)
    assert check.distance > 0.01, check.message


@pytest.mark.parametrize('flaw', ON_MODELS)
def test_tokens_of_random_models_show_a_flaw(flaw):
    samples = 2500 if flaw == RAREST else 1500
    *_, tokens = certify(flaws.SAMPLED[flaw](), samples=samples, progress=False).checks
    assert tokens.kind == 'every token'
    assert not tokens.passed, tokens.message


@pytest.mark.parametrize('flaw', flaws.GREEDY)
def test_greedy_sequences_show_a_flaw(flaw):
    lm = with_near_ties(random_lm(seed=0))
    prompts = varied_prompts(6, 64, 0, 2)
    strategy = flaws.GREEDY[flaw]()  # with a draft that is mostly wrong
    good = with_draft_model(strategy, perturbed(lm))
    check = compare_greedy([(strategy, lm, prompts), (good, lm, prompts)], 24)
    assert not check.passed, check.message


@pytest.mark.parametrize('name', RIGHT)
def test_strategies_without_a_flaw_pass(name):
    certificate = certify(flaws.RIGHT[name](), samples=1500, progress=False)
    assert certificate.lossless, repr(certificate)
