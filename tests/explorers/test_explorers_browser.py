"""The explorers in JupyterLab, driven by slider, list, button, click and key; then saved, and opened without a kernel.

What a page shows at the end is what the same explorer computes here, without a browser, from the same settings.
One notebook has all seven, so that models are loaded once. A picture of each is kept, light, dark and narrow.

Skipped if the machine has no browser.
"""

import re
import time

import nbformat
import pytest

from decodelab import (
    AssistantDrafter,
    DraftTable,
    Greedy,
    Sample,
    Speculative,
    Temperature,
    builtin_prompts,
    decode,
    explore,
    load,
)
from decodelab.explorers import (
    explore_beams,
    explore_distribution,
    explore_layers,
    explore_lookahead,
    explore_watermark,
    step_rounds,
)
from decodelab.explorers.explorer import RERUN, view_html
from decodelab.speculative import recorded
from tests.jupyter_browser import ARTEFACTS, open_notebook, run_all

bs4 = pytest.importorskip('bs4', reason='comes with nbconvert, of [lab]')
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
DIFFERENCE = 'first difference'


@pytest.fixture(scope='module')
def lab(browser, jupyterlab, notebooks):
    "The page of a notebook with all explorers, the address of a file beside it, and its folder."
    sources = [SETUP, *CELLS.values()]
    nb = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    nb.metadata.kernelspec = dict(name='python3', display_name='python3', language='python')
    nbformat.write(nb, notebooks / 'explorers.ipynb')
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    page = browser.new_page(viewport=dict(width=1280, height=1600))
    page.context.grant_permissions(['clipboard-read', 'clipboard-write'])
    open_notebook(page, jupyterlab('explorers.ipynb'))
    outputs = run_all(page)
    assert not [o for o in outputs if o['output_type'] == 'error'], outputs
    page.locator('.decodelab-panel .decodelab-explorer').nth(len(CELLS) - 1).wait_for()
    yield page, jupyterlab, notebooks
    page.close()


class Form:
    "One explorer of the page."

    def __init__(self, page, name: str):
        self.page = page
        self.name = name
        self.box = page.locator('.decodelab-panel').nth(list(CELLS).index(name))
        self.view = self.box.locator('.decodelab-explorer')

    def move(self, name: str, steps: int, key: str = 'ArrowRight'):
        "Move a slider by keys; it is called as a screen reader would call it."
        handle = self.box.get_by_role('slider', name=name, exact=True)
        handle.focus()
        for _ in range(steps):
            handle.press(key)

    def press(self, label: str):
        self.box.locator('button.jupyter-button', has_text=label).click()

    def choose(self, name: str, option: str):
        self.box.get_by_label(name, exact=True).select_option(option)

    def pick(self, key: str):
        "Pick an element by key."
        element = self.box.locator(f'[data-pick="{key}"]').first
        element.focus()
        element.press('Enter')

    def wait_for(self, explorer):
        "Wait until the page shows what the explorer computed here."
        expected = text_of(view_html(explorer))
        end = time.monotonic() + 60
        while (shown := text_of(self.view.evaluate('e => e.outerHTML'))) != expected:
            assert time.monotonic() < end, (shown, expected)
            self.page.wait_for_timeout(100)
        assert len(expected) > 60

    def wait_for_status(self, text: str):
        self.box.locator('.widget-html', has_text=text).last.wait_for(timeout=60_000)

    def keep(self, kind: str):
        "Keep a picture of the explorer; nothing sticks out sideways."
        assert self.box.evaluate('e => e.scrollWidth - e.clientWidth') < 2
        self.box.screenshot(path=ARTEFACTS / f'explorer_{self.name}_{kind}.png')


@pytest.fixture
def form(lab):
    return lambda name: Form(lab[0], name)


def text_of(html: str) -> str:
    "The text of a view; times vary from run to run."
    text = bs4.BeautifulSoup(html, 'html.parser').select_one('.decodelab-explorer').get_text(' ')
    text = re.sub(r'tokens/s\s+[\d.]+|[\d.,]+ m?s\b', '', text)
    return re.sub(r'\s+', ' ', text).strip()


@pytest.fixture(scope='module')
def models():
    return load('pico'), load('pico-draft')


def badges_while(page, form, act):
    "Every text that the first badge has while `act` runs."
    page.evaluate(
        """box => {
        window.badges = []
        window.watcher = new MutationObserver(() => {
          const text = box.querySelector('.dx-badge')?.textContent
          if (text && text !== window.badges.at(-1)) window.badges.push(text)
        })
        window.watcher.observe(box, {childList: true, subtree: true})
        }""",
        form.box.element_handle(),
    )
    act()
    page.evaluate('window.watcher.disconnect()')
    return page.evaluate('window.badges')


