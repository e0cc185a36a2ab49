"Writes README.md from nbs/index.ipynb. Plain text outputs only: pages that show a README drop styles and inline images."
import re

import nbformat
from nbconvert import MarkdownExporter

from repo import ROOT, directives


def render(path=ROOT/'nbs'/'index.ipynb'):
    "The notebook as Markdown, without hidden cells and directives, with links that hold from the root."
    nb = nbformat.read(path, 4)
    nb.metadata.language_info = dict(name='python')
    nb.cells = [c for c in nb.cells if not {'hide', 'default_exp'} & set(directives(c.source))]
    for cell in nb.cells:
        cell.source = '\n'.join(l for l in cell.source.splitlines() if not l.startswith('#|'))
        for output in cell.get('outputs', []):
            if 'data' in output: output.data = {k: v for k, v in output.data.items() if k in ('text/plain', 'text/markdown')}
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = re.sub(r'\]\((?![a-z]+:|#|\.\./)', '](nbs/', text).replace('](../', '](')
    return '<!-- Made from nbs/index.ipynb by tests/readme.py: edit there. -->\n' + re.sub(r'\n{3,}', '\n\n', text).strip() + '\n'


if __name__ == '__main__': (ROOT/'README.md').write_text(render())
