"Warnings about measured costs, the verdict of a tuning, and progress bars."

import inspect
import json
import re
from importlib import import_module
from operator import attrgetter

import nbformat
import numpy as np
import pandas as pd
import preloaded
import pytest

from decodelab import FixedLookahead, PromptLookupDrafter, RoundCosts, load
from decodelab.core.metrics import Interval
from decodelab.tuning import cost_model
from decodelab.tuning.search import TuningResult, format_tuning, tuning_json


@pytest.fixture(scope='module')
def lm():
    return load('pico', device='cpu')


def test_an_impossible_curve_of_costs_warns(monkeypatch, lm):
    seconds = np.array([[1.0, 11.2, 1.31], [1.0, 11.0, 1.3], [1.01, 11.3, 1.32]])
    monkeypatch.setattr(cost_model, 'pass_seconds', lambda *args: seconds)
    with pytest.warns(cost_model.CostsWarning, match='machine without other work'):
        cost_model.measure_costs(lm, widths=(1, 2, 32), context=16, progress=False)


def test_a_curve_within_its_error_does_not_warn(monkeypatch, lm, recwarn):
    seconds = np.array([[1.0, 1.05, 1.31], [1.0, 1.0, 1.3], [1.01, 1.02, 1.32]])
    monkeypatch.setattr(cost_model, 'pass_seconds', lambda *args: seconds)
    cost_model.measure_costs(lm, widths=(1, 2, 32), context=16, progress=False)
    assert not [w for w in recwarn if issubclass(w.category, cost_model.CostsWarning)]


def tuned(rule, **measured):
    frame = pd.DataFrame([dict(candidate='x', rule=repr(rule), predicted=1.5)])
    costs = RoundCosts.from_ratio(0.1)
    drafter = PromptLookupDrafter()
    return TuningResult(rule, 'x', 1.5, FixedLookahead(3), frame, costs, drafter, **measured)


@pytest.mark.parametrize(
    'measured, words',
    [
        (dict(measured_against_fixed=Interval(0.8, 0.7, 0.9)), 'times the speed of FixedLookahead'),
        (dict(measured_against_fixed=Interval(0.98, 0.9, 1.1)), 'does not settle'),
    ],
)
def test_a_winner_that_lost_its_measurement_is_reported(measured, words):
    result = tuned(FixedLookahead(7), measured=Interval(1.2, 1.1, 1.3), **measured)
    for view in (repr(result), format_tuning(result), json.loads(tuning_json(result))['verdict']):
        assert 'contradicts the prediction' in view
        assert words in view
    assert not re.search(r'^Best: ', format_tuning(result), flags=re.M)
    slow = tuned(FixedLookahead(3), measured=Interval(0.9, 0.8, 0.95))
    assert 'times the speed of plain decoding' in repr(slow)


@pytest.mark.parametrize(
    'path',
    [
        'evaluate.certify.certify',
        'evaluate.bench.bench',
        'tuning.cost_model.measure_costs',
        'tuning.cost_model.verification_cost_curve',
        'tuning.search.tune_lookahead',
        'tuning.replay.DraftTable.build',
    ],
)
def test_what_takes_long_has_a_bar_and_one_argument_turns_it_off(path):
    part, module, name = path.split('.', 2)
    function = attrgetter(name)(import_module(f'decodelab.{part}.{module}'))
    assert inspect.signature(function).parameters['progress'].default is True


BAR = """

import sys, time

from decodelab.evaluate import jobs
sys.stderr.isatty = lambda: True
for _ in jobs.progress_bar([1, 2, 3], 3, {enabled}, delay={delay}):
    time.sleep(.15)
"""


@pytest.mark.parametrize(
    'enabled, delay, shown', [(True, 0, True), (True, 3.0, False), (False, 0, False)]
)
def test_a_bar_shows_only_where_it_takes_long(enabled, delay, shown):
    code = BAR.format(enabled=enabled, delay=delay)
    process = preloaded.start(['-c', code])
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert ('run' in err) is shown, err


IN_A_CELL = """
import time

from decodelab.evaluate import jobs

print('before')
for _ in jobs.progress_bar([1, 2, 3], 3, True, delay=0):
    time.sleep(0.2)
print('after')
"""


def test_a_bar_leaves_nothing_in_a_notebook():
    nbclient = pytest.importorskip('nbclient', reason='comes with nbconvert, of [lab]')
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(IN_A_CELL)])
    shown = []
    client = nbclient.NotebookClient(nb, on_cell_executed=lambda **_: None)
    output = client.output
    client.output = lambda outs, msg, *rest: shown.append(msg) or output(outs, msg, *rest)
    client.execute()
    texts = [o.get('text') or o.get('data') for o in nb.cells[0].outputs]
    assert texts == ['before\n', {}, 'after\n']
    first = next(m['content']['data'] for m in shown if m['msg_type'] == 'display_data')
    assert '0/3' in first['text/plain'] or '1/3' in first['text/plain']
