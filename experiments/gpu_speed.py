"""Plain decoding and rounds of real sizes, random weights in bfloat16: pieces of `experiments/gpu.py`.

    python experiments/gpu.py --out DIR --only plain-0.5B,rounds-8B

A piece is a list of jobs, each a row in DIR/speed/CARD/PIECE; a stopped piece goes on with the next job. A
way that fails is a row with its error. Times are milliseconds of a further step: the difference of a long and
a short run over their steps, the fastest of several, so that prompt, recording and compiling are not in it.
`bound_ms` is the time of reading all weights once, at the speed at which the card copies a large tensor.
"""

import functools
import gc
import itertools
import time
from pathlib import Path

TARGETS = {  # Qwen2.5 and Llama 3: vocabulary, width, layers, inner width, heads of queries and of keys
    '0.5B': ('qwen2', 151936, 896, 24, 4864, 14, 2, True),
    '1.5B': ('qwen2', 151936, 1536, 28, 8960, 12, 2, True),
    '3B': ('llama', 128256, 3072, 28, 8192, 24, 8, True),
    '8B': ('llama', 128256, 4096, 32, 14336, 32, 8, False),
}
SHALLOW = {  # drafts of two layers, as wide as their targets
    '3B': ('llama', 128256, 3072, 2, 8192, 24, 8, True),
    '8B': ('llama', 128256, 4096, 2, 14336, 32, 8, False),
}
TOY = ('llama', 512, 64, 2, 96, 4, 2, True)
TOY_DRAFT = ('llama', 512, 32, 1, 48, 2, 2, True)
BATCHES = 1, 4, 16, 64
LOOKAHEADS = 5, 3, 7
ALPHA = 0.8  # acceptance at which the gain of a round is computed


