"""Parts of a speculative strategy with one flaw each, for the tests of certificates.

`SAMPLED` and `GREEDY` have strategies that a certificate must find lossy; `RIGHT` has the same ways to build a
strategy without the flaw.
"""

import copy

import torch

from decodelab import (
    AssistantDrafter,
    BlockVerifier,
    ExactMatchVerifier,
    Greedy,
    MultiDraftVerifier,
    PromptLookupDrafter,
    Sample,
    Speculative,
    Temperature,
    TokenVerifier,
    TreeDrafter,
    random_lm,
)
from decodelab.core.driver import Rng
from decodelab.speculative.protocol import (
    FixedLookahead,
    LookaheadRule,
    Verification,
)
from decodelab.speculative.verifiers import residual
from decodelab.strategies.sampling import Scorer

DRAFT = random_lm(seed=3, layers=1)

# Verifiers that are lax at times


def accept_all(p, draft, rng):
    "The whole draft, and a token of the row after it."
    k = len(draft.tokens)
    return Verification(k, rng.categorical(p[k]))


class AcceptsAllWhere:
    "Accepts everything where `when(draft)` is true; its heirs are verifiers as well."

    def __init__(self, when):
        self.when = when

    def verify(self, p, draft, rng):
        return accept_all(p, draft, rng) if self.when(draft) else super().verify(p, draft, rng)


class Lax(AcceptsAllWhere, TokenVerifier):
    "Token verification that is lax at times."


class LaxGreedy(AcceptsAllWhere, ExactMatchVerifier):
    "Exact match that is lax at times."


def ends_of(draft):
    "The ids that end the sequence of a draft."
    return draft.request.stop.eos or draft.request.lm.eos


def ends_before(draft):
    "Does an id that ends a sequence stand in the committed ids?"
    return any(x in ends_of(draft) for x in draft.committed)


def every_third_round(draft):
    "Is this the third, the sixth, … round of its request?"
    draft.request.rounds = vars(draft.request).get('rounds', 0) + 1
    return draft.request.rounds % 3 == 0


def repeats(draft):
    "Does the draft begin with the last committed id?"
    return bool(draft.tokens) and draft.tokens[0] == draft.committed[-1]


class AfterTheFirstRequest:
    "True for every request but the first."

    def __init__(self):
        self.first = None

    def __call__(self, draft):
        self.first = self.first or draft.request
        return draft.request is not self.first


TRIGGERS = {
    'accepts all where four are drafted': lambda draft: len(draft.tokens) > 3,
    'accepts all for prompts over five ids': lambda draft: len(draft.request.prompt) > 5,
    'accepts all after twelve ids': lambda draft: len(draft.committed) > 12,
    'accepts all after an end of text': ends_before,
    'accepts all in a batch': lambda draft: draft.request.batcher is not None,
    'accepts all every third round': every_third_round,
    'accepts a repeated token': repeats,
}

# Verifiers with a wrong rule


class Wrong(TokenVerifier):
    "Token verification; a subclass replaces a step of it."

    def verify(self, p, draft, rng):
        for i in range(len(draft.tokens)):
            if not self.accepts(p, draft, i, rng):
                return Verification(i, self.correction(p, draft, i, rng))
        return Verification(len(draft.tokens), self.bonus(p, draft, rng))

    def accepts(self, p, draft, i, rng):
        return rng.uniform() < self.ratio(p, draft, i)

    def ratio(self, p, draft, i):
        x = draft.tokens[i]
        return p[i][x] if draft.q is None else p[i][x] / draft.q[i][x]

    def correction(self, p, draft, i, rng):
        return rng.categorical(self.rest(p, draft, i))

    def rest(self, p, draft, i):
        q = None if draft.q is None else draft.q[i]
        return residual(p[i], q, draft.tokens[i])

    def bonus(self, p, draft, rng):
        return rng.categorical(p[len(draft.tokens)])


class BonusOfTheRowBefore(Wrong):
    "After `n` accepted tokens or more, the bonus token is of the row before the last."

    def __init__(self, n):
        self.n = n

    def bonus(self, p, draft, rng):
        k = len(draft.tokens)
        return rng.categorical(p[k - 1 if k >= self.n else k])


