"A bench that is killed or interrupted continues, and ends with the rows of an undisturbed one."

import json
import os
import signal
import sys
import time
from functools import partial

import preloaded
import pytest

from decodelab import Sample, Temperature, bench, decode, load
from decodelab.core import CounterRng

SCRIPT = '''
import sys, time
from decodelab.evaluate.bench import bench
from decodelab.core.driver import LanguageModel
from decodelab.core.trace import Step

class Counter(LanguageModel):
    name = 'counter'
    vocab_size = 256
    def decode(self, ids): return bytes(ids).decode('utf-8', errors='replace')

class Paced:
    def __init__(self, n, ms): self.n, self.ms = n, ms
    def __repr__(self): return f'Paced({self.n})'
    def decode(self, request):
        at = request.prompt[-1]
        while True:
            time.sleep(self.ms / 1000)
            tokens = [(at + i + 1) % 256 for i in range(self.n)]
            yield Step(tokens, self.n - 1, self.n - 1, False, tokens[:-1])
            at = tokens[-1]

def run(out, ms=0, **changed):
    strategies = dict(one=Paced(1, ms), three=Paced(3, ms))
    return bench(**dict(lm=Counter(), prompts=[[1], [2, 3], [9]], strategies=strategies, max_new_tokens=6, repeats=4, output_dir=out) | changed)

if __name__ == '__main__': run(sys.argv[1], ms=float(sys.argv[2]))
'''
TIMES = ['date', 'commit', 'seconds', 'tokens_per_second']
TOTAL = 2 * 3 * 4  # strategies, prompts, repeats


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / 'a_bench.py').write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    monkeypatch.delitem(sys.modules, 'a_bench', raising=False)
    return tmp_path / 'a_bench.py'


def stopped(script, out, sig, rows=5):
    """Start a slow bench in a process of its own, send it a signal after some rows.

    Its exit status, its lines, what it said.
    """
    process = preloaded.start([script, out, '10'])
    try:
        deadline = time.monotonic() + 60
        while (
            not (out / 'rows.jsonl').exists()
            or (out / 'rows.jsonl').read_bytes().count(b'\n') < rows
        ):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, process.communicate()[1]
            time.sleep(0.002)
        process.send_signal(sig)
        message = process.communicate(timeout=30)[1]
    finally:
        process.kill()
    return process.returncode, (out / 'rows.jsonl').read_bytes(), message


@pytest.mark.skipif(os.name != 'posix', reason='signals')
@pytest.mark.parametrize('sig', [signal.SIGKILL, signal.SIGINT], ids=lambda s: s.name)
def test_a_stopped_bench_goes_on(script, tmp_path, sig, one_thread):
    from a_bench import run

    from decodelab.evaluate.bench import load_run

    status, rows, message = stopped(script, tmp_path / 'run', sig)
    lines = rows.splitlines(keepends=True)
    assert status != 0
    assert 5 <= len(lines) < TOTAL
    assert all(json.loads(l) for l in lines if l.endswith(b'\n'))
    assert message == '' or sig == signal.SIGINT  # no progress bar where nobody watches
    with open(tmp_path / 'run' / 'rows.jsonl', 'ab') as file:
        file.write(b'{"strategy": "on')  # and the power fails while a row is written
    frame = run(tmp_path / 'run')
    assert (
        (tmp_path / 'run' / 'rows.jsonl').read_bytes().startswith(rows[: rows.rfind(b'\n') + 1])
    )  # nothing measured twice
    assert frame.equals(load_run(tmp_path / 'run'))
    assert len(frame) == TOTAL
    undisturbed = run(tmp_path / 'other')
    assert frame.drop(columns=TIMES).equals(undisturbed.drop(columns=TIMES))
    assert frame.date.nunique() <= 2


def test_a_folder_of_another_bench_is_rejected_and_left_alone(script, tmp_path):
    from a_bench import Paced, run

    run(tmp_path / 'run', repeats=1)
    before = {p.name: p.read_bytes() for p in (tmp_path / 'run').iterdir()}
    for changed, words in [
        (dict(seed=3), 'first_seed was 0 and is now 3'),
        (dict(prompts=[[1]]), 'prompts.count was 3 and is now 1'),
        (dict(max_new_tokens=7), 'max_new_tokens was 6 and is now 7'),
        (dict(strategies=dict(one=Paced(1, 0))), 'strategies.three'),
    ]:
        with pytest.raises(ValueError, match=words):
            run(tmp_path / 'run', **dict(repeats=1) | changed)
    assert {p.name: p.read_bytes() for p in (tmp_path / 'run').iterdir()} == before


def test_a_failing_strategy_loses_only_its_own_run(script, tmp_path):
    from a_bench import Paced, run

    class Fails(Paced):
        calls = 0

        def decode(self, request):
            Fails.calls += 1
            if Fails.calls == 4:
                raise RuntimeError('out of memory')
            return super().decode(request)

        def __repr__(self):
            return 'Fails'

    strategies = dict(one=Paced(1, 0), bad=Fails(2, 0))
    with pytest.raises(RuntimeError, match='out of memory'):
        run(tmp_path / 'run', strategies=strategies, on_error='raise')
    rows = (tmp_path / 'run' / 'rows.jsonl').read_bytes()
    assert rows.count(b'"bad"') == 2
    assert len(run(tmp_path / 'run', strategies=strategies)) == TOTAL
    assert (tmp_path / 'run' / 'rows.jsonl').read_bytes().startswith(rows)


def test_the_random_numbers_of_a_bench_are_those_of_decode(tmp_path):
    lm = load('pico')
    strategies = dict(sample=Sample(), again=Sample([Temperature(2.0)]))
    run = partial(bench, lm, ['def f(', 'import'], strategies, 8, 2, 5, tmp_path, progress=False)
    frame = run(rng=CounterRng)
    for row in frame.itertuples():
        prompt = ['def f(', 'import'][row.prompt]
        trace = decode(lm, prompt, strategies[row.strategy], 8, row.seed, rng=CounterRng)
        assert row.tokens == trace.tokens
    assert run(rng=CounterRng).tokens.tolist() == frame.tokens.tolist()
    with pytest.raises(ValueError, match='rng was .*CounterRng.* and is now None'):
        run()
