"""The pictures of the tutorials, drawn from what their blocks compute.

`python tools/tutorial_pictures.py` runs the blocks of each page and writes its pictures beside it, as SVG that follows
the theme; the tests compare them. What is drawn are the page's own variables, so a picture cannot drift from its page.
"""

import html
import sys

import docs_blocks
import readme
from repo import ROOT

FOLDER = ROOT / 'docs' / 'tutorials'
BLUE, ORANGE = '#0072b2', '#d55e00'
GREEN = '#009e73'
WIDTH = 800
NARROW = 560  # a picture whose texts a phone still shows
STYLE = readme.STYLE.replace(
    '</style>',
    '.line { fill: none; stroke-width: 2 } .grid { stroke: #59636e; stroke-opacity: .4 }\n</style>',
)


def svg(pieces, height, label, width=WIDTH):
    "A picture of some elements, with a text for those who do not see it."
    size = f'viewBox="0 0 {width} {height:.0f}" width="{width}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{html.escape(label)}">'
    return '\n'.join([head + STYLE, *pieces, '</svg>\n'])


def note(x, y, text, anchor='start'):
    return f'<text class="note" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def boxes(tokens, label):
    "Tokens as text, each `(text, colour, opacity)` in a box; `label` is a line above them."
    columns = NARROW // 9 - 1
    wide, high = 9.0, 25
    pieces = [note(4, 18, label)]
    x, y = 0, 0
    for text, colour, opacity in tokens:
        for i, part in enumerate(text.split('\n')):
            if i:
                x, y = 0, y + 1
            if x + len(part) > columns:
                x, y = 0, y + 1
            if not part:
                continue
            left, top = x * wide + 4, y * high + 34
            size = f'x="{left:.1f}" y="{top}" width="{len(part) * wide - 1:.1f}" height="20" rx="3"'
            pieces.append(f'<rect {size} fill="{colour}" fill-opacity="{opacity:.2f}"/>')
            length = f'textLength="{len(part) * wide - 1:.1f}" lengthAdjust="spacingAndGlyphs"'
            shown = html.escape(part).replace(' ', '\u00a0')
            pieces.append(f'<text x="{left:.1f}" y="{top + 15}" {length}>{shown}</text>')
            x += len(part)
    return svg(pieces, (y + 1) * high + 44, label, NARROW)


def bars(values, label):
    "A horizontal bar for each name, the shortest first."
    pieces, most = [note(4, 18, label)], max(values.values())
    for i, name in enumerate(sorted(values, key=values.get)):
        top, length = 32 + 28 * i, 340 * values[name] / most
        pieces.append(note(150, top + 15, name.replace('_', ' '), 'end'))
        pieces.append(
            f'<rect x="160" y="{top}" width="{length:.0f}" height="20" rx="3" fill="{BLUE}"/>'
        )
        pieces.append(note(168 + length, top + 15, str(values[name])))
    return svg(pieces, 40 + 28 * len(values), label, NARROW)


def columns(groups, colours, label):
    "A group of upright bars for each name, `name -> values`, in the order of `colours`, `series -> colour`."
    pieces = [note(4, 18, label)]
    bottom, high = 210, 150
    most = max(max(values) for values in groups.values())
    wide, space = 52, NARROW / len(groups)
    for i, (name, values) in enumerate(groups.items()):
        left = space * (i + 0.5) - wide * len(values) / 2
        for j, (value, colour) in enumerate(zip(values, colours.values())):
            x, length = left + wide * j, high * value / most
            size = f'x="{x:.1f}" y="{bottom - length:.1f}" width="{wide - 6}" height="{length:.1f}"'
            pieces.append(f'<rect {size} rx="3" fill="{colour}"/>')
            pieces.append(note(x + wide / 2 - 3, bottom - length - 6, f'{value:.3f}', 'middle'))
        pieces.append(note(space * (i + 0.5), bottom + 22, name, 'middle'))
    for i, (name, colour) in enumerate(colours.items()):
        left = 4 + NARROW * i / len(colours)
        size = f'x="{left:.0f}" y="{bottom + 42}" width="14" height="14" rx="3"'
        pieces.append(f'<rect {size} fill="{colour}"/>')
        pieces.append(note(left + 20, bottom + 54, name))
    return svg(pieces, bottom + 66, label, NARROW)


def verdicts(rows, label):
    "A line for each `(name, verdict, good, words)`: its verdict in a box, coloured if it is good."
    pieces = [note(4, 18, label)]
    for i, (name, verdict, good, words) in enumerate(rows):
        top, colour = 32 + 28 * i, GREEN if good else ORANGE
        pieces.append(f'<text x="4" y="{top + 15}">{html.escape(name)}</text>')
        size = f'x="160" y="{top}" width="90" height="20" rx="3"'
        pieces.append(f'<rect {size} fill="{colour}" fill-opacity="0.35"/>')
        pieces.append(f'<text x="205" y="{top + 15}" text-anchor="middle">{verdict}</text>')
        pieces.append(note(270, top + 15, words))
    return svg(pieces, 40 + 28 * len(rows), label, NARROW)


