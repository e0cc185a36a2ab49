"A folder of rows has one writer at a time: two commands, kills, full disks, read-only folders."

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from unittest import mock

import preloaded
import pytest
from repo import ROOT

from decodelab.core.files import WriterLock, append_row, read_rows, read_run_rows, write_atomic
from decodelab.evaluate.bench import bench, load_run, run_key
from decodelab.evaluate.jobs import Ledger, run_jobs
from tests.evaluate.test_bench_resume import script  # noqa: F401
from tests.fuzz import kill

pytestmark = pytest.mark.skipif(os.name != 'posix', reason='signals and mounts')


def done(rows):
    "How often each run is in some rows."
    return Counter(map(run_key, rows))


REPEATS = 2  # of each prompt by each strategy, so that a run lasts while the test acts


def compare(folder) -> kill.Work:
    "A run of `compare` that starts in a fork."
    work = kill.make_compare(folder, repeats=REPEATS)
    work.spawn = preloaded.start
    return work


def stopped_compare(folder) -> tuple:
    "A run of `compare` that has kept rows, holds its lock and was stopped; `(work, process)`."
    work = compare(folder)
    process = work.start()
    kill.wait_for_rows(work, process)
    process.send_signal(signal.SIGSTOP)
    assert process.returncode is None
    assert (folder / 'out' / '.lock').exists()
    return work, process


def test_two_compares_on_one_folder(tmp_path):
    work, first = stopped_compare(tmp_path)
    second = work.start()
    message = second.communicate(timeout=240)[1]
    assert second.returncode == 2, message
    assert f'process {first.pid} on {socket.gethostname()} writes to out since' in message
    assert message.strip().count('\n') == 0  # one sentence
    first.send_signal(signal.SIGCONT)
    message = first.communicate(timeout=240)[1]
    assert first.returncode == 0, message
    rows = read_run_rows(tmp_path / 'out')
    assert len(rows) == REPEATS * 36
    assert set(done(rows).values()) == {1}
    assert not (tmp_path / 'out' / '.lock').exists()


def test_the_second_one_later_and_a_killed_one(tmp_path):
    work, first = stopped_compare(tmp_path)
    with pytest.raises(ValueError, match=f'process {first.pid} on .* writes to'):
        Ledger(tmp_path / 'out', {}, run_key)
    first.kill()
    first.communicate()
    assert (tmp_path / 'out' / '.lock').exists()  # nobody could remove it
    kill.finish(work)  # and the next one takes it over
    assert set(done(work.stored).values()) == {1}


def test_threads_of_one_process_are_two_writers_too(tmp_path):
    with Ledger(tmp_path, {}, lambda row: row['n']) as ledger:
        with pytest.raises(ValueError, match=f'process {os.getpid()} on .* writes to .* since'):
            Ledger(tmp_path, {}, lambda row: row['n'])
        ledger.add(dict(n=1))
    assert Ledger(tmp_path, {}, lambda row: row['n']).records == {1: dict(n=1)}


def test_a_row_cannot_be_added_twice(tmp_path):
    with Ledger(tmp_path, {}, lambda row: row['n']) as ledger:
        ledger.add(dict(n=1))
        with pytest.raises(ValueError, match='1 is done already'):
            ledger.add(dict(n=1))
    assert len(read_run_rows(tmp_path)) == 1


def test_rows_that_an_older_version_doubled_count_once(script, tmp_path):
    from a_bench import run

    frame = run(tmp_path / 'run')
    path = tmp_path / 'run' / 'rows.jsonl'
    path.write_bytes(path.read_bytes() * 2)
    shutil.copy(path, tmp_path / 'run' / 'rows.1.jsonl')
    assert len(load_run(tmp_path / 'run')) == len(run(tmp_path / 'run')) == len(frame)
    assert load_run(tmp_path / 'run').drop(columns='error').equals(frame.drop(columns='error'))


def test_a_stale_lock_is_taken_over(tmp_path):
    child = subprocess.Popen([sys.executable, '-c', ''])
    child.wait()
    gone = dict(pid=child.pid, host=socket.gethostname(), since='then', token='')
    for locks in (True, False):  # of the file system
        (tmp_path / '.lock').write_text(json.dumps(gone))
        free = (
            contextlib.nullcontext()
            if locks
            else mock.patch('decodelab.core.files.lock_file', lambda file: None)
        )
        with free:
            lock = WriterLock(tmp_path / '.lock').acquire('writes', wait=0)
        assert lock.writer()['pid'] == os.getpid()
        lock.release()
        assert not (tmp_path / '.lock').exists()


