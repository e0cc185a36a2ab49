"""The tour runs in JupyterLab in a browser and shows its trace and figures.

Skipped if the machine has no browser.
"""

import time

import nbformat
import pytest
from repo import ROOT

from tests.jupyter_browser import ARTEFACTS, CELLS, open_notebook, run_all

TOUR = '00_tour.ipynb'


@pytest.fixture
def address(jupyterlab, notebooks):
    "The address of the tour, all outputs taken away, so that whatever is seen was made here."
    nb = nbformat.read(ROOT / 'experiments' / TOUR, 4)
    for cell in nb.cells:
        if cell.cell_type == 'code':
            cell.outputs, cell.execution_count = [], None
    nbformat.write(nb, notebooks / TOUR)
    return jupyterlab(TOUR)


def test_the_tour_runs_and_shows_its_trace_and_its_figures(address, page):
    open_notebook(page, address)
    assert page.evaluate(
        f"[...{CELLS}].filter(c => c.type === 'code').every(c => c.outputs.length === 0 && "
        "c.executionCount === null)"
    )
    assert not page.locator('.decodelab-trace').count()  # nothing is there before it runs
    began = time.perf_counter()
    outputs = run_all(page)
    assert not [o for o in outputs if o['output_type'] == 'error'], outputs
    assert not [o for o in outputs if o.get('name') == 'stderr'], outputs
    took = time.perf_counter() - began

    show = lambda text: page.evaluate(
        """(async text => { const notebook = jupyterapp.shell.currentWidget.content
        await notebook.scrollToItem(notebook.widgets.findIndex(w => w.model.sharedModel.getSource().includes(text)), 'start') })""",
        text,
    )
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    show('fast = decode(')
    trace = page.locator('.decodelab-trace:has(.dl-accepted)').first
    trace.wait_for(timeout=20_000)
    accepted = trace.locator('.dl-text .dl-accepted')
    given = trace.locator('.dl-text .dl-prompt')
    assert accepted.count() > 10
    assert accepted.first.is_visible()
    assert (
        len(
            {
                e.evaluate('e => getComputedStyle(e).backgroundColor')
                for e in (accepted.first, given.first)
            }
        )
        == 2
    )  # coloured, that is
    page.screenshot(path=ARTEFACTS / 'jupyterlab_trace.png')
    show('plot_speed(')
    figure = page.locator('.jp-OutputArea-output img').last
    figure.wait_for(timeout=20_000)
    assert figure.evaluate('e => e.complete && e.naturalWidth > 200')
    page.screenshot(path=ARTEFACTS / 'jupyterlab_figure.png')
    print(f'the tour took {took:.0f} s in JupyterLab')
