"Runs every notebook of experiments/ in a temporary copy, at the scale of DECODELAB_SCALE (pico where it is not set)."
import os, shutil, sys, tempfile, time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from decodelab.dataset import missing_data
from decodelab.experiment_needs import assigned
from repo import ROOT


def execute(path):
    "Run one notebook in its own folder; raises `CellExecutionError` where a cell fails."
    nb = nbformat.read(path, 4)
    NotebookClient(nb, timeout=600, kernel_name='python3', resources=dict(metadata=dict(path=str(path.parent)))).execute()


def lacking(path):
    "The data that a notebook needs at this scale and that is not here."
    needs = (assigned(path, 'NEEDS') or {}).get(os.environ['DECODELAB_SCALE'], {})
    return [name for name in needs.get('data', ()) if missing_data(name)]


def main():
    os.environ.setdefault('DECODELAB_SCALE', 'pico')
    shared = ROOT.parent/'shared'/'data'
    if shared.is_dir(): os.environ.setdefault('DECODELAB_DATA', str(shared))
    os.environ.setdefault('DECODELAB_QUICK', '1') # fewer prompts and repeats: the stored rows are evidence, this is a check
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(ROOT/'experiments', Path(folder)/'experiments'))
        for path in sorted(copy.glob('[0-9]*.ipynb')):
            if lack := lacking(path):
                print(f'experiments/{path.name}: skipped, without the data {", ".join(lack)}')
                continue
            start = time.perf_counter()
            try: execute(path)
            except CellExecutionError as e:
                failed += 1
                print(e, file=sys.stderr)
            print(f'experiments/{path.name}: {time.perf_counter() - start:.0f} s')
    return failed


if __name__ == '__main__': sys.exit(min(main(), 1))
