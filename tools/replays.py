"""Records the replays of the site with the embedded models: `python tools/replays.py [NAME …]` writes docs/replays.

A replay is an explorer over a grid of settings and picks (decodelab.explorers.record_replay). Its states are stored as
compressed JSON, which becomes a page when the site is built, so a change of script or style needs no recording. Text
above a replay stands in docs/replays/NAME.md. Takes some minutes for all seven. `tests/repository/test_replays.py`
compares some of the stored states with fresh explorers.
"""

import argparse
import gzip
import json
import time

import torch
from repo import ROOT

FOLDER = ROOT / 'docs' / 'replays'
EVEN = 'def is_even(n):\n    """Return True if n is even."""'
FIBONACCI = 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n'
STACK = 'class Stack:\n    """A stack of items."""\n\n    def __init__(self):\n'


def models():
    "The embedded pair in float64: in float32 the last digit that is shown depends on the processor."
    from decodelab import load

    return tuple(load(name, device='cpu', dtype=torch.float64) for name in ('pico', 'pico-draft'))


def decoding():
    "Prompt × strategy × lookahead."
    from decodelab import explore

    lm, draft = models()
    explorer = explore(lm, draft, models=[])
    axes = dict(
        prompt=[EVEN, FIBONACCI, STACK],
        method=[
            'draft model',
            'token tree',
            'prompt lookup',
            'suffix',
            'lookahead decoding',
            'early exit',
        ],
        temperature=[0.0, 0.8],
        lookahead=['fixed', 'confidence', 'entropy'],
        draft_length=[2, 4, 8],
    )
    return explorer, axes, None


def traces():
    "Ten traces: drafters, temperatures and verifiers."
    from decodelab import (
        AssistantDrafter,
        BlockVerifier,
        EarlyExitDrafter,
        Greedy,
        PromptLookupDrafter,
        Sample,
        Speculative,
        Temperature,
        TreeDrafter,
        TypicalAcceptanceVerifier,
        decode,
    )
    from decodelab.speculative import recorded

    lm, draft = models()
    assistant, warm = AssistantDrafter(draft), Sample([Temperature(0.8)])
    strategies = {
        'draft model, greedy': (EVEN, Speculative(assistant)),
        'draft model, temperature 0.8': (EVEN, Speculative(assistant, warm)),
        'draft model, temperature 1.2': (EVEN, Speculative(assistant, Sample([Temperature(1.2)]))),
        'the same, block verification': (
            EVEN,
            Speculative(assistant, Sample([Temperature(1.2)]), BlockVerifier()),
        ),
        'the same, typical acceptance (lossy)': (
            EVEN,
            Speculative(assistant, Sample([Temperature(1.2)]), TypicalAcceptanceVerifier()),
        ),
        'token tree, greedy': (FIBONACCI, Speculative(TreeDrafter(draft, (3, 2, 1)))),
        'token tree, temperature 0.8': (
            FIBONACCI,
            Speculative(TreeDrafter(draft, (3, 2, 1)), warm),
        ),
        'prompt lookup, greedy': (STACK, Speculative(PromptLookupDrafter())),
        'early exit, temperature 0.8': (STACK, Speculative(EarlyExitDrafter(4), warm)),
        'plain greedy search': (EVEN, Greedy()),
    }
    for name, (prompt, strategy) in strategies.items():
        strategy = strategy if isinstance(strategy, Greedy) else recorded(strategy)
        yield name, decode(lm, prompt, strategy, max_new_tokens=32, seed=0), lm


def rounds():
    "The rounds of ten traces, one at a time."
    from decodelab.explorers import step_rounds

    explorers = {name: step_rounds(trace, lm) for name, trace, lm in traces()}
    return explorers, {}, lambda explorer, key, n: key == 'next' or key.startswith('node:')


def beams():
    "A search tree, its nodes forced, pruned and extended."
    from decodelab.explorers import explore_beams

    explorer = explore_beams(models()[0], models=[], max_new_tokens=6)

    def follow(explorer, key, n):
        "A node of the first tree, an action on it, then a node of the new tree."
        edits = explorer.settings['edits']
        if key.startswith('node '):
            path = explorer.pick(key)['selected']
            return not edits and len(path) <= 4
        return n <= 1 and key in ('force', 'prune', 'extend') and not edits

    return explorer, dict(num_beams=[2, 3, 4], length_penalty=[0.0, 1.0]), follow


