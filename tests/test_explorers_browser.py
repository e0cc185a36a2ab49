"""The explorers in JupyterLab, driven as a reader drives them: by slider, button and key.

Their numbers are compared with a direct call, and a picture of each is kept, light and dark.
"""

import re

import nbformat
import pytest

from decodelab import AssistantDrafter, FixedLookahead, Greedy, Speculative, decode, load
from jupyter_browser import ARTEFACTS, BROWSER, open_browser, open_notebook, run_all, serve

pytestmark = pytest.mark.skipif(BROWSER is None, reason='no Chromium on this machine')
SETUP = 'from decodelab import load\nlm, draft = load("pico"), load("pico-draft")'
PROMPT = 'def is_even(n):\n    """Return True if n is even."""'


def notebook(folder, cell: str):
    "A notebook with one explorer."
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in (SETUP, cell)])
    nb.metadata.kernelspec = dict(name='python3', display_name='python3', language='python')
    nbformat.write(nb, folder / 'explorer.ipynb')


@pytest.fixture(params=['Light', 'Dark'])
def explorer(request, tmp_path):
    "A function that opens an explorer and returns the page, 900 pixels wide."
    theme = request.param
    home, folder = tmp_path / 'home', tmp_path / 'notebooks'
    home.mkdir()
    folder.mkdir()
    with serve(folder, home, theme) as address, open_browser(900, 1400) as page:

        def open_cell(cell: str, name: str):
            notebook(folder, cell)
            open_notebook(page, address('explorer.ipynb'))
            outputs = run_all(page)
            assert not [o for o in outputs if o['output_type'] == 'error'], outputs
            page.picture = lambda: picture(page, f'{name}_{theme.lower()}')
            return page

        yield open_cell


def picture(page, name: str):
    "Keep a picture of the explorer's output."
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page.locator('.jp-OutputArea-child:has(.widget-vbox)').last.screenshot(
        path=ARTEFACTS / f'explorer_{name}.png'
    )


def button(page, label: str):
    return page.locator('button.jupyter-button', has_text=label)


def choose(page, name: str, option: str):
    page.locator('.widget-dropdown', has_text=name).locator('select').select_option(option)


def press(page, label: str):
    "Press a button and wait until its run has ended."
    button(page, label).click()
    page.wait_for_function(
        """() => { const stop = [...document.querySelectorAll('button')].find(b => b.textContent.includes('Stop'))
        return stop && stop.disabled }""",
        timeout=60_000,
    )


def move(page, name: str, steps: int):
    "Move a slider by keys."
    handle = page.locator('.widget-slider', has_text=name).locator('.noUi-handle')
    handle.focus()
    for _ in range(steps):
        handle.press('ArrowRight')


def test_a_decode_is_explored(explorer):
    page = explorer('from decodelab import explore\nexplore(lm, draft)', 'decoding')
    view = page.locator('.decodelab-explorer').last
    view.get_by_text('same tokens').wait_for(timeout=30_000)
    static = page.locator('[class^=decodelab-static]')
    assert static.count() == 1 and not static.is_visible()  # the live view is there

    move(page, 'draft length', 3)
    press(page, 'Run')
    lm, draft = load('pico'), load('pico-draft')
    strategy = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(7))
    metrics = decode(lm, PROMPT, strategy, max_new_tokens=48).metrics()
    text = view.inner_text()
    assert f'target passes {metrics["target_passes"]}' in text
    assert f'accepted {metrics["accepted"]} of {metrics["drafted"]} drafted' in text
    assert view.locator('.dl-accepted').count() >= metrics['accepted']

    token = view.locator('[data-link="5"]')
    token.first.hover()
    assert token.count() == 2 and all('dx-linked' in t.get_attribute('class') for t in token.all())

    button(page, 'Copy as code').click()
    code = page.locator('.decodelab-code').inner_text()
    names = {}
    exec(code, names)
    assert names['trace'].tokens == decode(lm, PROMPT, Greedy(), max_new_tokens=48).tokens
    page.picture()

    choose(page, 'method', 'beam search')
    choose(page, 'verifier', 'token')
    press(page, 'Run')
    assert re.search(r'target passes \d+', view.inner_text())


def test_an_error_is_shown_in_place_and_stop_ends_a_run(explorer):
    page = explorer(
        'from decodelab import explore\nexplore(lm, draft, max_new_tokens=400)', 'stopped'
    )
    view = page.locator('.decodelab-explorer').last
    choose(page, 'verifier', 'token')
    press(page, 'Run')
    assert 'weighs probabilities' in view.locator('[role=alert]').inner_text()
    choose(page, 'verifier', 'default')
    page.locator('.widget-checkbox', has_text='measure speed').locator('input').check()
    button(page, 'Run').click()
    button(page, 'Stop').click()
    page.get_by_text('stopped', exact=True).wait_for(timeout=30_000)
    page.picture()
