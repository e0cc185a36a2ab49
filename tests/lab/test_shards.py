"Shards of a sweep: killed at any moment, late, beside other writers; their commands, jobs of clusters, submitit."

import importlib.util
import json
import os
import shlex
import subprocess
from functools import partial

import pytest

from decodelab import Greedy, PromptLookupDrafter, Speculative, bench, load
from decodelab.cli.main import main
from decodelab.core.files import read_run_rows
from decodelab.core.job_claims import JobClaims
from decodelab.evaluate import jobs as jobs_module
from decodelab.evaluate import load_run, run_jobs
from decodelab.lab import ShardCommand, submit_shards
from decodelab.models.loading import process_rank
from tests.lab.kill_shards import kill_shards

pytestmark = pytest.mark.skipif(os.name != 'posix', reason='signals')


@pytest.fixture
def shard(monkeypatch):
    "Lets this process be a shard."
    return lambda text: monkeypatch.setenv('DECODELAB_SHARD', text)


def numbered_jobs(n, job=lambda i: dict(i=i)):
    return {f'job {i}': partial(job, i) for i in range(n)}


def test_five_kills_lose_and_double_no_row(tmp_path):
    counts = kill_shards(tmp_path, kills=5, jobs=200)
    assert counts['lost'] == 0
    assert counts['doubled'] == 0
    assert counts['rows'] == 200
    assert counts['outputs'] == {'400'}  # each shard returns two rows of each job
    assert 3 <= sum(counts['killed'].values()) <= 5  # on a busy machine the jobs may end first
    assert 200 <= counts['begun'] <= 200 + 5  # a death loses one job at most


def test_a_long_job_holds_no_other_shard(tmp_path, shard, monkeypatch):
    claims = JobClaims(tmp_path / 'claims')  # a shard elsewhere, which is at work on the first job
    monkeypatch.setattr(claims, 'token', 'elsewhere')
    assert claims.take(repr('job 0'))
    done = []

    def job(i):
        done.append(i)
        if len(done) == 5:
            claims.close()  # it gives up, when the others are done
        return dict(i=i)

    shard('0/2')
    rows = run_jobs(numbered_jobs(6, job), tmp_path, progress=False)
    assert done == [1, 2, 3, 4, 5, 0]
    assert [row['i'] for row in rows] == list(range(6))


def test_a_shard_waits_for_the_jobs_of_others(tmp_path, shard, monkeypatch):
    claims = JobClaims(tmp_path / 'claims')
    assert claims.take(repr('job 1'))
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        record = dict(job='job 1', rows=[dict(i=1)], date='', commit=None, processes=2)
        (tmp_path / 'rows.1.elsewhere.jsonl').write_text(json.dumps(record) + '\n')

    monkeypatch.setattr(jobs_module.time, 'sleep', sleep)
    shard('0/2')
    rows = run_jobs(numbered_jobs(2), tmp_path, progress=False)
    assert len(naps) == 1
    assert [row['i'] for row in rows] == [0, 1]
    claims.close()


def test_a_job_that_was_taken_over_is_stored_once(tmp_path, shard):
    def job(i):
        for path in (tmp_path / 'claims').glob('*.0'):  # as if this shard had slept for long
            owner = json.loads(path.read_text()) | dict(host='elsewhere')
            path.write_text(json.dumps(owner))
            os.utime(path, (1, 1))
        successor = JobClaims(tmp_path / 'claims')
        assert successor.take(repr(f'job {i}'))
        record = dict(job=f'job {i}', rows=[dict(i=i, by='successor')])
        (tmp_path / 'rows.1.elsewhere.jsonl').write_text(json.dumps(record) + '\n')
        return dict(i=i, by='sleeper')

    shard('0/2')
    rows = run_jobs(numbered_jobs(1, job), tmp_path, progress=False)
    assert rows == [dict(i=0, by='successor')]
    assert len(read_run_rows(tmp_path)) == 1


def test_errors_are_tried_once_by_a_shard_and_again_by_the_next_call(tmp_path, shard):
    tries = []

    def job(i):
        tries.append(i)
        if i == 1 and len(tries) < 3:
            raise RuntimeError('not yet')
        return dict(i=i)

    shard('0/1')
    with pytest.warns(UserWarning, match='1 of 2 jobs failed'):
        run_jobs(numbered_jobs(2, job), tmp_path, progress=False)
    assert tries == [0, 1]
    rows = run_jobs(numbered_jobs(2, job), tmp_path, progress=False)
    assert tries == [0, 1, 1]
    assert [row['i'] for row in rows] == [0, 1]