def test_many_processes_want_one_lock(tmp_path):
    code = '''
import sys, time
from decodelab.core.files import WriterLock
for n in range(20):
    lock = WriterLock(sys.argv[1]).acquire('writes', wait=60)
    with open(sys.argv[2], 'r+') as file:
        value = int(file.read()); time.sleep(.001)
        file.seek(0); file.write(str(value + 1))
    lock.release()
'''
    (tmp_path / 'sum').write_text('0')
    command = [sys.executable, '-c', code, tmp_path / '.lock', tmp_path / 'sum']
    env = os.environ | dict(PYTHONPATH=str(ROOT))
    children = [subprocess.Popen(command, env=env) for _ in range(4)]
    assert [c.wait(120) for c in children] == [0] * 4
    assert (tmp_path / 'sum').read_text() == '80'
    assert not (tmp_path / '.lock').exists()


# Killed at any moment


@pytest.mark.parametrize('name, kills', [('jobs', 3), ('compare', 2), ('experiment', 1)])
def test_killed_at_random_moments(name, kills):
    if name == 'experiment':
        pytest.importorskip('nbclient')
    counts = kill.fuzz(name, kills, seed=21, latest=2.5, spawn=preloaded.start)
    assert counts['killed'] == kills
    assert counts['lost'] <= kills


# A full disk


def jobs(n, size=2000):
    return {str(i): lambda i=i: dict(i=i, text='x' * size) for i in range(n)}


class FullDisk:
    "Files that take `room` bytes more, then none."

    def __init__(self, room):
        self.room = room

    def open(self, *args, **options):
        file = open(*args, **options)
        if 'a' in args[1:2] or 'ab' in args[1:2]:
            return LimitedFile(file, self)
        return file


class LimitedFile:
    def __init__(self, file, disk):
        self.file, self.disk = file, disk

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        data = data[: self.disk.room]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.disk.room -= len(data)
        return self.file.write(data)


@pytest.mark.parametrize('room', [1, 100, 2500, 5000, 8191])
def test_a_disk_that_fills_up_in_the_middle_of_a_row(tmp_path, monkeypatch, room):
    monkeypatch.setattr('decodelab.core.files.open', FullDisk(room).open, raising=False)
    with pytest.raises(OSError, match='No space left on device; the rows so far are whole'):
        run_jobs(jobs(9), tmp_path / 'run', progress=False)
    rows, size = read_rows(tmp_path / 'run' / 'rows.jsonl')
    assert size == (tmp_path / 'run' / 'rows.jsonl').stat().st_size  # no torn line
    assert len(rows) == room // 2140 or len(rows) == room // 2100
    monkeypatch.undo()
    assert [r['i'] for r in run_jobs(jobs(9), tmp_path / 'run', progress=False)] == list(range(9))
    assert len(read_run_rows(tmp_path / 'run')) == 9


@contextlib.contextmanager
def small_disk(path, options='size=64k'):
    "A file system of 64 kB; skips where nobody may make one."
    path.mkdir()
    made = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', options, 'tmpfs', path], capture_output=True
    )
    if made.returncode:
        pytest.skip('no right to mount a file system')
    try:
        yield path
    finally:
        subprocess.run(['umount', '-l', path], check=True)


def test_a_disk_that_is_really_full(tmp_path):
    with small_disk(tmp_path / 'disk') as disk:
        with pytest.raises(OSError, match='No space left on device; the rows so far are whole'):
            run_jobs(jobs(60), disk / 'run', progress=False)
        rows, size = read_rows(disk / 'run' / 'rows.jsonl')
        assert 10 < len(rows) < 60
        assert size == (disk / 'run' / 'rows.jsonl').stat().st_size
        assert not (disk / 'run' / '.lock').exists()
        with pytest.raises(ValueError, match='cannot write to .*run.* No space left|No space left'):
            try:
                run_jobs(jobs(60), disk / 'run', progress=False)
            except OSError as error:
                raise ValueError(str(error)) from error
        shutil.copytree(disk / 'run', tmp_path / 'run')
    assert [r['i'] for r in run_jobs(jobs(60), tmp_path / 'run', progress=False)] == list(range(60))


def test_a_file_that_is_written_whole_stays_what_it_was(tmp_path):
    with small_disk(tmp_path / 'disk') as disk:
        write_atomic(disk / 'page', 'as it was')
        with pytest.raises(OSError, match='No space left'):
            write_atomic(disk / 'page', 'x' * 100_000)
        assert (disk / 'page').read_text() == 'as it was'
        assert [p.name for p in disk.iterdir()] == ['page']


