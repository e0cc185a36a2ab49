"""Ten flaws that were invented after the certificates were finished, and that these were not tuned against.

`experiments/mutations.py` runs them once beside those of `flaws.py`; the stored table has those that were found
and those that were not.
"""

import torch

from decodelab import (
    MultiDraftVerifier,
    RepetitionPenalty,
    Sample,
    TokenVerifier,
)
from decodelab.strategies.sampling import Scorer
from tests.speculative.flaws import DRAFT, Changed, Lax, Rescored, Wrong, ends_of, sampled, tree

PAGE = 16  # positions of a block of a paged cache


class CachedByThreeIds(TokenVerifier):
    "Keeps the target's rows in a cache, over requests, whose key is the last three ids."

    def __init__(self):
        self.rows = {}

    def verify(self, p, draft, rng):
        rows = []
        for i, row in enumerate(p):
            key = tuple([*draft.committed, *draft.tokens[:i]][-3:])
            known = self.rows.setdefault(key, row) if len(key) == 3 else row
            rows.append(known if len(known) == len(row) else row)
        return super().verify(rows, draft, rng)


class StaleAtPages(TokenVerifier):
    "At the first position of a page the row is that of the position before."

    def verify(self, p, draft, rng):
        n = len(draft.committed)
        rows = list(p)
        for i in range(1, len(rows)):
            if (n + i) % PAGE == 0:
                rows[i] = p[i - 1]
        return super().verify(rows, draft, rng)


class JoinsLate:
    "True for requests of a batch that begin when others have ended."

    def __init__(self):
        self.rounds = {}  # batch → rounds so far
        self.late = {}  # request → does it join late?

    def __call__(self, draft):
        request = draft.request
        if request.batcher is None:
            return False
        batch = id(request.batcher)
        n = self.rounds[batch] = self.rounds.get(batch, 0) + 1
        return self.late.setdefault(id(request), n > 100)


class DropsSmallResiduals(Wrong):
    "Entries of a residual below 0.01 are dropped, unless nothing is left."

    def rest(self, p, draft, i):
        rest = super().rest(p, draft, i)
        large = rest * (rest * 100 >= 1)
        return large if large.sum() > 0 else rest


class OneNumberForBoth(Wrong):
    "The uniform number that rejects a token draws the correction, too."

    def accepts(self, p, draft, i, rng):
        self.u = rng.uniform()
        return self.u < self.ratio(p, draft, i)

    def correction(self, p, draft, i, rng):
        "The id at which the cumulative residual passes the number."
        rest = self.rest(p, draft, i)
        total, below = rest.sum(), 0
        for token, weight in enumerate(rest):
            below = below + weight
            if weight > 0 and self.u < below / total:
                return token
        return max(token for token, weight in enumerate(rest) if weight > 0)


class NeverRepeats(Changed):
    "A draft in which a token that equals the one before it is replaced by the likeliest other token."

    def change(self, draft, ids, request, rng):
        before = ids[-1]
        for j, x in enumerate(draft.tokens):
            if x == before:
                row = draft.q[j] * 1
                row[x] = 0
                if row.sum() > 0:
                    draft.tokens[j] = int(row.argmax())
            before = draft.tokens[j]
        return draft


class NeverEnds(Wrong):
    "A drafted id that ends a text is never accepted."

    def accepts(self, p, draft, i, rng):
        return draft.tokens[i] not in ends_of(draft) and super().accepts(p, draft, i, rng)


class BlindScorer(Scorer):
    "In a block of rows the processors see the ids before the block alone."

    def processed(self, ids, logits):
        n = len(ids) - len(logits) + 1
        rows = [self.processors(ids[:n], row[None]) for row in logits]
        return torch.cat(rows)


class BlindToTheDraft(Rescored, Sample):
    scorer = BlindScorer


class BonusOfTheNodeBefore(MultiDraftVerifier):
    "After a leaf of a tree the bonus token is of the row of the node before it in the tree."

    def verify(self, p, draft, rng):
        result = super().verify(p, draft, rng)
        path = result.path
        if path and not draft.children(path[-1]):
            result.token = rng.categorical(p[path[-1]])
        return result


class Race:
    "True in one round of fifty, for no reason that a sequence has."

    def __init__(self):
        self.rounds = 0

    def __call__(self, draft):
        self.rounds += 1
        return self.rounds * 7919 % 50 == 0


HELD_BACK = {
    'rows cached by the last three ids': lambda: sampled(CachedByThreeIds()),
    'stale row at the first position of a page': lambda: sampled(StaleAtPages()),
    'accepts all for requests that join a batch late': lambda: sampled(Lax(JoinsLate())),
    'small residuals dropped': lambda: sampled(DropsSmallResiduals()),
    'one number rejects and corrects': lambda: sampled(OneNumberForBoth()),
    'drafts never repeat a token': lambda: sampled(None, NeverRepeats(DRAFT)),
    'ends of a text are never accepted': lambda: sampled(NeverEnds()),
    'penalty blind to the draft': lambda: sampled(base=BlindToTheDraft([RepetitionPenalty(1.3)])),
    'tree: bonus of the node before': lambda: tree(BonusOfTheNodeBefore()),
    'accepts all in one round of fifty': lambda: sampled(Lax(Race())),
}
