"A decode that is stopped, abandoned, interrupted or run beside another leaves nothing behind."

import asyncio
import gc
import json
import random
import signal
import threading
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from decodelab import (
    AssistantDrafter,
    BeamSearch,
    BlockVerifier,
    ConstrainedBeamSearch,
    ContrastiveDecoding,
    ContrastiveSearch,
    DiverseBeamSearch,
    DoLa,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    RepetitionPenalty,
    Sample,
    Speculative,
    SuffixDrafter,
    SyntheticDrafter,
    Temperature,
    TopP,
    decode,
    decode_batch,
    random_lm,
)
from decodelab.core.driver import Request, Rng, Strategy
from decodelab.drafters import (
    CascadeDrafter,
    DFlashDrafter,
    DynamicTreeDrafter,
    EagleDrafter,
    FirstOfDrafter,
    LookaheadDecodingDrafter,
    MedusaDrafter,
    PardDrafter,
    SuffixAutomatonDrafter,
    TokenRecyclingDrafter,
    TreeDrafter,
)
from decodelab.drafters.dflash import DFlashHeads
from decodelab.drafters.eagle import EagleHeads
from decodelab.drafters.hydra import HydraHeads
from decodelab.drafters.medusa import MedusaHeads
from decodelab.drafters.published_heads import Eagle3Heads
from decodelab.engines.engine import Engine
from decodelab.models.batching import ModelBatch
from decodelab.strategies import (
    Backtracking,
    BestOfN,
    BudgetForcing,
    Decided,
    DeepConf,
    InsertAfter,
    PreparedPrompt,
    Prepend,
    RepeatedNGram,
    SelfConsistency,
    TokenTriggers,
)
from decodelab.strategies.beam_search import BeamSample
from decodelab.strategies.constraints import Constraint
from decodelab.strategies.contrastive_search import DiverseContrastiveSearch
from decodelab.strategies.deepconf import LowestGroup
from decodelab.strategies.masked_diffusion import MaskedDiffusion
from decodelab.strategies.streaming import astream, stream, stream_batch

LM = random_lm(layers=3)
SMALL = random_lm(seed=1, layers=1)
EAGLE3 = Eagle3Heads(32, 64).randomized(LM)
WARM = Sample([Temperature(0.8), TopP(0.95)])


def speculative(drafter, base=Greedy(), verifier=None):
    return Speculative(drafter, base, verifier, FixedLookahead(3))


def first_token(text):
    return text[:3]


