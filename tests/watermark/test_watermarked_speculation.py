"Watermarks survive speculation with every drafter, in batches and beams; false alarms come at their level."

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import (
    SynthIDTextWatermarkingConfig,
    T5Config,
    T5ForConditionalGeneration,
    logging,
)

from decodelab import (
    LM,
    AssistantDrafter,
    BeamSample,
    BeamSearch,
    BlockVerifier,
    ConfidenceLookahead,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    GreenList,
    Gumbel,
    PromptLookupDrafter,
    Sample,
    Speculative,
    Stop,
    SuffixDrafter,
    SynthID,
    Temperature,
    TokenVerifier,
    TopK,
    Unigram,
    decode,
    decode_batch,
    random_lm,
)
from decodelab.core import Rng
from decodelab.core.driver import Request
from decodelab.evaluate.exact import (
    ExactGreedy,
    ExactLM,
    ExactSample,
    completions,
    exact_distribution,
    total_variation,
)
from decodelab.speculative.protocol import Draft
from decodelab.watermark import (
    SBW,
    DiPmark,
    DualGumbel,
    HardList,
    HarmonicGumbel,
    IteratedHash,
    TripleGumbel,
    WatermarkedDrafter,
    WatermarkedVerifier,
    dual_key_speculation,
)
from decodelab.watermark.null import null_distribution

SECRET = tuple(
    (1 + torch.randperm(60_000, generator=torch.Generator().manual_seed(0))[:30]).tolist()
)
WATERMARKS = [
    GreenList(42, 0.5, 2.0),
    GreenList(42, 0.5, 2.0, 3, 'min'),
    GreenList(42, 0.5, 3.0, 2, 'self'),
    Unigram(42, delta=3.0),
    HardList(42),
    SBW(42),
    Gumbel(42),
    SynthID(SECRET),
    SynthID(SECRET, 3, IteratedHash(), leaves=3),
    DiPmark(42),
]
KEYED = [DualGumbel(42, alpha=0.5), HarmonicGumbel(42, alpha=0.5), TripleGumbel(42, alpha=0.5)]
PROMPTS = [[1, 2, 3], [9], [4, 5, 6, 7]]
name = lambda watermark: repr(watermark)


@pytest.fixture(scope='module')
def target():
    return random_lm(seed=0, vocab_size=200)


@pytest.fixture(scope='module')
def drafters():
    draft = random_lm(seed=1, vocab_size=200, layers=1)
    return {
        'assistant': AssistantDrafter(draft),
        'unmarked assistant': AssistantDrafter(draft, base=Sample()),
        'greedy assistant': AssistantDrafter(draft, base=Greedy()),
        'early exit': EarlyExitDrafter(1),
        'prompt lookup': PromptLookupDrafter(),
        'suffix': SuffixDrafter(),
    }


def p_value(watermark, trace):
    scores = watermark.score_tokens(trace.prompt + trace.tokens, len(trace.prompt))
    return null_distribution(watermark).tail(scores.total, scores.count)


def read_by_transformers(tokens):
    "Mean g of a text, by transformers' own processor."
    return (
        SynthIDTextWatermarkingConfig(keys=list(SECRET), ngram_len=5)
        .construct_processor(200, 'cpu')
        .compute_g_values(torch.tensor(tokens)[None])
        .double()
        .mean()
        .item()
    )


# Where transformers loses the mark


def test_transformers_loses_synthid_with_an_assistant_and_we_do_not(target, drafters):
    "Mean g of 120 tokens, read by the same processor: fair coins have .5 ± .0086."
    logging.set_verbosity_error()
    config = SynthIDTextWatermarkingConfig(keys=list(SECRET), ngram_len=5)
    helper = random_lm(seed=1, vocab_size=200, layers=1).model
    helper.generation_config.update(
        num_assistant_tokens=4,
        num_assistant_tokens_schedule='constant',
        assistant_confidence_threshold=0.0,
    )

    def theirs(**options):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return read_by_transformers(
                target.model.generate(
                    torch.tensor([PROMPTS[0]]),
                    max_new_tokens=120,
                    do_sample=True,
                    top_k=0,
                    pad_token_id=0,
                    watermarking_config=config,
                    **options,
                )[0, 3:].tolist()
            )

    ours = lambda drafter: read_by_transformers(
        decode(
            target,
            PROMPTS[0],
            Speculative(drafter, Sample([SynthID(SECRET)]), lookahead=FixedLookahead(4)),
            120,
        ).tokens
    )
    deviation = 0.5 / (116 * 30) ** 0.5
    assert theirs() > 0.5 + 10 * deviation > 0.5 + 4 * deviation > theirs(assistant_model=helper)
    for about in ('assistant', 'early exit', 'prompt lookup'):
        assert ours(drafters[about]) > 0.5 + 10 * deviation, about


