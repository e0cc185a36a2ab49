"Watermarks beside transformers' own: the same lists, g-values and masks, detected by either."

import json
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    SynthIDTextWatermarkingConfig,
    WatermarkDetector,
    WatermarkingConfig,
)
from transformers.generation.logits_process import WatermarkLogitsProcessor

from decodelab import (
    AssistantDrafter,
    FixedLookahead,
    GreenList,
    Gumbel,
    PromptLookupDrafter,
    Sample,
    Speculative,
    SynthID,
    TopK,
    Unigram,
    decode,
    decode_batch,
    random_lm,
)
from decodelab.core.trace import Trace
from decodelab.detection.detect import redacted_repr
from decodelab.evaluate.bench import stable_repr
from decodelab.models.session import LM
from decodelab.watermark import (
    SBW,
    SWEET,
    DiPmark,
    HardList,
    IteratedHash,
    KeySequence,
    PermuteAndFlip,
    TransformersGreenList,
    Watermark,
    watermark_from_config,
)
from decodelab.watermark.transformers_green_list import _bits_cache, selfhash_seeds
from tests.drafters.test_peer_defects import mended

V, PROMPT = 400, [5, 6, 7]
SCHEMES = [('lefthash', 1), ('lefthash', 4), ('selfhash', 1), ('selfhash', 4)]
SECRET = [k + 1 for k in np.random.default_rng(0).permutation(60_000)[:12].tolist()]
WATERMARKS = [
    GreenList(42),
    GreenList(3, 0.1, 1.0, 4, 'self'),
    Unigram(7),
    HardList(7),
    SBW(7),
    SWEET(7),
    Gumbel(42),
    PermuteAndFlip(42),
    KeySequence(42),
    DiPmark(42),
    SynthID(SECRET),
    SynthID(SECRET, hash_function=IteratedHash()),
    TransformersGreenList(V),
    TransformersGreenList(V, seeding_scheme='selfhash', context_width=3),
]
every = pytest.mark.parametrize('watermark', WATERMARKS, ids=repr)
schemes = pytest.mark.parametrize('scheme, width', SCHEMES)


@pytest.fixture(scope='module')
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=V,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=48,
                bos_token_id=1,
                eos_token_id=None,
                pad_token_id=0,
            )
        ).eval()


def generated(model, config, n=150, seed=1, **options):
    "New ids of transformers' `generate` under a configuration."
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        given = torch.tensor([PROMPT])
        return model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=n,
            do_sample=True,
            **dict(top_k=50) | options,
            watermarking_config=config,
        )[0, len(PROMPT) :].tolist()


def z_of(result, share):
    return (result.total - share * result.count) / (result.count * share * (1 - share)) ** 0.5


def detector(model, config, **options):
    return WatermarkDetector(model.config, 'cpu', config, **options)


# Parity


@schemes
def test_text_of_either_is_detected_by_the_other(model, scheme, width):
    config = WatermarkingConfig(bias=4.0, seeding_scheme=scheme, context_width=width)
    watermark = watermark_from_config(config, V)
    ours = decode(LM(model), PROMPT, Sample([TopK(50), watermark]), 150).tokens
    texts = {
        'transformers': generated(model, config),
        'decodelab': ours,
        'unmarked': decode(LM(model), PROMPT, Sample([TopK(50)]), 150, seed=2).tokens,
    }
    for who, ids in texts.items():
        for ignore, repeats in ((False, 'none'), (True, 'ngram')):
            theirs = detector(model, config, ignore_repeated_ngrams=ignore)(
                torch.tensor([ids]), return_dict=True
            )
            scores = watermark.score_tokens(ids, deduplicate=repeats)
            assert (scores.total, scores.count) == (
                theirs.num_green_tokens[0],
                theirs.num_tokens_scored[0],
            )
            assert z_of(scores, watermark.share) == pytest.approx(theirs.z_score[0])
            assert (theirs.z_score[0] > 6) == (who != 'unmarked'), (who, theirs.z_score)


