"""Parts with one flaw each, and the certificate that must notice it.

A row has the flaw, the check that is meant to catch it, and the mutant. `SOUND` has the same checks of the
parts as they are, so that it is the flaw that is caught.
"""

from dataclasses import dataclass

import pytest
import torch

from decodelab import (
    AssistantDrafter,
    Greedy,
    PromptLookupDrafter,
    RepetitionPenalty,
    Sample,
    Speculative,
    Temperature,
    TokenVerifier,
    TopP,
    TreeDrafter,
    certify,
    random_lm,
)
from decodelab.core import driver
from decodelab.evaluate.certify import perturbed
from decodelab.evaluate.part_checks import check_drafter, check_processor
from decodelab.logits.warpers import LogitsProcessor, Warper
from decodelab.models.session import LM
from decodelab.speculative.lookahead import check_lookahead
from decodelab.speculative.protocol import (
    Draft,
    Drafter,
    DraftState,
    ExactMatchVerifier,
    FixedLookahead,
    LookaheadRule,
    Verification,
    Verifier,
    draft_chain,
)
from decodelab.speculative.verifiers import MultiDraftVerifier, residual
from decodelab.strategies.sampling import Scorer

# Verifiers of chains


class AcceptAll(Verifier):
    "Accepts every draft token."

    def verify(self, p, draft, rng):
        return Verification(len(draft.tokens), rng.categorical(p[len(draft.tokens)]))


class FlawedToken(Verifier):
    "Token verification with one flaw."

    greedy = False

    def __init__(self, flaw):
        self.flaw = flaw

    def verify(self, p, draft, rng):
        k = len(draft.tokens)
        u = rng.uniform()
        for i, x in enumerate(draft.tokens):
            q = draft.q[i] if draft.q is not None else None
            if not self.accepts(p, draft.q, i, x, u, rng):
                return Verification(i, self.corrected(p, q, i, x, rng))
            if self.flaw != 'one uniform for all positions':
                u = rng.uniform()
        return Verification(k, rng.categorical(p[max(k - 1, 0) if self.flaw == 'bonus row' else k]))

    def accepts(self, p, q, i, x, u, rng):
        if q is None:
            return u < p[i][x]
        target, proposed = p[i][x], q[i][x]
        if self.flaw == 'stale q row':
            proposed = max(q[max(i - 1, 0)][x], proposed * 0 + proposed / 100)
        if self.flaw == 'inverse ratio':
            return u < (proposed / target if target else 0)
        if self.flaw == 'low probability dropped' and target * 4 < 1:
            return False
        if self.flaw == 'probability in place of the ratio':
            return u < target
        return u < target / proposed

    def corrected(self, p, q, i, x, rng):
        if self.flaw == 'residual of the next position':
            return rng.categorical(residual(p[i + 1], q, x))
        if self.flaw == 'no residual':
            return rng.categorical(p[i])
        if self.flaw == 'rejected token may return' and q is not None:
            rest = residual(p[i], q, x)
            rest[x] = rest[x] + p[i][x] / 2
            return rng.categorical(rest)
        return rng.categorical(residual(p[i], q, x))


class FirstUnseen(Verifier):
    "Greedy: accepts the first draft token unseen."

    def verify(self, p, draft, rng):
        n = min(1, len(draft.tokens))
        return Verification(n, rng.categorical(p[n]))


class BonusOfTheRowBefore(ExactMatchVerifier):
    "Greedy: after a draft that is accepted whole, the token of the row before the last."

    def verify(self, p, draft, rng):
        result = super().verify(p, draft, rng)
        if draft.tokens and result.accepted == len(draft.tokens):
            result.token = rng.categorical(p[len(draft.tokens) - 1])
        return result


# Verifiers of trees


class SiblingsOnTheSameRow(MultiDraftVerifier):
    "Judges each sibling by the target's own distribution, not by the residual of those before."

    def choose(self, p, draft, children, rng):
        rest = p
        for j in children:
            x = draft.tokens[j]
            q = None if draft.q is None else draft.q[j]
            if rng.uniform() < (p[x] if q is None else p[x] / q[x]):
                return j, None
            rest = residual(rest, q, x)
        return None, rest


# Drafters


class FlawedDrafter(Drafter, DraftState):
    "Drafts from a model with one flaw."

    def __init__(self, lm, flaw):
        self.lm = lm
        self.flaw = flaw

    def start(self, request, base, target):
        self.base_scorer = base.bind(driver.Request(self.lm, request.prompt, 1, request.rng))
        return self

    def draft(self, ids, keep_drafting, rng):
        row = lambda sequence: self.base_scorer.scores(sequence, 1)[0]
        rule = keep_drafting
        if self.flaw == 'unlikely last token dropped':
            rule = lambda n, probs, token: (
                keep_drafting(n, probs, token) and (probs is None or probs.prob(token) > 0.3)
            )
        tokens, rows = draft_chain(row, ids, rule, rng)
        if self.flaw == 'unlikely last token dropped' and tokens and rows[-1][tokens[-1]] <= 0.3:
            tokens.pop()
            rows.pop()
        if self.flaw == 'better of two draws':
            for i, q in enumerate(rows):
                other = rng.categorical(q)
                tokens[i] = max(tokens[i], other, key=lambda t, q=q: q[t])
        if self.flaw == 'rows of another temperature':
            rows = [q**2 / (q**2).sum() for q in rows]
        if self.flaw == 'rows one late':
            rows = rows[:1] + rows[:-1]
        return Draft(tokens, rows)


