"Several processes measure what one measures: shared, killed and resumed, or with one model cut over two."

import contextlib
import io
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import preloaded
import pytest
import torch

from tests.evaluate.test_bench_resume import SCRIPT, TIMES

pytestmark = [
    pytest.mark.usefixtures('one_thread'),
    pytest.mark.skipif(os.name != 'posix', reason='signals'),
    pytest.mark.skipif(
        not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
        reason='this PyTorch has no gloo',
    ),
]
WHERE = [*TIMES, 'processes']  # what may differ between a run of one process and one of several
LAUNCH = dict(
    accelerate=(
        'accelerate.commands.launch --multi_gpu --num_processes {n} --num_machines 1 '
        '--main_process_port 0 --mixed_precision no --dynamo_backend no'
    ),
    torchrun='torch.distributed.run --nproc_per_node {n} --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:0',
)  # each takes a free port
ALONE = {'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'}


class Forks:
    "Processes of a script, in forks, with what a launcher tells them; one that fails takes the others down."

    def __init__(self, n: int, command: list, env: dict):
        environment = dict(
            WORLD_SIZE=str(n),
            LOCAL_WORLD_SIZE=str(n),
            MASTER_ADDR='127.0.0.1',
            MASTER_PORT=str(free_port()),
        )
        self.processes = [
            preloaded.start(command, env=env | environment | dict(RANK=str(i), LOCAL_RANK=str(i)))
            for i in range(n)
        ]

    @property
    def returncode(self) -> int | None:
        "The first status that is not 0; 0 if all have ended well, None while they run."
        results = [p.returncode for p in self.processes]
        failed = [status for status in results if status]
        if failed:
            return failed[0]
        return None if None in results else 0

    poll = returncode.fget

    def communicate(self, timeout):
        "All that they printed, once all have ended or one has failed."
        until = time.monotonic() + timeout
        while self.returncode is None and time.monotonic() < until:
            time.sleep(0.01)
        status = self.returncode
        self.kill()
        streams = [p.communicate(timeout=10) for p in self.processes]
        out, err = (''.join(texts) for texts in zip(*streams))
        return out, err + (signal.Signals(-status).name if status and status < 0 else '')

    def kill(self):
        "Kill those that run."
        for process in self.processes:
            process.kill()


