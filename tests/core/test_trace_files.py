"A trace is saved and loaded; a file that holds no trace raises one sentence."

import pytest

from decodelab import Greedy, Trace, decode, load
from tests.refusals import error_message

PROMPT = 'def is_even(n):\n'


@pytest.fixture(scope='module')
def lm():
    return load('pico', device='cpu')


def test_a_trace_in_a_file(lm, tmp_path):
    trace = decode(lm, PROMPT, Greedy(), 6)
    trace.save(tmp_path / 'a.json')
    assert Trace.load(tmp_path / 'a.json') == trace
    assert 'no folder' in error_message(lambda: trace.save(tmp_path / 'b' / 'a.json'))
    assert 'there is no file' in error_message(lambda: Trace.load(tmp_path / 'absent.json'))
    (tmp_path / 'half.json').write_text(trace.to_json()[:-20])
    assert 'half.json' in error_message(lambda: Trace.load(tmp_path / 'half.json'))
