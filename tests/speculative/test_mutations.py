"""Parts with one flaw each, and the certificate that must notice it.

A row has the flaw, the check that is meant to catch it, and the mutant. `SOUND` has the same checks of the
parts as they are, so that it is the flaw that is caught.
"""

from dataclasses import dataclass

import pytest

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
from decodelab.evaluate.certify import (
    Certificate,
    compare_greedy,
    perturbed,
    statistical_check,
    varied_prompts,
    with_draft_model,
)
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
)
from decodelab.speculative.verifiers import MultiDraftVerifier, residual
from decodelab.strategies.sampling import Scorer
from tests.speculative import flaws
from tests.speculative.flaws import DRAFT

# Verifiers: more of them in `flaws`


class StaleRow(flaws.Wrong):
    "The ratio has the draft's row of the token before."

    def ratio(self, p, draft, i):
        if draft.q is None or i == 0:
            return super().ratio(p, draft, i)
        x = draft.tokens[i]
        return p[i][x] / max(draft.q[i - 1][x], draft.q[i][x] / 100)


class InverseRatio(flaws.Wrong):
    "The ratio upside down."

    def ratio(self, p, draft, i):
        ratio = super().ratio(p, draft, i)
        return 1 / ratio if ratio else ratio


class NoRatio(flaws.Wrong):
    "The target's probability in place of the ratio."

    def ratio(self, p, draft, i):
        return p[i][draft.tokens[i]]


class ResidualOfTheNext(flaws.Wrong):
    "The residual of the position after."

    def rest(self, p, draft, i):
        q = None if draft.q is None else draft.q[i]
        return residual(p[i + 1], q, draft.tokens[i])


class NoResidual(flaws.Wrong):
    "A correction from the target's row itself."

    def rest(self, p, draft, i):
        return p[i]


class RejectedMayReturn(flaws.Wrong):
    "The rejected token keeps half of its probability in the residual."

    def rest(self, p, draft, i):
        rest = super().rest(p, draft, i)
        x = draft.tokens[i]
        if draft.q is not None:
            rest[x] = rest[x] + p[i][x] / 2
        return rest


class FirstUnseen(Verifier):
    "Greedy: accepts the first draft token unseen."

    def verify(self, p, draft, rng):
        n = min(1, len(draft.tokens))
        return Verification(n, rng.categorical(p[n]))


# Drafters


class BetterOfTwo(flaws.Changed):
    "The likelier of two draws."

    def change(self, draft, ids, request, rng):
        for i, q in enumerate(draft.q):
            other = rng.categorical(q)
            draft.tokens[i] = max(draft.tokens[i], other, key=lambda t, q=q: q[t])
        return draft


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


class StaleScorer(flaws.StaleScorer):
    "The row at the cut is stale after every rollback."

    n = 1


class StaleGreedy(flaws.Rescored, Greedy):
    scorer = StaleScorer


class TwiceInBlocksScorer(Scorer):
    "Applies its processors twice to the rows of a block, once to a single row."

    def scores(self, ids, last):
        rows = super().scores(ids, last)
        return rows**2 / (rows**2).sum(-1, keepdim=True) if last > 1 else rows


class TwiceInBlocks(flaws.Rescored, Sample):
    scorer = TwiceInBlocksScorer


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

LOOKAHEAD = FixedLookahead(3)


def sampled(verifier=None, drafter=None, base=None):
    drafter = drafter or AssistantDrafter(DRAFT)
    base = base or Sample()
    certificate = certify(Speculative(drafter, base, verifier, LOOKAHEAD), samples=300)
    return certificate.verdict, [c.passed for c in certificate.checks]


def greedy(verifier=None, drafter=None, base=None):
    drafter = drafter or AssistantDrafter(DRAFT)
    lm = random_lm(seed=0)
    wrong = Speculative(drafter, base or Greedy(), verifier, LOOKAHEAD)
    good = with_draft_model(wrong, perturbed(lm))
    prompts = varied_prompts(6, 64, 0, 2)
    check = compare_greedy([(wrong, lm, prompts), (good, lm, prompts)], 16)
    return Certificate('', [check]).verdict, check.message


def own_target(drafter, base=None, samples=800):
    "The samples of a drafter on a real model, which `certify` does not replace."
    target = random_lm(seed=0, vocab_size=8, scale=0.3)
    strategy = Speculative(
        drafter(random_lm(seed=1, vocab_size=8, scale=0.3)), base or Sample(), None, LOOKAHEAD
    )
    check = statistical_check(strategy, target, [1, 2, 1], n=3, samples=samples)
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


TOKEN_FLAWS = {
    'accepts all': flaws.Lax(lambda draft: True),
    'one uniform for all positions': flaws.OneUniform(),
    'bonus row': flaws.BonusOfTheRowBefore(1),
    'stale q row': StaleRow(),
    'inverse ratio': InverseRatio(),
    'low probability dropped': flaws.LowProbability(4),
    'probability in place of the ratio': NoRatio(),
    'residual of the next position': ResidualOfTheNext(),
    'no residual': NoResidual(),
    'rejected token may return': RejectedMayReturn(),
}
DRAFT_FLAWS = {
    'better of two draws': BetterOfTwo,
    'rows of another temperature': flaws.OwnTemperature,
    'rows one late': flaws.RowsNotDrawnFrom,
}

MUTANTS = {
    **{f'verifier: {f}': ('exact', lambda v=v: sampled(v)) for f, v in TOKEN_FLAWS.items()},
    'verifier of trees: siblings on the same row': (
        'exact',
        lambda: sampled(flaws.SiblingsOnTheSameRow(), TreeDrafter(DRAFT, (2, 1))),
    ),
    'verifier: first token unseen, greedy': ('identity', lambda: greedy(FirstUnseen())),
    'verifier: bonus of the row before, greedy': (
        'identity',
        lambda: greedy(flaws.GreedyBonusOfTheRowBefore()),
    ),
    **{
        f'drafter: {f}': ('statistical', lambda drafter=drafter: own_target(drafter))
        for f, drafter in DRAFT_FLAWS.items()
    },
    'drafter: unlikely last token dropped': (  # the rarest of them
        'statistical',
        lambda: own_target(flaws.DropsTheUnlikely, samples=1500),
    ),
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
    'no draft, everything accepted': lambda: sampled(TOKEN_FLAWS['accepts all'], Never()),
    'a processor that does nothing': lambda: noticed(check_processor, Idle()),
    'a drafter without a draft': lambda: noticed(
        check_drafter, PromptLookupDrafter(), random_lm(), [[1]], Greedy()
    ),
    'a lookahead rule that never drafts': lambda: noticed(check_lookahead, NeverDrafts()),
}

SOUND = {
    'token verification': lambda: sampled(flaws.Wrong()),
    'trees': lambda: sampled(MultiDraftVerifier(), TreeDrafter(DRAFT, (2, 1))),
    'greedy': lambda: greedy(ExactMatchVerifier()),
    'a drafter with its rows': lambda: own_target(AssistantDrafter),
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
