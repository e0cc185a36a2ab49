"""Recorded steps and rounds (`cuda_graphs`) on the pretend accelerator: the tokens of the CPU, and few launches.

Its graphs have the rules of CUDA's: what is recorded runs later, on the same memory, and without the host.
With DECODELAB_TEST_DEVICE=cuda the device is a real one, whose tokens are compared where none is drawn.
"""

import contextlib
import os
import warnings
from dataclasses import dataclass

import pytest
import torch

from decodelab import (
    AssistantDrafter,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    Sample,
    Speculative,
    Stop,
    Temperature,
    TopP,
    decode,
    load,
)
from decodelab.core.driver import Request, Rng, iter_steps
from decodelab.evaluate.pretend import count_traffic, move, pretend_device
from decodelab.logits.warpers import Warper
from decodelab.speculative import BlockVerifier, ExactMatchVerifier
from tests.fuzz.models import build

REAL = os.environ.get('DECODELAB_TEST_DEVICE')  # such as cuda; without it, the pretend device
pretended = pytest.mark.skipif(bool(REAL), reason='of the pretend accelerator')
PROMPTS = [5, 9, 2, 11, 4], [300, 7, 21]
AHEAD = FixedLookahead(3)
STOP = Stop(eos=())
WARM = 2  # steps: the prompt, and the first draft of it


@contextlib.contextmanager
def device_block():
    "A block that gives the device."
    with contextlib.nullcontext(torch.device(REAL)) if REAL else pretend_device() as device:
        yield device


@pytest.fixture(scope='module')
def pairs():
    "`(target, draft)` on the CPU, and the same on the device with graphs."
    here = load('pico', device='cpu'), load('pico-draft', device='cpu')
    with device_block() as device:
        there = [move(lm, device).compile(width=1, cuda_graphs=True) for lm in here]
        yield here, there


def assisted(*options, draft_base=None, **more):
    "Drafting by the small model of a pair."
    return lambda pair: Speculative(
        AssistantDrafter(pair[1], draft_base), *options, lookahead=AHEAD, **more
    )


STRATEGIES = {  # name → strategy of a pair, launches of a step
    'greedy': (lambda pair: Greedy(), 1),
    'sampling': (lambda pair: Sample(Temperature(0.7)), 2),
    'sampling, top-p': (lambda pair: Sample(TopP(0.9)), 2),
    'assistant, greedy': (assisted(), 1),
    'assistant, sampling': (assisted(Sample()), 2),
    'assistant, top-p': (assisted(Sample(TopP(0.9)), BlockVerifier()), 2),
    'assistant, exact match': (assisted(Sample(), ExactMatchVerifier()), 2),
    'assistant, greedy drafts': (assisted(Sample(), draft_base=Greedy()), 2),
    'early exit, greedy': (lambda pair: Speculative(EarlyExitDrafter(2), lookahead=AHEAD), 1),
    'early exit, sampling': (
        lambda pair: Speculative(EarlyExitDrafter(2), Sample(), lookahead=AHEAD),
        2,
    ),
}


def steps_of(lm, prompt, strategy, n: int) -> list[tuple]:
    "Tokens and counts of each step, with the traffic of the device."
    request = Request(lm, list(prompt), n, Rng(3, lm.device), STOP)
    steps = iter_steps(request, strategy)
    rows = []
    while True:
        with count_traffic() as traffic:
            step = next(steps, None)
        if step is None:
            return rows
        rows.append(((step[0].tokens, step[0].drafted, step[0].accepted), traffic))


@pytest.mark.parametrize('name', STRATEGIES)
def test_launches_of_a_step(pairs, name):
    "One launch, or two with random numbers; one host read; nothing sent to the device."
    make, launches = STRATEGIES[name]
    if REAL and launches > 1:
        pytest.skip('a real device draws other numbers')
    here, there = make(pairs[0]), make(pairs[1])
    for prompt in (*PROMPTS, PROMPTS[0]):
        want = [row for row, _ in steps_of(pairs[0][0], prompt, here, 20)]
        rows = steps_of(pairs[1][0], prompt, there, 20)
        assert [row for row, _ in rows] == want
    if REAL:
        return
    counts = [traffic for _, traffic in rows[WARM:]]
    assert all(c['replays'] == 1 for c in counts)
    assert {c['launches'] for c in counts} <= {launches, launches + 2}  # a new stock of numbers
    assert min(c['launches'] for c in counts) == launches
    assert all(c['reads'] == 1 for c in counts)
    assert all(c['writes'] == 0 for c in counts)


def test_a_longer_cache_has_a_recording_of_its_own(pairs):
    prompt = [3, 4, 5] * 82
    for name in ('greedy', 'assistant, greedy'):
        here, there = (STRATEGIES[name][0](pair) for pair in pairs)
        want = decode(pairs[0][0], prompt, here, 16, stop=STOP).tokens
        assert decode(pairs[1][0], prompt, there, 16, stop=STOP).tokens == want
    assert {256, 512} <= set(pairs[1][0].graphs.free)


