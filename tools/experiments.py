"""Runs the short form of every notebook of experiments/ (or of those named), at the scale of DECODELAB_SCALE.

That is pico where it is not set. One runs in a kernel, as `decodelab experiment` runs them; the
others in forks of this process when it has imported everything, which saves its imports 26 times.
"""

import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from preloaded import Fork, Runner, import_all, read_modules
from repo import ROOT, notebooks, use_shared_data

from decodelab.lab.requirements import assigned_literal, find_missing, requirements
from decodelab.lab.runner import environment, run_experiment

IN_A_KERNEL = ('02_prompt_lookup',)
LONGEST = (  # begun first, so that none of them runs alone in the end
    '11_compiled_generation',
    '21_guides',
    '18_scaling',
    '19_gpu_costs',
    '16_drafters',
    '01_assisted_generation',
    '16_engine',
    '05_universal_assisted_generation',
)


def without_requirements(path, out):
    "A copy of a notebook that writes beside itself, in a copy of its folder."
    ignored = shutil.ignore_patterns('runs', 'quick')
    shutil.copytree(ROOT / 'experiments', out / f'copy-{path.stem}', ignore=ignored)
    return out / f'copy-{path.stem}' / path.name


def short_form(runner, path, out, scale):
    "(what failed or '', why it was not run or '') of the short form of an experiment."
    if assigned_literal(path, 'NEEDS') is None:
        path = without_requirements(path, out)
    elif scale not in requirements(path):
        return '', f'has no scale {scale}'
    elif missing := [str(item) for item in find_missing(path, scale, out) if item.hard]:
        return '', f'lacks {"; ".join(missing)}'
    if path.stem in IN_A_KERNEL:
        failure = run_experiment(path, out, scale, quick=True).failure
        return (failure and (failure.trace or str(failure))) or '', ''
    env = environment(out / path.stem, scale, quick=True, fetch=False)
    env['DECODELAB_CACHE'] = str(out / path.stem / 'library')  # as on a machine without one
    return runner.run(path, env), ''


def main(names=(), workers=2):
    "Run them, print what is said of each; the number of those that failed."
    scale = os.environ.get('DECODELAB_SCALE') or 'pico'
    use_shared_data()
    paths = [p for p in notebooks('experiments') if not names or p.stem in names]
    paths.sort(key=lambda p: p.stem not in LONGEST)
    import_all()
    read_modules()
    runners = [Runner(dict(os.environ), Fork()) for _ in range(workers)]
    free = SimpleQueue()
    for runner in runners:
        free.put(runner)

    def try_experiment(path):
        runner = free.get()
        start = time.perf_counter()
        try:
            failed, skipped = short_form(runner, path, Path(folder), scale)
        finally:
            free.put(runner)
        seconds = f'{time.perf_counter() - start:.0f} s'
        passed = f'skipped, {skipped}' if skipped else seconds
        result = 'failed' if failed else passed
        stream = sys.stderr if failed else sys.stdout
        print(f'{failed}\nexperiments/{path.name}: {result}'.strip(), file=stream, flush=True)
        return bool(failed)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as pool:
        failed = sum(pool.map(try_experiment, paths))
    for runner in reversed(runners):
        runner.close()
    return failed


if __name__ == '__main__':
    sys.exit(min(main(sys.argv[1:]), 1))
