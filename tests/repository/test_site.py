"The site: pages of notebooks, links, blocks of code, and a small build."

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec

import docs_blocks
import nbformat
import pandas as pd
import pytest
import torch
import transformers
import tutorial_pictures
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from repo import ROOT, notebooks, numbered

from decodelab.core.html import DARK, LIGHT

sys.path.insert(0, str(ROOT / 'docs'))
import accessible
import dead_links
import pages
import sources as site_sources

PAGES = [ROOT / 'docs' / 'howto.md', *sorted((ROOT / 'docs' / 'tutorials').glob('*.md'))]
DEFECTS = ROOT / 'docs' / 'defects.md'


# What a page is made of


@pytest.fixture
def site():
    return pages.Site()


@pytest.fixture(scope='module')
def texts():
    "Name → text of every page of the site."
    return site_sources.every(pages.Site())


def test_a_cell_without_what_is_not_for_readers(site, tmp_path, monkeypatch):
    html = {
        'text/html': '<b>seen</b>',
        'application/vnd.jupyter.widget-view+json': dict(model_id='x'),
    }
    nb = new_notebook(
        cells=[
            new_code_cell('#| default_exp lab.write'),
            new_markdown_cell('# Title\n\n> What it is about.'),
            new_code_cell('#| hide\nsecret = 1'),
            new_code_cell('#| export\ndef shown(): ...'),
            new_code_cell('#| slow\nshown()', outputs=[new_output('display_data', data=html)]),
            new_markdown_cell('[a](../07_speculative/04_loop.ipynb#The-Loop) `[x](y)`'),
        ]
    )
    path = ROOT / 'nbs' / '15_lab' / '99_write.ipynb'
    monkeypatch.setattr(nbformat, 'read', lambda *args: nb)
    site.notebooks.append(path)
    site.pages[path] = 'book/15_lab/99_write.ipynb'
    monkeypatch.setattr(pages.Site, 'relink', lambda site, text, home: text)
    page = nbformat.reads(pages.notebook_page(site, path), 4)
    assert [c.source.splitlines()[0] for c in page.cells[:3]] == [
        '# Title',
        'def shown(): ...',
        'shown()',
    ]
    assert page.cells[1].metadata.tags == ['module']
    assert 'tags' not in page.cells[2].metadata
    assert set(page.cells[2].outputs[0].data) == {'text/html'}
    assert '<code>decodelab.lab.write</code>' in page.cells[0].source
    nb.cells = [c for c in nb.cells if 'default_exp' not in c.source]
    assert 'decodelab.' not in pages.notebook_page(site, path).partition('blob')[0]
    assert '#|' not in ''.join(c.source for c in page.cells)


def test_links_of_files_are_links_of_pages(site):
    home = ROOT / 'nbs' / '08_drafters' / '05_assistant.ipynb'
    assert site.link('../07_speculative/04_loop.ipynb', home) == '../07_speculative/04_loop.ipynb'
    assert site.link('../../experiments/README.md', home) == '../../experiments/index.md'
    assert site.link('../../LICENSE', home) == f'{site.repository}/blob/main/LICENSE'
    text = '[a](01_prompt_lookup.ipynb#A-B) [b](https://x.org/y.ipynb) [c](#here)\n```md\n[d](no.ipynb)\n```\n'
    assert site.relink(text, home) == text.replace('#A-B', '#a-b')
    with pytest.raises(FileNotFoundError, match='no.ipynb'):
        site.relink('[d](no.ipynb)', home)


def test_every_notebook_has_its_page_and_every_link_a_target(site, texts):
    for path in numbered():
        page = site.pages[path]
        assert page in texts
        home = f'book/{path.parent.name}'
        assert f'({os.path.relpath(page, home)})' in texts[f'{home}/index.md']
    assert {f'experiments/{p.name}' for p in notebooks('experiments')} <= set(texts)
    assert texts['index.md'].count(':::{grid-item-card}') == 6
    assert 'trace.svg' in texts['index.md']