# Every mark, every drafter


@pytest.mark.parametrize('watermark', WATERMARKS, ids=name)
def test_a_watermark_among_the_processors_survives_every_drafter_alone_and_in_a_batch(
    target, drafters, watermark
):
    base = Sample([watermark])
    for about in ('assistant', 'unmarked assistant', 'early exit', 'prompt lookup'):
        strategy = Speculative(drafters[about], base, lookahead=FixedLookahead(3))
        batch = decode_batch(target, PROMPTS[:2], strategy, 2, 60)
        assert (
            batch[1].tokens[:30]
            == decode(
                target, PROMPTS[1], strategy, 60, seed=1, stop=Stop(when=lambda new: len(new) == 30)
            ).tokens
        ), about
        assert max(p_value(watermark, t) for t in batch) < 1e-4, about
    assert (
        p_value(
            watermark,
            decode(
                target,
                PROMPTS[0],
                Speculative(drafters['assistant'], Sample(), lookahead=FixedLookahead(3)),
                60,
            ),
        )
        > 1e-3
    )


@pytest.mark.parametrize('watermark', WATERMARKS, ids=name)
def test_greedy_watermarked_sequences_are_the_same_with_every_drafter(target, drafters, watermark):
    base = Greedy([watermark])
    want = [decode(target, p, base, 30).tokens for p in PROMPTS[:2]]
    for about, drafter in drafters.items():
        if about in ('assistant', 'early exit', 'suffix'):
            assert [
                decode(target, p, Speculative(drafter, base), 30).tokens for p in PROMPTS[:2]
            ] == want, about


def test_watermarks_survive_beams(target):
    """Sampled beams for all marks but Gumbel's, which leaves a beam one way, every second one here.

    The best beam is green, too.
    """
    for watermark in WATERMARKS[::2]:
        if isinstance(watermark, Gumbel):
            continue
        assert (
            p_value(watermark, decode(target, PROMPTS[0], BeamSample(3, [watermark]), 70)) < 1e-4
        ), watermark
    deviation = 0.5 / (86 * 30) ** 0.5
    synthid = decode(target, PROMPTS[0], BeamSample(4, [SynthID(SECRET)]), 90)
    assert read_by_transformers(synthid.tokens) > 0.5 + 10 * deviation
    green, bare = GreenList(42, 0.25, 4.0), decode(target, PROMPTS[0], BeamSearch(4), 60)
    z = lambda trace: null_distribution(green).z(
        *(lambda e: (e.total, e.count))(green.score_tokens(trace.prompt + trace.tokens, 3))
    )
    assert z(decode(target, PROMPTS[0], BeamSearch(4, [green]), 60)) > 6
    assert abs(z(bare)) < 4
    assert z(decode_batch(target, PROMPTS, BeamSearch(4, [green]), 3, 60)[0]) > 6


# Keys that draw


@pytest.mark.parametrize('watermark', KEYED[::2], ids=name)
def test_two_and_three_keys_with_every_drafter_alone_and_in_a_batch(target, drafters, watermark):
    for about, drafter in drafters.items():
        strategy = dual_key_speculation(
            drafter,
            watermark,
            [Temperature(0.9)],
            ConfidenceLookahead(0.2, 5) if about == 'assistant' else FixedLookahead(3),
        )
        batch = decode_batch(target, PROMPTS[:2], strategy, 2, 50)
        assert batch[1].tokens == decode(target, PROMPTS[1], strategy, 50, seed=1).tokens, about
        assert max(p_value(watermark, t) for t in batch) < 1e-4, about
        assert max(p_value(HarmonicGumbel(42, alpha=0.5), t) for t in batch) < 1e-4, about
        assert min(p_value(type(watermark)(43, alpha=0.5), t) for t in batch) > 1e-3, about


