"""The exact law: the distribution of a sampled combination, by enumerating the code that draws.

A model with a vocabulary of three tokens in float64, and every outcome of every random choice. The oracle
multiplies the probabilities of plain sampling, by the model's full forward pass, over all sequences.
"""

import itertools
import time

import numpy as np

from decodelab import Sample, Stop
from decodelab.core.driver import Request, Rng, iter_steps
from decodelab.logits.processor_list import LogitsProcessorList
from tests.fuzz.cases import SECONDS, Case, FailedError, RefusedError, judged, time_limit, world_of
from tests.fuzz.models import full_logits

VOCABULARY = 3
PATHS = 600  # of an enumeration; more are counted as skipped
BUDGET = 10  # seconds of an enumeration, likewise
TOLERANCE = 1e-6


class TooManyPathsError(Exception):
    "More paths than `PATHS`."


class ForbiddenError(Exception):
    "Processors that leave no token."


class Enumerator:
    "Stands in for `Rng` along one path of choices over floating-point probabilities."

    seed = 0
    generator = None

    def __init__(self, path):
        self.path = path
        self.taken = []
        self.untried = []
        self.weight = 1.0

    def choose(self, probs) -> int:
        at = len(self.taken)
        possible = [i for i, p in enumerate(probs) if p > 1e-15]
        if at < len(self.path):
            choice = self.path[at]
        else:
            choice = possible[0]
            self.untried += [(*self.taken, i) for i in possible[1:]]
        self.taken.append(choice)
        self.weight *= probs[choice]
        return choice

    def categorical(self, weights) -> int:
        weights = np.asarray([float(w) for w in weights], float)
        if not 0 < weights.sum() < np.inf:
            raise RefusedError(
                'the processors leave the drafter no token, which Rng refuses in a sentence'
            )
        return self.choose(weights / weights.sum())

    def uniform(self):
        return Interval(self)


class Interval:
    "A uniform number of which only an interval is known."

    def __init__(self, rng):
        self.rng = rng
        self.low, self.high = 0.0, 1.0

    def __lt__(self, x):
        x = min(max(float(x), self.low), self.high)
        width = self.high - self.low
        below = (x - self.low) / width if width > 0 else 1.0
        if self.rng.choose([below, 1 - below]) == 0:
            self.high = x
            return True
        self.low = x
        return False

    __le__ = __lt__

    def __ge__(self, x):
        return not self < x

    __gt__ = __ge__


def outcomes(run):
    paths, count = [()], 0
    end = time.monotonic() + BUDGET
    while paths:
        count += 1
        if count > PATHS or time.monotonic() > end:
            raise TooManyPathsError
        rng = Enumerator(paths.pop())
        value = run(rng)
        paths += rng.untried
        yield value, rng.weight


def plain_law(case: Case, target, processors) -> dict | None:
    "Sequence → probability under plain sampling; None where the processors forbid every token."
    law = {}
    prompt = list(case.prompts[0])

    def extend(tokens, weight):
        if weight < 1e-14:
            return
        if len(tokens) == case.n or (tokens and tokens[-1] in case.eos):
            law[tokens] = law.get(tokens, 0) + weight
            return
        probs = distribution(case, target, processors, prompt, tokens)
        if not np.isfinite(probs).all():
            raise ForbiddenError
        for token, p in enumerate(probs):
            if p > 0:
                extend((*tokens, token), weight * float(p))

    try:
        extend((), 1.0)
    except ForbiddenError:
        return None
    return law


def distribution(case, target, processors, prompt, tokens):
    "The base's distribution after `tokens`; processors with memory see every row before."
    request = Request(target, prompt, case.n, Rng(0), Stop(eos=case.eos))
    bound = LogitsProcessorList(processors).bind(request)
    for length in range(len(tokens) + 1):
        ids = [*prompt, *tokens[:length]]
        scores = bound(ids, full_logits(target.model, ids)[None])
    return scores[0].softmax(-1).tolist()


def check(case: Case):
    "Raise `FailedError` or `RefusedError`; return whether there was anything to compare."
    world = world_of(case.architecture, VOCABULARY)
    with time_limit(SECONDS), judged():
        named = world.named(case)
        target = named['target']
        processors = case.bound_processors(named)
        strategy = case.strategy(Sample(processors), named)

        def run(rng):
            request = Request(target, list(case.prompts[0]), case.n, rng, Stop(eos=case.eos))
            steps = iter_steps(request, strategy)
            return tuple(itertools.chain.from_iterable(step.tokens for step, _ in steps))

        plain = plain_law(case, target, processors)
        if plain is None:
            return False
        law = {}
        try:
            for tokens, weight in outcomes(run):
                law[tokens] = law.get(tokens, 0) + weight
        except TooManyPathsError:
            return False
    distance = sum(abs(law.get(t, 0) - plain.get(t, 0)) for t in law.keys() | plain.keys()) / 2
    if distance > TOLERANCE:
        raise FailedError(f'TV = {distance:.6f} from plain sampling, over {len(plain)} sequences')
    return True
