"""Kill `decodelab compare`, `experiment --resume` and `run_jobs` at random moments, and look at what is left.

    python tests/fuzz/kill.py --kills 50 --seed 0 [--work compare experiment jobs]

After each kill every complete line of the rows is JSON, no row is there twice, no earlier row has
changed, and one unit of work at most was lost. In the end all rows are there.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / 'tools'))

from repo import ROOT

from decodelab.core.files import may_be_alive

JOBS = '''
import sys, time
from pathlib import Path
from decodelab.evaluate.jobs import run_jobs
folder = Path(sys.argv[1])
def job(i):
    with open(folder.parent / 'begun', 'a') as file: file.write(f'{i}\\n')
    time.sleep(.004)
    return [dict(i=i, text='é' * 500), dict(i=-i)]
rows = run_jobs({str(i): lambda i=i: job(i) for i in range(300)}, folder, progress=False)
assert [r['i'] for r in rows] == [sign * i for i in range(300) for sign in (1, -1)]
'''
EXPERIMENT = [
    '# Slow',
    """import os, time
from pathlib import Path
import pandas as pd
from decodelab import Experiment
from decodelab.evaluate.jobs import run_jobs""",
    """NEEDS = dict(pico=dict(models=(), data=(), memory_gb=.1, minutes=.2))
ex = Experiment('01_slow', NEEDS)""",
    '## Claim',
    'The post *On sums of squares* says 20540.',
    '## Measure',
    """def one(i):
    with open(Path(os.environ['DECODELAB_RUNS'], '..', '..', 'begun'), 'a') as file: file.write(f'{i}\\n')
    time.sleep(.05)
    return dict(i=i, square=i * i)
rows = run_jobs({str(i): lambda i=i: one(i) for i in range(40)}, output_dir=ex.rows_folder('rows'), progress=False)
ex.save(pd.DataFrame(rows))
ex.save_metadata();""",
    '## Figure',
    'ex.read().square.sum()',
    '## Agreement',
    """total = ex.read().square.sum()
