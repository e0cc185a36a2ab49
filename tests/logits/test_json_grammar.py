"The JSON grammar follows the sequence through drafts and rejections; finished sequences are JSON."

import json

import pytest
import torch
from repo import ROOT
from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast

from decodelab import (
    AssistantDrafter,
    BlockVerifier,
    ClassifierFreeGuidance,
    EarlyExitDrafter,
    ExactMatchVerifier,
    FixedLookahead,
    Greedy,
    JsonGrammar,
    PromptLookupDrafter,
    RepetitionPenalty,
    Sample,
    Speculative,
    Stop,
    SuffixDrafter,
    Temperature,
    TokenIntersectionDrafter,
    TopP,
    UniversalDrafter,
    decode,
    decode_batch,
    load,
    random_lm,
)
from decodelab.core.driver import Request, Rng
from decodelab.evaluate.certify import g_test
from decodelab.logits import Mirostat
from decodelab.logits.json_grammar import (
    REQUIRED_CHARACTERS,
    TokenTrie,
    complete,
    state_after,
    token_trie,
)
from decodelab.models.tokenizer_bytes import token_texts

TOKENIZERS = ROOT.parent / 'shared' / 'data' / 'tokenizers'
MODELS = ROOT.parent / 'shared' / 'data' / 'models'
PROMPTS = ['config = {"', 'text = """{"', "data = json.loads('{\"", 'x = {"']
GRAMMAR = JsonGrammar(prefix='{"', max_whitespace=2)


@pytest.fixture(scope='module')
def models():
    return load('pico', device='cpu'), load('pico-draft', device='cpu')


def letters(names):
    "A tokenizer whose tokens are the given strings."
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    rust = Tokenizer(BPE({n: i for i, n in enumerate(names)}, [], unk_token=names[0]))
    rust.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=rust, unk_token=names[0], eos_token=names[1])


def drafters(draft):
    return AssistantDrafter(draft), PromptLookupDrafter()


def is_json(trace, begun='{"'):
    "A finished text is JSON, one that was cut is the beginning of some."
    whole = begun + ''.join(trace.token_texts)
    if trace.stopped == 'eos':
        return isinstance(json.loads(whole.removesuffix('<|end|>')), dict)
    return (
        state_after(whole.encode().decode('latin-1').removesuffix('\xef\xbf\xbd'), (64, 24))
        is not None
    )


def test_greedy_texts_are_those_of_plain_decoding_alone_and_in_batches(models):
    lm, draft = models
    for rules in (
        [GRAMMAR],
        [RepetitionPenalty(1.3), GRAMMAR],
        [ClassifierFreeGuidance(1.5), RepetitionPenalty(1.2), GRAMMAR],
    ):
        base = Greedy(rules)
        plain = [decode(lm, p, base, 20) for p in PROMPTS]
        assert all(map(is_json, plain))
        for drafter in drafters(draft):
            strategy = Speculative(drafter, base=base, lookahead=FixedLookahead(4))
            traces = [decode(lm, p, strategy, 20) for p in PROMPTS]
            assert [t.tokens for t in traces] == [t.tokens for t in plain]
            assert sum(s.accepted < s.drafted for t in traces for s in t.steps)
    for size in (1, 3, 7):
        assert [t.tokens for t in decode_batch(lm, PROMPTS * 2, strategy, size, 20)] == [
            t.tokens for t in plain * 2
        ]


def test_every_other_drafter_and_strict_texts(models):
    lm = models[0]
    alt = load('pico-alt', device='cpu')
    half = load('pico', device='cpu', dtype=torch.bfloat16)
    base = Greedy([RepetitionPenalty(1.3), GRAMMAR])
    plain = [decode(lm, p, base, 20).tokens for p in PROMPTS[:3]]
    for drafter in (
        EarlyExitDrafter(2),
        SuffixDrafter(),
        UniversalDrafter(alt),
        TokenIntersectionDrafter(alt),
    ):
        assert [
            t.tokens for t in decode_batch(lm, PROMPTS[:3], Speculative(drafter, base=base), 3, 20)
        ] == plain, drafter
        assert is_json(
            decode(lm, PROMPTS[0], Speculative(drafter, base=Sample([GRAMMAR])), 16, seed=1)
        )
    for prompt in PROMPTS[:2]:
        assert (
            decode(
                half, prompt, Speculative(PromptLookupDrafter(), base=base, deterministic=True), 20
            ).tokens
            == decode(half, prompt, base, 20).tokens
        )


