"What a newcomer met in the first hour with detection, speeds, tuning, figures and the command line."

import inspect
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from decodelab import (
    FixedLookahead,
    GreenList,
    PromptLookupDrafter,
    RoundCosts,
    Sample,
    Speculative,
    Temperature,
    decode,
)
from decodelab.core.driver import Strategy
from decodelab.core.metrics import Interval, ratio_of_totals
from decodelab.core.plot import plot_speed
from decodelab.detection.detect import combine, detect
from decodelab.evaluate.bench import summary
from decodelab.lab import strategy_names
from decodelab.lab.cli import COMMANDS, main, make_parser
from decodelab.lab.completion import SHELLS, completion_script
from decodelab.lab.strategy_names import (
    LOOKAHEADS,
    SPELLINGS,
    UNSPELLED,
    VERIFIERS,
    Models,
    make_strategy,
    spelled_class,
)
from decodelab.speculative.protocol import Drafter, LookaheadRule, Verifier
from decodelab.tuning import cost_model
from decodelab.tuning.diagnose import diagnose_run
from decodelab.tuning.search import TuningResult, format_tuning, tuning_json
import preloaded
from repo import ROOT

os.environ['HF_HUB_OFFLINE'] = '1'
MODELS = Models(device='cpu')


@pytest.fixture(scope='module')
def lm():
    return MODELS.load_target()


# Detection


@pytest.fixture(scope='module')
def marked(lm):
    "A watermark, and the trace of a text with it."
    watermark = GreenList(7)
    prompt = 'def read_lines(path):\n'
    return watermark, decode(lm, prompt, Sample([Temperature(1.0), watermark]), 80, 0)


def test_a_detection_is_no_truth_value(marked):
    watermark, trace = marked
    none = detect(GreenList(8), trace)
    assert none.p > 0.01 and not none.marked
    for evidence in (none, detect(watermark, trace), combine([none, none])):
        with pytest.raises(ValueError, match=r'neither true nor false .*ask for \.marked'):
            bool(evidence)


def test_marked_is_at_the_level_of_the_call(marked):
    watermark, trace = marked
    result = detect(watermark, trace)
    assert (
        result.marked
        and result.level == 0.01
        and ': p=' in repr(result)
        and ', watermarked at level 0.01' in repr(result)
    )
    strict = detect(watermark, trace, level=result.p / 2)
    assert not strict.marked and 'not watermarked at level' in repr(strict)
    for level in (0, 1, 1.5, -0.1):
        with pytest.raises(ValueError, match='level is'):
            detect(watermark, trace, level=level)
    windows = detect(watermark, trace, windows=True, level=0.05)
    assert windows.windows.level == windows.level == 0.05 and windows.marked
    assert combine([result, result], level=1e-4).marked == (result.p <= 1e-4)


def test_a_trace_is_as_good_as_its_ids(marked, lm):
    watermark, trace = marked
    by_ids = detect(watermark, trace.prompt + trace.tokens, len(trace.prompt))
    by_trace = detect(watermark, trace)
    assert (by_trace.p, by_trace.z, by_trace.count) == (by_ids.p, by_ids.z, by_ids.count)
    assert ''.join(by_trace.pieces) == trace.prompt_text + trace.text
    assert 'read_lines' in by_trace._repr_html_()  # the text, not its ids
    with pytest.raises(ValueError, match='knows its prompt'):
        detect(watermark, trace, 3)


def test_a_string_says_that_it_was_tokenized_again(marked, lm):
    watermark, trace = marked
    result = detect(watermark, trace.text, trace.prompt_text, tokenizer=lm.tokenizer)
    assert result.retokenized and 'tokenized again from a string' in repr(result)
    assert not detect(watermark, trace).retokenized
    assert 'tokenized again' in inspect.getdoc(detect)


def test_the_detect_command_says_marked_or_not(marked, tmp_path, capsys):
    _, trace = marked
    (tmp_path / 'a.txt').write_text(trace.text)
    file = tmp_path / 'r.json'
    assert main(['detect', str(tmp_path / 'a.txt'), '--key', '7', '--json', str(file)]) == 0
    assert ', watermarked at level 0.01' in capsys.readouterr().out
    document = json.loads(file.read_text())['documents'][0]
    assert (document['marked'], document['level']) == (True, 0.01)
    assert main(['detect', str(tmp_path / 'a.txt'), '--key', '8', '--json', str(file)]) == 1
    out = capsys.readouterr().out
    assert 'not watermarked at level 0.01' in out and 'tokenized again' in out
    assert json.loads(file.read_text())['documents'][0]['marked'] is False


