"The command line reaches every public strategy, drafter, verifier and lookahead rule by name."

import inspect
import os
import re
import shutil
import subprocess

import pytest
from repo import ROOT

from decodelab import Speculative
from decodelab.cli import strategy_names
from decodelab.cli.completion import SHELLS, completion_script
from decodelab.cli.main import COMMANDS, main, make_parser
from decodelab.cli.strategy_names import (
    LOOKAHEADS,
    SPELLINGS,
    UNSPELLED,
    VERIFIERS,
    Models,
    make_strategy,
    spelled_class,
)
from decodelab.core.driver import Strategy
from decodelab.speculative.protocol import Drafter, LookaheadRule, Verifier

os.environ['HF_HUB_OFFLINE'] = '1'
MODELS = Models(device='cpu')


@pytest.fixture(scope='module')
def lm():
    return MODELS.load_target()


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
    'sparse-kv:2,64': 'SparseKVDrafter(2, window=64)',
    'quantized-kv:8': 'QuantizedKVDrafter(8)',
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
    assert isinstance(strategy, Speculative)
    assert repr(strategy.base) == 'Greedy()'
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
    assert len(words.constraints) == 2
    assert words.num_beams == 3
    amateur = make_strategy('contrastive-decoding:0.2', MODELS)
    assert 'pico-draft' in repr(amateur)
    assert '0.2' in repr(amateur)
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


@pytest.mark.parametrize('command', ['generate x', 'compare --no-compile', 'tune', 'certify'])
def test_one_spelling_in_every_command(command, capsys):
    option = '--strategies' if 'compare' in command else '--strategy'
    status = main([*command.split(), option, 'eagel:16', '--device', 'cpu'])
    assert status == 2
    assert 'did you mean eagle' in capsys.readouterr().err


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
    assert 'max-new-tokens' in script
    assert 'no-progress' in script
    if shutil.which(shell):
        subprocess.run([shell, '-n', '/dev/stdin'], input=script, text=True, check=True)


def test_a_strategy_without_a_name_would_be_seen(monkeypatch):
    table = dict(SPELLINGS)
    del table['eagle']
    monkeypatch.setattr(strategy_names, 'SPELLINGS', table)
    spelled = {spelled_class(spelling) for spelling in table.values()}
    assert 'EagleDrafter' in {cls.__name__ for cls in public_strategies() - spelled}
