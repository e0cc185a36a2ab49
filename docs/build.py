"""Builds the site, from stored outputs, into docs/_build/html: `python docs/build.py`.

Any warning and any dead link between its pages fails it. Needs `pip install -c constraints.txt '.[site]'`."""

import argparse
import shutil
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / 'tools')]

import dead_links
import pages
import sources


def build(out, site=None, jobs=1):
    "Build a site into the folder `out`; its exit code, a line a problem, and the number of links."
    from sphinx.cmd.build import main

    source, html = Path(out) / 'source', Path(out) / 'html'
    site = site or pages.Site()
    sources.write(site, source)
    options = [
        '-W',
        '--keep-going',
        '-q',
        '-j',
        str(jobs),
        '-c',
        str(HERE),
        '-d',
        f'{out}/doctrees',
    ]
    code = main([*options, '-b', 'html', str(source), str(html)])
    for name, path in sources.notebook_files(site).items():
        (html / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, html / name)
    checked, dead = dead_links.check(html)
    return code, dead, checked


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', default=str(HERE / '_build'), help='the folder to build in')
    parser.add_argument('--clean', action='store_true', help='forget what was built before')
    parser.add_argument(
        '--jobs', type=int, default=1, help='more take twice the time and memory: pages are copied'
    )
    options = parser.parse_args()
    if options.clean:
        shutil.rmtree(options.out, ignore_errors=True)
    start = time.perf_counter()
    code, dead, checked = build(options.out, jobs=options.jobs)
    print(*dead, sep='\n')
    print(
        f'{checked} links between pages, {len(dead)} of them dead; {time.perf_counter() - start:.0f} s'
    )
    print(f'open {options.out}/html/index.html')
    sys.exit(bool(code or dead or not checked))
