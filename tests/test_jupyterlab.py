"The tour in JupyterLab, in a real browser: opened from its address, run from the menu, and looked at."

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import nbformat
import pytest

from repo import ROOT

BROWSER = next(
    filter(
        None,
        map(
            shutil.which, ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
        ),
    ),
    None,
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason='no Chromium on this machine')
ARTEFACTS = Path(
    os.environ.get('DECODELAB_ARTEFACTS', ROOT / 'runs')
)  # where the picture of the page is kept
TOUR = '00_tour.ipynb'


@pytest.fixture
def tour(tmp_path):
    "A folder with the tour, all outputs taken away, so that whatever is seen was made here."
    nb = nbformat.read(ROOT / 'experiments' / TOUR, 4)
    for cell in nb.cells:
        if cell.cell_type == 'code':
            cell.outputs, cell.execution_count = [], None
    nbformat.write(nb, tmp_path / TOUR)
    return tmp_path


@pytest.fixture
def lab(tour, tmp_path_factory):
    "The address of a JupyterLab that serves the folder."
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    home = tmp_path_factory.mktemp('home')
    options = [
        '--no-browser',
        '--allow-root',
        '--ip=127.0.0.1',
        f'--port={port}',
        '--ServerApp.port_retries=0',
        '--IdentityProvider.token=tour',
        f'--ServerApp.root_dir={tour}',
        '--LabApp.expose_app_in_browser=True',
    ]
    env = os.environ | {
        name: str(home / name)
        for name in (
            'JUPYTER_CONFIG_DIR',
            'JUPYTER_RUNTIME_DIR',
            'JUPYTERLAB_SETTINGS_DIR',
            'JUPYTERLAB_WORKSPACES_DIR',
            'IPYTHONDIR',
        )
    }
    env |= dict(
        OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', DECODELAB_SCALE='pico', DECODELAB_QUICK='1'
    )
    quiet = (
        home
        / 'JUPYTERLAB_SETTINGS_DIR'
        / '@jupyterlab'
        / 'apputils-extension'
        / 'notification.jupyterlab-settings'
    )  # no question about news over the page
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    with open(home / 'lab.log', 'w') as log:
        server = subprocess.Popen(
            [sys.executable, '-m', 'jupyterlab', *options], env=env, stdout=log, stderr=log
        )
    try:
        for _ in range(240):
            try:
                urlopen(f'http://127.0.0.1:{port}/api?token=tour').close()
            except OSError:
                time.sleep(0.25)
            else:
                break
            assert server.poll() is None, (home / 'lab.log').read_text()
        yield f'http://127.0.0.1:{port}/lab/tree/{TOUR}?token=tour'
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def page():
    "A page of a browser without a window."
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=BROWSER, args=['--no-sandbox'] if os.geteuid() == 0 else []
        )
        yield browser.new_page(viewport=dict(width=1280, height=2400))
        browser.close()


def test_the_tour_runs_and_shows_its_trace_and_its_figures(lab, tour, page):
    page.goto(lab)
    page.locator('.jp-Notebook .jp-CodeCell').first.wait_for(timeout=90_000)
    page.wait_for_function(
        "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=90_000,
    )
    cells = 'jupyterapp.shell.currentWidget.content.model.cells'
    assert page.evaluate(
        f"[...{cells}].filter(c => c.type === 'code').every(c => c.outputs.length === 0 && "
        "c.executionCount === null)"
    )
    assert not page.locator('.decodelab-trace').count()  # nothing is there before it runs
    began = time.perf_counter()
    page.get_by_role('menuitem', name='Run', exact=True).click()
    page.get_by_text('Run All Cells', exact=True).click()
    page.wait_for_function(
        f"""(() => {{ const code = [...{cells}].filter(c => c.type === 'code' && c.sharedModel.getSource().trim());
        const failed = code.some(c => c.outputs.toJSON().some(o => o.output_type === 'error'));
        return failed || code.every(c => c.executionCount !== null) && jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle' }})()""",
        timeout=240_000,
    )
    outputs = page.evaluate(
        f"[...{cells}].filter(c => c.type === 'code').flatMap(c => c.outputs.toJSON())"
    )
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
    assert accepted.count() > 10 and accepted.first.is_visible()
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
