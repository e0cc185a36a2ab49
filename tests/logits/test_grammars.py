"Grammars of llguidance, xgrammar and our own × drafters, verifiers and ends of a sequence (`pip install '.[llguidance,xgrammar]'`)."

import json
import random
import re
from importlib.util import find_spec

import pytest
import torch

from decodelab import (
    AssistantDrafter,
    BlockVerifier,
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
    TreeDrafter,
    decode,
    decode_batch,
    load,
)
from decodelab.drafters import CascadeDrafter, FirstOfDrafter, GrammarDrafter, ParallelDrafter
from decodelab.evaluate.certify import token_check
from decodelab.logits import JsonSchema, LLGuidance, Matcher, Regex, XGrammar
from decodelab.speculative import MultiDraftVerifier, TokenVerifier

PERSON = {
    'type': 'object',
    'properties': {
        'name': {'type': 'string', 'maxLength': 8},
        'born': {'type': 'string', 'pattern': '^(19|20)[0-9]{2}-[0-9]{2}$'},
        'tags': {'type': 'array', 'items': {'enum': ['red', 'green']}, 'maxItems': 2},
    },
    'required': ['name', 'born', 'tags'],
    'additionalProperties': False,
}
PATTERN = '(yes|no|é+), [0-9]{4}-[0-9]{2}( ok)?'
BACKENDS = {'llguidance': LLGuidance(), 'xgrammar': XGrammar()}
INSTALLED = [
    pytest.param(
        backend,
        marks=pytest.mark.skipif(find_spec(name) is None, reason=f'{name} is not installed'),
        id=name,
    )
    for name, backend in BACKENDS.items()
]
PROMPTS = ['user = ', 'x = {"', 'return [']


@pytest.fixture(scope='module')
def models():
    return load('pico', device='cpu'), load('pico-draft', device='cpu')


def is_record(text):
    "Is a text a record of the schema, laid out as `json.dumps` does?"
    value = json.loads(text)
    parts = [len(value['name']) <= 8, re.fullmatch('(19|20)[0-9]{2}-[0-9]{2}', value['born'])]
    parts += [list(value) == ['name', 'born', 'tags'], set(value['tags']) <= {'red', 'green'}]
    return all(parts) and len(value['tags']) <= 2


def drafters(draft):
    "A drafter of each kind, alone and with the grammar."
    grammar = GrammarDrafter()
    return (
        grammar,
        PromptLookupDrafter(),
        SuffixDrafter(),
        EarlyExitDrafter(2),
        FirstOfDrafter(grammar, AssistantDrafter(draft)),
        CascadeDrafter(draft, grammar),
        ParallelDrafter(AssistantDrafter(draft), grammar),
        TreeDrafter(draft, (2, 1)),
    )


def grammars(backend):
    return JsonSchema(PERSON, backend), Regex(PATTERN, backend)


@pytest.mark.parametrize('backend', INSTALLED)
def test_greedy_tokens_are_those_of_plain_decoding_alone_and_in_batches(models, backend):
    lm, draft = models
    for grammar in grammars(backend):
        base = Greedy([RepetitionPenalty(1.1), grammar])
        plain = [decode(lm, prompt, base, 24).tokens for prompt in PROMPTS]
        for drafter in drafters(draft):
            strategy = Speculative(drafter, base, lookahead=FixedLookahead(4))
            batch = decode_batch(lm, PROMPTS, strategy, len(PROMPTS), 24)
            assert [trace.tokens for trace in batch] == plain, drafter


@pytest.mark.parametrize('backend', INSTALLED)
def test_finished_samples_are_in_the_language(models, backend):
    lm, draft = models
    drafter = FirstOfDrafter(GrammarDrafter(), AssistantDrafter(draft))
    for grammar in grammars(backend):
        strategy = Speculative(drafter, Sample([grammar, Temperature(0.8)]))
        traces = decode_batch(lm, PROMPTS * 3, strategy, 9, 48)
        texts = [t.text.removesuffix('<|end|>') for t in traces if t.stopped == 'eos']
        assert len(texts) >= 4
        if isinstance(grammar, JsonSchema):
            assert all(map(is_record, texts))
        else:
            assert all(re.fullmatch(PATTERN, text) for text in texts)