@schemes
def test_a_batch_of_texts_has_the_evidence_of_each(model, scheme, width):
    config = WatermarkingConfig(seeding_scheme=scheme, context_width=width)
    texts = torch.randint(2, V, (5, 60), generator=torch.Generator().manual_seed(0))
    theirs = detector(model, config)(texts, return_dict=True)
    scores = watermark_from_config(config, V).score_tokens_many(texts, deduplicate='none')
    assert [(f.total, f.count) for f in scores] == list(
        zip(theirs.num_green_tokens, theirs.num_tokens_scored)
    )


def test_evidence_with_and_without_lists_is_the_same():
    texts = np.random.default_rng(0).integers(0, V, (30, 80))
    for watermark in (
        TransformersGreenList(V),
        TransformersGreenList(V, 0.6, hashing_key=2**60 + 7),
    ):
        _bits_cache.cache_clear()
        followed = watermark.score_tokens_many(texts)
        assert not any(bits is not None for bits in _bits_cache(V, watermark.size).values())
        for _ in range(2):
            assert all(
                (a.values == b.values).all() and (a.scored == b.scored).all()
                for a, b in zip(watermark.score_tokens_many(texts), followed)
            )
        assert all(bits is not None for bits in _bits_cache(V, watermark.size).values())


@pytest.mark.parametrize(
    'width, history, alphabet', [(5, 1024, 400), (4, 1024, 5), (3, 7, 3), (2, 1, 4)]
)
def test_synthid_g_values_and_masks(width, history, alphabet):
    config = SynthIDTextWatermarkingConfig(width, SECRET, history)
    processor = config.construct_processor(V, 'cpu')
    watermark = watermark_from_config(config)
    texts = torch.randint(alphabet, (4, 120), generator=torch.Generator().manual_seed(width))
    texts[2, 70] = 399
    for row, g, repeated, end in zip(
        texts,
        processor.compute_g_values(texts),
        processor.compute_context_repetition_mask(texts),
        processor.compute_eos_token_mask(texts, 399),
    ):
        scores = watermark.score_tokens(row, eos=399)
        assert (scores.g[width - 1 :] == g.numpy()).all()
        assert not scores.scored[: width - 1].any()
        if history == 1024:
            assert (
                scores.scored[width - 1 :] == (repeated & end[width - 1 :].bool()).numpy()
            ).all()
        assert (
            watermark.score_tokens(row, deduplicate='none').scored
            == [False] * (width - 1) + [True] * (len(row) - width + 1)
        ).all()


def test_synthid_text_of_either_has_the_same_mean(model):
    config = SynthIDTextWatermarkingConfig(5, SECRET)
    watermark = watermark_from_config(config)
    texts = {'transformers': generated(model, config, top_k=0)}
    texts |= {
        'decodelab': decode(LM(model), PROMPT, Sample([watermark]), 150).tokens,
        'unmarked': decode(LM(model), PROMPT, Sample(), 150).tokens,
    }
    for who, ids in texts.items():
        mean = (
            config.construct_processor(V, 'cpu')
            .compute_g_values(torch.tensor([ids]))
            .double()
            .mean()
            .item()
        )
        assert watermark.score_tokens(ids).g[4:].mean() == pytest.approx(mean)
        assert (mean > 0.6) == (who != 'unmarked')


# Peculiarities that parity has to keep


def test_products_that_overflow_and_seeds_that_are_cut():
    pairs = np.random.default_rng(1).integers(0, 32_000, (3000, 2))
    processor = WatermarkLogitsProcessor(32_000, 'cpu', seeding_scheme='selfhash', context_width=2)
    table = (processor.fixed_table + 1).tolist()
    seeds = selfhash_seeds(15485863, pairs).tolist()
    product = lambda a, b: 15485863 * table[a] * table[b]
    exact = [min(product(a, b), product(b, b)) for a, b in pairs.tolist()]
    products = [product(a, b) for a, b in pairs.tolist()]
    assert 0.05 < np.mean([p >= 2**63 for p in products]) < 0.15  # what does not fit into 64 bits
    assert any(e % 2**32 != s for e, s in zip(exact, seeds))  # unbounded numbers give other seeds
    for pair, seed in zip(pairs[:200].tolist(), seeds):
        processor.set_seed(torch.tensor(pair))
        assert processor.rng.initial_seed() % 2**32 == seed  # ours are theirs
    shuffles = [
        torch.randperm(50, generator=torch.Generator().manual_seed(s)).tolist()
        for s in (9, 9 + 2**32, 9 + 5 * 2**32)
    ]
    assert shuffles[0] == shuffles[1] == shuffles[2]


