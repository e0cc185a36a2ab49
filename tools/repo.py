"What the tests and scripts here know about the repository: where it is, its notebooks, its tracked files."

import ast
import functools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

# jsonschema, which nbformat imports, would compile 38 grammars of addresses: 0.8 s that no notebook needs
sys.modules.setdefault('rfc3987_syntax', None)
import nbformat

ROOT = Path(__file__).resolve().parent.parent


NUMBERED = '[0-9]*.ipynb'


def numbered(folder='nbs', pattern=NUMBERED):
    "The numbered notebooks of a folder and of the folders in it, in order."
    return [
        p for p in sorted((ROOT / folder).rglob(pattern)) if '.ipynb_checkpoints' not in p.parts
    ]


@functools.cache
def makes_module(path):
    "Does a notebook export a module?"
    return '"#| default_exp' in path.read_text(encoding='utf-8')


def notebooks(folder='nbs', pattern=NUMBERED):
    "The notebooks of a folder, in order; of those in nbs/ the ones that make a module."
    paths = numbered(folder, pattern)
    return (
        [p for p in paths if makes_module(p)] if (folder, pattern) == ('nbs', NUMBERED) else paths
    )


def pages():
    "The numbered notebooks of nbs/ that make no module, to be read and run only."
    return [p for p in numbered() if not makes_module(p)]


@functools.cache
def cells(path, kind='code'):
    "Sources of the cells of one kind."
    return [c.source for c in nbformat.read(path, 4).cells if c.cell_type == kind]


def directives(source):
    "The first words of a cell's `#|` lines."
    return [l[2:].split()[0] for l in source.splitlines() if l.startswith('#|') and l[2:].split()]


def is_exported(source):
    return any(d.startswith('export') for d in directives(source))


def lines(source):
    "The lines that hold something, directives aside."
    return [l for l in source.splitlines() if l.strip() and not l.lstrip().startswith('#|')]


def module_name(path):
    "What `NN_part/NN_name.ipynb` must export to: `part.name`."
    return '.'.join(re.sub(r'^\d+_', '', name) for name in (path.parent.name, path.stem))


def module_path(name, root=ROOT):
    "The generated file of a module `part.name`."
    return root / 'decodelab' / f'{name.replace(".", "/")}.py'


def exported_names(path, methods=True):
    "The `__all__` of a generated module; without the functions that it makes methods of a class, if asked."
    assigned = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Assign)]
    every = next(
        (ast.literal_eval(n.value) for n in assigned if ast.unparse(n.targets[0]) == '__all__'), []
    )
    attached = {
        v.id
        for n in assigned
        if not isinstance(n.targets[0], ast.Name)
        for v in ast.walk(n.value)
        if isinstance(v, ast.Name)
    }
    return [name for name in every if methods or name not in attached]


def tracked():
    "Tracked files as paths from the root; None outside a git checkout."
    out = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True)
    return (
        None
        if out.returncode
        else [Path(p) for p in out.stdout.split('\0') if p and (ROOT / p).is_file()]
    )


def project():
    return tomllib.loads((ROOT / 'pyproject.toml').read_text())


def commands():
    "The README's two commands, to use the package and to change it, as it shows them."
    return re.findall(r'^python -m pip install .*$', (ROOT / 'README.md').read_text(), flags=re.M)


def use_shared_data():
    "Let experiments read the data beside the checkout, where it is and `DECODELAB_DATA` names no other."
    shared = ROOT.parent / 'shared' / 'data'
    if shared.is_dir():
        os.environ.setdefault('DECODELAB_DATA', str(shared))
