"Runs every notebook of experiments/ in a temporary copy, at the scale of DECODELAB_SCALE (pico where it is not set)."
import os, shutil, sys, tempfile, time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from repo import ROOT


def execute(path):
    "Run one notebook in its own folder; raises `CellExecutionError` where a cell fails."
    nb = nbformat.read(path, 4)
    NotebookClient(nb, timeout=600, kernel_name='python3', resources=dict(metadata=dict(path=str(path.parent)))).execute()


def main():
    os.environ.setdefault('DECODELAB_SCALE', 'pico')
    os.environ.setdefault('DECODELAB_QUICK', '1') # fewer prompts and repeats: the stored rows are evidence, this is a check
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(ROOT/'experiments', Path(folder)/'experiments'))
        for path in sorted(copy.glob('[0-9]*.ipynb')):
            start = time.perf_counter()
            try: execute(path)
            except CellExecutionError as e:
                failed += 1
                print(e, file=sys.stderr)
            print(f'experiments/{path.name}: {time.perf_counter() - start:.0f} s')
    return failed


if __name__ == '__main__': sys.exit(min(main(), 1))
