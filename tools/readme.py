"""Writes README.md and its picture from nbs/index.ipynb. Plain text outputs only: pages that show a README
drop styles and inline images."""

import html
import re
import sys

import nbformat
import pandas as pd
from nbconvert import MarkdownExporter
from repo import ROOT, directives

from decodelab.lab.freshness import stored_freshness

sys.path.insert(0, str(ROOT / 'experiments'))
from result_tables import (
    changes_table,
    claims_table,
    count_line,
    error_line,
    freshness_warning,
    pace_table,
    scripts_list,
    sources_page,
    sources_table,
)

CLAIMS = '<!-- claims -->'  # comments of the index: the numbers of all claims
SPEEDS = '<!-- peers -->'  # and the table of speeds go there
ENGINE_ROWS = ROOT / 'experiments' / 'results' / '16_engine.pico.csv'
PICTURE = ROOT / 'docs' / 'trace.svg'
COLUMNS = 88  # characters a line
WIDTH, HEIGHT = 9.0, 25  # of a character, in pixels
# told apart by the colour-blind, too
COLOURS = dict(accepted='#0072b2', corrected='#d55e00', bonus='#009e73')
STYLE = """<style>
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }
.note { font: 14px system-ui, sans-serif; fill: #59636e } .tick { stroke: #59636e; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .note { fill: #9198a1 } .tick { stroke: #9198a1 } }
</style>"""


def render(path=ROOT / 'nbs' / 'index.ipynb'):
    "The notebook as Markdown, without hidden cells and directives, with links that hold from the root."
    nb = nbformat.read(path, 4)
    nb.metadata.language_info = dict(name='python')
    nb.cells = [c for c in nb.cells if not {'hide', 'default_exp'} & set(directives(c.source))]
    for cell in nb.cells:
        cell.source = '\n'.join(
            line for line in cell.source.splitlines() if not line.startswith('#|')
        )
        for output in cell.get('outputs', []):
            if 'data' in output:
                output.data = {
                    k: v for k, v in output.data.items() if k in ('text/plain', 'text/markdown')
                }
    text, _ = MarkdownExporter().from_notebook_node(nb)
    text = re.sub(r'\]\((?![a-z]+:|#|\.\./)', '](nbs/', text).replace('](../', '](')
    text = re.sub(r'\n{3,}', '\n\n', text).strip()
    text = text.replace(CLAIMS, count_line())
    text = text.replace(SPEEDS, pace_table(pd.read_csv(ENGINE_ROWS, low_memory=False)))
    return f'<!-- Made from nbs/index.ipynb by tools/readme.py: edit there. -->\n{text}\n'


def kinds(trace):
    "`(text, where it comes from, whether it ends a pass)` of each token of a speculative trace."
    texts = trace.to_frame(by='token')['text'].tolist()
    for step in trace.steps:
        last = 'corrected' if step.rejected else 'bonus'
        origins = ['accepted'] * step.accepted + [last] * (len(step.tokens) - step.accepted)
        for i, origin in enumerate(origins):
            yield texts.pop(0), origin, i == len(origins) - 1