STRATEGIES = {
    'greedy': Greedy(),
    'greedy with a penalty': Greedy([RepetitionPenalty(1.3)]),
    'sample': WARM,
    'beam search': BeamSearch(3),
    'beam sample': BeamSample(3),
    'diverse beam search': DiverseBeamSearch(4, 2),
    'constrained beam search': ConstrainedBeamSearch([Constraint((((5, 6),),))], 3),
    'contrastive search': ContrastiveSearch(0.6, 4),
    'diverse contrastive search': DiverseContrastiveSearch(),
    'contrastive decoding': ContrastiveDecoding(SMALL),
    'dola': DoLa([1, 2]),
    'budget forcing': BudgetForcing(7, min_tokens=3, wait=(5, 6)),
    'backtracking': Backtracking(RepeatedNGram(2), WARM),
    'token triggers': TokenTriggers([InsertAfter((5,), (6, 7))], WARM),
    'a prepared prompt': PreparedPrompt(Prepend((2, 2)), WARM),
    'best of n': BestOfN(WARM, 3),
    'best of n, speculative': BestOfN(speculative(AssistantDrafter(SMALL), WARM), 2),
    'self-consistency': SelfConsistency(first_token, WARM, 4, stop=Decided(), at_once=2),
    'deepconf': DeepConf(first_token, WARM, 4, LowestGroup(3), warmup=2),
    'assistant': speculative(AssistantDrafter(SMALL)),
    'assistant, sampled': speculative(AssistantDrafter(SMALL), WARM),
    'assistant, blocks': speculative(AssistantDrafter(SMALL), WARM, BlockVerifier()),
    'prompt lookup': speculative(PromptLookupDrafter()),
    'prompt lookup, sampled': speculative(PromptLookupDrafter(), WARM),
    'suffix': speculative(SuffixDrafter(factor=3.0), WARM),
    'suffix automaton': speculative(SuffixAutomatonDrafter(), WARM),
    'token recycling': speculative(TokenRecyclingDrafter((3, 2, 1)), WARM),
    'parallel draft': speculative(PardDrafter(SMALL, 1, max_draft=3), WARM),
    'early exit': speculative(EarlyExitDrafter(1)),
    'early exit, sampled': speculative(EarlyExitDrafter(1), WARM),
    'synthetic': speculative(SyntheticDrafter(0.7)),
    'tree': speculative(TreeDrafter(SMALL), WARM),
    'dynamic tree': speculative(DynamicTreeDrafter(SMALL)),
    'lookahead decoding': speculative(LookaheadDecodingDrafter()),
    'first of': speculative(FirstOfDrafter(PromptLookupDrafter(), AssistantDrafter(SMALL)), WARM),
    'cascade': speculative(CascadeDrafter(SMALL, PromptLookupDrafter())),
    'medusa': speculative(MedusaDrafter(MedusaHeads.of(LM, 4))),
    'eagle': speculative(EagleDrafter(EagleHeads.of(LM)), WARM),
    'hydra': speculative(TreeDrafter(HydraHeads.of(LM, 3, prefix=True)), WARM),
    'eagle 3': speculative(EagleDrafter(EAGLE3)),
    'dflash': speculative(DFlashDrafter(DFlashHeads.of(LM, block=4)), WARM),
}
SOME = ('greedy with a penalty', 'sample', 'beam search', 'contrastive search', 'dola', 'deepconf')
SOME += ('assistant, sampled', 'early exit', 'tree', 'lookahead decoding', 'eagle', 'hydra')
SOME += ('best of n, speculative', 'self-consistency')
PROMPTS = [[5, 6, 7, 5, 6], [9], list(range(1, 30)), [3, 3, 3]]


def test_every_strategy_is_here():
    def below(cls):
        return {cls}.union(*map(below, cls.__subclasses__()))

    ours = {c for c in below(Strategy) if c.__module__.startswith('decodelab.')}
    ours -= below(Engine)  # what others decode is in tests/engines
    ours -= {MaskedDiffusion}  # of a MaskPredictor: tests/strategies/test_masked_diffusion.py
    abstract = {'Strategy', 'Base', 'ExactSample', 'ExactGreedy'}
    missing = (
        {c.__name__ for c in ours} - abstract - {type(s).__name__ for s in STRATEGIES.values()}
    )
    assert not missing


def state():
    "What a decode must leave as it was, all over the process."
    return dict(
        torch=torch.get_rng_state().tolist(),
        numpy=str(np.random.get_state()),
        python=random.getstate(),
        threads=threading.active_count(),
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        dtype=torch.get_default_dtype(),
        config=[json.dumps(lm.model.config.to_dict(), default=str) for lm in (LM, SMALL)],
        generation=[str(lm.model.generation_config.to_dict()) for lm in (LM, SMALL)],
        training=[m.training for lm in (LM, SMALL) for m in lm.model.modules()],
        grads=[p.requires_grad for lm in (LM, SMALL) for p in lm.model.parameters()],
        hooks=[len(m._forward_hooks) + len(m._forward_pre_hooks) for m in LM.model.modules()],
        filters=len(warnings.filters),
    )


def tokens_of(strategy, n=8):
    "The tokens of every prompt, each with a seed of its own."
    return [decode(LM, p, strategy, n, seed=i).tokens for i, p in enumerate(PROMPTS)]


@pytest.fixture(scope='module')
def expected():
    return {name: tokens_of(strategy) for name, strategy in STRATEGIES.items()}


def draws_of(strategy):
    "The tokens and the generator's state after them."
    request = Request(LM, list(PROMPTS[0]), 8, Rng(0))
    tokens = []
    for step in strategy.decode(request):
        tokens += step.tokens
        if len(tokens) >= 8:
            break
    return tokens, request.rng.generator.get_state().tolist()


