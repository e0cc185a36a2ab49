"""Four search strategies that transformers 5 removed, token for token as transformers 4.49 returned them.

`golden/search.json` is made by `golden/make.py`, in float64. If the original is wrong, or a sequence depends
on its neighbours in a batch, WRONG says why, and what is expected instead.
"""

import functools
import json
from collections import Counter

import pytest
from repo import ROOT

from decodelab import (
    LM,
    ConstrainedBeamSearch,
    ContrastiveSearch,
    DisjunctiveConstraint,
    DiverseBeamSearch,
    DoLa,
    Greedy,
    NoRepeatNGram,
    PhrasalConstraint,
    RepetitionPenalty,
    Stop,
    decode,
)
from decodelab.logits.processors import MinNewTokens
from decodelab.strategies import from_force_words_ids
from decodelab.strategies.beam_search import hypotheses
from decodelab.strategies.constraints import fulfilled_at
from tests.golden.tiny import build, fingerprint

GOLDEN = json.loads((ROOT / 'tests/golden/search.json').read_text())
CASES = {c['name']: c for c in GOLDEN['cases']}
STRATEGIES = 'diverse', 'constrained', 'contrastive', 'dola'

WRONG = {  # what is wrong with the original's text, and what is asked for instead
    'alone': (
        'a text depends on its neighbours (the padding of encoder texts is read, and counts as '
        'said for the repetition penalty; DoLa takes one layer for the batch): what each prompt '
        'says alone'
    ),
    'done groups': (
        'a group that has finished goes on choosing padding, which later groups pay for (they '
        'cannot end, where the padding is the end): the original with silent groups'
    ),
    'prompt': 'a prompt that says the phrase fulfils it',
    'overlap': (
        'the tracker has no way back inside a phrase (1 1 2 is not found in 1 1 1 2), a token '
        'that breaks one phrase is not tried for another, and one token serves one phrase only'
    ),
    'shared': 'copies of a disjunction share their progress, so one candidate steps for all',
    'banks': 'where a step costs more than 100, a beam falls into the bank below',
    'incomplete': (
        'texts that break the constraints are returned, ahead of those that keep them: only those '
        'that keep them'
    ),
    'divergence': (
        'what chooses the layer is not the Jensen-Shannon divergence: the original with the true '
        'one; divergence="official" does as the original'
    ),
    'dropped': (
        'a text that has met its constraints gets no candidate of its own and is lost to likelier '
        'ones: the original with the branch that does this, which it never takes; '
        'keep_complete=False does as the original'
    ),
}
NAMED = {  # cases by themselves: the error we raise instead of a text
    'a layer that the model has not is dropped without a word': (
        'dola-046',
        'dola-067',
        'dola-088',
        'dola-109',
        'dola-131',
        'dola-132',
        r'a layer of .* is \d+: give an integer from 0 to \d',
    ),
    'the phrase is longer than the text may be': (
        'constrained-165',
        'constrained-171',
        'max_new_tokens is 3',
    ),
    'the phrase holds the end of text': (
        'constrained-166',
        'constrained-172',
        'contains an end of text',
    ),
}
# the rules forbid every plausible token, and the original goes on with id 0; here the last layer
# decides by itself then
DEAD_END = 'dola-056'
FORBIDDEN = (
    'constrained-097',
    'constrained-136',
    # the original proposes tokens that the rules forbid, and beams of probability zero take places;
    # asked for is that the constraints are met
)
RAISES = {name: pattern for *names, pattern in NAMED.values() for name in names}
WORKS = {  # the original raises, and nothing is wrong with what was asked for
    'contrastive-012': 'low_memory in a batch',
    'contrastive-039': 'low_memory in a batch',
    'contrastive-066': 'low_memory in a batch',
    'contrastive-093': 'low_memory in a batch',
    'contrastive-120': 'low_memory in a batch',
    'constrained-183': 'a word begins another',
    'constrained-185': 'one beam',
}


