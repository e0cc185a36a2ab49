"""Greedy identity: tokens of a speculative combination against plain decoding by the full forward pass.

The oracle never touches a session, a cache or the driver: one forward pass of transformers' model per token,
without a cache, and the processors one row at a time.
"""

import torch

from decodelab import Greedy, Stop, decode, decode_batch
from decodelab.core.driver import Request, Rng
from decodelab.logits.processor_list import LogitsProcessorList
from tests.fuzz.cases import Case, FailedError, judged, time_limit, world_of, SECONDS
from tests.fuzz.models import VOCABULARY, full_logits


def plain_greedy(case: Case, target, processors, prompt) -> list[int]:
    "The tokens of plain greedy search."
    request = Request(target, list(prompt), case.n, Rng(0), Stop(eos=case.eos))
    bound = LogitsProcessorList(processors).bind(request)
    ids = list(prompt)
    for _ in range(case.n):
        scores = bound(ids, full_logits(target.model, ids)[None])
        if not torch.isfinite(scores).any() or torch.isnan(scores).any():
            return None  # every token forbidden: both must refuse, and that is tested elsewhere
        top = scores[0].topk(2).values
        if float(top[0] - top[1]) < 1e-7:
            return None  # a tie
        ids.append(int(scores.argmax()))
        if ids[-1] in case.eos:
            break
    return ids[len(prompt) :]


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
        stop = Stop(eos=case.eos)
        if len(case.prompts) == 1:
            batch = [decode(target, list(case.prompts[0]), strategy, case.n, stop=stop)]
        else:
            batch = decode_batch(
                target, [list(p) for p in case.prompts], strategy, 3, case.n, stop=stop
            )
            batch = list(batch)
        tokens = [list(t.tokens) for t in batch]
    if tokens != expected:
        raise FailedError(f'tokens {tokens} and plain decoding has {expected}')
    return True