def test_compare_on_a_full_disk_is_one_sentence(tmp_path):
    with small_disk(tmp_path / 'disk', 'size=16k') as disk:
        work = compare(tmp_path)
        work.command[-1] = disk / 'out'
        process = work.start()
        message = process.communicate(timeout=240)[1]
        assert process.returncode == 2
        assert 'No space left on device' in message
        assert len(message.strip().splitlines()) == 1
        assert 'Traceback' not in message
        rows = read_run_rows(disk / 'out')
        assert 0 < len(rows) < 36
        assert set(done(rows).values()) == {1}
        shutil.copytree(disk / 'out', tmp_path / 'out')
    work.command[-1], work.rows = tmp_path / 'out', tmp_path / 'out'
    work.stored = rows
    kill.finish(work)


# A folder that cannot be written to


def test_a_read_only_folder_is_one_sentence(tmp_path):
    with small_disk(tmp_path / 'disk') as disk:
        stored = run_jobs(jobs(3), disk / 'run', progress=False)
        before = {p.name: p.read_bytes() for p in (disk / 'run').iterdir()}
        subprocess.run(['mount', '-o', 'remount,ro', disk], check=True)
        for n in (3, 5):
            with pytest.raises(
                ValueError, match=r'cannot write to .*run \(Read-only file system\)'
            ):
                run_jobs(jobs(n), disk / 'run', progress=False)
        with pytest.raises(ValueError, match='cannot write to .*new'):
            run_jobs(jobs(3), disk / 'new', progress=False)
        assert {p.name: p.read_bytes() for p in (disk / 'run').iterdir()} == before
        assert [r['rows'][0] for r in read_run_rows(disk / 'run')] == stored  # it can be read


@pytest.mark.parametrize(
    'error', [PermissionError(errno.EACCES, 'Permission denied')], ids=['EACCES']
)
def test_a_folder_of_another_user_is_one_sentence(tmp_path, monkeypatch, error):
    def deny(*args, **options):
        raise error

    monkeypatch.setattr('decodelab.core.files.open', deny, raising=False)
    with pytest.raises(ValueError, match=r'cannot write to .*run \(Permission denied\)'):
        run_jobs(jobs(3), tmp_path / 'run', progress=False)


# A clock that goes back


def test_a_clock_that_goes_back(script, tmp_path, monkeypatch):
    from a_bench import run

    clock = iter(range(2_000_000_000, 0, -86_400))
    monkeypatch.setattr(time, 'time', lambda: float(next(clock)))

    class Backwards:
        "A calendar on which each look is a day earlier."

        @staticmethod
        def now(tz=None):
            import datetime

            return datetime.datetime.fromtimestamp(next(clock), tz)

    for module in ('decodelab.core.files', 'decodelab.evaluate.jobs'):
        monkeypatch.setattr(f'{module}.datetime', Backwards)
    stored = run(tmp_path / 'run', strategies=dict(one=_paced(1)), repeats=2)
    path = tmp_path / 'run' / 'rows.jsonl'
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b''.join(lines[:3]) + lines[3][:10])
    os.utime(path, (0, 0))  # files from the future and from the past
    os.utime(tmp_path / 'run' / 'provenance.json', (4e9, 4e9))
    again = run(tmp_path / 'run', strategies=dict(one=_paced(1)), repeats=2)
    timed = ['date', 'seconds', 'tokens_per_second', 'commit']
    assert again.drop(columns=timed).equals(stored.drop(columns=timed))
    assert (again.seconds >= 0).all()
    assert set(done(read_run_rows(tmp_path / 'run')).values()) == {1}


def _paced(n):
    from a_bench import Paced

    return Paced(n, 0)


# A run that fails