def test_bench_by_shards_has_the_rows_of_one_process(tmp_path, shard, monkeypatch, capsys):
    lm = load('pico-draft', device='cpu')
    strategies = dict(greedy=Greedy(), lookup=Speculative(PromptLookupDrafter()))
    options = dict(max_new_tokens=6, repeats=2, progress=False)
    prompts = ['def f(x):', 'import os', 'class A']
    alone = bench(lm, prompts, strategies, output_dir=tmp_path / 'one', **options)
    shard('1/2')
    bench(lm, prompts, strategies, output_dir=tmp_path / 'two', **options)
    [path] = (tmp_path / 'two').glob('rows.1.*')
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(''.join(lines[:5]))  # as a death in the third group leaves it
    for claim in (tmp_path / 'two' / 'claims').glob('*.0'):
        claim.write_text(json.dumps(json.loads(claim.read_text()) | dict(pid=2**22 + 1)))
    shard('0/2')
    (tmp_path / 'two' / path.name).rename(tmp_path / 'two' / 'rows.1.dead.1.jsonl')
    bench(lm, prompts, strategies, output_dir=tmp_path / 'two', **options)
    monkeypatch.delenv('DECODELAB_SHARD')
    assert main(['merge', str(tmp_path / 'two')]) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert '12 rows, 0 of them failed, 0 missing' in printed
    merged = load_run(tmp_path / 'two')
    same = ['strategy', 'prompt', 'repeat', 'seed', 'tokens', 'target_passes', 'accepted']
    assert merged[same].equals(alone[same])
    assert merged.machine.notna().all()


def test_other_settings_and_other_writers_raise(tmp_path, shard, monkeypatch):
    shard('0/2')
    run_jobs(numbered_jobs(2), tmp_path, dict(k=1), progress=False)
    with pytest.raises(ValueError, match='k was 1 and is now 2'):
        run_jobs(numbered_jobs(2), tmp_path, dict(k=2), progress=False)
    working = JobClaims(tmp_path / 'claims')
    assert working.take('a further job')
    monkeypatch.delenv('DECODELAB_SHARD')
    with pytest.raises(ValueError, match='shards are at work .* or join them with --shard'):
        run_jobs(numbered_jobs(2), tmp_path, dict(k=1), progress=False)
    working.close()
    assert len(run_jobs(numbered_jobs(2), tmp_path, dict(k=1), progress=False)) == 2


@pytest.mark.parametrize('text', ['4/4', '1', 'a/b', '-1/4', '0/0'])
def test_a_wrong_shard_is_an_error_that_shows_right_ones(text, shard):
    shard(text)
    with pytest.raises(ValueError, match=r"the shard is '.*': give one of 0/4"):
        process_rank()


def test_a_shard_under_a_launcher_is_an_error(shard, monkeypatch):
    shard('1/4')
    assert process_rank() == (1, 4, 1)
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='leave --shard out'):
        process_rank()


def test_the_shard_of_a_command_ends_with_it(tmp_path, capsys):
    command = 'compare --target pico-draft --device cpu --strategies lookup --prompts builtin --no-compile'
    assert main([*command.split(), '--shard', '5/4']) == 2
    assert 'give one of 0/4' in capsys.readouterr().err
    assert main([*command.split(), '--shard', '0/2']) == 2
    assert 'several processes need one folder' in capsys.readouterr().err
    assert 'DECODELAB_SHARD' not in os.environ


def test_jobs_of_clusters_are_printed_and_whole(capsys):
    work = ['experiment', '03', '--out', '/runs/a b']
    assert main(['slurm', '--shards', '3', '--gpus', '0', '--', *work]) == 0
    job = capsys.readouterr().out
    [line] = [line for line in job.splitlines() if line.startswith('exec ')]
    for i in range(3):  # what bash makes of the line in each task
        script = (
            f'SLURM_ARRAY_TASK_ID={i}; set -- {line.removeprefix("exec ")}; printf "%s\\n" "$@"'
        )
        words = subprocess.run(['bash', '-c', script], capture_output=True, text=True).stdout
        expected = ['python', '-m', 'decodelab', *work, '--resume', '--shard', f'{i}/3']
        assert words.splitlines() == expected
    assert '#SBATCH --array=0-2' in job
    assert main(['k8s', '--shards', '3', *work]) == 0
    assert 'completions: 3' in capsys.readouterr().out
    assert main(['slurm', 'generate', '--prompt', 'x']) == 2
    assert 'has no shards' in capsys.readouterr().err


def test_submitit_runs_shards_on_this_machine(tmp_path):
    work = ['compare', '--target', 'pico-draft', '--device', 'cpu', '--strategies', 'lookup']
    work += [
        '--no-compile',
        '--max-new-tokens',
        '4',
        '--repeats',
        '1',
        '--no-progress',
        '--out',
        str(tmp_path / 'out'),
    ]
    assert shlex.split(ShardCommand(work, 1, 2).line)[-2:] == ['--shard', '1/2']
    if importlib.util.find_spec('submitit') is None:
        with pytest.raises(ImportError, match='needs submitit: pip install'):
            submit_shards(work, 2, tmp_path / 'logs')
        pytest.skip('submitit is not installed')
    submitted = submit_shards(work, 2, tmp_path / 'logs', cluster='local', timeout_min=5)
    assert [job.result() for job in submitted] == [0, 0]
    rows = read_run_rows(tmp_path / 'out')
    assert len(rows) == len({(r['strategy'], r['prompt']) for r in rows})
