"Objects show themselves as text and as HTML, in an untrusted notebook too."

import base64
import json
import re
from html.parser import HTMLParser

import nh3
import numpy as np
import pytest

from decodelab import (
    AssistantDrafter,
    DraftTable,
    FixedLookahead,
    RoundCosts,
    Speculative,
    certify,
    decode,
    decode_batch,
    load,
    random_lm,
    stream,
)
from decodelab.detection import highlight_tokens
from decodelab.lab.experiment import Experiment
from decodelab.watermark import BinomialNull

PROMPT = 'def is_even(n):\n'


@pytest.fixture(scope='module')
def lm():
    return load('pico', device='cpu')


@pytest.fixture(scope='module')
def draft():
    return load('pico-draft', device='cpu')


def shown_objects(lm, draft):
    "Name → an object that people look at."
    strategy = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(3))
    flow = stream(lm, PROMPT, strategy, 12)
    next(flow)
    flow.close()
    needs = dict(models=('pico',), data=(), memory_gb=1, minutes=1)
    return dict(
        lm=lm,
        trace=decode(lm, PROMPT, strategy, 12),
        stream=flow,
        batch=decode_batch(lm, [PROMPT, 'import <b>'], strategy, max_new_tokens=8),
        certificate=certify(Speculative(AssistantDrafter(random_lm(seed=1))), max_new_tokens=6),
        costs=RoundCosts((1.0, 1.5), 0.2),
        table=DraftTable.build(lm, AssistantDrafter(draft), [PROMPT], 8, k=4),
        experiment=Experiment('demo', dict(pico=needs)),
    )


@pytest.fixture(scope='module')
def shown(lm, draft):
    return shown_objects(lm, draft)


class Page(HTMLParser):
    "The text, the elements and the styles of a page."

    def __init__(self, page):
        super().__init__()
        self.text = ''
        self.elements = []
        self.styles = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.styles.append(dict(attrs).get('style', ''))

    def handle_data(self, data):
        self.text += data


NAMES = ['lm', 'trace', 'stream', 'batch', 'certificate', 'costs', 'table', 'experiment']


@pytest.mark.parametrize('name', NAMES)
def test_it_shows_itself_as_text_and_as_html(shown, name):
    thing = shown[name]
    assert 10 < len(repr(thing)) < 2000
    assert not re.search(r'object at 0x', repr(thing))
    page = Page(thing._repr_html_())
    assert len(page.text) > 20
    # No colour of a text or of a whole background, which would be unreadable on one of white and black.
    for style in page.styles:
        assert not re.search(
            r'(?<!-)color:|(?<!\w)(?:white|black)(?!-)|background-color: #', style
        ), style


def test_the_texts_of_a_batch(shown, lm, draft):
    batch = shown['batch']
    assert batch.texts == [trace.text for trace in batch]
    frame = batch.to_frame()
    assert frame.text.tolist() == batch.texts
    assert frame.new_tokens.tolist() == [8, 8]
    assert '&lt;b&gt;' in batch._repr_html_()
    assert '<b>' not in batch._repr_html_().replace('<b>8', '')


# Notebooks that are not trusted

# The elements, attributes and style properties that JupyterLab's sanitiser keeps, as far as they occur here.
ALLOWED_TAGS = set(
    'a b br code details div em i img li p pre span strong sub summary sup table tbody td th thead tr ul'.split()
)


ALLOWED_ATTRIBUTES = {
    '*': {'class', 'style', 'title', 'dir', 'hidden', 'lang'},
    'img': {'src', 'alt', 'width'},
}


ALLOWED_STYLES = '''background-color border border-bottom border-collapse border-top color display font-family font-size
    font-style font-weight height line-height margin margin-right margin-top margin-bottom max-width min-width opacity
    overflow-wrap padding padding-left text-align vertical-align white-space width'''


def sanitised(page: str) -> str:
    "A page as a notebook shows it that is not trusted: no style sheet, no script, no SVG, but its text."
    return nh3.clean(
        re.sub(r'</?(?:svg|g|path|rect|line|text)\b[^>]*>', '', page),
        tags=ALLOWED_TAGS,
        clean_content_tags={'style', 'script'},
        attributes=ALLOWED_ATTRIBUTES,
        filter_style_properties=set(ALLOWED_STYLES.split()),
        url_schemes={'http', 'https', 'data'},
    )


def test_the_sanitiser_of_this_test_strips():
    left = sanitised(
        '<style>a{}</style><svg><text>0 2 4</text></svg><b onclick="x" style="color:red;top:0">y</b>'
    )
    assert left == '0 2 4<b style="color:red">y</b>'


def test_a_trace_keeps_its_spaces_and_colours(shown):
    trace = shown['trace']
    page = Page(sanitised(trace._repr_html_()))
    assert trace.prompt_text + trace.text in page.text
    assert 'prompt drafted' in page.text or 'prompt by the target' in page.text
    text = next(style for style in page.styles if 'white-space' in style)
    assert 'pre-wrap' in text
    for origin, line in [('accepted', 'solid'), ('corrected', 'dashed')]:
        styles = {a['style'] for t, a in page.elements if f'dl-{origin}' in a.get('class', '')}
        assert styles
        assert all('background-color' in s and line in s for s in styles)
    legend = [a['style'] for t, a in page.elements if 'margin-right' in a.get('style', '')]
    assert len(legend) >= 3  # the prompt and two origins, apart from each other


def test_the_watermark_view_keeps_its_axis():
    rng = np.random.default_rng(0)
    null = BinomialNull(0.25)
    pieces = ['def ', 'f', '(x', '):\n', '    return ', ' x'] * 10
    html = highlight_tokens(pieces, null.draw(rng, 60), rng.random(60) < 0.8, null, window=(15, 45))
    page = Page(sanitised(html))
    assert ''.join(pieces) in page.text
    assert not re.search(r'\b0\s*2\s*4', page.text)
    image = next(a for t, a in page.elements if t == 'img')
    svg = base64.b64decode(image['src'].partition('base64,')[2]).decode()
    assert svg.startswith('<svg xmlns=')
    assert '>0</text>' in svg
    assert 'dl-line' in svg
    assert 'at the end' in image['alt']
    inside = [a for t, a in page.elements if 'dl-in' in a.get('class', '') and t == 'span']
    assert len(inside) == 30 + 1
    assert all('border-top' in a['style'] for a in inside)


@pytest.mark.parametrize('name', NAMES)
def test_nothing_that_is_looked_at_depends_on_a_style_sheet(shown, name):
    html = shown[name]._repr_html_()
    before, after = Page(re.sub(r'<style>.*?</style>', '', html, flags=re.S)), Page(sanitised(html))
    assert after.text == before.text
    count = lambda page: sum(s.count(':') for s in page.styles)  # of declarations
    assert 0 < count(after) == count(before)


def test_html_survives_json(shown):
    json.dumps({name: thing._repr_html_() for name, thing in shown.items()})