# One estimator of speed


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
    assert value == pytest.approx(1.28) and table.attrs['speedup'] == 'ratio of median speeds'
    title = plot_speed(uneven).get_title(loc='left')
    assert '1.28×' in title and 'ratio of median speeds' in title
    report = diagnose_run(uneven)
    assert '1.28 times the speed of plain (ratio of median speeds' in report
    assert 'All tokens over all seconds it is 0.7' in report  # the account below adds up to this


def test_the_other_speed_is_an_argument_away(uneven):
    value = summary(uneven, variant=ratio_of_totals).speedup['fast']
    assert value < 0.8
    title = plot_speed(uneven, variant=ratio_of_totals).get_title(loc='left')
    assert f'{value:.2f}×' in title and 'all tokens over all seconds' in title
    report = diagnose_run(uneven, variant=ratio_of_totals)
    assert f'{value:.2f} times the speed of plain (all tokens over all seconds' in report


# Costs, tuning, progress


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
def test_a_winner_that_lost_its_measurement_says_so(measured, words):
    result = tuned(FixedLookahead(7), measured=Interval(1.2, 1.1, 1.3), **measured)
    for view in (repr(result), format_tuning(result), json.loads(tuning_json(result))['verdict']):
        assert 'contradicts the prediction' in view and words in view
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
    parts = path.split('.')
    module = sys.modules[f'decodelab.{parts[0]}.{parts[1]}']
    thing = module
    for name in parts[2:]:
        thing = getattr(thing, name)
    assert inspect.signature(thing).parameters['progress'].default is True


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
    assert process.returncode == 0 and ('run' in err) is shown, err


# Figures

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


def drawn(name, lm, marked):
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
        return plot_tokens(decode(lm, 'import os\nimport sys\nimport', speculative, 40))
    if name == 'running z':
        result = detect(*marked)
        return plot_running_z(result.token_scores.values, result.mask, result.null)
    if name == 'roc':
        marks = np.repeat([f'watermark {i}' for i in range(9)], 40)
        rows = dict(watermark=marks, watermarked=[True, False] * 180, p=draw.random(360))
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
        'beams': lambda: plot_beams(decode(lm, 'import', BeamSearch(3), 5), lm),
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
def figure(request, lm, marked):
    "Each figure of the package, laid out."
    import matplotlib.pyplot as plt

    ax = drawn(request.param, lm, marked)
    ax.figure.draw_without_rendering()
    yield request.param, ax
    plt.close('all')