def test_published_form_block_verification_and_rules(target, drafters):
    watermark = HarmonicGumbel(7, alpha=0.5)
    plain = Sample([TopK(50)])
    for verifier in (
        WatermarkedVerifier(watermark.b, watermark.b),
        WatermarkedVerifier(watermark.a, watermark.b, verifier=BlockVerifier()),
    ):
        trace = decode(
            target,
            PROMPTS[0],
            Speculative(
                WatermarkedDrafter(drafters['assistant'], watermark.a),
                plain,
                verifier,
                FixedLookahead(3),
            ),
            80,
        )
        assert p_value(watermark, trace) < 1e-5
    reading = plain.bind(Request(target, PROMPTS[0], 80, Rng(0)))
    assert (
        reading.scores(trace.prompt + trace.tokens[:-1], 80)[range(80), trace.tokens] > 0
    ).all()  # nothing that the rules forbid


def test_third_key_leaves_nothing_to_the_seed(target, drafters):
    "Until a context comes back, which is drawn by chance."
    watermark = TripleGumbel(11, context=3, alpha=0.5)
    for about in ('assistant', 'early exit', 'prompt lookup'):
        texts = {
            tuple(
                decode(
                    target,
                    PROMPTS[0],
                    dual_key_speculation(drafters[about], watermark, lookahead=FixedLookahead(3)),
                    40,
                    seed=s,
                ).tokens
            )
            for s in range(3)
        }
        assert len(texts) == 1, about


def test_stops_and_ends_cut_watermarked_sequences_where_they_should(target, drafters):
    watermark = TripleGumbel(11, context=3, alpha=0.5)
    strategy = dual_key_speculation(drafters['assistant'], watermark, lookahead=FixedLookahead(4))
    whole = decode(target, PROMPTS[0], strategy, 40).tokens
    end = whole[17]
    assert (
        decode(target, PROMPTS[0], strategy, 40, stop=Stop(eos=(end,))).tokens
        == whole[: whole.index(end) + 1]
    )
    assert (
        decode(target, PROMPTS[0], strategy, 40, stop=Stop(when=lambda new: len(new) == 9)).tokens
        == whole[:9]
    )


def test_an_encoder_decoder_is_watermarked_too():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        t5 = LM(
            T5ForConditionalGeneration(
                T5Config(
                    vocab_size=64,
                    d_model=16,
                    d_kv=8,
                    d_ff=16,
                    num_layers=2,
                    num_heads=2,
                    decoder_start_token_id=0,
                    initializer_factor=1.0,
                )
            )
            .double()
            .eval()
        )
    t5.eos = ()
    for watermark in (Gumbel(5, 2), SynthID(SECRET, 3), DiPmark(5, context=2)):
        trace = decode(t5, [3, 4, 5], Speculative(PromptLookupDrafter(), Sample([watermark])), 60)
        assert p_value(watermark, trace) < 1e-3, watermark
    watermark = HarmonicGumbel(5, 2, 0.5)
    assert (
        p_value(
            watermark,
            decode(t5, [3, 4, 5], dual_key_speculation(PromptLookupDrafter(), watermark), 60),
        )
        < 1e-5
    )


# The law over keys, exactly


class Ideal:
    "A key whose numbers are chance, asked once for each text before it."

    def __init__(self, role):
        self.role = role

    def bind(self, request):
        asked = vars(request.rng).setdefault('asked', set())

        def applied(ids, rows):
            assert (self.role, tuple(ids)) not in asked, 'a key was asked twice after the same ids'
            asked.add((self.role, tuple(ids)))
            return rows

        return applied


class UntilUnsure(FixedLookahead):
    "Stops after a token that the drafter gave less than a third."

    def keep_drafting(self, i, row, token):
        return i < self.k and (row is None or row.p[token] >= Fraction(1, 3))


