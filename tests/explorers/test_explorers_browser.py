"""The explorers in JupyterLab, driven by slider, list, button, click and key.

What a page shows at the end is what the same explorer computes here, without a browser, from the same settings.
A picture of each is kept. Every second one is dark; DECODELAB_THEMES=both drives each in both themes.

Skipped if the machine has no browser.
"""

import os
import re
import time

import nbformat
import pytest

from decodelab import AssistantDrafter, DraftTable, Greedy, Sample, Speculative, Temperature
from decodelab import builtin_prompts, decode, explore, load
from decodelab.explorers import (
    explore_beams,
    explore_distribution,
    explore_layers,
    explore_lookahead,
    explore_watermark,
    step_rounds,
)
from decodelab.explorers.explorer import view_html
from decodelab.speculative import recorded
from tests.jupyter_browser import ARTEFACTS, BROWSER, open_browser, open_notebook, run_all, serve

bs4 = pytest.importorskip('bs4', reason='comes with nbconvert, of [lab]')
pytestmark = pytest.mark.skipif(BROWSER is None, reason='no Chromium on this machine')
PROMPT = 'def is_even(n):\n    """Return True if n is even."""'
SETUP = f"""
from decodelab import AssistantDrafter, DraftTable, Sample, Speculative, Temperature
from decodelab import builtin_prompts, decode, explore, load
from decodelab.explorers import (
    explore_beams, explore_distribution, explore_layers, explore_lookahead, explore_watermark, step_rounds,
)
from decodelab.speculative import recorded
lm, draft = load('pico'), load('pico-draft')
prompt = {PROMPT!r}
"""
ROUNDS = """
sampled = recorded(Speculative(AssistantDrafter(draft), Sample([Temperature(0.8)])))
step_rounds(decode(lm, prompt, sampled, max_new_tokens=32), lm)
"""
LOOKAHEAD = """
table = DraftTable.build(lm, AssistantDrafter(draft), builtin_prompts()[:1], 24, k=6)
explore_lookahead(table, lm)
"""
CELLS = dict(
    decoding='explore(lm, draft)',
    rounds=ROUNDS,
    beams='explore_beams(lm, max_new_tokens=4)',
    layers='explore_layers(lm, prompt)',
    watermark='explore_watermark(lm, length=40)',
    lookahead=LOOKAHEAD,
    distribution='explore_distribution(lm, prompt, top_k=12)',
)


def in_theme(name: str):
    "The theme of JupyterLab in a test; both where DECODELAB_THEMES asks for them."
    names = ['Light', 'Dark'] if os.environ.get('DECODELAB_THEMES') == 'both' else [name]
    return pytest.mark.parametrize('lab', names, indirect=True, scope='module')


@pytest.fixture(scope='module')
def lab(request, tmp_path_factory):
    "A function that opens an explorer and returns the page, 900 pixels wide."
    theme = request.param
    home, folder = (tmp_path_factory.mktemp(name) for name in ('home', 'notebooks'))
    for name, cell in CELLS.items():
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in (SETUP, cell)])
        nb.metadata.kernelspec = dict(name='python3', display_name='python3', language='python')
        nbformat.write(nb, folder / f'{name}.ipynb')
    with serve(folder, home, theme) as address:
        yield address, theme.lower()


@pytest.fixture
def opened(lab):
    address, theme = lab
    with open_browser(900, 1600) as page:

        def open_cell(name: str):
            open_notebook(page, address(f'{name}.ipynb') + '&reset')
            outputs = run_all(page)
            assert not [o for o in outputs if o['output_type'] == 'error'], outputs
            static = page.locator('[class^=decodelab-static]')
            page.locator('.widget-vbox .decodelab-explorer').wait_for(timeout=60_000)
            # the live view is there
            assert static.count() == 1
            assert not static.is_visible()
            page.keep = lambda: keep(page, f'{name}_{theme}')
            return page

        yield open_cell


def keep(page, name: str):
    "Keep a picture of the explorer; nothing sticks out sideways."
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    box = page.locator('.jp-OutputArea-child:has(.widget-vbox)').last
    assert box.evaluate('e => e.scrollWidth - e.clientWidth') < 24
    box.screenshot(path=ARTEFACTS / f'explorer_{name}.png')


def move(page, name: str, steps: int):
    "Move a slider by keys."
    handle = page.locator('.widget-slider', has_text=name).locator('.noUi-handle')
    handle.focus()
    for _ in range(steps):
        handle.press('ArrowRight')


def button(page, label: str):
    return page.locator('button.jupyter-button', has_text=label)


def choose(page, name: str, option: str):
    page.locator('.widget-dropdown', has_text=name).locator('select').select_option(option)


def pick(page, key: str):
    "Pick an element by key."
    element = page.locator(f'.widget-vbox [data-pick="{key}"]').first
    element.focus()
    element.press('Enter')


