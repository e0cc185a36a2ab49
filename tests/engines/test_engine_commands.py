"The command line on servers with planted faults and on installed engines: what it prints, its status, and going on."

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from decodelab.cli.main import main
from decodelab.engines import CompletionServer
from decodelab.models.session import load
from tests.engines.test_certify_engine import (
    FAULTS,
    TooEasily,
    plain_base,
    top_p_dropped,
)
from tests.engines.test_installed_engines import installed

TARGET = 'pico-draft'  # the smallest model that the command line can load by name
SIZES = '--samples 24 --max-new-tokens 16 --no-progress'
SETTINGS = '--temperature 0.8 --top-p 0.8'
EXTRAS = {'llama.cpp': 'llama_cpp', 'openvino': 'openvino_genai', 'ctranslate2': 'ctranslate2'}


@pytest.fixture(scope='module')
def lm():
    return load(TARGET, device='cpu')


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    "Runs a command line in an empty folder: its status, what it prints, and its complaints."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, 'sleep', lambda seconds: None)
    (tmp_path / 'two.txt').write_text('def f(x):\nclass Stack\n')

    def run(line):
        status = main(line.split())
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def against_weights(server, more=''):
    return (
        f'certify --server {server.url} --model m --weights {TARGET} --prompts two.txt '
        f'{SIZES} {SETTINGS} {more}'
    )


@pytest.mark.parametrize('name', ['top-p dropped', 'seed ignored'])
def test_a_planted_fault_ends_with_status_1(name, lm, command):
    "Of two kinds of checks: the others end in the same way, and `test_certify_engine` has them all."
    make, kind_of_server, check = FAULTS[name]
    with kind_of_server(lm, make) as server:
        status, out, err = command(against_weights(server, '--json one.json'))
    assert (status, err) == (1, '')
    assert f'FAILED, {check}' in out
    [stored] = json.loads(Path('one.json').read_text())
    assert stored['verdict'] == 'lossy'


def test_a_right_server_ends_with_status_0(lm, command):
    with CompletionServer(lm) as server:
        status, out, err = command(against_weights(server))
    assert (status, err) == (0, ''), out
    assert out.startswith('2 prompts × 24 texts of up to 16 tokens: at most 768 tokens\n')
    assert 'FAILED' not in out
    assert 'greedy: 2 of 2 texts identical to ours' in out


def test_drafts_that_are_accepted_too_easily(lm, command):
    "With the draft model at hand, its excess is the strongest direction."
    draft = load('pico', device='cpu')
    make = lambda engine: TooEasily(draft, engine.base) if engine.temperature else engine.base
    with CompletionServer(lm, make) as server:
        status, out, err = command(against_weights(server, '--draft pico'))
    assert (status, err) == (1, '')
    assert 'strongest: draft' in out


@pytest.mark.parametrize('fault', [None, top_p_dropped])
def test_two_servers_by_their_addresses(fault, lm, command):
    with CompletionServer(lm, fault or plain_base) as one, CompletionServer(lm) as other:
        status, out, err = command(
            f'certify --server {one.url} --model m --plain {other.url} --prompts two.txt '
            '--temperature 0.5 --top-p 0.7 --samples 160 --max-new-tokens 4 --no-progress'
        )
    assert (status, err) == (0 if fault is None else 1, ''), out
    plan, rest = out.split('\n', 1)
    assert '× 2 engines: at most 2,560 tokens' in plan
    assert 'will be seen' in plan
    assert ('FAILED, two samples' in rest) is (fault is not None)


class Counting(CompletionServer):
    "Counts its requests, and rejects all after some of them."

    requests = 0
    last = None

    def answer(self, body):
        if self.requests == self.last:
            raise ValueError('out of memory')
        self.requests += 1
        return super().answer(body)


def test_an_interrupted_certificate_goes_on(lm, command):
    with Counting(lm) as server:
        server.last = 5
        line = against_weights(server, '--out texts')
        status, out, err = command(line)
        assert status == 2
        assert 'out of memory' in err
        server.last = None
        status, out, err = command(line)
        assert status == 0, err
        first = server.requests
        status, out, err = command(line)
    assert status == 0
    assert first < 2 * 5 + 2 * 2 + 2 * 2  # two prompts: five requests of samples, and greedy texts
    assert server.requests == first + 2  # only greedy texts are asked for again


def test_no_server_is_one_sentence(command):
    line = f'certify --server http://127.0.0.1:9 --model m --weights {TARGET} --prompts two.txt'
    status, out, err = command(line)
    assert status == 2
    assert err.startswith('decodelab: http://127.0.0.1:9/v1/completions cannot be reached')
    assert err.count('\n') == 1


@pytest.mark.parametrize('name', EXTRAS)
@pytest.mark.parametrize('line', ['compare --no-compile --strategies greedy', 'certify'])
def test_a_missing_extra_is_named(name, line, command, monkeypatch):
    monkeypatch.setitem(sys.modules, EXTRAS[name], None)
    status, out, err = command(f'{line} --engine {name} --prompts two.txt --max-new-tokens 4')
    assert status == 2
    assert 'pip install' in err
    assert '".[' in err


def test_engines_are_compared_by_their_names(command):
    "Those that are installed; transformers always is."
    names = ['transformers', *(name for name in EXTRAS if find_spec(EXTRAS[name]))]
    flags = ' '.join(f'--engine {name}' for name in names)
    status, out, err = command(
        f'compare {flags} --strategies greedy --prompts two.txt --max-new-tokens 16 '
        '--repeats 1 --no-progress --no-compile --out runs'
    )
    assert status == 0, err
    rows = {
        row['strategy']: row for row in json.loads(Path('runs/summary.json').read_text())['summary']
    }
    assert set(names) < set(rows)
    exact = [name for name in names if name != 'openvino']  # its 8-bit cache parts at near ties
    assert [name for name in exact if rows[name]['identical'] != 1] == []


@installed('llama.cpp')
def test_an_engine_is_certified_by_its_name(command):
    status, out, err = command(
        'certify --engine llama.cpp:lookup --prompts two.txt --temperature 0.8 '
        '--samples 16 --max-new-tokens 16 --no-progress'
    )
    assert status == 0, out + err
    assert 'accepted' in out.splitlines()[-1]
