"Search strategies alone, in batches, with stops and processors."

import math
from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    MambaConfig,
    Qwen3NextConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from decodelab import (
    LM,
    AssistantDrafter,
    BeamSample,
    BeamSearch,
    ConstrainedBeamSearch,
    ContrastiveDecoding,
    ContrastiveSearch,
    DisjunctiveConstraint,
    DiverseBeamSearch,
    DoLa,
    FixedLookahead,
    Greedy,
    JsonGrammar,
    NoRepeatNGram,
    PhrasalConstraint,
    PromptLookupDrafter,
    RepetitionPenalty,
    Sample,
    Speculative,
    Stop,
    TopK,
    decode,
    decode_batch,
    load,
    random_lm,
)
from decodelab.core.driver import Request, Rng
from decodelab.evaluate.certify import ARCHITECTURES
from decodelab.logits import LogitsProcessorList, Mirostat
from decodelab.strategies import hypotheses
from decodelab.strategies.beam_search import Search

PROMPTS = [[7], [3, 4, 5, 3, 4], list(range(1, 30))]
WORDS = [PhrasalConstraint([5, 6]), DisjunctiveConstraint([[9], [11, 12]])]


def strategies(lm):
    "Every strategy of this layer, with settings that matter."
    amateur = random_lm(seed=1, layers=1, vocab_size=lm.vocab_size)
    return {
        'beam': BeamSearch(4, [NoRepeatNGram(3)], length_penalty=0.5, num_return_sequences=2),
        'beam sample': BeamSample(3, [TopK(30)]),
        'diverse': DiverseBeamSearch(4, 2, 0.7, num_return_sequences=4),
        'constrained': ConstrainedBeamSearch(WORDS, 4),
        'contrastive': ContrastiveSearch(0.6, 4),
        'contrastive, rules': ContrastiveSearch(0.4, 3, [RepetitionPenalty(1.3)]),
        'dola': DoLa([0, 1]),
        'dola, sampled': DoLa([0, 1], Sample([TopK(20)])),
        'contrastive decoding': ContrastiveDecoding(amateur),
    }


def seeded(kind, config):
    torch.manual_seed(0)
    return LM(kind(config).double().eval())


def encoder_decoders():
    t5 = T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        initializer_factor=3.0,
    )
    bart = BartConfig(
        vocab_size=64,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        init_std=0.4,
        forced_eos_token_id=None,
    )
    return [seeded(T5ForConditionalGeneration, t5), seeded(BartForConditionalGeneration, bart)]


def recurrent():
    shape = dict(
        vocab_size=64,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.15,
        eos_token_id=None,
        bos_token_id=None,
    )
    mixed = dict(
        num_hidden_layers=4,
        num_key_value_heads=2,
        head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        mlp_only_layers=[0, 1, 2, 3],
    )
    return [
        seeded(
            AutoModelForCausalLM.from_config,
            MambaConfig(**shape, num_hidden_layers=2, state_size=4),
        ),
        seeded(AutoModelForCausalLM.from_config, Qwen3NextConfig(**shape | mixed)),
    ]


def tokens_of(trace):
    return (
        [h['tokens'] for h in hypotheses(trace)]
        if 'hypotheses' in trace.steps[-1].info
        else trace.tokens
    )


@pytest.mark.parametrize('family', ARCHITECTURES)
def test_batches_are_the_sequences_one_by_one(family):
    lm = random_lm(family)
    for name, strategy in strategies(lm).items():
        batch = decode_batch(
            lm, PROMPTS, strategy, batch_size=2, max_new_tokens=10, stop=Stop(eos=(2,))
        )
        for i, (prompt, trace) in enumerate(zip(PROMPTS, batch)):
            assert tokens_of(trace) == tokens_of(
                decode(lm, prompt, strategy, 10, seed=i, stop=Stop(eos=(2,)))
            ), name
        assert not batch.unbatched, name
        assert any(c['rows'] > c['passes'] for c in batch.costs), name


