"""The examples of the reference: docs/examples/PART.md has one for each class and for most functions of the
root.

Each runs by itself, so what a reader copies from a page works. `python docs/examples.py [PART …]` runs
them and writes what they print below them; the tests compare."""

import contextlib
import functools
import io
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / 'tools'))

import docs_blocks

ENTRY = re.compile(
    r'^### (\w+)\n\n(```python\n.*?^```\n(?:\n```text\n.*?^```\n)?)', flags=re.M | re.S
)


def path_of(part):
    "The file with the examples of a part."
    return HERE / 'examples' / f'{part}.md'


def entries(part):
    "Name -> its example as Markdown, code and output; none for a part without a file."
    path = path_of(part)
    return dict(ENTRY.findall(path.read_text(encoding='utf-8'))) if path.exists() else {}


@contextlib.contextmanager
def models_loaded_once():
    "While it lasts, `load` returns the model that an earlier example loaded by the same name."
    import decodelab

    load = decodelab.load
    decodelab.load = functools.cache(load)
    try:
        yield
    finally:
        decodelab.load = load


def run(example):
    "An example with its output, run in names of its own."
    with contextlib.redirect_stderr(io.StringIO()):  # bars of trainings
        return docs_blocks.run(example)


def made(part, show=None):
    "The file of a part with the outputs of its examples as they are now; `show(name, seconds)` after each."

    def replace(match):
        start = time.perf_counter()
        text = f'### {match.group(1)}\n\n{run(match.group(2))}'
        if show:
            show(match.group(1), time.perf_counter() - start)
        return text

    with models_loaded_once():
        return ENTRY.sub(replace, path_of(part).read_text(encoding='utf-8'))


if __name__ == '__main__':
    parts = sys.argv[1:] or [p.stem for p in sorted((HERE / 'examples').glob('*.md'))]
    for part in parts:
        text = made(part, lambda name, seconds: print(f'{seconds:6.1f} s  {name}', flush=True))
        path_of(part).write_text(text, encoding='utf-8')
