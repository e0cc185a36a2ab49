"""Each defect known of another implementation, with the test that shows decodelab does not have it.

If transformers has the defect and it is quick to show, the test shows that too; if a later version mends
it, the test is skipped, not failed.
"""

import copy
import re

import pytest
import torch
from repo import ROOT
from transformers import StoppingCriteria
from transformers.generation import logits_process as hf

from decodelab import (
    AssistantDrafter,
    ClassifierFreeGuidance,
    EarlyExitDrafter,
    ExactMatchVerifier,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    Sample,
    SequenceBias,
    Speculative,
    Stop,
    Temperature,
    TokenIntersectionDrafter,
    TokenVerifier,
    TopP,
    TypicalAcceptanceVerifier,
    UniversalDrafter,
    certify,
    check_processor,
    check_verifier,
    decode,
    decode_batch,
    load,
    random_lm,
)
from decodelab.core.driver import Request, Rng
from decodelab.evaluate.certify import statistical_check
from decodelab.evaluate.exact import ExactSample
from decodelab.hf.generate import generate
from decodelab.logits import XTC, LogitsProcessorList, NoBadWords, TopH, TypicalP
from decodelab.speculative.protocol import Verification
from decodelab.speculative.verifiers import residual
from tests.fuzz.models import build, full_logits
from tests.logits.test_json_grammar import letters

