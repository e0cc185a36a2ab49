"The stored contributions of the board are accepted, an edited one and a link are not; what is stale."

import json
import subprocess

import pytest
from repo import ROOT

from decodelab.lab import board_markdown, read_board, read_contribution
from decodelab.lab.fingerprint import changed_names
from tests.refusals import error_message

FOLDER = ROOT / 'experiments' / 'board'
SEED = FOLDER / 'h100_19_gpu_costs.json'


def has_commit(commit):
    done = subprocess.run(['git', '-C', ROOT, 'cat-file', '-e', commit], capture_output=True)
    return done.returncode == 0


@pytest.mark.parametrize('path', sorted(FOLDER.iterdir()), ids=lambda path: path.name)
def test_a_stored_contribution_is_accepted(path):
    assert read_contribution(path)['rows']


def test_the_seed_holds_the_stored_rows_of_its_experiment():
    import pandas as pd

    surface = pd.read_csv(ROOT / 'experiments' / 'results' / '19_gpu_costs.gpu.surface.csv')
    board = read_board(FOLDER)
    seeded = board[board.by == '19_gpu_costs']
    assert sorted(seeded.speedup) == pytest.approx(sorted(surface.speed), abs=1e-4)
    lengths = sorted(surface.new_tokens / surface.target_passes)
    assert sorted(seeded.acceptance_length) == pytest.approx(lengths, abs=1e-4)


def test_a_digest_that_is_not_of_the_commit_is_an_edited_file(tmp_path):
    data = json.loads(SEED.read_text())
    if not has_commit(data['commit']):
        pytest.skip('a clone without the commit')
    data['modules']['speculative.loop'] = '0' * 16
    path = tmp_path / 'edited.json'
    path.write_text(json.dumps(data))
    message = error_message(lambda: read_contribution(path))
    assert 'the code is not that of commit' in message
    assert 'speculative.loop' in message


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / 'link.json').symlink_to(SEED)
    assert 'it is a link' in error_message(lambda: read_contribution(tmp_path / 'link.json'))


def test_an_empty_board_is_an_empty_table(tmp_path):
    board = read_board(tmp_path)
    assert len(board) == 0
    assert board_markdown(board) == ''


def test_a_module_that_is_no_more_is_a_change():
    assert changed_names({'models.gone': 'a'}, {}) == ['models.gone']
    board = read_board(FOLDER)
    assert (board[board.by == '19_gpu_costs'].state == 'stale').all()
