"""Writes the locks: every package of an environment with its version and hashes, for `pip install --require-hashes`.

    python tools/lock.py    # needs uv, and an index

`requirements/dev.txt` is what develops and tests decodelab and builds its site, for Python 3.11 and newer on any
machine, `requirements/release.txt` what builds a release. The versions of constraints.txt hold in both.
"""

import subprocess
import sys

from repo import ROOT

COMMAND = 'python tools/lock.py'
LOCKS = {
    'dev': ['pyproject.toml', '--extra', 'dev', '--extra', 'site'],
    'release': ['--group', 'pyproject.toml:release', '--group', 'pyproject.toml:security'],
}
OPTIONS = [
    '--universal',
    '--python-version',
    '3.11',
    '--generate-hashes',
    '--no-annotate',
    '--quiet',
]


def lock(name):
    "Write one lock."
    out = f'requirements/{name}.txt'
    options = [*OPTIONS, '-c', 'constraints.txt', '--custom-compile-command', COMMAND, '-o', out]
    subprocess.run([*UV, 'pip', 'compile', *LOCKS[name], *options], cwd=ROOT, check=True)


UV = [sys.executable, '-m', 'uv']

if __name__ == '__main__':
    for name in LOCKS:
        lock(name)
