"""Highlighted text in a browser is readable on white and on black, with and without a style sheet.

Skipped if the machine has no browser.
"""

import base64
import re

import numpy as np
import pytest

from decodelab.detection import highlight_tokens
from decodelab.watermark import BinomialNull, GammaNull

PIECES = ['def ', 'f', '(x', '):\n', '    return ', 'x' * 300, ' +', ' <b>', '\U0001f600', ''] * 6
LOOK = '''
    const lum = c => { const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b }
    const rgb = s => s.match(/[\\d.]+/g).map(Number), back = rgb(getComputedStyle(document.body).backgroundColor)
    const contrast = e => {
        const [r, g, b, a = 1] = rgb(getComputedStyle(e).backgroundColor), under = [r, g, b].map((v, i) => v * a + back[i] * (1 - a)), over = rgb(getComputedStyle(e).color)
        const [light, dark] = [lum(under), lum(over)].sort((x, y) => y - x)
        return (light + .05) / (dark + .05)
    }
    const box = e => e.getBoundingClientRect(), text = $('.dl-text'), svg = $('.dl-z'), spans = [...text.querySelectorAll('span')]
    return {n: spans.length, contrast: Math.min(...spans.filter(e => !e.matches('.dl-grey')).map(contrast)), right: Math.max(...spans.map(e => box(e).right)), edge: box(text).right,
        svg: [box(svg).width, box(svg).height], text: text.textContent, wide: document.documentElement.scrollWidth}'''


@pytest.mark.parametrize('back, ink', [('#fff', '#111'), ('#111', '#ddd')], ids=['light', 'dark'])
@pytest.mark.parametrize('null', [BinomialNull(0.25), GammaNull()], ids=['green', 'gumbel'])
def test_it_can_be_read(null, back, ink, ask):
    rng = np.random.default_rng(0)
    html = highlight_tokens(
        PIECES, null.draw(rng, 60), rng.random(60) < 0.8, null, title='a title', window=(15, 45)
    )
    got = ask(f'<style>body{{background:{back};color:{ink}}}</style>{html}', LOOK)
    assert got['n'] == 60
    assert got['text'] == ''.join(PIECES)
    assert got['contrast'] > 4.5
    assert got['right'] <= got['edge'] + 1
    assert got['wide'] <= 900
    assert got['svg'][0] > 600
    assert 90 < got['svg'][1] < 200
    svg = base64.b64decode(re.search('base64,([^"]+)', html)[1]).decode()
    window = re.search(r'<rect class="dl-window"[^>]* width="([.\d]+)"', svg)
    assert abs(float(window[1]) / 760 - 0.5) < 0.04


def test_the_colours_survive_without_a_style_sheet(ask):
    html = re.sub(
        r'<style>.*?</style>',
        '',
        highlight_tokens(PIECES, [1.0, 0] * 30, [True] * 60, BinomialNull(0.5)),
        flags=re.S,
    )
    got = ask(
        html,
        "return [...new Set($('.dl-text span', true).map(e => getComputedStyle(e).backgroundColor))]",
    )
    assert len(got) == 2
    assert all('rgba' in c for c in got)
