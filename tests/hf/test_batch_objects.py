"""A caller's processors, criteria and caches get the whole batch, as in transformers; what an audit of the door found.

Each test is a call that once gave another result than `model.generate`, most of them without an error.
"""

import copy

import pytest
import torch
from repo import ROOT
from torch.ao.quantization import quantize_dynamic
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    SpeechEncoderDecoderConfig,
    SpeechEncoderDecoderModel,
    StaticCache,
    StoppingCriteria,
    Wav2Vec2Config,
    WhisperConfig,
    WhisperForCausalLM,
)
from transformers.utils import logging

from decodelab import generate
from decodelab.evaluate.certify import random_lm
from decodelab.lab.requirements import assigned_literal
from decodelab.strategies.sampling import Scorer
from tests.hf.test_encoder_decoders import SIZES
from tests.hf.test_generate import BATCH, IDS, MASK, PAD, seq2seq
from tests.hf.test_prepared_inputs import I, inputs, llava, qwen, seeded

logging.set_verbosity_error()
ONE = dict(input_ids=IDS[1:2], pad_token_id=PAD, max_new_tokens=8)
ASKED = dict(return_dict_in_generate=True)
SEARCHES = [{}, dict(num_beams=3), dict(num_beams=2, num_return_sequences=2)]


@pytest.fixture(scope='module')
def llama():
    return random_lm('llama', 3, layers=2, scale=0.3).model


def both(model, **call):
    "`(ours, theirs)` of a greedy call."
    return generate(model, **call), model.generate(**call, do_sample=False)


def check_same(model, **call):
    ours, theirs = both(model, **call)
    assert torch.equal(ours, theirs)
    return ours


def check_same_cache(ours, theirs, searched=False):
    """The same keys and values.

    transformers orders the rows of a search once more after its last step, by scores that are all
    equal then: shapes and prompts are compared.
    """
    n = IDS.shape[1] if searched else None
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        assert a.keys.shape == b.keys.shape
        assert torch.allclose(a.keys[:, :, :n], b.keys[:, :, :n], atol=1e-10)
        assert torch.allclose(a.values[:, :, :n], b.values[:, :, :n], atol=1e-10)


class RowRules(LogitsProcessor):
    "Row i must not generate the ids of `bans[i]`; a grammar engine has one state a row in this way."

    def __init__(self, rows):
        self.bans = [list(range(i, 64, 3)) for i in range(rows)]
        self.shapes = []

    def __call__(self, input_ids, scores):
        self.shapes.append((tuple(input_ids.shape), tuple(scores.shape)))
        scores = scores.clone()
        for i in range(len(scores)):
            scores[i, self.bans[i % len(self.bans)]] = -torch.inf
        return scores


@pytest.mark.parametrize('call', SEARCHES, ids=str)
def test_a_rule_for_each_row(llama, call):
    rows = len(IDS) * call.get('num_beams', 1)
    rules = [RowRules(rows), RowRules(rows)]
    ours = generate(llama, **BATCH | call, logits_processor=rules[:1])
    theirs = llama.generate(**BATCH | call, logits_processor=rules[1:], do_sample=False)
    assert torch.equal(ours, theirs)
    assert rules[0].shapes == rules[1].shapes
    assert not torch.equal(ours, generate(llama, **BATCH | call))


class OneBanAStep(LogitsProcessor):
    "Bans the next id of a list at each step: a second call for one step has none left."

    def __init__(self, bans):
        self.bans = list(bans)

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, self.bans.pop(0)] = -torch.inf
        return scores


@pytest.mark.parametrize('call', [ONE, BATCH], ids=['one', 'batch'])
def test_a_processor_runs_once_a_step(llama, call):
    "Scores are stored while decoding, never computed again."
    best = llama(IDS[1:2]).logits[0, -1].argmax().item()
    bans = [best, *range(call['max_new_tokens'] - 1)]
    flags = ASKED | dict(output_scores=True, output_logits=True)
    makers = [OneBanAStep(bans), OneBanAStep(bans)]
    ours = generate(llama, **call, **flags, logits_processor=makers[:1])
    theirs = llama.generate(**call, **flags, logits_processor=makers[1:], do_sample=False)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert makers[0].bans == makers[1].bans == []
    for name in ('scores', 'logits'):
        for a, b in zip(ours[name], theirs[name], strict=True):
            assert torch.allclose(a.float(), b, atol=1e-5)


