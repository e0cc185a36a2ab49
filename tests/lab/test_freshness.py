"""Stored rows: their dependencies, whether those changed, whether their counts are reproduced.

Also whether a folder of rows from elsewhere is whole.
"""

import ast
import json
import os
import random
import re
import shutil
from functools import cache

import pandas as pd
import pytest
from repo import ROOT, notebooks

import decodelab
from decodelab import builtin_prompts, decode, load
from decodelab.cli import main as cli
from decodelab.core.files import short_hash
from decodelab.evaluate.bench import fingerprint, run_row
from decodelab.lab.fingerprint import PACKAGE, changed_parts, experiment_fingerprint
from decodelab.lab.freshness import STATES, current_fingerprint, stored_freshness
from decodelab.lab.requirements import missing_model, requirements
from decodelab.lab.validate import commit_files, folder_problems

RESULTS = ROOT / 'experiments' / 'results'
EXPERIMENTS = notebooks('experiments')


# What a result depends on


@pytest.fixture(scope='module')
def copied(tmp_path_factory):
    "A copy of the code of the package and of the notebooks of experiments, to be changed."
    root = tmp_path_factory.mktemp('checkout')
    ignored = shutil.ignore_patterns('weights', '__pycache__')
    shutil.copytree(PACKAGE, root / 'decodelab', ignore=ignored)
    os.symlink(PACKAGE / 'weights', root / 'decodelab' / 'weights')
    shutil.copytree(ROOT / 'experiments' / 'sources', root / 'experiments' / 'sources')
    for path in [*EXPERIMENTS, *(ROOT / 'experiments').glob('*.py')]:
        shutil.copy(path, root / 'experiments')
    return root


def fingerprint_in(root, name):
    "The fingerprint of an experiment at scale pico in a copy."
    path = root / 'experiments' / f'{name}.ipynb'
    return experiment_fingerprint(path, requirements(path)['pico'], root / 'decodelab')


@pytest.mark.parametrize('path', EXPERIMENTS, ids=lambda p: p.stem)
def test_every_experiment_has_a_fingerprint(path):
    needs = requirements(path)
    for scale, need in needs.items():
        result = experiment_fingerprint(path, need)
        assert set(result) == {'modules', 'notebook', 'weights', 'data'}
        assert {*need['models'], *need['data']} <= {*result['weights'], *result['data']}
        assert 'lab.experiment' in result['modules']
        assert len(result['modules']) > 15
        if scale == 'pico':
            assert all(result['weights'].values())  # they come with the package


def test_a_copy_elsewhere_has_the_same_fingerprint(copied):
    for path in EXPERIMENTS:
        assert (
            changed_parts(current_fingerprint(path.stem, 'pico'), fingerprint_in(copied, path.stem))
            == []
        )


@pytest.mark.parametrize(
    'module, old, new, changed',
    [
        ('models/session.py', 'class LM', 'class LM', []),
        ('models/session.py', '\nimport ', '\n# a comment\nimport ', []),
        ('models/session.py', '\nclass LM', '\nADDED = 1\n\n\nclass LM', ['module models.session']),
        ('watermark/green_list.py', '\nimport torch', '\nimport torch\nADDED = 1', []),
        ('data/prompts.jsonl', '{', ' {', ['data prompts.jsonl']),
    ],
)
def test_a_change_of_the_package_is_named(copied, module, old, new, changed):
    before = fingerprint_in(copied, '00_tour')
    path = copied / 'decodelab' / module
    text = path.read_text()
    assert old in text
    try:
        path.write_text(text.replace(old, new, 1))
        assert changed_parts(before, fingerprint_in(copied, '00_tour')) == changed
    finally:
        path.write_text(text)


def test_a_module_matters_where_it_is_imported(copied):
    "The green list is behind the watermarks, and not behind the tour."
    assert 'watermark.green_list' in fingerprint_in(copied, '08_watermark')['modules']
    assert 'watermark.green_list' not in fingerprint_in(copied, '00_tour')['modules']