def picture(trace):
    "A trace as SVG: a box a token, coloured by its origin, a tick after each pass of the target."
    x = y = 0
    boxes = []
    for text, origin, ends in kinds(trace):
        for part in re.split(r'(\n)', text):
            shown = '⏎' if part == '\n' else part
            if x + len(shown) > COLUMNS:
                x, y = 0, y + 1
            if shown:
                left, top = x * WIDTH + 4, y * HEIGHT + 34
                box = (
                    f'<rect x="{left:.1f}" y="{top}" width="{len(shown) * WIDTH - 1:.1f}" '
                    'height="20" rx="3" '
                )
                boxes.append(box + f'fill="{COLOURS[origin]}" fill-opacity=".3"/>')
                length = (
                    f'textLength="{len(shown) * WIDTH - 1:.1f}" lengthAdjust="spacingAndGlyphs"'
                )
                boxes.append(
                    f'<text x="{left:.1f}" y="{top + 15}" {length}>{html.escape(shown)}</text>'
                )
                x += len(shown)
            if part == '\n':
                x, y = 0, y + 1
        if ends:
            at = x * WIDTH + 3.5
            boxes.append(
                f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{y * HEIGHT + 32}" '
                f'y2="{y * HEIGHT + 56}"/>'
            )
    counts = trace.metrics()
    passes = (
        f'{counts["new_tokens"]} tokens in {counts["target_passes"]} passes of the target model'
    )
    legend = [
        ('accepted', 'drafted and accepted'),
        ('corrected', 'rejected, replaced by the target'),
        ('bonus', "the target's own"),
    ]
    notes = [
        f'<text class="note" x="4" y="18">{passes} (a tick ends a pass); the same text takes '
        f'plain decoding {counts["new_tokens"]}</text>'
    ]
    bottom = (y + 1) * HEIGHT + 52
    left = 4
    for name, words in legend:
        notes.append(
            f'<rect x="{left}" y="{bottom - 12}" width="14" height="14" rx="3" '
            f'fill="{COLOURS[name]}" fill-opacity=".4"/>'
        )
        notes.append(f'<text class="note" x="{left + 20}" y="{bottom}">{words}</text>')
        left += 42 + 7 * len(words)
    size = (
        f'viewBox="0 0 {COLUMNS * WIDTH + 8:.0f} {bottom + 12}" width="{COLUMNS * WIDTH + 8:.0f}"'
    )
    label = f'role="img" aria-label="{passes}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>{STYLE}\n'
        + '\n'.join(notes + boxes)
        + '\n</svg>\n'
    )


def pictured():
    "The trace of the README: the embedded pair, greedy."
    from decodelab import AssistantDrafter, FixedLookahead, Speculative, decode, load

    prompt = 'class Stack:\n    """A stack of values."""\n\n    def __init__(self'
    strategy = Speculative(
        AssistantDrafter(load('pico-draft', device='cpu')), lookahead=FixedLookahead(4)
    )
    return decode(load('pico', device='cpu'), prompt, strategy, max_new_tokens=48)


def experiments_readme(folder=ROOT / 'experiments'):
    "The front page of the experiments: conclusions in numbers, by source, and how to run one."
    return f"""<!-- Made from results/*.verdicts.csv by tools/readme.py. -->
# Experiments

{count_line(folder)} Each is a claim of a paper, a post or a guide; [CLAIMS.md](CLAIMS.md) has all of them, with their numbers, ours, and the reason for each that does not agree.

A scale is named with every number: `pico` is the embedded models on a CPU. One experiment has rows of scale `gpu`, from an H100 ([19_gpu_costs](19_gpu_costs.ipynb), without its batches and compiled passes); the others of `gpu`, and `paper`, are complete and were run on stand-ins only. [CONTRIBUTING.md](CONTRIBUTING.md) explains how to run them on your GPU.

`decodelab experiment list` shows what each experiment needs, `decodelab experiment NAME` runs it, `decodelab experiment NAME --figures` draws from the stored rows, and `decodelab report DIR` makes a page of a run. The numbers of the sources are data, `sources/NAME.csv`, each with its url and table; at scale `paper` each of them is measured or left out with a reason.

{freshness_warning(stored_freshness(folder))}

## By source

The number of claims that hold at our scales, that do not, that differ between scales, and that are open; the links lead to the claims and the reasons.

{sources_table(folder)}

## Scripts

{scripts_list(folder)}
"""


def claims(folder=ROOT / 'experiments'):
    "All claims of all experiments with our numbers and verdicts, as the second page of their folder."
    results = stored_freshness(folder)
    return f"""<!-- Made from results/*.verdicts.csv by tools/readme.py. -->
# Claims

{count_line(folder)} By source, with the reason for each that does not agree; then [every claim in one table](#every-claim). [README.md](README.md) explains the scales.

{error_line(folder)}

{freshness_warning(results)}

## By source

{sources_page(folder, '{}.ipynb')}

## Every claim

The number that its source states, ours, and the verdict; the rows are `results/NAME.SCALE.verdicts.csv`.

{claims_table(folder, '{}.ipynb', results)}

## Judged again

In November 2026 all claims were judged again, by rules, from the rows that were stored. These verdicts changed:

{changes_table(folder)}
"""


if __name__ == '__main__':
    (ROOT / 'README.md').write_text(render())
    (ROOT / 'experiments' / 'README.md').write_text(experiments_readme())
    (ROOT / 'experiments' / 'CLAIMS.md').write_text(claims())
    PICTURE.write_text(picture(pictured()))