def started(n, script, *args, by='forks'):
    "`n` processes of a script that sees no GPU."
    env = {k: v for k, v in os.environ.items() if k not in ALONE} | dict(
        CUDA_VISIBLE_DEVICES='',
        OMP_NUM_THREADS='1',
        PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
    )
    if by == 'forks':
        return Forks(n, [script, *args], env)
    return subprocess.Popen(
        [
            sys.executable,
            '-W',
            'ignore',
            '-m',
            *LAUNCH[by].format(n=n).split(),
            str(script),
            *map(str, args),
        ],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ran(n, script, *args, **how):
    "What the processes wrote; they must have ended well. One process is this one."
    if n == 1:
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            patch.setattr(sys, 'argv', [str(script), *map(str, args)])
            runpy.run_path(str(script), run_name='__main__')
        return out.getvalue()
    process = started(n, script, *args, **how)
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, err[-3000:]
    return out


def script(tmp_path, text):
    path = tmp_path / f'work{len(list(tmp_path.glob("work*")))}.py'
    path.write_text(text)
    return path


def stored_rows(folder):
    "`{file: its whole lines}` of a run folder."
    files = {}
    for path in sorted(Path(folder).glob('rows*')):
        lines = path.read_text().splitlines(keepends=True)
        files[path.name] = [json.loads(line) for line in lines if line.endswith('\n')]
    return files


def runs(rows):
    return sorted((r['repeat'], r['prompt'], r['strategy']) for r in rows)


MODELS = '''
import sys
from decodelab import AssistantDrafter, Greedy, PromptLookupDrafter, Sample, Speculative, Temperature, bench, load
target, draft = load('pico', device='cpu'), load('pico-draft', device='cpu')
ways = dict(greedy=Greedy(), sample=Sample([Temperature(.8)]), assisted=Speculative(AssistantDrafter(draft)), lookup=Speculative(PromptLookupDrafter(), base=Sample()))
prompts = ['def fibonacci(n):', 'import os\\n', 'class Stack:\\n    def push(', 'for i in range(', 'while True:']
frame = bench(target, prompts, ways, max_new_tokens=8, repeats=2, output_dir=sys.argv[1])
if __import__('os').environ.get('RANK', '0') == '0': frame.to_json(sys.argv[2], orient='records')
'''


def test_two_processes_generate_and_count_as_one_does(tmp_path):
    import pandas as pd

    work = script(tmp_path, MODELS)
    for n in (1, 2):
        ran(n, work, tmp_path / f'run{n}', tmp_path / f'{n}.json')
    one, two = (pd.read_json(tmp_path / f'{n}.json', orient='records') for n in (1, 2))
    changing = [*WHERE, *(c for c in one if 'second' in c or c == 'draft_cost')]
    pd.testing.assert_frame_equal(
        one.drop(columns=changing), two.drop(columns=changing)
    )  # tokens, counts, verdicts, order
    assert len(two) == 4 * 5 * 2
    assert set(two.processes) == {2}
    assert set(one.processes) == {1}
    files = stored_rows(tmp_path / 'run2')
    assert set(files) == {'rows.0.jsonl', 'rows.1.jsonl'}
    assert runs(files['rows.0.jsonl'] + files['rows.1.jsonl']) == runs(
        stored_rows(tmp_path / 'run1')['rows.jsonl']
    )
    group = lambda rows: {(r['repeat'], r['prompt']) for r in rows}
    # whole groups: what is compared was measured by one process
    assert not group(files['rows.0.jsonl']) & group(files['rows.1.jsonl'])
    assert [len(rows) for rows in files.values()] == [
        20,
        20,
    ]


PACED = SCRIPT.replace(
    "if __name__ == '__main__': run(sys.argv[1], ms=float(sys.argv[2]))",
    '''
def said(frame): return frame.drop(columns=['date', 'commit', 'seconds', 'tokens_per_second', 'processes']).to_json(orient='records')

if __name__ == '__main__':
    import os
    rank = os.environ.get('RANK', '0')
    out = sys.argv[1].replace('RANK', rank)
    os.makedirs(out, exist_ok=True)
    open(f'{out}/pid.{rank}', 'w').write(str(os.getpid()))
    frame = run(out, ms=float(sys.argv[2]))
    if rank == '0': print(said(frame))
''',
)
TOTAL = 2 * 3 * 4  # strategies, prompts, repeats


def killed(work, folder, victim, rows=4, **how):
    "Start two processes, kill one with SIGKILL when it has kept some rows, and wait until the launcher has taken the other down."
    process = started(2, work, folder, 25, **how)
    own = Path(str(folder).replace('RANK', str(victim)))
    try:
        deadline = time.monotonic() + 180
        while (
            not (own / f'rows.{victim}.jsonl').exists()
            or (own / f'rows.{victim}.jsonl').read_bytes().count(b'\n') < rows
        ):
            assert process.poll() is None, process.communicate()[1][-3000:]
            assert time.monotonic() < deadline, process.communicate()[1][-3000:]
            time.sleep(0.005)
        os.kill(int((own / f'pid.{victim}').read_text()), signal.SIGKILL)
        message = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert process.returncode != 0
    assert 'SIGKILL' in message


def test_a_worker_is_killed_and_any_number_goes_on(tmp_path):
    work = script(tmp_path, PACED)
    killed(work, tmp_path / 'run', victim=1, by='accelerate')
    before = stored_rows(tmp_path / 'run')
    done = [r for rows in before.values() for r in rows]
    assert 4 <= len(before['rows.1.jsonl']) < TOTAL // 2
    assert len(runs(done)) == len(set(runs(done)))
    with open(tmp_path / 'run' / 'rows.1.jsonl', 'a') as file:
        file.write('{"strategy": "on')  # and the power fails while a row is written
    want = ran(1, work, tmp_path / 'undisturbed', 0)
    for n in (1, 2):
        shutil.copytree(tmp_path / 'run', tmp_path / f'again{n}')
        assert json.loads(ran(n, work, tmp_path / f'again{n}', 0)) == json.loads(want)
        after = stored_rows(tmp_path / f'again{n}')
        assert all(
            after[name][: len(rows)] == rows for name, rows in before.items()
        )  # nothing measured twice
        assert runs(r for rows in after.values() for r in rows) == runs(
            stored_rows(tmp_path / 'undisturbed')['rows.jsonl']
        )


def test_without_a_common_disk(tmp_path):
    work = script(tmp_path, PACED)
    killed(work, tmp_path / 'at.RANK', victim=0)
    mine = stored_rows(tmp_path / 'at.0')['rows.0.jsonl']
    other = stored_rows(tmp_path / 'at.1')['rows.1.jsonl']
    assert 0 < len(mine)
    assert 0 < len(other)
    assert not set(runs(mine)) & set(runs(other))
    rows = json.loads(ran(2, work, tmp_path / 'at.RANK', 0))
    assert rows == json.loads(ran(1, work, tmp_path / 'undisturbed', 0))
    assert len(rows) == TOTAL
    files = stored_rows(tmp_path / 'at.0')
    assert runs(files['rows.0.jsonl']) == runs(
        stored_rows(tmp_path / 'undisturbed')['rows.jsonl']
    )  # the main process's folder is whole
    # and nothing is left to do
    assert json.loads(ran(1, work, tmp_path / 'at.0', 0)) == rows
    assert stored_rows(tmp_path / 'at.0').get('rows.jsonl') is None


CUT = '''
import json, os, sys
import torch
from decodelab import (AssistantDrafter, BeamSearch, ContrastiveSearch, DoLa, EarlyExitDrafter, Greedy, PromptLookupDrafter, Sample, Speculative, bench, decode, decode_batch, load)
many = 'RANK' in os.environ
said = {}
for dtype in (torch.float64, torch.float32):
    lm = load(sys.argv[1], dtype=dtype, **dict(tp_plan='auto') if many else dict(device='cpu'))
    small = load(sys.argv[2], device='cpu', dtype=dtype) # a draft in each process, whole
    ways = dict(greedy=Greedy(), sample=Sample(), lookup=Speculative(PromptLookupDrafter()), assisted=Speculative(AssistantDrafter(small), base=Sample()),
                early=Speculative(EarlyExitDrafter(1)), beam=BeamSearch(3), contrastive=ContrastiveSearch(), dola=DoLa([1]))
    text = [5, 6, 7, 8, 5, 6, 7]
    said[str(dtype)] = {name: decode(lm, text, way, 24).tokens for name, way in ways.items()} | dict(batch=[t.tokens for t in decode_batch(lm, [text, text[:4]], Greedy(), 12)])
frame = bench(lm, [[3, 4], [9]], dict(greedy=ways['greedy'], lookup=ways['lookup']), max_new_tokens=6, repeats=1, output_dir=sys.argv[3])
said |= dict(rows=frame.tokens.tolist(), processes=int(frame.processes[0]))
whole = type(lm.model.lm_head.weight.data) is torch.Tensor
if os.environ.get('RANK', '0') == '0': print(json.dumps([said, lm.backend, lm.shards, whole]))
'''


def test_a_model_cut_over_two_processes_generates_as_the_whole_model(tmp_path):
    from transformers import AutoModelForCausalLM, LlamaConfig

    for name, width in (('target', 32), ('draft', 16)):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=96,
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            max_position_embeddings=128,
            initializer_range=0.2,
        )
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
        model.save_pretrained(tmp_path / name)
        tokenizer(tmp_path / name)
    work = script(tmp_path, CUT)
    (one, engine, shards, whole), (two, cut_engine, cut_shards, cut_whole) = (
        json.loads(
            ran(
                n,
                work,
                tmp_path / 'target',
                tmp_path / 'draft',
                tmp_path / f'run{n}',
            ).splitlines()[-1]
        )
        for n in (1, 2)
    )
    assert len({str(t) for t in one['torch.float64'].values()}) > 4  # texts that could differ
    assert one.pop('processes') == 1
    assert two.pop('processes') == 2
    assert one == two
    assert (engine, shards, whole) == ('native forward', 1, True)
    assert (
        cut_engine,
        cut_shards,
        cut_whole,
    ) == ("transformers' forward: its weights are cut over 2 processes", 2, False)
    files = stored_rows(tmp_path / 'run2')
    # all did every run together, and one kept it
    assert set(files) == {'rows.0.jsonl'}
    assert len(files['rows.0.jsonl']) == 4