def test_failed_runs_are_rows_and_are_tried_again(script, tmp_path):
    from a_bench import Counter as CountingModel
    from a_bench import Paced

    class Fails(Paced):
        broken = True

        def decode(self, request):
            if self.broken and request.prompt[-1] == 9:
                raise RuntimeError('out of\nmemory')
            yield from super().decode(request)

    strategy = Fails(2, 0)
    call = lambda **more: bench(
        CountingModel(),
        [[1], [9], [5, 999], []],
        dict(one=Paced(1, 0), fails=strategy),
        max_new_tokens=6,
        repeats=2,
        output_dir=tmp_path / 'run',
        progress=False,
        **more,
    )
    with pytest.warns(UserWarning, match='10 of 16 runs failed.*tries them again'):
        frame = call()
    errors = frame.groupby(['prompt', 'strategy']).error.agg(lambda e: ' | '.join(sorted(set(e))))
    assert errors.to_dict() == {
        (0, 'fails'): '',
        (0, 'one'): '',
        (1, 'fails'): 'RuntimeError: out of memory',
        (1, 'one'): '',
        **{
            (2, name): 'ValueError: a prompt id is outside the vocabulary of 256 tokens: '
            'was it encoded by another tokenizer?'
            for name in ('fails', 'one')
        },
        **{
            (3, name): 'ValueError: the prompt is empty: give at least one token '
            '(a begin-of-text id will do)'
            for name in ('fails', 'one')
        },
    }
    stored = (tmp_path / 'run' / 'rows.jsonl').read_bytes()
    with pytest.warns(UserWarning, match='10 of 16 runs failed'):
        again = call()  # what fails in the same way leaves no second row
    assert (tmp_path / 'run' / 'rows.jsonl').read_bytes() == stored
    assert again.error.tolist() == frame.error.tolist()
    strategy.broken = False
    with pytest.warns(UserWarning, match='8 of 16 runs failed'):
        mended = call()
    assert (tmp_path / 'run' / 'rows.jsonl').read_bytes().startswith(stored)
    good = mended[mended.error == '']
    assert len(mended) == 16
    assert len(good) == 8
    assert good.new_tokens.tolist() == [6] * 8
    assert load_run(tmp_path / 'run').error.tolist() == mended.error.tolist()
    with pytest.raises(ValueError, match='outside the vocabulary'):
        call(on_error='raise')


def test_a_strategy_that_never_works_ends_the_bench_at_once(script, tmp_path):
    from a_bench import Paced, run

    class Never(Paced):
        def decode(self, request):
            raise ValueError('this model has no such layer')

    with pytest.raises(ValueError, match='no such layer'):
        run(tmp_path / 'run', strategies=dict(one=Paced(1, 0), never=Never(1, 0)))
    assert read_run_rows(tmp_path / 'run') == []


def test_compare_with_a_prompt_that_does_not_fit(tmp_path, capsys):
    from decodelab.cli.main import main

    prompts = ['def f(x):', 'x = ' + '1 + ' * 3000 + '1', 'import os']
    (tmp_path / 'prompts.txt').write_text('\n'.join(prompts) + '\n')
    options = '--strategies lookup --repeats 2 --max-new-tokens 4 --device cpu --no-compile'.split()
    files = ['--prompts', str(tmp_path / 'prompts.txt'), '--out', str(tmp_path / 'out')]
    for _ in range(2):  # the second time only the failed ones are tried
        assert main(['compare', *files, *options]) == 1
        out, err = capsys.readouterr()
        for name in ('greedy', 'lookup'):
            assert f'{name}: 2 of 6 runs failed, on prompts 1 (ValueError: ' in err
        assert 'do not fit in the context' in err
        assert 'Traceback' not in err + out
        assert 'UserWarning' not in err or 'Nothing was faster' in out
        assert any(words in out for words in ('Fastest here', 'No winner', 'Nothing was faster'))
    assert (tmp_path / 'out' / 'report.html').exists()
    rows = read_run_rows(tmp_path / 'out')
    assert len(rows) == 12
    assert set(done(rows).values()) == {1}
    summary = json.loads((tmp_path / 'out' / 'summary.json').read_text())['summary']
    assert [row['runs'] for row in summary] == [4, 4]


def test_an_experiment_does_not_store_rows_that_failed(tmp_path, monkeypatch):
    import pandas as pd

    from decodelab import Experiment

    monkeypatch.setenv('DECODELAB_RESULTS', str(tmp_path))
    monkeypatch.setenv('DECODELAB_SCALE', 'pico')
    needs = dict(pico=dict(models=(), data=(), memory_gb=0.1, minutes=0.2))
    experiment = Experiment('01_slow', needs)
    with pytest.warns(UserWarning, match='1 of 3 jobs failed'):
        rows = run_jobs({str(i): lambda i=i: dict(i=1 / i) for i in range(3)}, progress=False)
    with pytest.raises(ValueError, match='1 of 3 rows of 01_slow failed.*ZeroDivisionError'):
        experiment.save(pd.DataFrame(rows))
    assert not list(tmp_path.rglob('*.csv'))
    experiment.save(pd.DataFrame(rows[1:]).assign(error=''))
    experiment.save(pd.DataFrame(rows[1:]))


def test_append_row_is_all_or_nothing(tmp_path):
    append_row(tmp_path / 'rows.jsonl', dict(n=1))
    with mock.patch('os.fsync', side_effect=OSError('full')), pytest.raises(OSError, match='full'):
        append_row(tmp_path / 'rows.jsonl', dict(n=2))
    assert read_run_rows(tmp_path) == [dict(n=1)]
    with mock.patch('os.fsync', side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        append_row(tmp_path / 'rows.jsonl', dict(n=3))  # its last byte is written
    assert read_run_rows(tmp_path) == [dict(n=1), dict(n=3)]