@functools.cache
def lm_of(name):
    """The model of this name, rebuilt under the transformers that is installed.

    Its weights are those of the file.
    """
    model = build(**GOLDEN['models'][name]['recipe'])
    assert fingerprint(model) == GOLDEN['models'][name]['fingerprint']
    return LM(model)


def rules(args, penalty=True):
    "The processors that `generate` makes of these arguments, in its order."
    result = (
        [RepetitionPenalty(args['repetition_penalty'])]
        if penalty and args.get('repetition_penalty', 1.0) != 1.0
        else []
    )
    result += (
        [NoRepeatNGram(args['no_repeat_ngram_size'])] if 'no_repeat_ngram_size' in args else []
    )
    return result + ([MinNewTokens(args['min_new_tokens'])] if 'min_new_tokens' in args else [])


def constraints(args):
    objects = [
        PhrasalConstraint(c['phrasal'])
        if 'phrasal' in c
        else DisjunctiveConstraint(c['disjunctive'])
        for c in args.get('constraints', ())
    ]
    return objects + (
        from_force_words_ids(args['force_words_ids']) if 'force_words_ids' in args else []
    )


def strategy(case, mended):
    "Ours, for the arguments of a case; an argument that it has not is a TypeError."
    args = case['args']
    beams = {
        n: args[n]
        for n in ('num_beams', 'length_penalty', 'early_stopping', 'num_return_sequences')
        if n in args
    }
    if case['strategy'] == 'diverse':
        return DiverseBeamSearch(
            num_beam_groups=args['num_beam_groups'],
            diversity_penalty=args['diversity_penalty'],
            processors=rules(args),
            **beams,
        )
    other = {n: args[n] for n in ('num_beam_groups', 'diversity_penalty') if n in args}
    if case['strategy'] == 'constrained':
        return ConstrainedBeamSearch(
            constraints(args), processors=rules(args), keep_complete=mended, **beams, **other
        )
    if case['strategy'] == 'contrastive':
        return ContrastiveSearch(args['penalty_alpha'], args['top_k'], rules(args))
    return DoLa(
        args['dola_layers'],
        Greedy(rules(args, penalty=False)),
        divergence='jsd' if mended else 'original',
        repetition_penalty=args['repetition_penalty'],
        **beams,
    )


def ends(args):
    eos = args.get('eos_token_id', [])
    return tuple(eos) if isinstance(eos, list) else (eos,)


def tokens_of(case, mended=False):
    """`(tokens, scores)` of ours, each prompt by itself.

    `mended`: with the default settings, where others do as the original did.
    """
    tokens, scores = [], []
    for prompt in case['prompts']:
        trace = decode(
            lm_of(case['model']),
            prompt,
            strategy(case, mended),
            case['args']['max_new_tokens'],
            stop=Stop(eos=ends(case['args'])),
        )
        result = (
            hypotheses(trace)
            if 'num_beams' in case['args']
            else [dict(tokens=trace.tokens, score=None)]
        )
        tokens += [h['tokens'] for h in result]
        scores += [h['score'] for h in result]
    return tokens, scores


def alike(tokens, case):
    "Tokens in which all end ids are one: the original's beams write the first end id, whichever was said."
    eos = ends(case['args'])
    return [[*t[:-1], 'end'] if t and t[-1] in eos else t for t in tokens]


def meets(tokens, args):
    return None not in fulfilled_at(constraints(args), tokens)


def demanded(case, mended=False):
    "The tokens we want: the original's, or those without what WRONG says."
    tokens, fixed = case.get('alone', case['tokens']), case['fixed']
    if case['strategy'] == 'dola':
        return fixed.get('divergence', tokens) if mended else tokens
    if case['strategy'] != 'constrained':
        return fixed.get('done groups', tokens)
    tokens = fixed.get('dropped' if mended else 'all constrained', tokens)
    return [t for t in tokens if t and meets(t, case['args'])]