def layers():
    "Layers of three texts, each token of them picked."
    from decodelab.explorers import explore_layers

    lm = models()[0]
    texts = {
        'a function': EVEN,
        'imports': 'import os\nimport sys\nimport json\n',
        'a loop': 'for i in range(10):\n    print(i)\n',
    }
    explorers = {name: explore_layers(lm, text, models=[]) for name, text in texts.items()}
    axes = dict(view=['first choice', 'divergence'], norm=['final', 'none'])
    return explorers, axes, lambda explorer, key, n: n == 0


def watermark():
    "γ × length × attack, for three schemes."
    from decodelab.explorers import explore_watermark

    explorer = explore_watermark(models()[0], models=[])
    axes = dict(
        scheme=['green list', 'Gumbel', 'SynthID'],
        length=[20, 40, 80],
        gamma=[0.25, 0.5],
        attack=[
            'none',
            'delete tokens',
            'replace tokens',
            'insert tokens',
            'paste into other text',
            'lookalike letters',
        ],
        strength=[0.1, 0.3],
    )
    return explorer, axes, None


def lookahead():
    "Thresholds × costs for four rules, from one recorded table."
    from decodelab import AssistantDrafter, DraftTable, builtin_prompts
    from decodelab.explorers import explore_lookahead

    lm, draft = models()
    table = DraftTable.build(
        lm, AssistantDrafter(draft), builtin_prompts()[:3], 40, k=10, progress=False
    )
    explorer = explore_lookahead(table, lm)
    axes = dict(
        rule=['confidence', 'entropy', 'cumulative', 'roc'],
        threshold=[i / 20 for i in range(21)],
        c=[0.05, 0.1, 0.2, 0.4],
    )
    return explorer, axes, None


def distribution():
    "Processors one by one, and tokens that are forced."
    from decodelab.explorers import explore_distribution

    explorer = explore_distribution(
        models()[0], models=[], tokens_shown=12, temperature=1.0, top_p=1.0
    )
    first = dict(explorer.settings)
    axes = dict(
        temperature=[0.5, 0.8, 1.0, 1.5],
        top_k=[0, 5, 20],
        top_p=[0.7, 0.9, 1.0],
        min_p=[0.0, 0.1],
        repetition_penalty=[1.0, 1.3],
    )

    def follow(explorer, key, n):
        "The three most probable tokens of the model itself, twice, and the way back."
        off = all(explorer.settings[name] == first[name] for name in axes)
        forced = [f'force:{token}' for token in explorer.result.top[:3]]
        return off and (key.startswith('go:') or (key in forced and n < 2))

    return explorer, axes, follow


REPLAYS = dict(
    decoding=decoding,
    rounds=rounds,
    beams=beams,
    layers=layers,
    watermark=watermark,
    lookahead=lookahead,
    distribution=distribution,
)


def record(name):
    "The replay of a name."
    from decodelab.explorers import record_replay

    explorers, axes, follow = REPLAYS[name]()
    return record_replay(explorers, axes, follow)


def stored(name):
    "The stored data of a replay."
    return json.loads(gzip.decompress((FOLDER / f'{name}.json.gz').read_bytes()))


def store(name, data):
    "Store the data of a replay; its path."
    text = json.dumps(data, ensure_ascii=False, separators=(',', ':'))
    path = FOLDER / f'{name}.json.gz'
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return path


def page(name):
    "A stored replay as a part of a page."
    from decodelab.explorers.replay import replay_html

    return replay_html(stored(name))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('names', nargs='*', default=list(REPLAYS), help=', '.join(REPLAYS))
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)  # more threads add float32 numbers in another order
    for name in options.names:
        start = time.perf_counter()
        replay = record(name)
        size = store(name, replay.data()).stat().st_size / 1000
        print(f'{replay}: {size:.0f} kB, {time.perf_counter() - start:.0f} s', flush=True)
