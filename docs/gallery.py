"The experiments as a gallery: a card for each, with its first figure in small."

import base64
import io
import re

import nbformat
import pages
from pages import ROOT

WIDTH = 480  # pixels of a thumbnail
DRAWN = '![]({}.png)\n'


def figures(path):
    "The pictures among the outputs of a notebook, those below the heading Figure first."
    below, others = [], []
    seen = others
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == 'markdown':
            headings = re.findall(r'^#+ (.+)$', cell.source, flags=re.M)
            seen = below if any('figure' in h.lower() for h in headings) else seen
        else:
            data = [output.get('data', {}) for output in cell.outputs]
            seen += [base64.b64decode(d['image/png']) for d in data if 'image/png' in d]
    return below + others


def thumbnail(png):
    "A picture in small, as PNG."
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert('RGBA')
    image.thumbnail((WIDTH, WIDTH))
    out = io.BytesIO()
    image.quantize(64, method=Image.Quantize.FASTOCTREE).save(out, 'PNG', optimize=True)
    return out.getvalue()


def thumbnails(site):
    "Path below the sources of the site -> picture, of the experiments that have one."
    for path in site.experiments:
        pictures = figures(path)
        if pictures:
            yield f'experiments/{path.stem}.png', thumbnail(pictures[0])


def counted(path):
    "How the claims of an experiment came out: `9 agree, 2 do not`; '' without claims."
    import pandas as pd

    rows = sorted((ROOT / 'experiments' / 'results').glob(f'{path.stem}.*.verdicts.csv'))
    if not rows:
        return ''
    agrees = pd.concat([pd.read_csv(p) for p in rows]).agrees.astype(str).str.lower()
    counts = [('agree', 'true'), ('do not', 'false')]
    named = [(words, int((agrees == value).sum())) for words, value in counts]
    named.append(('open', len(agrees) - sum(n for _, n in named)))
    return ', '.join(f'{n} {words}' for words, n in named if n)


def card(path, has_picture):
    "The card of an experiment."
    title, subtitle = pages.page_title(path)
    lines = [f':::{{grid-item-card}} {title}', f':link: {path.stem}', ':link-type: doc']
    if has_picture:
        lines += [f':img-top: {path.stem}.png', f':img-alt: A figure of {title}']
    claims = counted(path)
    text = [subtitle, *([f'\n*Claims: {claims}*'] if claims else [])]
    return '\n'.join([*lines, '', *text, ':::'])


def grid(site):
    "The cards of all experiments."
    drawn = {name for name, _ in thumbnails(site)}
    cards = [card(p, f'experiments/{p.stem}.png' in drawn) for p in site.experiments]
    head = '::::{grid} 1 2 3 3\n:gutter: 3\n:class-container: gallery\n'
    return '\n\n'.join([head, *cards, '::::'])