def test_selfhash_of_width_1_is_one_list(model):
    row = torch.randn(1, V, generator=torch.Generator().manual_seed(0))
    contexts = [[3, 4, 5, 6], [9, 9, 9, 9], [0, 399, 7, 1]]

    def raised(rule):
        return [(rule(ids) != row).nonzero()[:, 1].tolist() for ids in contexts]

    for width, same in ((1, True), (2, False)):
        config = WatermarkingConfig(seeding_scheme='selfhash', context_width=width)
        theirs = config.construct_processor(V, 'cpu')
        ours = watermark_from_config(config, V).bind(None)
        result = (
            raised(lambda ids: theirs(torch.tensor([ids]), row)),
            raised(lambda ids: ours(ids, row)),
        )
        assert result[0] == result[1]
        assert (result[0][0] == result[0][1] == result[0][2]) == same
    for watermark in (
        GreenList(1),
        GreenList(1, seeding='self'),
    ):  # ours of width 1 look at the token before
        result = raised(lambda ids: watermark.bind(None)(ids, row))
        assert result[0] != result[1] != result[2]


def test_lefthash_looks_at_one_token_whatever_the_width():
    row = torch.zeros(1, V)
    for width in (1, 3):
        theirs = WatermarkingConfig(context_width=width).construct_processor(V, 'cpu')
        ours = TransformersGreenList(V, context_width=width).bind(None)
        for ids in ([1, 2, 9], [7, 8, 9]):
            assert torch.equal(
                theirs(torch.tensor([ids]), row), TransformersGreenList(V).bind(None)([9], row)
            )
            assert torch.equal(ours(ids, row), theirs(torch.tensor([ids]), row))
    one, other = (GreenList(1, context=3).bind(None)(ids, row) for ids in ([1, 2, 9], [7, 8, 9]))
    assert not torch.equal(one, other)


def test_twins_of_synthid():
    config, context = SynthIDTextWatermarkingConfig(5, SECRET), [3, 1, 4, 1]

    def g(ids):
        return (
            config.construct_processor(200_000, 'cpu')
            .compute_g_values(torch.tensor([[*context, ids]]))[0, 0]
            .tolist()
        )

    assert g(5) == g(5 + 2**16)
    assert g(5) != g(6)
    assert (
        SynthID(SECRET).score_tokens([*context, 5]).g[4].tolist()
        == SynthID(SECRET).score_tokens([*context, 5 + 2**16]).g[4].tolist()
    )
    new = SynthID(SECRET, hash_function=IteratedHash())
    assert any(
        (new.score_tokens([*context, t]).g[4] != new.score_tokens([*context, t + 2**16]).g[4]).any()
        for t in range(9)
    )


# Defects of the peer


def test_lists_are_cached_between_detections(model):
    config = WatermarkingConfig()
    texts = torch.randint(V, (2, 60), generator=torch.Generator().manual_seed(0))
    watermark = watermark_from_config(config, V)
    theirs = detector(model, config, max_cache_size=4096)
    for _ in range(2):
        watermark.score_tokens_many(texts)
    lists = {seed: id(bits) for seed, bits in _bits_cache(V, watermark.size).items()}
    watermark.score_tokens_many(texts)
    assert lists == {seed: id(bits) for seed, bits in _bits_cache(V, watermark.size).items()}
    assert len(lists) > 90
    theirs(texts)
    theirs(texts)
    mended(theirs._get_ngram_score_cached.cache_info().hits)


