"One JupyterLab for all tests of this folder, and a browser for each file; skipped where there is no browser."

import pytest

from tests.jupyter_browser import BROWSER, open_browser, serve

# Run in the page before a script: what it may use
HELPERS = '''
const $ = (s, all) => all ? [...document.querySelectorAll(s)] : document.querySelector(s), seen = s => $(s, true).map(e => e.getClientRects().length > 0)
const press = key => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}))'''


@pytest.fixture(scope='session')
def chromium():
    if BROWSER is None:
        pytest.skip('no Chromium on this machine')
    return BROWSER


@pytest.fixture(scope='module')  # while it runs, its thread has an event loop
def browser(chromium):
    with open_browser() as browser:
        yield browser


@pytest.fixture(scope='session')
def notebooks(tmp_path_factory):
    "The folder that JupyterLab serves."
    return tmp_path_factory.mktemp('notebooks')


@pytest.fixture(scope='session')
def jupyterlab(chromium, notebooks, tmp_path_factory):
    "A function from a notebook's name to its address."
    home = tmp_path_factory.mktemp('home')
    with serve(notebooks, home, DECODELAB_SCALE='pico', DECODELAB_QUICK='1') as address:
        yield address


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport=dict(width=1280, height=2400))
    yield page
    page.close()


@pytest.fixture
def ask(browser, tmp_path):
    "A function from a page's HTML and a script, which may use `$`, `seen` and `press`, to what the script returns."
    page = browser.new_page(viewport=dict(width=900, height=700))

    def answer(html, script):
        path = tmp_path / 'page.html'
        text = f'<!DOCTYPE html><meta charset="utf-8"><body>{html}'
        path.write_text(text, encoding='utf-8')
        page.goto(path.as_uri())
        return page.evaluate(f'() => {{ {HELPERS}; {script} }}')

    yield answer
    page.close()
