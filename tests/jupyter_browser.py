"JupyterLab and a browser without a window, for the tests that drive them."

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from repo import ROOT

NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
# where pictures of pages are kept
ARTEFACTS = Path(os.environ.get('DECODELAB_ARTEFACTS', ROOT / 'runs'))
HOMES = (
    'JUPYTER_CONFIG_DIR',
    'JUPYTER_RUNTIME_DIR',
    'JUPYTERLAB_SETTINGS_DIR',
    'JUPYTERLAB_WORKSPACES_DIR',
    'IPYTHONDIR',
)
CELLS = 'jupyterapp.shell.currentWidget.content.model.cells'


def settings(home: Path, theme: str):
    "No question about news over the page, a theme, and cells that are drawn wherever they are."
    texts = {
        'apputils-extension/notification': '{"fetchNews": "false", "checkForUpdates": false}',
        'apputils-extension/themes': f'{{"theme": "JupyterLab {theme}"}}',
        'notebook-extension/tracker': '{"windowingMode": "none"}',
    }
    for name, text in texts.items():
        path = home / 'JUPYTERLAB_SETTINGS_DIR' / '@jupyterlab' / f'{name}.jupyterlab-settings'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@contextmanager
def serve(folder: Path, home: Path, theme: str = 'Light', **env):
    "A JupyterLab that serves the folder; yields a function from a notebook's name to its address, with no other tab."
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    options = [
        '--no-browser',
        '--allow-root',
        '--ip=127.0.0.1',
        f'--port={port}',
        '--ServerApp.port_retries=0',
        '--IdentityProvider.token=tour',
        f'--ServerApp.root_dir={folder}',
        '--LabApp.expose_app_in_browser=True',
    ]
    env = os.environ | {name: str(home / name) for name in HOMES} | env
    env |= dict(OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1')
    settings(home, theme)
    command = [sys.executable, '-m', 'jupyterlab', *options]
    with open(home / 'lab.log', 'w') as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        for _ in range(240):
            try:
                urlopen(f'http://127.0.0.1:{port}/api?token=tour').close()
            except OSError:
                time.sleep(0.25)
            else:
                break
            assert server.poll() is None, (home / 'lab.log').read_text()
        yield lambda name: f'http://127.0.0.1:{port}/lab/tree/{name}?token=tour&reset'
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def open_browser():
    "A browser without a window."
    from playwright.sync_api import sync_playwright

    arguments = ['--no-sandbox'] if os.geteuid() == 0 else []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=arguments)
        yield browser
        browser.close()


def open_notebook(page, address: str):
    "Open a notebook and wait until its kernel is idle."
    page.goto(address)
    page.locator('.jp-Notebook .jp-CodeCell').first.wait_for(timeout=90_000)
    kernel = 'jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel'
    page.wait_for_function(f"{kernel}?.status === 'idle'", timeout=90_000)


def run_all(page):
    "Run all cells from the menu, to the end or to the first error; the outputs."
    page.get_by_role('menuitem', name='Run', exact=True).click()
    page.get_by_text('Run All Cells', exact=True).click()
    page.wait_for_function(
        f"""(() => {{
        const code = [...{CELLS}].filter(c => c.type === 'code' && c.sharedModel.getSource().trim())
        const failed = code.some(c => c.outputs.toJSON().some(o => o.output_type === 'error'))
        const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel
        return failed || code.every(c => c.executionCount !== null) && kernel.status === 'idle'
        }})()""",
        timeout=240_000,
    )
    return page.evaluate(
        f"[...{CELLS}].filter(c => c.type === 'code').flatMap(c => c.outputs.toJSON())"
    )