def test_a_tutorial_that_is_a_notebook_is_rendered_in_its_position(site, texts):
    "One page for a topic: the notebook, at the address of the tutorial."
    for notebook, page in pages.RENDERED.items():
        assert site.pages[ROOT / notebook] == page
        assert f'book/{notebook.removeprefix("nbs/")}' not in texts
    title = nbformat.reads(texts['tutorials/write_your_own.ipynb'], 4).cells[0].source
    assert title.startswith('# Write your own\n')
    assert '(write_your_own.ipynb)' in texts['tutorials/index.md']
    assert '../../explorers.ipynb' in texts['book/14_explorers/index.md']


def test_every_public_name_is_in_the_reference(texts):
    from tests.repository.test_package import PARTS, offered

    entries = '\n'.join(text for name, text in texts.items() if name.startswith('api/'))
    for part in ['', *PARTS]:
        for name in offered(ROOT / 'decodelab' / part):
            assert re.search(rf'\.\. auto\w+:: decodelab(\.\w+)?\.{name}$', entries, flags=re.M), (
                name
            )


def test_the_glossary_page_has_every_word(site):
    words = pages.glossary()
    text = pages.glossary_page()
    assert len(words) > 40
    assert words['lookahead'][0].startswith('The number of tokens to draft')
    assert [word for word in words if f'\n{word}\n  ' not in text] == []


def test_the_page_of_the_guides_has_a_line_for_every_call(texts):
    "Its rows are those that the experiment has stored, which are the source's, in the same order."
    rows = pd.read_csv(ROOT / 'experiments/results/21_guides.pico.csv', keep_default_na=False)
    calls = pd.read_csv(ROOT / 'experiments/sources/guides.csv', keep_default_na=False)
    columns = ['guide', 'block', 'part', 'section']
    assert rows[columns].equals(calls[columns])
    assert set(rows.guide) == set(pages.GUIDES)
    page = texts['guides.md']
    lines = [line for line in page.splitlines() if re.match(r'\| \d', line)]
    assert len(lines) == len(rows)
    for command in rows.command:
        assert f'`{command}`' in page, command
    assert (rows.verdict != '').all()
    assert not rows.verdict.str.startswith('differs').any()


def test_a_cell_of_the_guides_holds_any_text():
    assert pages.inline('a|b\n`c`') == "`a\\|b⏎'c'`"
    assert pages.inline('   ') == ''
    assert pages.inline('x' * 100, 10) == f'`{"x" * 10}…`'


def test_dead_links_are_detected(tmp_path):
    (tmp_path / 'a.html').write_text(
        '<a href="b.html#here">x</a> <a href="b.html#gone">x</a> <a href="c.html">x</a>'
        '<a href="https://x.org">x</a> <img src="p.png"> <a id="top" href="#top">x</a>'
    )
    (tmp_path / 'b.html').write_text('<h1 id="here">b</h1>')
    checked, dead = dead_links.check(tmp_path)
    assert checked == 5
    assert [line.split()[-1] for line in dead] == ['b.html#gone', 'c.html', 'p.png']


def test_the_comments_of_pages_are_replaced(texts):
    "A file shows no placeholder, its page has what is made in the position of the comment."
    for name in ('index.md', 'howto.md', 'guides.md', 'board.md'):
        text = (ROOT / 'docs' / name).read_text()
        assert '%%' not in text
        assert text.count('<!-- ') == 1
        assert '<!-- ' not in texts[name]
    assert texts['howto.md'].index('**Generate**: [') < texts['howto.md'].index('\n## Generate')
    with pytest.raises(ValueError, match='needs it once'):
        pages.insert('a page without', pages.TASKS, '')