class Never(Drafter, DraftState):
    "Proposes no token."

    def start(self, request, base, target):
        return self

    def draft(self, ids, keep_drafting, rng):
        return Draft([])


class TooMany(Drafter, DraftState):
    "Never asks whether to go on."

    def start(self, request, base, target):
        return self

    def draft(self, ids, keep_drafting, rng):
        return Draft([1] * 9)


# Scorers and processors


class StaleScorer(Scorer):
    "Forgets the rollback: rows of rejected tokens stay in a cache that is read by length alone."

    def scores(self, ids, last):
        if not hasattr(self, 'cache'):
            self.cache = {}
        rows = super().scores(ids, last)
        first = len(ids) - last
        for i in range(last):
            self.cache.setdefault(first + i, rows[i])
        return torch.stack([self.cache[first + i] for i in range(last)])


class StaleGreedy(Greedy):
    "Greedy search with the stale scorer."

    def bind(self, request):
        scorer = super().bind(request)
        scorer.__class__ = StaleScorer
        return scorer


class TwiceInBlocks(Sample):
    "Applies its processors twice to the rows of a block, once to a single row."

    def bind(self, request):
        scorer = super().bind(request)
        plain = scorer.scores

        def scores(ids, last):
            rows = plain(ids, last)
            return rows**2 / (rows**2).sum(-1, keepdim=True) if last > 1 else rows

        scorer.scores = scores
        return scorer


class Counting:
    "Another answer at every call."

    calls = 0

    def __call__(self, ids, scores):
        self.calls += 1
        return scores * self.calls


@dataclass(frozen=True)
class Overwriting(Warper):
    "Writes into the scores that it is given."

    def __call__(self, ids, scores):
        scores[:, 0] = -1e4
        return scores


@dataclass(frozen=True)
class OneHistoryForAllRows(LogitsProcessor):
    "Penalises the tokens of the whole block in each of its rows."

    def bind(self, request):
        def penalized(ids, scores):
            scores = scores.clone()
            scores[:, ids] -= 2
            return scores

        return penalized


class Idle:
    def __call__(self, ids, scores):
        return scores.clone()


# Lookahead rules


class ReadsAClock(LookaheadRule):
    calls = 0

    def accepts(self, i, probs, token):
        ReadsAClock.calls += 1
        return ReadsAClock.calls % 3 > 0


class RemembersSequences(LookaheadRule):
    seen = []

    def accepts(self, i, probs, token):
        self.seen.append(token)
        return len(self.seen) % 5 > 0


class HiddenArgument(LookaheadRule):
    def __init__(self, threshold=0.5):
        super().__init__(4)
        self.threshold = threshold

    def __repr__(self):
        return 'HiddenArgument()'


class NeverDrafts(LookaheadRule):
    def keep_drafting(self, n, probs, token):
        return False


# Checks: whether the flaw is noticed

DRAFT = random_lm(seed=3, layers=1)
LOOKAHEAD = FixedLookahead(3)


def sampled(verifier=None, drafter=None, base=None):
    drafter = drafter or AssistantDrafter(DRAFT)
    base = base or Sample()
    certificate = certify(Speculative(drafter, base, verifier, LOOKAHEAD), samples=600)
    return certificate.verdict, [c.passed for c in certificate.checks]


def greedy(verifier=None, drafter=None, base=None):
    drafter = drafter or AssistantDrafter(DRAFT)
    strategy = Speculative(drafter, base or Greedy(), verifier, LOOKAHEAD)
    return certify(strategy, max_new_tokens=16).verdict, None


def own_target(drafter, base=None):
    "The samples of a drafter on a real model, which `certify` does not replace."
    from decodelab.evaluate.certify import Certificate, statistical_check

    target = random_lm(seed=0, vocab_size=8, scale=0.3)
    strategy = Speculative(
        drafter(random_lm(seed=1, vocab_size=8, scale=0.3)), base or Sample(), None, LOOKAHEAD
    )
    check = statistical_check(strategy, target, [1, 2, 1], n=3, samples=1500)
    return Certificate('', [check]).verdict, None


def noticed(check, *args):
    "The verdict of a check that raises."
    try:
        check(*args)
    except AssertionError as error:
        return ('not exercised' if 'so nothing was checked' in str(error) else 'lossy'), str(error)
    return 'lossless', None


def with_prompts(drafter):
    return noticed(check_drafter, drafter, random_lm(), [[1], [3, 4, 3, 4]], Greedy())