def random_model(sizes, device, toy=False):
    "A transformers model of random weights, made on the device (a toy is moved there)."
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, vocabulary, width, layers, inner, heads, groups, tied = sizes
    config = AutoConfig.for_model(
        kind,
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        tie_word_embeddings=tied,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    if toy:
        return AutoModelForCausalLM.from_config(config).eval().to(device)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def bytes_a_second(device, toy=False):
    "The speed of reading memory: of a copy, which reads and writes each byte."
    import torch

    from decodelab.core.driver import synchronize

    source = torch.zeros((1 << 20) if toy else (1 << 30), dtype=torch.uint8, device=device)
    target, fastest = torch.empty_like(source), float('inf')
    for _ in range(5):
        synchronize(device)
        begun = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        fastest = min(fastest, time.perf_counter() - begun)
    return 2 * source.numel() / fastest


def step_seconds(run, device, few, many, repeats):
    "Seconds of a further step: `run(n)` returns the steps of a run of `n` tokens."
    from decodelab.core.driver import synchronize

    fastest = {}
    for repeat in range(1 + repeats):  # the first warms up
        for n in (few, many):
            synchronize(device)
            begun = time.perf_counter()
            steps = run(n)
            synchronize(device)
            seconds = time.perf_counter() - begun
            if repeat:
                fastest[n] = min(fastest.get(n, (float('inf'), 0)), (seconds, steps))
    (less, before), (more, after) = fastest[few], fastest[many]
    return (more - less) / (after - before)


def prompts_of(vocabulary, batch, length):
    "Prompts of random ids."
    import random

    draw = random.Random(0)
    return [draw.choices(range(vocabulary), k=length) for _ in range(batch)]


def ours(model, kind):
    "Our model with the same weights: eager, compiled, recorded as CUDA graphs, or both."
    from decodelab import LM

    lm = LM(model, None, kind)
    if kind == 'compiled':
        lm.compile(width=1, frozen=False)
    if 'graphs' in kind:
        lm.compile(width=1, frozen=False, cuda_graphs=True, inductor='compiled' in kind)
    return lm


def our_run(lm, prompts):
    "Steps of a greedy run of `n` tokens, alone or as a batch."
    from decodelab import Greedy, Stop, decode, decode_batch

    stop = Stop(eos=())

    def run(n):
        if len(prompts) == 1:
            return len(decode(lm, prompts[0], Greedy(), n, stop=stop).steps)
        decode_batch(lm, prompts, Greedy(), len(prompts), n, stop=stop)
        return n

    return run


def generate_run(model, prompts, static):
    "Steps of transformers' `generate`; with a static cache it compiles its forward on a GPU."
    import torch

    ids = torch.tensor(prompts, device=model.device)
    options = dict(attention_mask=torch.ones_like(ids), do_sample=False)
    if static:
        options |= dict(cache_implementation='static')

    def run(n):
        model.generate(ids, max_new_tokens=n, min_new_tokens=n, **options)
        return n

    return run


def ways_of(device, toy):
    "The ways of our engine on a device."
    from decodelab.models.compile import has_graphs

    graphs = ('graphs', 'graphs, compiled') if has_graphs(device) else ()
    return ('eager', *graphs[:1]) if toy else ('eager', *graphs, 'compiled')


def plain(size, folder, device, toy=False):
    "The jobs of plain decoding of a size: each way, at each batch that it can take."
    import torch

    from decodelab.evaluate import run_jobs

    device = torch.device(device)
    sizes = TOY if toy else TARGETS[size]
    length, few, many, repeats = (6, 3, 7, 1) if toy else (64, 16, 64, 3)
    alone = ways_of(device, toy)

    @functools.cache
    def made():
        "The model, and the time of reading it: for the first job that is left."
        model = random_model(sizes, device, toy)
        n_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        return model, 1e3 * n_bytes / bytes_a_second(device, toy)

    def job(way, batch):
        model, bound = made()
        prompts = prompts_of(sizes[1], batch, length)
        if way.startswith('generate'):
            run = generate_run(model, prompts, 'static' in way)
        else:
            run = our_run(ours(model, way), prompts)
        seconds = step_seconds(run, device, few, many, repeats)
        gc.collect()
        return dict(size=size, way=way, batch=batch, step_ms=1e3 * seconds, bound_ms=bound)

    references = ('generate',) if toy else ('generate', 'generate, static')
    batches = BATCHES[:2] if toy else BATCHES
    pairs = [(way, 1) for way in (*alone, *references)]
    pairs += [(way, batch) for batch in batches[1:] for way in ('eager', *references)]
    jobs = {
        f'{way} | {batch}': lambda way=way, batch=batch: job(way, batch) for way, batch in pairs
    }
    return run_jobs(jobs, folder, dict(device=str(device)), progress=False)


def rounds(size, folder, device, toy=False):
    "Rounds with a draft of two layers, eager and recorded, beside plain steps made in the same way."
    import torch

    from decodelab import AssistantDrafter, FixedLookahead, Greedy, Speculative, Stop, decode
    from decodelab.evaluate import run_jobs

    device = torch.device(device)
    length, few, many, repeats = (6, 7, 15, 1) if toy else (64, 24, 72, 3)
    pair = (TOY, TOY_DRAFT) if toy else (TARGETS[size], SHALLOW[size])
    prompt = prompts_of(pair[0][1], 1, length)[0]

    @functools.cache
    def models():
        "The target and its draft: for the first job that is left."
        return [random_model(sizes, device, toy) for sizes in pair]

    @functools.lru_cache(maxsize=1)
    def made(kind):
        return [ours(model, kind) for model in models()]

    def job(kind, k):
        target, draft = made(kind)
        strategy = Greedy()
        if k:
            strategy = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(k))

        def run(n):
            return len(decode(target, prompt, strategy, n, stop=Stop(eos=())).steps)

        seconds = step_seconds(run, device, few, many, repeats)
        tokens = sum(ALPHA**i for i in range(k + 1))
        return dict(size=size, way=kind, k=k, step_ms=1e3 * seconds, tokens_at_alpha=tokens)

    lookaheads = LOOKAHEADS[:1] if toy else LOOKAHEADS
    kinds = [kind for kind in ways_of(device, toy) if kind != 'compiled']
    jobs = {
        f'{kind} | {k}': functools.partial(job, kind, k)
        for kind, k in itertools.product(kinds, (0, *lookaheads))
    }
    return with_gains(run_jobs(jobs, folder, dict(device=str(device)), progress=False))


def with_gains(rows):
    "The rows with the gain of a round over plain steps of the same way, at acceptance `ALPHA`."
    plain_ms = {(r['size'], r['way']): r['step_ms'] for r in rows if r.get('k') == 0}
    for row in rows:
        if row.get('k') and (row['size'], row['way']) in plain_ms:
            gain = row['tokens_at_alpha'] * plain_ms[row['size'], row['way']] / row['step_ms']
            row['gain_at_alpha'] = gain
    return rows


def card(device):
    "The name of the device as a folder."
    import torch

    device = torch.device(device)
    if device.type != 'cuda':
        return device.type
    return torch.cuda.get_device_name(device).replace(' ', '-').replace('/', '-')


def measure(piece, folder, device, toy=False):
    "The rows of a piece, 'plain-SIZE' or 'rounds-SIZE', which are also written to FOLDER/CARD/PIECE.csv."
    import pandas as pd

    from decodelab.core.files import write_atomic

    folder = Path(folder) / card(device)
    kind, size = piece.split('-')
    rows = dict(plain=plain, rounds=rounds)[kind](size, folder / piece, device, toy)
    write_atomic(folder / f'{piece}.csv', pd.DataFrame(rows).to_csv(index=False))
    return rows
