"""Times transformers 4.49, in a process and an environment of its own.

It is the last release that has diverse and constrained beam search, contrastive search and DoLa in its core.

    python -m venv peer && peer/bin/pip install "torch==2.13.0" "transformers==4.49.0" numpy
    peer/bin/python experiments/peers_4_49.py < job.json

Each line of the input is a job, each line of the output its result, so that a caller can alternate with it:
`{"model": folder or recipe of tests/golden/tiny.py, "dtype": "float32", "threads": 1, "repeats": 5,
  "warmup": 1, "prompts": [[ids], …], "runs": [{"name": …, "args": {arguments of generate}}, …]}`

A prompt is a list of ids, or a list of such lists: a batch.
`constraints` are `{"phrasal": ids}` or `{"disjunctive": [ids, …]}`.
Repeats go round the runs, so that what slows the machine slows all of them.

Result: `{"versions": …, "rows": [{"name", "prompt", "repeat", "new_tokens", "seconds", "peak_mb",
  "tokens"}, …]}`

- `new_tokens` counts the first returned sequence of each row of the prompt;
- `tokens` (first repeat only) are all returned sequences;
- `peak_mb` is the most memory that the process has held so far: use a fresh process for the peak of one run.
"""

import json
import resource
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.generation import DisjunctiveConstraint, PhrasalConstraint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / 'tests/golden'))
from tiny import build

DTYPES = dict(float32=torch.float32, float64=torch.float64, bfloat16=torch.bfloat16)
transformers.logging.set_verbosity_error()


def from_folder(folder, dtype):
    "A checkpoint; the rotary base of one that transformers 5 saved stands elsewhere."
    config = AutoConfig.from_pretrained(folder)
    rope = getattr(config, 'rope_parameters', None) or {}
    if 'rope_theta' in rope:
        config.rope_theta = rope['rope_theta']
    if rope.get('rope_type', 'default') != 'default':
        config.rope_scaling = rope
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return kind.from_pretrained(folder, config=config, torch_dtype=dtype).eval()


MODELS = {}


def model_of(job):
    "The job's model, kept for the next job."
    key = json.dumps([job['model'], job.get('dtype', 'float32')], sort_keys=True)
    if key not in MODELS:
        MODELS.clear()
        dtype = DTYPES[job.get('dtype', 'float32')]
        MODELS[key] = (
            from_folder(job['model'], dtype)
            if isinstance(job['model'], str)
            else build(**job['model'], dtype=dtype)
        )
    return MODELS[key]


def arguments(args):
    "Those of `generate`, constraints made into objects anew: they keep state."
    made = [
        PhrasalConstraint(c['phrasal'])
        if 'phrasal' in c
        else DisjunctiveConstraint(c['disjunctive'])
        for c in args.get('constraints', ())
    ]
    return args | (dict(constraints=made) if made else {})


def inputs(prompt, seq2seq, pad):
    "`(ids, mask)` of a text or a batch, padded on the left, for encoders on the right."
    rows = prompt if isinstance(prompt[0], list) else [prompt]
    longest = max(map(len, rows))

    def padded(row, fill, value):
        pads = [fill] * (longest - len(row))
        return [value or t for t in row] + pads if seq2seq else pads + [value or t for t in row]

    return torch.tensor([padded(r, pad, 0) for r in rows]), torch.tensor(
        [padded(r, 0, 1) for r in rows]
    )


def cut(row, eos):
    return row[: next((i + 1 for i, t in enumerate(row) if t in eos), len(row))]


def once(model, prompt, args):
    "`(seconds, sequences returned, new tokens of the first sequence of each text)`."
    seq2seq, pad = model.config.is_encoder_decoder, args.get('pad_token_id', 0)
    ids, mask = inputs(prompt, seq2seq, pad)
    args = dict(do_sample=False, pad_token_id=pad) | arguments(args)
    began = time.perf_counter()
    out = model.generate(ids, attention_mask=mask, **args)
    seconds = time.perf_counter() - began
    eos = args.get('eos_token_id', model.generation_config.eos_token_id)
    new = [
        cut(row, eos if isinstance(eos, list) else [eos])
        for row in out[:, 1 if seq2seq else ids.shape[1] :].tolist()
    ]
    return seconds, new, sum(map(len, new[:: len(new) // len(ids)]))


def peak_mb():
    """The most memory this process has held.

    Where Linux says so itself, since ru_maxrss starts at that of the parent.
    """
    status = Path('/proc/self/status')
    if status.exists():
        return (
            int(
                next(l for l in status.read_text().splitlines() if l.startswith('VmHWM')).split()[1]
            )
            / 1024
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def answer(job):
    torch.set_num_threads(job.get('threads', 1))
    model, rows = model_of(job), []
    for run in job['runs']:
        for _ in range(job.get('warmup', 1)):
            once(model, job['prompts'][0], run['args'])
    for repeat in range(job.get('repeats', 1)):
        for i, prompt in enumerate(job['prompts']):
            for run in job['runs']:
                seconds, new, n = once(model, prompt, run['args'])
                row = dict(
                    name=run['name'],
                    prompt=i,
                    repeat=repeat,
                    new_tokens=n,
                    seconds=round(seconds, 6),
                    peak_mb=round(peak_mb(), 1),
                )
                rows.append(row | (dict(tokens=new) if repeat == 0 else {}))
    return dict(
        versions=dict(transformers=transformers.__version__, torch=torch.__version__), rows=rows
    )


if __name__ == '__main__':
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(answer(json.loads(line))), flush=True)
