"Cards of the embedded models and of their corpus: every folder has one, and it is true."

import contextlib
import io
import json
import re

import cards
import corpus_licences
import docs_blocks
import pytest
from repo import ROOT

from decodelab.core.trace import Trace

FOLDERS = sorted(p.name for p in cards.WEIGHTS.iterdir() if p.is_dir())
MADE = cards.cards()
HEADINGS = 'Use', 'Intended use', 'Data', 'Training', 'Curve', 'Limits'
OPEN = {'MIT', 'MIT-0', 'MIT-CMU', 'ISC', '0BSD', 'Zlib', 'CC0-1.0', 'BSL-1.0', 'CNRI-Python'}
OPEN |= {'BSD-2-Clause', 'BSD-3-Clause', 'Apache-2.0', 'LLVM-exception', 'PSF-2.0', 'MPL-2.0'}
OPEN |= {'LicenseRef-matplotlib'}


def test_every_folder_of_weights_has_a_card():
    assert len(FOLDERS) == 10
    assert sorted(cards.CARDS) == FOLDERS
    for name in FOLDERS:
        text = (cards.WEIGHTS / name / 'README.md').read_text()
        assert re.findall(r'^## (.+)$', text, flags=re.M) == list(HEADINGS), name
        assert 'license: apache-2.0' in text
        assert '{' not in re.sub(r'```.*?```', '', text, flags=re.S), name


@pytest.mark.parametrize('path', MADE, ids=lambda p: f'{p.parent.name}-{p.stem}')
def test_a_card_is_made_from_the_files_beside_it(path):
    assert path.read_text() == MADE[path], 'python tools/cards.py'


@pytest.mark.parametrize('name', FOLDERS)
def test_the_use_of_a_card_runs(name):
    text = (cards.WEIGHTS / name / 'README.md').read_text()
    source = docs_blocks.BLOCK.search(text).group(1)
    assert f"'{name}'" in source
    *lines, last = source.rstrip().splitlines()
    names = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec('\n'.join([*lines, f'trace = {last}']), names)
    assert isinstance(names['trace'], Trace)
    assert names['trace'].text.strip()


def test_the_numbers_of_a_card_are_counted():
    weights, types, size = cards.tensors('pico')
    assert types == ['BF16']
    assert 2 * weights < size < 2.01 * weights
    log = cards.read_log('pico')
    last = list(cards.curve('pico'))[-1]
    assert f'{log[-1]["tokens"]:,}' in last
    assert len(list(cards.training('pico'))) == len({row['run'] for row in log})


def test_every_package_of_the_corpus_has_its_licence():
    corpus = json.loads(corpus_licences.CORPUS.read_text())
    rows = corpus_licences.stored()
    assert list(rows) == list(corpus)
    for package, row in rows.items():
        facts = {key: str(value) for key, value in corpus[package].items()}
        assert {key: row[key] for key in facts} == facts
        assert set(re.split(r' (?:AND|OR|WITH) ', row['licence'])) <= OPEN, package
        assert row['source']


def test_the_data_card_has_all_of_the_corpus():
    text = (cards.WEIGHTS / 'pico' / 'CORPUS.md').read_text()
    rows = text.partition('## Every package')[2].splitlines()[4:]
    assert [row.split(' | ')[0].removeprefix('| ') for row in rows] == list(
        corpus_licences.stored()
    )
    assert '156 packages, 10,497 files, 166 million characters' in text


@pytest.mark.parametrize(
    'stated, spdx',
    [
        ('MIT License', 'MIT'),
        ('BSD 3-Clause License\n\nCopyright', 'BSD-3-Clause'),
        ('Apache Software License 2.0', 'Apache-2.0'),
        ('Apache-2.0 OR BSD-2-Clause', 'Apache-2.0 OR BSD-2-Clause'),
        ('BSD', None),
        ('Copyright (c) 2015 Project\nAll rights reserved OR not', None),
    ],
)
def test_a_stated_licence_as_spdx(stated, spdx):
    assert corpus_licences.as_spdx(stated) == spdx


def test_the_cards_are_in_the_wheel(wheel):
    names = set(wheel.namelist())
    assert {p.relative_to(ROOT).as_posix() for p in MADE} <= names
