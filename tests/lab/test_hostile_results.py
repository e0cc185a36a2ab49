"Files of results with any content: the commands that read them end with sentences, and hide nothing else."

import json
import shutil

import pytest
from repo import ROOT

from decodelab.cli.main import main
from decodelab.lab.validate import folder_problems

STEM = '02_prompt_lookup.pico'
DEEP = '[' * 100_000
TABLES = {
    'other columns': 'strategy,prompt\nx,1\n',
    'one column': 'prompt\n1\n',
    'no rows': 'strategy,prompt,repeat\n',
    'words for counts': 'strategy,prompt,repeat,new_tokens,target_passes\ngreedy,0,0,many,few\n',
    'a name twice': 'strategy,strategy,prompt\nx,y,1\n',
    'unnamed': ',,\n1,2,3\n',
    'empty': '',
    'huge numbers': 'strategy,prompt,repeat,new_tokens\ngreedy,1e999,0,' + '9' * 5000 + '\n',
}
JSONS = (
    'null',
    '[]',
    '3',
    '"x"',
    '{',
    DEEP,
    '{"fingerprint": [1]}',
    '{"commit": {"a": 1}, "date": 3}',
)
JSONS += ('{"parts": 3}', '{"parts": [[1]]}', '{"strategies": 3, "fingerprint": {"code": 1}}')


@pytest.fixture
def run(tmp_path):
    "A folder with the stored rows of one experiment."
    results = tmp_path / 'results'
    results.mkdir()
    for path in (ROOT / 'experiments' / 'results').glob(f'{STEM}.*'):
        shutil.copy(path, results)
    return tmp_path


@pytest.mark.parametrize('table', TABLES)
def test_a_bad_table_hides_no_other_problem(run, table):
    (run / 'results' / f'{STEM}.csv').write_text(TABLES[table])
    (run / 'results' / f'{STEM}.json').write_text('{}')  # no commit, whose files would be read
    (run / 'results' / f'{STEM}.verdicts.csv').unlink()
    (run / 'unknown.exe').write_text('x')
    lines = folder_problems(run)
    assert any(line.startswith(f'results/{STEM}.csv: ') for line in lines)
    assert f'results/{STEM}.verdicts.csv: this table is missing' in lines
    assert 'unknown.exe: no run writes such a file: leave it out' in lines


def test_a_table_with_the_columns_of_another(run):
    "A table whose stored one has neither strategies nor prompts."
    (run / 'results' / f'{STEM}.beside.csv').write_text(TABLES['other columns'])
    assert any(line.startswith(f'results/{STEM}.beside.csv: ') for line in folder_problems(run))


@pytest.mark.parametrize('text', JSONS, ids=range(len(JSONS)))
@pytest.mark.parametrize('file', [f'results/{STEM}.json', f'{STEM}.run.json'])
def test_any_json_is_validated_and_reported(run, capsys, file, text):
    (run / file).write_text(text)
    (run / 'results' / f'{STEM}.verdicts.csv').unlink()
    assert main(['report', str(run)]) == 0
    if file.startswith('results'):
        assert main(['report', str(run), '--validate']) == 1
    printed = capsys.readouterr()
    assert 'Traceback' not in printed.err


@pytest.mark.parametrize('text', [*TABLES.values(), '\x00\x01', DEEP], ids=range(len(TABLES) + 2))
def test_a_report_of_any_verdicts_is_a_page_or_a_sentence(run, capsys, text):
    (run / 'results' / f'{STEM}.verdicts.csv').write_text(text)
    assert main(['report', str(run)]) == 2
    assert '.verdicts.csv ' in capsys.readouterr().err


@pytest.mark.parametrize(
    'text', ['null', '[]', '{', DEEP, '{"cells": 3}', '{"cells": [1], "nbformat": 4}']
)
def test_a_report_of_any_notebook_is_a_page_or_a_sentence(run, capsys, text):
    (run / f'{STEM}.ipynb').write_text(text)
    assert main(['report', str(run)]) == 2
    assert 'is no notebook' in capsys.readouterr().err


ROWS = ({}, dict(repeat=0), dict(repeat=0, prompt=0, strategy='x', order=0), [1], None, 3)


@pytest.mark.parametrize('row', [*map(json.dumps, ROWS), DEEP], ids=range(len(ROWS) + 1))
def test_explain_of_rows_of_another_shape(tmp_path, capsys, row):
    (tmp_path / 'rows.jsonl').write_text(row + '\n')
    (tmp_path / 'provenance.json').write_text('{}')
    assert main(['explain', str(tmp_path)]) == 2
    words = capsys.readouterr().err
    assert 'bench did not write' in words or 'is damaged' in words


@pytest.mark.parametrize('about', ['null', '[]', '{', DEEP])
def test_explain_of_a_damaged_provenance(tmp_path, capsys, about):
    row = dict(repeat=0, prompt=0, strategy='x', order=0)
    (tmp_path / 'rows.jsonl').write_text(json.dumps(row) + '\n')
    (tmp_path / 'provenance.json').write_text(about)
    assert main(['explain', str(tmp_path)]) == 2
    assert 'provenance.json: this is' in capsys.readouterr().err
