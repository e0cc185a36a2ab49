"""Self-speculation with a reduced cache behind contexts of 1,000 to 32,000 tokens, counted; no time is measured.

PYTHONPATH=. python -m tests.drafters.long_contexts > tests/drafters/long_contexts.txt

`pico` was trained for 1,024 tokens. Beyond them its positions are divided (linear interpolation), for which it
was not trained, so its continuations are poor; the counts are those of its greedy tokens all the same. The
second table is the price of tokens that are equal whatever the shape of a pass, in bfloat16.
"""

import sys

import torch

from decodelab import FixedLookahead, Greedy, Speculative, builtin_prompts, decode, load
from decodelab.drafters import QuantizedKVDrafter, SparseKVDrafter
from decodelab.models.reduced_cache import SinksAndWindow
from decodelab.models.session import LM

NEW = 32
DRAFTERS = {
    '4 + 64 tokens': SparseKVDrafter(4, 64),
    '4 + 512 tokens': SparseKVDrafter(4, 512),
    '4 bits': QuantizedKVDrafter(4),
}


def stretched(lm: LM, n: int) -> LM:
    "The model with positions divided so that `n` tokens span the trained range."
    factor = max(1.0, n / 1024)
    config = lm.model.config
    config.max_position_embeddings = max(1024, n)
    theta = config.rope_parameters['rope_theta']
    config.rope_parameters = dict(rope_type='linear', factor=factor, rope_theta=theta)
    twin = type(lm.model)(config).eval()
    twin.load_state_dict(lm.model.state_dict())
    return LM(twin, lm.tokenizer, f'pico over {n} tokens')


def cache_share(lm: LM, drafter, ids: list[int]) -> float:
    "The fraction of the bytes of all keys and values that a drafted token reads."
    session = lm.session()
    sizes = []
    for past in (drafter.past(), SinksAndWindow(0, len(ids))):
        reader = session.reduced(past)
        reader.begin_round(ids)
        sizes.append(reader.n_bytes())
    return sizes[0] / sizes[1]


def contexts(sizes: list[int]):
    "Counts by context length and drafter, behind built-in prompts over and over."
    print(
        f'{"context":>8} {"drafter":16} {"drafted":>7} {"accepted":>8} {"passes":>6} {"bytes":>6}'
    )
    for n in sizes:
        lm = stretched(load('pico', device='cpu'), n + NEW + 8)
        text = lm.encode('\n'.join(builtin_prompts()))
        ids = (text * (1 + n // len(text)))[:n]
        plain = decode(lm, ids, Greedy(), NEW).tokens
        for name, drafter in DRAFTERS.items():
            trace = decode(lm, ids, Speculative(drafter, lookahead=FixedLookahead(4)), NEW)
            assert trace.tokens == plain, (n, name)
            m = trace.metrics()
            share = cache_share(lm, drafter, ids)
            print(
                f'{n:>8} {name:16} {m["drafted"]:>7} {m["accepted"]:>8} {m["target_passes"]:>6} {share:>6.1%}',
                flush=True,
            )


def price():
    "Target passes of eight sequences of 48 tokens in bfloat16, and how many are the plain ones."
    lm = load('pico', device='cpu', dtype=torch.bfloat16)
    text = lm.encode('\n'.join(builtin_prompts()) * 3)
    prompts = [text[:800], text[100:700], text[300:800]]
    prompts += [lm.encode(p)[:200] for p in builtin_prompts()[:5]]
    plain = [decode(lm, p, Greedy(), 48).tokens for p in prompts]
    for deterministic in (False, True):
        strategy = Speculative(
            SparseKVDrafter(4, 64), lookahead=FixedLookahead(4), deterministic=deterministic
        )
        traces = [decode(lm, p, strategy, 48) for p in prompts]
        passes = sum(t.metrics()['target_passes'] for t in traces)
        equal = sum(t.tokens == tokens for t, tokens in zip(traces, plain))
        print(
            f'deterministic={deterministic}: {passes} target passes, {equal} of {len(traces)} plain'
        )


if __name__ == '__main__':
    contexts([int(n) for n in sys.argv[1:]] or [1_000, 2_000, 4_000, 8_000, 16_000, 32_000])
    price()
