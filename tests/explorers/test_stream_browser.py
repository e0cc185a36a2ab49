"""A streamed text in JupyterLab grows while it is generated, in colours and whole characters.

Skipped if the machine has no browser.
"""

import nbformat
import pytest

from tests.jupyter_browser import open_notebook

MADE = '''import time
from decodelab import BeamSearch, Speculative, PromptLookupDrafter, decode, load
from decodelab.strategies import display_live
from decodelab.core.trace import Step
lm = load('pico', device='cpu')
class Slowly:
    "A strategy that says what it is told to, a token at a time, or the steps of another, so slowly that a person can follow."
    def __init__(self, said): self.said = said
    def decode(self, request):
        for step in self.said.decode(request) if hasattr(self.said, 'decode') else (Step([i]) for i in self.said):
            time.sleep(.15)
            yield step'''
FAST = "prompt = 'def add(a, b):\\n    return a + b\\n\\ndef add'\ntrace = display_live(lm, prompt, Slowly(Speculative(PromptLookupDrafter())), 40)\nassert trace.tokens == decode(lm, prompt, Speculative(PromptLookupDrafter()), 40).tokens"
WIDE = "said = lm.encode('日本語 😀 grün')\nassert len(said) > 12\ndisplay_live(lm, 'x', Slowly(said), len(said)).text"
SEARCH = "display_live(lm, prompt, BeamSearch(4), 20)"


@pytest.fixture
def address(jupyterlab, notebooks):
    "The address of a notebook that watches."
    cells = [nbformat.v4.new_code_cell(source) for source in (MADE, FAST, WIDE, SEARCH)]
    nb = nbformat.v4.new_notebook(cells=cells)
    nb.metadata.kernelspec = dict(name='python3', display_name='Python 3', language='python')
    nbformat.write(nb, notebooks / 'stream.ipynb')
    return jupyterlab('stream.ipynb')


def test_a_text_is_watched_as_it_grows(address, page):
    open_notebook(page, address)
    page.evaluate("""() => { window.seen = []; setInterval(() => window.seen.push([...document.querySelectorAll('.jp-CodeCell')].map(c => {
        const text = c.querySelector('.decodelab-trace .dl-text')
        return text && [text.innerText, text.querySelectorAll('.dl-accepted').length] })), 20) }""")
    page.get_by_role('menuitem', name='Run', exact=True).click()
    page.get_by_text('Run All Cells', exact=True).click()
    page.get_by_text('is not sure of its text until it ends').first.wait_for(timeout=120_000)
    page.wait_for_timeout(500)
    seen = page.evaluate('window.seen')
    for cell in (1, 2):
        views = [now[cell][0] for now in seen if now[cell]]
        grown = [v for i, v in enumerate(views) if not i or v != views[i - 1]]
        # longer and longer, nothing is taken back
        assert len(grown) > 5, grown
        assert all(b.startswith(a.rstrip('\n')) for a, b in zip(grown, grown[1:])), grown
        assert '\ufffd' not in ''.join(grown), grown  # whole characters only
    assert '日本語 😀 grün' in grown[-1]
    accepted = [now[1][1] for now in seen if now[1]]
    # colours as they come
    assert accepted == sorted(accepted)
    assert len(set(accepted)) > 2
    assert page.locator('.decodelab-trace').count() == 2  # in place, and none for the search