def test_a_model_without_a_begin_of_text(model):
    config, ids = WatermarkingConfig(), list(range(2, 40))
    assert watermark_from_config(config, V).score_tokens(ids).count == 37
    model.config.bos_token_id = None
    try:
        mended(isinstance(caught(lambda: detector(model, config)(torch.tensor([ids]))), np.ndarray))
    finally:
        model.config.bos_token_id = 1


def caught(f):
    "What a call returns, or the error."
    try:
        return f()
    except Exception as error:
        return error


def test_padding_does_not_count(model):
    config = WatermarkingConfig(bias=4.0)
    watermark, ids = watermark_from_config(config, V), generated(model, config, 80)
    for padded in ([0] * 60 + ids, ids + [0] * 60):
        alone, scores = watermark.score_tokens(ids), watermark.score_tokens(padded, pad=0)
        assert (scores.total, scores.count) == (alone.total, alone.count)
        z = [
            detector(model, config)(torch.tensor([x]), return_dict=True).z_score[0]
            for x in (ids, padded)
        ]
        mended(z[0] == pytest.approx(z[1]))
        assert abs(z[0] - z[1]) > 1


def test_one_token_again_and_again_is_no_evidence(model):
    config = WatermarkingConfig()
    watermark = watermark_from_config(config, V)
    token = next(
        t for t in range(2, V) if watermark.score_tokens([t, t]).total
    )  # green after itself
    ids = [token] * 200
    assert (watermark.score_tokens(ids).total, watermark.score_tokens(ids).count) == (1, 1)
    scores = detector(model, config)(torch.tensor([ids]), return_dict=True)
    mended(scores.num_tokens_scored[0] == 1)
    assert scores.z_score[0] == pytest.approx(24.4, abs=0.1)
    assert scores.prediction[0]


def test_a_synthid_configuration_can_be_read_again(tmp_path):
    config = SynthIDTextWatermarkingConfig(4, SECRET, 99, 3, 2**12, True)
    GenerationConfig(do_sample=True, watermarking_config=config).save_pretrained(tmp_path)
    watermark = watermark_from_config(json.loads((tmp_path / 'generation_config.json').read_text()))
    assert watermark == watermark_from_config(config)
    assert vars(watermark.to_transformers()) == vars(config)
    mended(not isinstance(caught(lambda: GenerationConfig.from_pretrained(tmp_path)), TypeError))


def test_selfhash_with_a_small_vocabulary():
    row = torch.randn(1, 16, generator=torch.Generator().manual_seed(0))
    config = WatermarkingConfig(seeding_scheme='selfhash', context_width=2)
    out = watermark_from_config(config, 16).bind(None)([3, 5], row)
    assert (
        (out != row)
        == torch.from_numpy(
            watermark_from_config(config, 16).is_green(np.full((16, 1), 5), np.arange(16))
        )
    ).all()
    theirs = caught(lambda: config.construct_processor(16, 'cpu')(torch.tensor([[3, 5]]), row))
    mended(not isinstance(theirs, IndexError))


def test_selfhash_covers_forty_candidates_of_a_flat_row(model):
    row = torch.zeros(1, V)
    theirs = WatermarkingConfig(seeding_scheme='selfhash', context_width=4).construct_processor(
        V, 'cpu'
    )(torch.tensor([[1, 2, 3, 4]]), row)
    ours = GreenList(1, seeding='self', context=4).bind(None)([1, 2, 3, 4], row)
    assert (ours != 0).sum() > 70
    assert (theirs != 0).sum() <= 40
    mended((theirs != 0).sum() > 40)


def test_synthid_survives_an_assistant():
    lm = random_lm(seed=0, vocab_size=200)
    draft = random_lm(seed=1, vocab_size=200, layers=1)
    config = SynthIDTextWatermarkingConfig(5, SECRET)
    watermark = watermark_from_config(config)
    ways = [
        Sample([watermark]),
        Speculative(AssistantDrafter(draft), base=Sample([watermark]), lookahead=FixedLookahead(3)),
        Speculative(PromptLookupDrafter(), base=Sample([watermark])),
    ]
    scores = [watermark.score_tokens(decode(lm, PROMPT, way, 120).tokens).mean for way in ways]
    assert min(scores) > 0.6
    assert (
        watermark.score_tokens(
            decode_batch(lm, [PROMPT] * 2, ways[1], max_new_tokens=120)[1].tokens
        ).mean
        > 0.6
    )
    draft.model.generation_config.update(
        num_assistant_tokens=3,
        num_assistant_tokens_schedule='constant',
        assistant_confidence_threshold=0.0,
    )

    def theirs(**options):
        return watermark.score_tokens(
            generated(lm.model, config, 120, top_k=0, pad_token_id=0, **options)
        ).mean

    assert theirs() > 0.6
    helped = theirs(assistant_model=draft.model)
    mended(helped > 0.6)
    assert 0.45 < helped < 0.55


