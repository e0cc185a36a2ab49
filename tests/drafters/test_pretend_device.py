"""Every part on a device that is not the CPU (`evaluate.pretend`): no mixed devices, the same tokens, few host reads.

Parts are made from their signatures by `tests/fuzz/parts.py`: a new one is tried here without being named.
With DECODELAB_TEST_DEVICE=cuda the device is a real one, and its reads and kernels are what the profiler saw.
"""

import contextlib
import copy
import importlib
import inspect
import os
import pkgutil
import random
from collections import Counter
from unittest import mock

import pytest
import torch

from decodelab import LM, Greedy, Speculative, Stop, decode, decode_batch, load
from decodelab.core.driver import Strategy
from decodelab.evaluate import pretend
from decodelab.evaluate.pretend import move, pretend_device
from decodelab.logits.warpers import LogitsProcessor
from decodelab.speculative import BackoffLookahead, SelfMeasuringLookahead
from decodelab.speculative.protocol import Drafter, LookaheadRule, Verifier
from decodelab.strategies import InsertAfter, LowestGroup, Prepend, RepeatedNGram
from decodelab.strategies.constraints import PhrasalConstraint
from decodelab.watermark.base import Watermark
from tests.fuzz.cases import RejectedError, judged, world_of
from tests.fuzz.models import build
from tests.fuzz.parts import Maker, classes, namespace, subclasses

REAL = os.environ.get('DECODELAB_TEST_DEVICE')  # such as cuda; without it, the pretend device
VOCABULARY = 40
PROMPT = [1, 2, 3, 1, 2]
N = 5

# What stands for a class whose arguments `Maker` does not know; None: not tried, since it is only inherited from
BY_HAND = dict(
    Base=None,
    MaskedDiffusion=None,  # reads a predictor of masks, which none of these models is
    Greedy='Greedy()',
    Sample='Sample()',
    BeamSearch='BeamSearch(3, RepetitionPenalty(1.2))',
    BeamSample='BeamSample(3)',
    DiverseBeamSearch='DiverseBeamSearch(4)',
    ConstrainedBeamSearch='ConstrainedBeamSearch([PhrasalConstraint([3, 4])])',
    ContrastiveSearch='ContrastiveSearch()',
    DiverseContrastiveSearch='DiverseContrastiveSearch()',
    ContrastiveDecoding='ContrastiveDecoding(draft)',
    DoLa='DoLa()',
    BudgetForcing='BudgetForcing(7, min_tokens=3, wait=(5, 6))',
    Backtracking='Backtracking(RepeatedNGram(2))',
    TokenTriggers='TokenTriggers([InsertAfter((5,), (6, 7))])',
    PreparedPrompt='PreparedPrompt(Prepend((2, 2)))',
    BestOfN='BestOfN(Sample(), 3)',
    SelfConsistency='SelfConsistency(len, Sample(), 3)',
    DeepConf='DeepConf(len, Sample(), 4, LowestGroup(2), warmup=2)',
    GreenListWatermark=None,
    SynthID='SynthID([1, 2, 3])',
    TransformersGreenList=f'TransformersGreenList({VOCABULARY})',
)


@contextlib.contextmanager
def numbers_of_cpu():
    "A block in which generators of any device draw the numbers that one of the CPU draws from their seed."
    rand, twins = torch.rand, {}

    def draw(*size, generator=None, device=None, **options):
        if generator is None or generator.device.type == 'cpu':
            return rand(*size, generator=generator, device=device, **options)
        if id(generator) not in twins:  # kept with its twin: no other gets its id
            twin = torch.Generator().manual_seed(generator.initial_seed())
            twins[id(generator)] = generator, twin
        return rand(*size, generator=twins[id(generator)][1], **options).to(device)

    with mock.patch('torch.rand', draw):
        yield


@contextlib.contextmanager
def device_block():
    "A block that gives the device; a real one draws the CPU's numbers there, as the pretend one does."
    with numbers_of_cpu() if REAL else pretend_device() as device:
        yield device or torch.device(REAL)


@contextlib.contextmanager
def count_traffic():
    "Host reads and kernels of a block, once it has ended."
    if not REAL:
        with pretend.count_traffic() as counts:
            yield counts
        return
    counts = Counter()
    torch.accelerator.synchronize()
    with torch.profiler.profile() as profiler:
        yield counts
        torch.accelerator.synchronize()
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            copied = event.name.startswith(('Memcpy', 'Memset'))
            counts['reads'] += event.name.startswith('Memcpy DtoH')
            counts['kernels'] += not copied
    assert counts['kernels'], 'the profiler saw nothing of the device'


def by_hand(cls) -> list[str]:
    "The expression for a strategy or a watermark, if there is one."
    expression = BY_HAND.get(cls.__name__, f'{cls.__name__}(1)')
    return [] if expression is None else [expression]