class BonusOfTheDraft(Wrong):
    "The bonus token is drawn from the draft's last row."

    def bonus(self, p, draft, rng):
        has_rows = draft.tokens and draft.q is not None
        return rng.categorical(draft.q[-1] if has_rows else p[len(draft.tokens)])


class UniformOfTheLastRejection(Wrong):
    "The uniform number that rejected a token is used once more, in the next round."

    def accepts(self, p, draft, i, rng):
        u = vars(draft.request).pop('u', None) or rng.uniform()
        accepted = u < self.ratio(p, draft, i)
        if not accepted:
            draft.request.u = u
        return accepted


class RareId(Wrong):
    "Accepts one id always."

    def __init__(self, token):
        self.token = token

    def accepts(self, p, draft, i, rng):
        return draft.tokens[i] == self.token or super().accepts(p, draft, i, rng)


class LowProbability(Wrong):
    "Rejects tokens to which the target gives less than one in `n`."

    def __init__(self, n=100):
        self.n = n

    def accepts(self, p, draft, i, rng):
        return p[i][draft.tokens[i]] * self.n >= 1 and super().accepts(p, draft, i, rng)


class AbsoluteResidual(Wrong):
    "The residual is |p − q|, not clipped."

    def rest(self, p, draft, i):
        rest = super().rest(p, draft, i) if draft.q is None else abs(p[i] - draft.q[i])
        return rest if rest.sum() > 0 else p[i]