def text_of(html: str) -> str:
    "The text of a view; times vary from run to run."
    text = bs4.BeautifulSoup(html, 'html.parser').select_one('.decodelab-explorer').get_text(' ')
    text = re.sub(r'tokens/s\s+[\d.]+|[\d.,]+ m?s\b', '', text)
    return re.sub(r'\s+', ' ', text).strip()


def wait_for(page, explorer):
    "Wait until the page shows what the explorer computed here."
    expected = text_of(view_html(explorer))
    view = page.locator('.widget-vbox .decodelab-explorer')
    end = time.monotonic() + 60
    while (
        seen := text_of(view.evaluate('e => e.outerHTML'))
    ) != expected and time.monotonic() < end:
        page.wait_for_timeout(200)
    assert seen == expected
    assert len(expected) > 60


@pytest.fixture(scope='module')
def models():
    return load('pico'), load('pico-draft')


@in_theme('Light')
def test_a_decode(opened, models):
    lm, draft = models
    page = opened('decoding')
    view = page.locator('.widget-vbox .decodelab-explorer')
    move(page, 'draft length', 3)
    button(page, 'Run').click()
    explorer = explore(lm, draft)
    explorer.run(draft_length=7)
    wait_for(page, explorer)
    assert 'same tokens' in view.inner_text()
    token = view.locator('[data-link="5"]')
    token.first.hover()
    assert token.count() == 2
    assert all('dx-linked' in t.get_attribute('class') for t in token.all())

    button(page, 'Copy as code').click()
    names = {}
    exec(page.locator('.decodelab-code').inner_text(), names)
    assert names['trace'].tokens == decode(lm, PROMPT, Greedy(), max_new_tokens=48).tokens
    page.keep()

    choose(page, 'verifier', 'token')
    button(page, 'Run').click()
    alert = view.locator('[role=alert]')
    alert.wait_for(timeout=30_000)
    assert 'weighs probabilities' in alert.inner_text()
    choose(page, 'verifier', 'default')
    page.locator('.widget-checkbox', has_text='measure speed').locator('input').check()
    move(page, 'max new tokens', 200)
    button(page, 'Run').click()
    button(page, 'Stop').click()
    page.get_by_text('stopped', exact=True).wait_for(timeout=60_000)


@in_theme('Dark')
def test_rounds(opened, models):
    lm, draft = models
    page = opened('rounds')
    sampled = recorded(Speculative(AssistantDrafter(draft), Sample([Temperature(0.8)])))
    explorer = step_rounds(decode(lm, PROMPT, sampled, max_new_tokens=32), lm)
    explorer.run()
    wait_for(page, explorer)
    pick(page, 'next')
    explorer.run(**explorer.pick('next'))
    wait_for(page, explorer)
    assert explorer.settings['round'] == 2
    page.keep()


@in_theme('Light')
def test_beams(opened, models):
    page = opened('beams')
    explorer = explore_beams(models[0], max_new_tokens=4)
    move(page, 'num beams', 1)
    button(page, 'Run').click()
    explorer.run(num_beams=explorer.settings['num_beams'] + 1)
    wait_for(page, explorer)
    for key in ('node 1', 'force'):
        pick(page, key)
        explorer.run(**explorer.pick(key))
        wait_for(page, explorer)
    page.keep()


@in_theme('Dark')
def test_layers(opened, models):
    page = opened('layers')
    explorer = explore_layers(models[0], PROMPT)
    explorer.run()
    pick(page, '6')
    explorer.run(**explorer.pick('6'))
    wait_for(page, explorer)
    page.keep()


@in_theme('Light')
def test_a_watermark(opened, models):
    page = opened('watermark')
    explorer = explore_watermark(models[0], length=40)
    choose(page, 'scheme', 'Gumbel')
    choose(page, 'attack', 'replace tokens')
    button(page, 'Run').click()
    explorer.run(scheme='Gumbel', attack='replace tokens')
    wait_for(page, explorer)
    page.keep()


@in_theme('Dark')
def test_a_lookahead_rule(opened, models):
    lm, draft = models
    page = opened('lookahead')
    table = DraftTable.build(lm, AssistantDrafter(draft), builtin_prompts()[:1], 24, k=6)
    explorer = explore_lookahead(table, lm)
    step = explorer.fields['threshold'].step
    move(page, 'threshold', 2)
    explorer.run(threshold=explorer.settings['threshold'] + 2 * step)
    wait_for(page, explorer)
    page.keep()


@in_theme('Light')
def test_the_next_token(opened, models):
    page = opened('distribution')
    explorer = explore_distribution(models[0], PROMPT, top_k=12)
    explorer.run()
    key = f'force:{explorer.result.top[1]}'
    pick(page, key)
    explorer.run(**explorer.pick(key))
    wait_for(page, explorer)
    move(page, 'temperature', 1)
    explorer.run(temperature=explorer.settings['temperature'] + explorer.fields['temperature'].step)
    wait_for(page, explorer)
    page.keep()
