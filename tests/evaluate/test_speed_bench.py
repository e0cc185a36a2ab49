"SPEED-Bench in its two layouts: files of NVIDIA's script, and the Hub's cache; placeholders; damaged records."

import importlib.util
import json

import pytest

from decodelab.evaluate import load_speed_bench
from tests.refusals import error_message

COMMIT = 'a' * 40
DOMAINS = 'coding humanities math multilingual qa rag reasoning roleplay stem summarization writing'


def records(split='qualitative', per_category=3):
    "Records with the published fields, of each category of a split."
    tiers = ['low_entropy', 'mixed', 'high_entropy']
    categories = DOMAINS.split() if split == 'qualitative' else tiers
    fields = dict(sub_category='', source='x', src_id='1', difficulty='', multiturn=True)
    return [
        dict(question_id=f'{name}-{i}', category=name, turns=[f'{name} {i}', 'and?']) | fields
        for name in categories
        for i in range(per_category)
    ]


def as_script_writes(record):
    messages = [dict(role='user', content=turn) for turn in record['turns']]
    return {key: value for key, value in record.items() if key != 'turns'} | dict(messages=messages)


@pytest.fixture
def prepared(tmp_path):
    "A folder with two splits as NVIDIA's script writes them."
    for split in ('qualitative', 'throughput_8k'):
        lines = [json.dumps(as_script_writes(record)) for record in records(split)]
        (tmp_path / f'{split}.jsonl').write_text('\n'.join(lines))
    return tmp_path


def test_files_of_the_script_give_the_published_turns(prepared):
    loaded = load_speed_bench(folder=prepared)
    assert [q['turns'] for q in loaded] == [r['turns'] for r in records()]
    assert len({q['category'] for q in loaded}) == 11


def test_an_entropy_tier_of_an_input_length(prepared):
    loaded = load_speed_bench('throughput_8k', 'low_entropy', n=2, seed=None, folder=prepared)
    assert [q['question_id'] for q in loaded] == ['low_entropy-0', 'low_entropy-1']


def test_n_questions_of_each_category_are_the_same_for_a_seed(prepared):
    first = load_speed_bench(n=2, seed=1, folder=prepared)
    assert len(first) == 22
    assert first == load_speed_bench(n=2, seed=1, folder=prepared)
    others = [load_speed_bench(n=2, seed=seed, folder=prepared) for seed in range(2, 9)]
    assert any(first != other for other in others)


def test_the_folder_of_data_sets_is_searched(prepared, monkeypatch):
    monkeypatch.setenv('DECODELAB_DATA', str(prepared))
    assert len(load_speed_bench()) == 33


@pytest.mark.skipif(importlib.util.find_spec('pyarrow') is None, reason='parquet needs pyarrow')
def test_the_cache_of_the_hub_is_read_at_the_commit_of_main(tmp_path):
    import pandas as pd

    repository = tmp_path / 'datasets--nvidia--SPEED-Bench'
    (repository / 'refs').mkdir(parents=True)
    (repository / 'refs' / 'main').write_text(COMMIT)
    for commit, n in ((COMMIT, 3), ('b' * 40, 1)):
        folder = repository / 'snapshots' / commit / 'qualitative'
        folder.mkdir(parents=True)
        frame = pd.DataFrame(records(per_category=n))
        for i, half in enumerate((frame[: len(frame) // 2], frame[len(frame) // 2 :])):
            half.to_parquet(folder / f'test-0000{i}-of-00002.parquet')
    loaded = load_speed_bench(folder=tmp_path)
    assert [q['turns'] for q in loaded] == [r['turns'] for r in records()]


@pytest.mark.parametrize(
    ('change', 'words'),
    [
        (dict(turns=['FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE']), 'a placeholder'),
        (dict(turns=['x', 'FULL BENCHMARK DATA SHOULD BE FETCHED\n\n{question}']), 'a placeholder'),
        (dict(turns=[]), "field 'turns' is empty"),
        (dict(category=None), "field 'category' is empty"),
    ],
)
def test_a_record_that_is_not_whole_is_named_by_its_line(tmp_path, change, words):
    rows = records()
    rows[4] |= change
    path = tmp_path / 'qualitative.jsonl'
    path.write_text('\n'.join(map(json.dumps, rows)))
    message = error_message(lambda: load_speed_bench(folder=tmp_path))
    assert 'line 5: ' in message
    assert words in message


def test_data_that_are_not_here_are_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match='accept its licence on the Hub, run .*prepare.py'):
        load_speed_bench('throughput_32k', folder=tmp_path)