def works(strategy):
    return [
        pytest.param(c, id=c['name'])
        for c in CASES.values()
        if c['strategy'] == strategy
        and 'tokens' in c
        and c['name'] not in [*RAISES, *FORBIDDEN, DEAD_END]
    ]


def check(case, mended=False):
    want = demanded(case, mended)
    tokens, scores = tokens_of(case, mended)
    assert alike(tokens, case) == alike(want, case)
    if want == case['tokens'] and 'scores' in case:
        assert scores == pytest.approx(case['scores'], abs=1e-7)  # its penalty is a float32
    return tokens


@pytest.mark.parametrize('case', works('diverse'))
def test_diverse_beam_search(case):
    check(case)


@pytest.mark.parametrize('case', works('contrastive'))
def test_contrastive_search(case):
    check(case)


@pytest.mark.parametrize('case', works('dola'))
def test_dola(case):
    check(case)


@pytest.mark.parametrize('case', works('dola'))
def test_dola_with_the_true_divergence(case):
    check(case, mended=True)


@pytest.mark.parametrize('case', works('constrained'))
def test_constrained_beam_search(case):
    if demanded(case):
        check(case)
    else:
        with pytest.raises(ValueError, match='was lost to likelier ones|could not be generated'):
            tokens_of(case)


@pytest.mark.parametrize('case', works('constrained'))
def test_constrained_beam_search_that_keeps_what_is_complete(case):
    assert all(meets(tokens, case['args']) for tokens in check(case, mended=True))


@pytest.mark.parametrize('name', FORBIDDEN)
def test_what_rules_forbid_is_not_proposed(name):
    for mended in (False, True):
        assert all(
            meets(tokens, CASES[name]['args']) for tokens in tokens_of(CASES[name], mended)[0]
        )


def test_a_dead_end_of_dola_is_left_by_the_last_layer():
    case = CASES[DEAD_END]
    [tokens] = tokens_of(case)[0]
    [theirs], [prompt] = case['tokens'], case['prompts']
    pairs = list(zip(prompt + tokens, (prompt + tokens)[1:]))
    assert tokens[:8] == theirs[:8]
    assert theirs[8] == 0 != tokens[8]
    assert len(set(pairs)) == len(pairs)


def test_errors_of_the_original():
    "What is wrong in the arguments is an error here, too; what is not, works."
    for name, case in CASES.items():
        if 'error' in case and name not in WORKS:
            with pytest.raises((ValueError, TypeError)):
                tokens_of(case)
    for name, why in WORKS.items():
        tokens, _ = tokens_of(CASES[name], mended=True)
        if why == 'low_memory in a batch':
            plain = CASES[name]['args'] | dict(low_memory=None)
            assert tokens == next(
                c.get('alone', c['tokens'])
                for c in CASES.values()
                if c['model'] == CASES[name]['model']
                and c['prompts'] == CASES[name]['prompts']
                and c['args'] | dict(low_memory=None) == plain
                and 'tokens' in c
            )
        else:
            assert all(meets(t, CASES[name]['args']) for t in tokens)


@pytest.mark.parametrize('name', RAISES)
def test_errors_of_ours(name):
    "Where the original answered something else than what was asked for, there is an error that says why."
    with pytest.raises(ValueError, match=RAISES[name]):
        tokens_of(CASES[name], mended=True)


def test_the_table_of_what_is_wrong():
    "Every defect that changed a text has its reason, and every reason its texts."
    result = Counter(
        kind
        for c in CASES.values()
        for kind in [*c.get('fixed', ()), *(['alone'] if 'alone' in c else [])]
    )
    assert set(result) - {'all constrained'} == set(WRONG)
    assert len(CASES) >= 500
    counts = Counter(c['strategy'] for c in CASES.values())
    assert set(counts) >= set(STRATEGIES)
    assert min(counts[s] for s in STRATEGIES) >= 100
    same = [
        c
        for c in CASES.values()
        if 'tokens' in c and c['name'] not in RAISES and demanded(c) == c['tokens']
    ]
    assert len(same) > 400
