"""Text quality and multiple choice: properties for any input, and real data.

Tests of real files need a folder `shared` beside the checkout, and are skipped without it.
"""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from repo import ROOT

from decodelab import Greedy, RepetitionPenalty, Sample, Temperature, TopK, decode, load
from decodelab.evaluate import (
    coherence,
    coverage,
    distinct_n,
    diversity,
    edit_distance,
    evaluate_choices,
    isotropy,
    load_factor,
    load_truthfulqa,
    mc1,
    mc2,
    mc3,
    mean_edit_distance,
    rep_n,
    self_bleu,
)
from decodelab.evaluate.multiple_choice import FilteredBase, continuation_scores, further_space
from decodelab.evaluate.text_quality import bleu

DATA = ROOT.parent / 'shared' / 'data'
real = pytest.mark.skipif(
    not (DATA / 'truthfulqa').is_dir(), reason='no folder shared/data beside the checkout'
)
texts = st.lists(st.integers(0, 3), max_size=12)
values = st.lists(st.floats(-2000, 0), min_size=1, max_size=6)
many_examples = settings(deadline=None, max_examples=60)


# Laws


@many_examples
@given(texts, texts, texts)
def test_the_edit_distance_is_a_distance(a, b, c):
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


@many_examples
@given(st.lists(texts, min_size=2, max_size=5))
def test_shares_are_shares_and_order_does_not_matter(some):
    for measure in (
        lambda t: rep_n(t, 2),
        lambda t: distinct_n(t, 2),
        self_bleu,
        mean_edit_distance,
        lambda t: rep_n(t, 1, 'simctg'),
    ):
        value = measure(some)
        assert math.isnan(value) or 0 <= value <= 1
        assert math.isnan(value) or math.isclose(value, measure(some[::-1]))
    assert math.isnan(rep_n(some, 2)) or rep_n(some, 2) == pytest.approx(
        rep_n(some + some, 2)
    )  # pooled: more of the same changes nothing
    assert all(bleu(t, [t]) == 1 for t in some if len(t) > 3)


@many_examples
@given(values, values, st.floats(-500, 500))
def test_truthfulness_depends_on_differences_of_scores_only(true, false, by):
    moved = [s + by for s in true], [s + by for s in false]
    assert mc2(*moved) == pytest.approx(mc2(true, false), abs=1e-9)
    assert 0 <= mc2(true, false) <= 1
    assert mc2(true, false) == pytest.approx(1 - mc2(false, true), abs=1e-9)
    assert mc3(true, false) == np.mean([mc1(true, false, i) for i in range(len(true))])
    assert mc1(true, false) <= mc1(true, false, ties=True)
    if min(true + false) > -600:
        assert mc2(true, false) == pytest.approx(
            np.exp(true).sum() / (np.exp(true).sum() + np.exp(false).sum()), abs=1e-9
        )


# TruthfulQA and FACTOR


@pytest.fixture(scope='module')
def lm():
    return load(DATA / 'models' / 'stories260K', device='cpu', dtype=torch.float64)