def test_figures_are_legible(figure):
    from matplotlib.text import Text

    name, ax = figure
    texts = [t for t in ax.figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    small = {t.get_text(): t.get_fontsize() for t in texts if t.get_fontsize() < 8.95}
    assert texts and not small, name
    title = ax.title if ax.get_title() else ax._left_title
    for text in (title, ax.xaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels()):
        lum = luminance(text.get_color())
        for page in (1.0, luminance('#111111')):  # JupyterLab's light and dark
            light, dark = max(lum, page), min(lum, page)
            assert (light + 0.05) / (dark + 0.05) > 3.9, (name, text)


def test_figures_have_no_background_and_few_colours(figure):
    from matplotlib.colors import to_hex

    name, ax = figure
    assert ax.figure.patch.get_alpha() == 0, name
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


# The command line reaches every strategy

TEXT = 'class Stack:\n    def push('


def public_names(part):
    "The names of a part that users see."
    text = (ROOT / 'decodelab' / part / '__init__.pyi').read_text()
    return re.findall(r'^from \.([\w.]+) import (\w+) as', text, flags=re.M)


def public_strategies():
    "Every public class that decodes or drafts, with its module."
    classes = set()
    for part in ('strategies', 'drafters', 'speculative', 'evaluate', 'watermark', 'hf', 'tuning'):
        for module, name in public_names(part):
            thing = getattr(__import__(f'decodelab.{part}.{module}', fromlist=[name]), name)
            if inspect.isclass(thing) and issubclass(thing, (Strategy, Drafter)):
                classes.add(thing)
    return classes - {Drafter, Speculative}


def test_every_public_strategy_and_drafter_has_a_name():
    classes = public_strategies()
    assert len(classes) > 25
    spelled = {spelled_class(spelling) for spelling in SPELLINGS.values()}
    missing = {cls.__name__ for cls in classes - spelled} - set(UNSPELLED)
    assert not missing, f'{missing} have no name: add a row to lab.strategy_names'
    assert all(len(reason) > 20 for reason in UNSPELLED.values())


def test_every_public_verifier_and_lookahead_rule_has_a_name():
    spelled = {spelled_class(s) for s in (VERIFIERS | LOOKAHEADS).values()}
    for module, name in public_names('speculative'):
        thing = getattr(__import__(f'decodelab.speculative.{module}', fromlist=[name]), name)
        if not inspect.isclass(thing) or thing in (Verifier, LookaheadRule):
            continue
        if issubclass(thing, (Verifier, LookaheadRule)) and name not in (
            'CostAwareLookahead',
            'BanditLookahead',  # both need measured costs: `decodelab tune` measures them
            'RecordingVerifier',  # wraps another one: `recorded`
        ):
            assert thing in spelled, name


MADE = {
    'greedy': 'Greedy()',
    'sampling:0.7,top_p=0.9': 'Sample(Temperature(0.7), TopP(0.9))',
    'beam:4': 'BeamSearch(4)',
    'diverse-beam:4,2,0.5': 'DiverseBeamSearch(4)',
    'contrastive:5,0.4': 'ContrastiveSearch(0.4, top_k=5)',
    'diverse-contrastive:3': 'DiverseContrastiveSearch(3)',
    'dola:high': "DoLa('high')",
    'dola:low': "DoLa('low')",
    'transformers:num_beams=4': 'TransformersGenerate(num_beams=4)',
}
DRAFTED = {
    'assisted': "AssistantDrafter('pico-draft')",
    'lookup:4,2': 'PromptLookupDrafter(4, min_ngram=2)',
    'suffix:depth=9': 'SuffixDrafter(None, depth=9)',
    'early-exit:4': 'EarlyExitDrafter(4)',
    'tree:3,2,1,1': 'TreeDrafter(',
    'dynamic-tree:8,2': 'DynamicTreeDrafter(',
    'lookahead-decoding:6,3,5': 'LookaheadDecodingDrafter(6, ngram=3, guesses=5)',
    'suffix-automaton:8,2': 'SuffixAutomatonDrafter(None, nodes=8, factor=2)',
    'token-recycling:3,2,1': 'TokenRecyclingDrafter(TreeShape.of((3, 2, 1)))',
    'token-recycling': 'TokenRecyclingDrafter(TreeShape([',
    'medusa:4,2,1': 'MedusaDrafter(',
    'eagle:16,4': 'EagleDrafter(',
    'mtp': 'MtpDrafter()',
    'universal': 'UniversalDrafter(',
    'token-intersection': 'TokenIntersectionDrafter(',
    'string-rejection:32': 'StringRejectionDrafter(',
    'first-of:lookup+assisted': 'FirstOfDrafter(PromptLookupDrafter(3), AssistantDrafter(',
    'parallel:assisted+lookup': 'ParallelDrafter(AssistantDrafter(',
    'cascade:lookup,4': 'CascadeDrafter(',
    'capped:lookup,3': 'CappedDrafter(PromptLookupDrafter(3), max_tokens=3)',
    'synthetic:0.8': 'SyntheticDrafter(0.8)',
    'synthetic:0.9,0.5': 'SyntheticDrafter((0.9, 0.5))',
    'synthetic-tree:3/2/1,0.6/0.2': 'SyntheticTreeDrafter(',
}


@pytest.mark.parametrize('text', MADE)
def test_a_name_makes_its_strategy(text, lm):
    assert repr(make_strategy(text, MODELS)) == MADE[text]


@pytest.mark.parametrize('text', DRAFTED)
def test_a_name_makes_its_drafter(text, lm):
    strategy = make_strategy(text, MODELS)
    assert isinstance(strategy, Speculative) and repr(strategy.base) == 'Greedy()'
    assert repr(strategy.drafter).startswith(DRAFTED[text])


def test_these_names_are_all(lm):
    tested = {text.partition(':')[0] for text in [*MADE, *DRAFTED]}
    elsewhere = {'beam-sample', 'best-of', 'constrained-beam', 'contrastive-decoding', 'pard'}
    elsewhere |= {'single-position', 'dflash'}
    assert tested | elsewhere == set(SPELLINGS)


def test_the_names_that_need_more(lm):
    warm = Models(lm, temperature=0.5, device='cpu')
    assert repr(make_strategy('beam-sample:3', warm)) == (
        'BeamSample(3, processors=[Temperature(0.5)])'
    )
    assert repr(make_strategy('best-of:4', warm)) == 'BestOfN(Sample(Temperature(0.5)), n=4)'
    with pytest.raises(ValueError, match='best-of:4 draws tokens'):
        make_strategy('best-of:4', MODELS)
    words = make_strategy('constrained-beam:return/None,num_beams=3', MODELS)
    assert len(words.constraints) == 2 and words.num_beams == 3
    amateur = make_strategy('contrastive-decoding:0.2', MODELS)
    assert 'pico-draft' in repr(amateur) and '0.2' in repr(amateur)
    with pytest.raises(ValueError, match='name one with --draft'):
        make_strategy('single-position', MODELS)
    with pytest.raises(ValueError, match='name one with --draft'):
        make_strategy('pard', MODELS)
    named = Models(lm, draft='pico-draft', device='cpu')
    drafter = make_strategy('pard:4,mask=1', named).drafter
    assert repr(drafter) == "PardDrafter('pico-draft', mask=1, max_draft=4)"
    with pytest.raises(ValueError, match='names no pard_token'):
        make_strategy('pard', named)
    with pytest.raises(ValueError, match='name one with --draft'):
        make_strategy('dflash', MODELS)
    assert repr(make_strategy('dola:2/4', warm).base) == 'Sample(Temperature(0.5))'
    assert make_strategy('dola:2/4', warm).layers == (2, 4)


def test_verifier_and_lookahead_are_spelled(lm):
    warm = Models(lm, temperature=0.5, device='cpu')
    strategy = make_strategy('assisted', warm, 'typical:0.1,0.2', 'confidence:0.5,7')
    assert repr(strategy.verifier) == 'TypicalAcceptanceVerifier(0.1, delta=0.2)'
    assert repr(strategy.lookahead) == 'ConfidenceLookahead(0.5, k=7)'
    assert repr(make_strategy('lookup', MODELS, lookahead='6').lookahead) == 'FixedLookahead(6)'
    assert make_strategy('tree:1,1,1,1,1,1', MODELS).lookahead.k == 6  # no shorter than its tree


@pytest.mark.parametrize('command', ['generate x', 'compare', 'tune', 'certify'])
def test_one_spelling_in_every_command(command, capsys):
    option = '--strategies' if command == 'compare' else '--strategy'
    status = main([*command.split(), option, 'eagel:16', '--device', 'cpu'])
    assert status == 2 and 'did you mean eagle' in capsys.readouterr().err


def test_a_tree_is_certified_by_name(capsys):
    line = 'certify --strategy tree:2,1 --samples 60 --no-progress'
    assert main(line.split()) == 0
    assert capsys.readouterr().out.startswith('lossless')


def test_the_list_has_every_name(capsys):
    assert main(['strategies']) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf'^  {name}\b', out, flags=re.M) for name in SPELLINGS)


@pytest.mark.parametrize('shell', SHELLS)
def test_a_shell_script_has_every_command_and_option(shell):
    script = completion_script(shell, make_parser())
    assert all(name in script for name in [*COMMANDS, *SPELLINGS])
    assert 'max-new-tokens' in script and 'no-progress' in script
    if shutil.which(shell):
        subprocess.run([shell, '-n', '/dev/stdin'], input=script, text=True, check=True)


def test_a_row_that_nobody_can_make_would_be_seen(monkeypatch):
    table = dict(SPELLINGS)
    del table['eagle']
    monkeypatch.setattr(strategy_names, 'SPELLINGS', table)
    spelled = {spelled_class(spelling) for spelling in table.values()}
    assert 'EagleDrafter' in {cls.__name__ for cls in public_strategies() - spelled}
