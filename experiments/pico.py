"""The next weights of `pico`, its drafts and its heads: trained, measured, in pieces.

    python experiments/pico.py sizes
    python experiments/pico.py train pico --init pico --home DIR --compile
    python experiments/pico.py train pico-draft --init pico-draft --home DIR
    python experiments/pico.py distil pico-draft --init pico-draft --home DIR
    python experiments/pico.py heads eagle --init pico-eagle --home DIR
    python experiments/pico.py evaluate --home DIR

Every command resumes where a stopped or killed call left off. The training of `pico` takes hours on
one CPU thread (`nbs/05_zoo/04_pico.ipynb`); `--pause-while FILE` lets it wait for as long as a file
exists, `--decay-now` ends it early with a usable model, `export` writes the model of a run so far.
`evaluate` without `--home` measures the shipped models. With --toy: a miniature, to try the machinery.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
if (HERE.parent / 'decodelab/__init__.py').exists():
    sys.path.insert(0, str(HERE.parent))  # a checkout need not be installed


# Sizes


def candidates(toy):
    "The sizes to compare, of targets and of drafts, by name."
    from decodelab.zoo.pico import CONFIGS, TOY_CONFIGS
    from decodelab.zoo.training import llama_sizes

    if toy:
        return {'pico': TOY_CONFIGS['pico']}, {'draft': TOY_CONFIGS['pico-draft']}
    depths = {
        '8 layers, 256 wide, 704 inside': CONFIGS['pico'],
        '12 layers, 256 wide, 384 inside': llama_sizes(4096, 256, 12, 384, 4, 2),
        '16 layers, 256 wide, 224 inside': llama_sizes(4096, 256, 16, 224, 4, 2),
        '24 layers, 192 wide, 384 inside': llama_sizes(4096, 192, 24, 384, 4, 2),
    }
    drafts = {
        '2 layers of 128': CONFIGS['pico-draft'],
        '1 layer of 128': llama_sizes(4096, 128, 1, 384, 2, 2),
    }
    return depths, drafts


def random_model(configs, name):
    "A model of the named sizes with random weights."
    import tempfile

    from decodelab import load
    from decodelab.zoo.training import load_tokenizer, new_model, save_files

    with tempfile.TemporaryDirectory() as folder:
        save_files(new_model(name, 0, configs), load_tokenizer('pico'), Path(folder))
        return load(folder, device='cpu')


def sizes(args):
    """Measure passes of candidate sizes with random weights, and what assisted decoding could gain.

    The gain is over plain decoding, at the best fixed lookahead, where a drafted token is accepted with
    the probability --acceptance; the time of a round beside its passes is not in it.
    """
    import numpy as np

    from decodelab.speculative.cost_aware import RoundCosts
    from decodelab.tuning.cost_model import best_lookahead, curve_factor, pass_seconds

    targets, drafts = candidates(args.toy)
    widths, repeats = list(range(1, 9)), 3 if args.toy else 41
    small = {
        name: np.median(pass_seconds(random_model(drafts, name), [1], 128, 1, repeats))
        for name in drafts
    }
    for name in targets:
        lm = random_model(targets, name)
        passes = np.median(pass_seconds(lm, widths, 128, 1, repeats), 0)
        line = f'{name}: {lm.n_params / 1e6:.2f} M, T(1) {1000 * passes[0]:.2f} ms, T(5)/T(1) '
        line += f'{passes[4] / passes[0]:.2f}'
        for draft, seconds in small.items():
            costs = RoundCosts(tuple(passes), seconds)
            k = best_lookahead(args.acceptance, costs, 7)
            gain = curve_factor(args.acceptance, k, costs)
            line += f'; {draft}: c {seconds / passes[0]:.3f}, {gain:.2f} at {k}'
        print(line)


# Training


def train(args):
    "Train a model, or resume its run."
    from decodelab.zoo.pico import train

    folder = train(
        args.name,
        args.home,
        args.tokens,
        init=args.init,
        compile=args.compile,
        decay_now=args.decay_now,
        pause=60 * args.pause,
        pause_while=args.pause_while,
        toy=args.toy,
    )
    finished = (folder / 'config.json').exists()
    print(f'{args.name} is {"finished" if finished else "unfinished"}, in {folder}')


def distil(args):
    "Let a draft learn from the greedy texts of `pico`, or resume that."
    from decodelab.zoo.own_text import distil

    folder = distil(
        args.name,
        args.home,
        args.target,
        args.files,
        args.rounds,
        args.init,
        pause=60 * args.pause,
        pause_while=args.pause_while,
        toy=args.toy,
    )
    finished = (folder / 'config.json').exists()
    print(f'{args.name} is {"finished" if finished else "unfinished"}, in {folder}')


def export(args):
    "Write the model of a run so far."
    from decodelab.zoo.pico import export_checkpoint

    folder = args.home / f'{args.name}-so-far'
    tokens = export_checkpoint(args.home, args.name, folder, args.toy)
    print(f'{args.name} after {tokens:,} tokens: {folder}')


def heads(args):
    "Train heads on the `pico` of a home, or resume their run."
    from decodelab import load
    from decodelab.drafters.eagle import EagleHeads
    from decodelab.drafters.heads import load_heads
    from decodelab.drafters.medusa import MedusaHeads
    from decodelab.drafters.train_heads import train_heads
    from decodelab.zoo.pico import corpus_ids

    target = load(str(args.home / 'pico'), device='cpu')
    kind = dict(medusa=MedusaHeads, eagle=EagleHeads)[args.name]
    first = kind.of(target) if args.init is None else load_heads(args.init)
    if type(first) is not kind:
        raise ValueError(f'{args.init} are {type(first).__name__}: give {kind.__name__}')
    corpus = corpus_ids(args.home / 'data')[:8_000_000]
    options = dict(tokens=args.tokens or 6_000_000, own_batches=48)
    options |= dict(rate=1.0 if args.init is None else 0.5)
    if args.toy:
        options |= dict(tokens=args.tokens or 2048, own_batches=1, rows=4, length=64)
    folder = args.home / f'pico-{args.name}'
    train_heads(
        target,
        corpus,
        first,
        folder,
        pause=60 * args.pause,
        pause_while=args.pause_while,
        **options,
    )
    finished = (folder / 'heads.json').exists()
    print(f'{args.name} is {"finished" if finished else "unfinished"}, in {folder}')


# Measurements, each against a target of the next weights

TARGETS = dict(
    bits_per_byte=('at most', 1.05),
    texts_with_repeats=('at most', 2),
    token_acceptance=('at least', 0.72),
    eagle_tokens_a_pass=('at least', 4.2),
    speedup=('at least', 1.5),
)


def repeated_lines(text):
    "The lines of at least eight characters that a text has three times or more."
    lines = [line.strip() for line in text.splitlines()]
    return sorted({line for line in lines if len(line) >= 8 and lines.count(line) >= 3})


def held_out_bits(lm, toy):
    "Bits per byte on the held-out modules: all of them, and the 32,768 tokens of the training log."
    from decodelab.zoo.corpus import corpus, pack
    from decodelab.zoo.training import bits_per_byte

    texts = [text for _, text in corpus(cap=0)[1]]
    ids = pack(lm.tokenizer, texts, seed=0)[: 4097 if toy else None]
    result = {}
    for name, part in (('bits_per_byte', ids), ('bits_per_byte_of_log', ids[:32769])):
        n_bytes = len(lm.tokenizer.decode(part, skip_special_tokens=True).encode())
        result[name] = bits_per_byte(lm.model, part, n_bytes)
    return result


def run_all(lm, strategy, prompts, n):
    "The traces of a strategy on every prompt."
    from decodelab import decode

    return [decode(lm, prompt, strategy, n) for prompt in prompts]


def pooled(traces):
    "The rates of several traces together."
    from decodelab.core.metrics import counts, rates

    steps = [step for trace in traces for step in trace.steps]
    return rates(counts(steps), sum(trace.seconds for trace in traces))


def median_speedup(lm, strategies, prompts, n, repeats):
    "The median over prompts and repeats of the second strategy's speed over the first's, interleaved."
    from decodelab import decode

    ratios = []
    for _ in range(repeats):
        for prompt in prompts:
            plain, assisted = (decode(lm, prompt, strategy, n) for strategy in strategies)
            ratios.append(
                len(assisted.tokens) / assisted.seconds * plain.seconds / len(plain.tokens)
            )
    return statistics.median(ratios)


def pass_seconds(lm, ids, n, repeats):
    "Median seconds of a pass of `n` tokens after `ids`."
    session, seconds = lm.session(), []
    for _ in range(repeats + 3):
        session.logits(ids)
        begin = time.perf_counter()
        session.logits([*ids, *ids[:n]])
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[3:])


def model_folders(home):
    "The models and heads to measure, under their names; the shipped ones without a home."
    names = ('pico', 'pico-draft', 'pico-eagle', 'pico-medusa')
    if home is None:
        return {name: name for name in names}
    folders = {name: home / name for name in names}
    return {
        name: str(folder)
        for name, folder in folders.items()
        if (folder / 'config.json').exists() or (folder / 'heads.json').exists()
    }


def drafter_measures(lm, folders, prompts, n, repeats):
    "The contribution of the draft and the heads, and the cost of a pass of each model."
    from decodelab import load
    from decodelab.drafters.assistant import AssistantDrafter
    from decodelab.drafters.eagle import EagleDrafter
    from decodelab.drafters.heads import load_heads
    from decodelab.drafters.medusa import MedusaDrafter
    from decodelab.speculative.loop import Speculative
    from decodelab.strategies.sampling import Greedy

    result = {}
    if 'pico-draft' in folders:
        draft = load(folders['pico-draft'], device='cpu')
        strategy = Speculative(AssistantDrafter(draft))
        rates = pooled(run_all(lm, strategy, prompts, n))
        one = pass_seconds(lm, lm.encode(prompts[0]), 1, 20 * repeats)
        five = pass_seconds(lm, lm.encode(prompts[0]), 5, 20 * repeats)
        small = pass_seconds(draft, draft.encode(prompts[0]), 1, 20 * repeats)
        result |= dict(
            token_acceptance=rates['token_acceptance'],
            assisted_tokens_a_pass=rates['block_efficiency'],
            speedup=median_speedup(lm, (Greedy(), strategy), prompts, n, repeats),
            pass_of_1_ms=1000 * one,
            pass_of_5_ms=1000 * five,
            draft_cost=small / one,
        )
    for name, drafter in (('eagle', EagleDrafter), ('medusa', MedusaDrafter)):
        if f'pico-{name}' in folders:
            trained = load_heads(folders[f'pico-{name}'])
            traces = run_all(lm, Speculative(drafter(trained)), prompts, n)
            result[f'{name}_tokens_a_pass'] = pooled(traces)['block_efficiency']
    return result


def evaluate(args):
    "Measure the models of a home, or the shipped ones, against the targets; write evaluation.json."
    from decodelab import load
    from decodelab.strategies.sampling import Greedy
    from decodelab.zoo.corpus import builtin_prompts

    folders = model_folders(args.home)
    lm = load(folders['pico'], device='cpu')
    prompts = builtin_prompts()[: 2 if args.toy else None]
    n, repeats = (12, 1) if args.toy else (128, 3)
    texts = [trace.text for trace in run_all(lm, Greedy(), prompts, n)]
    repeats_of_text = [repeated_lines(text) for text in texts]
    result = dict(
        **held_out_bits(lm, args.toy),
        texts_with_repeats=sum(1 for lines in repeats_of_text if lines),
        **drafter_measures(lm, folders, prompts, n, repeats),
    )
    result = {k: round(v, 4) for k, v in result.items()}
    rows = [
        dict(prompt=prompt, text=text, repeated=lines)
        for prompt, text, lines in zip(prompts, texts, repeats_of_text, strict=True)
    ]
    for name, value in result.items():
        relation, target = TARGETS.get(name, ('', ''))
        print(f'{name:24}{value:10}  {relation} {target}'.rstrip())
    path = args.output or (args.home or Path()) / 'evaluation.json'
    path.write_text(json.dumps(dict(result=result, texts=rows), indent=1) + '\n', encoding='utf-8')


def parser():
    "The arguments of the commands."
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = result.add_subparsers(required=True, metavar='COMMAND')

    def add(command, function, names=(), home=True):
        one = commands.add_parser(command, help=function.__doc__, description=function.__doc__)
        one.set_defaults(function=function)
        if names:
            one.add_argument('name', choices=names)
        if home:
            one.add_argument('--home', type=Path, metavar='DIR', help='of the data and of the runs')
        one.add_argument('--toy', action='store_true', help='a miniature, for tests')
        one.add_argument(
            '--threads', type=int, default=1, metavar='N', help='of torch (default: 1)'
        )
        return one

    one = add('sizes', sizes, home=False)
    one.add_argument(
        '--acceptance', type=float, default=0.72, metavar='P', help='of a token (default: 0.72)'
    )
    models = ('pico', 'pico-draft', 'pico-alt')
    one = add('train', train, models)
    run_options(one)
    token_option(one)
    one.add_argument('--compile', action='store_true', help='torch.compile the layers')
    one.add_argument(
        '--decay-now', action='store_true', help='let the rate fall from here on, and end earlier'
    )
    one = add('heads', heads, ('medusa', 'eagle'))
    run_options(one)
    token_option(one)
    one = add('distil', distil, ('pico-draft',))
    run_options(one)
    one.set_defaults(init='pico-draft')
    one.add_argument('--target', default='pico', metavar='NAME', help='what writes (default: pico)')
    one.add_argument('--files', type=int, default=1000, metavar='N', help='of 64 texts each')
    one.add_argument('--rounds', type=int, default=3, metavar='N', help='how often each is read')
    add('export', export, models)
    one = add('evaluate', evaluate)
    one.add_argument('--output', type=Path, metavar='FILE', help='(default: evaluation.json)')
    return result


def only_writer(args):
    "The lock of a run; raises `ValueError` where another process holds it."
    from decodelab.lab.runner import lock

    if args.home is None:
        raise ValueError('a run needs a folder: give it with --home')
    args.home.mkdir(parents=True, exist_ok=True)
    return lock(args.home, args.name)


def run_options(one):
    "The options of a training run."
    one.add_argument('--init', metavar='NAME', help='a trained model, or heads, to go on from')
    one.add_argument(
        '--pause', type=float, default=float('inf'), metavar='M', help='stop after M minutes'
    )
    one.add_argument(
        '--pause-while', type=Path, metavar='FILE', help='wait for as long as FILE exists'
    )


def token_option(one):
    "The length of a run."
    one.add_argument('--tokens', type=int, metavar='N', help='of training, in all')


def main(argv=None):
    import torch

    args = parser().parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.function not in (train, heads, distil):
        return args.function(args)
    lock = only_writer(args)
    try:
        args.function(args)
    finally:
        lock.release()


if __name__ == '__main__':
    main()