@pytest.mark.parametrize('backend', INSTALLED)
def test_every_verifier_keeps_the_distribution(models, backend):
    lm, draft = models
    base = Sample([Regex('(a|ab|abc)+(, [0-9]{1,2})*', backend), Temperature(1.5)])
    prompts = [lm.encode(prompt) for prompt in PROMPTS]
    chains = FirstOfDrafter(GrammarDrafter(), AssistantDrafter(draft))
    for verifier in (TokenVerifier(), BlockVerifier(), MultiDraftVerifier(), ExactMatchVerifier()):
        strategy = Speculative(chains, base, verifier, FixedLookahead(3))
        check = token_check({'': strategy}, lm, prompts, 60, 6)
        assert check.passed, (verifier, check.message)
    tree = ParallelDrafter(AssistantDrafter(draft), GrammarDrafter())
    check = token_check({'': Speculative(tree, base)}, lm, prompts, 60, 6)
    assert check.passed, check.message


@pytest.mark.parametrize('backend', INSTALLED)
def test_any_end_of_a_sequence(models, backend):
    "Ids, strings and conditions end a sequence before the grammar does."
    lm, draft = models
    base = Greedy(JsonSchema(PERSON, backend))
    plain = decode(lm, 'user = ', base, 40)
    middle = plain.tokens[5]
    stops = (
        Stop(eos=(lm.eos[0], middle)),
        Stop(strings=('born',)),
        Stop(when=lambda tokens: len(tokens) == 7),
    )
    for stop in stops:
        expected = decode(lm, 'user = ', base, 40, stop=stop)
        for drafter in (GrammarDrafter(), CascadeDrafter(draft, GrammarDrafter())):
            strategy = Speculative(drafter, base, lookahead=FixedLookahead(6))
            trace = decode(lm, 'user = ', strategy, 40, stop=stop)
            assert trace.tokens == expected.tokens
            assert trace.stopped == expected.stopped


@pytest.mark.parametrize('backend', INSTALLED)
def test_masks_depend_on_the_text_alone(models, backend):
    "Random walks with detours, rollbacks and forks, against a new matcher; the forced text against masks."
    lm, _ = models
    for grammar in grammars(backend):
        for seed in range(2):
            draw = random.Random(seed)
            matcher, tokens = grammar.matcher(lm), []
            for _ in range(24):
                fresh = grammar.matcher(lm)
                assert all(map(fresh.accept, tokens))
                mask = matcher.allowed()
                assert torch.equal(mask, fresh.allowed())
                assert matcher.is_complete() == fresh.is_complete()
                assert matcher.forced() == Matcher.forced(matcher)
                ids = mask.nonzero()[:, 0].tolist()
                if (tokens and draw.random() < 0.25) or not ids:
                    n = draw.randint(1, len(tokens))
                    matcher.rollback(n)
                    del tokens[-n:]
                    continue
                if draw.random() < 0.2:
                    other, matcher = matcher, matcher.fork()
                    assert other.accept(draw.choice(ids))
                tokens.append(draw.choice(ids))
                assert matcher.accept(tokens[-1])


@pytest.mark.parametrize('backend', INSTALLED)
def test_rows_of_a_batch_have_matchers_of_their_own(models, backend):
    lm, _ = models
    grammar = JsonSchema(PERSON, backend)
    first, second = grammar.matcher(lm), grammar.matcher(lm)
    assert first.accept(lm.encode('{')[0])
    assert second.forced().startswith('{')
    assert first.forced().startswith('"')


def test_our_own_grammar_with_the_drafter(models):
    lm, draft = models
    for grammar in (JsonGrammar(max_whitespace=0), JsonGrammar(prefix='[t')):
        base = Greedy([RepetitionPenalty(1.1), grammar])
        plain = [decode(lm, prompt, base, 24).tokens for prompt in PROMPTS]
        for drafter in drafters(draft)[:1] + drafters(draft)[4:7]:
            strategy = Speculative(drafter, base, lookahead=FixedLookahead(4))
            batch = decode_batch(lm, PROMPTS, strategy, len(PROMPTS), 24)
            assert [trace.tokens for trace in batch] == plain, drafter
    forced = Speculative(GrammarDrafter(), Greedy(JsonGrammar(prefix='[t')))
    assert decode(lm, 'x = ', forced, 4).steps[0].drafted > 0
