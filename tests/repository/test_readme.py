"The README is the index, its links resolve, and CI runs its commands."

import ast
import re
import subprocess

import nbformat
import pandas as pd
import readme
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from repo import ROOT, commands, notebooks
from result_tables import count_line, without_states


def test_readme_is_the_index():
    assert (ROOT / 'README.md').read_text() == readme.render()


def targets(text):
    "The targets of the links of a page."
    return set(re.findall(r'\]\(([^)]+)\)', text))


def test_the_claims_of_all_experiments_are_listed():
    """The page of the claims is made from the stored verdicts, and its links lead somewhere.

    Its labels are of the day it was made: a change of a module makes rows stale, and fails no test.
    """
    text = (ROOT / 'experiments' / 'CLAIMS.md').read_text()
    assert without_states(text) == without_states(readme.claims())
    headings = {line.lstrip('# ') for line in text.splitlines() if line.startswith('### ')}
    assert headings == {p.stem for p in notebooks('experiments')}
    assert {t for t in targets(text) if t.startswith('#')} == {'#every-claim'}
    assert '## Every claim' in text
    assert all((ROOT / 'experiments' / t).exists() for t in targets(text) if not t.startswith('#'))
    assert all(p.name in targets(text) for p in notebooks('experiments'))


def test_the_front_page_of_the_experiments():
    "It counts the claims, leads to those of each source and to each script, and is short."
    text = (ROOT / 'experiments' / 'README.md').read_text()
    assert without_states(text) == without_states(readme.experiments_readme())
    assert re.search(r'^# Experiments\n\n\*\*\d+ claims measured: \d+ agree, ', text, flags=re.M)
    sources = {f'CLAIMS.md#{p.stem}' for p in notebooks('experiments')}
    scripts = {p.name for p in (ROOT / 'experiments').glob('*.py')}
    assert sources | scripts <= targets(text)
    files = {target.partition('#')[0] for target in targets(text)}
    assert all((ROOT / 'experiments' / file).exists() for file in files)
    assert len(text.split()) < 1500


def test_the_line_of_all_claims_counts_the_verdicts():
    "Rows of the tables: the conclusions of `agrees` over the scales, counted by hand."
    paths = sorted((ROOT / 'experiments' / 'results').glob('*.verdicts.csv'))
    rows = pd.concat([pd.read_csv(p).assign(name=p.name.split('.')[0]) for p in paths])
    verdicts = rows.groupby(['name', 'claim']).agrees
    agree = verdicts.agg(lambda v: v.dropna().astype(bool).all() and v.notna().any()).sum()
    fail = verdicts.agg(lambda v: not v.dropna().astype(bool).any() and v.notna().any()).sum()
    still_open = verdicts.agg(lambda v: v.isna().all()).sum()
    line = count_line(ROOT / 'experiments')
    assert f'**{verdicts.ngroups} claims measured: {agree} agree, {fail} do not' in line
    assert line.endswith(f', {still_open} are open.**')


def test_rendering(tmp_path):
    html = new_output(
        'execute_result', data={'text/plain': 'plain text', 'text/html': '<b>styled</b>'}
    )
    nb = new_notebook(
        cells=[
            new_code_cell('#| hide\nsecret = 1'),
            new_markdown_cell(
                '[a](01_core/04_trace.ipynb) [b](../LICENSE) [c](https://x.org/y) [d](#e)'
            ),
            new_code_cell('#| slow\nshown = 1', outputs=[html]),
        ]
    )
    nbformat.write(nb, tmp_path / 'index.ipynb')
    text = readme.render(tmp_path / 'index.ipynb')
    assert '[a](nbs/01_core/04_trace.ipynb) [b](LICENSE) [c](https://x.org/y) [d](#e)' in text
    assert '```python\nshown = 1\n```' in text
    assert 'plain text' in text
    assert 'secret' not in text
    assert '#|' not in text
    assert 'styled' not in text


def test_links_lead_somewhere():
    targets = re.findall(r'\]\((?!https?:|#)([^)]+)\)', (ROOT / 'README.md').read_text())
    assert targets
    assert [t for t in targets if not (ROOT / t.partition('#')[0]).exists()] == []


def test_every_part_has_its_row_and_the_page_is_short():
    text = (ROOT / 'README.md').read_text()
    rows = '\n'.join(line for line in text.splitlines() if line.startswith('| ['))
    parts = [p.name for p in sorted((ROOT / 'nbs').glob('[0-9]*')) if p.is_dir()]
    assert [p for p in parts if f'nbs/{p}/' not in rows] == []
    assert len(text.splitlines()) <= 150


def test_the_page_begins_with_the_way_to_install():
    blocks = re.findall(r'^```sh\n(.*?)^```', (ROOT / 'README.md').read_text(), flags=re.M | re.S)
    clone, install = blocks[0].splitlines()
    assert clone == f'git clone {settings_url()} && cd decodelab'
    assert install == commands()[0]


def settings_url():
    "The address of the repository."
    return re.search(r'^Repository = "(.+)"$', (ROOT / 'pyproject.toml').read_text(), flags=re.M)[1]


def test_the_page_counts_the_claims_and_names_sources():
    text = (ROOT / 'README.md').read_text()
    assert count_line() in text
    line = next(line for line in text.splitlines() if count_line() in line)
    assert line.count('](https://arxiv.org/abs/') == 6
    assert '<!-- ' not in text.partition('\n')[2]


def test_the_picture_is_of_the_trace():
    assert readme.PICTURE.read_text() == readme.picture(readme.pictured())


def test_every_notebook_of_an_idea_is_on_the_page_of_papers():
    text = (ROOT / 'docs' / 'papers.md').read_text()
    ideas = [
        p for p in notebooks() if p.parent.name[3:] in ('strategies', 'speculative', 'drafters')
    ]
    assert len(ideas) > 30
    assert [p.stem for p in ideas if f'{p.parent.name}/{p.name}' not in text] == []


def test_the_index_is_saved_as_it_ran():
    "Each code cell whose last line is a value has its output: the README shows results, not promises."
    cells = [
        c for c in nbformat.read(ROOT / 'nbs' / 'index.ipynb', 4).cells if c.cell_type == 'code'
    ]
    values = [c for c in cells if isinstance(ast.parse(c.source).body[-1], ast.Expr)]
    assert values
    assert [c.source for c in values if not c.outputs] == []


def test_ci_runs_what_the_readme_shows():
    use, develop = commands()
    assert 'decodelab compare' in use
    assert "'.[dev]'" in develop
    assert all('-c constraints.txt' in c for c in (use, develop))
    assert develop in (ROOT / '.ci' / 'run').read_text().splitlines()
    steps = [
        s.get('run')
        for job in yaml.safe_load((ROOT / '.github/workflows/ci.yml').read_text())['jobs'].values()
        for s in job['steps']
    ]
    assert use in steps
    assert develop in steps


def test_every_stage_can_fail_the_run(tmp_path):
    "`tests/run.sh` with each of its commands replaced by one that fails: always exit 1, always all stages."
    script = (ROOT / 'tests' / 'run.sh').read_text()
    stages = [l for l in script.splitlines() if '|| failed=' in l]
    assert len(stages) == 6
    assert 'pytest' in stages[-1]
    (tmp_path / 'tests').mkdir()
    for bad in [None, *stages]:
        text = script
        for l in stages:
            text = text.replace(l, ('false' if l == bad else 'true') + l[l.index(' ||') :])
        (tmp_path / 'tests' / 'run.sh').write_text(text)
        assert subprocess.run(
            ['sh', tmp_path / 'tests' / 'run.sh'], capture_output=True
        ).returncode == (bad is not None)