HERE = 'tests/drafters/test_peer_defects.py::'
WATERMARKS = 'tests/watermark/test_watermarks.py::'
PROMPT = [3, 4, 5, 3, 4]
# section of the study of the peers (Q: of the one of quality and watermarks); what is wrong; where
# it is shown that decodelab does not share it
DEFECTS = [
    (
        'A1',
        'RoBERTa and its kin are decoded at positions that they were not trained at',
        HERE + 'test_roberta_and_its_kin_are_decoded_at_their_own_positions',
    ),
    ('A1', 'assisted generation refuses a batch', HERE + 'test_assisted_texts_can_be_batched'),
    (
        'A1',
        'recurrent and hybrid models refuse every form of assistance',
        'tests/drafters/test_model_families.py::test_recurrent_models_can_be_drafted_for_which_transformers_rejects',
    ),
    (
        'A1',
        'a top-k of 50 acts in every sampled call that does not switch it off',
        HERE + 'test_nothing_acts_that_was_not_asked_for',
    ),
    (
        'A1',
        'prompt lookup takes the first match and rescans the whole text',
        'nbs/08_drafters/01_prompt_lookup.ipynb',
    ),
    (
        'A1',
        'diverse and constrained beams, contrastive search and DoLa are gone: code from the Hub; '
        'the originals, case by case',
        'tests/strategies/test_search_golden.py',
    ),
    (
        'A1',
        'a batch of constrained or contrastive texts is not the texts one by one',
        'tests/strategies/test_search.py::test_batches_are_the_sequences_one_by_one',
    ),
    (
        'A1',
        'no tokens of a beam search before its end',
        'tests/strategies/test_search.py::test_tokens_are_emitted_when_no_rival_disputes_them',
    ),
    (
        'A1',
        'beams ignore the assistant',
        'tests/strategies/test_search.py::test_drafts_speed_up_layers_and_amateurs',
    ),
    ('A1', 'MTP reads its checkpoint again at each call', 'nbs/08_drafters/22_mtp.ipynb'),
    (
        'A1',
        'single position (Gemma 4) cannot be constructed',
        'nbs/08_drafters/23_single_position.ipynb',
    ),
    (
        'A4',
        'single position (Gemma 4): samples are biased',
        'tests/drafters/test_mtp.py::test_single_position_samples',
    ),
    (
        'B1.5',
        'Jacobi decoding without its overhead in the report',
        'nbs/08_drafters/04_lookahead_decoding.ipynb',
    ),
    (
        'B1.6',
        'trained heads: acceptance that cannot be reproduced',
        'nbs/08_drafters/19_train_heads.ipynb',
    ),
    ('A1', 'keyed lists under assistance', 'nbs/10_watermark/10_transformers_green_list.ipynb'),
    (
        'A1',
        'selfhash fails on a vocabulary of fewer than 40 tokens',
        WATERMARKS + 'test_selfhash_with_a_small_vocabulary',
    ),
    (
        'A1',
        'watermarks: the Bayesian detector comes without training, p-values or calibration',
        'nbs/11_detection/06_bayesian.ipynb',
    ),
    (
        'A1',
        'streaming by the block',
        'tests/strategies/test_streaming.py::test_batches_of_every_drafter_are_the_same_without_streaming',
    ),
    (
        'A2.4',
        'a streamer sees a block before the stops are asked',
        'nbs/04_strategies/13_streaming.ipynb',
    ),
    (
        'A2.1',
        'num_assistant_tokens given to the call is ignored',
        HERE + 'test_the_number_of_drafted_tokens_is_honoured',
    ),
    (
        'A2.1',
        'rules are applied to the draft twice: an identical draft is refused',
        HERE + 'test_an_identical_draft_is_always_accepted',
    ),
    (
        'A2.1',
        "settings of one call stay in the draft's configuration",
        'tests/drafters/test_model_families.py::test_models_and_configs_are_as_they_were_even_after_an_error',
    ),
    (
        'A2.1',
        'an eos-less text that says the pad id is masked in the draft',
        HERE + 'test_the_pad_id_is_a_token_like_others',
    ),
    (
        'A2.1',
        'dynamic lookahead: thresholds that do not last, silently static without scikit-learn',
        'tests/tuning/test_lookahead_rules.py::test_nothing_is_learned_from_one_text_to_the_next',
    ),
    (
        'A2.1',
        'schedules of unknown name are accepted',
        'tests/tuning/test_lookahead_rules.py::test_errors_of_bad_settings_name_good_ones',
    ),
    (
        'A2.1',
        'lookup filters its guesses by sampling rules on made-up scores',
        HERE + 'test_lookup_guesses_do_not_depend_on_the_rules',
    ),
    ('A2.1', 'no acceptance figures', HERE + 'test_acceptance_is_reported'),
    (
        'A2.2',
        'static, quantized and named caches, or none, break assistance',
        HERE + 'test_cache_settings_of_the_model_do_not_matter',
    ),
    ('A2.2', 'a rollback of sliding-window and recurrent caches', 'nbs/02_models/13_session.ipynb'),
    ('A2.3', 'guidance is lost under assistance', HERE + 'test_guidance_survives'),
    (
        'A2.3',
        'guidance is lost under assistance: every family',
        'tests/drafters/test_model_families.py::test_guidance_survives_speculation',
    ),
    (
        'A2.3',
        'an incremental grammar is lost under assistance: transformers beside ours',
        'nbs/02_models/19_tokenizer_bytes.ipynb',
    ),
    (
        'A2.3',
        'an incremental grammar is lost under assistance',
        'tests/logits/test_json_grammar.py::test_greedy_texts_are_those_of_plain_decoding_alone_and_in_batches',
    ),
    (
        'A2.3',
        'rules with memory, drawn texts',
        'tests/drafters/test_batch.py::test_rules_with_memory_and_other_verifiers',
    ),
    (
        'A2.3',
        'a processor that counts its calls, or SynthID, is corrupted without a word',
        HERE + 'test_processors_that_remember_calls_are_detected',
    ),
    (
        'A2.3',
        'an assistant switches the SynthID watermark off without a word',
        WATERMARKS + 'test_synthid_survives_an_assistant',
    ),
    (
        'A2.4',
        'stopping criteria are skipped inside a block',
        HERE + 'test_a_condition_stops_inside_a_block',
    ),
    ('A2.4', 'stop strings with an assistant raise', HERE + 'test_stop_strings_work_with_a_draft'),
    (
        'A2.4',
        'stops of every kind, inside a block',
        'tests/drafters/test_model_families.py::test_stops_cut_inside_a_block_where_plain_decoding_stops',
    ),
    (
        'A2.4',
        'stops inside a block, in a batch',
        'tests/drafters/test_batch.py::test_stops_cut_where_a_text_alone_is_cut',
    ),
    (
        'A2.6',
        'early exit fails on GPT-2 and others, and the model stays broken',
        HERE + 'test_early_exit_leaves_the_model_whole',
    ),
    (
        'A2.6',
        'early exit on every family',
        'tests/drafters/test_early_exit.py::test_greedy_texts_are_plain_greedy_texts_and_the_model_is_untouched',
    ),
    (
        'A2.6',
        'early exit that raises or is interrupted',
        'tests/drafters/test_early_exit.py::test_a_call_that_breaks_leaves_the_model_as_it_was',
    ),
    (
        'A2.7',
        "universal sampling rewrites the draft's modules; its probabilities stand under wrong names",
        HERE + 'test_shared_tokens_keep_their_names_and_the_draft_its_modules',
    ),
    (
        'A2.7',
        'a second draft with the same tokenizers, equal sizes, subsets, forbidden words',
        HERE + 'test_any_two_vocabularies_can_be_paired',
    ),
    (
        'A2.7',
        'drafts of another tokenizer: context, begin of text, more passes with an identical draft',
        'nbs/08_drafters/11_universal.ipynb',
    ),
    (
        'A2.7',
        'the law of texts drawn with a draft of another tokenizer',
        'nbs/08_drafters/12_token_intersection.ipynb',
    ),
    (
        'A2.8',
        'bfloat16 texts differ from plain ones, and there is no remedy',
        'tests/speculative/test_strict_decoding.py::test_random_models',
    ),
    (
        'A2.8',
        'the share of identical texts in low precision',
        'tests/drafters/test_model_families.py::test_share_of_identical_texts_in_low_precision',
    ),
    (
        'A2.9',
        'a GenerationConfig with SynthID cannot be loaded',
        WATERMARKS + 'test_a_synthid_configuration_can_be_read_again',
    ),
    (
        'A4',
        'sampled texts are tested by nobody: joint law, as fractions',
        'nbs/06_evaluate/09_exact.ipynb',
    ),
    (
        'A4',
        'sampled texts are tested by nobody: certificate of the code that decodes',
        'nbs/06_evaluate/12_certify.ipynb',
    ),
    (
        'A4.2',
        'total variation 0.61 of universal sampling',
        HERE + 'test_shared_tokens_keep_their_names_and_the_draft_its_modules',
    ),
    (
        'A4.4',
        'total variation 0.61 and 0.70 of guided sampling',
        HERE + 'test_guided_samples_follow_the_guided_distribution',
    ),
    (
        'A4.5',
        'greedy equality, family by family',
        'tests/drafters/test_model_families.py::test_tokens_equal_those_of_generate',
    ),
    (
        'B1.1',
        'speculative sampling without any test that it is lossless',
        'nbs/06_evaluate/12_certify.ipynb',
    ),
    (
        'B1.2',
        'token counts of the baseline from re-tokenized text',
        HERE + 'test_tokens_are_counted_not_guessed_from_text',
    ),
    (
        'B1.3',
        'lookup takes the first match and only a continuation of full length',
        HERE + 'test_lookup_takes_the_newest_match_and_what_there_is_of_it',
    ),
    ('B1.3', 'one name for three speedups', 'nbs/01_core/05_metrics.ipynb'),
    (
        'B1.6',
        'is the accepted length with or without the bonus token?',
        HERE + 'test_block_efficiency_counts_the_bonus_token',
    ),
    (
        'B1.7',
        'typical acceptance passes for lossless',
        HERE + 'test_a_lossy_verifier_is_reported_as_lossy',
    ),
    (
        'B1.7',
        'the loss as a function of the parameter',
        'nbs/07_speculative/03_lossy_verifiers.ipynb',
    ),
    (
        'B1.9',
        'the law of one position is tested, the joint law is not; block verification that stops too early',
        'nbs/07_speculative/02_verifiers.ipynb',
    ),
    (
        'B1.10',
        'one uniform number for all positions (a generator seeded in the loop)',
        HERE + 'test_a_reused_uniform_is_caught',
    ),
    ('B1.10', 'token 0 cannot be drawn', HERE + 'test_token_0_is_a_token'),
    ('B1.10', 'a cache that is wrong after a rollback', 'nbs/02_models/13_session.ipynb'),
    (
        'B1.11',
        'a batch of speculated texts is not the texts one by one',
        'tests/drafters/test_batch.py::test_every_family',
    ),
    ('B3', 'several formulas under one name', 'nbs/01_core/05_metrics.ipynb'),
    (
        'Q6',
        'selfhash with the default width is one list for all texts',
        WATERMARKS + 'test_selfhash_of_width_1_is_one_list',
    ),
    (
        'Q6',
        'lefthash ignores the context width',
        WATERMARKS + 'test_lefthash_looks_at_one_token_whatever_the_width',
    ),
    (
        'Q6',
        'products that overflow, seeds of which 32 bits count: kept for parity, explained',
        WATERMARKS + 'test_products_that_overflow_and_seeds_that_are_cut',
    ),
    (
        'Q6',
        'selfhash can raise forty tokens only: nearly nothing where entropy is high',
        WATERMARKS + 'test_selfhash_covers_forty_candidates_of_a_flat_row',
    ),
    (
        'Q6',
        "the detector's cache is never hit",
        WATERMARKS + 'test_lists_are_cached_between_detections',
    ),
    (
        'Q6',
        'the detector fails on a model without a begin-of-text id',
        WATERMARKS + 'test_a_model_without_a_begin_of_text',
    ),
    ('Q6', 'padding is scored', WATERMARKS + 'test_padding_does_not_count'),
    (
        'Q6',
        'repeated n-grams count by default: z = 24.4 for one token again and again',
        WATERMARKS + 'test_one_token_again_and_again_is_no_evidence',
    ),
    ('Q6', 'a share outside, a key that is none', WATERMARKS + 'test_shares_outside_are_rejected'),
    ('Q7', 'tokens 65,536 apart share all g-values', WATERMARKS + 'test_twins_of_synthid'),
    (
        'Q8',
        'detection takes one text at a time',
        WATERMARKS + 'test_many_texts_have_the_evidence_of_each',
    ),
]
LATER = [
    (
        'A1',
        'unknown keys of a GenerationConfig are kept without a word; arguments dropped by custom_generate',
    ),
    ('A1', 'DFlash'),
    (
        'A2.1',
        'defaults that make a bad draft five times slower than none; no way back to plain decoding',
    ),
    ('A2.2', 'inputs_embeds as a prompt'),
    ('A2.5', 'encoder-decoder: the draft reads the whole prefix again'),
    ('A2.9', 'num_beams with an assistant only logs'),
    ('A3', 'speed against plain generate, at real sizes'),
    ('B1.8', 'thresholds of acceptance by position for trained drafters'),
]