@pytest.mark.parametrize('lm', [*encoder_decoders(), *recurrent()], ids=lambda lm: lm.name)
def test_models_without_trees_are_read_in_rows(lm):
    alone = {}
    for name, strategy in strategies(lm).items():
        if 'dola' in name or (lm.decoder_start_ids and 'decoding' in name):
            continue
        alone[name] = decode(lm, PROMPTS[1], strategy, 8, stop=Stop(eos=()))
        batch = decode_batch(
            lm, PROMPTS[:2], strategy, max_new_tokens=8, seed=-1, stop=Stop(eos=())
        )
        assert tokens_of(batch[1]) == tokens_of(alone[name]), name
        assert batch.unbatched, name
    greedy = decode(lm, PROMPTS[1], Greedy(), 8, stop=Stop(eos=())).tokens
    assert (
        greedy
        == decode(lm, PROMPTS[1], BeamSearch(1), 8, stop=Stop(eos=())).tokens
        == decode(lm, PROMPTS[1], ContrastiveSearch(0.0, 3), 8, stop=Stop(eos=())).tokens
    )
    with pytest.raises(ValueError):
        decode(lm, PROMPTS[1], DoLa([0, 1]), 4)


@pytest.mark.parametrize('lm', encoder_decoders(), ids=lambda lm: lm.name)
def test_beams_of_encoder_decoders_equal_those_of_generate(lm):
    source = [4, 8, 15, 16]
    for kw in (
        dict(num_beams=4),
        dict(num_beams=3, early_stopping=True, length_penalty=2.0),
        dict(num_beams=5, early_stopping='never'),
    ):
        out = lm.model.generate(
            torch.tensor([source]),
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=[1, 7],
            pad_token_id=0,
            num_return_sequences=2,
            return_dict_in_generate=True,
            output_scores=True,
            **kw,
        )
        want = [
            row[1 : 1 + int((b >= 0).sum())].tolist()
            for row, b in zip(out.sequences, out.beam_indices)
        ]
        assert (
            tokens_of(
                decode(
                    lm, source, BeamSearch(**kw, num_return_sequences=2), 10, stop=Stop(eos=(1, 7))
                )
            )
            == want
        )


def test_beams_equal_those_of_generate_on_text():
    lm = load('pico', device='cpu', dtype=torch.float64)
    for text in (
        'class Stack:\n    def __init__(self',
        'for line in open(path):\n',
    ):
        ids = torch.tensor([lm.encode(text)])
        for ours, theirs in (
            (dict(num_beams=4), {}),
            (dict(num_beams=3, processors=[NoRepeatNGram(2)]), dict(no_repeat_ngram_size=2)),
            (
                dict(num_beams=2, length_penalty=0.0),
                dict(stop_strings=['):'], tokenizer=lm.tokenizer),
            ),
        ):
            kw = {k: v for k, v in ours.items() if k != 'processors'} | theirs
            want = lm.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=20,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                **kw,
            )[0, ids.shape[1] :].tolist()
            got = decode(
                lm,
                text,
                BeamSearch(**ours),
                20,
                stop='):' if 'stop_strings' in theirs else Stop(eos=()),
            ).tokens
            assert got == want[: len(got)]
            assert not any(want[len(got) :])


def test_tokens_are_emitted_when_no_rival_disputes_them():
    lm = load('pico', device='cpu')
    for strategy in (
        BeamSearch(4),
        DiverseBeamSearch(4, 2),
        ConstrainedBeamSearch([PhrasalConstraint(lm.encode(' return')[-1:])], 4),
    ):
        trace = decode(lm, 'def f(x):\n', strategy, 40, stop=Stop(eos=()))
        assert trace.tokens == hypotheses(trace)[0]['tokens']
        assert len(trace.steps) == 40
    early = decode(lm, 'def f(x):\n', BeamSearch(2), 40, stop=Stop(eos=()))
    assert any(s.tokens for s in early.steps[:-1])


def test_stops_end_hypotheses():
    lm = load('pico', device='cpu')
    for strategy in (
        BeamSearch(3, length_penalty=0.0),
        DiverseBeamSearch(4, 2, length_penalty=0.0),
        ContrastiveSearch(),
        DoLa('high'),
        BeamSample(2),
    ):
        for stop in (
            Stop(when=lambda ids: len(ids) == 5),
            Stop(seconds=0.0),
            ['e', 's', 't', 'a', ' '],
        ):
            trace = decode(lm, 'class Stack:\n    def __init__(self', strategy, 30, stop=stop)
            assert trace.stopped not in ('', 'length')
            assert len(trace.tokens) < 30