def test_a_draft_leaves_a_stateful_rule_alone(llama):
    "With the batch's own objects, a draft is left out with a sentence, and the tokens stay."
    call = BATCH | dict(logits_processor=[RowRules(3)])
    with pytest.warns(UserWarning, match='the same tokens are generated without drafts'):
        drafted = generate(llama, **call, prompt_lookup_num_tokens=3)
    assert torch.equal(drafted, generate(llama, **call))
    with pytest.raises(ValueError, match='get the whole batch once a step'):
        generate(llama, **call, prompt_lookup_num_tokens=3, strict=True)


class RowStop(StoppingCriteria):
    "Ends the whole batch, or each row, at an id."

    def __init__(self, ids, whole):
        self.ids = torch.as_tensor(ids)
        self.whole = whole
        self.calls = []

    def __call__(self, input_ids, scores, **kwargs):
        self.calls.append((tuple(input_ids.shape), scores if scores is None else len(scores)))
        ends = torch.isin(input_ids[:, -1], self.ids)
        return torch.full_like(ends, bool(ends.any())) if self.whole else ends


@pytest.mark.parametrize('whole', [True, False])
@pytest.mark.parametrize('call', SEARCHES, ids=str)
@pytest.mark.parametrize('flags', [{}, ASKED | dict(output_scores=True)], ids=['ids', 'scores'])
def test_criteria_get_the_batch_and_its_scores(llama, whole, call, flags):
    first = generate(llama, **BATCH)[:, 7:]
    criteria = [RowStop(first[:2, 3], whole), RowStop(first[:2, 3], whole)]
    ours = generate(llama, **BATCH | call, **flags, stopping_criteria=criteria[:1])
    theirs = llama.generate(
        **BATCH | call, **flags, stopping_criteria=criteria[1:], do_sample=False
    )
    same = [x.sequences if flags else x for x in (ours, theirs)]
    assert torch.equal(*same)
    assert criteria[0].calls == criteria[1].calls


@pytest.mark.parametrize('call', [ONE, BATCH], ids=['one', 'batch'])
def test_criteria_that_read_scores(llama, call):
    high = max(s.max() for s in llama.generate(**call, **ASKED, output_scores=True).scores[1:])
    stop = [lambda ids, scores, **_: torch.full((len(ids),), bool(scores[-1].max() >= high))]
    flags = ASKED | dict(output_scores=True, stopping_criteria=stop)
    ours, theirs = both(llama, **call, **flags)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert len(ours.scores) == len(theirs.scores)


@pytest.mark.parametrize('call', [*SEARCHES, dict(use_cache=True, embeds=True)], ids=str)
def test_the_cache_of_a_batch_comes_back(llama, call):
    call = BATCH | call | ASKED
    if call.pop('embeds', False):
        call['inputs_embeds'] = llama.get_input_embeddings()(call.pop('input_ids'))
    ours, theirs = both(llama, **call)
    assert torch.equal(ours.sequences, theirs.sequences)
    check_same_cache(ours.past_key_values, theirs.past_key_values, 'num_beams' in call)


@pytest.mark.parametrize('kind', ['bart', 't5'])
def test_the_cache_of_an_encoder_decoder(kind):
    model = seq2seq(kind)
    call = dict(input_ids=IDS[:, :5] % 60 + 3, max_new_tokens=6, **ASKED)
    for search in SEARCHES:
        ours, theirs = both(model, **call, **search)
        assert torch.equal(ours.sequences, theirs.sequences)
        a, b = ours.past_key_values, theirs.past_key_values
        check_same_cache(a.cross_attention_cache, b.cross_attention_cache)
        if search:
            assert a.get_seq_length() == b.get_seq_length()
        else:
            check_same_cache(a.self_attention_cache, b.self_attention_cache)


def test_own_caches_grow_without_a_copy(llama):
    for call in (ONE, BATCH, BATCH | dict(num_beams=2)):
        ours, theirs = DynamicCache(config=llama.config), DynamicCache(config=llama.config)
        generate(llama, **call, past_key_values=ours)
        llama.generate(**call, past_key_values=theirs, do_sample=False)
        check_same_cache(ours, theirs, 'num_beams' in call)
    caches = [StaticCache(config=llama.config, max_cache_len=24) for _ in range(2)]
    generate(llama, **BATCH, past_key_values=caches[0])
    llama.generate(**BATCH, past_key_values=caches[1], do_sample=False)
    check_same_cache(*caches)


