"The cards of the embedded models as pages, with their curves."

import re

import cards
from pages import toctree

SIZE = dict(width=640, height=220)
MARGIN = dict(left=56, right=12, top=14, bottom=40)
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #59636e } line { stroke: #59636e; stroke-opacity: .35 }
polyline { fill: none; stroke: #0072b2; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } line { stroke: #9198a1 } polyline { stroke: #58a6e0 }
}
</style>"""


def score(value):
    "One number of a score: the first guess of heads, the mean over groups of questions."
    if isinstance(value, dict):
        return sum(value.values()) / len(value)
    return value[0] if isinstance(value, list) else value


def points(name):
    "Run -> points (tokens, score) of a log."
    runs = {}
    for row in cards.read_log(name):
        if cards.CARDS[name].measure in row:
            runs.setdefault(row['run'], []).append(
                (row['tokens'], score(row[cards.CARDS[name].measure]))
            )
    return runs


def curve(name):
    "The training curve of a model as SVG, a line for each run."
    runs = points(name)
    every = [p for line in runs.values() for p in line]
    most, top = max(x for x, _ in every), max(y for _, y in every) * 1.05
    width = SIZE['width'] - MARGIN['left'] - MARGIN['right']
    height = SIZE['height'] - MARGIN['top'] - MARGIN['bottom']

    def at(x, y):
        return MARGIN['left'] + width * x / most, MARGIN['top'] + height * (1 - y / top)

    pieces = []
    for fraction in (0, 0.25, 0.5, 0.75, 1):
        x, y = at(0, top * fraction)
        pieces.append(f'<line x1="{x:.0f}" x2="{x + width:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        label = f'{top * fraction:.2f}'
        pieces.append(f'<text x="{x - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for line in runs.values():
        joined = ' '.join('{:.1f},{:.1f}'.format(*at(*p)) for p in line)
        pieces.append(f'<polyline points="{joined}"/>')
    unit = cards.unit(name)
    caption = f'{cards.CARDS[name].meaning.replace("`", "")}, by {unit} of training (to {most:,})'
    foot = SIZE['height'] - 10
    pieces.append(f'<text x="{MARGIN["left"]}" y="{foot}">{caption}</text>')
    size = f'viewBox="0 0 {SIZE["width"]} {SIZE["height"]}" width="{SIZE["width"]}"'
    label = f'role="img" aria-label="{caption}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>{STYLE}\n'
        + '\n'.join(pieces)
        + '\n</svg>\n'
    )


def card_page(site, path):
    "A card without the metadata of the Hub, with its curve and the site's links."
    text = re.sub(r'\A---\n.*?\n---\n', '', path.read_text(encoding='utf-8'), flags=re.S)
    text = site.relink(re.sub(r'<!--.*?-->\n', '', text), path)
    name = path.parent.name
    picture = f'![The training curve of {name}]({name}.svg)\n\n'
    return text.replace('## Curve\n\n', f'## Curve\n\n{picture}', 1)


def index_page(site):
    "The embedded models in one table."
    rows = []
    for name, card in cards.CARDS.items():
        weights, _, size = cards.tensors(name)
        rows.append(f'| [`{name}`]({name}.md) | {card.title} | {weights:,} | {size / 1e6:.1f} MB |')
    names = [*cards.CARDS, 'corpus']
    return (
        '# The embedded models\n\nTen small models ship with decodelab, so that nothing is downloaded where '
        "one is enough: `load('pico')`. Each has a card: data, tokens, curve, limits and licence. "
        '[The corpus](corpus.md) has a data card with the licence of every package.\n\n'
        '| model | what it is | parameters | file |\n|---|---|---|---|\n'
        + '\n'.join(rows)
        + f'\n\n{toctree([f"{name}.md" for name in names], hidden="")}'
    )


def files():
    "Card in the repository -> its page."
    weights = {cards.WEIGHTS / name / 'README.md': f'models/{name}.md' for name in cards.CARDS}
    return weights | {cards.WEIGHTS / 'pico' / 'CORPUS.md': 'models/corpus.md'}


def sources(site):
    "Name -> text of every page about a model."
    made = {name: card_page(site, path) for path, name in files().items()}
    return made | {'models/index.md': index_page(site)}


def pictures():
    "Path below the sources of the site -> SVG."
    return {f'models/{name}.svg': curve(name) for name in cards.CARDS}