def tokenizer(folder):
    "A word tokenizer beside a model's weights."
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({str(i): i for i in range(96)}, unk_token='0')),
        unk_token='0',
    ).save_pretrained(folder)


def test_processes_that_would_measure_other_things_are_stopped(tmp_path):
    work = script(tmp_path, PACED.replace('frame = run(out', 'frame = run(out, seed=int(rank)'))
    process = started(2, work, tmp_path / 'run', 0, by='torchrun')
    try:
        message = process.communicate(timeout=240)[1]
    finally:
        process.kill()
    assert process.returncode != 0
    assert 'process 1: first_seed was 0 and is now 1' in message
    assert not stored_rows(tmp_path / 'run')


EXPERIMENT = [
    '# Small',
    '''
import pandas as pd
from decodelab import Experiment, Greedy, PromptLookupDrafter, Speculative, bench
from decodelab.evaluate.jobs import run_jobs, process_rank
NEEDS = dict(pico=dict(models=('pico-draft',), data=(), memory_gb=.1, minutes=.1))
ex = Experiment('04_small', NEEDS)''',
    '## Claim',
    '## Measure',
    '''
lm = ex.load('pico-draft')
frame = bench(lm, ['def f(x):', 'import os', 'for i in'], dict(greedy=Greedy(), lookup=Speculative(PromptLookupDrafter())), max_new_tokens=8, repeats=2, output_dir=ex.rows_folder('live'), progress=False)
rows = run_jobs({str(i): lambda i=i: dict(i=i, by=process_rank()[0]) for i in range(5)}, output_dir=ex.rows_folder('rows'), progress=False)
ex.save(frame[['strategy', 'prompt', 'repeat', 'target_passes', 'text_hash']])
ex.save(pd.DataFrame(rows), 'rows')
ex.save_metadata()''',
    '## Figure',
    'ex.read().target_passes.sum()',
    '## Agreement',
    '''
ex.verdicts([dict(claim='they add up', source='10', measured=str(ex.read('rows').i.sum()), agrees=True, why='0 + 1 + 2 + 3 + 4')])''',
]

