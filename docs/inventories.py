"""Names of other projects' documentation, for links from types: no network is needed to build.

Sphinx's intersphinx reads an inventory, a list of names and addresses that each project publishes, from
the network. Ours are extracts, one text file a project in docs/inventories: the address of its
documentation, then a line a name, `name kind path`. They are written again as inventories before Sphinx
starts."""

import zlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / 'inventories'
HEAD = (
    '# Sphinx inventory version 2\n# Project: {}\n# Version: \n'
    '# The remainder of this file is compressed using zlib.\n'
)


def projects():
    "Project -> (address, lines of names)."
    texts = {
        p.stem: p.read_text(encoding='utf-8').splitlines() for p in sorted(FOLDER.glob('*.txt'))
    }
    return {
        name: (lines[0], [line.split() for line in lines[1:] if line])
        for name, lines in texts.items()
    }


ALIASES = dict(
    numpy='np', pandas='pd', torch='torch'
)  # as modules are imported; others by their last name


def names():
    "Name as annotations have it -> full name: `np.ndarray`, `torch.Tensor`, `Path`."
    every = {}
    for project, (_, lines) in projects().items():
        for full, *_ in lines:
            root, _, rest = full.partition('.')
            alias = ALIASES.get(project)
            every[f'{alias}.{rest}' if alias else full.rpartition('.')[2]] = full
    return every


def inventory(project, lines):
    "The content of an inventory file."
    rows = ''.join(f'{name} py:{kind} 1 {path} -\n' for name, kind, path in lines)
    return HEAD.format(project).encode() + zlib.compress(rows.encode())


def mapping(folder):
    "The setting intersphinx_mapping, with inventories written into a folder."
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for project, (address, lines) in projects().items():
        path = folder / f'{project}.inv'
        path.write_bytes(inventory(project, lines))
        found[project] = (address, str(path))
    return found
