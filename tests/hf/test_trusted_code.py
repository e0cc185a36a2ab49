"Code of a model or a recipe runs for `trust_remote_code=True` only; files cannot exhaust a process."

import json
import sys
import time

import numpy as np
import pytest
import torch
from repo import ROOT

from decodelab import load
from decodelab.cli.harness import load_pretrained
from decodelab.hf.config_files import (
    MAX_DEPTH,
    config_names_in,
    load_strategy,
    parse_settings,
    strategy_file,
)
from decodelab.hf.custom_generate_load import load_custom_generate
from decodelab.hf.generate import generate
from decodelab.models.loading import check_configuration

NOT_BOOLS = ('no', 'False', 'True', '', 1, 0, 1.0, np.True_, [True])


@pytest.fixture(scope='module')
def lm():
    return load('pico', device='cpu')


@pytest.fixture
def recipe(tmp_path):
    "A decoding method that leaves a file behind when its code runs."
    folder = tmp_path / 'recipe' / 'custom_generate'
    folder.mkdir(parents=True)
    (folder / 'generate.py').write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        'def generate(model, input_ids=None, **arguments):\n    return input_ids\n'
    )
    return folder.parent


@pytest.mark.parametrize('value', NOT_BOOLS, ids=repr)
def test_what_is_no_bool_runs_no_code(lm, recipe, value):
    words = 'trust_remote_code is .*: give True or False'
    with pytest.raises(ValueError, match=words):
        load_custom_generate(recipe, trust_remote_code=value)
    with pytest.raises(ValueError, match=words):
        ids = torch.tensor([[5, 6]])
        generate(lm, ids, custom_generate=str(recipe), trust_remote_code=value)
    with pytest.raises(ValueError, match=words):
        generate(lm, torch.tensor([[5, 6]]), max_new_tokens=1, trust_remote_code=value)
    for name in ('pico', str(recipe)):
        with pytest.raises(ValueError, match=words):
            load(name, device='cpu', trust_remote_code=value)
        with pytest.raises(ValueError, match=words):
            load_pretrained(name, 'cpu', 'auto', None, trust_remote_code=value)
    assert not (recipe.parent / 'ran').exists()


def test_true_runs_it_and_false_does_not(recipe):
    with pytest.raises(ValueError, match='runs its code'):
        load_custom_generate(recipe, trust_remote_code=False)
    with pytest.raises(ValueError, match='runs its code'):
        load_custom_generate(recipe)
    assert not (recipe.parent / 'ran').exists()
    load_custom_generate(recipe, trust_remote_code=True)
    assert (recipe.parent / 'ran').exists()


def test_native_code_that_a_configuration_names_is_code_too():
    config = dict(attn_implementation='org/kernel')
    with pytest.raises(ValueError, match='names the kernel org/kernel of the Hub'):
        check_configuration(config, trust_remote_code=False)
    check_configuration(config, trust_remote_code=True)


def test_every_function_that_takes_the_argument_is_tried_here():
    import ast

    tried = {'load', 'locate', 'load_custom_generate', 'load_pretrained', 'check_configuration'}
    result = set()
    for path in (ROOT / 'decodelab').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                if 'trust_remote_code' in [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]:
                    result.add(node.name)
    # `generate` has it among its keywords; `HarnessLM()` calls `load_pretrained`
    assert result == tried | {'__init__'}


def nested(depth, suffix):
    "Settings whose one value is a list in a list in a list …"
    text = '[' * depth + ']' * depth
    return f'{{"bad_words_ids": {text}}}' if suffix == 'json' else f'bad_words_ids: {text}'


@pytest.mark.parametrize('suffix', ['json', 'yaml'])
@pytest.mark.parametrize('depth', [MAX_DEPTH, 100, 400, 1000, 5000, 100_000])
def test_deep_nesting_is_one_sentence(lm, tmp_path, suffix, depth):
    path = tmp_path / f'deep.{suffix}'
    path.write_text(nested(depth, suffix))
    words = f'deep.{suffix} is nested more than {MAX_DEPTH} levels deep'
    with pytest.raises(ValueError, match=words) as caught:
        strategy_file(path, lm)
    assert len(str(caught.value)) < 300
    assert '\n' not in str(caught.value)


def test_nesting_that_strategies_need_is_read():
    text = nested(MAX_DEPTH - 1, 'json')
    assert parse_settings(text, 'a.json') == parse_settings(nested(MAX_DEPTH - 1, 'yaml'), 'a.yaml')
    path = 'deep.yaml'
    with pytest.raises(ValueError, match='levels deep'):
        parse_settings('\n'.join(' ' * i + f'a{i}:' for i in range(3000)), path)


def test_a_deep_file_beside_strategies_is_no_strategy(lm, tmp_path):
    (tmp_path / 'fast.json').write_text('{"do_sample": false}')
    (tmp_path / 'deep.json').write_text(nested(100_000, 'json'))
    assert config_names_in(tmp_path) == ['fast.json']
    with pytest.raises(ValueError, match='levels deep'):
        load_strategy(tmp_path, lm, 'deep.json')


def bomb(levels):
    "Each list holds the one before ten times: `10 ** levels` values in a few hundred bytes."
    names = [f'a{i}' for i in range(levels + 1)]
    lines = [f'{names[0]}: &{names[0]} [1, 2]']
    for last, name in zip(names, names[1:]):
        lines.append(f'{name}: &{name} [{", ".join([f"*{last}"] * 10)}]')
    return '\n'.join(lines)


def merge_bomb(levels):
    "The same by merge keys, whose mappings are copied while they are read."
    lines = ['a0: &a0 {x: 1}']
    for i in range(levels):
        lines.append(f'a{i + 1}: &a{i + 1} {{<<: [{", ".join([f"*a{i}"] * 10)}]}}')
    return '\n'.join(lines)


@pytest.mark.parametrize(
    'text', [bomb(9), bomb(200), merge_bomb(9)], ids=['lists', 'long', 'merge']
)
def test_an_alias_bomb_is_rejected_at_once(lm, tmp_path, text):
    path = tmp_path / 'bomb.yaml'
    path.write_text(text)
    start = time.perf_counter()
    with pytest.raises(ValueError, match='bomb.yaml is no YAML: its aliases repeat|levels deep'):
        strategy_file(path, lm)
    assert time.perf_counter() - start < 5


def test_a_list_inside_itself_is_rejected():
    with pytest.raises(ValueError, match='an alias stands inside of what it names'):
        parse_settings('bad_words_ids: &a [*a]', 'circle.yaml')


def test_an_alias_for_a_few_values_is_read():
    settings = parse_settings('bad_words_ids: [&a [1, 2], *a]\nx: &b {y: 1}\nz: {<<: *b}', 'a.yml')
    assert settings == dict(bad_words_ids=[[1, 2], [1, 2]], x=dict(y=1), z=dict(y=1))


def test_a_long_list_is_no_bomb():
    ids = list(range(200_000))
    text = json.dumps(dict(suppress_tokens=ids))
    assert parse_settings(text, 'a.json') == dict(suppress_tokens=ids)
    assert sys.getrecursionlimit() >= 1000
