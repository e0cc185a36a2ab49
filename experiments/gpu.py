"""The first hours of a GPU, in pieces, the most telling first.

    python experiments/gpu.py --list
    python experiments/gpu.py --out DIR --minutes 9

A call does what is next, stops in time, and prints a line of JSON with what is done and what is left;
the same call goes on, also after a kill and in another session, until it prints "done": true. `--list`
shows the pieces in their order, their minutes, and which are done:

    tests     the parts and the recorded steps on the device
    pico …    the embedded family trained anew; its weights, at most 16 MiB a file, in DIR/weights
    plain-…   plain decoding at .5 to 8 billion parameters, every way, batches 1 to 64 (`gpu_speed.py`)
    rounds-…  rounds with drafts of two layers, as CUDA graphs and without
    nano …    the nano family trained (`nbs/05_zoo/03_nano.ipynb`), for the experiments after it
    01_… …    the experiments of scale gpu

No piece takes more than 9 minutes at a time; an experiment that takes long is put off, and goes on at the
end. Results are in DIR (notebooks, rows, verdicts, weights: small), runs of training in --nano. What is left
is printed first (`--plan`: that alone); nothing is downloaded. Bring DIR back, and give it to the next
session. With --toy: a miniature of all of it, on a CPU if there is no GPU, to try it out.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
if (HERE.parent / 'decodelab/__init__.py').exists():
    sys.path.insert(0, str(HERE.parent))  # a checkout need not be installed

PICO = {'pico': 5.0, 'pico-draft': 2.0, 'pico-alt': 1.0}  # minutes of training
MEASURED = {  # minutes of what needs no training
    'plain-0.5B': 4.0,
    'plain-1.5B': 5.0,
    'plain-3B': 6.0,
    'plain-8B': 8.0,
    'rounds-3B': 5.0,
    'rounds-8B': 7.0,
}
NANO = {
    'nano': 6.0,
    'nano-draft': 1.2,
    'nano-small': 0.8,
    'nano-alt': 0.8,
}
TRAINED = PICO | NANO
PIECES = {'tests': 1.0} | PICO | MEASURED | NANO  # in this order, before the experiments
EXPERIMENTS = (
    '01_assisted_generation',
    '02_prompt_lookup',
    '03_dynamic_lookahead',
    '04_early_exit',
    '05_universal_assisted_generation',
    '13_block_verification',
    '14_batch',
    '16_drafters',
    '20_trees',
    '19_gpu_costs',
    '11_compiled_generation',
    '12_how_to_generate',
)
TESTS = 'tests/drafters/test_recorded.py', 'tests/drafters/test_pretend_device.py'
MOST = 16 << 20  # bytes of a file that is brought back
LONGEST = 9.0  # minutes of a piece before the next has its turn
LEAST = 40.0  # seconds that a task is begun with
ENDING = 12.0  # seconds to stop in
TRIES = 2  # of a task that fails


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--out',
        default='gpu-run',
        metavar='DIR',
        help='where results go, and where a stopped run goes on (default: gpu-run)',
    )
    parser.add_argument(
        '--minutes', type=float, default=9.0, metavar='M', help='of this call (default: 9)'
    )
    parser.add_argument(
        '--total',
        type=float,
        default=180.0,
        metavar='M',
        help='of all calls together (default: 180)',
    )
    parser.add_argument(
        '--nano',
        default=os.environ.get('DECODELAB_NANO', 'zoo-runs'),
        metavar='DIR',
        help='where the families are trained (default: DECODELAB_NANO, or zoo-runs)',
    )
    parser.add_argument('--only', metavar='A,B', help='these pieces')
    parser.add_argument('--list', action='store_true', help='show all pieces, and which are done')
    parser.add_argument('--plan', action='store_true', help='print what is left, and do nothing')
    parser.add_argument('--experiments', default=str(HERE), metavar='DIR', help=argparse.SUPPRESS)
    parser.add_argument('--toy', action='store_true', help='a miniature, also on a CPU')
    parser.add_argument('--task', help=argparse.SUPPRESS)  # do this one, in this process
    parser.add_argument('--pause', type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument('--eager', action='store_true', help=argparse.SUPPRESS)
    parser.add_argument(
        '--tokens', type=int, help=argparse.SUPPRESS
    )  # that each model reads, for a test
    return parser


def planned(args):
    "The tasks in their order; raises `ValueError` for unknown ones."
    from decodelab.lab.requirements import experiments

    table = experiments(args.experiments)
    names = [
        name
        for name in dict.fromkeys([*EXPERIMENTS, *table.name])
        if name in set(table.name[table.scale == 'gpu'])
    ]
    every = [*PIECES, *names]
    if not args.only:
        own = args.experiments == str(HERE)
        return [n for n in every if n in PIECES or n in EXPERIMENTS or not own]
    chosen = args.only.split(',')
    if unknown := [n for n in chosen if n not in every]:
        raise ValueError(f'no piece {unknown[0]!r}: choose from {", ".join(every)}')
    return [n for n in every if n in chosen]


def needs_of(args, task):
    "`(minutes, memory)` of a piece, in words."
    from decodelab.lab.requirements import experiments

    if task in PIECES:
        kinds = dict.fromkeys(TRAINED, 'trained') | dict.fromkeys(MEASURED, 'random weights')
        return PIECES[task], kinds.get(task, 'small models')
    table = experiments(args.experiments)
    needs = table[table.scale == 'gpu'].set_index('name')
    return needs.minutes[task], f'{needs.memory_gb[task]} GB'


def list_lines(args, tasks, state):
    "All pieces, a line each: their minutes, and how far they are."
    lines = [f'{"piece":34}{"minutes":>8}  {"spent":>6}  status']
    for task in tasks:
        record = state.of(task)
        status = record['status'] + (f': {record["error"]}' if 'error' in record else '')
        spent = record['seconds'] / 60
        lines.append(f'{task:34}{needs_of(args, task)[0]:8.1f}  {spent:6.1f}  {status}')
    return lines


def plan_lines(args, tasks, state):
    "The pieces that are left, a line each, with their expected minutes and memory."
    left = [t for t in tasks if state.of(t)['status'] in ('left', 'put off')]
    needs = {task: needs_of(args, task) for task in left}
    lines = [f'{task:34}{minutes:6.1f} min  {memory}' for task, (minutes, memory) in needs.items()]
    total = sum(minutes for minutes, _ in needs.values())
    spent = state.seconds / 60
    return [
        *lines,
        f'{len(left)} tasks, about {total:.0f} min; {spent:.0f} of {args.total:g} min are spent '
        f'(--total); nothing is downloaded',
    ]


# One task, in a process of its own


def work(args):
    "Do one task; 0 if it is done, 1 if it failed, 3 if it is to go on."
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.3)
        os._exit(9)  # whoever started this is gone

    threading.Thread(target=watch, daemon=True).start()
    from decodelab.models.loading import default_device

    device = str(default_device(None))
    if args.task == 'tests':
        return run_tests(args, device)
    if args.task in PICO:
        return train_pico(args, device)
    if args.task in MEASURED:
        from gpu_speed import measure

        rows = measure(args.task, Path(args.out) / 'speed', device, args.toy)
        return 0 if any('error' not in row for row in rows) else 1
    if args.task in NANO:
        return train_nano(args, device)
    from decodelab.lab.runner import run_experiment

    ran = run_experiment(
        Path(args.experiments) / f'{args.task}.ipynb', args.out, 'gpu', quick=args.toy, resume=True
    )
    if ran.failure:
        print(ran.failure, ran.failure.trace, sep='\n')
    return 1 if ran.failure else 0


def run_tests(args, device):
    "The tests of the parts on the device; on a CPU, and for a toy, those of the pretend one."
    env = os.environ | dict(PYTHONPATH=str(HERE.parent))
    if not args.toy and device != 'cpu':
        env['DECODELAB_TEST_DEVICE'] = device
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider']
    files = TESTS[:1] if args.toy else TESTS
    return int(subprocess.run([*command, *files], cwd=HERE.parent, env=env).returncode != 0)


def compiles(args, device):
    "Are the layers compiled for training?"
    return device.startswith('cuda') and not args.eager and not args.toy


def train_pico(args, device):
    "Train a model of the embedded family; its weights are copied to DIR/weights."
    from decodelab.zoo.pico import train

    home = Path(args.nano) / 'pico-family'
    folder = train(
        args.task,
        home,
        args.tokens or (None if args.toy else 400_000_000),
        compile=compiles(args, device),
        pause=args.pause,
        toy=args.toy,
        device=device,
        minutes=TRAINED[args.task],
        wider=1 if args.toy else 8,
    )
    if not (folder / 'config.json').exists():
        return 3
    bring_back(folder, Path(args.out) / 'weights' / args.task)
    return 0


def bring_back(folder, target):
    "Copy a model and its log; a file that is too large is named on stderr, and stays."
    target.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if not file.is_file() or file.name.startswith(('checkpoint', 'stable')):
            continue
        if file.stat().st_size > MOST:
            print(f'{file} is over {MOST >> 20} MiB, and not copied', file=sys.stderr)
            continue
        shutil.copyfile(file, target / file.name)


def train_nano(args, device):
    "Train a model of the nano family."
    from decodelab.zoo.nano import train

    folder = train(
        args.task,
        Path(args.nano) / args.task,
        args.tokens,
        minutes=TRAINED[args.task],
        pause=args.pause / 60,
        device=device if args.toy else None,
        toy=args.toy,
        compile=compiles(args, device),
    )
    return 0 if (folder / 'config.json').exists() else 3


def started(args, task, pause, eager):
    "The process of a task; what it says goes to logs/TASK.log."
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        '--out',
        args.out,
        '--nano',
        args.nano,
        '--experiments',
        args.experiments,
        '--task',
        task,
        '--pause',
        str(pause),
    ]
    env = os.environ | dict(
        DECODELAB_NANO=args.nano, DECODELAB_SCALE='gpu', HF_HUB_OFFLINE='1', PYTHONUNBUFFERED='1'
    )
    with open(Path(args.out) / 'logs' / f'{task}.log', 'a') as log:
        return subprocess.Popen(
            command
            + (['--tokens', str(args.tokens)] if args.tokens else [])
            + ['--toy'] * args.toy
            + ['--eager'] * eager,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(child):
    "Ask a process to end, then end it, with all it has started."
    child.send_signal(signal.SIGINT)
    try:
        child.wait(ENDING - 4)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


# All of them


class State:
    "The state of the tasks, in DIR/gpu.json, written whole."

    def __init__(self, out):
        self.path = Path(out) / 'gpu.json'
        record = (
            json.loads(self.path.read_text()) if self.path.exists() else dict(seconds=0.0, tasks={})
        )
        self.seconds, self.tasks = record['seconds'], record['tasks']

    def of(self, task):
        return self.tasks.setdefault(task, dict(status='left', seconds=0.0, failures=0))

    def save(self):
        from decodelab.core.files import write_atomic

        write_atomic(
            self.path,
            json.dumps(dict(seconds=round(self.seconds, 1), tasks=self.tasks), indent=1) + '\n',
        )


def next_task(tasks, state):
    "The first that is left; then those that were put off; None: nothing. Experiments need the nano family."
    training = [state.of(t)['status'] for t in tasks if t in NANO]
    training_left = 'left' in training or 'put off' in training
    for status in ('left', 'put off'):
        for task in tasks:
            record = state.of(task)
            if record['status'] == status and (task in PIECES or not training_left):
                return task
    return None


def do(args, task, state, seconds):
    "Give a task some seconds, and record its result."
    record, begun = state.of(task), time.monotonic()
    child = started(args, task, max(1.0, 0.9 * seconds - 10), record['failures'] > 0)
    spent = record['seconds']
    total = state.seconds
    while (gone := time.monotonic() - begun) < seconds and child.poll() is None:
        record['seconds'], state.seconds = round(spent + gone, 1), total + gone
        state.save()
        try:
            child.wait(min(2.0, max(0.05, seconds - gone)))
        except subprocess.TimeoutExpired:
            pass
    code = child.poll()
    if code is None:
        stop(child)
    record['seconds'], state.seconds = (
        round(spent + time.monotonic() - begun, 1),
        total + time.monotonic() - begun,
    )
    if code == 0:
        record['status'] = 'done'
    elif code in (None, 3):
        record['status'] = (
            'left' if task in TRAINED or record['seconds'] < 60 * LONGEST else 'put off'
        )
    else:
        lines = (
            (Path(args.out) / 'logs' / f'{task}.log')
            .read_text(errors='replace')
            .strip()
            .splitlines()
        )
        record |= dict(
            failures=record['failures'] + 1,
            error=next(
                (l for l in reversed(lines) if 'Error' in l),
                lines[-1] if lines else f'status {code}',
            )[:300],
        )
        record['status'] = 'left' if task in TRAINED else 'put off'
        if record['failures'] >= TRIES:
            record['status'] = 'failed'
    state.save()


def main(argv=None):
    args = arguments().parse_args(argv)
    args.out, args.nano, args.experiments = (
        str(Path(p).resolve()) for p in (args.out, args.nano, args.experiments)
    )
    if args.task:
        return work(args)
    from decodelab.lab.runner import lock

    begun = time.monotonic()
    tasks = planned(args)
    if args.list:
        print(*list_lines(args, tasks, State(args.out)), sep='\n')
        return 0
    print(*plan_lines(args, tasks, State(args.out)), sep='\n', file=sys.stderr, flush=True)
    if args.plan:
        return 0
    for folder in (Path(args.out) / 'logs', Path(args.nano)):
        folder.mkdir(parents=True, exist_ok=True)
    held = lock(Path(args.out), 'gpu')
    state = State(args.out)
    left = lambda: (
        min(60 * args.minutes - (time.monotonic() - begun), 60 * args.total - state.seconds)
        - ENDING
    )
    while (task := next_task(tasks, state)) and left() >= min(LEAST, 60 * args.minutes / 3):
        turn = (
            60 * LONGEST - state.of(task)['seconds']
            if task not in TRAINED and state.of(task)['status'] == 'left'
            else left()
        )
        do(args, task, state, max(1.0, min(left(), turn)))
        print(
            f'{task}: {state.of(task)["status"]}, {state.of(task)["seconds"]:.0f} s',
            file=sys.stderr,
            flush=True,
        )
    by = lambda *status: [t for t in tasks if state.of(t)['status'] in status]
    over = state.seconds + ENDING + LEAST > 60 * args.total
    size = sum(f.stat().st_size for f in Path(args.out).rglob('*') if f.is_file())
    print(
        json.dumps(
            dict(
                done=not by('left', 'put off') or over,
                finished=by('done'),
                left=by('left', 'put off'),
                failed={t: state.of(t)['error'] for t in by('failed')},
                minutes=round(state.seconds / 60, 2),
                megabytes=round(size / 1e6, 2),
                out=args.out,
            )
        ),
        flush=True,
    )
    if held:
        held.release()
    return 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f'gpu.py: {error}')