@every
def test_the_repr_of_a_watermark_has_no_key(watermark):
    """A 62-bit key is in to_json alone: not in the repr of the mark or of what holds it, and not in a trace.

    Other keys have other fingerprints.
    """
    name = next(f.name for f in fields(watermark) if 'key' in f.name)

    def keyed(at):
        return replace(
            watermark,
            **{
                name: at
                if isinstance(getattr(watermark, name), int)
                else tuple(at + i for i in range(len(getattr(watermark, name))))
            },
        )

    secret, other = keyed(0x2B5A_91C7_0D3E_4F68), keyed(0x2B5A_91C7_0D3E_5F68)
    assert str(0x2B5A_91C7_0D3E_4F68) in secret.to_json()
    assert repr(secret) == repr(Watermark.from_json(secret.to_json())) != repr(other)
    trace = Trace(
        [1],
        [],
        metadata=dict(
            strategy=repr(Speculative(PromptLookupDrafter(), base=Sample([TopK(5), secret])))
        ),
    )
    for shown in (
        repr(secret),
        repr(Sample([secret])),
        redacted_repr(secret),
        trace.to_json(),
        stable_repr(Sample([secret])),
    ):
        assert '3123' not in shown, shown
        assert str(0x2B5A_91C7_0D3E_4F68)[:6] not in shown, shown
        assert '#' in shown, shown


# Bad input


@every
def test_configurations_round_trip(watermark):
    line = watermark.to_json()
    assert Watermark.from_json(line) == type(watermark).from_json(line) == watermark
    assert repr(Watermark.from_json(line)) == repr(watermark)
    assert json.loads(line)['scheme'] == type(watermark).__name__
    other = GreenList if not isinstance(watermark, GreenList) else Gumbel
    given = json.loads(line)
    for bad, message in (
        (line.replace(type(watermark).__name__, 'Other'), "'Other'"),
        ('{}', 'scheme is None'),
        ('', 'no configuration'),
        ('[]', 'no configuration'),
        (None, 'no configuration'),
        (json.dumps(given | dict(extra=1)), 'extra'),
        (json.dumps({k: v for i, (k, v) in enumerate(given.items()) if i != 1}), list(given)[1]),
    ):
        with pytest.raises(ValueError, match=message):
            Watermark.from_json(bad)
    with pytest.raises(ValueError, match=f'not of {other.__name__}'):
        other.from_json(line)


@pytest.mark.parametrize(
    'make',
    [
        lambda **k: GreenList(1, **k),
        lambda **k: Unigram(1, **k),
        lambda **k: HardList(1, **k),
        lambda **k: SBW(1, **k),
        lambda **k: SWEET(1, **k),
    ],
)
def test_shares_outside_are_rejected(make):
    for share in (0, 1, 0.0, 1.0, -0.1, 1.1, math.nan, math.inf, '0.5', None, True):
        with pytest.raises(ValueError, match='from 0 to 1'):
            make(gamma=share)
    with pytest.raises(ValueError, match='from 0 to 1'):
        TransformersGreenList(V, greenlist_ratio=1.0)
    for key in (-1, 2**64, 1.0, 'secret', None, True):
        for watermark in (GreenList, Unigram, HardList, SBW, Gumbel, DiPmark):
            with pytest.raises(ValueError, match='key is'):
                watermark(key)


