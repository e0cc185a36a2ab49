"""Four shards share a sweep while any of them is killed again and again: no row is lost or doubled.

PYTHONPATH=. python tests/lab/kill_shards.py 50 > tests/lab/kill_shards.txt
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / 'tools'))

import preloaded

from decodelab.core.files import read_run_rows

SHARDS = 4
SCRIPT = """
import os, sys, time
from pathlib import Path
from decodelab.evaluate import run_jobs

folder, n = Path(sys.argv[1]), int(sys.argv[2])

def job(i):
    with open(folder / 'begun', 'a') as file:
        file.write(f'{os.getpid()} {i}\\n')
    time.sleep(1.5 if i == 0 else 0.1)
    return [dict(i=i, part=part) for part in range(2)]

jobs = {f'job {i}': lambda i=i: job(i) for i in range(n)}
print(len(run_jobs(jobs, folder / 'rows', progress=False)))
"""


class Sweep:
    "Four shards of a sweep of short jobs and a long one, in forks."

    def __init__(self, folder: Path, jobs: int):
        self.folder = folder
        self.jobs = jobs
        self.script = folder / 'sweep.py'
        self.script.write_text(SCRIPT)
        self.shards = [self.start(i) for i in range(SHARDS)]

    def start(self, i: int):
        "Start shard `i`, for the first time or again."
        env = {k: v for k, v in os.environ.items() if not k.startswith('DECODELAB_')}
        env |= dict(PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', DECODELAB_SHARD=f'{i}/{SHARDS}')
        return preloaded.start([self.script, self.folder, self.jobs], self.folder, env)

    def begun(self) -> list[str]:
        "The process and the job of each time that a job was begun."
        path = self.folder / 'begun'
        return path.read_text().splitlines() if path.exists() else []

    def works(self, i: int) -> bool:
        "Has shard `i` begun a job since it was started?"
        begin = f'{self.shards[i].pid} '
        return any(line.startswith(begin) for line in self.begun())

    def kill(self, i: int) -> bool:
        "SIGKILL for shard `i`, and start it again; was it running?"
        self.shards[i].process.kill()
        was_running = (
            self.shards[i].wait(10) == -signal.SIGKILL
        )  # one that had ended has another status
        self.shards[i] = self.start(i)
        return was_running

    def finish(self) -> dict:
        "Counts, after all shards have ended by themselves."
        outputs = [shard.communicate(120)[0].strip() for shard in self.shards]
        rows = Counter(row['job'] for row in read_run_rows(self.folder / 'rows'))
        return dict(
            outputs=set(outputs),
            jobs=self.jobs,
            rows=sum(rows.values()),
            lost=sum(f'job {i}' not in rows for i in range(self.jobs)),
            doubled=sum(n > 1 for n in rows.values()),
            begun=len(self.begun()),
        )


def kill_shards(folder: Path, kills: int, jobs: int, seed: int = 0) -> dict:
    "The counts of a sweep in which shards at random were killed at random moments of their work."
    draw = random.Random(seed)
    sweep = Sweep(folder, jobs)
    killed = Counter()
    while sum(killed.values()) < kills and len(sweep.begun()) < jobs:
        i = draw.randrange(SHARDS)
        while not sweep.works(i) and sweep.shards[i].returncode is None:
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 0.1))
        killed[i] += sweep.kill(i)
    begun = len(sweep.begun())
    return sweep.finish() | dict(killed=dict(sorted(killed.items())), begun_at_last_kill=begun)


if __name__ == '__main__':
    n_kills = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        counts = kill_shards(Path(name), n_kills, jobs=70 * n_kills)
        print(
            f'{sum(counts["killed"].values())} kills of {SHARDS} shards in {time.monotonic() - start:.0f} s'
        )
        for key, value in counts.items():
            print(f'{key}: {value}')
    whole = not counts['lost'] and not counts['doubled']
    one_job_at_most = counts['begun'] <= counts['jobs'] + n_kills
    all_killed = sum(counts['killed'].values()) == n_kills
    raise SystemExit(0 if whole and one_job_at_most and all_killed else 1)