def test_a_decode(form, models):
    lm, draft = models
    form = form('decoding')
    explorer = explore(lm, draft, models=[])
    explorer.run()
    form.wait_for(explorer)
    form.move('draft length', 3)
    note = form.box.locator('.dx-note')
    note.get_by_text('press Run').wait_for()
    assert form.box.locator('.dx-stale').count() == 1
    form.press('Run')
    explorer.run(draft_length=7)
    form.wait_for(explorer)
    assert form.box.locator('.dx-stale').count() == 0
    assert note.inner_text() == ''
    assert 'same tokens: 48' in form.box.get_by_role('status').last.inner_text()  # it is announced

    token = form.view.locator('[data-link="5"]')
    token.first.hover()
    assert token.count() == 2
    assert all('dx-linked' in t.get_attribute('class') for t in token.all())
    assert 'target: ' in token.first.locator('span').first.get_attribute('title')
    form.pick('1:5')
    explorer.run(token='1:5')
    form.wait_for(explorer)

    form.press('Undo')
    form.press('Undo')
    explorer.undo()
    explorer.undo()
    form.wait_for(explorer)
    assert (
        form.box.get_by_role('slider', name='draft length').get_attribute('aria-valuenow') == '4.0'
    )


def clipboard(page) -> str:
    "The text of the clipboard, once there is one."
    end = time.monotonic() + 30
    while not (text := page.evaluate('navigator.clipboard.readText()')):
        assert time.monotonic() < end
        page.wait_for_timeout(100)
    return text


def test_what_is_copied(lab, form, models):
    page, form = lab[0], form('decoding')
    for _ in range(2):  # every press copies
        page.evaluate("navigator.clipboard.writeText('')")
        form.press('Copy code')
        code = clipboard(page)
    form.wait_for_status('copied')
    assert code == form.box.locator('.decodelab-code').inner_text()
    names = {}
    exec(code, names)
    assert names['trace'].tokens == decode(models[0], PROMPT, Greedy(), max_new_tokens=48).tokens
    form.choose('method', 'suffix')
    form.press('Run')
    page.get_by_text('SuffixDrafter').last.wait_for()
    page.evaluate("navigator.clipboard.writeText('')")
    form.press('Copy settings')
    assert clipboard(page) == "explore(lm, draft, method='suffix')"
    form.press('Undo')


def test_saved_pictures(lab, form):
    page = lab[0]
    for name, drawing in (('decoding', False), ('beams', True)):
        for kind in ('SVG', 'PNG'):
            with page.expect_download() as download:
                form(name).press(f'Save {kind}')
            path = ARTEFACTS / f'{name}.{kind.lower()}'
            download.value.save_as(path)
            data = path.read_bytes()
            if kind == 'PNG':
                assert data.startswith(b'\x89PNG')
                assert len(data) > 20_000
            else:
                assert (b'foreignObject' in data) != drawing
                assert data.startswith(b'<svg')


def test_a_decode_that_fails_or_is_stopped(lab, form):
    form = form('decoding')
    form.choose('verifier', 'token')
    form.press('Run')
    alert = form.view.locator('[role=alert]')
    alert.wait_for(timeout=30_000)
    assert 'weighs probabilities' in alert.inner_text()
    form.choose('verifier', 'default')
    form.move('max new tokens', 1, 'End')  # so that there is time to stop

    def stop_in_the_second_pane():
        form.press('Run')
        form.view.locator('.dx-panes > div').nth(1).locator('[data-link="20"]').wait_for()
        form.press('Stop')
        form.wait_for_status('stopped')

    badges = badges_while(lab[0], form, stop_in_the_second_pane)
    assert [b for b in badges if b.startswith('same so far')]
    assert not [b for b in badges if DIFFERENCE in b]
    assert form.view.locator('.dx-badge').first.inner_text().startswith('same so far')


def test_rounds(form, models):
    lm, draft = models
    form = form('rounds')
    sampled = recorded(Speculative(AssistantDrafter(draft), Sample([Temperature(0.8)])))
    explorer = step_rounds(decode(lm, PROMPT, sampled, max_new_tokens=32), lm)
    explorer.run()
    form.wait_for(explorer)
    form.pick('next')
    explorer.run(**explorer.pick('next'))
    form.wait_for(explorer)
    assert explorer.settings['round'] == 2


def test_beams(form, models):
    form = form('beams')
    explorer = explore_beams(models[0], max_new_tokens=4, models=[])
    form.move('num beams', 1)  # it is instant
    explorer.run(num_beams=explorer.settings['num_beams'] + 1)
    form.wait_for(explorer)
    for key in ('node 1', 'force'):
        form.pick(key)
        explorer.run(**explorer.pick(key))
        form.wait_for(explorer)


