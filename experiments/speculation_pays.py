"""Does speculation pay? Each lookahead rule beside plain decoding, prompt by prompt, in turns.

    python experiments/speculation_pays.py
    python experiments/speculation_pays.py --prompts 2 --new 48 --repeats 2
    python experiments/speculation_pays.py --pair TARGET DRAFT --cases universal

The cases: the embedded pair, a draft model that is never right, prompt lookup and suffixes on
several texts, and a pair with two tokenizers (`--pair`, two folders or names; left out where there
is none), whose target tells stories. Plain decoding and the rules run in turns on one
thread; a row is the median, with the quartiles, of the ratios of their seconds on one prompt in one
repeat. Without --all the texts that a rule learned its costs from (the warm-up) are not counted.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
if (HERE.parent / 'decodelab/__init__.py').exists():
    sys.path.insert(0, str(HERE.parent))  # a checkout need not be installed

from decodelab import (  # noqa: E402 - from the checkout
    AssistantDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    Speculative,
    Stop,
    SuffixDrafter,
    SyntheticDrafter,
    UniversalDrafter,
    builtin_prompts,
    decode,
    load,
)
from decodelab.drafters import target_continuations  # noqa: E402
from decodelab.speculative import BackoffLookahead, SelfMeasuringLookahead  # noqa: E402

STOP = Stop(eos=())
PAIR = [HERE.parent.parent / 'shared/data/models' / n for n in ('babyllama361', 'stories260K')]
STORIES = [
    'Once upon a time',
    'Lily and Tom',
    'One day a dog',
    'The little bird',
    'Ben had a red ball',
]


def rules() -> dict:
    "The lookahead rules, fresh ones, by name."
    return {
        'fixed, 5': FixedLookahead(5),
        'backing off': BackoffLookahead(),
        'measures itself': SelfMeasuringLookahead(),
    }


def cases(args) -> dict:
    "By name: the target, its prompts, and the drafter."
    target, draft = load('pico', device='cpu'), load('pico-draft', device='cpu')
    code = builtin_prompts('code')[: args.prompts]
    repeating = builtin_prompts('repetitive')[: args.prompts]
    texts = target_continuations(target, code, max_new_tokens=args.new, stop=STOP)
    by_name = {
        'embedded pair': (target, code, AssistantDrafter(draft)),
        'never right': (target, code, SyntheticDrafter(0.0, texts, cost=draft)),
        'lookup, code': (target, code, PromptLookupDrafter()),
        'lookup, repeating': (target, repeating, PromptLookupDrafter()),
        'suffix, code': (target, code, SuffixDrafter()),
    }
    if args.pair or all(path.is_dir() for path in PAIR):
        one, other = (load(str(name), device='cpu') for name in args.pair or PAIR)
        stories = STORIES[: args.prompts]
        by_name['lookup, stories'] = (one, stories, PromptLookupDrafter())
        by_name['suffix, stories'] = (one, stories, SuffixDrafter())
        by_name['universal'] = (one, stories, UniversalDrafter(other))
    return {name: case for name, case in by_name.items() if not args.cases or name in args.cases}


def measure(case, args) -> dict[str, list[float]]:
    "For each rule the ratios of plain seconds to its own, prompt by prompt."
    target, prompts, drafter = case
    strategies = {name: Speculative(drafter, lookahead=rule) for name, rule in rules().items()}
    ratios = {name: [] for name in strategies}
    for repeat in range(-1, args.repeats):
        for prompt in prompts:
            plain = decode(target, prompt, Greedy(), args.new, stop=STOP)
            for name, strategy in strategies.items():
                trace = decode(target, prompt, strategy, args.new, stop=STOP)
                assert trace.tokens == plain.tokens, f'{name} changed the text'
                if repeat >= 0 or args.all:
                    ratios[name].append(plain.seconds / trace.seconds)
    return ratios


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--prompts', type=int, default=4)
    parser.add_argument('--new', type=int, default=128, help='tokens of a text')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--pair', nargs=2, help='target and draft with two tokenizers')
    parser.add_argument('--cases', nargs='*', help='only these')
    parser.add_argument('--all', action='store_true', help='count the warm-up, too')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(f'{"case":18} {"rule":16} {"median":>7}  quartiles, plain decoding = 1')
    for name, case in cases(args).items():
        for rule, ratios in measure(case, args).items():
            low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
            print(f'{name:18} {rule:16} {middle:7.2f}  {low:.2f} to {high:.2f}', flush=True)


if __name__ == '__main__':
    main()
