"""The replays of the site in a browser, without a kernel: controls, picks, keys, permalinks, a phone.

Skipped if the machine has no browser.
"""

import pytest
import replays
from replays import REPLAYS

from decodelab.core.html import save_page
from tests.jupyter_browser import ARTEFACTS


@pytest.fixture(scope='module')
def page(browser):
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page = browser.new_page(viewport=dict(width=1000, height=1400))
    page.errors = []
    page.on('pageerror', lambda error: page.errors.append(str(error)))
    page.on('console', lambda m: m.type == 'error' and page.errors.append(m.text))
    page.context.grant_permissions(['clipboard-read', 'clipboard-write'])
    yield page
    page.close()


@pytest.fixture
def opened(page, tmp_path):
    "Opens a replay as a page of its own; its data come back."

    def open_replay(name):
        path = tmp_path / f'{name}.html'
        save_page(path, name, replays.page(name))
        page.goto(f'file://{path}')
        page.locator('.decodelab-replay .dx-buttons').wait_for()
        return replays.stored(name)

    return open_replay


def shown(page):
    return page.locator('.decodelab-replay .decodelab-explorer').last


def state_text(page, data, number):
    "The text of a stored state, as this browser reads it."
    html = ''.join(data['chunks'][i] for i in data['states'][number]['view'])
    return page.evaluate(
        "html => new DOMParser().parseFromString(html, 'text/html').querySelector('.decodelab-explorer').textContent",
        html,
    )


def number_of(page):
    return int(page.url.partition('#s')[2] or 0)


def test_controls_and_picks_lead_to_stored_states(page, opened):
    data = opened('decoding')
    methods = data['axes'][1]['values']
    page.get_by_label('method').select_option(label='suffix')
    state = data['states'][number_of(page)]
    assert state['axes'][1] == methods.index('suffix')
    assert shown(page).text_content() == state_text(page, data, number_of(page))
    slider = page.get_by_role('slider', name='draft length')
    slider.focus()
    slider.press('ArrowRight')
    *others, before = state['axes']  # a replay begins where there is most to see
    assert data['states'][number_of(page)]['axes'] == [*others, before + 1]
    assert slider.get_attribute('aria-valuetext') == data['axes'][-1]['values'][before + 1]
    assert state['summary'][:11] in page.get_by_role('status').inner_text()
    page.get_by_role('button', name='Copy code').click()
    page.get_by_text('copied', exact=True).wait_for()
    code = page.evaluate('navigator.clipboard.readText()')
    assert code == ''.join(data['chunks'][i] for i in data['states'][number_of(page)]['code'])
    address = page.url
    page.get_by_role('button', name='Back').click()
    assert number_of(page) == data['states'].index(state)
    page.goto(address)  # a permalink
    assert shown(page).text_content() == state_text(page, data, number_of(page))
    assert not page.errors


def test_a_tree_is_forced_by_keys(page, opened):
    data = opened('beams')
    node = shown(page).locator('[data-pick="node 1"]').first
    node.focus()
    node.press('Enter')
    assert 'no node selected' not in shown(page).text_content()
    force = shown(page).get_by_role('button', name='force')
    force.focus()
    force.press('Enter')
    assert shown(page).text_content() == state_text(page, data, number_of(page))
    assert shown(page).locator('.dx-badge', has_text='force').count() == 1
    assert not page.errors


@pytest.mark.parametrize('name', REPLAYS)
def test_on_a_phone_and_in_the_dark(page, opened, name):
    data = opened(name)
    assert shown(page).text_content() == state_text(page, data, 0)
    page.screenshot(path=ARTEFACTS / f'replay_{name}_light.png')
    page.set_viewport_size(dict(width=390, height=1200))
    page.emulate_media(color_scheme='dark')
    wide = page.evaluate(
        'document.documentElement.scrollWidth - document.documentElement.clientWidth'
    )
    assert wide <= 0
    page.screenshot(path=ARTEFACTS / f'replay_{name}_phone.png')
    page.emulate_media(color_scheme='light')
    page.set_viewport_size(dict(width=1000, height=1400))
    assert not page.errors
