"Sequences decoded in batches equal, token by token and count by count, those decoded alone."

import itertools

import pytest
import torch

from decodelab import (
    LM,
    AssistantDrafter,
    BlockVerifier,
    ClassifierFreeGuidance,
    EarlyExitDrafter,
    ExactMatchVerifier,
    FixedLookahead,
    Greedy,
    LenientVerifier,
    PromptLookupDrafter,
    RepetitionPenalty,
    Sample,
    Speculative,
    Stop,
    SuffixDrafter,
    SyntheticDrafter,
    Temperature,
    TokenIntersectionDrafter,
    TopP,
    TypicalAcceptanceVerifier,
    UniversalDrafter,
    decode,
    decode_batch,
    load,
    random_lm,
)
from decodelab.drafters import (
    PardDrafter,
    SparseKVDrafter,
    SuffixAutomatonDrafter,
    TokenRecyclingDrafter,
)
from decodelab.evaluate.certify import ARCHITECTURES
from decodelab.logits import Mirostat
from tests.random_prompts import random_prompts

SIZES = (1, 2, 7, 32)
WARM = [Temperature(0.8), TopP(0.95)]


def prompts(vocab_size, lengths=(1, 2, 3, 30, 90, 7, 1, 64, 12)):
    return random_prompts(lengths, vocab_size, lowest=1)


def weights_of(lm):
    "Copies of a model's weights by name."
    return {k: v.clone() for k, v in lm.model.state_dict().items()}


def counts(trace):
    return trace.stopped, [
        (s.tokens, s.drafted, s.accepted, s.rejected, s.target_passes, s.draft_passes, s.info)
        for s in trace.steps
    ]


def same(lm, texts, strategy, sizes=SIZES, n=10, **kw):
    "Assert that every size of batch gives what one by one gives."
    alone = [counts(decode(lm, p, strategy, n, seed=3 + i, **kw)) for i, p in enumerate(texts)]
    for size in sizes:
        batch = decode_batch(lm, texts, strategy, size, n, seed=3, **kw)
        assert [counts(t) for t in batch] == alone, (strategy, size)
    return batch


BASES = Greedy(), Sample(WARM), Greedy([RepetitionPenalty(1.3)])


def strategies(lm, draft, bases=BASES):
    "Every drafter on every kind of base."
    drafters = [
        AssistantDrafter(draft),
        PromptLookupDrafter(),
        *(make(lm, draft) for make in OTHERS),
    ]
    for base in bases:
        yield base
        yield from (
            Speculative(d, base=base, lookahead=FixedLookahead(3))
            for d in drafters
            if base.greedy or not isinstance(d, SyntheticDrafter)
        )


OTHERS = [
    lambda lm, draft: SuffixDrafter(factor=3.0),
    lambda lm, draft: SuffixAutomatonDrafter(nodes=5),
    lambda lm, draft: TokenRecyclingDrafter((2, 1)),
    lambda lm, draft: PardDrafter(draft, 1, max_draft=3),
    lambda lm, draft: EarlyExitDrafter(1),
    lambda lm, draft: SparseKVDrafter(1, 3),
    lambda lm, draft: SyntheticDrafter(0.7),
]


@pytest.mark.parametrize('family', ARCHITECTURES)
def test_every_family(family):
    lm, draft = random_lm(family, layers=3), random_lm(family, seed=1, layers=1)
    texts = prompts(64, (1, 2, 30, 90, 7, 1, 64))
    some = strategies(lm, draft, BASES[:2])  # processors do not depend on the family
    # a drafter is greedy with every other family, and samples with those between
    for strategy in itertools.islice(some, list(ARCHITECTURES).index(family) % 2, None, 2):
        batch = same(lm, texts, strategy, sizes=(5,), n=8)
        assert batch.unbatched == {}, batch
        assert all(c['rows'] > 1.5 * c['passes'] for c in batch.costs), batch


def test_every_size():
    lm, draft = random_lm(), random_lm(seed=1, layers=1)
    # each drafter with all sizes, each base with all
    halves = itertools.cycle((SIZES[::2], SIZES[1::2]))
    for strategy, sizes in zip(strategies(lm, draft), halves):
        same(lm, prompts(64), strategy, sizes)


def test_lengths_from_1_to_500():
    lm, draft, alt = (
        load(name, device='cpu', dtype=torch.float64) for name in ('pico', 'pico-draft', 'pico-alt')
    )
    texts = prompts(4096, (1, 500, 3, 211, 17, 80))
    drafters = [
        AssistantDrafter(draft),
        PromptLookupDrafter(),
        SuffixDrafter(),
        EarlyExitDrafter(4),
        UniversalDrafter(alt),
        TokenIntersectionDrafter(alt),
    ]
    bases = itertools.cycle((Greedy(), Sample(WARM)))  # `test_every_size` has each with each
    for strategy in [
        Greedy(),
        Sample(WARM),
        *(
            Speculative(d, base=base, lookahead=FixedLookahead(4))
            for d, base in zip(drafters, bases)
        ),
    ]:
        fit = (
            [t for t in texts if len(t) < 300]
            if getattr(getattr(strategy, 'drafter', None), 'lm', None) is alt
            else texts
        )  # random ids are long in its words
        batch = same(lm, fit, strategy, sizes=(5,), n=6)
        assert max(c['padded'] / c['tokens'] for c in batch.costs) < 1.6, batch