def test_drawn_texts_are_those_of_plain_decoding_where_they_can_be(models):
    lm, draft = models
    base = Sample([RepetitionPenalty(1.1), GRAMMAR, Temperature(0.9), TopP(0.95)])
    for drafter in (PromptLookupDrafter(), AssistantDrafter(draft, base=Greedy([GRAMMAR]))):
        strategy = Speculative(drafter, base=base, verifier=ExactMatchVerifier())
        plain = [decode(lm, p, base, 20, seed=s).tokens for s, p in enumerate(PROMPTS)]
        assert [decode(lm, p, strategy, 20, seed=s).tokens for s, p in enumerate(PROMPTS)] == plain
        for size in (1, 3, 7):
            assert [t.tokens for t in decode_batch(lm, PROMPTS, strategy, size, 20)] == plain


def test_finished_texts_are_json(models):
    lm, draft = models
    for rules in ([GRAMMAR, Temperature(0.8)], [GRAMMAR, Mirostat(3.0)]):
        drawn = decode_batch(
            lm, PROMPTS * 4, Speculative(AssistantDrafter(draft), base=Sample(rules)), 16, 40
        )
        assert all(map(is_json, drawn))
        assert sum(t.stopped == 'eos' for t in drawn) >= 3


def distribution(lm, base, prompt, n, stop):
    "The probability of each text of at most `n` tokens under plain sampling, by reading every context."
    reading = base.bind(Request(lm, prompt, n, Rng(), stop))
    table = {}
    growing = {(): 1.0}
    for i in range(n):
        longer = {
            ids + (t,): q * p
            for ids, q in growing.items()
            for t, p in enumerate(reading.scores(prompt + list(ids), 1)[0].tolist())
            if p
        }
        growing = {ids: p for ids, p in longer.items() if ids[-1] not in stop.eos and i + 1 < n}
        table |= {ids: p for ids, p in longer.items() if ids not in growing}
    return table


@pytest.mark.parametrize('verifier', [None, BlockVerifier()], ids=repr)
def test_the_distribution_of_samples_is_that_of_plain_sampling(verifier):
    tokenizer = letters(['<unk>', '</s>', *REQUIRED_CHARACTERS, '[', '[1', '"a', '1,'])
    lm, draft = (random_lm(seed=s, vocab_size=20, layers=1, tokenizer=tokenizer) for s in (0, 1))
    stop = Stop(eos=(1,))
    prompt = [5, 8, 5]
    base = Sample([JsonGrammar(max_depth=2), Temperature(1.5)])
    probabilities = distribution(lm, base, prompt, 3, stop)
    assert abs(sum(probabilities.values()) - 1) < 1e-9
    for drafter in (AssistantDrafter(draft), PromptLookupDrafter(max_ngram=1)):
        strategy = Speculative(drafter, base=base, verifier=verifier)
        traces = decode_batch(lm, [prompt] * 800, strategy, 100, 3, stop=stop)
        alone = [decode(lm, prompt, strategy, 3, seed=s, stop=stop).tokens for s in range(100)]
        assert [t.tokens for t in traces[:100]] == alone
        drawn = [tuple(t.tokens) for t in traces]
        assert set(drawn) <= set(probabilities)
        assert (
            g_test([drawn.count(ids) for ids in probabilities], list(probabilities.values()))[0]
            > 0.001
        )


