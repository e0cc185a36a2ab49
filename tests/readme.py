"Writes README.md from nbs/index.ipynb. PlainLoader text outputs only: pages that show a README drop styles and inline images."

import re

import nbformat
from nbconvert import MarkdownExporter

from repo import ROOT, directives


def render(path=ROOT / 'nbs' / 'index.ipynb'):
    "The notebook as Markdown, without hidden cells and directives, with links that hold from the root."
    nb = nbformat.read(path, 4)
    nb.metadata.language_info = dict(name='python')
    nb.cells = [c for c in nb.cells if not {'hide', 'default_exp'} & set(directives(c.source))]
    for cell in nb.cells:
        cell.source = '\n'.join(l for l in cell.source.splitlines() if not l.startswith('#|'))
        for output in cell.get('outputs', []):
            if 'data' in output:
                output.data = {
                    k: v for k, v in output.data.items() if k in ('text/plain', 'text/markdown')
                }
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = re.sub(r'\]\((?![a-z]+:|#|\.\./)', '](nbs/', text).replace('](../', '](')
    return (
        '<!-- Made from nbs/index.ipynb by tests/readme.py: edit there. -->\n'
        + re.sub(r'\n{3,}', '\n\n', text).strip()
        + '\n'
    )


def claims(folder=ROOT / 'experiments'):
    "All claims of all experiments with our figures and verdicts, as the page of their folder."
    from decodelab.lab.run_report import claims_table

    return f"""<!-- Made from results/*.verdicts.csv by tests/readme.py. -->
# Experiments

One notebook for each source: what it claims, our measurement, the figure with the source's axes, and what agrees. `decodelab experiment list` says what each needs, `decodelab experiment NAME` runs it, `decodelab experiment NAME --figures` draws from the stored rows, and `decodelab report DIR` makes a page of what was run. A scale is named with every figure: `pico` is the embedded models on a CPU. `gpu` and `paper` are complete and were run on stand-ins only; where there is no figure for them, there is none.

Every claim, what its source says, what we measured, and the verdict; the reasons are in the notebooks, and in `results/NAME.SCALE.verdicts.csv`.

{claims_table(folder, '{}.ipynb')}
"""


if __name__ == '__main__':
    (ROOT / 'README.md').write_text(render())
    (ROOT / 'experiments' / 'README.md').write_text(claims())