def test_drafts_with_another_tokenizer():
    lm = load('pico', device='cpu', dtype=torch.float64)
    alt = load('pico-alt', device='cpu', dtype=torch.float64)
    texts = [
        lm.encode(t)
        for t in ('def f(x):', 'import os\n', 'class A:\n    """', 'for name in sorted(')
    ]
    for strategy in (
        Speculative(UniversalDrafter(alt)),
        Speculative(UniversalDrafter(alt), base=Sample(WARM)),
        Speculative(TokenIntersectionDrafter(alt), base=Sample(WARM)),
    ):
        batch = same(lm, texts, strategy, sizes=(3,))
        assert len(batch.costs) == 2
        assert all(c['rows'] > c['passes'] for c in batch.costs)


def test_every_verifier():
    lm, draft = random_lm(), random_lm(seed=1, layers=1)
    for verifier in (BlockVerifier(), TypicalAcceptanceVerifier(), LenientVerifier(0.5)):
        same(
            lm,
            prompts(64),
            Speculative(AssistantDrafter(draft), base=Sample(WARM), verifier=verifier),
            sizes=(4,),
        )


def test_rules_with_memory_and_other_verifiers():
    lm, draft = random_lm(), random_lm(seed=1, layers=1)
    for base in (
        Greedy([ClassifierFreeGuidance(1.5)]),
        Sample([ClassifierFreeGuidance(2.0), Temperature(0.7)]),
        Sample([Mirostat(3.0)]),
    ):
        for drafter in (AssistantDrafter(draft), PromptLookupDrafter()):
            same(
                lm,
                prompts(64),
                Speculative(drafter, base=base, verifier=ExactMatchVerifier()),
                sizes=(4,),
            )
            same(lm, prompts(64), Speculative(drafter, base=base), sizes=(4,))


@pytest.mark.parametrize(
    'stop',
    [
        Stop(eos=(5, 9, 11, 40)),
        Stop(when=lambda ids: sum(ids) % 4 == 0),
        Stop(strings=('<7>', '<12><')),
    ],
    ids=['eos', 'when', 'strings'],
)
def test_stops_cut_where_a_text_alone_is_cut(stop):
    lm, draft = random_lm(), random_lm(seed=1, layers=1)
    batch = same(
        lm,
        prompts(64),
        Speculative(AssistantDrafter(draft), base=Sample()),
        sizes=(1, 4),
        n=24,
        stop=stop,
    )
    assert any(t.stopped != 'length' for t in batch)


def test_recurrent_models_are_read_alone():
    from transformers import AutoModelForCausalLM, MambaConfig

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            MambaConfig(
                vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4, eos_token_id=None
            ),
            dtype=torch.float64,
        )
    lm = LM(model.eval())
    batch = same(
        lm,
        prompts(64)[:5],
        Speculative(AssistantDrafter(random_lm(seed=1)), lookahead=FixedLookahead(3)),
        sizes=(3,),
    )
    # its draft is joined all the same
    assert list(batch.unbatched) == [lm.name]
    assert len(batch.costs) == 1


def test_memory_is_bounded_and_reported():
    lm, texts = random_lm(), prompts(64)
    token = 2 * 2 * 2 * 8 * 8  # keys and values of two layers, two heads of 8 numbers, 8 bytes each
    for size in (1, 2, 8):
        batch = decode_batch(lm, texts, Greedy(), size, 10)
        assert 0 < batch.cache_bytes <= size * 128 * token  # 101 places, in steps of 64
    for order in (texts, texts[::-1]):  # many short texts before a long one, and after it
        for bound in (128, 192, 300):
            batch = decode_batch(lm, order, Greedy(), 8, 10, cache_tokens=bound)
            assert 0 < batch.cache_bytes <= bound * token
            assert [t.tokens for t in batch] == [decode(lm, p, Greedy(), 10).tokens for p in order]
    with pytest.raises(ValueError, match='needs 128 positions'):
        decode_batch(lm, texts, Greedy(), 8, 10, cache_tokens=127)


def test_early_exits_that_end_at_odd_times_and_are_refilled():
    lm = random_lm(layers=3)
    for seed, size in ((1, 2), (2, 3), (3, 4)):
        stop = Stop(eos=tuple(range(seed, 64, 7)))
        same(
            lm,
            prompts(64) + prompts(64, (5, 40, 3, 70, 2, 9)),
            Speculative(EarlyExitDrafter(1), base=Sample(), lookahead=FixedLookahead(3)),
            sizes=(size,),
            n=9,
            stop=stop,
        )


def test_an_error_names_the_text_and_leaves_the_models_as_they_were():
    lm, draft = random_lm(), random_lm(seed=1, layers=1)
    before = [weights_of(lm), weights_of(draft)]

    def explode(ids, scores):
        if ids.shape[1] > 70:
            raise KeyboardInterrupt if explode.hard else RuntimeError('rule')
        return scores

    for explode.hard in (False, True):
        with pytest.raises(KeyboardInterrupt if explode.hard else RuntimeError) as error:
            decode_batch(
                lm, prompts(64), Speculative(AssistantDrafter(draft), base=Greedy([explode])), 3, 12
            )
        assert explode.hard or error.value.__notes__ == ['while decoding prompt number 4']
    for m, old in zip((lm, draft), before):
        assert all(torch.equal(v, m.model.state_dict()[k]) for k, v in old.items())
    same(lm, prompts(64)[:3], Greedy(), sizes=(2,))


def test_bad_arguments():
    lm = random_lm()
    for kw in (
        dict(batch_size=0),
        dict(batch_size=2.0),
        dict(batch_size=True),
        dict(max_new_tokens=0),
        dict(cache_tokens=3),
    ):
        with pytest.raises(ValueError):
            decode_batch(lm, [[1, 2]], Greedy(), **kw)
    with pytest.raises(ValueError):
        decode_batch(lm, [[1, 2], [64]], Greedy())
    with pytest.raises(TypeError):
        decode_batch(lm, 'text', Greedy())
    assert decode_batch(lm, [], Greedy()) == []