# Beside another


@pytest.mark.parametrize('name', STRATEGIES)
def test_two_threads_with_one_model(name, expected):
    strategy, before = STRATEGIES[name], state()
    results, gate = {}, threading.Barrier(2)

    def work(k):
        gate.wait()
        results[k] = [tokens_of(strategy) for _ in range(2)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {k: [expected[name]] * 2 for k in range(2)}
    assert state() == before


def test_two_threads_with_different_strategies_and_batches(expected):
    results, gate = {}, threading.Barrier(4)

    def work(k, name):
        gate.wait()
        results[k] = tokens_of(STRATEGIES[name])
        batch = decode_batch(LM, PROMPTS, STRATEGIES[name], 3, 8)
        results[k] = results[k], [t.tokens for t in batch]

    names = ('assistant, sampled', 'early exit', 'tree', 'beam search')
    threads = [threading.Thread(target=work, args=item) for item in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {k: (expected[n], expected[n]) for k, n in enumerate(names)}


# Abandoned


@pytest.mark.parametrize('name', STRATEGIES)
def test_an_abandoned_generator(name, expected):
    strategy, before = STRATEGIES[name], state()
    draws = draws_of(strategy)
    options = dict(max_new_tokens=8, agreed_only=True)
    half = stream(LM, PROMPTS[0], strategy, **options)
    next(half.chunks, None)  # stays open while others run
    steps = strategy.decode(Request(LM, list(PROMPTS[0]), 8, Rng(0)))
    next(steps, None)  # neither closed nor exhausted
    assert tokens_of(strategy) == expected[name]
    assert draws_of(strategy) == draws
    del steps
    dropped = stream(LM, PROMPTS[0], strategy, **options)
    next(dropped.chunks, None)
    del dropped
    many = stream_batch(LM, PROMPTS, strategy, 3, **options)
    next(many, None)
    del many
    gc.collect()
    assert tokens_of(strategy) == expected[name]
    assert draws_of(strategy) == draws
    rest = ''.join(half)  # the open one goes on where it was
    assert half.trace.tokens == expected[name][0]
    assert isinstance(rest, str)
    assert state() == before


# Interrupted


class Interrupting:
    "A function that raises in its n-th call."

    def __init__(self, function, n, error):
        self.function = function
        self.left = n
        self.error = error

    def __call__(self, *args, **options):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.function(*args, **options)


@pytest.mark.parametrize('error', [KeyboardInterrupt, RuntimeError], ids=lambda e: e.__name__)
@pytest.mark.parametrize('name', STRATEGIES)
def test_an_error_inside_a_pass(name, error, expected, monkeypatch):
    strategy = STRATEGIES[name]
    before, draws = state(), draws_of(strategy)
    attention = torch.nn.functional.scaled_dot_product_attention
    for n in (2, 11):
        for run in (
            lambda: decode(LM, PROMPTS[2], strategy, 8),
            lambda: decode_batch(LM, PROMPTS, strategy, 3, 8),
        ):
            broken = Interrupting(attention, n, error('inside'))
            with monkeypatch.context() as patch:
                patch.setattr(torch.nn.functional, 'scaled_dot_product_attention', broken)
                with pytest.raises(error, match='inside'):
                    run()
            assert broken.left == 0
    assert tokens_of(strategy) == expected[name]
    assert draws_of(strategy) == draws
    batch = decode_batch(LM, PROMPTS, strategy, 3, 8)
    assert [t.tokens for t in batch] == expected[name]
    assert state() == before


@pytest.mark.skipif(not hasattr(signal, 'setitimer'), reason='no timers')
@pytest.mark.parametrize('name', SOME)
def test_an_interrupt_at_any_moment(name, expected):
    strategy, rng = STRATEGIES[name], random.Random(name)

    def interrupt(*args):
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    interrupted, frames = 0, []
    try:
        for n in range(20):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.03))
                decode_batch(LM, PROMPTS, strategy, 3, 8) if n % 2 else tokens_of(strategy)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt as error:
                interrupted += 1
                frames = traceback.extract_tb(error.__traceback__)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            leave_inference_mode(frames)
            if n % 10 == 9:
                assert tokens_of(strategy) == expected[name]
    finally:
        signal.signal(signal.SIGALRM, old)
    assert interrupted > 2


