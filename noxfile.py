#!/usr/bin/env -S uv run --script
# /// script
# dependencies = ["nox>=2025.10.14"]
# ///
"""Sessions for nox, the tasks of this repository: `nox -l` lists them, `nox -s lint` runs one.

The commands are those of CONTRIBUTING.md and of the workflows; versions are those of constraints.txt.
"""

from pathlib import Path

import nox

nox.needs_version = '>=2025.10.14'
nox.options.default_venv_backend = 'venv'
PINNED = ('-c', 'constraints.txt')


@nox.session
def lint(session):
    "Check and format code, in notebooks too, and the workflows."
    session.install(*PINNED, 'ruff', 'zizmor')
    session.run('ruff', 'check', '.')
    session.run('ruff', 'format', '--check', 'nbs', 'experiments', 'tests', 'tools', 'setup.py')
    session.run('zizmor', '--offline', '.github')


@nox.session
def types(session):
    "Check signatures and a user's program with mypy."
    session.install(*PINNED, '-e', '.[dev]')
    session.run('python', 'tools/signatures.py')


@nox.session
def tests(session):
    "Test: everything, or what is named, as `nox -s tests -- tests/drafters -m 'not slow'`."
    session.install(*PINNED, '-e', '.[dev]')
    if session.posargs:
        session.run('python', '-m', 'pytest', *session.posargs)
    else:
        session.run('sh', 'tests/run.sh', external=True)


@nox.session(default=False)
def engines(session):
    "Test the engines of others, all of them installed."
    session.install(*PINNED, '-e', '.[dev,engines]')
    session.run('sh', 'tests/engines/run.sh', external=True)


@nox.session(default=False)
def site(session):
    "Build the site into docs/_build/html."
    session.install(*PINNED, '-e', '.[site]')
    session.run('python', 'docs/build.py', *session.posargs)


@nox.session(default=False)
def build(session):
    "Build the archives of a release, and try the wheel in a bare environment."
    session.install(*PINNED, 'build', 'twine')
    folder = session.create_tmp()
    session.run('python', '-m', 'build', '--outdir', folder)
    archives = sorted(Path(folder).glob('decodelab-*'))
    session.run('twine', 'check', '--strict', *map(str, archives))
    session.run('python', 'tools/bare.py', str(next(Path(folder).glob('*.whl'))))


if __name__ == '__main__':
    nox.main()
