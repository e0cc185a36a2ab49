"The replays of the site show what fresh explorers show, link to stored states only, and are small."

import re

import pytest
from replays import REPLAYS, page, stored

bs4 = pytest.importorskip('bs4', reason='comes with nbconvert, of [lab]')
from decodelab.explorers.explorer import view_html
from decodelab.explorers.replay import unpack

LIVE = re.compile(
    r'<(?!button disabled)[^<>]*\sdata-pick="([^"]*)"'
)  # elements that lead somewhere


def text_of(html):
    "The text of a view; times vary from run to run."
    text = bs4.BeautifulSoup(html, 'html.parser').select_one('.decodelab-explorer').get_text(' ')
    text = re.sub(r'tokens/s\s+[\d.]+|[\d.,]+ m?s\b', '', text)
    return re.sub(r'\s+', ' ', text).strip()


@pytest.mark.parametrize('name', REPLAYS)
def test_a_page_is_small_and_all_its_links_lead_somewhere(name):
    data, html = stored(name), page(name)
    assert len(html.encode()) < 1_000_000
    assert unpack(html) == data
    states = data['states']
    assert len(states) > 40
    for row in states:
        assert row['summary']
        assert all(0 <= to < len(states) for _, to in row['picks'])
        shown = ''.join(data['chunks'][i] for i in row['view'])
        assert len(set(LIVE.findall(shown))) == len(row['picks'])
    for k, axis in enumerate(data['axes']):
        values = {row['axes'][k] for row in states}
        assert values >= set(range(len(axis['values']))), axis['label']  # each value has a state


@pytest.mark.parametrize('name', REPLAYS)
def test_stored_states_are_those_of_a_fresh_explorer(name, one_thread):
    data = stored(name)
    explorers, axes, _ = REPLAYS[name]()
    several = isinstance(explorers, dict)
    examples = list(explorers) if several else ['']
    names = ['example'] * (len(examples) > 1) + list(axes)
    for row in data['states'][:: max(len(data['states']) // 2, 1)][:2]:
        values = dict(zip(names, row['axes']))
        explorer = explorers[examples[values.pop('example', 0)]] if several else explorers
        settings = {k: list(axes[k])[i] for k, i in values.items()}
        first = next(r for r in data['states'] if r['axes'] == row['axes'])  # before any pick
        explorer.run(**settings)
        shown = ''.join(data['chunks'][i] for i in first['view'])
        assert text_of(shown) == text_of(view_html(explorer))
        assert ''.join(data['chunks'][i] for i in first['code']) == explorer.code()