@pytest.mark.parametrize(
    'heading, changed', [('Measure', True), ('Figure', False), ('Claim', True)]
)
def test_a_change_of_a_cell_counts_where_it_measures(copied, heading, changed):
    before = fingerprint_in(copied, '00_tour')
    path = copied / 'experiments' / '00_tour.ipynb'
    text = path.read_text()
    nb = json.loads(text)
    at = next(
        i for i, c in enumerate(nb['cells']) if ''.join(c['source']).startswith(f'## {heading}')
    )
    cell = next(c for c in nb['cells'][at:] if c['cell_type'] == 'code')
    sources = {'a comment': '\n# see above', 'a statement': '\nADDED = 1'}
    try:
        for what, line in sources.items():
            changed_cell = dict(cell, source=''.join(cell['source']) + line)
            cells = [changed_cell if c is cell else c for c in nb['cells']]
            path.write_text(json.dumps(nb | dict(cells=cells)))
            parts = changed_parts(before, fingerprint_in(copied, '00_tour'))
            expected = ['the cells that measure'] if changed and what == 'a statement' else []
            assert parts == expected
    finally:
        path.write_text(text)


# Fresh, stale, unknown


def test_every_stored_result_has_a_state():
    results = stored_freshness()
    assert len(results) == len(list(RESULTS.glob('*.json')))
    assert {r.state for r in results} <= {*STATES}
    for result in results:
        stored = '.'.join(filter(None, (result.name, result.scale, result.part, 'json')))
        has_one = 'fingerprint' in json.loads((RESULTS / stored).read_text())
        assert (result.state == 'unknown') != has_one, (
            f'{stored} is {result.state}: {result.reason}'
        )
        # an unknown one says where it is from
        assert result.commit
        assert result.date


# Counts that are stored still come out

COUNTS = (
    'new_tokens',
    'target_passes',
    'draft_passes',
    'drafted',
    'accepted',
    'rejections',
    'text_hash',
)
LOOKUP = {
    'greedy': 'Greedy()',
    'lookup': 'Speculative(PromptLookupDrafter(), lookahead=FixedLookahead(10))',
}
TABLES = {  # table → (prompts, strategies that are not in the provenance, new tokens)
    '00_tour.pico.csv': (builtin_prompts, None, None),
    '01_assisted_generation.pico.csv': (builtin_prompts, None, None),
    '02_prompt_lookup.pico.live.csv': (builtin_prompts, LOOKUP, 128),
    '16_drafters.pico.runs.csv': (lambda: builtin_prompts()[::2], None, None),
}
ROWS = 6  # of each table
PLAIN = (
    'Greedy',
    'Sample',
    'Speculative',
    'PromptLookupDrafter',
    'AssistantDrafter',
    'EarlyExitDrafter',
)
PLAIN += (
    'UniversalDrafter',
    'FixedLookahead',
    'BlockVerifier',
    'TokenVerifier',
    'ExactMatchVerifier',
)
PLAIN += ('Temperature', 'TopP')


@cache
def loaded(name):
    return load(name, device='cpu')


def node_value(node):
    "The object that a repr names, by the public names above; raises `KeyError` for any other."
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Call) and node.func.id in PLAIN:
        name = node.func.id
        args = [node_value(arg) for arg in node.args]
        if name in ('AssistantDrafter', 'UniversalDrafter'):
            args = [loaded(args[0]), *args[1:]]
        make = next(
            getattr(part, name)
            for part in (decodelab, decodelab.drafters, decodelab.speculative)
            if name in dir(part)
        )
        return make(*args, **{k.arg: node_value(k.value) for k in node.keywords})
    raise KeyError(ast.unparse(node))


def strategy_of(text):
    "The strategy with this repr; None where a part of it is not among the names above."
    try:
        return node_value(ast.parse(text, mode='eval').body)
    except (KeyError, ValueError, TypeError, SyntaxError):  # also of a class that has changed
        return None


