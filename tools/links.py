"""Links to notebooks bear the notebook's title: `python tools/links.py` sets their texts, `wrong_links` lists the others.

A title with a colon may be shortened to what precedes the colon, and stand in lower case in a sentence. A name in
code, the name of a part and the name of an experiment's file may lead to their notebooks; a link to a heading is free.
"""

import json
import os
import re
import sys
from pathlib import Path

from repo import ROOT, tracked

LINK = re.compile(r'(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s#:]+\.ipynb)\)')
FOLDERS = 'nbs', 'experiments', 'docs'
FILES = 'README.md', 'CONTRIBUTING.md', 'CHANGELOG.md'


def title(path: Path) -> str:
    "The heading of a notebook, without its `#`; an empty string if it has none."
    for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
        match = re.match(r'# (.+)', ''.join(cell['source']))
        if cell['cell_type'] == 'markdown' and match:
            return match.group(1).strip()
    return ''


def plain(text: str) -> str:
    "A link's text or a title without the marks of code and emphasis."
    return re.sub(r'[`*]', '', text).strip()


def fits(text: str, notebook: Path) -> bool:
    "Is the text of a link the title of the notebook, what precedes its colon, or a name that stands for it?"
    full = plain(title(notebook)).lower()
    part = re.sub(r'^\d+_', '', notebook.parent.name)
    names = {full, full.partition(':')[0], notebook.stem, part}
    return bool(re.fullmatch('`[^`]+`', text)) or plain(text).lower() in names


def target(path: Path, link: str) -> Path:
    "The notebook that a link in a file leads to."
    return Path(os.path.normpath(path.parent / link))


def corrected(path: Path, text: str) -> str:
    "A piece of markdown with titles as the texts of its links to notebooks."

    def one(match):
        notebook = target(path, match[2])
        full = title(notebook) if notebook.exists() else ''
        article, _, rest = match[1].partition(' ')
        if not full or fits(match[1], notebook):
            return match[0]
        if article in ('a', 'an', 'the') and fits(rest, notebook):
            return f'{article} [{rest}]({match[2]})'
        return f'[{full.partition(":")[0]}]({match[2]})'

    return LINK.sub(one, text)


def files() -> list[Path]:
    "The tracked notebooks and pages that may link to notebooks."
    names = [p for p in tracked() if p.suffix in ('.ipynb', '.md')]
    chosen = [p for p in names if p.parts[0] in FOLDERS or str(p) in FILES]
    return [ROOT / p for p in chosen]


def markdown(path: Path) -> list[str]:
    "The pieces of markdown of a file."
    if path.suffix == '.md':
        return [path.read_text(encoding='utf-8')]
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [''.join(c['source']) for c in cells if c['cell_type'] == 'markdown']


def wrong_links(path: Path) -> list[str]:
    "The links of a file whose text is not the title of the notebook they lead to."
    wrong = []
    for text in markdown(path):
        for label, link in LINK.findall(text):
            notebook = target(path, link)
            full = title(notebook) if notebook.exists() else ''
            if full and not fits(label, notebook):
                wrong.append(f'[{label}]({link}): {full}')
    return wrong


def mend(path: Path) -> bool:
    "Set the texts of a file's links; True if it changed."
    old = path.read_text(encoding='utf-8')
    if path.suffix == '.md':
        new = corrected(path, old)
    else:
        notebook = json.loads(old)
        for cell in notebook['cells']:
            if cell['cell_type'] == 'markdown':
                text = corrected(path, ''.join(cell['source']))
                cell['source'] = text.splitlines(keepends=True)
        new = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + '\n'
    if new != old:
        path.write_text(new, encoding='utf-8')
    return new != old


if __name__ == '__main__':
    changed = [p for p in files() if mend(p)]
    sys.exit(print(f'{len(changed)} files changed'))