def test_every_pointer_points():
    for section, line, pointer in DEFECTS:
        path, _, name = pointer.partition('::')
        assert (ROOT / path).is_file(), pointer
        if name:
            assert re.search(rf'^def {name}\(', (ROOT / path).read_text(), flags=re.M), pointer
        assert line
        assert re.fullmatch(r'[ABQ]\d+(\.\d+)?', section)
    tests = re.findall(r'^def (test_\w+)', (ROOT / HERE.partition('::')[0]).read_text(), flags=re.M)
    assert set(tests) - {p.removeprefix(HERE) for _, _, p in DEFECTS} == {
        'test_every_pointer_points'
    }


# Their side


def mended(condition):
    "Skip the rest where transformers no longer has the defect; what was asserted before this still counts."
    if condition:
        pytest.skip('mended in this version of transformers')


def theirs(lm, prompt=PROMPT, n=40, **options):
    "`(new ids, passes of the target)` of transformers' generate, or `(the error, 0)`."
    passes, options = [0], dict(do_sample=False, pad_token_id=0) | options
    hook = lm.model.register_forward_pre_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            out = lm.model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=n,
                **options,
            )
        return out[0, len(prompt) :].tolist(), passes[0]
    except Exception as error:
        return error, 0
    finally:
        hook.remove()