@pytest.mark.parametrize('seed', range(3))
def test_over_keys_the_distribution_is_the_targets(seed):
    "Over several rounds, by the code that decodes; tables with zeros in them."
    table, draft = ExactLM(3, 50 + seed), AssistantDrafter(ExactLM(3, 70 + seed))
    want = dict(completions(table, [0, 1], (), 3))
    for lookahead, verifier in itertools.product(
        (FixedLookahead(2), UntilUnsure(3)), (TokenVerifier(), BlockVerifier())
    ):
        a, b = Ideal('A'), Ideal('B')
        for own in (a, b):
            assert (
                total_variation(
                    exact_distribution(
                        Speculative(
                            WatermarkedDrafter(draft, a),
                            ExactSample(),
                            WatermarkedVerifier(own, b, verifier=verifier),
                            lookahead,
                        ),
                        table,
                        [0, 1],
                        3,
                    ),
                    want,
                )
                == 0
            )
    guess = Speculative(
        AssistantDrafter(draft.lm, base=ExactGreedy()),
        ExactSample(),
        WatermarkedVerifier(Ideal('A'), Ideal('B')),
        FixedLookahead(2),
    )
    assert total_variation(exact_distribution(guess, table, [0, 1], 3), want) == 0


def test_one_key_for_both_draws_is_caught():
    table = ExactLM(3, 50)
    draft = AssistantDrafter(ExactLM(3, 70))
    a = Ideal('A')
    with pytest.raises(AssertionError, match='asked twice'):
        exact_distribution(
            Speculative(
                WatermarkedDrafter(draft, a),
                ExactSample(),
                WatermarkedVerifier(None, a),
                FixedLookahead(2),
            ),
            table,
            [0, 1],
            4,
        )


# Detectors that do not cry wolf


def test_false_alarms_come_as_often_as_promised():
    """One unmarked text, 5,000 keys, three ways to read them.

    The counts at three levels in their binomial intervals, and p uniform.
    """
    ids = torch.randint(900, (60,), generator=torch.Generator().manual_seed(3)).tolist()
    p = {kind: [] for kind in (DualGumbel, HarmonicGumbel, TripleGumbel)}
    for k in range(5000):
        a, b = (m.score_tokens(ids) for m in (DualGumbel(k, 2, 0.3).a, DualGumbel(k, 2, 0.3).b))
        for kind, scores in p.items():
            watermark = kind(k, 2, 0.3)
            scores.append(
                null_distribution(watermark).tail(
                    watermark.combine_scores(a.values, b.values, a.contexts)[a.scored].sum(),
                    a.count,
                )
            )
    for kind, scores in p.items():
        assert stats.kstest(scores, 'uniform').pvalue > 0.001, kind
        for level in (0.1, 0.01, 0.001):
            low, high = stats.binom.ppf([0.001, 0.999], 5000, level)
            assert low <= (np.array(scores) <= level).sum() <= high, (kind, level)


def test_repeats_and_short_texts_give_no_evidence(target):
    for watermark in KEYED:
        assert watermark.score_tokens([7] * 200).count == 1
        assert watermark.score_tokens([1, 2, 3]).count == 0
        assert null_distribution(watermark).tail(0.0, 0) == 1.0
        assert math.isfinite(watermark.score_tokens(list(range(50))).total)


# Bad input


def test_what_does_not_fit_is_one_sentence(target, drafters):
    watermark = DualGumbel(1)
    for base in (Greedy(), Greedy([Temperature(0.5)])):
        with pytest.raises(ValueError, match='base that samples'):
            decode(
                target,
                [1],
                Speculative(
                    WatermarkedDrafter(drafters['assistant'], watermark.a),
                    base,
                    WatermarkedVerifier(watermark.a, watermark.b),
                ),
                4,
            )
    with pytest.raises(ValueError, match='above 0, or use Greedy'):
        dual_key_speculation(drafters['assistant'], watermark, [Temperature(0)])
    with pytest.raises(ValueError, match='cannot be keyed'):
        WatermarkedVerifier(acceptance_watermark=TripleGumbel(1), verifier=BlockVerifier())
    with pytest.raises(TypeError, match='two keys'):
        dual_key_speculation(drafters['assistant'], GreenList(1))
    with pytest.raises(ValueError, match='inside a Speculative'):
        WatermarkedVerifier().verify(torch.ones(1, 4) / 4, Draft([]), Rng(0))
