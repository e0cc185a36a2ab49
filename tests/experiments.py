"Runs the short form of every notebook of experiments/ (or of those named), at the scale of DECODELAB_SCALE (pico where it is not set), as decodelab experiment runs them."
import os, shutil, sys, tempfile, time
from pathlib import Path

import nbformat

from decodelab.experiment_kernel import execute
from decodelab.experiment_needs import assigned, lacks, needs_of
from decodelab.experiment_run import run_experiment
from repo import ROOT, notebooks


def short_form(path, out, scale):
    "What failed in the short form of an experiment, None, or in words why it was not run."
    if assigned(path, 'NEEDS') is not None:
        if scale not in needs_of(path): return f'skipped, has no scale {scale}'
        if missing := [str(l) for l in lacks(path, scale, out) if l.hard]: return f'skipped, lacks {"; ".join(missing)}'
        return run_experiment(path, out, scale, quick=True).failure
    copy = Path(shutil.copytree(ROOT/'experiments', out/f'copy-{path.stem}', ignore=shutil.ignore_patterns('runs', 'quick'))) # it writes beside itself
    return execute(nbformat.read(path, 4), copy, os.environ | dict(DECODELAB_SCALE=scale, DECODELAB_QUICK='1'))


def main(names=()):
    failed, scale, shared = 0, os.environ.get('DECODELAB_SCALE') or 'pico', ROOT.parent/'shared'/'data'
    if shared.is_dir(): os.environ.setdefault('DECODELAB_DATA', str(shared))
    with tempfile.TemporaryDirectory() as folder:
        for path in notebooks('experiments'):
            if names and path.stem not in names: continue
            start = time.perf_counter()
            found = short_form(path, Path(folder), scale)
            if found is not None and not isinstance(found, str):
                failed += 1
                print(found.trace or found, file=sys.stderr)
            print(f'experiments/{path.name}: ' + (found if isinstance(found, str) else f'{time.perf_counter() - start:.0f} s'), flush=True)
    return failed


if __name__ == '__main__': sys.exit(min(main(sys.argv[1:]), 1))