def test_a_grammar_holds_in_beams():
    "Every token of every hypothesis is one that the grammar allows there, by itself."
    lm, rules = load('pico', device='cpu'), LogitsProcessorList([JsonGrammar()])
    result = hypotheses(decode(lm, 'data = ', BeamSearch(3, rules, num_return_sequences=3), 24))
    for h in result:
        applied = rules.bind(Request(lm, lm.encode('data = '), 24, Rng()))
        ids = lm.encode('data = ')
        for t in h['tokens']:
            assert applied(ids, torch.zeros(1, lm.vocab_size))[0, t] > -math.inf
            ids = ids + [t]
    free = decode(lm, 'data = ', BeamSearch(3), 24).tokens
    # the grammar had something to forbid
    assert len(result) > 1
    assert free != result[0]['tokens']


def test_a_processor_that_follows_one_sequence_is_rejected_in_beams():
    with pytest.raises(ValueError, match='leave it out of a beam search'):
        decode(random_lm(), [3, 4], BeamSearch(2, [Mirostat()]), 4)


def test_nothing_is_left_behind():
    lm = random_lm()
    before = {k: v.clone() for k, v in lm.model.state_dict().items()}
    state = torch.get_rng_state()
    for name, strategy in strategies(lm).items():
        first = tokens_of(decode(lm, PROMPTS[1], strategy, 8, seed=3))
        torch.manual_seed(99)
        assert tokens_of(decode(lm, PROMPTS[1], strategy, 8, seed=3)) == first, (
            name
        )  # the global generator has no part in it
        torch.set_rng_state(state)
        assert repr(strategy)
        assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, lm.model.state_dict()[k]) for k, v in before.items())


def test_an_interruption_leaves_the_model_as_it_was():
    lm = random_lm()
    want = decode(lm, PROMPTS[1], BeamSearch(3), 8).tokens
    calls = []

    def stop(*args):
        calls.append(1)
        if len(calls) > 5:
            raise KeyboardInterrupt

    hook = lm.model.model.layers[1].register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        decode(lm, PROMPTS[1], BeamSearch(3), 8)
    hook.remove()
    assert decode(lm, PROMPTS[1], BeamSearch(3), 8).tokens == want


def test_the_prompt_is_stored_once():
    lm = random_lm()
    request_prompt = list(range(1, 50)) * 3
    strategy = BeamSearch(8)
    request = Request(lm, request_prompt, 20, Rng(0), Stop(eos=()))
    search = Search(strategy, request, strategy.groups(request))
    with torch.inference_mode():
        while not search.over:
            search.tree_nodes(search.advance())
    positions = max(b.shape[2] for b in search.branches.session._kv_buffers())
    # eight rows of 167 tokens would be 1336 places
    assert search.branches.tree
    assert positions <= 512


def test_drafts_speed_up_layers_and_amateurs():
    lm, draft = random_lm(layers=3), random_lm(seed=1, layers=1)
    for base in (
        DoLa([0, 1]),
        DoLa('high', Greedy([NoRepeatNGram(2)])),
        ContrastiveDecoding(draft),
    ):
        plain = decode(lm, PROMPTS[1], base, 16).tokens
        for drafter in (AssistantDrafter(draft, base=Greedy()), PromptLookupDrafter()):
            assert (
                decode(
                    lm, PROMPTS[1], Speculative(drafter, base=base, lookahead=FixedLookahead(3)), 16
                ).tokens
                == plain
            )
    with pytest.raises(TypeError, match='give an object such as Greedy'):
        decode(lm, PROMPTS[1], Speculative(PromptLookupDrafter(), base=BeamSearch(4)), 8)


def test_what_an_encoder_reads_is_never_ignored():
    t5, causal = encoder_decoders()[0], random_lm()

    class Other:
        def decode(self, request):
            replace(request, lm=causal).session()
            yield

    for run in (
        lambda: decode(t5, [4, 5], Other(), 2),
        lambda: decode_batch(t5, [[4, 5], [6]], Other(), max_new_tokens=2),
    ):
        with pytest.raises(ValueError, match='has no encoder'):
            run()