def of_part(kind, part: str) -> list:
    "The package's own classes of a kind in a part."
    for module in pkgutil.iter_modules(importlib.import_module(f'decodelab.{part}').__path__):
        importlib.import_module(f'decodelab.{part}.{module.name}')
    result = {c for c in subclasses(kind) if c.__module__.startswith(f'decodelab.{part}.')}
    return sorted(result, key=lambda c: c.__name__)


def expressions() -> list[str]:
    "An expression for every part but drafters, in a strategy that uses it."
    maker = Maker(random.Random(2), VOCABULARY)
    assisted = 'Speculative(AssistantDrafter(draft), '
    results = [e for c in of_part(Strategy, 'strategies') for e in by_hand(c)]
    for name, c in classes(Verifier).items():
        inner = 'TokenVerifier()' if 'verifier' in inspect.signature(c).parameters else ''
        results.append(f'{assisted}Sample(), {name}({inner}))')
    for heads in ('hydra', 'eagle3', 'dflash'):
        results += [f'Speculative(AssistantDrafter({heads}), Sample())']
        results += [f'Speculative(DynamicTreeDrafter({heads}, 4, 2), Greedy())']
    results += [f'{assisted}Greedy())', f'{assisted}Sample(), LenientVerifier(0.7))']
    results += [
        f'{assisted}Sample(), TypicalAcceptanceVerifier())',
        f'{assisted}deterministic=True)',
    ]
    results += [
        f'{assisted}Sample(), lookahead={maker.make(c, 0)})'
        for c in classes(LookaheadRule).values()
    ]
    results += [f'{assisted}Sample({maker.make(c, 0)}))' for c in classes(LogitsProcessor).values()]
    return results + [
        f'{assisted}Sample({e}))' for c in of_part(Watermark, 'watermark') for e in by_hand(c)
    ]


def names(world: dict) -> dict:
    "What an expression may name."
    parts = PhrasalConstraint, RepeatedNGram, InsertAfter, Prepend, LowestGroup
    result = dict(Speculative=Speculative) | {c.__name__: c for c in parts}
    for kind in (Strategy, Watermark, Verifier, LogitsProcessor):
        result |= {c.__name__: c for c in subclasses(kind)}
    return result | namespace(world) | world


@pytest.fixture(scope='module')
def worlds():
    "The models and heads on the CPU, and the same on the device."
    here = world_of('llama', VOCABULARY)
    for name in ('medusa', 'eagle', 'hydra', 'eagle3', 'dflash', 'other'):
        here[name]
    with device_block() as device:
        there = {
            name: move(x, device) if isinstance(x, LM) else copy.deepcopy(x).to(device)
            for name, x in here.items()
        }
        yield dict(here), there


def steps_of(world: dict, expression: str) -> list[tuple]:
    "Tokens and counts of each step of a strategy."
    strategy = eval(expression, names(world))
    trace = decode(world['target'], PROMPT, strategy, N, seed=3)
    return [(s.tokens, s.drafted, s.accepted) for s in trace.steps]


@pytest.mark.parametrize('expression', expressions())
def test_same_tokens(worlds, expression):
    assert steps_of(worlds[0], expression) == steps_of(worlds[1], expression)


@pytest.mark.parametrize('base', ['Greedy()', 'Sample()'])
@pytest.mark.parametrize('name', classes(Drafter))
def test_same_tokens_with_every_drafter(worlds, name, base):
    "A random drafter of the class, the first that is not refused: heads of two kinds are, for example."
    if 'Synthetic' in name:
        base = 'Greedy()'
    for seed in range(20):
        made = Maker(random.Random(seed), VOCABULARY).make(classes(Drafter)[name], 2)
        expression = f'Speculative({made}, {base})'
        try:
            with judged():
                want = steps_of(worlds[0], expression)
        except RejectedError:
            continue
        assert steps_of(worlds[1], expression) == want
        return
    raise AssertionError(f'twenty random {name} were all refused')


ASSISTED = 'Speculative(AssistantDrafter(draft), {})'
ROUNDS = {  # strategy → host reads a step, at most
    'Greedy()': 1,
    'Sample(TopP(0.9))': 1,
    'BeamSearch(3)': 1,
    'DoLa([0, 1])': 1,
    'DoLa([0, 1], Sample(Temperature(0.9)))': 1,
    ASSISTED.format('Greedy()'): 1,
    ASSISTED.format('Sample(TopP(0.9))'): 1,
    ASSISTED.format('Greedy(), lookahead=HeuristicLookahead(3)'): 1,
    ASSISTED.format('Sample(), ExactMatchVerifier()'): 1,
    ASSISTED.format('Sample(), BlockVerifier()'): 1,
    'Speculative(AssistantDrafter(draft, Greedy()), Sample())': 1,
    'Speculative(EarlyExitDrafter(1), Greedy())': 1,
    'Speculative(EarlyExitDrafter(1), Sample(TopP(0.9)))': 1,
    'Speculative(PromptLookupDrafter(), Sample())': 1,
    'Speculative(PromptLookupDrafter(), Greedy())': 1,
    ASSISTED.format('Sample(), lookahead=ConfidenceLookahead(0.01, 4)'): 6,
    'Speculative(TreeDrafter(draft, (2, 1)), Greedy())': 3,
}


