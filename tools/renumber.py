"""Renumbers, renames or moves notebooks, with every link, import and path that names them.

    python tools/renumber.py 08_drafters prompt_lookup suffix …    numbers a part's notebooks in this order
    python tools/renumber.py --move lab.cli_detect=cli.detect …    gives notebooks (and modules) new names

A part keeps the number of its folder; a new part's folder is made first. `nbdev_export` afterwards.
"""

import argparse
import json
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXTS = {
    '.ipynb',
    '.md',
    '.py',
    '.pyi',
    '.toml',
    '.yml',
    '.yaml',
    '.sh',
    '.json',
    '.js',
    '.html',
    '.csv',
}
GENERATED = re.compile(
    r'decodelab/\w+/(?!__init__)\w+\.py$|decodelab/_modidx\.py$|experiments/results/'
)


def module_of(notebook: Path) -> str:
    "The module `part.name` of `nbs/NN_part/NN_name.ipynb`."
    return '.'.join(re.sub(r'^\d+_', '', name) for name in (notebook.parent.name, notebook.stem))


def tracked_texts() -> list[Path]:
    "The tracked files that may name a notebook, generated modules and results aside."
    names = subprocess.run(
        ['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split('\0')
    paths = [ROOT / n for n in names if n and not GENERATED.search(n)]
    return [p for p in paths if p.suffix in TEXTS and p.exists()]


def numbered(folder: Path, order: list[str]) -> dict[Path, Path]:
    "Old path -> new path of the notebooks of a part, in the given order of their names."
    notebooks = {module_of(p).split('.')[1]: p for p in folder.glob('[0-9]*.ipynb')}
    if sorted(notebooks) != sorted(order):
        raise SystemExit(f'name each of {", ".join(notebooks)} once')
    return {notebooks[name]: folder / f'{i:02d}_{name}.ipynb' for i, name in enumerate(order, 1)}


def renamed(pairs: list[str]) -> dict[Path, Path]:
    "Old path -> new path for pairs `part.name=part.name`, each appended to its new part."
    notebooks = {module_of(p): p for p in (ROOT / 'nbs').glob('*/[0-9]*.ipynb')}
    folders = {re.sub(r'^\d+_', '', p.name): p for p in (ROOT / 'nbs').glob('[0-9]*_*')}
    moves = {}
    for pair in pairs:
        old, _, new = pair.partition('=')
        part, name = new.split('.')
        taken = [
            *folders[part].glob('[0-9]*.ipynb'),
            *(p for p in moves.values() if p.parent == folders[part]),
        ]
        moves[notebooks[old]] = folders[part] / f'{len(taken) + 1:02d}_{name}.ipynb'
    return moves


def moved_links(text: str, old: Path, new: Path, moves: dict[Path, Path]) -> str:
    "The text of a file that moves from `old` to `new`, its relative links led to where notebooks are now."

    def target(match):
        link, anchor = match.group(1), match.group(2) or ''
        path = Path(os.path.normpath(old.parent / link))
        if (path not in moves and old.parent == new.parent) or not (path in moves or path.exists()):
            return match.group(0)
        return f']({os.path.relpath(moves.get(path, path), new.parent)}{anchor})'

    return re.sub(r'\]\(((?![a-z]+:)[^)\s#]+)(#[^)\s]*)?\)', target, text)


def paths_in_code(text: str, moves: dict[Path, Path]) -> str:
    "Replaces `NN_part/NN_name` and `` `NN_name` `` wherever they stand outside links."
    pairs = {f'{a.parent.name}/{a.stem}': f'{b.parent.name}/{b.stem}' for a, b in moves.items()}
    stems = {f'`{a.stem}`': f'`{b.stem}`' for a, b in moves.items()}
    text = re.sub(r'\d\d_\w+/\d\d_\w+', lambda m: pairs.get(m.group(), m.group()), text)
    return re.sub(r'`\d\d_\w+`', lambda m: stems.get(m.group(), m.group()), text)


def module_names(text: str, moves: dict[Path, Path]) -> str:
    "Replaces module names, with `decodelab.` before them, in directives, or with a dot and a name."
    for a, b in moves.items():
        old, new = module_of(a), module_of(b)
        if old == new:
            continue
        text = re.sub(rf'\bdecodelab\.{re.escape(old)}\b', f'decodelab.{new}', text)
        text = re.sub(rf'(?<=default_exp ){re.escape(old)}\b', new, text)
        text = re.sub(
            rf'decodelab/{old.replace(".", "/")}\b', f'decodelab/{new.replace(".", "/")}', text
        )
        text = re.sub(rf"(?<=['\"`]){re.escape(old)}(?=['\"`.])", new, text)
    return text


def relocate(moves: dict[Path, Path]):
    "Move notebooks and rewrite what names them."
    moves = {a: b for a, b in moves.items() if a != b}
    texts = {}
    for path in tracked_texts():
        new = moves.get(path, path)
        text = path.read_text(encoding='utf-8')
        result = moved_links(text, path, new, moves)
        result = module_names(paths_in_code(result, moves), moves)
        if result != text or new != path:
            texts[new] = result
    for a in moves:
        subprocess.run(['git', 'mv', a, a.with_suffix('.moving')], cwd=ROOT, check=True)
    for a, b in moves.items():
        b.parent.mkdir(exist_ok=True)
        subprocess.run(['git', 'mv', a.with_suffix('.moving'), b], cwd=ROOT, check=True)
        if module_of(a) != module_of(b):
            (ROOT / f'decodelab/{module_of(a).replace(".", "/")}.py').unlink(missing_ok=True)
    for path, text in texts.items():
        if path.suffix == '.ipynb':
            json.loads(text)
        path.write_text(text, encoding='utf-8')
    print(f'{len(moves)} notebooks moved, {len(texts)} files rewritten')


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--move', action='store_true', help='names are pairs part.name=part.name')
    parser.add_argument('names', nargs='+', metavar='NAME')
    args = parser.parse_args()
    if args.move:
        relocate(renamed(args.names))
    else:
        relocate(numbered(ROOT / 'nbs' / args.names[0], args.names[1:]))


if __name__ == '__main__':
    main()