LEFT = []  # guards that keep the mode switched off


def leave_inference_mode(frames: list[traceback.FrameSummary]):
    """Switch off what an interrupt inside `torch.inference_mode().__enter__` or `__exit__` leaves on.

    Both are Python in torch: 3 of 5,000 interrupts came between its switch and the return. An inner block that
    was not left switches the mode on again when its guard is deleted, after the outer one has switched it off.
    """
    names = [Path(frame.filename).name for frame in frames[-2:]]
    inside = names == ['grad_mode.py', Path(__file__).name]
    if inside:
        gc.collect()  # whatever the interrupted blocks have left
    if torch.is_inference_mode_enabled():
        assert inside, frames
        LEFT.append(torch._C._InferenceMode(False))
        LEFT[-1].__enter__()


@pytest.mark.parametrize('name', ('deepconf', 'self-consistency', 'best of n, speculative'))
def test_an_interrupt_that_leaves_a_batch_half_changed(name, expected, monkeypatch):
    strategy = STRATEGIES[name]
    whole, interrupted = ModelBatch.release, []

    def release(batch, session):
        if interrupted:
            return whole(batch, session)
        interrupted.append(session)
        batch.sessions.clear()
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelBatch, 'release', release)
    with pytest.raises(KeyboardInterrupt):
        decode_batch(LM, PROMPTS, strategy, 3, 8)
    assert interrupted
    assert not torch.is_inference_mode_enabled()
    assert tokens_of(strategy) == expected[name]


# Cancelled


@pytest.mark.parametrize('name', SOME)
def test_a_cancelled_stream(name, expected):
    strategy = STRATEGIES[name]
    options = dict(max_new_tokens=8, agreed_only=True)

    async def read_one():
        async with astream(LM, PROMPTS[0], strategy, **options) as flow:
            async for _ in flow:
                return

    async def cancel(delay):
        flow = astream(LM, PROMPTS[2], strategy, **options)
        task = asyncio.ensure_future(_exhaust(flow))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return flow

    async def main():
        for delay in (0, 0.001, 0.004, 0.02):
            await read_one()
            await cancel(delay)
        whole = astream(LM, PROMPTS[0], strategy, **options)
        await _exhaust(whole)
        return whole.trace.tokens

    before, draws = state(), draws_of(strategy)
    assert asyncio.run(main()) == expected[name][0]
    deadline = threading.Event()
    for _ in range(100):  # the last step of a cancelled stream may still be on its way
        if threading.active_count() <= before['threads']:
            break
        deadline.wait(0.05)
    assert tokens_of(strategy) == expected[name]
    assert draws_of(strategy) == draws
    assert state() == before


async def _exhaust(flow):
    async for _ in flow:
        pass


# Two hundred times


@pytest.fixture
def frozen():
    """What exists is not looked through again each time that objects are counted.

    Nor in later tests: `gc.unfreeze` would also undo what `preloaded.search_less` does for all of them.
    """
    gc.collect()
    gc.freeze()


def n_objects():
    "`(tensors, objects)` that the garbage collector knows."
    gc.collect()
    objects = gc.get_objects()
    return sum(issubclass(type(o), torch.Tensor) for o in objects), len(objects)


@pytest.mark.parametrize('name', STRATEGIES)
def test_60_decodes_leave_nothing_behind(name, frozen):
    strategy = STRATEGIES[name]
    decodes = lambda n: [decode(LM, PROMPTS[i % 4], strategy, 4, seed=i).tokens for i in range(n)]
    first = decodes(20)
    before, (tensors, objects) = state(), n_objects()
    assert decodes(40)[:20] == first
    more_tensors, more_objects = n_objects()
    assert more_tensors == tensors
    assert more_objects - objects < 10  # less than one in four decodes
    assert state() == before


