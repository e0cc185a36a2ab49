"""Notebooks run by a process that has imported what they import: each in a fork of it, which starts at once.

Importing torch, transformers and decodelab takes five seconds of CPU; a test that runs twenty notebooks
needs it once. `Runner` starts such a process, `run` runs one notebook in it.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

IMPORTED = (
    'execnb.shell',
    'matplotlib.pyplot',
    'pandas',
    'scipy.stats',
    'sklearn.linear_model',
    'sklearn.ensemble',
    'transformers.generation.utils',
    'transformers.models.llama.modeling_llama',
)


def run_cells(path: Path, skipped: tuple):
    "Run the code cells of a notebook in this process but those that begin with one of `skipped`."
    from execnb.nbio import read_nb
    from execnb.shell import CaptureShell

    shell = CaptureShell(path, mpl_format='png')
    shell.run_all(
        read_nb(path), exc_stop=True, preproc=lambda cell: cell.source.startswith(skipped)
    )


def run_forked(job: dict):
    "In the fork: set up what the job says, run its notebook, end."
    code = 1
    try:
        with open(job['log'], 'w') as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        signal.alarm(job['timeout'])
        os.environ.update(job['env'])
        os.chdir(Path(job['path']).parent)
        run_cells(Path(job['path']), tuple(job['skipped']))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def serve():
    "Import, then run the jobs of stdin, a line of JSON each; answer each with its exit status."
    import decodelab

    for name in IMPORTED:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(decodelab.__path__, 'decodelab.'):
        if module.name.rpartition('.')[2] not in ('__main__', 'panel'):
            importlib.import_module(module.name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run_forked(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Runner:
    "A process that has imported everything, and runs notebooks one after the other in forks of itself."

    def __init__(
        self,
        env: dict,  # its environment, whole: what libraries read as they are imported stands here
    ):
        self.env = env
        self.process = None  # started by the first run

    def run(
        self,
        path: Path,  # a notebook
        env: dict,  # further variables, of this run only
        skipped: tuple = (),  # cells that begin so are not run
        timeout: int = 400,  # seconds after which it is killed
    ) -> str:
        "What a notebook printed until it failed; empty if all of its cells passed."
        if self.process is None:
            command = [sys.executable, '-W', 'ignore', __file__]
            pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.process = subprocess.Popen(command, env=self.env, **pipes)
        with tempfile.NamedTemporaryFile('r') as log:
            job = dict(path=str(path), env=env, skipped=skipped, log=log.name, timeout=timeout)
            self.process.stdin.write(json.dumps(job) + '\n')
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            said = log.read()
        return '' if status == 0 else f'ended with {status}\n{said}'

    def close(self):
        "End the process."
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


if __name__ == '__main__':
    serve()
