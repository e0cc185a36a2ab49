"`generate` from embeddings, pictures and encoder states against transformers' own in float64."

import copy

import pytest
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MambaConfig,
    MambaForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from decodelab import LM, Greedy, decode, generate
from decodelab.evaluate.certify import random_lm
from tests.hf.test_generate import IDS, MASK, PAD, seq2seq

logging.set_verbosity_error()
I = 60
TEXT = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    initializer_range=0.3,
)
EYE = dict(
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    image_size=8,
    patch_size=4,
)
WITH_PICTURE = torch.tensor([[1, 5, 61, I, I, I, I, 62, 6, 7], [0, 0, 1, 61, I, I, I, I, 62, 9]])


def seeded(make, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double().eval()


def llava(seed=0, layers=2):
    text = TEXT | dict(num_hidden_layers=layers)
    return seeded(
        lambda: LlavaForConditionalGeneration(
            LlavaConfig(
                vision_config=dict(model_type='clip_vision_model', projection_dim=16, **EYE),
                text_config=dict(model_type='llama', **text),
                image_token_id=I,
                image_seq_length=4,
                vision_feature_layer=-2,
            )
        ),
        seed,
    )


def gemma(seed=0):
    text = dict(
        **TEXT,
        head_dim=8,
        sliding_window=6,
        query_pre_attn_scalar=8,
        layer_types=['sliding_attention', 'full_attention'],
        tie_word_embeddings=False,
    )
    return seeded(
        lambda: Gemma3ForConditionalGeneration(
            Gemma3Config(
                text_config=text,
                vision_config=dict(model_type='siglip_vision_model', **EYE),
                mm_tokens_per_image=4,
                image_token_id=I,
                boi_token_id=61,
                eoi_token_id=62,
                tie_word_embeddings=False,
            )
        ),
        seed,
    )


def qwen(seed=0):
    text = dict(
        **TEXT, rope_parameters=dict(rope_type='default', rope_theta=1e4, mrope_section=[1, 1, 2])
    )
    eye = dict(
        depth=2,
        embed_dim=16,
        hidden_size=32,
        num_heads=2,
        mlp_ratio=2,
        patch_size=4,
        spatial_merge_size=2,
        temporal_patch_size=1,
        in_channels=3,
    )
    return seeded(
        lambda: Qwen2VLForConditionalGeneration(
            Qwen2VLConfig(
                text_config=text,
                vision_config=eye,
                image_token_id=I,
                video_token_id=59,
                vision_start_token_id=61,
                vision_end_token_id=62,
            )
        ),
        seed,
    )


def inputs(kind, rows=2):
    "A batch with one picture in each text."
    noise = lambda *shape: torch.randn(
        *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    ids = WITH_PICTURE[:rows]
    result = dict(input_ids=ids, attention_mask=(ids != 0).long())
    if kind == 'qwen':
        return result | dict(
            mm_token_type_ids=(ids == I).int(),
            pixel_values=noise(32, 48)[: 16 * rows],
            image_grid_thw=torch.tensor([[1, 4, 4]] * rows),
        )
    return (
        result
        | dict(pixel_values=noise(2, 3, 8, 8)[:rows])
        | (dict(token_type_ids=(ids == I).long()) if kind == 'gemma' else {})
    )


MAKE = dict(llava=llava, gemma=gemma, qwen=qwen)


@pytest.fixture(scope='module', params=MAKE)
def seeing(request):
    return request.param, MAKE[request.param]()


@pytest.mark.parametrize(
    'call',
    [
        {},
        dict(num_beams=3),
        dict(num_beams=3, num_return_sequences=2, length_penalty=0.5, eos_token_id=9),
        dict(repetition_penalty=1.4),
        dict(eos_token_id=[9, 17, 30, 41]),
        dict(max_new_tokens=None, max_length=17),
        dict(bad_words_ids=[[20], [21, 22]]),
        dict(encoder_repetition_penalty=1.5),
    ],
    ids=str,
)
def test_pictures(seeing, call):
    kind, model = seeing
    call = dict(max_new_tokens=8, pad_token_id=0) | call
    if call.get('repetition_penalty') or call.get('encoder_repetition_penalty'):
        rows = 1  # a rule sees the padding, in transformers
    else:
        rows = 2
    before = model.generation_config.to_dict()
    ours = generate(model, **inputs(kind, rows), **call)
    theirs = model.generate(**inputs(kind, rows), **call, do_sample=False)
    assert model.generation_config.to_dict() == before
    if (
        'num_beams' in call and rows == 2 and 'eos_token_id' in call
    ):  # the rest of a beam's row: transformers fills up with the end where the pad id is 0
        cut = lambda row: row[: row.index(9, 10) + 1] if 9 in row[10:] else row
        assert [cut(r) for r in ours.tolist()] == [cut(r) for r in theirs.tolist()]
    else:
        assert torch.equal(ours, theirs)


def test_pictures_are_read_by_every_strategy(seeing):
    kind, model = seeing
    asked = inputs(kind) | dict(max_new_tokens=10)
    greedy = generate(model, **asked)
    text_draft = random_lm('llama', 3, vocab_size=64, layers=1, scale=0.3).model
    seeing_draft = MAKE[kind](1)
    for more in (
        dict(assistant_model=text_draft),
        dict(assistant_model=seeing_draft),
        dict(assistant_model=copy.deepcopy(model)),
        dict(prompt_lookup_num_tokens=3),
        dict(assistant_model=text_draft, prompt_lookup_num_tokens=3),
    ):
        assert torch.equal(generate(model, **asked, **more), greedy)
    self_draft = generate(
        model, **asked, assistant_model=copy.deepcopy(model), return_dict_in_generate=True
    ).trace
    assert all(
        step.accepted == step.drafted for t in self_draft for step in t.steps
    )  # the draft sees the pictures, too
    drawn = [generate(model, **asked, do_sample=True, seed=4) for _ in range(2)]
    assert torch.equal(*drawn)
    assert not torch.equal(drawn[0], greedy)
    assert generate(model, **asked, do_sample=True, seed=4, num_return_sequences=2).shape == (4, 20)
    for more in (
        dict(num_beams=2, do_sample=True, seed=1),
        dict(num_beams=4, num_beam_groups=2, diversity_penalty=1.0),
        dict(num_beams=3, force_words_ids=[[11, 12]]),
        dict(penalty_alpha=0.6, top_k=4),
        dict(prompt_lookup_num_tokens=3, do_sample=True, seed=1),
    ):
        assert generate(model, **asked, **more).shape == (2, 20)
    for i, row in enumerate(greedy):  # a text does not depend on its neighbour
        one = {k: v[i : i + 1] for k, v in inputs(kind).items() if k != 'pixel_values'} | dict(
            pixel_values=inputs(kind)['pixel_values'].chunk(2)[i]
        )
        assert torch.equal(generate(model, **one, max_new_tokens=10)[0], row)
    for more, words in (
        (dict(assistant_early_exit=1), 'left early'),
        (dict(dola_layers='high'), 'read in parts'),
        (dict(guidance_scale=2.0), 'pictures'),
    ):
        with pytest.raises(ValueError, match=words):
            generate(model, **asked, **more)


def test_contrastive_search_weighs_the_prompts_states():
    "By its definition, one candidate at a time, through transformers' forward."
    model = llava()
    x = inputs('llava', 1)
    alpha = 0.6
    ours = generate(model, **x, penalty_alpha=alpha, top_k=3, max_new_tokens=6)[0].tolist()
    ids = WITH_PICTURE[0].tolist()
    read = lambda ids: model(
        input_ids=torch.tensor([ids]), pixel_values=x['pixel_values'], output_hidden_states=True
    )
    with torch.no_grad():
        for _ in range(6):
            p, best = read(ids).logits[0, -1].softmax(-1), []
            for token in p.topk(3).indices.tolist():
                h = torch.nn.functional.normalize(read(ids + [token]).hidden_states[-1][0], dim=-1)
                best.append(((1 - alpha) * p[token] - alpha * (h[:-1] @ h[-1]).max(), token))
            ids.append(max(best)[1])
    assert ours == ids


def test_a_picture_leaves_nothing_in_the_model():
    model = qwen()
    plain = dict(input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=6, do_sample=False)
    want = model.generate(**plain)
    generate(model, **inputs('qwen'), max_new_tokens=3)
    assert model.model.rope_deltas is None or not model.model.rope_deltas.any()
    model.generate(**inputs('qwen'), max_new_tokens=3)
    stale = model.model.rope_deltas
    assert stale.any()
    assert torch.equal(generate(model, **plain), want)
    assert model.model.rope_deltas is stale
    assert decode(LM(model), [5, 6, 7], Greedy(), 6).tokens == want[0, 3:].tolist()


def test_pictures_behind_other_padding_and_scores():
    model, x = llava(), inputs('llava')
    right = torch.stack([torch.cat([r[r != 0], r[r == 0]]) for r in x['input_ids']])
    assert torch.equal(
        generate(model, input_ids=right, pixel_values=x['pixel_values'], max_new_tokens=6)[:, -6:],
        generate(model, **x, max_new_tokens=6)[:, -6:],
    )
    asked = dict(
        return_dict_in_generate=True, output_scores=True, output_logits=True, max_new_tokens=6
    )
    a, b = generate(model, **x, **asked), model.generate(**x, **asked, do_sample=False)
    assert type(a) is type(b)
    assert torch.allclose(torch.stack(a.logits), torch.stack(b.logits).double(), atol=1e-4)
    assert torch.equal(a.sequences, b.sequences)


@pytest.mark.parametrize(
    'call,kind,words',
    [
        (dict(pixel_values=torch.ones(2, 3, 8, 8)), ValueError, 'without input_ids'),
        (
            dict(pixel_values=torch.ones(2, 3, 8, 8), inputs_embeds=torch.ones(2, 3, 32)),
            ValueError,
            'tokens do not match',
        ),
        (dict(image_grid_thw=torch.ones(1, 3)), TypeError, 'image_grid_thw'),
        (inputs('llava') | dict(pixel_values=torch.ones(3, 3, 8, 8)), ValueError, 'mage'),
    ],
    ids=str,
)
def test_wrong_pictures(call, kind, words):
    with pytest.raises(kind, match=words):
        generate(llava(), max_new_tokens=3, **call)


# Embeddings


@pytest.fixture(scope='module', params=['llama', 'gemma2'])
def reader(request):
    return random_lm(request.param, 3, layers=2, scale=0.3).model


@pytest.mark.parametrize(
    'call',
    [
        {},
        dict(num_beams=3),
        dict(num_beams=3, num_return_sequences=2),
        dict(eos_token_id=[4, 9, 17, 30]),
        dict(no_repeat_ngram_size=2),
        dict(max_new_tokens=None, max_length=15),
        dict(min_new_tokens=4, eos_token_id=[9, 17, 30]),
        dict(generation_config=GenerationConfig(max_new_tokens=5)),
        dict(repetition_penalty=1.3),
    ],
    ids=str,
)
@pytest.mark.parametrize('both', [False, True])
def test_embeddings(reader, call, both):
    ids = IDS[1:2]
    given = dict(inputs_embeds=reader.get_input_embeddings()(ids).detach()) | (
        dict(input_ids=ids) if both else {}
    )
    call = dict(max_new_tokens=None if 'generation_config' in call else 8, pad_token_id=PAD) | call
    if 'generation_config' in call:
        del call['max_new_tokens']
    assert torch.equal(
        generate(reader, **given, **call), reader.generate(**given, **call, do_sample=False)
    )


def test_embeddings_decode_as_their_ids(reader):
    vectors = reader.get_input_embeddings()(IDS).detach()
    batch = dict(inputs_embeds=vectors, attention_mask=MASK, pad_token_id=PAD, max_new_tokens=8)
    for more in (
        {},
        dict(num_beams=3),
        dict(do_sample=True, seed=3),
        dict(prompt_lookup_num_tokens=3),
        dict(num_beams=4, num_beam_groups=2, diversity_penalty=1.0),
        dict(num_beams=3, force_words_ids=[[11, 12]]),
        dict(num_beams=2, do_sample=True, seed=2),
    ):
        want = generate(
            reader, IDS, attention_mask=MASK, pad_token_id=PAD, max_new_tokens=8, **more
        )
        assert torch.equal(generate(reader, **batch, **more), want[:, 7:]), more
        assert torch.equal(generate(reader, **batch, input_ids=IDS, **more), want), more
    draft = random_lm('llama', 5, vocab_size=64, layers=1, scale=0.3).model
    greedy = generate(reader, IDS, attention_mask=MASK, pad_token_id=PAD, max_new_tokens=8)
    out = generate(
        reader,
        **batch,
        input_ids=IDS,
        assistant_model=draft,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert torch.equal(out.sequences, greedy)
    assert torch.equal(torch.stack(out.scores).argmax(-1).T, greedy[:, 7:])
    assert out.trace[0].prompt == IDS[0][MASK[0].bool()].tolist()
    for more, words in (
        (dict(assistant_model=draft), 'give input_ids beside'),
        (dict(assistant_early_exit=1), 'left early'),
        (dict(dola_layers=[0]), 'read in parts'),
    ):
        with pytest.raises(ValueError, match=words):
            generate(reader, **batch, **more)


def test_embeddings_and_streams_and_states(reader):
    notes = []

    class Notes:
        def put(self, value):
            notes.append(value.tolist())

        def end(self):
            notes.append('end')

    vectors = reader.get_input_embeddings()(IDS[1:2]).detach()
    ids = generate(reader, inputs_embeds=vectors, max_new_tokens=5, streamer=Notes())
    assert notes[0] == [[]]
    assert sum(notes[1:-1], []) == ids[0].tolist()
    mamba = seeded(
        lambda: MambaForCausalLM(
            MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4)
        )
    )
    ones = dict(inputs_embeds=torch.ones(1, 3, 32).to(mamba.dtype), max_new_tokens=2)
    assert torch.equal(generate(mamba, **ones), mamba.generate(**ones, do_sample=False))
    with pytest.raises(ValueError, match='input_ids alone'):
        generate(mamba, **ones, prompt_lookup_num_tokens=3)
    with pytest.raises(ValueError, match='do not fit'):
        generate(reader, inputs_embeds=vectors, max_new_tokens=260)
    with pytest.raises(ValueError, match='usable logits'):
        generate(reader, inputs_embeds=vectors * float('nan'), max_new_tokens=3)


# An encoder's states


@pytest.mark.parametrize('kind', ['t5', 'bart'])
def test_states_of_an_encoder(kind):
    model = seq2seq(kind)
    pad = model.config.pad_token_id
    ids = torch.tensor([[5, 6, 7, 8, 9, 10], [11, 12, 13, 14, pad, pad]])
    mask = (ids != pad).long()
    with torch.no_grad():
        states = model.get_encoder()(ids, attention_mask=mask)
    counted = []
    hook = model.get_encoder().register_forward_hook(lambda *_: counted.append(1))
    for call in (
        {},
        dict(num_beams=3, num_return_sequences=2),
        dict(min_new_tokens=5),
        dict(decoder_input_ids=torch.tensor([[7, 8], [9, 10]])),
    ):
        theirs = model.generate(
            encoder_outputs=copy.copy(states),
            attention_mask=mask,
            max_new_tokens=8,
            do_sample=False,
            **call,
        )
        for form in (
            states,
            BaseModelOutput(last_hidden_state=states[0]),
            (states[0],),
            dict(last_hidden_state=states[0]),
        ):
            assert torch.equal(
                generate(
                    model, encoder_outputs=form, attention_mask=mask, max_new_tokens=8, **call
                ),
                theirs,
            )
    greedy = generate(model, encoder_outputs=states, attention_mask=mask, max_new_tokens=8)
    with_ids = dict(encoder_outputs=states, input_ids=ids, attention_mask=mask)
    assert torch.equal(greedy, generate(model, **with_ids, max_new_tokens=8))
    assert torch.equal(
        greedy,
        generate(
            model,
            encoder_outputs=states,
            attention_mask=mask,
            max_new_tokens=8,
            prompt_lookup_num_tokens=3,
        ),
    )
    assert torch.equal(
        greedy,
        generate(
            model,
            encoder_outputs=states,
            attention_mask=mask,
            max_new_tokens=8,
            assistant_model=copy.deepcopy(model),
        ),
    )  # one encoder: it need not run
    assert counted == []
    hook.remove()
    other = seq2seq(kind, 1)
    assert torch.equal(
        greedy,
        generate(
            model,
            encoder_outputs=states,
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=8,
            assistant_model=other,
        ),
    )
    for call, kind_, words in (
        (dict(assistant_model=other), ValueError, 'give input_ids beside'),
        (dict(encoder_no_repeat_ngram_size=2), ValueError, 'encoder has none'),
        (dict(encoder_outputs=states[0][0]), TypeError, 'get_encoder'),
    ):
        with pytest.raises(kind_, match=words):
            generate(
                model, **dict(encoder_outputs=states, attention_mask=mask, max_new_tokens=8) | call
            )
    with pytest.raises(TypeError, match='encoder_outputs'):
        generate(random_lm('llama').model, IDS, encoder_outputs=states)
