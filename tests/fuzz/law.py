"""The exact law: the distribution of a sampled combination, by enumerating the code that draws.

A model with a vocabulary of three tokens (`deep`: two, and long drafts) in float64, and every outcome of every
random choice. The oracle
multiplies the probabilities of plain sampling, by the model's full forward pass, over all sequences.
"""

import itertools
import math
import time

import numpy as np
import torch

from decodelab import Sample, Stop
from decodelab.core.driver import NoTokenError, Request, iter_steps
from decodelab.evaluate.certify import Exercised, sequence_distribution
from decodelab.evaluate.exact import Enumerator, Interval
from decodelab.logits.processor_list import LogitsProcessorList
from tests.fuzz.cases import SECONDS, Case, FailedError, Kind, judged, time_limit, world_of
from tests.fuzz.models import build_replayed, full_logits
from tests.fuzz.parts import has_ended

KIND = Kind(3, lengths=(1, 2, 4), new_tokens=(1, 2, 2, 3), enumerated=True)
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
        weights = np.asarray(weights, float).tolist()
        total = sum(weights)
        if total == 0:
            raise NoTokenError('the weights sum to 0, as Rng says it in a longer sentence')
        if not 0 < total < np.inf:
            raise FailedError(f'the weights of a draw sum to {total}')
        return self.choose([w / total if w > 1e-15 * total else 0 for w in weights])

    def uniform(self):
        return FloatInterval(self)


ROUNDING = 1e-12  # of an acceptance probability: p / q where both are one row, read in two shapes


class FloatInterval(Interval):
    "A uniform number, compared with floating-point numbers and tensors."

    def __lt__(self, x) -> bool:
        x = float(x)
        return super().__lt__(x if ROUNDING < x < 1 - ROUNDING else round(x))

    __le__ = __lt__


def outcomes(run, most: int, seconds: float):
    paths, count = [()], 0
    end = time.process_time() + seconds
    while paths:
        count += 1
        if count > most or time.process_time() > end:
            raise TooManyPathsError
        rng = FloatEnumerator(paths.pop())
        value = run(rng)
        paths += rng.untried
        yield value, rng.weight


def enumerated(request, strategy, most: int, seconds: float, observe=None) -> dict:
    """Sequence → probability under a strategy, by every outcome of its draws.

    `request(rng)` opens a path; `observe`, if given, sees the steps of each.
    """
    probabilities = {}

    def run(rng):
        steps = [step for step, _ in iter_steps(request(rng), strategy)]
        if observe is not None:
            observe(steps)
        return tuple(itertools.chain.from_iterable(step.tokens for step in steps))

    for tokens, weight in outcomes(run, most, seconds):
        probabilities[tokens] = probabilities.get(tokens, 0) + weight
    return probabilities


def total_variation(a: dict, b: dict) -> float:
    "Half the sum of absolute differences."
    return sum(abs(a.get(t, 0) - b.get(t, 0)) for t in a.keys() | b.keys()) / 2


def distance_from_base(strategy, lm, prompt, n: int) -> tuple[float, Exercised]:
    "How far the first `n` tokens of a strategy are from plain sampling, exactly, and what its paths exercised."
    exercised = Exercised()

    def observe(steps):
        for step in steps:
            exercised.add(step)

    def request(rng):
        return Request(lm, list(prompt), n, rng, Stop(eos=()))

    sequences = itertools.product(range(lm.vocab_size), repeat=n)
    plain = dict(zip(sequences, sequence_distribution(strategy.base, lm, list(prompt), n)))
    probabilities = enumerated(request, strategy, 100_000, SECONDS, observe)
    return total_variation(probabilities, plain), exercised


def plain_distribution(case: Case, target, processors) -> dict | None:
    "Sequence → probability under plain sampling; None where the processors forbid every token."
    probabilities = {}
    prompt = list(case.prompts[0])

    def extend(tokens, weight):
        if weight < 1e-14:
            return
        if len(tokens) == case.n or (tokens and has_ended(case.stops, target, list(tokens))):
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
    bound = LogitsProcessorList(processors).bind(case.request(target, prompt))
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
    endings = itertools.product(range(target.vocab_size), repeat=case.n)
    try:
        step = max(own_rounding(target.model, [*case.prompts[0], *end]) for end in endings)
    except (TypeError, ValueError, AttributeError):  # it has no such cache
        return 0.0
    return 2 * case.n * step


def check(
    case: Case,
    vocab_size: int = KIND.vocab_size,
    make=build_replayed,
    most=PATHS,
    budget=BUDGET,
    seconds=math.inf,
) -> bool:
    """Raise `FailedError` or `RejectedError`; return whether there was anything to compare.

    An enumeration takes at most `budget` seconds, or the `seconds` that are left of a search.
    """
    world = world_of(case.architecture, vocab_size, make)
    with time_limit(SECONDS), judged():
        named = world.named(case)
        target = named['target']
        processors = case.bound_processors(named)
        strategy = case.strategy(Sample(processors), named)
        plain = plain_distribution(case, target, processors)
    if plain is None:
        return False

    prompt, stops = list(case.prompts[0]), case.stops

    def request(rng):
        return Request(target, list(prompt), case.n, rng, stops)

    with time_limit(SECONDS), judged(plain_succeeded=True):
        try:
            probabilities = enumerated(request, strategy, most, min(budget, seconds))
        except TooManyPathsError:
            return False
    distance = total_variation(probabilities, plain)
    if distance > TOLERANCE and distance > TOLERANCE + worst_rounding(case, target):
        raise FailedError(f'TV = {distance:.6f} from plain sampling, over {len(plain)} sequences')
    return True