def provenance_of(table):
    name = table.split('.')[0]
    return json.loads((RESULTS / f'{name}.pico.json').read_text())


def recounted(row, metadata, strategy, prompts, new_tokens):
    "The counts of a stored row, measured again."
    seed = metadata['first_seed'] + int(row['repeat'])
    trace = decode(loaded('pico'), prompts[int(row['prompt'])], strategy, new_tokens, seed)
    return run_row(trace)


def strategy_texts(frame, metadata, given):
    "Strategy's name in the table → its repr, of those that can be made again."
    texts = given or metadata['strategies']
    if 'base' in frame:  # 16_drafters: base and strategy make the name
        names = {f'{b} | {s}': (b, s) for b, s in set(zip(frame.base, frame.strategy))}
        return {names[n]: text for n, text in texts.items() if n in names}
    return {name: text for name, text in texts.items() if name in set(frame.strategy)}


def differing(table, rows=ROWS, change=None):
    "`(rows looked at, those with another count)` of a seeded sample of a table."
    make_prompts, given, new_tokens = TABLES[table]
    metadata, frame = provenance_of(table), pd.read_csv(RESULTS / table)
    texts = strategy_texts(frame, metadata, given)
    strategies = {name: strategy_of(text) for name, text in texts.items()}
    names = list(zip(frame.base, frame.strategy)) if 'base' in frame else list(frame.strategy)
    known = [i for i, name in enumerate(names) if strategies.get(name) is not None]
    wrong, prompts = [], make_prompts()
    sample = random.Random(0).sample(known, min(rows, len(known)))
    for i in sample:
        row = frame.iloc[i].to_dict() | (change or {})
        new = recounted(
            row, metadata, strategies[names[i]], prompts, new_tokens or metadata['max_new_tokens']
        )
        for key in COUNTS:
            if key in row and row[key] != new[key]:
                wrong.append(f'row {i + 2} ({names[i]}): {key} is {new[key]}, stored is {row[key]}')
    return len(sample), wrong


def prompts_digest(table, metadata):
    "The digest of the prompts that this test decodes for a table."
    ids = [loaded('pico').encode(prompt) for prompt in TABLES[table][0]()]
    return short_hash(json.dumps(ids[: metadata['prompts']['count']]))


def skip_reason(table):
    "Why the counts of a table need not come out here: other weights, data or prompts; empty if they must."
    name = table.split('.')[0]
    needs = requirements(ROOT / 'experiments' / f'{name}.ipynb')
    missing = [str(m) for m in map(missing_model, needs['pico']['models']) if m]
    if missing:
        return missing[0]
    metadata = provenance_of(table)
    stored, now = metadata.get('fingerprint'), current_fingerprint(name, 'pico')
    if metadata['weights'] != fingerprint(loaded('pico').model):
        return 'pico has other weights than the rows were measured with: they are stale'
    if stored and changed_parts(stored | dict(modules=now['modules']), now):
        return f'stale, and not by code alone: {changed_parts(stored, now)}'
    same = TABLES[table][1] or prompts_digest(table, metadata) == metadata['prompts']['sha256']
    return '' if same or stored else 'the prompts are others: the rows are stale'


@pytest.mark.parametrize('table', TABLES)
def test_stored_counts_come_out(table):
    if reason := skip_reason(table):
        pytest.skip(reason)
    metadata = provenance_of(table)
    if TABLES[table][1] is None:  # the prompts of the provenance are those of another part
        assert prompts_digest(table, metadata) == metadata['prompts']['sha256']
    looked, wrong = differing(table)
    assert looked == ROWS
    assert wrong == []


def test_a_count_that_does_not_come_out_is_seen():
    if reason := skip_reason('00_tour.pico.csv'):
        pytest.skip(reason)
    looked, wrong = differing('00_tour.pico.csv', 1, dict(accepted=-1))
    assert looked == 1
    assert len(wrong) == 1
    assert 'accepted is' in wrong[0]


# A folder from elsewhere


