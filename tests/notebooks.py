"""What `nbdev_test` does for all notebooks, each in a fork of one process that has imported everything.

`nbdev_test` runs several notebooks in one process after the other, so that what one of them leaves behind
can let another pass or fail. `nbdev_test --path NOTEBOOK` runs one alone.
"""

import multiprocessing
import sys

from nbdev.config import get_config
from nbdev.test import test_nb

import preloaded
from repo import ROOT, notebooks


def run(path):
    "A notebook, whether it passed, and in how many seconds."
    return path, *test_nb(path, skip_flags=get_config().tst_flags.split(), basepath=ROOT)


def main(workers: int = 2) -> int:
    "Run them; print the seconds of each; the number of those that failed."
    preloaded.import_all()
    fork = multiprocessing.get_context('fork')
    with fork.Pool(workers, maxtasksperchild=1) as pool:
        done = list(pool.imap_unordered(run, notebooks('nbs'), chunksize=1))
    for path, passed, seconds in sorted(done, key=lambda row: row[2]):
        print(f'{path.relative_to(ROOT)}: {seconds:.0f} s{"" if passed else ", failed"}')
    failed = [str(path.relative_to(ROOT)) for path, passed, _ in done if not passed]
    print(f'{len(done) - len(failed)} notebooks passed', *failed and ['; failed:', *failed])
    return len(failed)


if __name__ == '__main__':
    sys.exit(min(main(), 1))
