"""Certificates, replay and lookahead rules on checkpoints that were not trained here.

Tests of real files need a folder `shared` beside the checkout, and are skipped without it.
"""

import pytest
import torch
from repo import ROOT

from decodelab import (
    AssistantDrafter,
    ConfidenceLookahead,
    CostAwareLookahead,
    DraftTable,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    RoundCosts,
    Speculative,
    SuffixDrafter,
    SyntheticDrafter,
    UniversalDrafter,
    certify,
    decode,
    load,
    replay,
)
from decodelab.models import check_same_tokenizer

DATA = ROOT.parent / 'shared' / 'data'
pytestmark = pytest.mark.skipif(
    not (DATA / 'models').is_dir(), reason='no folder shared/data/models beside the checkout'
)
PROMPTS = ['Once upon a time', 'One day, a little girl named Lily', 'The sun was']


@pytest.fixture(scope='module', params=['stories260K', 'babyllama361'])
def lm(request):
    return load(DATA / 'models' / request.param, device='cpu', dtype=torch.float64)


def test_texts_are_those_of_generate_and_of_plain_greedy(lm):
    for prompt in PROMPTS:
        ids = lm.encode(prompt)
        theirs = lm.model.generate(
            torch.tensor([ids]), max_new_tokens=48, do_sample=False, pad_token_id=0
        )[0, len(ids) :].tolist()
        plain = decode(lm, prompt, Greedy(), 48)
        assert plain.tokens == theirs
        assert plain.text
        assert lm.decode(ids + plain.tokens).endswith(plain.text)
        for drafter in (
            PromptLookupDrafter(),
            SuffixDrafter(),
            EarlyExitDrafter(2),
            SyntheticDrafter(0.7),
            AssistantDrafter(lm),
        ):
            fast = decode(lm, prompt, Speculative(drafter, lookahead=FixedLookahead(4)), 48)
            assert (fast.tokens, fast.text) == (plain.tokens, plain.text)
        assert (
            sum(s.accepted for s in fast.steps) == sum(s.drafted for s in fast.steps) > 0
        )  # a draft that is the target


def test_stop_rules_change_passes_and_not_texts_and_replay_knows_how_many(lm):
    other = load(
        DATA / 'models' / ('babyllama361' if lm.vocab_size == 512 else 'stories260K'),
        device='cpu',
        dtype=torch.float64,
    )
    for drafter in (PromptLookupDrafter(), EarlyExitDrafter(2), UniversalDrafter(other)):
        table = DraftTable.build(lm, drafter, PROMPTS, 24, 8)
        for rule in (
            ConfidenceLookahead(0.3, 8),
            CostAwareLookahead(RoundCosts.from_ratio(0.2, 0.1), 8),
        ):
            for prompt, steps in zip(PROMPTS, replay(table, rule)):
                live = decode(lm, prompt, Speculative(drafter, lookahead=rule), 24)
                assert live.tokens == decode(lm, prompt, Greedy(), 24).tokens
                assert [(s.drafted, s.accepted, s.draft_passes) for s in live.steps] == [
                    (s.drafted, s.accepted, s.draft_passes) for s in steps
                ]


def test_a_certificate_on_a_real_model(lm):
    certificate = certify(Speculative(PromptLookupDrafter()), lm, PROMPTS, max_new_tokens=16)
    assert certificate.lossless
    # each prompt alone, again, in a batch and to an end of text
    assert certificate.checks[-1].message.startswith('12 of 12')


def test_other_tokenizers_are_rejected(lm):
    other = load(
        DATA / 'models' / ('babyllama361' if lm.vocab_size == 512 else 'stories260K'), device='cpu'
    )
    with pytest.raises(ValueError, match='UniversalDrafter'):
        check_same_tokenizer(lm, other)
    with pytest.raises(ValueError, match='cannot draft for'):
        decode(lm, 'Once', Speculative(AssistantDrafter(load('pico-draft', device='cpu'))), 4)
    # as many tokens as the target, in another order: what a check of sizes lets pass
    twin = load(DATA / 'models' / lm.name.split('/')[-1], device='cpu')
    vocab = twin.tokenizer.get_vocab()
    twin.tokenizer.get_vocab = lambda: {t: len(vocab) - 1 - i for t, i in vocab.items()}
    with pytest.raises(ValueError, match='have other ids'):
        check_same_tokenizer(lm, twin)