def twin(lm, **settings):
    "The same weights as a draft for transformers: five tokens a round, no confidence threshold."
    model = copy.deepcopy(lm.model)
    for name, value in (
        dict(
            num_assistant_tokens=5,
            assistant_confidence_threshold=0.0,
            num_assistant_tokens_schedule='constant',
        )
        | settings
    ).items():
        setattr(model.generation_config, name, value)
    return model


@pytest.fixture
def lm():
    return random_lm()


@pytest.fixture
def draft():
    return random_lm(seed=1, layers=1)


def rounds(trace):
    return [s.drafted for s in trace.steps], [s.accepted for s in trace.steps]


# What is asked for is done


def test_assisted_texts_can_be_batched(lm, draft):
    strategy, prompts = Speculative(AssistantDrafter(draft)), [[3, 4, 5], [6, 7, 8]]
    assert [t.tokens for t in decode_batch(lm, prompts, strategy, 2, 12)] == [
        decode(lm, p, Greedy(), 12).tokens for p in prompts
    ]
    with torch.random.fork_rng(devices=[]), pytest.raises(ValueError, match='atch') as error:
        lm.model.generate(
            torch.tensor(prompts),
            assistant_model=draft.model,
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
        )
        mended(True)
    assert error


def test_nothing_acts_that_was_not_asked_for():
    lm = random_lm(vocab_size=128, scale=0.02)  # flat scores
    rows = Sample().bind(Request(lm, PROMPT, 4, Rng())).scores(PROMPT, 1)
    assert (rows > 0).all()
    assert torch.allclose(rows, lm.session().logits(PROMPT).softmax(-1))
    assert len(Sample().processors) == len(Greedy().processors) == 0
    with torch.random.fork_rng(devices=[]):
        out = lm.model.generate(
            torch.tensor([PROMPT]),
            do_sample=True,
            max_new_tokens=1,
            output_scores=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
    mended(out.scores[0].isfinite().sum() != 50)


def test_the_number_of_drafted_tokens_is_honoured(lm, draft):
    for k in (1, 5):
        drafted, _ = rounds(
            decode(lm, PROMPT, Speculative(AssistantDrafter(lm), lookahead=FixedLookahead(k)), 40)
        )
        assert set(drafted[:-1]) == {k}
    passes = [
        theirs(lm, assistant_model=twin(lm, num_assistant_tokens=2), **o)[1]
        for o in ({}, dict(num_assistant_tokens=12))
    ]
    mended(passes[0] != passes[1])
    assert passes[0] > 0


def test_an_identical_draft_is_always_accepted(lm):
    for rules in (
        [Temperature(0.5)],
        [Temperature(2.0)],
        [TopP(0.8)],
        [TypicalP(0.7)],
        [TopH(0.5)],
        [ClassifierFreeGuidance(1.5), Temperature(0.7)],
        [XTC(0.05)],
    ):
        for seed in range(2):
            drafted, accepted = rounds(
                decode(
                    lm, PROMPT, Speculative(AssistantDrafter(lm), base=Sample(rules)), 40, seed=seed
                )
            )
            assert drafted == accepted
            assert sum(drafted) > 30
    sampling = dict(do_sample=True, top_k=0, n=120, assistant_model=twin(lm))
    plain, warm = (theirs(lm, temperature=T, **sampling)[1] for T in (1.0, 0.5))
    assert plain <= 24
    mended(warm <= 24)
    assert warm > 30  # 20 passes would do


def test_the_pad_id_is_a_token_like_others(lm):
    pad = decode(lm, PROMPT, Greedy(), 10).tokens[4]
    drafted, accepted = rounds(decode(lm, PROMPT, Speculative(AssistantDrafter(lm)), 60))
    assert drafted == accepted
    assert pad in decode(lm, PROMPT, Greedy(), 60).tokens
    mended(theirs(lm, n=60, assistant_model=twin(lm), pad_token_id=pad)[1] <= 11)


def test_lookup_guesses_do_not_depend_on_the_rules(lm):
    def first(rules):
        request, base = Request(lm, PROMPT * 3, 9, Rng()), Sample(rules)
        return (
            PromptLookupDrafter()
            .start(request, base, base.bind(request))
            .draft(request.prompt, lambda i, row, token: i < 5, Rng())
            .tokens
        )

    assert first([]) == first([TopP(0.5)]) == first([TopH(0.4)]) == [3, 4, 5, 3, 4]
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    def guesses(processors):
        ids = torch.tensor([PROMPT * 3])
        made = PromptLookupCandidateGenerator(
            num_output_tokens=5,
            max_matching_ngram_size=2,
            max_length=99,
            logits_processor=hf.LogitsProcessorList(processors),
            vocab_size=64,
        )
        return made.get_candidates(ids)[0].shape[1] - ids.shape[1]

    mended(guesses([hf.TopPLogitsWarper(0.1)]) == guesses([]))


def test_acceptance_is_reported(lm, draft):
    metrics = decode(lm, PROMPT, Speculative(AssistantDrafter(draft)), 20).metrics()
    assert {
        'acceptance_rate',
        'token_acceptance',
        'block_efficiency',
        'drafted',
        'accepted',
        'target_passes',
        'draft_passes',
    } <= set(metrics)
    out = lm.model.generate(
        torch.tensor([PROMPT]),
        assistant_model=draft.model,
        max_new_tokens=8,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
    )
    mended(any('accept' in key for key in out))


def test_cache_settings_of_the_model_do_not_matter(lm, draft):
    plain = decode(lm, PROMPT, Greedy(), 20).tokens
    for settings in (
        dict(cache_implementation='static'),
        dict(cache_implementation='dynamic'),
        dict(cache_implementation='quantized'),
        dict(use_cache=False),
    ):
        for m in (lm, draft):
            vars(m.model.generation_config).update(settings)
        assert decode(lm, PROMPT, Speculative(AssistantDrafter(draft)), 20).tokens == plain
        for m in (lm, draft):
            vars(m.model.generation_config).update(cache_implementation=None, use_cache=True)
    mended(
        all(
            theirs(lm, assistant_model=twin(draft), **o)[1]
            for o in (dict(cache_implementation='static'), dict(use_cache=False))
        )
    )


# Rules with memory


def test_guidance_survives(lm, draft):
    plain, result = theirs(lm, guidance_scale=1.5)[0], []
    for drafter in (AssistantDrafter(draft), PromptLookupDrafter()):
        assert (
            decode(
                lm, PROMPT, Speculative(drafter, base=Greedy([ClassifierFreeGuidance(1.5)])), 40
            ).tokens
            == plain
        )
    for options in (dict(assistant_model=twin(draft)), dict(prompt_lookup_num_tokens=3)):
        result.append(theirs(lm, guidance_scale=1.5, **options)[0] == plain)
    mended(any(result))


def test_guided_samples_follow_the_guided_distribution():
    lm, draft = (random_lm(seed=s, vocab_size=8, layers=1, scale=0.3) for s in (0, 1))
    for drafter in (AssistantDrafter(draft), PromptLookupDrafter()):
        check = statistical_check(
            Speculative(drafter, base=Sample([ClassifierFreeGuidance(2.0)])),
            lm,
            [1, 2, 1],
            samples=500,
        )
        assert check.passed, check.message


def test_processors_that_remember_calls_are_detected():
    class Counts:
        calls = 0

        def __call__(self, ids, scores):
            self.calls += 1
            return scores + self.calls * torch.arange(scores.shape[-1])

    with pytest.raises(AssertionError, match='treats a block of rows otherwise|remembers'):
        check_processor(Counts())
    synthid = hf.SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3,
        keys=[1, 2],
        sampling_table_size=64,
        sampling_table_seed=0,
        context_history_size=8,
        device='cpu',
    )
    cfg = hf.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, random_lm().model)
    for processor in (synthid, cfg):
        with pytest.raises(TypeError, match='remembers calls'):
            LogitsProcessorList([processor])