def test_random_models_of_every_kind_of_scores_write_json():
    # scores that know nothing of JSON: only the grammar keeps the text in order
    tokenizer = letters(
        [
            '<unk>',
            '</s>',
            *REQUIRED_CHARACTERS,
            '[',
            '{',
            '.',
            '-',
            '1',
            '▁',
            '\\',
            '▁"',
            '":',
            '],',
            '[[',
            '{"',
            'true',
            'false',
            'null',
            '\n',
        ]
    )
    size = len(tokenizer)
    for seed in range(6):
        lm, draft = (
            random_lm(seed=s, vocab_size=size, layers=1, tokenizer=tokenizer, scale=0.4)
            for s in (seed, seed + 50)
        )
        stop = Stop(eos=(1,))
        for base in (
            Greedy([JsonGrammar(max_depth=3, max_whitespace=1), RepetitionPenalty(1.5)]),
            Sample([JsonGrammar(max_depth=3, max_whitespace=1)]),
        ):
            for drafter in drafters(draft):
                trace = decode(
                    lm, [5, 6], Speculative(drafter, base=base), 60, seed=seed, stop=stop
                )
                text = ''.join(
                    token_trie(lm).texts[i]
                    for i in trace.tokens[: -1 if trace.stopped == 'eos' else None]
                )
                assert (trace.stopped == 'eos') == (trace.tokens[-1] == 1), text
                assert state_after(text, (3, 1)), text
                if trace.stopped == 'eos':
                    json.loads(text)
                if base.greedy:
                    assert trace.tokens == decode(lm, [5, 6], base, 60, stop=stop).tokens


@pytest.mark.skipif(
    not (TOKENIZERS / 'gpt2' / 'vocab.json').is_file(),
    reason='no folder shared/data/tokenizers beside the checkout',
)
def test_a_vocabulary_of_fifty_thousand():
    gpt2 = GPT2TokenizerFast(
        str(TOKENIZERS / 'gpt2' / 'vocab.json'), str(TOKENIZERS / 'gpt2' / 'merges.txt')
    )
    written = token_texts(gpt2, len(gpt2))
    for sample in ('{"né": "😀 日本\\n", "x": [1.5e-3, null]}', ' {"a" : "b\\u00e9"}'):
        ids = gpt2.encode(sample)
        assert (
            ''.join(written[i] for i in ids).encode('latin-1').decode()
            == sample
            == gpt2.decode(ids)
        )
        assert complete(state_after(''.join(written[i] for i in ids), (64, 24)))
    lm = random_lm(
        vocab_size=len(gpt2) + 3, layers=1, tokenizer=gpt2
    )  # ids that the tokenizer does not know
    lexicon = TokenTrie(lm)
    free = lexicon.allowed('SW', (64, 24))
    assert not free[-3:].any()
    assert free.sum() > 48000
    assert not free[gpt2.eos_token_id]
    assert {written[i] for i in lexicon.allowed('rueW', (64, 24)).nonzero()[:, 0].tolist()} == {
        'r',
        'ru',
        'rue',
    }


@pytest.mark.skipif(not MODELS.is_dir(), reason='no folder shared/data/models beside the checkout')
@pytest.mark.parametrize('name', ['stories260K', 'babyllama361'])
def test_sentencepiece_checkpoints(name):
    lm = load(MODELS / name, device='cpu')
    written = token_texts(lm.tokenizer, lm.vocab_size)
    ids = lm.encode('Once upon a time, é😀 "x"') + [3 + b for b in 'é😀'.encode()]
    assert (
        ''.join(written[i] or '' for i in ids).encode('latin-1').decode().strip()
        == lm.decode(ids).removeprefix('<s>').strip()
    )
    grammar = JsonGrammar(prefix='{"title": "', max_whitespace=1)
    if missing := [c for c in REQUIRED_CHARACTERS if c not in written]:
        with pytest.raises(ValueError, match='cannot finish JSON'):
            decode(lm, 'Once', Greedy([grammar]), 4)
        assert missing
        return
    for base in (Greedy([grammar]), Greedy([RepetitionPenalty(1.2), grammar])):
        plain = decode(lm, 'Once upon a time', base, 32)
        assert (
            decode(lm, 'Once upon a time', Speculative(PromptLookupDrafter(), base=base), 32).tokens
            == plain.tokens
        )
        assert is_json(plain, '{"title": "')