def test_the_claims_have_a_page_that_the_experiments_lead_to(texts):
    assert '](claims.md#00_tour)' in texts['experiments/index.md']
    assert '\nclaims.md\n' in texts['experiments/index.md']
    assert '\n### 00_tour\n' in texts['experiments/claims.md']
    assert '| claim | source | rule | measured | verdict |' in texts['experiments/claims.md']


# Pages whose code runs


@pytest.mark.parametrize('path', PAGES, ids=lambda p: p.stem)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(path):
    "And its pictures show what the blocks computed: `python tools/tutorial_pictures.py PAGE` draws them again."
    text = path.read_text()
    names = {}
    with torch.random.fork_rng(devices=[]):
        assert docs_blocks.run(text, names) == text
        drawn = tutorial_pictures.pictures(path.stem, names)
    stored = {file: (path.parent / file).read_text() for file in drawn}
    assert stored == drawn


def test_a_tutorial_begins_with_a_picture_and_shows_all_of_its_own():
    shown = []
    for path in PAGES:
        if path.stem in tutorial_pictures.PICTURES:
            text = path.read_text()
            picture = re.search(r'^!\[.+\]\(.+\)$', text, flags=re.M)
            assert picture.start() < text.index('```python'), path.stem
            shown += re.findall(r'\]\((\w+\.svg)\)', text)
    assert sorted(shown) == sorted(p.name for p in tutorial_pictures.FOLDER.glob('*.svg'))
    assert len(tutorial_pictures.PICTURES) == len(PAGES) - 2  # without the tasks and the index


def test_the_index_of_tasks_has_forty_entries_with_code_and_a_link():
    entries = re.split(r'^### ', (ROOT / 'docs' / 'howto.md').read_text(), flags=re.M)[1:]
    assert len(entries) >= 40
    for entry in entries:
        block = re.search(r'^```(?:python|py|sh)\n(.*?)^```', entry, flags=re.M | re.S)
        lines = [line for line in block.group(1).splitlines() if line]
        code = [line for line in lines if not line.startswith(('import ', 'from '))]
        assert 1 <= len(code) <= 4, entry
        assert re.search(r'\]\([^)]+\)', entry), entry


def entries_of_defects():
    return re.split(r'^### ', DEFECTS.read_text(), flags=re.M)[1:]


def test_every_defect_names_a_test_or_a_notebook_that_exists():
    for entry in entries_of_defects():
        named = re.findall(r'\[`(test_\w+)`\]\(\.\./(tests/[\w/]+\.py)\)', entry)
        shown = re.findall(r'\]\(\.\./(nbs/[\w/]+\.ipynb)\)', entry)
        assert named or shown, entry
        for name, file in named:
            assert re.search(rf'^def {name}\(', (ROOT / file).read_text(), flags=re.M), name
        assert all((ROOT / file).exists() for file in shown)


@pytest.mark.skipif(
    transformers.__version__ != '5.23.0', reason='the page is about transformers 5.23.0'
)
def test_every_reproduction_of_a_defect_reproduces_it():
    with torch.random.fork_rng(devices=[]):
        assert docs_blocks.run(DEFECTS.read_text()) == DEFECTS.read_text()


def test_figures_are_as_bright_as_on_every_page_that_is_ours():
    style = (ROOT / 'docs' / '_static' / 'site.css').read_text()
    assert set(re.findall(r'brightness\((.+)\)', style)) == {str(LIGHT), str(DARK)}


def test_a_picture_has_its_title_as_text():
    data = {'image/png': 'abc'}
    metadata = {'image/png': dict(alt='more tokens, fewer passes', width=10)}
    output = new_output('display_data', data=data, metadata=metadata)
    cell = pages.code_cell(new_code_cell('plot()', outputs=[output]))
    assert cell.metadata.mystnb.image.alt == 'more tokens, fewer passes'
    assert 'mystnb' not in pages.code_cell(new_code_cell('1')).metadata


# The build


