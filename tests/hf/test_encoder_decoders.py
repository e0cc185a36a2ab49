"Every strategy on every encoder–decoder family through `generate`, in float64 and in padded batches."

import copy

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from decodelab import (
    AssistantDrafter,
    EarlyExitDrafter,
    Sample,
    SharedEncoder,
    Speculative,
    decode,
    generate,
    load,
)
from decodelab.drafters.early_exit import first_layers
from decodelab.evaluate.certify import g_test
from decodelab.models.session import LM

logging.set_verbosity_error()
SIZES = dict(
    vocab_size=64,
    d_model=32,
    encoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    max_position_embeddings=64,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    init_std=0.3,
)
MAKE = dict(
    t5=lambda n: T5ForConditionalGeneration(
        T5Config(
            vocab_size=64,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_decoder_layers=n,
            num_heads=4,
            pad_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            initializer_factor=3.0,
        )
    ),
    bart=lambda n: BartForConditionalGeneration(
        BartConfig(**SIZES, decoder_layers=n, decoder_start_token_id=2, forced_eos_token_id=2)
    ),
    mbart=lambda n: MBartForConditionalGeneration(
        MBartConfig(**SIZES, decoder_layers=n, decoder_start_token_id=5, forced_eos_token_id=2)
    ),
    marian=lambda n: MarianMTModel(
        MarianConfig(**SIZES, decoder_layers=n, decoder_start_token_id=1, forced_eos_token_id=2)
    ),
    pegasus=lambda n: PegasusForConditionalGeneration(
        PegasusConfig(**SIZES, decoder_layers=n, decoder_start_token_id=1, forced_eos_token_id=2)
    ),
)
IDS = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 1, 1], [20, 21, 1, 1, 1, 1]])
BATCH = dict(input_ids=IDS, attention_mask=(IDS != 1).long(), max_new_tokens=10)


