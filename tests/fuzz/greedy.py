"""Greedy identity: tokens of a speculative combination against plain decoding by the full forward pass.

The oracle never touches a session, a cache or the driver: one forward pass of transformers' model per token,
without a cache, and the processors one row at a time.
"""

import torch

from decodelab import Greedy, decode, decode_batch
from decodelab.logits.processor_list import LogitsProcessorList
from tests.fuzz.cases import SECONDS, Case, FailedError, Kind, judged, time_limit, world_of
from tests.fuzz.models import VOCABULARY, full_logits
from tests.fuzz.parts import has_ended

KIND = Kind(VOCABULARY, lengths=(1, 2, 5, 9), new_tokens=tuple(range(1, 15)))


def plain_greedy(case: Case, target, processors, prompt) -> list[int]:
    "The tokens of plain greedy search; None for a tie."
    bound = LogitsProcessorList(processors).bind(case.request(target, prompt))
    new = []
    while len(new) < case.n and not (new and has_ended(case.stops, target, new)):
        token = best_token(target, bound, [*prompt, *new])
        if token is None:
            return None
        new.append(token)
    return new


def best_token(target, bound, ids: list[int], excluded: tuple[int, ...] = ()) -> int | None:
    "The token that greedy search chooses after `ids`; None for a tie, or if every token is forbidden."
    scores = bound(ids, full_logits(target.model, ids)[None])[0].clone()
    scores[list(excluded)] = -torch.inf
    if not torch.isfinite(scores).any() or torch.isnan(scores).any():
        return None  # every token forbidden: both must refuse, and that is tested elsewhere
    top = scores.topk(2).values
    return None if float(top[0] - top[1]) < 1e-7 else int(scores.argmax())


def check(case: Case):
    "Raise `FailedError` or `RejectedError`; return whether there was anything to compare."
    world = world_of(case.architecture, VOCABULARY)
    with time_limit(SECONDS), judged():
        named = world.named(case)
        target = named['target']
        processors = case.bound_processors(named)
        strategy = case.strategy(Greedy(processors), named)
        expected = [plain_greedy(case, target, processors, p) for p in case.prompts]
    if any(w is None for w in expected):
        return False
    with time_limit(SECONDS), judged(plain_succeeded=True):
        prompts = [list(p) for p in case.prompts]
        if len(prompts) == 1:
            batch = [decode(target, prompts[0], strategy, case.n, stop=case.stops)]
        else:
            batch = decode_batch(target, prompts, strategy, 3, case.n, stop=case.stops)
        tokens = [list(t.tokens) for t in batch]
    if tokens != expected:
        raise FailedError(f'tokens {tokens} and plain decoding has {expected}')
    return True
