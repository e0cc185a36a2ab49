"""Ours beside transformers' generate on any device: plain, assisted and lookup, in turns.

    python experiments/beside_transformers.py --out DIR
    python experiments/beside_transformers.py --device cpu --prompts 2 --new 16 --repeats 1

Plain and assisted decoding with the embedded pair, in float32, greedy and sampled; `--compile` adds ours with
compiled passes (CUDA graphs where there is CUDA). Each run is of one prompt, all ways in turns; the passes of
`generate` are counted by a wrapper around the model's forward. It ends within --minutes: turns that were
not begun by then are left out, and counted. Prints the ratio of the median speeds over `generate` in the
same mode with its 95 % interval, the tokens of a target pass, and the share of the texts that are those of
the CPU; writes the rows to DIR/beside.csv after every turn, their provenance to DIR/beside.json.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

HERE = Path(__file__).resolve().parent
if (HERE.parent / 'decodelab/__init__.py').exists():
    sys.path.insert(0, str(HERE.parent))  # a checkout need not be installed

from decodelab import (  # noqa: E402 - from the checkout
    AssistantDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    Sample,
    Speculative,
    Stop,
    Temperature,
    TransformersGenerate,
    builtin_prompts,
    decode,
    load,
)
from decodelab.core.files import write_atomic  # noqa: E402
from decodelab.core.metrics import speedup  # noqa: E402
from decodelab.evaluate.bench import plan, run_row  # noqa: E402
from decodelab.evaluate.jobs import machine_info  # noqa: E402

PAIR = 'pico', 'pico-draft'
K = 4
STOP = Stop(eos=())
CONSTANT = dict(
    num_assistant_tokens=K,
    num_assistant_tokens_schedule='constant',
    assistant_confidence_threshold=0.0,
)


def ways_of(device, compiled: bool) -> dict:
    "(mode, engine) → (model, strategy)."
    original, original_draft = (load(n, device=device, native=False) for n in PAIR)
    engines = dict(ours=[load(n, device=device) for n in PAIR])
    if compiled:
        target, draft = (load(n, device=device) for n in PAIR)
        begun = time.perf_counter()
        graphs = dict(cuda_graphs=target.device.type == 'cuda')
        target.compile(width=K + 1, **graphs)
        draft.compile(width=2, **graphs)
        print(f'compiled in {time.perf_counter() - begun:.1f} s')
        engines['ours, compiled'] = [target, draft]
    lookup = dict(prompt_lookup_num_tokens=K, max_matching_ngram_size=3)
    sampled = dict(do_sample=True, temperature=0.7, top_k=0)
    ways = {
        ('greedy', 'generate'): (original, TransformersGenerate()),
        ('sampled', 'generate'): (original, TransformersGenerate(**sampled)),
        ('assisted', 'generate'): (original, TransformersGenerate(original_draft, **CONSTANT)),
        ('lookup', 'generate'): (original, TransformersGenerate(**lookup)),
    }
    for engine, (target, draft) in engines.items():
        ahead = FixedLookahead(K)
        ways |= {
            ('greedy', engine): (target, Greedy()),
            ('sampled', engine): (target, Sample([Temperature(0.7)])),
            ('assisted', engine): (target, Speculative(AssistantDrafter(draft), lookahead=ahead)),
            ('lookup', engine): (target, Speculative(PromptLookupDrafter(), lookahead=ahead)),
        }
    return ways


def turns(ways: dict, prompts: list, new: int, repeats: int, seconds: float, log=print) -> Iterator:
    """Yields the rows so far after each turn, which runs all ways on one prompt.

    After the first, a turn is begun only if one as long as the longest so far ends in time. The first
    run of each way on each prompt is a warm-up; a prompt is warmed up in its first turn.
    """
    names = {' | '.join(way): way for way in ways}
    calls = plan(list(names), len(prompts), repeats)
    warm, rows, longest, begun = set(), [], 0.0, time.monotonic()
    groups = [list(group) for _, group in itertools.groupby(calls, key=lambda call: call[:2])]
    for n, group in enumerate(groups):
        start = time.monotonic()
        if n and start - begun + longest > seconds:
            log(
                f'{len(groups) - n} of {len(groups)} turns are left out: {seconds / 60:.1f} minutes are over'
            )
            return
        for repeat, i, order, name in group:
            lm, strategy = ways[names[name]]
            if (i, name) not in warm:
                warm.add((i, name))
                decode(lm, prompts[i], strategy, new, 0, STOP)
            trace = decode(lm, prompts[i], strategy, new, repeat, STOP)
            mode, engine = names[name]
            columns = dict(
                strategy=name, mode=mode, engine=engine, prompt=i, repeat=repeat, order=order
            )
            rows.append(run_row(trace, **columns))
        longest = max(longest, time.monotonic() - start)
        yield pd.DataFrame(rows)


def table_of(frame: pd.DataFrame, reference: list[list[int]]) -> pd.DataFrame:
    "A row for each mode and engine."
    rows = []
    for (mode, engine), part in frame.groupby(['mode', 'engine'], sort=False):
        name = part.strategy.iloc[0]
        same = [t == reference[i] for i, t in zip(part.prompt, part.tokens)]
        rows.append(
            dict(
                mode=mode,
                engine=engine,
                ms_a_token=1e3 / part.tokens_per_second.median(),
                over_generate=str(speedup(frame, name, f'{mode} | generate')),
                over_plain=str(speedup(frame, name, f'greedy | {engine}')),
                tokens_a_pass=part.new_tokens.sum() / part.target_passes.sum(),
                as_on_cpu=sum(same) / len(same) if mode != 'sampled' else None,
            )
        )
    return pd.DataFrame(rows)


def main(argv=None) -> pd.DataFrame:
    "Measure, print, store; returns the rows."
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--device', help='default: the accelerator if there is one')
    parser.add_argument('--prompts', type=int, default=6)
    parser.add_argument('--new', type=int, default=64, help='tokens of a text')
    parser.add_argument('--repeats', type=int, default=3)
    parser.add_argument('--compile', action='store_true', help='also with compiled passes')
    parser.add_argument('--minutes', type=float, default=8.0, help='of the measurement')
    parser.add_argument('--out', help='the folder of beside.csv')
    args = parser.parse_args(argv)
    here = load('pico', device='cpu')
    prompts = [here.encode(p) for p in builtin_prompts()[: args.prompts]]
    reference = [decode(here, p, Greedy(), args.new, stop=STOP).tokens for p in prompts]
    ways = ways_of(args.device, args.compile)
    device = next(iter(ways.values()))[0].device
    out = Path(args.out) if args.out else None
    if out:
        out.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame()
    for frame in turns(ways, prompts, args.new, args.repeats, 60 * args.minutes):
        if out:
            write_atomic(out / 'beside.csv', frame.to_csv(index=False))
    info = machine_info(device)
    print({k: info.get(k) for k in ('machine', 'torch', 'transformers', 'commit', 'date')})
    print(table_of(frame, reference).round(3).to_string(index=False))
    if out:
        write_atomic(out / 'beside.json', json.dumps(info, indent=1) + '\n')
    return frame


if __name__ == '__main__':
    main()