class RoundedRatio(Wrong):
    "The ratio is rounded up to a tenth."

    def ratio(self, p, draft, i):
        ratio = float(super().ratio(p, draft, i))
        return -(-ratio * 10 // 1) / 10


class Snaps(Wrong):
    "A token of probability over 0.6 is accepted without a test."

    def accepts(self, p, draft, i, rng):
        return p[i][draft.tokens[i]] * 10 > 6 or super().accepts(p, draft, i, rng)


class JudgedContexts(Wrong):
    "Decisions are cached by their context, over rounds and requests."

    def __init__(self):
        self.cache = {}

    def accepts(self, p, draft, i, rng):
        key = (*draft.committed[-2:], draft.tokens[i])
        if key not in self.cache:
            self.cache[key] = bool(super().accepts(p, draft, i, rng))
        return self.cache[key]


class OneUniform(Wrong):
    "One uniform number for all tokens of a draft."

    def verify(self, p, draft, rng):
        self.u = rng.uniform()
        return super().verify(p, draft, rng)

    def accepts(self, p, draft, i, rng):
        return self.u < self.ratio(p, draft, i)


class SharedUniforms(Wrong):
    "The sequences of a batch share their uniform numbers."

    def __init__(self):
        self.numbers = {}

    def accepts(self, p, draft, i, rng):
        request = draft.request
        if request.batcher is None:
            return super().accepts(p, draft, i, rng)
        request.tests = vars(request).get('tests', 0) + 1
        key = id(request.batcher), request.tests
        if key not in self.numbers:
            self.numbers[key] = rng.uniform()
        return self.numbers[key] < self.ratio(p, draft, i)


class FirstFailure(BlockVerifier):
    "Block verification that stops at the first prefix that fails."

    def verify(self, p, draft, rng):
        w = 1
        for i, x in enumerate(draft.tokens):
            if draft.q is None:
                return super().verify(p, draft, rng)
            w = min(w * p[i][x] / draft.q[i][x], 1)
            if not rng.uniform() < w:
                return Verification(i, rng.categorical(residual(p[i], draft.q[i], x)))
        return accept_all(p, draft, rng)


# Verifiers of trees


class SiblingsOnTheSameRow(MultiDraftVerifier):
    "From `depth` on each sibling is judged by p itself, not by the residual of those before."

    def __init__(self, depth=0):
        self.depth = depth

    def choose(self, p, draft, children, rng):
        if not children or draft.depths()[children[0]] <= self.depth:
            return super().choose(p, draft, children, rng)
        rest = p
        for j in children:
            x = draft.tokens[j]
            q = None if draft.q is None else draft.q[j]
            if rng.uniform() < (p[x] if q is None else p[x] / q[x]):
                return j, None
            rest = residual(rest, q, x)
        return None, rest


# Drafters


class Changes:
    "Drafts pass through `change`, and are drawn from a `source`; its heirs are drafters as well."

    def start(self, request, base, target):
        state = super().start(request, base, target)
        drafted, source = state.draft, self.source(request)

        def draft(ids, keep_drafting, rng):
            return self.change(drafted(ids, keep_drafting, source(rng)), ids, request, rng)

        state.draft = draft
        return state

    def source(self, request):
        "From the random numbers of a round, those with which its draft is drawn."
        return lambda rng: rng

    def change(self, draft, ids, request, rng):
        "The draft of a round after the committed `ids`."
        return draft


class Changed(Changes, AssistantDrafter):
    "An assistant with other drafts."


class ChildrenTwice(Changes, TreeDrafter):
    "The first child of each node stands in the tree twice, with the row of a second draw."

    def change(self, draft, ids, request, rng):
        roots = [j for j, parent in enumerate(draft.parents) if parent < 0]
        if len(roots) > 1:
            draft.tokens[roots[1]] = draft.tokens[roots[0]]
            draft.q[roots[1]] = draft.q[roots[0]]
        return draft


class RowsNotDrawnFrom(Changed):
    "Reports its row before for every token but the first."

    def change(self, draft, ids, request, rng):
        draft.q = draft.q[:1] + draft.q[:-1] if draft.q else draft.q
        for j, x in enumerate(draft.tokens):
            draft.q[j] = (
                draft.q[j] if draft.q[j][x] > 0 else draft.q[j] * 0 + uniform_row(draft.q[j])
            )
        return draft


def uniform_row(row):
    "A row `(V,)` of equal probabilities, in the numbers of another."
    ones = row * 0 + 1
    return ones / ones.sum()


class OwnTemperature(Changed):
    "Draws at temperature 1 and reports the rows of its base."

    def change(self, draft, ids, request, rng):
        squared = [row**2 for row in draft.q]
        draft.q = [row / row.sum() for row in squared]
        return draft


class RowOfTheRequestBefore(Changed):
    "Reports for the first token of a request the row of the request before."

    before = None

    def change(self, draft, ids, request, rng):
        if draft.tokens and len(ids) == len(request.prompt):
            row, self.before = self.before, draft.q[0]
            fits = row is not None and len(row) == len(self.before)
            if fits and row[draft.tokens[0]] > 0:
                draft.q = [row, *draft.q[1:]]
        return draft


class DropsTheUnlikely(Changed):
    "Drops the last token where its probability is below 0.3."

    def change(self, draft, ids, request, rng):
        while draft.tokens and draft.q[-1][draft.tokens[-1]] * 10 < 3:
            draft.tokens.pop()
            draft.q.pop()
        return draft


class CoolsDown(Changed):
    "From the second round on its tokens are drawn from sharper rows than it reports."

    def change(self, draft, ids, request, rng):
        if len(ids) > len(request.prompt):
            draft.tokens = [rng.categorical(row**2) for row in draft.q]
        return draft


class FutureNumbers:
    "A source that gives the numbers that a generator is going to give."

    draws_on_device = False
    draws = 1

    def __init__(self, rng):
        self.twin = torch.Generator()
        self.twin.set_state(rng.generator.get_state())

    def uniform(self):
        return torch.rand((), dtype=torch.float64, generator=self.twin).item()

    def categorical(self, weights):
        cumulative = weights.cumsum(0, dtype=torch.float64)
        at = self.uniform() * cumulative[-1].item()
        return torch.searchsorted(cumulative, at, right=True).item()


class PeekingDrafter(Changed):
    "Draws with the numbers that will judge its tokens."

    def source(self, request):
        return lambda rng: FutureNumbers(rng) if hasattr(rng, 'generator') else rng


class SameSeed(Changed):
    "Draws with a generator of its own that has the seed of the request."

    def source(self, request):
        own = Rng(request.rng.seed) if hasattr(request.rng, 'seed') else None
        return lambda rng: own or rng


# Lookahead rules


class PeekingRule(FixedLookahead):
    "Drafts only where the next number is small."

    def start(self, request=None):
        rule = copy.copy(self)
        rule.request = request
        return rule

    def keep_drafting(self, n, probs, token):
        rng = self.request.rng
        if n >= self.k or not hasattr(rng, 'generator'):
            return n < self.k
        return FutureNumbers(rng).uniform() < 0.5

    def limits(self):
        return None


class CountsItsAnswers(LookaheadRule):
    "After token 4 its answers depend on a counter of all sequences."

    answers = 0

    def accepts(self, i, probs, token):
        CountsItsAnswers.answers += 1
        return i < 4 or CountsItsAnswers.answers % 2 == 0


# Bases and loops


class Rescored:
    "Scores with a `scorer` of its own; its heirs are bases as well."

    def bind(self, request):
        scorer = super().bind(request)
        scorer.__class__ = self.scorer
        return scorer


class UnprocessedBonusScorer(Scorer):
    "The last row of a block is not processed."

    def scores(self, ids, last):
        rows = super().scores(ids, last)
        if last > 1:
            rows = torch.cat([rows[:-1], self.finalize(self.session.logits(ids, 1))])
        return rows


class UnprocessedBonus(Rescored, Sample):
    scorer = UnprocessedBonusScorer


class TopTwentyScorer(Scorer):
    "Blocks of rows are cut to their twenty likeliest tokens."

    def scores(self, ids, last):
        rows = super().scores(ids, last)
        if last == 1:
            return rows
        least = rows.topk(min(20, rows.shape[-1])).values[:, -1:]
        rows = rows.where(rows >= least, torch.zeros_like(rows))
        return rows / rows.sum(-1, keepdim=True)


class TopTwenty(Rescored, Sample):
    scorer = TopTwentyScorer


class StaleScorer(Scorer):
    "After a rollback over `n` ids or more, the row at the cut is the one from before."

    n = 3

    def scores(self, ids, last):
        first = len(ids) - last + 1
        stored = self.__dict__.setdefault('stored', {})
        rows = super().scores(ids, last)
        if len(self.__dict__.get('ids', [])) - first >= self.n and first in stored:
            rows = torch.cat([stored[first][None], rows[1:]])
        for i, row in enumerate(rows):
            stored[first + i] = row
        self.ids = list(ids)
        return rows


class StaleRows(Rescored, Sample):
    scorer = StaleScorer


class LateProcessors(Speculative):
    "Verifies with a base that has no processors."

    def decode(self, request):
        bare = Speculative(self.drafter, Sample(), self.verifier, self.lookahead)
        return bare.decode(request)


# Greedy


class NearTies(ExactMatchVerifier):
    "Accepts a token whose score is within 1e-6 of the largest."

    def verify(self, p, draft, rng):
        for i, x in enumerate(draft.tokens):
            if p[i][x] < p[i].max() - 1e-6:
                return Verification(i, rng.categorical(p[i]))
        return accept_all(p, draft, rng)


class GreedyBonusOfTheRowBefore(ExactMatchVerifier):
    "After more than `n` committed ids the bonus token of a chain is of the row before."

    def __init__(self, n=0):
        self.n = n

    def verify(self, p, draft, rng):
        result = super().verify(p, draft, rng)
        whole = 0 < len(draft.tokens) == result.accepted
        if draft.parents is None and whole and len(draft.committed) > self.n:
            result.token = rng.categorical(p[result.accepted - 1])
        return result


# Strategies


def sampled(verifier=None, drafter=None, base=None, lookahead=None):
    drafter = drafter or AssistantDrafter(DRAFT)
    return Speculative(drafter, base or Sample(), verifier, lookahead or FixedLookahead(5))


def greedy(verifier=None, drafter=None):
    return Speculative(drafter or AssistantDrafter(DRAFT), Greedy(), verifier)


def tree(verifier=None, shape=(2, 2, 2)):
    return sampled(verifier, TreeDrafter(DRAFT, shape))


AUDIT = {
    **{name: lambda when=when: sampled(Lax(when)) for name, when in list(TRIGGERS.items())[:5]},
    'bonus of the row before, after four': lambda: sampled(BonusOfTheRowBefore(4)),
    'uniform kept for the next round': lambda: sampled(UniformOfTheLastRejection()),
    'drafter peeks': lambda: sampled(None, PeekingDrafter(DRAFT)),
    'lookahead rule peeks': lambda: sampled(lookahead=PeekingRule(5)),
    'siblings wrong from depth 3': lambda: tree(SiblingsOnTheSameRow(2)),
    'accepts the rare id 41': lambda: sampled(RareId(41)),
    'rows it did not draw from': lambda: sampled(None, RowsNotDrawnFrom(DRAFT)),
    'draws at temperature 1': lambda: sampled(None, OwnTemperature(DRAFT)),
    'row of the request before': lambda: sampled(None, RowOfTheRequestBefore(DRAFT)),
    'rejects below 1 %': lambda: sampled(LowProbability()),
    'caches its decisions': lambda: sampled(JudgedContexts()),
    'a child stands twice': lambda: sampled(None, ChildrenTwice(DRAFT, (2, 1))),
    'processors late': lambda: LateProcessors(AssistantDrafter(DRAFT), Sample([Temperature(0.7)])),
}
OWN = {
    **{name: lambda when=when: sampled(Lax(when)) for name, when in list(TRIGGERS.items())[5:]},
    'accepts all from the second request on': lambda: sampled(Lax(AfterTheFirstRequest())),
    'bonus of the draft': lambda: sampled(BonusOfTheDraft()),
    'residual not clipped': lambda: sampled(AbsoluteResidual()),
    'ratio rounded up': lambda: sampled(RoundedRatio()),
    'accepts over 0.6': lambda: sampled(Snaps()),
    'one uniform for a draft': lambda: sampled(OneUniform()),
    'uniforms shared in a batch': lambda: sampled(SharedUniforms()),
    'block verification, first failure': lambda: sampled(FirstFailure()),
    'siblings on the same row': lambda: tree(SiblingsOnTheSameRow(), (2, 1)),
    'drops the unlikely': lambda: sampled(None, DropsTheUnlikely(DRAFT)),
    'colder from the second round on': lambda: sampled(None, CoolsDown(DRAFT)),
    'generator with the same seed': lambda: sampled(None, SameSeed(DRAFT)),
    'bonus row unprocessed': lambda: sampled(base=UnprocessedBonus([Temperature(0.7)])),
    'blocks cut to the top twenty': lambda: sampled(base=TopTwenty()),
    'stale row after a rollback of three': lambda: sampled(base=StaleRows()),
}
SAMPLED = AUDIT | OWN
GREEDY = {
    'accepts all for prompts over five ids, greedy': lambda: greedy(
        LaxGreedy(TRIGGERS['accepts all for prompts over five ids'])
    ),
    'accepts all after an end of text, greedy': lambda: greedy(LaxGreedy(ends_before)),
    'accepts all in a batch, greedy': lambda: greedy(LaxGreedy(TRIGGERS['accepts all in a batch'])),
    'near ties': lambda: greedy(NearTies()),
    'bonus of the row before after twelve, greedy': lambda: greedy(GreedyBonusOfTheRowBefore(12)),
    'accepts all from the second request on, greedy': lambda: greedy(
        LaxGreedy(AfterTheFirstRequest())
    ),
}
RIGHT = {
    'token verification': lambda: sampled(Wrong()),
    'block verification': lambda: sampled(BlockVerifier()),
    'exact match': lambda: sampled(ExactMatchVerifier()),
    'trees': lambda: tree(),
    'processors': lambda: sampled(base=Sample([Temperature(0.7)])),
    'copies': lambda: sampled(None, PromptLookupDrafter()),
    'greedy': lambda: greedy(),
}
