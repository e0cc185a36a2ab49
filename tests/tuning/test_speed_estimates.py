"Summary, figure and report name one estimator of the speed and agree on it."

import numpy as np
import pandas as pd
import pytest

from decodelab.core.metrics import ratio_of_totals
from decodelab.core.plot import plot_speed
from decodelab.evaluate.bench import summary
from decodelab.tuning.diagnose import diagnose_run


@pytest.fixture
def uneven():
    "Runs whose median speed is 1.28 times the baseline's, and .72 times over all seconds."
    rows = []
    for prompt in range(5):
        for name in ('plain', 'fast'):
            long = prompt == 0
            tokens = 400 if long else 50
            speed = 10.0
            if name == 'fast':
                speed = 6.0 if long else 12.8
            row = dict(strategy=name, prompt=prompt, repeat=0, order=0, new_tokens=tokens)
            row |= dict(seconds=tokens / speed, tokens_per_second=speed, tokens=[prompt], error='')
            row |= dict(target_passes=tokens, draft_passes=0, drafted=0, accepted=0, rejections=0)
            row |= dict(draft_cost=np.nan, verdicts=[])
            if name == 'fast':
                row |= dict(drafted=tokens, accepted=tokens // 2, draft_passes=tokens // 2)
                row |= dict(target_passes=tokens // 2, rejections=0, draft_cost=0.2)
                row |= dict(verdicts=[[2, 1, 0]] * (tokens // 2))
            rows.append(row)
    return pd.DataFrame(rows)


def test_every_view_has_the_same_speed_and_names_it(uneven):
    table = summary(uneven)
    value = table.speedup['fast']
    assert value == pytest.approx(1.28)
    assert table.attrs['speedup'] == 'ratio of median speeds'
    title = plot_speed(uneven).get_title(loc='left')
    assert '1.28×' in title
    assert 'ratio of median speeds' in title
    report = diagnose_run(uneven)
    assert '1.28 times the speed of plain (ratio of median speeds' in report
    assert 'All tokens over all seconds it is 0.7' in report  # the account below adds up to this


def test_the_other_speed_is_an_argument_away(uneven):
    value = summary(uneven, variant=ratio_of_totals).speedup['fast']
    assert value < 0.8
    title = plot_speed(uneven, variant=ratio_of_totals).get_title(loc='left')
    assert f'{value:.2f}×' in title
    assert 'all tokens over all seconds' in title
    report = diagnose_run(uneven, variant=ratio_of_totals)
    assert f'{value:.2f} times the speed of plain (all tokens over all seconds' in report