# Stops


def test_a_condition_stops_inside_a_block(lm):
    plain = decode(lm, PROMPT, Greedy(), 40).tokens
    at = next(
        i for i in range(6, 40) if plain[i] not in plain[:i] and i % 6 not in (0, 5)
    )  # in the middle of a block of six
    for k in (2, 5):
        trace = decode(
            lm,
            PROMPT,
            Speculative(AssistantDrafter(lm), lookahead=FixedLookahead(k)),
            40,
            stop=lambda ids: ids[-1] == plain[at],
        )
        assert trace.tokens == plain[: at + 1]
        assert trace.stopped == 'condition'

    class Sees(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return input_ids[:, -1] == plain[at]

    assert theirs(lm, stopping_criteria=[Sees()])[0] == plain[: at + 1]
    mended(theirs(lm, stopping_criteria=[Sees()], assistant_model=twin(lm))[0] == plain[: at + 1])


def test_stop_strings_work_with_a_draft():
    lm, draft = load('pico', device='cpu'), load('pico-draft', device='cpu')
    prompt = 'class Stack:\n    def __init__(self):\n'
    plain = decode(lm, prompt, Greedy(), 32, stop='\n')
    assert (
        decode(lm, prompt, Speculative(AssistantDrafter(draft)), 32, stop='\n').tokens
        == plain.tokens
    )
    assert plain.stopped == "string '\\n'"
    result = theirs(lm, lm.encode(prompt), 32, stop_strings=['\n'], tokenizer=lm.tokenizer)[0]
    assert result == plain.tokens
    mended(
        not isinstance(
            theirs(
                lm,
                lm.encode(prompt),
                32,
                stop_strings=['\n'],
                tokenizer=lm.tokenizer,
                assistant_model=draft.model,
            )[0],
            Exception,
        )
    )


# Early exit and other tokenizers


def test_early_exit_leaves_the_model_whole():
    lm = random_lm('gpt2', layers=3)
    plain = theirs(lm)[0]
    assert decode(lm, PROMPT, Speculative(EarlyExitDrafter(1)), 40).tokens == plain == theirs(lm)[0]
    broken, after = theirs(lm, assistant_early_exit=1)[0], theirs(lm)[0]
    mended(broken == after == plain)
    assert isinstance(broken, IndexError)
    assert isinstance(after, IndexError)


def two_alphabets():
    "A target and a draft that share 24 tokens under other numbers."
    ours = ['<unk>', '</s>', *'abcdefghijklmnopqrstuvwxyz']
    other = ['<unk>', '</s>', *'zyxwvutsrqponmlkjihgfe', 'A', 'B', 'C']
    return (
        random_lm(seed=s, layers=1, vocab_size=len(names), tokenizer=letters(names))
        for s, names in enumerate((ours, other))
    )


def test_shared_tokens_keep_their_names_and_the_draft_its_modules():
    target, draft = two_alphabets()
    keys = list(draft.model.state_dict())
    modules = [id(m) for m in draft.model.modules()]
    small = random_lm(
        vocab_size=6, layers=1, scale=0.3, tokenizer=letters(['<unk>', '</s>', *'abcd'])
    )
    odd = random_lm(
        seed=1, vocab_size=5, layers=1, scale=0.3, tokenizer=letters(['<unk>', '</s>', *'dza'])
    )
    check = statistical_check(
        Speculative(TokenIntersectionDrafter(odd), base=Sample()), small, [2, 3, 2], samples=500
    )
    assert check.passed, check.message
    decode(
        target,
        [5, 6, 7],
        Speculative(TokenIntersectionDrafter(draft), base=Sample([Temperature(0.7)])),
        20,
    )
    assert list(draft.model.state_dict()) == keys
    assert [id(m) for m in draft.model.modules()] == modules
    from transformers.generation.candidate_generator import AssistantToTargetTranslator

    other = copy.deepcopy(draft.model)
    theirs_ = AssistantToTargetTranslator(
        target.tokenizer, draft.tokenizer, target.vocab_size, other, assistant_prune_lm_head=True
    )
    ids = theirs_.assistant_overlap_token_ids  # draft ids, in the order of the pruned scores
    scattered = theirs_.get_target_logits(ids.float()[None, None])[0, 0]
    wrong = sum(scattered[t] != d for t, d in theirs_.target_to_assistant_input_ids.items())
    mended(wrong == 0 and list(other.state_dict()) == keys)


def test_any_two_vocabularies_can_be_paired():
    target, draft = two_alphabets()
    base = Greedy([NoBadWords([[7]]), SequenceBias({(9,): -2.0})])
    plain = decode(target, [5, 6, 7], base, 20).tokens
    second = random_lm(
        seed=7, layers=1, vocab_size=draft.vocab_size, tokenizer=draft.tokenizer
    )  # another draft, the same tokenizer
    subset = random_lm(
        seed=8, layers=1, vocab_size=12, tokenizer=letters(['<unk>', '</s>', *'jihgfedcba'])
    )
    equal = random_lm(
        seed=9,
        layers=1,
        vocab_size=28,
        tokenizer=letters(['<unk>', '</s>', *'zyxwvutsrqponmlkjihgfedcba']),
    )  # as many, in another order
    padded = random_lm(
        seed=10, layers=1, vocab_size=40, tokenizer=target.tokenizer
    )  # the same tokenizer, more rows
    for other in (draft, second, subset, equal, padded):
        for kind in (UniversalDrafter, TokenIntersectionDrafter):
            assert (
                decode(target, [5, 6, 7], Speculative(kind(other), base=base), 20).tokens == plain
            ), (kind, other)
    options = dict(
        tokenizer=target.tokenizer,
        assistant_tokenizer=subset.tokenizer,
        do_sample=True,
        assistant_model=copy.deepcopy(subset.model),
    )
    mended(not isinstance(theirs(target, [5, 6, 7], 12, **options)[0], Exception))


# The other peers


def test_tokens_are_counted_not_guessed_from_text():
    lm = load('pico', device='cpu')
    odd = lm.tokenizer.encode('a')[:1] + [
        lm.tokenizer.encode(c)[0] for c in 'bcd'
    ]  # ids that the tokenizer itself would not choose
    assert len(lm.tokenizer.encode(lm.decode(odd))) < len(odd)
    trace = decode(lm, odd, Speculative(PromptLookupDrafter()), 16, stop=Stop(eos=()))
    assert trace.metrics()['new_tokens'] == len(trace.tokens) == 16


def test_lookup_takes_the_newest_match_and_what_there_is_of_it(lm):
    def guess(ids, k=6):
        request, base = Request(lm, ids, 9, Rng()), Greedy()
        return (
            PromptLookupDrafter(max_ngram=2)
            .start(request, base, base.bind(request))
            .draft(ids, lambda i, row, token: i < k, Rng())
            .tokens
        )

    assert guess([1, 2, 9, 9, 1, 2, 8, 7, 1, 2], 2) == [8, 7]  # the first match would say 9, 9
    assert guess([5, 6, 7, 5, 6], 6) == [
        7,
        5,
        6,
        7,
        5,
        6,
    ]  # three are there, and are copied on into themselves
    assert guess([1, 2, 3], 6) == []


def test_block_efficiency_counts_the_bonus_token(lm):
    trace = decode(lm, PROMPT, Speculative(AssistantDrafter(lm), lookahead=FixedLookahead(4)), 40)
    metrics = trace.metrics()
    assert metrics['block_efficiency'] == 5 == 1 + metrics['accepted'] / len(trace.steps)
    assert metrics['acceptance_rate'] == metrics['token_acceptance'] == 1
    assert trace.steps[0].origins() == ['accepted'] * 4 + ['bonus']


def test_a_lossy_verifier_is_reported_as_lossy():
    assert not TypicalAcceptanceVerifier().lossless
    assert ExactMatchVerifier().lossless
    certificate = certify(
        Speculative(
            AssistantDrafter(random_lm()), base=Sample(), verifier=TypicalAcceptanceVerifier()
        ),
        samples=200,
    )
    assert not certificate.lossless
    assert 'LOSSY, as declared by TypicalAcceptanceVerifier' in repr(certificate)
    assert certificate.distance > 0


def sampling(verifier, q):
    return Speculative(
        AssistantDrafter(q), base=ExactSample(), verifier=verifier, lookahead=FixedLookahead(2)
    )


def test_a_reused_uniform_is_caught():
    class OneUniform:
        greedy, lossless = False, True

        def verify(self, p, draft, rng):
            u = rng.uniform()
            for i, (x, q) in enumerate(zip(draft.tokens, draft.q)):
                if not u < p[i][x] / q[x]:
                    return Verification(i, rng.categorical(residual(p[i], q, x)))
            return Verification(len(draft.tokens), rng.categorical(p[len(draft.tokens)]))

    check_verifier(TokenVerifier(), sampling)
    with pytest.raises(AssertionError, match='lossy'):
        check_verifier(OneUniform(), sampling)


def test_token_0_is_a_token(lm, draft):
    only = lambda ids, scores: scores.masked_fill(
        torch.arange(scores.shape[-1]) > 1, -torch.inf
    )  # 0 or 1
    for base in (Greedy([only]), Sample([only])):
        for drafter in (AssistantDrafter(draft), PromptLookupDrafter()):
            assert 0 in decode(lm, PROMPT, Speculative(drafter, base=base), 24).tokens
    assert Rng().categorical(torch.tensor([1.0, 0.0])) == 0


def test_roberta_and_its_kin_are_decoded_at_their_own_positions():
    same = []
    for name in ('roberta', 'roberta-prelayernorm', 'xlm-roberta', 'camembert', 'data2vec-text'):
        lm = build(name)
        ids = list(PROMPT)
        for _ in range(8):
            ids.append(int(full_logits(lm.model, ids).argmax()))
        expected = ids[len(PROMPT) :]
        assert decode(lm, PROMPT, Greedy(), 8).tokens == expected
        assert generate(lm.model, torch.tensor([PROMPT]), max_new_tokens=8)[0].tolist() == ids
        same.append(theirs(lm, n=8)[0] == expected)
    mended(any(same))
