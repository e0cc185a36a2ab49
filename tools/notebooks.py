"""`nbdev_test` for all notebooks, two at a time, each in a fork of a process that has imported everything before.

What a notebook changes in its process (variables of the environment, a registered device) ends with it.
`nbdev_test --path NOTEBOOK` runs one alone.
"""

import multiprocessing
import os
import sys
import tempfile

import nbdev.test
import preloaded

run_notebook = nbdev.test.test_nb


def run_with_forks(*args, **options) -> tuple[bool, float]:
    "`test_nb` in this process, whose kernels are forks of it, as on a machine without the library."
    preloaded.fork_kernels()
    with tempfile.TemporaryDirectory() as folder:
        os.environ['DECODELAB_CACHE'] = folder
        return run_notebook(*args, **options)


def run_isolated(*args, **options) -> tuple[bool, float]:
    "Whether a notebook passed, and its seconds: `test_nb` in a fork of its own."
    context = multiprocessing.get_context('fork')
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(run_with_forks(*args, **options)))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        child.join()
        print(f'{args[0]} ended with {child.exitcode}', file=sys.stderr)
        return False, 0.0
    finally:
        child.join()


if __name__ == '__main__':
    preloaded.import_all()
    nbdev.test.test_nb = run_isolated
    nbdev.test.nbdev_test(n_workers=2, timing=True)
