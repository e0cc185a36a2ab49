"""Runs the Python blocks of the pages in docs/ and compares, or writes, what they print.

`python tools/docs_blocks.py docs/howto.md …` writes it below each block; `test_site` compares. Blocks of a page share
their names; a last line that is a value counts as printed, unless it is None."""

import ast
import contextlib
import io
import re
import sys
from pathlib import Path

BLOCK = re.compile(r'^```python\n(.*?)^```\n(?:\n```text\n.*?^```\n)?', flags=re.M | re.S)


def printed(source, names):
    "What a block prints, and the repr of its last line where it is a value."
    tree, value = ast.parse(source), None
    if isinstance(tree.body[-1], ast.Expr):
        value = ast.Expression(tree.body.pop().value)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, '<docs>', 'exec'), names)
        result = eval(compile(value, '<docs>', 'eval'), names) if value else None
        if result is not None:
            print(repr(result))
    return '\n'.join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def run(text, names=None):
    "A page with the outputs of its blocks; what they define is left in `names`."
    names = {} if names is None else names
    names['__name__'] = 'docs'

    def replace(match):
        source = match.group(1)
        try:
            output = printed(source, names)
        except Exception as error:
            raise RuntimeError(f'this block fails with {error!r}:\n{source}') from error
        return f'```python\n{source}```\n' + (f'\n```text\n{output}\n```\n' if output else '')

    return BLOCK.sub(replace, text)


if __name__ == '__main__':
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(run(path.read_text()))
