"""Notebooks and commands run by a process that has imported what they import: each in a fork, which starts at once.

Importing torch, transformers and decodelab takes five seconds of CPU; a test that runs twenty notebooks, or
kills a command twenty times, needs it once. `Runner` runs notebooks one after the other, `start` a command
that can be waited for, signalled and killed as one that `subprocess.Popen` has started.
"""

import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from multiprocessing import forkserver
from pathlib import Path

import repo  # noqa: F401  (before anything imports nbformat)

IMPORTED = (
    'tqdm.auto',  # before what looks like a notebook to it
    'execnb.shell',
    'ipykernel.kernelapp',
    'jupyter_client.provisioning.local_provisioner',
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


@contextlib.contextmanager
def pretend_accelerator(traffic: str):
    "A block in which the machine has the pretend accelerator; its traffic is then written to a file."
    from decodelab.evaluate.pretend import count_traffic, pretend_device

    with pretend_device(), count_traffic() as counts:
        yield
    Path(traffic).write_text(json.dumps(counts))


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
        traffic = job['traffic']
        with pretend_accelerator(traffic) if traffic else contextlib.nullcontext():
            run_cells(Path(job['path']), tuple(job['skipped']))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def import_all():
    "Import what notebooks and commands import; what was made by then is no longer searched for garbage."
    import decodelab

    for name in IMPORTED:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(decodelab.__path__, 'decodelab.'):
        if module.name.rpartition('.')[2] not in ('__main__', 'panel'):
            importlib.import_module(module.name)
    search_less()


def read_modules():
    "Read what the fingerprint of an experiment holds of each module, once for all forks."
    from decodelab.lab.fingerprint import code_facts
    from decodelab.models.loading import PACKAGE

    for path in PACKAGE.glob('*/*.py'):
        code_facts(path, ('decodelab', path.parent.name))


def search_less():
    "Look no longer for garbage among what has been imported, which took ten per cent of the time of tests."
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def serve(jobs, answers):
    "Run the jobs of a file, a line of JSON each; answer each with its exit status."
    for line in jobs:
        child = os.fork()
        if child == 0:
            run_forked(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


class Fork:
    """A fork of this process that serves jobs, with the members of `subprocess.Popen` that `Runner` uses.

    A later fork holds the pipes of an earlier one: the last ends first.
    """

    def __init__(self):
        (jobs, self.stdin), (self.stdout, answers) = map(opened, (os.pipe(), os.pipe()))
        self.pid = os.fork()
        if self.pid == 0:
            self.stdin.close()
            warnings.simplefilter('ignore')
            serve(jobs, answers)
            os._exit(0)
        jobs.close()
        answers.close()

    def wait(self):
        "Wait until it has ended."
        os.waitpid(self.pid, 0)


def opened(pipe: tuple) -> tuple:
    "The two ends of a pipe as files."
    return open(pipe[0]), open(pipe[1], 'w')


class Runner:
    "A process that has imported everything, and runs notebooks one after the other in forks of itself."

    def __init__(
        self,
        env: dict,  # its environment, whole: what libraries read as they are imported stands here
        process: Fork | None = None,  # a fork of this process, whose environment it has
    ):
        self.env = env
        self.process = process  # None: started by the first run

    def run(
        self,
        path: Path,  # a notebook
        env: dict,  # further variables, of this run only
        skipped: tuple = (),  # cells that begin so are not run
        timeout: int = 400,  # seconds after which it is killed
        traffic: Path | None = None,  # run on the pretend accelerator; its counts go to this file
    ) -> str:
        "What a notebook printed until it failed; empty if all of its cells passed."
        if self.process is None:
            command = [sys.executable, '-W', 'ignore', __file__]
            pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.process = subprocess.Popen(command, env=self.env, **pipes)
        with tempfile.NamedTemporaryFile('r') as log:
            job = dict(path=str(path), env=env, skipped=skipped, log=log.name, timeout=timeout)
            job['traffic'] = traffic and str(traffic)
            self.process.stdin.write(json.dumps(job) + '\n')
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            output = log.read()
        return '' if status == 0 else f'ended with {status}\n{output}'

    def close(self):
        "End the process."
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()


def run_command(arguments: list, cwd: str, env: dict, outputs: tuple):
    "In the fork: become `python ARGUMENTS` in a folder and an environment; end as it ends."
    os.setsid()
    for number, path in enumerate(outputs, 1):
        with open(path, 'w') as file:
            os.dup2(file.fileno(), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    option, *rest = arguments
    fork_kernels()
    try:
        if option == '-m':
            sys.path.insert(0, cwd)
            sys.argv = rest
            runpy.run_module(rest[0], run_name='__main__', alter_sys=True)
        elif option == '-c':
            sys.argv = ['-c', *rest[1:]]
            exec(compile(rest[0], '<string>', 'exec'), dict(__name__='__main__'))
        else:
            sys.path.insert(0, str(Path(option).parent))
            sys.argv = arguments
            runpy.run_path(option, run_name='__main__')
    finally:
        atexit._run_exitfuncs()


class ForkedKernel:
    """A kernel in a fork of this process, with the members of `subprocess.Popen` that jupyter_client uses.

    A kernel of its own imports for five seconds what this process has imported. It stays a child, so that
    it sees when its parent ends, and holds those open files only that it is to hold.
    """

    stdin = stdout = stderr = None

    def __init__(self, command: list, *, env: dict, cwd: str, pass_fds: tuple = (), **_):
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            become_kernel(command, env, cwd, pass_fds)
        os.setpgid(self.pid, self.pid)  # before anybody asks for its group

    def poll(self) -> int | None:
        "Its exit status, negative for a signal; None while it runs."
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        "Its exit status once it has ended."
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int):
        "Send a signal to it, if it runs."
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        "Ask it to end."
        self.send_signal(signal.SIGTERM)

    def kill(self):
        "Kill it."
        self.send_signal(signal.SIGKILL)


def replace_files(handed_on: set):
    """Replace the open files but some by empty ones.

    Objects from before the fork close their numbers when they are collected, which new files must not have.
    """
    empty = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir('/proc/self/fd')):
        if number not in {empty, *handed_on}:
            with contextlib.suppress(OSError):  # the listing itself, which is closed by now
                os.fstat(number)
                os.dup2(empty, number)


def become_kernel(command: list, env: dict, cwd: str, pass_fds: tuple):
    "In the fork: run the kernel of `python -m ipykernel_launcher ARGUMENTS`, and end."
    code = 1
    try:
        parent = os.getppid()
        replace_files({1, 2, *pass_fds})
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        asyncio._set_running_loop(None)  # that of the thread that forked
        asyncio.set_event_loop(None)
        import matplotlib
        from ipykernel.kernelapp import launch_new_instance
        from IPython.core.interactiveshell import InteractiveShell

        InteractiveShell.clear_instance()  # where a notebook runs another one
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        matplotlib.use('module://matplotlib_inline.backend_inline')  # it is imported already
        arguments = command[command.index('ipykernel_launcher') + 1 :]
        sys.argv = ['ipykernel_launcher', *arguments, f'--IPKernelApp.parent_handle={parent}']
        launch_new_instance()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def fork_kernels():
    "From now on kernels that this process starts are forks of it, where a fork is all that is needed."
    from jupyter_client.provisioning import local_provisioner

    start_kernel = local_provisioner.launch_kernel

    def launch(command, **options):
        folders = '/proc/self/fd', options.get('cwd') or '.'
        forked = 'ipykernel_launcher' in command and all(map(os.path.isdir, folders))
        return (ForkedKernel if forked else start_kernel)(command, **options)

    local_provisioner.launch_kernel = launch


def start_server():
    """Start the process that `start` forks from, with this folder on its path.

    Python 3.11's has no path but PYTHONPATH, and leaves out in silence what it does not find there: each
    fork then imports everything by itself.
    """
    multiprocessing.get_context('forkserver').set_forkserver_preload(['preloaded_modules'])
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop('PYTHONPATH')
        if before is not None:
            os.environ['PYTHONPATH'] = before


class Started:
    "A command in a fork, with the members of `subprocess.Popen` that tests use."

    def __init__(self, arguments: list, cwd: Path, env: dict):
        self.files = [tempfile.NamedTemporaryFile('r') for _ in range(2)]
        self.stdout, self.stderr = self.files
        names = tuple(file.name for file in self.files)
        context = multiprocessing.get_context('forkserver')
        self.process = context.Process(target=run_command, args=(arguments, str(cwd), env, names))
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        "Its exit status, negative for a signal; None while it runs."
        return self.process.exitcode

    poll = returncode.fget

    def wait(self, timeout: float | None = None) -> int:
        "Its exit status once it has ended; raises `subprocess.TimeoutExpired`."
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired('a command in a fork', timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        "All that it printed, to both streams, once it has ended."
        self.wait(timeout)
        output = []
        for file in self.files:
            file.seek(0)
            output.append(file.read())
        return tuple(output)

    def send_signal(self, number: int):
        "Send a signal to it, if it runs."
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self):
        "Kill it, if it runs."
        self.send_signal(signal.SIGKILL)


def start(
    arguments,  # what stands behind `python`: `-m module …`, `-c code …` or a script and its arguments
    cwd: Path | str = '.',  # the folder it runs in
    env: dict | None = None,  # its environment, whole; this process's if None
) -> Started:
    "Start a command in a fork of a process that has imported everything, as a process group of its own."
    env = dict(os.environ if env is None else env)
    return Started([str(a) for a in arguments], Path(cwd).resolve(), env)


if __name__ == '__main__':
    import_all()
    read_modules()
    serve(sys.stdin, sys.stdout)