@pytest.mark.parametrize('heads', [MedusaHeads, EagleHeads, HydraHeads, DFlashHeads])
def test_the_first_decode_with_heads_draws_no_global_numbers(heads):
    "A target gets a copy of its heads, whose weights are made before they are replaced."
    drafter = AssistantDrafter(heads.of(LM))
    before = torch.random.get_rng_state()
    decode(LM, PROMPTS[0], speculative(drafter), 4)
    assert torch.equal(before, torch.random.get_rng_state())
    a, b = (heads.of(LM).randomized(LM, seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize('name', SOME)
def test_batches_leave_nothing_behind(name, frozen):
    strategy = STRATEGIES[name]
    batch = lambda _: [t.tokens for t in decode_batch(LM, PROMPTS, strategy, 3, 4)]
    batches = lambda n: list(map(batch, range(n)))
    first = batches(5)
    before, (tensors, objects) = state(), n_objects()
    assert batches(10)[:5] == first
    more_tensors, more_objects = n_objects()
    assert more_tensors == tensors
    assert more_objects - objects < 8
    assert state() == before


def test_a_bad_prompt_among_500_costs_only_itself(expected):
    def broken(ids, scores):
        if ids[0, 0] == 63:
            raise RuntimeError('a processor of mine')
        return scores

    rng = random.Random(0)
    good = []
    for _ in range(500):
        good.append([rng.randrange(1, 60) for _ in range(rng.randrange(1, 9))])
    prompts = list(good)
    for i, bad in {17: [63, 5], 250: [], 499: [1, 9999]}.items():
        prompts[i] = bad
    before = state()
    strategy = Greedy([broken])
    batch = decode_batch(LM, prompts, strategy, 16, 3, on_error='keep')
    assert list(batch.errors) == [17, 250, 499]
    assert len(batch) == 500
    assert [type(e) for e in batch.errors.values()] == [RuntimeError, ValueError, ValueError]
    plain = decode_batch(LM, good, Greedy(), 16, 3)
    for i, (trace, alone) in enumerate(zip(batch, plain)):
        assert (
            (trace.tokens == [] and trace.error)
            if i in batch.errors
            else (trace.tokens == alone.tokens and trace.error is None)
        )
    assert batch[17].stopped == 'error RuntimeError: a processor of mine'
    assert '3 of them failed, the first is number 17 (RuntimeError: a proc' in repr(batch)
    for trace in (batch[17], batch[250]):  # a trace like any other
        assert 'error' in repr(trace)
        assert trace.to_json()
        assert trace._repr_html_()
        assert trace.metrics()['new_tokens'] == 0
    with pytest.raises(ValueError, match='the prompt is empty|outside the vocabulary'):
        decode_batch(LM, prompts[200:], strategy, 16, 3)
    with pytest.raises(RuntimeError) as caught:
        decode_batch(LM, prompts[:30], strategy, 16, 3)
    assert caught.value.__notes__ == ['while decoding prompt number 17']
    with pytest.raises(ValueError, match="on_error is 'skip': give one of 'raise', 'keep'"):
        decode_batch(LM, good, strategy, on_error='skip')
    assert state() == before


@pytest.mark.parametrize('name', ['sample', 'assistant, sampled', 'tree', 'beam search', 'eagle'])
def test_the_seeds_of_the_others_stay(name, expected):
    prompts = [PROMPTS[0], [], *PROMPTS[1:], [9999]]
    batch = decode_batch(LM, prompts, STRATEGIES[name], 3, 8, on_error='keep')
    alone = [
        decode(LM, p, STRATEGIES[name], 8, seed=i).tokens
        for i, p in enumerate(prompts)
        if i not in (1, 5)
    ]
    assert [t.tokens for t in batch if not t.error] == alone
    assert list(batch.errors) == [1, 5]


def test_a_prompt_that_does_not_fit_the_cache():
    prompts = [[5], [6] * 100, [7]]
    batch = decode_batch(LM, prompts, Greedy(), 2, 4, cache_tokens=64, on_error='keep')
    assert list(batch.errors) == [1]
    assert 'cache_tokens is 64' in str(batch[1].error)
    with pytest.raises(ValueError, match='cache_tokens is 64'):
        decode_batch(LM, prompts, Greedy(), 2, 4, cache_tokens=64)