def edit_json(folder, **changes):
    "The provenance with these values; None takes a key away."
    path = folder / 'results' / '00_tour.pico.json'
    metadata = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in metadata.items() if v is not None}))


def edit_rows(folder, change):
    "The main table after a change of its DataFrame."
    path = folder / 'results' / '00_tour.pico.csv'
    change(pd.read_csv(path)).to_csv(path, index=False)


def edit_fingerprint(folder, key, value):
    "The fingerprint with another value of one of its parts."
    stored = json.loads((folder / 'results' / '00_tour.pico.json').read_text())['fingerprint']
    edit_json(folder, fingerprint=stored | {key: value})


def first_known(frame):
    "The index of the first row of a strategy that the provenance describes."
    known = json.loads((RESULTS / '00_tour.pico.json').read_text())['strategies']
    return frame.index[frame.strategy.isin(known) & frame.accepted.notna()][0]


def add_one(frame):
    "The rows with another count in one of them."
    return frame.assign(accepted=frame.accepted + (frame.index == first_known(frame)))


def other_text(frame):
    "The rows with another text in one of them."
    return frame.assign(text_hash=frame.text_hash.where(frame.index != first_known(frame), 'x'))


def put(folder, name, content=b''):
    "A file in the folder."
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def given(tmp_path):
    "Our rows of the tour, as if they had been measured elsewhere with the code of today."
    (tmp_path / 'results').mkdir()
    for path in RESULTS.glob('00_tour.pico.*'):
        shutil.copy(path, tmp_path / 'results')
    edit_json(tmp_path, commit='0' * 40, fingerprint=current_fingerprint('00_tour', 'pico'))
    return tmp_path


def test_whole_results_pass(given, capsys):
    assert folder_problems(given) == []
    assert cli.main(['report', '--validate', str(given)]) == 0
    assert 'nothing is wrong' in capsys.readouterr().out