def test_new_tokens_only_with_a_full_mask(llama):
    "A second turn that gives its new tokens, and a mask of all."
    for call in (ONE, BATCH):
        shown = (call['input_ids'] != PAD).long()
        results = []
        for decode in (generate, type(llama).generate):
            first = decode(llama, **call, **ASKED, do_sample=False)
            ids = first.sequences
            mask = torch.cat([shown, torch.ones_like(ids[:, shown.shape[1] :])], 1)
            more = call | dict(
                input_ids=ids[:, -1:], attention_mask=mask, past_key_values=first.past_key_values
            )
            results.append(decode(llama, **more, do_sample=False))
        assert torch.equal(*results)


@pytest.mark.parametrize('rows', [1, 2])
@pytest.mark.parametrize('kind', [llava, qwen])
def test_a_second_turn_with_pictures(kind, rows):
    "The picture is in the cache, and so are its positions; without a cache, its ids are an error."
    model = kind()
    call = inputs(kind.__name__, rows)
    results = []
    for decode in (generate, type(model).generate):
        first = decode(model, **call, max_new_tokens=4, do_sample=False, **ASKED)
        cache = copy.deepcopy(first.past_key_values)
        if decode is generate:  # transformers would continue from this call's positions
            generate(model, input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=2, **ASKED)
        ids = torch.cat([first.sequences, torch.tensor([[7, 8], [9, 5]])[:rows]], 1)
        mask = torch.cat([call['attention_mask'], torch.ones(rows, 6).long()], 1)
        second = dict(input_ids=ids, attention_mask=mask, max_new_tokens=4)
        results.append(decode(model, **second, past_key_values=cache, do_sample=False))
        if decode is generate:
            second['past_key_values'] = first.past_key_values
            results.append(generate(model, **second, prompt_lookup_num_tokens=3))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    with pytest.raises(ValueError, match=rf'the ids \[{I}\] stand for pictures'):
        generate(model, input_ids=ids, max_new_tokens=4)


def test_training_mode_without_dropout(llama):
    training = copy.deepcopy(llama).train()
    assert torch.equal(generate(training, **BATCH), generate(llama, **BATCH))
    assert training.training


def test_a_strategy_of_the_call_goes_before_the_models(llama):
    "A model whose configuration samples, as Llama 2 and Qwen have it."
    sampling = copy.deepcopy(llama)
    sampling.generation_config.update(do_sample=True, temperature=0.6, top_p=0.9)
    contrastive = dict(penalty_alpha=0.6, top_k=4)
    a, b = (generate(model, **BATCH, **contrastive) for model in (sampling, llama))
    assert torch.equal(a, b)


@pytest.mark.parametrize('rows', [1, 2])
def test_pictures_without_a_cache(rows):
    check_same(qwen(), **inputs('qwen', rows), max_new_tokens=4, use_cache=False)


def test_an_end_that_cannot_be_generated(llama):
    assert torch.equal(generate(llama, **BATCH, eos_token_id=-1), generate(llama, **BATCH))
    check_same(llama, **BATCH, eos_token_id=torch.tensor([-1]))


@pytest.mark.parametrize('call', [ONE, BATCH, BATCH | dict(num_beams=2)], ids=['1', '3', 'beams'])
def test_states_without_a_cache_are_whole_squares(call):
    model = copy.deepcopy(random_lm('llama', 3, layers=2, scale=0.3).model).float()
    model.set_attn_implementation('eager')
    flags = dict(output_attentions=True, output_hidden_states=True, use_cache=False)
    ours, theirs = both(model, **call, **flags, **ASKED)
    n = call['input_ids'].shape[1]
    assert ours.attentions[1][0].shape[-2:] == (n + 1, n + 1)
    for name in ('attentions', 'hidden_states'):
        for a, b in zip(ours[name], theirs[name], strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_segments_of_zeros_are_read():
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    model = seeded(lambda: GPT2LMHeadModel(config))
    zeros = check_same(model, **BATCH, token_type_ids=torch.zeros_like(IDS))
    assert not torch.equal(zeros, generate(model, **BATCH))


def test_a_pad_id_inside_a_prompt(llama):
    ids = torch.tensor([[5, PAD, 7, 8], [9, 10, 11, 12]])
    check_same(llama, input_ids=ids, pad_token_id=PAD, max_new_tokens=6)
    hole = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]])
    check_same(llama, input_ids=ids, attention_mask=hole, pad_token_id=PAD, max_new_tokens=6)