def lines(series, threshold, label, unit):
    "Lines `name -> (colour, points)`, and a level that is rare."
    left, right = 44, WIDTH - 150
    top, bottom = 34, 250
    every = [p for _, points in series.values() for p in points]
    most, high = max(x for x, _ in every), max(y for _, y in every) * 1.05
    low = min(0, min(y for _, y in every))

    def at(x, y):
        return left + (right - left) * x / most, bottom - (bottom - top) * (y - low) / (high - low)

    pieces = [note(4, 18, label)]
    for value, words in [(0, '0'), (threshold, f'{threshold:.1f}'), (high, f'{high:.0f}')]:
        y = at(0, value)[1]
        pieces.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        pieces.append(note(left - 6, y + 4, words, 'end'))
    for name, (colour, points) in series.items():
        joined = ' '.join('{:.1f},{:.1f}'.format(*at(*p)) for p in points)
        pieces.append(f'<polyline class="line" stroke="{colour}" points="{joined}"/>')
        x, y = at(*points[-1])
        pieces.append(note(x + 8, y + 4, name))
    pieces.append(note((left + right) / 2, bottom + 24, unit, 'middle'))
    return svg(pieces, bottom + 36, label)


# What is drawn


def sure_tokens(names):
    "The sampled text, each token by the probability that it had."
    lm, trace = (
        names['lm'],
        names['decode'](names['lm'], names['prompt'], names['sampling'], 24, seed=0),
    )
    session = lm.session()
    ids, tokens = list(trace.prompt), []
    for token, text in zip(trace.tokens, trace.token_texts):
        p = session.logits(ids, 1)[-1].softmax(-1)[token].item()
        tokens.append((text, BLUE, 0.08 + 0.6 * p))
        ids.append(token)
    return boxes(tokens, 'A sampled text: the darker a token, the more probable it was')


def green_tokens(names):
    "The watermarked text: green tokens, red ones, and those that do not count."
    trace, watermark = names['watermarked'], names['watermark']
    scores = watermark.score_tokens(trace.tokens)
    colours = [GREEN if value else ORANGE for value in scores.values]
    opacity = [0.35 if scored else 0.06 for scored in scores.scored]
    tokens = list(zip(trace.token_texts, colours, opacity))[:70]
    share = scores.total / scores.count
    return boxes(
        tokens, f'{100 * share:.0f} % of the counted tokens are green; by chance it would be 25 %'
    )


def evidence(names):
    "z of the first tokens of both texts."
    from decodelab.detection.highlight import running_z
    from decodelab.watermark import null_distribution

    watermark = names['watermark']
    null = null_distribution(watermark)
    series = {}
    for name, colour in (('watermarked', GREEN), ('unwatermarked', ORANGE)):
        scores = watermark.score_tokens(names[name].tokens)
        at, z = running_z(scores.values, scores.scored, null)
        series[name] = colour, [(0, 0.0), *zip(map(int, at), map(float, z))]
    label = (
        'Evidence grows with the text; the line at 2.3 is reached by 1 in 100 texts without the key'
    )
    return lines(series, 2.3, label, 'tokens')


def first_ids(names):
    "The distribution of the first id by both samplers, on the tables of the certificate's sentence."
    from decodelab.engines import sampler_certificates as certificates

    case = certificates.Case(vocab_size=3, k=1, seed=0)
    rows = [case.target.probs(certificates.PROMPT)]
    for sampler in (names['sampler'], names['mended']):
        rounds = certificates.exact_rounds(sampler, case, False, max_paths=5000)
        joint = certificates.completed(rounds, case)
        rows.append(certificates.next_row(joint, (), case.vocab_size))
    groups = {f'id {i}': list(map(float, row)) for i, row in enumerate(zip(*rows))}
    colours = {'the target': BLUE, 'as first written': ORANGE, 'mended': GREEN}
    label = 'Probability of the next id, exactly: one sampler of two follows the target'
    return columns(groups, colours, label)


def ways_of_reading(names):
    "The table of capabilities: each way of reading, and its verdict."
    from decodelab.models.capabilities import WAYS

    table = names['lm'].capabilities
    rows = [(way, table.verdict(way), table[way].works, f'read {WAYS[way][0]}') for way in WAYS]
    return verdicts(
        rows, 'Ways of reading your model, each compared with its own full forward pass'
    )


def passes(names):
    "The passes of the target with each drafter, and without."
    values = names['passes'] | {'plain decoding': sum(map(len, names['plain']))}
    return bars(values, 'Passes of the target for the same text, by drafter: fewer are better')


PICTURES = {
    'first_steps': {'sampled.svg': sure_tokens},
    'your_own_model': {'capabilities.svg': ways_of_reading},
    'faster': {'lookup.svg': lambda names: readme.picture(names['lookup'])},
    'lossless': {'first_ids.svg': first_ids},
    'watermark': {'green.svg': green_tokens, 'evidence.svg': evidence},
    'which_drafter': {'passes.svg': passes},
}  # page -> picture -> function of the page's names


def pictures(page, names):
    "File -> picture of a page whose blocks have run."
    return {f'{page}_{file}': draw(names) for file, draw in PICTURES.get(page, {}).items()}


if __name__ == '__main__':
    for page in sys.argv[1:] or PICTURES:
        names = {}
        docs_blocks.run((FOLDER / f'{page}.md').read_text(encoding='utf-8'), names)
        for file, text in pictures(page, names).items():
            (FOLDER / file).write_text(text, encoding='utf-8')