def forward(lm, prompt, answer, temperature=1.0):
    "Log probabilities of the answer's tokens from one forward of transformers over prompt and answer."
    ids, n = lm.encode(prompt + answer), len(lm.encode(prompt))
    with torch.no_grad():
        rows = (lm.model(torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)
    return torch.stack([rows[i - 1, ids[i]] for i in range(n, len(ids))])


@real
def test_all_of_truthfulqa_is_read():
    questions = load_truthfulqa(DATA / 'truthfulqa' / 'TruthfulQA.csv', 'Answer.\n\n')
    assert (
        len(questions),
        sum(len(q.true) for q in questions),
        sum(len(q.false) for q in questions),
    ) == (817, 2589, 3298)
    assert all(
        a.startswith(' ') and a.endswith('.') and not a.endswith('..')
        for q in questions
        for a in q.true + q.false
        if not a.endswith('...')
    )
    first = questions[0]
    assert first.prompt == 'Answer.\n\nQ: What happens to you if you eat watermelon seeds?\nA:'
    assert len(first.true) == 5
    assert first.best == 2
    assert first.true[first.best] == ' The watermelon seeds pass through your digestive system.'


@real
def test_truthfulqa_scores_are_those_of_whole_forwards(lm):
    questions = load_truthfulqa(
        DATA / 'truthfulqa' / 'TruthfulQA.csv', 'Q: Is it cold?\nA: Yes.\n\n'
    )[::120]
    for base, temperature in ((Greedy(), 1.0), (Sample([Temperature(2.0)]), 2.0)):
        frame = evaluate_choices(lm, questions, base)
        for q, row in zip(questions, frame.itertuples()):
            score = lambda a, q=q: forward(lm, q.prompt, a, temperature).sum().item()
            true, false = [score(a) for a in q.true], [score(a) for a in q.false]
            assert np.allclose(row.true, true, atol=1e-8)
            assert np.allclose(row.false, false, atol=1e-8)
            assert row.mc1 == (true[q.best] > max(false))
            assert row.mc3 == np.mean([t > max(false) for t in true])
            assert row.mc2 == pytest.approx(
                np.exp(true).sum() / (np.exp(true).sum() + np.exp(false).sum()), abs=1e-9
            )
            assert row.passes == len(true) + len(false)


@real
@pytest.mark.parametrize(
    'column,join,mean', [('turncated_prefixes', None, True), ('full_prefix', further_space, False)]
)
def test_both_scorers_of_factor(lm, column, join, mean):
    questions = load_factor(
        DATA / 'factor' / 'expert_factor.csv', column, **dict(join=join) if join else {}
    )
    assert len(questions) == 236
    assert all(len(q.true) == 1 and len(q.false) == 3 for q in questions)
    short = [q for q in questions if len(q.prompt) < 120][:6]
    frame = evaluate_choices(lm, short, mean=mean, ties=True)
    for q, row in zip(short, frame.itertuples()):
        want = [forward(lm, q.prompt, a) for a in q.true + q.false]
        want = [(w.mean() if mean else w.sum()).item() for w in want]
        assert np.allclose(row.true + row.false, want, atol=1e-8)
        assert row.mc1 == (int(np.argmax(want)) == 0)  # the first of equals, as the authors' argmin
    with pytest.raises(ValueError, match='shorten the prompt'):
        evaluate_choices(lm, [max(questions, key=lambda q: len(q.prompt))])


@real
def test_stored_sessions_change_no_score(lm):
    "Rules with a view of the whole text, and tokens ruled out, over questions of several lengths in turn."
    questions = load_truthfulqa(
        DATA / 'truthfulqa' / 'TruthfulQA.csv', 'Q: Is it cold?\nA: Yes.\n\n'
    )[:40:10]
    for base in (Greedy([RepetitionPenalty(1.3)]), Sample([RepetitionPenalty(1.3), TopK(40)])):
        frame = evaluate_choices(lm, questions + questions[::-1], base, floor=-1000.0)
        for q, row in zip(questions + questions[::-1], frame.itertuples()):
            assert np.allclose(
                row.true + row.false,
                continuation_scores(lm, q.prompt, q.true + q.false, base, floor=-1000.0),
                atol=1e-8,
            )


# Text of people and of models


@real
def test_people_repeat_little_and_the_published_count_misses_one_ngram_a_text():
    words = (
        (DATA / 'gutenberg' / 'Alice-s-Adventures-in-Wonderland_11.txt')
        .read_text(encoding='utf-8', errors='ignore')
        .split()
    )
    pages = [' '.join(words[i : i + 100]) for i in range(1000, 21000, 100)]
    assert 0.9 < diversity(pages) < 1
    for n in (2, 3, 4):
        grams = []
        for words in map(str.split, pages):
            grams.append([tuple(words[i : i + n]) for i in range(101 - n)])
        assert rep_n(pages, n) == pytest.approx(
            1 - sum(len(set(g)) for g in grams) / sum(map(len, grams))
        )
        assert (
            rep_n(pages, n, 'simctg')
            == round(
                100 * (1 - sum(len(set(g[:-1])) for g in grams) / sum(len(g) - 1 for g in grams)), 2
            )
            / 100
        )
    assert abs(diversity(pages) - diversity(pages, 'simctg')) < 0.01


def inflections(word):
    "A word and the regular forms that it may have."
    doubled = word + word[-1]
    forms = [word + ending for ending in ('s', 'es', 'ed', 'd', 'ing')]
    return [word, *forms, word[:-1] + 'ing', doubled + 'ing', doubled + 'ed']


@real
def test_human_references_of_commongen_contain_their_concepts():
    items = [
        json.loads(l)
        for l in (DATA / 'commongen' / 'commongen.dev.jsonl').read_text().splitlines()[:200]
    ]
    exact = []
    inflected = []
    copies = []
    for item in items:
        lemmas = [c.rsplit('_', 1)[0] for c in item['concept_set'].split('#')]
        forms = [inflections(w) for w in lemmas]
        exact.append(coverage(item['scene'], lemmas)['coverage'])
        inflected.append(coverage(item['scene'], forms)['coverage'])
        copies.append(self_bleu(item['scene']) if len(item['scene']) > 1 else 0)
    assert np.mean(exact) < np.mean(inflected)
    assert np.mean(inflected) > 0.85
    assert np.mean(copies) < 0.5  # four people write four sentences


@real
def test_coherence_and_isotropy_of_a_real_model(lm):
    prompts = ['Once upon a time', 'One day, a little girl named Lily']
    texts = [decode(lm, p, Greedy(), 40).text for p in prompts]
    mixed = [' '.join(sorted(t.split())) for t in texts]
    assert coherence(lm, prompts, texts) > -1 > coherence(lm, prompts, mixed)
    assert coherence(lm, prompts, texts) == pytest.approx(
        np.mean([forward(lm, p, t).mean().item() for p, t in zip(prompts, texts)]), abs=1e-8
    )
    with torch.no_grad():
        states = lm.model(
            torch.tensor([lm.encode(texts[0])]), output_hidden_states=True
        ).hidden_states[-1][0]
    cosines = [
        torch.cosine_similarity(a, b, dim=0).item()
        for i, a in enumerate(states)
        for j, b in enumerate(states)
        if i != j
    ]
    assert isotropy(states) == pytest.approx(1 - np.mean(cosines), abs=1e-9)


# DoLa, scored as in its authors' evaluation


def lm_score(lm, prompt, answer, layers, relative_top, post_softmax):
    """The authors' sum over an answer, from one forward of transformers.

    Layer by their divergence, difference, softmax, filter, in this order.
    """
    ids, n = lm.encode(prompt + answer), len(lm.encode(prompt))
    with torch.no_grad():
        states = lm.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        final, *early = (
            lm.model.lm_head(states[i][0, n - 1 : -1]).log_softmax(-1) for i in (-1, *layers)
        )

    def away(a, b):
        middle = (a.exp() + b.exp()) / 2
        return (middle * (2 * middle.log() - a - b)).sum(-1) / 2

    chosen = torch.stack([away(final, e) for e in early]).argmax(0)
    row = final - torch.stack(early)[chosen, range(len(chosen))]
    if post_softmax:
        row = row.log_softmax(-1)
    if relative_top:
        row = row.masked_fill(
            final < final.max(-1, keepdim=True).values + math.log(relative_top), -1000.0
        )
    return row[range(len(row)), ids[n:]].sum().item()


@real
def test_dola_scores_truthfulqa_as_its_authors_do(lm):
    DoLa = pytest.importorskip('decodelab.strategies.dola').DoLa
    questions = load_truthfulqa(DATA / 'truthfulqa' / 'TruthfulQA.csv')[:40:10]
    base = DoLa([0, 2, 4], divergence='original', relative_top=0, repetition_penalty=None)
    frame = evaluate_choices(lm, questions, base, post_softmax=False)
    for q, row in zip(questions, frame.itertuples()):
        want = [lm_score(lm, q.prompt, a, [0, 2, 4], 0, False) for a in q.true + q.false]
        assert np.allclose(row.true + row.false, want, atol=1e-7)
        assert not np.allclose(want, continuation_scores(lm, q.prompt, q.true + q.false), atol=0.1)


@real
def test_dola_scores_factor_as_its_authors_do(lm):
    DoLa = pytest.importorskip('decodelab.strategies.dola').DoLa
    questions = [
        q
        for q in load_factor(DATA / 'factor' / 'expert_factor.csv', join=further_space)
        if len(q.prompt) < 120
    ][:4]
    low = dict(layers=[0, 2, 4], divergence='original', repetition_penalty=None)
    frame = evaluate_choices(
        lm,
        questions,
        FilteredBase(DoLa(**low, relative_top=0), DoLa(**low)),
        ties=True,
        post_softmax=False,
        floor=-1000.0,
    )
    for q, row in zip(questions, frame.itertuples()):
        assert np.allclose(
            row.true + row.false,
            [lm_score(lm, q.prompt, a, [0, 2, 4], 0.1, True) for a in q.true + q.false],
            atol=1e-7,
        )