@every
def test_sequences_without_evidence(watermark):
    if isinstance(watermark, SWEET):
        watermark = GreenList(7)  # it needs the model: nbs/40_watermark_more
    for ids in ([], [3], torch.tensor([]).long(), np.array([], int)):
        scores = watermark.score_tokens(ids)
        assert len(scores.values) == len(scores.scored) == len(scores.contexts) == len(ids)
        assert scores.count <= (len(ids) if isinstance(watermark, (Unigram, KeySequence)) else 0)
        if not isinstance(watermark, KeySequence):  # whose scores have no maximum
            assert scores.total <= scores.count
    long = list(range(3, 40))
    assert watermark.score_tokens(long, prompt=len(long)).count == 0
    assert watermark.score_tokens([0] * 20, pad=0).count == 0
    assert (
        watermark.score_tokens([0] * 9 + long, pad=0).count
        == watermark.score_tokens(long).count
        == watermark.score_tokens(long + [0] * 9, pad=0).count
        > 0
    )


@every
def test_what_is_no_sequence_is_rejected(watermark):
    if isinstance(watermark, SWEET):
        watermark = GreenList(7)
    for ids in ([[1, 2], [3, 4]], torch.ones(2, 5).long(), [1.5, 2], ['a'], [-1, 4], [None]):
        with pytest.raises(ValueError, match='give|encode'):
            watermark.score_tokens(ids)
    for more in (dict(prompt=3), dict(prompt=-1), dict(deduplicate='twice')):
        with pytest.raises(ValueError):
            watermark.score_tokens([4, 5], **more)
    for texts in ([1, 2, 3], 'abc', ['abc'], 5, torch.tensor([1, 2])):
        with pytest.raises(ValueError, match='in brackets'):
            watermark.score_tokens_many(texts)
    with pytest.raises(ValueError, match='2 texts and 3 prompts'):
        watermark.score_tokens_many([[1], [2]], [0, 0, 0])


@every
def test_many_texts_have_the_evidence_of_each(watermark):
    if isinstance(watermark, SWEET):
        watermark = GreenList(7)
    draws = np.random.default_rng(0)
    texts = [
        draws.integers(0, alphabet, n).tolist()
        for alphabet, n in ((400, 50), (3, 40), (400, 0), (9, 1), (6, 80))
    ]
    prompts = [7, 0, 0, 1, 33]
    for repeats in ('context+token', 'ngram', 'none'):
        for pad in (None, 2):
            for ids, prompt, scores in zip(
                texts, prompts, watermark.score_tokens_many(texts, prompts, repeats, pad)
            ):
                alone = watermark.score_tokens(ids, prompt, repeats, pad)
                assert (scores.values == alone.values).all()
                assert (scores.scored == alone.scored).all()
                assert scores.contexts == alone.contexts
    for rows in (torch.tensor([[5, 6, 7, 8, 9, 5, 3]] * 2), np.array([[5, 6, 7, 8, 9, 5, 3]] * 2)):
        assert [f.count for f in watermark.score_tokens_many(rows)] == [
            watermark.score_tokens([5, 6, 7, 8, 9, 5, 3]).count
        ] * 2
    assert watermark.score_tokens_many([]) == []


def test_another_vocabulary_or_tokenizer(model):
    config = WatermarkingConfig(bias=4.0)
    ids = generated(model, config)
    right, wrong = (watermark_from_config(config, size).score_tokens(ids) for size in (V, V + 1))
    assert (
        right.total / right.count > 0.6 > 0.4 > wrong.total / wrong.count
    )  # nothing is found: no text tells which size it was
    with pytest.raises(
        ValueError, match='ids beyond 99: detect with the vocabulary size of the model'
    ):
        watermark_from_config(config, 100).score_tokens(ids)
    with pytest.raises(ValueError, match='ids beyond 99'):
        watermark_from_config(config, 100).score_tokens_many([[1, 2], ids])
    with pytest.raises(ValueError, match='give vocab_size'):
        watermark_from_config(config)
    other = [(t + 1) % V for t in ids]  # the same text under another tokenizer's numbers
    scores = watermark_from_config(config, V).score_tokens(other)
    assert scores.total / scores.count < 0.4
