"""The exact law: the distribution of a sampled combination, by enumerating the code that draws.

A model with a vocabulary of three tokens in float64, and every outcome of every random choice. The oracle
multiplies the probabilities of plain sampling, by the model's full forward pass, over all sequences.
"""

import itertools
import time

import numpy as np
import torch

from decodelab import Sample, Stop
from decodelab.core.driver import Request, Rng, iter_steps
from decodelab.evaluate.exact import Enumerator, Interval
from decodelab.logits.processor_list import LogitsProcessorList
from tests.fuzz.cases import SECONDS, Case, FailedError, RejectedError, judged, time_limit, world_of
from tests.fuzz.models import full_logits

VOCABULARY = 3
PATHS = 600  # of an enumeration; more are counted as skipped
BUDGET = 10  # seconds of an enumeration, likewise
TOLERANCE = 1e-6


class TooManyPathsError(Exception):
    "More paths than `PATHS`."


class ForbiddenError(Exception):
    "Processors that leave no token."


class FloatEnumerator(Enumerator):
    "The enumerator of exact certificates, over floating-point probabilities."

    seed = 0
    generator = None

    def categorical(self, weights) -> int:
        weights = np.asarray([float(w) for w in weights], float)
        if not 0 < weights.sum() < np.inf:
            raise RejectedError(
                'the processors leave the drafter no token, which Rng refuses in a sentence'
            )
        probs = weights / weights.sum()
        return self.choose(np.where(probs > 1e-15, probs, 0).tolist())

    def uniform(self):
        return FloatInterval(self)


class FloatInterval(Interval):
    "A uniform number, compared with floating-point numbers and tensors."

    def __lt__(self, x) -> bool:
        return super().__lt__(float(x))

    __le__ = __lt__


def outcomes(run):
    paths, count = [()], 0
    end = time.monotonic() + BUDGET
    while paths:
        count += 1
        if count > PATHS or time.monotonic() > end:
            raise TooManyPathsError
        rng = FloatEnumerator(paths.pop())
        value = run(rng)
        paths += rng.untried
        yield value, rng.weight


def plain_distribution(case: Case, target, processors) -> dict | None:
    "Sequence → probability under plain sampling; None where the processors forbid every token."
    probabilities = {}
    prompt = list(case.prompts[0])

    def extend(tokens, weight):
        if weight < 1e-14:
            return
        if len(tokens) == case.n or (tokens and tokens[-1] in case.eos):
            probabilities[tokens] = probabilities.get(tokens, 0) + weight
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
    return probabilities


def distribution(case, target, processors, prompt, tokens):
    "The base's distribution after `tokens`; processors with memory see every row before."
    request = Request(target, prompt, case.n, Rng(0), Stop(eos=case.eos))
    bound = LogitsProcessorList(processors).bind(request)
    for length in range(len(tokens) + 1):
        ids = [*prompt, *tokens[:length]]
        scores = bound(ids, full_logits(target.model, ids)[None])
    return scores[0].softmax(-1).tolist()


@torch.no_grad()
def own_rounding(model, ids) -> float:
    """How far transformers' own step with a cache is from its own full forward pass, as probabilities.

    Zero but for models that compute in float32 inside, whatever their weights are in: recurrent states.
    """
    worst = 0.0
    past = None
    for i, token in enumerate(ids):
        row = torch.tensor([[token]])
        out = model(input_ids=row, past_key_values=past, use_cache=True)
        past = out.past_key_values
        full = full_logits(model, ids[: i + 1]).softmax(-1)
        worst = max(worst, float((out.logits[0, -1].double().softmax(-1) - full).abs().max()))
    return worst


def worst_rounding(case: Case, target) -> float:
    "What the model's own rounding may add to the distance of two distributions over sequences."
    endings = itertools.product(range(VOCABULARY), repeat=case.n)
    try:
        step = max(own_rounding(target.model, [*case.prompts[0], *end]) for end in endings)
    except (TypeError, ValueError, AttributeError):  # it has no such cache
        return 0.0
    return 2 * case.n * step


def check(case: Case):
    "Raise `FailedError` or `RejectedError`; return whether there was anything to compare."
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

        plain = plain_distribution(case, target, processors)
        if plain is None:
            return False
        probabilities = {}
        try:
            for tokens, weight in outcomes(run):
                probabilities[tokens] = probabilities.get(tokens, 0) + weight
        except TooManyPathsError:
            return False
    distance = (
        sum(
            abs(probabilities.get(t, 0) - plain.get(t, 0))
            for t in probabilities.keys() | plain.keys()
        )
        / 2
    )
    if distance > TOLERANCE and distance > TOLERANCE + worst_rounding(case, target):
        raise FailedError(f'TV = {distance:.6f} from plain sampling, over {len(plain)} sequences')
    return True