def test_headings_and_signatures_are_what_assistive_programs_expect():
    corner = '<tr><th class="blank">&nbsp;</th><th>p</th></tr><th class="head"><p></p></th>'
    expected = '<tr><td class="blank">&nbsp;</td><th>p</th></tr><td class="head"><p></p></td>'
    assert accessible.accessible(corner) == expected
    signature = '<dt>f(<dl>\n<dd><em>x</em>,</dd>\n<dd><em>y</em></dd>\n</dl>)</dt>'
    html = accessible.accessible(signature)
    assert html.count('<span role="listitem">') == html.count('</span>') - 1 == 2
    assert '<dl>' not in html
    terms = '<dl class="glossary"><dt>p</dt><dd>a distribution</dd></dl>'
    assert accessible.accessible(terms) == terms


def test_the_workflow_runs_the_command_of_contributing():
    workflow = yaml.safe_load((ROOT / '.github' / 'workflows' / 'site.yml').read_text())
    steps = [step.get('run', '') for step in workflow['jobs']['build']['steps']]
    install, build = steps[2], steps[3].partition(' #')[0]
    assert steps[4].startswith('node docs/queries.js')  # eight queries, and where they should lead
    assert f'{install} && {build}' in (ROOT / 'CONTRIBUTING.md').read_text()
    assert 'nbdev_docs' in (ROOT / 'CONTRIBUTING.md').read_text()
    assert workflow['jobs']['deploy']['needs'] == 'build'


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ('sphinx', 'myst_nb', 'furo', 'sphinx_design')),
    reason="the site's tools are not installed: pip install -c constraints.txt '.[site]'",
)
def test_a_small_site_builds_without_a_warning_or_a_dead_link(tmp_path):
    import build

    some = [p for p in notebooks() if p.stem in ('02_files', '04_loop', '12_glossary')]
    some += [ROOT / path for path in pages.RENDERED if ROOT / path not in some]
    shown = [ROOT / 'experiments' / '18_scaling.ipynb']  # one card of the gallery
    site = pages.Site(notebooks=some, experiments=shown, parts=['speculative'])
    code, dead, checked = build.build(tmp_path, site, jobs=1)
    assert code == 0
    assert dead == []
    assert checked > 500
    page = (tmp_path / 'html' / 'book' / '07_speculative' / '04_loop.html').read_text()
    assert 'decodelab-trace' in page
    assert '#| ' not in page
    api = (tmp_path / 'html' / 'api' / 'speculative' / 'Speculative.html').read_text()
    for words in ('id="decodelab.Speculative"', 'meaning', 'Example', 'Used in', '[source]'):
        assert words in api, words
    for name in ('sitemap.xml', 'robots.txt', '_static/card.png', '_static/favicon.svg'):
        assert (tmp_path / 'html' / name).stat().st_size > 50, name
    for words in ('property="og:image"', 'name="description"', 'icon" href=', 'download href='):
        assert words in page, words
    notebook = re.search(r'download href="([^"]+)"', page).group(1)
    assert (tmp_path / 'html' / 'book' / '07_speculative' / notebook).resolve().is_file()
    assert addresses(tmp_path / 'html', 'speculative loop')[0] == 'book/07_speculative/04_loop.html'
    assert 'api/speculative/Speculative.html' in addresses(
        tmp_path / 'html', 'specluative'
    )  # a typo


def addresses(html, query):
    "The addresses that the search of a built site returns, best first; needs node."
    if shutil.which('node') is None:
        pytest.skip('no node on this machine')
    code = (
        'const Search = require(process.argv[1] + "/_static/search.js");'
        'const index = require("fs").readFileSync(process.argv[1] + "/_static/searchdata.js", "utf-8");'
        'new Function("Search", index)(Search);'
        'console.log(JSON.stringify(Search.search(process.argv[2]).map(hit => hit.url)))'
    )
    run = subprocess.run(['node', '-e', code, html, query], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