def reads_of(world, strategy, n: int, batch: bool) -> tuple[int, int]:
    "`(host reads, steps or joined passes)` of a run."
    prompts = [PROMPT, [4, 5], [7]]
    with count_traffic() as traffic:
        if batch:
            costs = decode_batch(world['target'], prompts, strategy, 3, n, seed=3).costs
            rounds = max(c['passes'] for c in costs)
        else:
            rounds = len(decode(world['target'], PROMPT, strategy, n, seed=3).steps)
    return traffic['reads'], rounds


@pytest.mark.parametrize('expression', ROUNDS)
def test_host_reads_a_round(worlds, expression):
    strategy = eval(expression, names(worlds[1]))
    reads_of(worlds[1], strategy, 2, False)  # what is measured of a model once
    short, few = reads_of(worlds[1], strategy, 4, False)
    long, many = reads_of(worlds[1], strategy, 12, False)
    assert many > few
    assert long - short <= ROUNDS[expression] * (many - few)


KERNELS = 13 * 8 + 7  # a step: 13 in each of 8 layers; embedding, norm, head, choice and checks


def test_kernels_a_token():
    """A greedy step of the embedded model by the native forward.

    In a layer: two norms, four products, three of the rotation, one copy to the cache, attention, two of
    the MLP.
    """
    lm = load('pico', device='cpu')
    with device_block() as device:
        there = move(lm, device)
        counts = []
        for n in (2, 4, 12):  # the first run measures the model
            with count_traffic() as traffic:
                decode(there, PROMPT, Greedy(), n, stop=Stop(eos=()))
            counts.append(traffic['kernels'])
    assert len(lm.native.weights.layers) == 8
    assert counts[2] - counts[1] <= KERNELS * 8


BATCHED = [
    'Greedy()',
    'Sample()',
    'BeamSearch(2)',
    ASSISTED.format('Greedy()'),
    ASSISTED.format('Sample()'),
]


@pytest.mark.parametrize('expression', BATCHED)
def test_batches(worlds, expression):
    "The same tokens, and one host read a joined pass at most."
    here, there = (
        decode_batch(w['target'], [PROMPT, [4, 5], [7]], eval(expression, names(w)), 3, 4, seed=3)
        for w in worlds
    )
    assert [t.tokens for t in here] == [t.tokens for t in there]
    strategy = eval(expression, names(worlds[1]))
    short, few = reads_of(worlds[1], strategy, 3, True)
    long, many = reads_of(worlds[1], strategy, 9, True)
    assert many > few
    assert long - short <= many - few


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_no_sequence_runs_alone(dtype):
    "In a batch of the embedded model all passes are joined, and by the native forward."
    lm = load('pico', device='cpu', dtype=dtype)
    with device_block() as device:
        there = move(lm, device)
        batch = decode_batch(there, [PROMPT, [4, 5], [7]], Greedy(), 3, 4)
        assert there.native is not None
        assert not batch.unbatched
        assert batch.costs[0]['rows'] > batch.costs[0]['passes']


@pytest.mark.parametrize('rule', ['BackoffLookahead()', 'SelfMeasuringLookahead()'])
@pytest.mark.parametrize('drafter', ['AssistantDrafter(draft)', 'PromptLookupDrafter()'])
def test_rules_that_stop_drafting(worlds, drafter, rule):
    "The same tokens, whatever a clock shows."
    rules = dict(BackoffLookahead=BackoffLookahead, SelfMeasuringLookahead=SelfMeasuringLookahead)
    for base in ('Greedy()', 'Sample()'):
        expression = f'Speculative({drafter}, {base}, lookahead={rule})'
        results = []
        for world in worlds:
            strategy = eval(expression, names(world) | rules)
            results.append(decode(world['target'], PROMPT, strategy, 3 * N, seed=3).tokens)
        assert results[0] == results[1]


def test_the_end_of_a_sequence_inside_a_draft(worlds):
    "A draft on the device goes on behind the end; the steps are those of the CPU all the same."
    for base in ('Greedy()', 'Sample()'):
        for stop in (0, 15, 30):
            results = []
            for world in worlds:
                strategy = eval(ASSISTED.format(base), names(world))
                trace = decode(world['target'], PROMPT, strategy, 6, stop=Stop(eos=(stop, 6, 37)))
                results.append(
                    [
                        (s.tokens, s.drafted, s.accepted, s.rejected, s.draft_tokens)
                        for s in trace.steps
                    ]
                )
            assert results[0] == results[1]


def test_no_device_is_mixed_in_a_model_of_another_family(worlds):
    device = worlds[1]['target'].device
    for architecture in ('gpt2', 'gemma2', 'mamba'):
        lm = build(architecture)
        there = move(lm, device)
        assert decode(there, PROMPT, Greedy(), 3).tokens == decode(lm, PROMPT, Greedy(), 3).tokens