STAND_INS = dict(
    scontrol='echo 127.0.0.1',
    accelerate='shift\nexec "$PYTHON" -W ignore -m accelerate.commands.launch "$@"',
    srun='''
shift # --kill-on-bad-exit=1
for node in 0 1; do SLURM_NODEID=$node "$@" & done
for node in 0 1; do wait -n || { kill $(jobs -p); exit 1; }; done''',
)  # two machines, here


@pytest.mark.skipif(
    not shutil.which('bash')
    or subprocess.run(['bash', '-c', 'wait -n'], capture_output=True).returncode == 2,
    reason='no bash that can wait -n',
)
def test_the_slurm_script_shares_an_experiment_and_leaves_a_finished_one_alone(tmp_path):
    import nbformat
    import pandas as pd
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    from decodelab import Greedy, PromptLookupDrafter, Speculative, bench, load

    (tmp_path / 'bin').mkdir()
    for name, text in STAND_INS.items():
        (tmp_path / 'bin' / name).write_text(f'#!/bin/bash\n{text}\n')
        (tmp_path / 'bin' / name).chmod(0o755)
    (tmp_path / 'job.sh').write_text(slurm_script())
    nbformat.write(
        new_notebook(
            cells=[(new_markdown_cell if c[0] == '#' else new_code_cell)(c) for c in EXPERIMENT]
        ),
        tmp_path / '04_small.ipynb',
    )
    env = {
        k: v for k, v in os.environ.items() if k not in ALONE and not k.startswith('DECODELAB_')
    } | dict(
        CUDA_VISIBLE_DEVICES='',
        OMP_NUM_THREADS='1',
        PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join(filter(None, sys.path)),
        PATH=f'{tmp_path / "bin"}{os.pathsep}{os.environ["PATH"]}',
        SLURM_NNODES='2',
        SLURM_GPUS_ON_NODE='1',
        SLURM_JOB_NODELIST='n[1-2]',
    )
    options = ['04_small', '--notebooks', tmp_path, '--out', tmp_path / 'out']
    job = subprocess.run(
        ['bash', tmp_path / 'job.sh', *options],
        env=env | dict(SLURM_JOB_ID=str(free_port() - 20000)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    again = Forks(2, ['-m', 'decodelab', 'experiment', *options, '--resume'], env)
    try:
        # nothing is left to do, and nobody waits for anybody
        out, err = again.communicate(timeout=240)
    finally:
        again.kill()
    assert again.returncode == 0, err[-3000:]
    for output in (job.stdout, out):  # the main process alone speaks
        assert output.count('agrees: they add up') == 1
    files = {
        part: stored_rows(tmp_path / 'out' / 'runs' / '04_small.pico' / part)
        for part in ('live', 'rows')
    }
    assert [len(f) for part in files.values() for f in part.values()] == [
        6,
        6,
        3,
        2,
    ]
    assert pd.read_csv(tmp_path / 'out' / 'results' / '04_small.pico.rows.csv').by.tolist() == [
        0,
        1,
        0,
        1,
        0,
    ]
    want = bench(
        load('pico-draft', device='cpu'),
        ['def f(x):', 'import os', 'for i in'],
        dict(greedy=Greedy(), lookup=Speculative(PromptLookupDrafter())),
        max_new_tokens=8,
        repeats=2,
        progress=False,
    )
    rows = pd.read_csv(tmp_path / 'out' / 'results' / '04_small.pico.csv')
    pd.testing.assert_frame_equal(rows, want[list(rows)])


def slurm_script():
    "The script that the notebook 15_lab/12_distributed shows."
    import ast

    from repo import ROOT, cells

    source = next(
        s
        for s in cells(ROOT / 'nbs' / '15_lab' / '12_distributed.ipynb')
        if s.startswith('SLURM =')
    )
    return ast.literal_eval(ast.parse(source).body[0].value)


def free_port():
    "A port of those that the script may choose."
    import random
    import socket

    for port in random.sample(range(20000, 40000), 50):
        with socket.socket() as s:
            if s.connect_ex(('127.0.0.1', port)):
                return port
