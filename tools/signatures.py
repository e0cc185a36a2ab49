"""Checks with mypy what a user's type checker reads: the names of the parts and the signatures of all modules.

Stubs of the modules (`tools/stubs.py`) are written into a copy, so methods that cells add stand in their classes and
bodies are left out: bodies are tested, signatures are promised. `tests/typed_use.py` is a user's program, checked
against them. `python tools/signatures.py` prints what mypy finds; the settings are in pyproject.toml.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import stubs
from repo import ROOT

PROGRAM = ROOT / 'tests' / 'typed_use.py'
# A base class names a value that its heir computes: readers of either see the same
COMPUTED = 'Cannot override writeable attribute with read-only property'
# Where a class differs from its base on purpose: file, method -> why
KNOWN = {
    ('models/prefill.pyi', 'session'): 'prepared ids have a session of their own kind',
    ('strategies/sampling.pyi', 'draw'): 'a source of numbers for one position draws indices alone',
    ('strategies/sampling.pyi', 'categorical'): 'a choice is a pair while the device computes it',
    (
        'evaluate/exact.pyi',
        'uniform',
    ): 'every outcome at once is an interval, compared as a number is',
    ('evaluate/exact.pyi', 'scores'): 'fractions are kept in lists, not in tensors',
    ('models/library.pyi', '_fields_'): 'ctypes takes the fields of a structure from its class',
    ('evaluate/pretend.pyi', '__torch_'): 'as torch documents it for subclasses; its types differ',
    ('evaluate/pretend.pyi', '__repr__'): 'the one of torch takes contents, which no one passes',
    ('evaluate/pretend.pyi', 'EveryGenerator'): 'the type of a type is known at run time only',
}


def package_copy(folder):
    "A copy of the package with a stub beside each module and without data."
    copy = Path(folder) / 'decodelab'
    data = shutil.ignore_patterns('weights', 'data', '__pycache__')
    shutil.copytree(ROOT / 'decodelab', copy, ignore=data)
    stubs.write(copy, every=True)
    return copy


def run_mypy(folder, *arguments):
    "The lines that mypy prints about the package in a folder and the user's program."
    command = [sys.executable, '-m', 'mypy', '--config-file', str(ROOT / 'pyproject.toml')]
    command += ['--cache-dir', str(ROOT / '.mypy_cache'), *arguments]
    environment = os.environ | dict(MYPYPATH=str(folder), NO_COLOR='1')
    environment.pop('PYTHONPATH', None)
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode > 1 or not run.stdout:
        raise RuntimeError(f'mypy did not run: {run.stderr or run.stdout}')
    return run.stdout.splitlines()


def known(line, folder):
    "The key in `KNOWN` of a line of mypy's; None for any other."
    match = re.match(r'decodelab/(\S+?):(\d+): error: ', line)
    if match is None:
        return None
    text = (Path(folder) / 'decodelab' / match.group(1)).read_text().splitlines()
    source = text[int(match.group(2)) - 1]
    keys = [key for key in KNOWN if key[0] == match.group(1)]
    return next((key for key in keys if key[1] in source), None)


def check(planted=''):
    """`(errors, keys of KNOWN that no line has)` of the package and of the user's program.

    `planted` is the source of one more module, for a test of the check.
    """
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        copy = package_copy(folder)
        shutil.copy(PROGRAM, folder)
        if planted:
            (copy / 'planted.pyi').write_text(stubs.module_stub(planted))
        lines = run_mypy(folder, '-p', 'decodelab', '-m', PROGRAM.stem)
        errors = [line for line in lines if ': error: ' in line and COMPUTED not in line]
        keys = {line: known(line, folder) for line in errors}
    unused = sorted(set(KNOWN) - set(keys.values()))
    return [line for line in errors if keys[line] is None], unused


if __name__ == '__main__':
    errors, unused = check()
    unneeded = [f'{file}: {name} is in KNOWN without need' for file, name in unused]
    print(*errors, *unneeded, f'{len(errors)} errors', sep='\n')
    sys.exit(bool(errors or unused))
