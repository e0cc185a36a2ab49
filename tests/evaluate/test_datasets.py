"""Data sets: real files, broken ones, parquet and the Hub.

Tests of real files need a folder `shared` beside the checkout, and are skipped without it.
"""

import csv
import gzip
import importlib.util
import json
import random
import sys
import types

import pytest
from repo import ROOT

from decodelab.evaluate.datasets import ENDINGS, SOURCES, data_file, missing_data, read_dataset

DATA = ROOT.parent / 'shared' / 'data'
COUNTS = dict(
    humaneval=164,
    gsm8k=1319,
    mt_bench=80,
    spec_bench=480,
    commongen=993,
    truthfulqa=817,
    factor=236,
    strategyqa=229,
    wikitext2=None,
)


@pytest.mark.skipif(
    not (DATA / 'spec_bench').is_dir(), reason='no folder shared/data beside the checkout'
)
@pytest.mark.parametrize('name', COUNTS)
def test_real_files_are_located_by_name_and_read_whole(name):
    records = read_dataset(name, folder=DATA)
    assert len(records) == (COUNTS[name] or len(records)) > 50
    assert all(record[f] or record[f] is False for record in records for f in SOURCES[name].fields)
    few = read_dataset(name, folder=DATA, n=7)
    assert (
        few == read_dataset(data_file(name, folder=DATA), n=7, required=()) or SOURCES[name].aliases
    )
    positions = [records.index(r) for r in few]
    assert positions == sorted(set(positions))
    assert few != read_dataset(name, folder=DATA, n=7, seed=1)


ROWS = [dict(text=f'text {i}, "quoted"\nand a second line \u2028 é', n=str(i)) for i in range(6)]


def stored(folder, ending, rows=ROWS):
    "A file of these rows."
    kind, path = ending.removesuffix('.gz'), folder / f'set{ending}'
    if kind == '.jsonl':
        text = ''.join(json.dumps(r, ensure_ascii=False) + '\n' for r in rows)
    elif kind == '.json':
        text = json.dumps(rows, indent=1)
    else:
        with open(folder / 'plain', 'w', newline='', encoding='utf-8') as file:
            writer = csv.DictWriter(file, ['text', 'n'])
            writer.writeheader()
            writer.writerows(rows)
        text = (folder / 'plain').read_bytes().decode()
    data = text.encode()
    path.write_bytes(gzip.compress(data) if ending.endswith('.gz') else data)
    return path


KINDS = [e for e in ENDINGS if not e.startswith(('.txt', '.parquet'))]


@pytest.mark.parametrize('ending', KINDS)
def test_every_format_gives_the_same_records(tmp_path, ending):
    assert read_dataset(stored(tmp_path, ending), ['text', 'n']) == ROWS


@pytest.mark.parametrize('ending', KINDS)
def test_a_file_cut_anywhere_is_read_up_to_a_record_or_rejected(tmp_path, ending):
    path = stored(tmp_path, ending)
    whole = path.read_bytes()
    for at in random.Random(0).sample(range(len(whole)), 60):
        path.write_bytes(whole[:at])
        try:
            assert (
                read_dataset(path, ['text', 'n']) == ROWS[: len(read_dataset(path, ['text', 'n']))]
                or ending == '.csv'
            )  # CSV does not show that digits are missing at its end
        except ValueError as error:
            assert path.name in str(error)
            assert '\n' not in str(error)


@pytest.mark.parametrize('ending', KINDS)
@pytest.mark.parametrize('field', ['text', 'n'])
def test_an_empty_field_is_named_with_its_line(tmp_path, ending, field):
    rows = [dict(r) for r in ROWS]
    rows[4][field] = '  '
    path = stored(tmp_path, ending, rows)
    text = (
        gzip.decompress(path.read_bytes()) if ending.endswith('.gz') else path.read_bytes()
    ).decode()
    lines = text.split('\n')
    line = next(
        i
        for i, part in enumerate(lines, 1)
        if 'text 4' in part or '"text": "  "' in part or part.startswith('  ,4')
    ) - ('.json' in ending and '.jsonl' not in ending)
    with pytest.raises(ValueError, match=f"{path.name}, line {line}: field '{field}' is empty"):
        read_dataset(path, ['text', 'n'])
    assert len(read_dataset(path, [f for f in ('text', 'n') if f != field])) == 6


def test_the_environment_names_the_folder_and_nothing_is_fetched_unasked(tmp_path, monkeypatch):
    stored(tmp_path, '.jsonl').rename(tmp_path / 'c4.validation.jsonl')
    monkeypatch.delenv('DECODELAB_DATA', raising=False)
    monkeypatch.delenv('DECODELAB_FETCH', raising=False)
    library = types.ModuleType('datasets')
    library.load_dataset = lambda *a, **k: pytest.fail('fetched without being asked')
    monkeypatch.setitem(sys.modules, 'datasets', library)
    with pytest.raises(FileNotFoundError, match='DECODELAB_DATA .*DECODELAB_FETCH=1'):
        read_dataset('c4')
    monkeypatch.setenv('DECODELAB_DATA', str(tmp_path))
    assert read_dataset('c4') == ROWS
    assert read_dataset('c4', fetch=True) == ROWS
    assert missing_data('c4') == ''


def test_asked_for_the_library_is_called_with_the_arguments_of_the_source(monkeypatch):
    calls, library = [], types.ModuleType('datasets')
    library.load_dataset = lambda **given: (
        calls.append(given) or iter([dict(article='a', highlights='h')] * 3)
    )
    monkeypatch.setitem(sys.modules, 'datasets', library)
    monkeypatch.setenv('DECODELAB_FETCH', '1')
    monkeypatch.delenv('DECODELAB_DATA', raising=False)
    assert (
        read_dataset('cnn_dailymail', ['article', 'summary'], split='test', n=2, seed=None)
        == [dict(article='a', highlights='h', summary='h')] * 2
    )
    assert calls == [dict(path='abisee/cnn_dailymail', name='3.0.0', split='test', streaming=True)]
    with pytest.raises(ValueError, match='abisee/cnn_dailymail .test. has 3 records: give n=3'):
        read_dataset('cnn_dailymail', split='test', n=4, seed=None)
    monkeypatch.setitem(sys.modules, 'datasets', None)
    with pytest.raises(ImportError, match='need the library datasets: pip install datasets'):
        read_dataset('cnn_dailymail')


def test_parquet(tmp_path):
    import pandas as pd

    path = tmp_path / 'set.parquet'
    if importlib.util.find_spec('pyarrow') is None:
        path.write_bytes(b'PAR1')
        with pytest.raises(ValueError, match='install pyarrow'):
            read_dataset(path)
        pytest.skip('pyarrow is not installed')
    pd.DataFrame([dict(text='a', turns=['x', 'y']), dict(text=None, turns=['z'])]).to_parquet(path)
    assert read_dataset(path, ['turns'])[0] == dict(text='a', turns=['x', 'y'])
    with pytest.raises(ValueError, match="set.parquet, row 2: field 'text' is empty"):
        read_dataset(path, ['text'])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match='no whole parquet'):
        read_dataset(path)
