"""The beam view in a browser: pictures show, nothing overlaps, keys and buttons work.

Skipped if the machine has no browser.
"""

import re

import numpy as np
import pytest

from decodelab import BeamSearch, DiverseBeamSearch, decode, load
from decodelab.strategies.beam_html import beam_html
from decodelab.strategies.beam_plot import display_text

PROMPT = 'def read(path):\n    """Return'


@pytest.fixture(scope='module')
def lm():
    return load('pico', device='cpu')


@pytest.fixture(scope='module')
def trace(lm):
    return decode(lm, PROMPT, BeamSearch(3, num_return_sequences=3), 8)


def test_walking_zooming_switching(lm, trace, ask):
    got = ask(
        beam_html(trace, lm).html,
        '''
        const out = {}, line = () => $('output').textContent.split('\\n')
        $('.dl-all .dl-best').focus(); out.first = line()
        for (let i = 0; i < 20; i++) press('ArrowRight')
        out.last = line(); out.marked = $('.dl-on', true).length
        press('ArrowLeft'); out.back = line()[1]
        press('Home'); out.home = line()[0]; press('End'); out.end = line()[0]; press('ArrowDown'); out.down = line()[1]; press('ArrowUp'); out.up = line()[0]
        out.stops = $('.dl-all [tabindex="0"]', true).length
        const width = () => $('.dl-all svg').getBoundingClientRect().width, full = width()
        press('+'); out.larger = width() / full; press('0'); out.fit = width() - $('.dl-all .dl-scroll').clientWidth
        $('.dl-zoom button').click(); out.smaller = width() < $('.dl-all .dl-scroll').clientWidth
        out.views = [seen('.dl-view')]
        for (const k of ['beams', 'hypotheses']) { $(`[value=${k}]`).click(); out.views.push(seen('.dl-view')) }
        $('.dl-hypotheses .dl-best').dispatchEvent(new MouseEvent('mouseover', {bubbles: true})); out.hover = line()[1]
        return out''',
    )
    text = display_text(trace.text)
    assert got['first'][0] == display_text(lm.decode(trace.tokens[:1]))
    assert got['last'][0] == got['end'] == got['up'] == text
    assert got['marked'] == 8
    assert got['last'][1].startswith('step 8 ')
    assert got['back'].startswith('step 7 ')
    assert got['home'] == got['first'][0]
    assert got['down'].startswith('step 8 ')
    assert got['stops'] == 1
    assert abs(got['larger'] - 1.25) < 0.02
    assert abs(got['fit']) < 2
    assert got['smaller']
    assert got['views'] == np.eye(3, dtype=bool).tolist()
    assert got['hover'].startswith('steps 1 to ')


def test_two_views_share_a_page(lm, trace, ask):
    got = ask(
        beam_html(trace, lm).html + beam_html(trace, lm, show='beams').html,
        '''
        const before = seen('.dl-view'), about = () => $('output', true).map(o => o.textContent.split('\\n').length)
        $('[value=hypotheses]').click()
        $('.dl-hypotheses .dl-best').focus()
        return [before, seen('.dl-view'), about()]''',
    )
    assert got == [
        [True, False, False, False, True, False],
        [False, False, True, False, True, False],
        [2, 1],
    ]


LOOK = '''return {live: seen('.dl-live')[0], still: seen('.dl-still')[0], views: seen('.dl-view'), bar: seen('.dl-zoom'), image: $('.dl-still img').naturalWidth,
    titles: $('svg title', true).length, size: Math.max(...$('svg', true).map(s => s.getBoundingClientRect().width)),
    switched: $('[value=all]') && ($('[value=all]').click(), seen('.dl-view'))}'''


def test_without_scripts_the_pictures_show_and_the_switch_works(lm, trace, ask):
    page = re.sub(r'<script>.*?</script>', '', beam_html(trace, lm, show='beams').html, flags=re.S)
    got = ask(page, LOOK)
    assert got['live']
    assert not got['still']
    assert got['views'] == [False, True, False]
    assert got['bar'] == [False]
    assert got['titles'] > 48
    assert got['size'] > 100
    assert got['switched'] == [True, False, False]


def test_without_styles_an_image_shows(lm, trace, ask):
    page = re.sub(r'<(script|style)>.*?</\1>', '', beam_html(trace, lm).html, flags=re.S)
    got = ask(page, LOOK)
    assert not got['live']
    assert got['still']
    assert got['image'] > 400


@pytest.mark.parametrize('show', ['all', 'beams', 'hypotheses'])
def test_texts_are_inside_and_do_not_overlap(lm, show, ask):
    for trace in (
        decode(lm, PROMPT, BeamSearch(5, num_return_sequences=5), 20),
        decode(lm, PROMPT, DiverseBeamSearch(6, 3, 0.8), 6),
    ):
        got = ask(
            beam_html(trace, lm, show=show).html,
            '''
            const svg = $('.dl-view', true).find(v => v.getClientRects().length).querySelector('svg'), view = svg.viewBox.baseVal
            const box = [...svg.querySelectorAll('text')].map(t => [t.getBBox(), t.textContent])
            const out = box.filter(([b]) => b.x < 0 || b.y < -2 || b.x + b.width > view.width || b.y + b.height > view.height).map(b => b[1]), over = []
            for (let i = 0; i < box.length; i++) for (let j = 0; j < i; j++) {
                const [a, b] = [box[i][0], box[j][0]]
                if (Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x) > 1 && Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y) > 4) over.push(box[i][1] + ' | ' + box[j][1])
            }
            return {out, over, n: box.length}''',
        )
        assert got.get('out') == [], got
        assert got['over'] == [], got
        assert got['n'] > 5, got