@pytest.mark.filterwarnings('ignore')  # PEFT's own
def test_a_trained_prompt():
    peft = pytest.importorskip('peft')
    base = copy.deepcopy(random_lm('llama', 3, layers=2, scale=0.3).model)
    config = peft.PromptTuningConfig(num_virtual_tokens=4, task_type='CAUSAL_LM')
    model = peft.get_peft_model(base, config).double().eval()
    for search in SEARCHES:
        check_same(model, **BATCH | search)
    with pytest.raises(ValueError, match='trained prompt of PEFT'):
        generate(model, **ONE, prompt_lookup_num_tokens=3)


@pytest.mark.filterwarnings('ignore')
def test_linear_layers_quantized_by_torch(llama):
    model = quantize_dynamic(copy.deepcopy(llama).float(), {torch.nn.Linear})
    for search in SEARCHES:
        check_same(model, **BATCH | search)
    with pytest.raises(ValueError, match='cannot be read token by token'):
        generate(model, **ONE, prompt_lookup_num_tokens=3)


def test_the_decoder_of_whisper_alone():
    config = WhisperConfig(**SIZES | dict(decoder_layers=2, pad_token_id=PAD, bos_token_id=1))
    model = seeded(lambda: WhisperForCausalLM(config))
    ours = check_same(model, **ONE)
    assert ours[:, :7].equal(ONE['input_ids'])


def test_further_inputs_of_a_forward(llama):
    t5 = seq2seq('t5')
    begin = torch.tensor([[0, 5, 6], [0, 7, 8]])
    source = dict(input_ids=IDS[:2, 2:] % 60 + 3, decoder_input_ids=begin, max_new_tokens=5)
    check_same(t5, **source, decoder_attention_mask=torch.ones_like(begin))
    check_same(llama, **BATCH, logits_to_keep=1)
    check_same(llama, **BATCH, position_ids=MASK.cumsum(1).sub(1).clamp(0))


def test_sound_by_position():
    "The main input of a model has a name of its own, and comes first in a call."
    sound = Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(8, 8),
        conv_stride=(5, 4),
        conv_kernel=(10, 8),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2,
    )
    words = GPT2Config(
        vocab_size=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2
    )
    config = SpeechEncoderDecoderConfig.from_encoder_decoder_configs(sound, words)
    config.decoder_start_token_id = 1
    config.pad_token_id = 0
    model = seeded(lambda: SpeechEncoderDecoderModel(config=config))
    wave = torch.randn(2, 400, dtype=torch.float64)
    call = dict(decoder_start_token_id=1, pad_token_id=0, max_new_tokens=5)
    ours = generate(model, wave, **call)
    assert torch.equal(ours, model.generate(wave, **call, do_sample=False))
    assert torch.equal(ours, generate(model, input_values=wave, **call))


def test_scores_cost_nothing_where_none_are_returned(llama, monkeypatch):
    "A record of the rows forbids the library's own choice of a token; a cache alone does not."
    records = []
    next_token = Scorer.next_token

    def watched(self, *arguments, **options):
        records.append(self.record)
        return next_token(self, *arguments, **options)

    monkeypatch.setattr(Scorer, 'next_token', watched)
    for flags in ({}, ASKED):
        generate(llama, **ONE, **flags)
    assert set(records) == {None}
    records.clear()
    generate(llama, **ONE, **ASKED, output_scores=True)
    assert None not in records


def test_the_recipe_that_the_guide_prints(llama, tmp_path):
    "It reads its length from a configuration, which gets a call's max_new_tokens."
    folder = tmp_path / 'custom_generate'
    folder.mkdir()
    printed = assigned_literal(ROOT / 'experiments' / '21_guides.ipynb', 'RECIPE')
    (folder / 'generate.py').write_text(printed)
    call = dict(input_ids=IDS[1:2], custom_generate=str(tmp_path), trust_remote_code=True)
    plain = generate(llama, IDS[1:2], max_new_tokens=6, eos_token_id=-1)
    assert torch.equal(generate(llama, **call, max_new_tokens=6), plain)
    padded = generate(llama, **call, max_new_tokens=6, left_padding=2, pad_token=PAD)
    assert padded[0, :2].tolist() == [PAD, PAD]