def test_layers(form, models):
    form = form('layers')
    explorer = explore_layers(models[0], PROMPT, models=[])
    explorer.run()
    form.pick('6')
    explorer.run(**explorer.pick('6'))
    form.wait_for(explorer)


def test_a_watermark(form, models):
    form = form('watermark')
    explorer = explore_watermark(models[0], length=40, models=[])
    form.choose('scheme', 'Gumbel')
    form.box.locator('.dx-note').get_by_text('press Run').wait_for()
    form.press('Run')
    explorer.run(scheme='Gumbel')
    form.wait_for(explorer)
    form.choose('attack', 'replace tokens')  # no text is sampled again
    explorer.run(attack='replace tokens')
    form.wait_for(explorer)


def test_a_lookahead_rule(form, models):
    lm, draft = models
    form = form('lookahead')
    table = DraftTable.build(lm, AssistantDrafter(draft), builtin_prompts()[:1], 24, k=6)
    explorer = explore_lookahead(table, lm)
    step = explorer.fields['threshold'].step
    form.move('threshold', 2)
    explorer.run(threshold=explorer.settings['threshold'] + 2 * step)
    form.wait_for(explorer)


def test_the_next_token(form, models):
    form = form('distribution')
    explorer = explore_distribution(models[0], PROMPT, models=[], top_k=12)
    explorer.run()
    key = f'force:{explorer.result.top[1]}'
    form.pick(key)
    explorer.run(**explorer.pick(key))
    form.wait_for(explorer)
    form.move('temperature', 1)
    explorer.run(temperature=explorer.settings['temperature'] + explorer.fields['temperature'].step)
    form.wait_for(explorer)


def test_every_control_has_a_name(lab):
    for role in ('slider', 'spinbutton', 'combobox', 'checkbox'):
        controls = lab[0].locator('.decodelab-panel').get_by_role(role)
        assert controls.count(), role
        for control in controls.all():
            name = control.evaluate(
                "e => e.getAttribute('aria-label') || e.labels?.[0]?.textContent"
            )
            assert name, control.evaluate('e => e.outerHTML')


def test_pictures_of_all(lab, form):
    page = lab[0]
    for theme in ('Dark', 'Light'):  # other notebooks of this JupyterLab are light
        page.evaluate(
            f"jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})"
        )
        page.wait_for_function(f"document.body.dataset.jpThemeName === 'JupyterLab {theme}'")
        page.locator('#jupyterlab-splash').wait_for(state='detached')
        for name in CELLS:
            form(name).keep(theme.lower())
    page.set_viewport_size(dict(width=900, height=1600))  # the file browser leaves half of it
    page.wait_for_timeout(300)
    for name in CELLS:
        form(name).keep('narrow')
    watermark = form('watermark').box
    right = watermark.bounding_box()['x'] + watermark.bounding_box()['width']
    for verdict in watermark.locator(
        'td', has_text=re.compile('^(watermarked|no evidence)$')
    ).all():
        assert verdict.bounding_box()['x'] + verdict.bounding_box()['width'] <= right
    page.set_viewport_size(dict(width=1280, height=1600))


@pytest.mark.parametrize('trusted', [True, False])
def test_saved_and_opened_without_its_kernel(lab, trusted):
    page, address, folder = lab
    name = 'explorers.ipynb'
    if trusted:
        page.evaluate("jupyterapp.commands.execute('docmanager:save')")
        page.wait_for_function('!jupyterapp.shell.currentWidget.context.model.dirty')
        page.evaluate('jupyterapp.shell.currentWidget.sessionContext.shutdown()')
    else:
        name = 'copy.ipynb'
        nb = nbformat.read(folder / 'explorers.ipynb', 4)
        nb.metadata.author = 'somebody'  # another file than the one that was signed
        nbformat.write(nb, folder / name)
    open_notebook(page, address(name))
    page.locator('.decodelab-still').first.wait_for()
    page.wait_for_timeout(1000)
    text = page.locator('.jp-Notebook').inner_text()
    assert 'PanelBox' not in text
    assert 'model not found' not in text
    assert text.count(RERUN) == len(CELLS)
    pictures = page.locator('.decodelab-explorer img')
    assert pictures.count() == 4  # tree, ranks, z, speed
    assert all(picture.evaluate('e => e.naturalWidth > 100') for picture in pictures.all())
    output = page.locator('.jp-OutputArea')
    assert output.locator('button, [data-pick], svg[role=tree]').count() == 0
    page.locator('.jp-Notebook').screenshot(
        path=ARTEFACTS / f'explorers_{"trusted" if trusted else "untrusted"}.png'
    )