@pytest.mark.parametrize('n', range(249, 254))
def test_rounds_that_are_recorded_at_the_end_of_a_cache(n):
    here = [load('pico-draft', device='cpu') for _ in range(2)]  # the draft is its target
    with device_block() as device:
        there = [move(lm, device).compile(width=1, cuda_graphs=True) for lm in here]
        prompt = [3 + i % 50 for i in range(n)]
        want = decode(here[0], prompt, Greedy(), 12, stop=STOP).tokens
        trace = decode(there[0], prompt, assisted()(there), 12, stop=STOP)
    assert trace.tokens == want
    assert all(step.accepted == step.drafted for step in trace.steps)


def test_two_sequences_at_once_have_two_seats(pairs):
    target = pairs[1][0]
    requests = [Request(target, list(p), 8, Rng(0, target.device), STOP) for p in PROMPTS]
    runs = [iter_steps(request, Greedy()) for request in requests]
    texts = [[], []]
    for _ in range(8):
        for text, run in zip(texts, runs):
            text += next(run)[0].tokens
    assert texts == [decode(pairs[0][0], p, Greedy(), 8, stop=STOP).tokens for p in PROMPTS]


def test_the_seats_of_finished_sequences_are_taken_again(pairs):
    graphs = pairs[1][0].graphs
    decode(pairs[1][0], PROMPTS[0], Greedy(), 4, stop=STOP)
    seats = len(graphs.free[256])
    decode(pairs[1][0], PROMPTS[1], Greedy(), 4, stop=STOP)
    assert len(graphs.free[256]) == seats


def test_an_end_inside_a_draft(pairs):
    want = decode(pairs[0][0], PROMPTS[0], Greedy(), 16, stop=STOP).tokens
    stop = Stop(eos=(want[6],))
    for name in ('greedy', 'assistant, greedy'):
        here, there = (
            decode(pair[0], PROMPTS[0], STRATEGIES[name][0](pair), 16, stop=stop) for pair in pairs
        )
        assert there.tokens == here.tokens
        assert there.stopped == here.stopped == 'eos'


def test_what_the_host_drafts_is_not_recorded_and_the_same(pairs):
    strategy = Speculative(PromptLookupDrafter(), lookahead=AHEAD)
    prompt = [5, 6, 7, 8] * 4
    want = decode(pairs[0][0], prompt, strategy, 16, stop=STOP).tokens
    assert decode(pairs[1][0], prompt, strategy, 16, stop=STOP).tokens == want


@pretended
@pytest.mark.parametrize(
    ('architecture', 'replays'), [('gpt2', True), ('gemma2', True), ('mixtral', False)]
)
def test_other_families(architecture, replays):
    "Experts have shapes that depend on the tokens: one warning, and nothing is recorded."
    here = build(architecture)
    with pretend_device() as device, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        there = move(here, device).compile(width=1, cuda_graphs=True)
        for make in (lambda lm: Greedy(), lambda lm: Speculative(AssistantDrafter(lm))):
            want = decode(here, PROMPTS[0], make(here), 12, stop=STOP).tokens
            with count_traffic() as traffic:
                assert decode(there, PROMPTS[0], make(there), 12, stop=STOP).tokens == want
            assert bool(traffic['replays']) == replays
    shapes = [str(w.message) for w in caught if 'the shape of a result depends' in str(w.message)]
    assert len(shapes) == (not replays)


@dataclass(frozen=True, repr=False)
class ReadsItsScores(Warper):
    "A processor that asks the device for a number."

    def __call__(self, input_ids, scores):
        return scores - scores.max().item()


@pretended
def test_a_host_read_inside_a_step_is_not_recorded():
    "One warning with the reason; the tokens are those of the CPU."
    here = load('pico-draft', device='cpu')
    base = Sample(ReadsItsScores())
    want = decode(here, PROMPTS[0], base, 8, stop=STOP).tokens
    with pretend_device() as device:
        there = move(here, device).compile(width=1, cuda_graphs=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            got = decode(there, PROMPTS[0], base, 8, stop=STOP).tokens
    assert got == want
    assert 'the host reads a number inside a capture' in str(caught[0].message)


@pretended
def test_a_capture_records_and_does_not_run():
    "Memory from before is as it was until the first replay; memory of the graph may be changed inside."
    with pretend_device() as device:
        module = torch.get_device_module(device)
        x = torch.arange(4.0, device=device)
        graph = module.CUDAGraph()
        with module.graph(graph):
            y = torch.zeros(4, device=device)
            y[1:3] = x[:2]
            y.mul_(10)
            x.add_(1)
        assert x.tolist() == [0, 1, 2, 3]
        graph.replay()
        assert x.tolist() == [1, 2, 3, 4]
        assert y.tolist() == [0, 0, 10, 0]
        graph.replay()
        assert y.tolist() == [0, 10, 20, 0]
        with pytest.raises(RuntimeError, match='the host waits for the device inside a capture'):
            with module.graph(module.CUDAGraph()):
                torch.accelerator.synchronize()
        (x + 1).tolist()  # the capture is over
