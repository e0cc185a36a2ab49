"The sampled tokens of a seed with `CounterRng`: alone, in batches, in any order, process and draft, on another device."

import preloaded
import pytest
import torch

from decodelab import (
    AssistantDrafter,
    BlockVerifier,
    ExactMatchVerifier,
    FixedLookahead,
    HeuristicLookahead,
    PromptLookupDrafter,
    Sample,
    Speculative,
    Temperature,
    TokenVerifier,
    TreeDrafter,
    decode,
    decode_batch,
    generate,
    load,
    random_lm,
)
from decodelab.core import CounterRng
from decodelab.core.driver import Rng
from decodelab.evaluate.certify import token_check
from decodelab.evaluate.pretend import move, pretend_device
from decodelab.strategies import SelfConsistency, stream
from decodelab.strategies.best_of_n import drawn_sequences

N = 16
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9], [3, 1, 2, 1]]
VERIFIERS = ExactMatchVerifier(), TokenVerifier(), BlockVerifier()
LM = random_lm(seed=0, vocab_size=40)
DRAFT = random_lm(seed=3, layers=1, vocab_size=40)


def speculative(verifier, lookahead=FixedLookahead(3), drafter=None):
    drafter = drafter or AssistantDrafter(DRAFT)
    return Speculative(drafter, Sample(Temperature(0.5)), verifier, lookahead)


def tokens(lm, prompt, strategy, seed, n=N):
    return decode(lm, prompt, strategy, n, seed=seed, rng=CounterRng).tokens


@pytest.mark.parametrize('strategy', [Sample(), *map(speculative, VERIFIERS)], ids=repr)
def test_a_batch_and_a_stream_have_the_tokens_of_each_sequence_alone(strategy):
    alone = [tokens(LM, p, strategy, 5 + i) for i, p in enumerate(PROMPTS)]
    for size in (1, 3, 4):
        batch = decode_batch(LM, PROMPTS, strategy, size, N, seed=5, rng=CounterRng)
        assert [t.tokens for t in batch] == alone
    with stream(LM, PROMPTS[1], strategy, N, seed=6, rng=CounterRng) as flow:
        for _ in flow:
            pass
    assert flow.trace.tokens == alone[1]
    assert len({tuple(t) for t in alone}) == len(PROMPTS)


@pytest.mark.parametrize(
    'drafter', [AssistantDrafter(DRAFT), PromptLookupDrafter(), TreeDrafter(DRAFT)]
)
def test_no_draft_changes_a_token_under_exact_match(drafter):
    base = Sample(Temperature(0.5))
    plain = [tokens(LM, p, base, 7) for p in PROMPTS]
    for lookahead in (FixedLookahead(1), FixedLookahead(6), HeuristicLookahead(2, carry=True)):
        strategy = speculative(ExactMatchVerifier(), lookahead, drafter)
        for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
            assert all(tokens(LM, PROMPTS[i], strategy, 7) == plain[i] for i in order)
    stream_draws = [decode(LM, p, strategy, N, seed=7).tokens for p in PROMPTS]
    assert stream_draws != plain


@pytest.mark.parametrize('strategy', [Sample(), speculative(ExactMatchVerifier())], ids=repr)
def test_a_sequence_goes_on_from_its_middle_as_if_it_had_not_ended(strategy):
    whole = tokens(LM, PROMPTS[0], strategy, 3, 70)
    for n in (1, 33, 69):
        assert tokens(LM, PROMPTS[0] + whole[:n], strategy, 3, 70 - n) == whole[n:]


def test_votes_are_the_same_side_by_side_one_by_one_and_in_a_batch():
    def drawn(trace):
        return [s['tokens'] for s in drawn_sequences(trace)]

    votes = [SelfConsistency(len, Sample(), 5, at_once=k) for k in (1, 2, None)]
    results = [drawn(decode(LM, PROMPTS[1], v, 6, seed=2, rng=CounterRng)) for v in votes]
    batch = decode_batch(LM, [PROMPTS[0], PROMPTS[1]], votes[0], 2, 6, seed=1, rng=CounterRng)
    assert results[0] == results[1] == results[2] == drawn(batch[1])
    assert len({tuple(t) for t in results[0]}) == 5


@pytest.mark.parametrize('strategy', [Sample(), *map(speculative, VERIFIERS)], ids=repr)
def test_an_accelerator_draws_the_same_tokens(strategy):
    expected = [tokens(LM, p, strategy, 5 + i) for i, p in enumerate(PROMPTS)]
    with pretend_device() as device:
        there = move(LM, device)
        if isinstance(strategy, Speculative):
            drafter = AssistantDrafter(move(DRAFT, device))
            strategy = speculative(strategy.verifier, drafter=drafter)
        alone = [tokens(there, p, strategy, 5 + i) for i, p in enumerate(PROMPTS)]
        batch = decode_batch(there, PROMPTS, strategy, 3, N, seed=5, rng=CounterRng)
    assert alone == expected
    assert [t.tokens for t in batch] == expected


def test_another_process_and_transformers_door_draw_the_same_tokens():
    lm, draft = load('pico', device='cpu'), load('pico-draft', device='cpu')
    text = 'def area(w, h):'
    exact = Speculative(AssistantDrafter(draft), Sample(), ExactMatchVerifier(), FixedLookahead(4))
    trace = decode(lm, text, exact, 12, seed=4, rng=CounterRng)
    command = '-m decodelab generate --strategy sampling --temperature 1 --device cpu --counter'
    other = preloaded.start([*command.split(), '--seed', '4', '--max-new-tokens', '12', text])
    out, err = other.communicate(120)
    assert other.returncode == 0, err
    assert out == trace.text + '\n'
    ids = torch.tensor([lm.encode(text)])
    call = dict(do_sample=True, top_k=0, seed=4, seed_like='counter', max_new_tokens=12)
    ours = generate(lm.model, ids, tokenizer=lm.tokenizer, **call)
    assert ours[0, ids.shape[1] :].tolist() == trace.tokens


class Repeating(CounterRng):
    "A source with one number for all draws of a round."

    def uniform(self):
        number = super().uniform()
        self.stock.draw = 0
        return number


@pytest.mark.parametrize('verifier', [ExactMatchVerifier(), TokenVerifier()], ids=repr)
def test_certificates_hold_and_find_numbers_that_repeat(verifier):
    strategy = {'': speculative(verifier)}
    options = dict(samples=1200, max_new_tokens=24)
    assert token_check(strategy, LM, PROMPTS, rng=CounterRng, **options).passed
    if not verifier.exact_match:
        assert not token_check(strategy, LM, PROMPTS, rng=Repeating, **options).passed


def test_a_stream_is_as_before():
    numbers = torch.Generator().manual_seed(9)
    rng = Rng(9)
    rng.seek(3)
    draws = [rng.uniform() for _ in range(3)]
    assert draws == torch.rand(3, dtype=torch.float64, generator=numbers).tolist()