MAIN = 'results/00_tour.pico.csv'
OTHER = dict.fromkeys(['core.driver'], 'other')
DEFECTS = {
    'dirty': (lambda f: edit_json(f, commit='1' * 40 + '-dirty'), 'the commit is dirty'),
    'short commit': (lambda f: edit_json(f, commit='a7dc081'), 'not 40 hexadecimal digits'),
    'no commit': (lambda f: edit_json(f, commit=None), 'there is no commit in'),
    'no device': (lambda f: edit_json(f, device=None), 'there is no device'),
    'no machine': (lambda f: edit_json(f, machine=''), 'there is no machine'),
    'no version': (lambda f: edit_json(f, transformers=None), 'there is no transformers'),
    'no fingerprint': (lambda f: edit_json(f, fingerprint=None), 'there is no fingerprint'),
    'another scale': (lambda f: edit_json(f, scale='gpu'), "scale is 'gpu'"),
    'short form': (lambda f: edit_json(f, quick=True), 'short form'),
    'another module': (
        lambda f: edit_fingerprint(f, 'modules', OTHER),
        'fingerprint is not .*core.driver',
    ),
    'other weights': (
        lambda f: edit_fingerprint(f, 'weights', dict(pico='x')),
        'fingerprint .*weights',
    ),
    'other cells': (lambda f: edit_fingerprint(f, 'notebook', 'x'), 'cells that measure'),
    'a row less': (lambda f: edit_rows(f, lambda d: d.drop(index=5)), 'runs missing: 1,'),
    'a row twice': (
        lambda f: edit_rows(f, lambda d: pd.concat([d, d[3:4]])),
        r'rows 5 and \d+ have the same',
    ),
    'a column less': (
        lambda f: edit_rows(f, lambda d: d.drop(columns='drafted')),
        "column 'drafted'",
    ),
    'a column more': (lambda f: edit_rows(f, lambda d: d.assign(x=1)), "no column 'x'"),
    'an error': (lambda f: edit_rows(f, lambda d: d.assign(error='no memory')), 'report an error'),
    'another count': (
        lambda f: edit_rows(f, add_one),
        r'accepted differs, first in strategy .*: \d+ here, \d+ in our rows \(rows: 1\)',
    ),
    'another text': (
        lambda f: edit_rows(f, other_text),
        'text_hash differs, first in strategy .*rows: 1',
    ),
    'cut': (lambda f: put(f, MAIN, (f / MAIN).read_bytes()[:-1]), 'no end'),
    'torn': (lambda f: put(f, MAIN, b'a,b\n1\n'), 'row 2 has 1 cells'),
    'no JSON': (lambda f: put(f, 'results/00_tour.pico.json', b'{'), 'no JSON object'),
    'no object': (lambda f: put(f, 'results/00_tour.pico.json', b'[1]'), 'no JSON object'),
    'deep JSON': (lambda f: put(f, 'results/00_tour.pico.json', b'[' * 99_999), 'no JSON object'),
    'no text': (lambda f: put(f, MAIN, b'a\n\xff\n'), 'no table of text'),
    'no rows': (lambda f: edit_rows(f, lambda d: d[:0]), 'there are no rows'),
    'no such fingerprint': (
        lambda f: edit_json(f, fingerprint='x'),
        'the fingerprint cannot be read',
    ),
    'a prompt less': (lambda f: edit_rows(f, lambda d: d[d.prompt > 0]), 'no row has prompt 0'),
    'other strategies': (lambda f: edit_json(f, commit=7, strategies=[1]), "commit '7' is not 40"),
    'another file': (lambda f: put(f, 'notes.txt'), 'no run writes such a file'),
    'pickle': (lambda f: put(f, 'results/rows.pkl'), 'this is a pickle'),
    'hidden pickle': (
        lambda f: put(f, 'results/00_tour.gpu.json', b'\x80\x05K\x01.'),
        'this is a pickle',
    ),
    'quick': (lambda f: put(f, 'results/quick/00_tour.pico.csv'), 'short form'),
    'link': (lambda f: os.symlink(ROOT / 'README.md', f / 'README.md'), 'this is a link'),
    'another table': (lambda f: put(f, 'results/00_tour.pico.mine.csv', b'a\n'), "no table 'mine'"),
    'another experiment': (lambda f: put(f, 'results/99_x.pico.csv', b'a\n'), 'no experiment 99_x'),
    'a table less': (
        lambda f: (f / 'results/00_tour.pico.passes.csv').unlink(),
        'table is missing',
    ),
    'no provenance': (lambda f: (f / 'results/00_tour.pico.json').unlink(), 'no provenance beside'),
}


@pytest.mark.parametrize('name', DEFECTS)
def test_each_defect_has_its_sentence(given, name, capsys):
    spoil, sentence = DEFECTS[name]
    spoil(given)
    lines = folder_problems(given)
    assert lines, lines
    assert any(re.search(sentence, line) for line in lines), lines
    several = ('no provenance',)  # each table reports it
    assert len(lines) == 1 or name in several, lines
    assert cli.main(['report', '--validate', str(given)]) == 1
    assert re.search(sentence, capsys.readouterr().out)


def test_a_folder_without_results_is_rejected(tmp_path, capsys):
    assert cli.main(['report', '--validate', str(tmp_path)]) == 2
    assert 'there are no results' in capsys.readouterr().err


def test_the_fingerprint_is_that_of_the_commit(given):
    "The files of a commit are unpacked where git has them; what differs from them is named."
    from decodelab.evaluate.jobs import git_commit

    commit = (git_commit() or '').removesuffix('-dirty')
    with commit_files(commit) as root:
        if root is None:
            pytest.skip('this is no git checkout')
        there = current_fingerprint('00_tour', 'pico', root / 'experiments', root / 'decodelab')
    edit_json(given, commit=commit, fingerprint=there)
    assert folder_problems(given) == []
    edit_fingerprint(given, 'modules', there['modules'] | OTHER)
    (line,) = folder_problems(given)
    assert f'not that of commit {commit[:7]}: module core.driver' in line
