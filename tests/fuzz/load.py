"""`python -m tests.fuzz.load --decodes 2000`: what many decodes leave behind, and what a long batch needs.

Prints a table: for each strategy of tests/core/test_decode_faults.py the growth in live objects, tensors, threads and
resident memory over the second half of the decodes, and whether the global random state and the model's
configuration changed; then the peak of resident memory of `decode_batch` over many prompts, with and without
`cache_tokens`.
"""

import argparse
import gc
import resource
import threading
import time
from pathlib import Path

import torch

from decodelab import Greedy, decode, decode_batch, random_lm
from tests.core.test_decode_faults import LM, PROMPTS, STRATEGIES


def resident_mb() -> float:
    "Resident memory of this process now, in MB."
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def state() -> dict:
    gc.collect()
    objects = gc.get_objects()
    return dict(
        objects=len(objects),
        tensors=sum(torch.is_tensor(o) for o in objects),
        threads=threading.active_count(),
        mb=resident_mb(),
    )


def grow(strategy, decodes: int) -> dict:
    "The growth over the second half of the decodes."
    rng = torch.random.get_rng_state()
    config = LM.model.config.to_dict()
    for i in range(decodes // 2):
        decode(LM, PROMPTS[i % len(PROMPTS)], strategy, 4, seed=i)
    before = state()
    start = time.perf_counter()
    for i in range(decodes // 2):
        decode(LM, PROMPTS[i % len(PROMPTS)], strategy, 4, seed=i)
    seconds = time.perf_counter() - start
    after = state()
    return {k: after[k] - before[k] for k in before} | dict(
        unchanged=torch.equal(rng, torch.random.get_rng_state())
        and LM.model.config.to_dict() == config,
        seconds=2 * seconds,
    )


def batch_peak(n: int, cache_tokens: int | None) -> tuple[float, float]:
    "`(MB, seconds)`: growth of the peak over a batch of `n` prompts of up to 160 tokens."
    lm = random_lm(layers=4, dtype=torch.float32)
    lengths = [1 + (37 * i) % 160 for i in range(n)]
    prompts = [(torch.arange(7 * i, 7 * i + k) % 64).tolist() for i, k in enumerate(lengths)]
    low = resident_mb()
    peak = low

    def watch():
        nonlocal peak
        while not done.wait(0.02):
            peak = max(peak, resident_mb())

    done = threading.Event()
    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    batch = decode_batch(lm, prompts, Greedy(), 64, 8, cache_tokens=cache_tokens)
    seconds = time.perf_counter() - start
    done.set()
    thread.join()
    assert len(list(batch)) == n
    return peak - low, seconds


def main():
    parser = argparse.ArgumentParser(prog='python -m tests.fuzz.load', description=__doc__)
    parser.add_argument('--decodes', type=int, default=2000, help='of each strategy')
    parser.add_argument('--prompts', type=int, default=2000, help='of the batch')
    args = parser.parse_args()
    print(f'{"strategy":<40} objects tensors threads      MB same  seconds')
    for name, strategy in STRATEGIES.items():
        row = grow(strategy, args.decodes)
        print(
            f'{name:<40} {row["objects"]:>7} {row["tensors"]:>7} {row["threads"]:>7} {row["mb"]:>7.1f} '
            f'{row["unchanged"]!s:>5} {row["seconds"]:>7.1f}',
            flush=True,
        )
    for cache_tokens in (None, 2048):
        mb, seconds = batch_peak(args.prompts, cache_tokens)
        print(
            f'batch of {args.prompts}, cache_tokens={cache_tokens}: {mb:.0f} MB, {seconds:.0f} s',
            flush=True,
        )


if __name__ == '__main__':
    main()