def stops_at_the_last_token_only():
    "The driver looks for the end of a sequence at the last token of a step."
    real = driver.end_of_step

    def flawed(step, tokens, stopper, max_new_tokens):
        tokens.extend(step.tokens[:-1])
        last = driver.Step(step.tokens[-1:])
        reason, n = real(last, tokens, stopper, max_new_tokens)
        return reason, len(step.tokens) - 1 + n

    driver.end_of_step = flawed
    try:
        return greedy()
    finally:
        driver.end_of_step = real


TOKEN_FLAWS = (
    'one uniform for all positions',
    'bonus row',
    'stale q row',
    'inverse ratio',
    'low probability dropped',
    'probability in place of the ratio',
    'residual of the next position',
    'no residual',
    'rejected token may return',
)
DRAFT_FLAWS = (
    'unlikely last token dropped',
    'better of two draws',
    'rows of another temperature',
    'rows one late',
)

MUTANTS = {
    'verifier: accepts all': ('exact', lambda: sampled(AcceptAll())),
    **{f'verifier: {f}': ('exact', lambda f=f: sampled(FlawedToken(f))) for f in TOKEN_FLAWS},
    'verifier of trees: siblings on the same row': (
        'exact',
        lambda: sampled(SiblingsOnTheSameRow(), TreeDrafter(DRAFT, (2, 1))),
    ),
    'verifier: first token unseen, greedy': ('identity', lambda: greedy(FirstUnseen())),
    'verifier: bonus of the row before, greedy': (
        'identity',
        lambda: greedy(BonusOfTheRowBefore()),
    ),
    **{
        f'drafter: {f}': ('statistical', lambda f=f: own_target(lambda lm: FlawedDrafter(lm, f)))
        for f in DRAFT_FLAWS
    },
    'drafter: more tokens than allowed': ('check_drafter', lambda: with_prompts(TooMany())),
    'base: rollback forgotten': ('identity', lambda: greedy(base=StaleGreedy())),
    'base: processors applied twice in blocks': (
        'statistical',
        lambda: own_target(AssistantDrafter, TwiceInBlocks([Temperature(0.7)])),
    ),
    'driver: end of a sequence ignored inside a block': ('identity', stops_at_the_last_token_only),
    'processor: counts its calls': (
        'check_processor',
        lambda: noticed(check_processor, Counting()),
    ),
    'processor: changes its input': (
        'check_processor',
        lambda: noticed(check_processor, Overwriting()),
    ),
    'processor: one history for all rows': (
        'check_processor',
        lambda: noticed(check_processor, OneHistoryForAllRows()),
    ),
    'lookahead: reads a clock': (
        'check_lookahead',
        lambda: noticed(check_lookahead, ReadsAClock()),
    ),
    'lookahead: remembers other sequences': (
        'check_lookahead',
        lambda: noticed(check_lookahead, RemembersSequences()),
    ),
    'lookahead: hides an argument': (
        'check_lookahead',
        lambda: noticed(check_lookahead, HiddenArgument()),
    ),
}

IDLE = {
    'no draft, everything accepted': lambda: sampled(AcceptAll(), Never()),
    'a processor that does nothing': lambda: noticed(check_processor, Idle()),
    'a drafter without a draft': lambda: noticed(
        check_drafter, PromptLookupDrafter(), random_lm(), [[1]], Greedy()
    ),
    'a lookahead rule that never drafts': lambda: noticed(check_lookahead, NeverDrafts()),
}

SOUND = {
    'token verification': lambda: sampled(FlawedToken('none')),
    'trees': lambda: sampled(MultiDraftVerifier(), TreeDrafter(DRAFT, (2, 1))),
    'greedy': lambda: greedy(ExactMatchVerifier()),
    'a drafter with its rows': lambda: own_target(lambda lm: FlawedDrafter(lm, 'none')),
    'processors once': lambda: own_target(AssistantDrafter, Sample([Temperature(0.7)])),
    'processors': lambda: noticed(check_processor, RepetitionPenalty(1.3)),
    'top-p': lambda: noticed(check_processor, TopP(0.7)),
    'a lookahead rule': lambda: noticed(check_lookahead, FixedLookahead(2)),
}


@pytest.mark.parametrize('flaw', MUTANTS)
def test_flaws_are_caught(flaw):
    _, check = MUTANTS[flaw]
    verdict, details = check()
    assert verdict == 'lossy', (verdict, details)


@pytest.mark.parametrize('name', IDLE)
def test_nothing_exercised_is_nothing_certified(name):
    verdict, details = IDLE[name]()
    assert verdict == 'not exercised', (verdict, details)


@pytest.mark.parametrize('name', SOUND)
def test_the_parts_without_a_flaw_pass(name):
    verdict, details = SOUND[name]()
    assert verdict == 'lossless', (verdict, details)


def test_there_are_twenty_mutants_of_every_kind_of_part():
    kinds = {name.split(':')[0].split()[0] for name in MUTANTS}
    assert len(MUTANTS) >= 20
    assert kinds == {
        'verifier',
        'drafter',
        'base',
        'driver',
        'processor',
        'lookahead',
    }
    assert isinstance(perturbed(DRAFT), LM)
    assert TokenVerifier().lossless