ex.verdicts([dict(claim='squares add up', source='20540', measured=str(total), agrees=bool(total == 20540), why='counted')])""",
]


def compare_key(row: dict) -> tuple:
    "The name of a run of `compare`."
    return row['repeat'], row['prompt'], row['strategy']


@dataclass
class Work:
    "A command that can be killed and gone on with."

    name: str
    folder: Path
    command: list
    rows: Path  # the folder of its rows
    total: int  # rows in the end
    key: object = compare_key  # of a row
    stored: list = field(default_factory=list)  # the rows after the last kill
    spawn: object = (
        None  # starts `python COMMAND` as `start` of tools/preloaded.py does; None: a new Python
    )
    counts: Counter = field(default_factory=Counter)

    def start(self):
        "The command as a process group of its own."
        env = {k: v for k, v in os.environ.items() if not k.startswith('DECODELAB_')}
        env |= dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1')
        if self.spawn is not None:
            return self.spawn(self.command, cwd=self.folder, env=env)
        return subprocess.Popen(
            [sys.executable, *map(str, self.command)],
            cwd=self.folder,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def complete_rows(self) -> list[dict]:
        "The complete lines of all files of rows; every one must be JSON."
        lines = []
        for path in sorted(self.rows.glob('rows*.jsonl')):
            lines += path.read_bytes().split(b'\n')[:-1]
        return [json.loads(line) for line in lines]

    def begun(self) -> int:
        "The units of work that were begun; None where they are not counted."
        path = self.folder / 'begun'
        return path.read_bytes().count(b'\n') if path.exists() else 0

    def check(self):
        "Look at what a killed process has left."
        rows = self.complete_rows()
        names = Counter(map(self.key, rows))
        doubled = [name for name, n in names.items() if n > 1]
        assert not doubled, f'{self.name}: rows are there twice: {doubled[:3]}'
        assert rows[: len(self.stored)] == self.stored, f'{self.name}: earlier rows have changed'
        about = self.rows / 'provenance.json'
        assert about.exists() or not rows, f'{self.name}: rows without provenance'
        for path in self.folder.rglob('*.json'):
            json.loads(path.read_text())  # whole
        self.stored = rows


def make_compare(folder: Path, repeats: int = 3) -> Work:
    "Runs of three strategies on twelve prompts, 108 of them."
    prompts = [f'def f{i}(x):' for i in range(12)]
    (folder / 'prompts.txt').write_text('\n'.join(prompts) + '\n')
    options = ['--max-new-tokens', '6', '--strategies', 'lookup,suffix', '--repeats', str(repeats)]
    command = ['-m', 'decodelab', 'compare', '--prompts', 'prompts.txt', *options]
    command += ['--device', 'cpu', '--no-compile', '--out', 'out']
    return Work('compare', folder, command, folder / 'out', 36 * repeats)


def make_jobs(folder: Path) -> Work:
    "300 jobs of `run_jobs`."
    (folder / 'jobs.py').write_text(JOBS)
    rows = folder / 'out'
    return Work('jobs', folder, ['jobs.py', rows], rows, 300, lambda row: row['job'])


def make_experiment(folder: Path) -> Work:
    "An experiment with 40 jobs."
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    is_text = lambda source: source.startswith(('#', 'The '))
    cells = [(new_markdown_cell if is_text(c) else new_code_cell)(c) for c in EXPERIMENT]
    (folder / 'e').mkdir()
    nbformat.write(new_notebook(cells=cells), folder / 'e' / '01_slow.ipynb')
    command = [
        '-m',
        'decodelab',
        'experiment',
        '01',
        '--notebooks',
        'e',
        '--out',
        'out',
        '--resume',
    ]
    rows = folder / 'out' / 'runs' / '01_slow.pico' / 'rows'
    return Work('experiment', folder, command, rows, 40, lambda row: row['job'])


MAKERS = dict(compare=make_compare, experiment=make_experiment, jobs=make_jobs)


def wait_for_rows(work: Work, process):
    "Wait until the process has written its first row, or has ended."
    size = lambda: sum(p.stat().st_size for p in work.rows.glob('rows*'))
    before = size()
    while size() == before and process.poll() is None:
        time.sleep(0.002)


def wait_for_writers(work: Work, seconds: float = 60):
    "Wait until the processes that hold locks have ended: a kernel looks for its parent once a second."
    end = time.monotonic() + seconds
    for path in work.folder.rglob('.*lock'):
        text = path.read_text() if path.exists() else ''
        while text and may_be_alive(json.loads(text)):
            assert time.monotonic() < end, f'after {seconds:.0f} s it is still there: {text}'
            time.sleep(0.05)


def kill_once(work: Work, delay: float, while_it_writes: bool, whole_group: bool):
    "Start the command, kill it after some seconds, and check what it left."
    before = work.begun(), len(work.stored)
    process = work.start()
    if while_it_writes:
        wait_for_rows(work, process)
    try:
        status = process.wait(delay)
    except subprocess.TimeoutExpired:
        status = None
    if status not in (None, 0):
        raise AssertionError(f'{work.name} failed: {process.stderr.read()[-1500:]}')
    if whole_group:
        os.killpg(process.pid, signal.SIGKILL) if status is None else None
    else:
        process.kill()
    process.wait()
    if work.name == 'experiment':
        wait_for_writers(work)
    process.stderr.close()
    work.check()
    new, begun = len(work.stored) - before[1], work.begun() - before[0]
    if work.name != 'compare':
        assert begun - new in (0, 1), f'{work.name}: {begun - new} units of work were lost'
        work.counts['lost'] += begun - new
    work.counts['finished before the kill' if status == 0 else 'killed'] += 1


def finish(work: Work):
    "Let the command end, and check that everything is there."
    process = work.start()
    message = process.communicate(timeout=300)[1]
    assert process.returncode == 0, message[-1500:]
    work.check()
    assert len(work.stored) == work.total, f'{work.name}: {len(work.stored)} of {work.total} rows'
    if work.name == 'experiment':
        table = (work.folder / 'out' / 'results' / '01_slow.pico.csv').read_text()
        assert table == 'i,square\n' + ''.join(f'{i},{i * i}\n' for i in range(40))
    locks = [p.name for p in work.folder.rglob('*.lock')]
    assert not locks, f'{work.name}: {locks} are left'


def fuzz(
    name: str,
    kills: int,
    seed: int,
    latest: float | None = None,  # seconds; None: as long as the work takes undisturbed
    spawn=None,  # how a command is started, see `Work`
) -> Counter:
    "Kill one kind of work `kills` times, with a new folder whenever it is finished."
    rng = random.Random(f'{name} {seed}')
    counts = Counter()
    with tempfile.TemporaryDirectory() as home:
        if latest is None:
            latest = undisturbed_seconds(name, Path(home))
        while counts['killed'] < kills:
            folder = Path(tempfile.mkdtemp(dir=home))
            work = MAKERS[name](folder)
            work.spawn = spawn
            while counts['killed'] + work.counts['killed'] < kills:
                while_it_writes = rng.random() < 0.7
                delay = rng.uniform(0, 1.0 if while_it_writes else latest)
                kill_once(work, delay, while_it_writes, rng.random() < 0.5)
                if len(work.stored) == work.total:
                    break
            finish(work)
            counts += work.counts
            counts['runs'] += 1
    return counts


def undisturbed_seconds(name: str, home: Path) -> float:
    "How long the work takes when it is left alone."
    work = MAKERS[name](Path(tempfile.mkdtemp(dir=home)))
    start = time.monotonic()
    finish(work)
    return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--kills', type=int, default=50, help='of each kind of work')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--work', nargs='*', choices=MAKERS, default=list(MAKERS))
    args = parser.parse_args()
    for name in args.work:
        start = time.monotonic()
        counts = fuzz(name, args.kills, args.seed)
        seconds = time.monotonic() - start
        print(f'{name}: {dict(counts)}, rows doubled 0, files whole, {seconds:.0f} s', flush=True)


if __name__ == '__main__':
    main()