def made(kind, layers=2, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MAKE[kind](layers).double().eval()
        for p in model.parameters():
            p.data += 0.05 * torch.randn_like(p)  # biases that do something
    return model


def distilled(model, kind):
    "A draft of one decoder layer on the model's own encoder and embeddings."
    draft = made(kind, 1, seed=3)
    draft.get_encoder().load_state_dict(model.get_encoder().state_dict())
    return draft


@pytest.fixture(scope='module', params=MAKE)
def family(request):
    return request.param, made(request.param)


THEIRS = [
    {},
    dict(num_beams=3),
    dict(num_beams=4, num_return_sequences=3, length_penalty=2.0),
    dict(num_beams=3, early_stopping=True, min_new_tokens=4),
    dict(num_beams=3, early_stopping='never', length_penalty=0.5),
    dict(no_repeat_ngram_size=2),
    dict(repetition_penalty=1.5),
    dict(bad_words_ids=[[20], [21, 22]]),
    dict(min_new_tokens=6),
    dict(forced_bos_token_id=7),
    dict(num_beams=2, no_repeat_ngram_size=2, forced_bos_token_id=7),
    dict(decoder_input_ids=torch.tensor([[7, 8]] * 3)),
    dict(max_new_tokens=None, max_length=7),
    dict(suppress_tokens=list(range(20, 40)), num_beams=2),
]


@pytest.mark.parametrize('call', THEIRS, ids=str)
def test_tokens_are_those_of_transformers(family, call):
    kind, model = family
    before = model.generation_config.to_dict(), model.config.to_dict()
    assert torch.equal(
        generate(model, **BATCH | call), model.generate(**BATCH | call, do_sample=False)
    )
    assert (model.generation_config.to_dict(), model.config.to_dict()) == before


def test_drafts(family):
    """Its own encoder, the target's, the text itself, two at once: the text is plain greedy's.

    And transformers says it alone.
    """
    kind, model = family
    other, shared = made(kind, 1, seed=5), distilled(model, kind)
    runs = []
    for draft in (other, shared):
        draft.get_encoder().register_forward_hook(lambda module, *_: runs.append(module))
    for more in ({}, dict(min_new_tokens=5), dict(bad_words_ids=[[20], [21, 22]])):
        plain = generate(model, **BATCH | more)
        for call in (
            dict(assistant_model=other),
            dict(assistant_model=shared),
            dict(prompt_lookup_num_tokens=3),
            dict(assistant_model=shared, prompt_lookup_num_tokens=3),
            dict(
                assistant_model=other,
                num_assistant_tokens=2,
                num_assistant_tokens_schedule='heuristic',
            ),
        ):
            assert torch.equal(generate(model, **BATCH | more | call), plain), call
    # what the target's has read is not read again
    assert other.get_encoder() in runs
    assert shared.get_encoder() not in runs
    for i in range(3):
        one = dict(input_ids=IDS[i][IDS[i] != 1][None], max_new_tokens=10)
        assert (
            model.generate(**one, do_sample=False)[0].tolist()
            == generate(model, **one, assistant_model=shared)[0].tolist()
        )
    out = generate(
        model, **BATCH, assistant_model=copy.deepcopy(model), return_dict_in_generate=True
    )
    assert all(step.accepted == step.drafted for t in out.trace for step in t.steps)
    assert any(step.drafted for t in out.trace for step in t.steps)


def test_sampling(family):
    "The first two tokens have the law of the model, with drafts and without; a seed makes them the same."
    kind, model = family
    one = dict(input_ids=IDS[:1], max_new_tokens=1, do_sample=True, top_k=0, temperature=1.2)
    shared = distilled(model, kind)
    if model.generation_config.forced_eos_token_id is not None:
        one |= dict(forced_eos_token_id=None)
    scores = model.generate(
        **one | dict(forced_eos_token_id=None), return_dict_in_generate=True, output_scores=True
    ).scores[0][0]
    for more in ({}, dict(assistant_model=shared), dict(prompt_lookup_num_tokens=3)):
        drawn = torch.cat(
            [
                generate(model, **one, **more, num_return_sequences=150, seed=150 * i)[:, -1]
                for i in range(2)
            ]
        )
        assert g_test(torch.bincount(drawn, minlength=64), scores.softmax(-1))[0] > 0.001
        assert torch.equal(
            *(generate(model, **BATCH, do_sample=True, seed=2, **more) for _ in range(2))
        )


def test_searches(family):
    kind, model = family
    for call in (
        dict(num_beams=3, do_sample=True, seed=1),
        dict(num_beams=4, num_beam_groups=2, diversity_penalty=0.5),
        dict(num_beams=4, force_words_ids=[[11, 12]]),
        dict(penalty_alpha=0.6, top_k=4),
    ):
        rows = generate(model, **BATCH | dict(min_new_tokens=6) | call)
        assert len(rows) == 3
        for i, row in enumerate(rows.tolist()):  # in a batch and alone
            one = (
                dict(input_ids=IDS[i][IDS[i] != 1][None], max_new_tokens=10, min_new_tokens=6)
                | call
                | (dict(seed=1 + i) if 'seed' in call else {})
            )
            alone = generate(model, **one)[0].tolist()
            assert [t for t in row if t != 1] == [t for t in alone if t != 1], call
    forced = generate(model, **BATCH | dict(num_beams=4, force_words_ids=[[11, 12]])).tolist()
    for row in forced:
        assert (11, 12) in zip(row, row[1:])
    assert torch.equal(
        generate(model, **BATCH, num_beams=1, penalty_alpha=0.0, top_k=4), generate(model, **BATCH)
    )


def test_contrastive_search_by_its_definition(family):
    kind, model = family
    ids = IDS[:1]
    n = 5
    alpha = 0.6
    tokens = [model.generation_config.decoder_start_token_id]
    read = lambda tokens: model(
        input_ids=ids, decoder_input_ids=torch.tensor([tokens]), output_hidden_states=True
    )
    with torch.no_grad():
        for _ in range(n):
            p, best = read(tokens).logits[0, -1].softmax(-1), []
            for token in p.topk(3).indices.tolist():
                h = torch.nn.functional.normalize(
                    read(tokens + [token]).decoder_hidden_states[-1][0], dim=-1
                )
                best.append(((1 - alpha) * p[token] - alpha * (h[:-1] @ h[-1]).max(), token))
            tokens.append(max(best)[1])
    ours = generate(
        model,
        ids,
        penalty_alpha=alpha,
        top_k=3,
        max_new_tokens=n + 1,
        eos_token_id=None,
        forced_eos_token_id=None,
    )
    assert ours[0, : n + 1].tolist() == tokens


def test_the_first_layers_of_its_decoder_draft(family):
    """Early exit: greedy texts are the plain ones, in batches too.

    Sampled ones need no more than a seed; the target's weights are there once.
    """
    kind, model = family
    plain = generate(model, **BATCH)
    for more in ({}, dict(num_assistant_tokens=4)):
        assert torch.equal(generate(model, **BATCH, assistant_early_exit=1, **more), plain)
    lm = LM(model, name=kind)
    runs = []
    hook = model.get_encoder().register_forward_hook(lambda *_: runs.append(1))
    trace = decode(lm, IDS[0].tolist(), Speculative(EarlyExitDrafter(1)), 10)
    hook.remove()
    assert len(runs) == 1
    assert trace.metrics()['draft_passes'] > 0
    assert (
        first_layers(lm, 1).model.get_output_embeddings().weight
        is model.get_output_embeddings().weight
    )
    assert torch.equal(
        *(generate(model, **BATCH, assistant_early_exit=1, do_sample=True, seed=4) for _ in 'ab')
    )
    assert torch.equal(generate(model, **BATCH), plain)  # the model is as it was


@pytest.mark.parametrize(
    'call,words',
    [
        (dict(dola_layers='high'), 'encoder.decoder'),
        (dict(assistant_early_exit=2), 'from 1 to 1'),
        (dict(guidance_scale=2.0), 'encoder.decoder'),
        (dict(negative_prompt_ids=IDS, strict=True), 'guidance'),
        (dict(decoder_input_ids=[[64]]), 'outside the vocabulary'),
        (dict(decoder_input_ids=torch.ones(3, 60, dtype=torch.long)), 'do not fit'),
    ],
    ids=str,
)
def test_what_needs_a_decoder_alone(family, call, words):
    kind, model = family
    if kind == 't5' and 'decoder_input_ids' in call and torch.is_tensor(call['decoder_input_ids']):
        return  # relative positions have no end
    with pytest.raises(ValueError, match=words):
        generate(
            model,
            **BATCH
            | (
                dict(input_ids=IDS[:1], attention_mask=None)
                if isinstance(call.get('decoder_input_ids'), list)
                else {}
            )
            | call,
        )


def test_the_embedded_translator_and_its_draft():
    """`SharedEncoder` on the pair that is embedded.

    The draft's encoder never runs, and the text is the target's.
    """
    lm = load('pico-seq2seq', device='cpu')
    draft = load('pico-seq2seq-draft', device='cpu')
    runs, texts = [], ['einundzwanzig', 'dreihundertvier', 'siebenundneunzig']
    hook = draft.model.get_encoder().register_forward_hook(lambda *_: runs.append(1))
    batch = lm.tokenizer(texts, return_tensors='pt', padding=True)
    plain = generate(
        lm, **{k: batch[k] for k in ('input_ids', 'attention_mask')}, max_new_tokens=24
    )
    assert torch.equal(
        plain,
        lm.model.generate(
            input_ids=batch['input_ids'],
            attention_mask=batch['attention_mask'],
            max_new_tokens=24,
            do_sample=False,
        ),
    )
    fast = generate(
        lm,
        input_ids=batch['input_ids'],
        attention_mask=batch['attention_mask'],
        max_new_tokens=24,
        assistant_model=draft,
        return_dict_in_generate=True,
    )
    assert torch.equal(fast.sequences, plain)
    assert not runs
    assert sum(s.accepted for t in fast.trace for s in t.steps) > 0
    for text in texts:
        want = decode(lm, text, Speculative(AssistantDrafter(draft)), 24)
        n = len(runs)
        trace = decode(lm, text, Speculative(SharedEncoder(draft)), 24)
        assert n
        assert len(runs) == n
        assert trace.tokens == want.tokens
        assert [s.accepted for s in trace.steps] == [s.accepted for s in want.steps]
    hook.remove()
    assert (
        decode(lm, texts[0], Speculative(SharedEncoder(draft), Sample()), 24, seed=1).tokens
        == decode(lm, texts[0], Speculative(AssistantDrafter(draft), Sample()), 24, seed=1).tokens
    )
    with pytest.raises(ValueError, match='do not have the same encoder'):
        decode(lm, texts[0], Speculative(SharedEncoder(LM(made('t5'), lm.tokenizer))), 4)


def test_an_encoder_that_returns_more_than_states():
    "The decoder of a mixture of experts reads the routers' output of its encoder."
    config = SwitchTransformersConfig(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        num_experts=2,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        decoder_start_token_id=0,
    )
    torch.manual_seed(0)
    model = SwitchTransformersForConditionalGeneration(config).double().eval()
    call = dict(input_ids=IDS[:1], max_new_tokens=6)
    theirs = model.generate(**call, do_sample=False)
    for more in ({}, dict(assistant_model=copy.deepcopy(model)), dict(prompt_lookup_num_tokens=2)):
        assert torch.equal(generate(model, **call, **more), theirs)
