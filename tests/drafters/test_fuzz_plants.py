"""Flaws planted in the package, one of each kind, are found by the random combinations of `tests.fuzz`.

Without a flaw the same cases pass, which `test_random_combinations` shows.
"""

import contextlib
import os
from unittest import mock

import pytest

from decodelab.core.driver import SequenceEnds
from decodelab.drafters.suffix import SuffixState
from decodelab.speculative.protocol import ExactMatchVerifier, Verification
from decodelab.speculative.verifiers import BlockVerifier, MultiDraftVerifier, TokenVerifier
from decodelab.strategies.best_of_n import Draws
from decodelab.strategies.budget_forcing import Thinking
from tests.fuzz import deep, greedy
from tests.fuzz.cases import Case
from tests.fuzz.run import fails, first_failure


@contextlib.contextmanager
def altered(cls, name, change):
    "A method whose result is changed: `change(result, self, *arguments)`."
    original = getattr(cls, name)

    def method(self, *arguments, **options):
        return change(original(self, *arguments, **options), self, *arguments)

    with mock.patch.object(cls, name, method):
        yield


def accepts_all(result, self, p, draft, rng):
    "Accepts every draft."
    k = len(draft.tokens)
    return Verification(k, rng.categorical(p[k]))


def wrong_bonus(result, self, p, draft, rng):
    "The bonus token of the row before, once three tokens are accepted."
    k = len(draft.tokens)
    if result.accepted < 3 or result.accepted < k:
        return result
    return Verification(k, rng.categorical(p[k - 1]))


def accepts_four(result, self, p, draft, rng):
    "Accepts all drafts of four tokens and more."
    return accepts_all(result, self, p, draft, rng) if len(draft.tokens) > 3 else result


def accepts_late(result, self, p, draft, rng):
    "Accepts all once the sequence has eight ids."
    late = len(getattr(draft, 'committed', ())) > 7
    return accepts_all(result, self, p, draft, rng) if late else result


def deep_sibling(result, self, p, draft, rng):
    "Below depth two of a tree, the first child instead of the chosen token."
    if draft.parents is None or result.accepted < 2:
        return result
    children = draft.children(result.path[-1])
    return (
        result
        if not children
        else Verification(result.accepted, draft.tokens[children[0]], result.path)
    )


def seventh(result, self, p, draft, rng):
    "The token after six accepted ones is another one."
    return Verification(6, (result.token + 1) % p.shape[-1]) if result.accepted == 6 else result


def raises(result, self, ids, keep_drafting, rng):
    "Raises a sentence for some sequences, which plain decoding does not."
    if len(ids) % 5 == 4:
        raise ValueError('this sequence is not one of those that can be drafted: give another one')
    return result


def no_end(result, self, ids):
    "No token ends a sequence while it is drafted and scored."
    return len(ids)


def forgets_budget(result, self):
    "An end that comes too early is allowed."
    return False


def best_is_first(result, self, write, *arguments):
    "The first of several sequences is chosen whatever it scores."
    for number, candidate in enumerate(filter(None, result)):
        candidate.score = -float(number)
    return result


def in_batches(result, self, p, draft, rng):
    "Under a batch, a draft is accepted whole."
    is_single = draft.request.batcher is None or draft.parents is not None
    return result if is_single else accepts_all(result, self, p, draft, rng)


# flaw → (kind, class, method, change, the most cases until it is found, with a seed of `SEEDS`)
PLANTS = {
    'accepts all': ('law', TokenVerifier, 'verify', accepts_all, 60),
    'accepts all of a block': ('law', BlockVerifier, 'verify', accepts_all, 120),
    'seventh token': ('greedy', ExactMatchVerifier, 'verify', seventh, 10),
    'in batches': ('greedy', ExactMatchVerifier, 'verify', in_batches, 100),
    'raises where plain decoding does not': ('greedy', SuffixState, 'draft', raises, 200),
    'a budget': ('around', Thinking, 'must_continue', forgets_budget, 100),
    'best of several': ('around', Draws, 'write', best_is_first, 100),
    'bonus row after three': ('deep', TokenVerifier, 'verify', wrong_bonus, 60),
}
SEEDS = {'seventh token': 5}  # 1 if not given, with which this one takes seven seconds
LONG = {  # a quarter of a minute each: DECODELAB_FUZZ_PLANTS=1
    'long drafts': ('deep', TokenVerifier, 'verify', accepts_four, 60),
    'late in a sequence': ('deep', TokenVerifier, 'verify', accepts_late, 60),
    'siblings from depth three': ('deep', MultiDraftVerifier, 'verify', deep_sibling, 100),
}
if os.environ.get('DECODELAB_FUZZ_PLANTS'):
    PLANTS |= LONG


@pytest.mark.parametrize('flaw', PLANTS)
def test_a_flaw_is_detected(flaw, monkeypatch):
    kind, cls, name, change, most = PLANTS[flaw]
    monkeypatch.setattr(deep, 'BUDGET', 6)
    with altered(cls, name, change):
        assert first_failure(kind, SEEDS.get(flaw, 1), most, names=('llama', 'gpt2')) is not None


def test_a_processor_behind_an_end_is_detected():
    "A trie raises an error there; the draft is one token by token, which looks for ends among ids alone."
    parts = dict(drafter='AssistantDrafter(lm=target)', verifier='None')
    parts |= dict(lookahead='FixedLookahead(4)', prompts=((1, 2),), n=8)
    cases = [
        Case('llama', processors=(f'Trie({seed})',), stop='Stop(eos=(), when=Every(3))', **parts)
        for seed in range(8)
    ]
    assert any(greedy.check(case) for case in cases)
    with altered(SequenceEnds, 'open_length', no_end):
        assert any(fails(greedy.check, case) for case in cases)
