"Runs the short form of every notebook of experiments/ (or of those named), at the scale of"

"DECODELAB_SCALE (pico where it is not set), as decodelab experiment runs them."

import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import nbformat

from decodelab.lab.notebook_runner import execute
from decodelab.lab.requirements import assigned_literal, find_missing, requirements
from decodelab.lab.runner import run_experiment
from repo import ROOT, notebooks


def short_form(path, out, scale):
    "What failed in the short form of an experiment, None, or in words why it was not run."
    if assigned_literal(path, 'NEEDS') is not None:
        if scale not in requirements(path):
            return f'skipped, has no scale {scale}'
        if missing := [str(l) for l in find_missing(path, scale, out) if l.hard]:
            return f'skipped, lacks {"; ".join(missing)}'
        return run_experiment(path, out, scale, quick=True).failure
    copy = Path(
        shutil.copytree(
            ROOT / 'experiments',
            out / f'copy-{path.stem}',
            ignore=shutil.ignore_patterns('runs', 'quick'),
        )
    )  # it writes beside itself
    return execute(
        nbformat.read(path, 4), copy, os.environ | dict(DECODELAB_SCALE=scale, DECODELAB_QUICK='1')
    )


def try_experiment(path, folder, scale):
    "(what is said of it, whether it failed), from a process of its own."
    start = time.perf_counter()
    result = short_form(path, Path(folder), scale)
    if result is None or isinstance(result, str):
        return f'experiments/{path.name}: ' + (
            result or f'{time.perf_counter() - start:.0f} s'
        ), False
    return f'{result.trace or result}\nexperiments/{path.name}: failed', True


def main(names=(), workers=2):
    scale = os.environ.get('DECODELAB_SCALE') or 'pico'
    shared = ROOT.parent / 'shared' / 'data'
    failed = 0
    if shared.is_dir():
        os.environ.setdefault('DECODELAB_DATA', str(shared))
    paths = [p for p in notebooks('experiments') if not names or p.stem in names]
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(workers, get_context('spawn')) as pool,
    ):  # two at a time, as everything here
        for done in as_completed(
            [pool.submit(try_experiment, path, folder, scale) for path in paths]
        ):
            message, bad = done.result()
            failed += bad
            print(message, file=sys.stderr if bad else sys.stdout, flush=True)
    return failed


if __name__ == '__main__':
    sys.exit(min(main(sys.argv[1:]), 1))
