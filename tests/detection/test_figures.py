"Every figure of the package is legible on light and dark pages, and no legend covers data."

import numpy as np
import pandas as pd
import pytest

from decodelab import (
    FixedLookahead,
    PromptLookupDrafter,
    Speculative,
    decode,
)
from decodelab.core.plot import plot_speed
from decodelab.detection.detect import detect
from decodelab.tuning import cost_model

CURVE = pd.DataFrame(
    [
        (width, context, 1, 1.0, 1 + width / 50 + context / 999, 0.01)
        for context in (16, 64, 128)
        for width in range(1, 33)
    ],
    columns=['width', 'context', 'rows', 'seconds', 'ratio', 'error'],
)


SPEEDS = pd.DataFrame(
    dict(formula=[1, 2, 1.5], curve=[1, 1.8, 1.4], replay=[1, 1.7, 1.3], measured=[1, 1.6, 1.2]),
    index=[1, 2, 4],
).assign(low=lambda f: f.measured - 0.1, high=lambda f: f.measured + 0.1)


def many_strategies(n):
    "A frame of runs with a plain strategy and `n` others."
    draw = np.random.default_rng(0)
    rows = []
    for i in range(n + 1):
        for prompt in range(4):
            name = 'plain' if not i else f'strategy number {i}'
            verdicts = [] if not i else [[4, int(draw.integers(5)), 1] for _ in range(9)]
            row = dict(strategy=name, prompt=prompt, repeat=0, new_tokens=40, verdicts=verdicts)
            rows.append(row | dict(seconds=4 / (1 + i / 9) * draw.uniform(0.9, 1.1)))
    return pd.DataFrame(rows)


def rates_table():
    "Detection after ten attacks."
    rows = []
    for attack in range(10):
        for strength in (0, 0.25, 0.5):
            row = {'attack': f'attack {attack}', 'strength': strength, 'share': strength}
            rows.append(row | {'tpr@0.01': 1 - strength * attack / 9})
    return pd.DataFrame(rows)


def drawn(name, pico, watermarked):
    "One figure of the package."
    from decodelab import BeamSearch
    from decodelab.core.plot import plot_acceptance, plot_tokens
    from decodelab.detection.highlight import plot_running_z
    from decodelab.detection.robustness import plot_robustness, plot_roc
    from decodelab.drafters.vocab_overlap import plot_overlap
    from decodelab.evaluate.text_quality import plot_similarity
    from decodelab.strategies.beam_plot import plot_beams
    from decodelab.strategies.dola_analysis import plot_divergences, plot_trajectories
    from decodelab.tuning.round_breakdown import plot_round_parts

    draw = np.random.default_rng(0)
    if name == 'tokens':
        speculative = Speculative(PromptLookupDrafter(), lookahead=FixedLookahead(4))
        return plot_tokens(decode(pico, 'import os\nimport sys\nimport', speculative, 40))
    if name == 'running z':
        result = detect(*watermarked)
        return plot_running_z(result.token_scores.values, result.mask, result.null)
    if name == 'roc':
        labels = np.repeat([f'watermark {i}' for i in range(9)], 40)
        rows = dict(watermark=labels, watermarked=[True, False] * 180, p=draw.random(360))
        return plot_roc(pd.DataFrame(rows))
    if name == 'trajectories':
        rows = [(t, layer, 0.0, 1 + t * layer) for t in range(9) for layer in range(8)]
        frame = pd.DataFrame(rows, columns=['token', 'layer', 'logp', 'rank'])
        return plot_trajectories(frame, {t: f'token {t}' for t in range(9)})
    if name == 'overlap':
        pairs = [(a, b, 0.5) for a in 'abc' for b in 'abc']
        return plot_overlap(pd.DataFrame(pairs, columns=['target', 'draft', 'target_share']))
    texts = [f'word{i}' for i in range(12)]
    layers = pd.DataFrame(draw.random((8, 12)))
    parts = pd.DataFrame(dict(seconds=[1.0, 2.0, 0.5], share=[0.3, 0.6, 0.1]), index=list('abc'))
    make = {
        'acceptance': lambda: plot_acceptance(many_strategies(11)),
        'speed': lambda: plot_speed(many_strategies(11)),
        'cost curve': lambda: cost_model.plot_verification_cost_curve(CURVE),
        'predicted': lambda: cost_model.plot_predicted_speedups(SPEEDS),
        'round parts': lambda: plot_round_parts(parts),
        'divergences': lambda: plot_divergences(layers, texts, [1, 3]),
        'similarity': lambda: plot_similarity(draw.random((12, 12)), texts),
        'robustness': lambda: plot_robustness(rates_table()),
        'beams': lambda: plot_beams(decode(pico, 'import', BeamSearch(3), 5), pico),
    }
    return make[name]()


FIGURES = (
    'tokens, acceptance, speed, cost curve, predicted, round parts, divergences, trajectories, '
    'similarity, overlap, robustness, roc, running z, beams'
).split(', ')


def luminance(color):
    "Of a colour, from 0 (black) to 1."
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.fixture(params=FIGURES)
def figure(request, pico, watermarked):
    "Each figure of the package, laid out."
    import matplotlib.pyplot as plt

    ax = drawn(request.param, pico, watermarked)
    ax.figure.draw_without_rendering()
    yield request.param, ax
    plt.close('all')


def test_figures_are_legible(figure):
    from matplotlib.text import Text

    name, ax = figure
    texts = [t for t in ax.figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    small = {t.get_text(): t.get_fontsize() for t in texts if t.get_fontsize() < 8.95}
    assert texts, name
    assert not small, name
    title = ax.title if ax.get_title() else ax._left_title
    for text in (title, ax.xaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels()):
        lum = luminance(text.get_color())
        for page in (1.0, luminance('#111111')):  # JupyterLab's light and dark
            light, dark = max(lum, page), min(lum, page)
            assert (light + 0.05) / (dark + 0.05) > 3.9, (name, text)


def test_figures_have_no_background_and_few_colours(figure):
    from matplotlib.colors import to_hex

    name, ax = figure
    assert not ax.figure.patch.get_visible(), name
    colours = {to_hex(line.get_color()) for line in ax.lines}
    colours |= {to_hex(patch.get_facecolor()) for patch in ax.patches}
    assert len(colours) <= 8, (name, colours)


def test_no_legend_covers_data(figure):
    name, ax = figure
    legend = ax.get_legend()
    if name in ('tokens', 'acceptance', 'cost curve', 'predicted', 'robustness', 'roc'):
        assert legend is not None
    if legend is not None:
        box = legend.get_window_extent()
        assert not box.overlaps(ax.get_window_extent()), name
        below = ax.xaxis.get_tightbbox()
        assert box.y1 <= below.y0 + 1, name  # nor the names of the axis
