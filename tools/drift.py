"""Are the notebooks clean, and do the modules and the README say what the notebooks say? Looked at in a
temporary copy."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from repo import ROOT

SHARES = 'nbs', 'experiments', 'decodelab', 'settings.ini'
STEPS = '''
from nbdev.clean import nbdev_clean
from nbdev.doclinks import nbdev_export
nbdev_clean()
nbdev_clean(fname='experiments')
nbdev_export()
'''


def copy(root, to):
    "Copy notebooks, modules and settings, not weights."
    for name in SHARES:
        source = Path(root) / name
        if source.is_dir():
            shutil.copytree(
                source,
                to / name,
                ignore=shutil.ignore_patterns(
                    'weights', 'data', '__pycache__', '.ipynb_checkpoints'
                ),
            )
        elif source.exists():
            shutil.copy(source, to / name)
    (to / 'experiments').mkdir(exist_ok=True)


def file_bytes(root):
    "Path from the root -> bytes of every notebook and module."
    files = [
        p
        for pattern in ('nbs/**/*.ipynb', 'experiments/*.ipynb', 'decodelab/**/*.py')
        for p in sorted(Path(root).glob(pattern))
    ]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}


def regenerate(root):
    "Clean the notebooks of `root` and make its modules again from nothing."
    for module in (root / 'decodelab').rglob('*.py'):
        if module.name not in ('__init__.py', '__main__.py'):
            module.unlink()
    env = {
        k: v for k, v in os.environ.items() if k != 'IN_TEST'
    }  # with IN_TEST nbdev exports nothing, silently
    subprocess.run([sys.executable, '-c', STEPS], cwd=root, env=env, check=True)


def drift(root=ROOT):
    "A line for each file that is not what the notebooks make of it."
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder).resolve()
        copy(root, made)
        regenerate(made)
        old, new = file_bytes(root), file_bytes(made)
    out = [f'{name}: no notebook makes it' for name in old.keys() - new.keys()]
    out += [f'{name}: missing, run nbdev_export' for name in new.keys() - old.keys()]
    changed = [name for name in old.keys() & new.keys() if old[name] != new[name]]
    out += [
        f'{n}: '
        + (
            'run nbdev_clean'
            if n.endswith('.ipynb')
            else 'differs from its notebook, run nbdev_export'
        )
        for n in changed
    ]
    return sorted(out)


if __name__ == '__main__':
    problems = drift()
    print(*problems or ['notebooks are clean, modules say what they say'], sep='\n')
    sys.exit(bool(problems))
