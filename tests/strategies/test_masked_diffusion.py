"Masked diffusion against a table of joint probabilities: exact where one token is taken, by any confidence."

import itertools
import math
from fractions import Fraction

import pytest
import torch

from decodelab import decode, decode_batch
from decodelab.core.driver import Request
from decodelab.evaluate.exact import outcomes, total_variation
from decodelab.strategies import MaskedDiffusion, MaskPredictor, unmasking
from tests.refusals import error_message

V, N = 3, 3


class Table(MaskPredictor):
    "The conditional probabilities of a random joint distribution of N tokens, by summation."

    name = 'table'
    vocab_size = V

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.joint = torch.rand((V,) * N, generator=generator, dtype=torch.float64) ** 3
        self.joint /= self.joint.sum()

    def encode(self, text):
        return [int(x) for x in text]

    def decode(self, ids):
        return ''.join(map(str, ids))

    def predict(self, ids):
        ids = [*ids, *[None] * (N - len(ids))]  # what is behind the block is summed over
        left = self.joint.clone()
        for axis, token in enumerate(ids):
            if token is not None:
                others = [i for i in range(V) if i != token]
                left.index_fill_(axis, torch.tensor(others), 0)
        sums = itertools.combinations(range(N), N - 1)  # the last axis is kept first
        return torch.stack([left.sum(axes) for axes in sums]).flip(0).log()


class Listed:
    "Random numbers of an enumeration, for tensors."

    def __init__(self, rng):
        self.rng = rng

    def categorical(self, weights):
        return self.rng.categorical(weights.tolist())


def distribution(lm, strategy):
    def run(rng):
        steps = strategy.decode(Request(lm, [], N, Listed(rng)))
        return tuple(itertools.chain.from_iterable(step.tokens for step in steps))

    probs = {}
    for tokens, weight in outcomes(run):
        probs[tokens] = probs.get(tokens, 0) + weight
    return probs


def truth(lm):
    return {x: Fraction(lm.joint[x].item()) for x in itertools.product(range(V), repeat=N)}


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('block_length', [1, 2, 3, 8])
def test_one_token_a_pass_has_the_joint_distribution(seed, block_length):
    lm = Table(seed)
    probs = distribution(lm, MaskedDiffusion(block_length, temperature=1.0))
    assert total_variation(probs, truth(lm)) < 1e-12


@pytest.mark.parametrize('options', [dict(tokens_per_pass=2), dict(sample_first=True)])
def test_two_tokens_a_pass_and_draws_before_the_choice_do_not(options):
    lm = Table(0)
    probs = distribution(lm, MaskedDiffusion(temperature=1.0, **options))
    assert total_variation(probs, truth(lm)) > 0.01


def test_a_greedy_block_takes_the_surest_position_first():
    lm = Table(1)
    [step] = MaskedDiffusion().decode(Request(lm, [], N, None))
    first = step.info['order'].index(1)
    probs = lm.predict([None] * N).exp()
    assert probs[first].max() == probs.max()
    assert step.info['probability'][first] == pytest.approx(probs.max().item())
    assert step.target_passes == N


def test_a_threshold_takes_at_least_one_token():
    lm = Table(2)
    [one] = MaskedDiffusion(threshold=1.0).decode(Request(lm, [], N, None))
    [every] = MaskedDiffusion(threshold=0.0).decode(Request(lm, [], N, None))
    assert sorted(one.info['order']) == [1, 2, 3]
    assert every.info['order'] == [1, 1, 1]


def test_the_stored_probabilities_are_that_of_the_text():
    lm = Table(3)
    trace = decode(lm, [0], MaskedDiffusion(2, temperature=1.0), 2, seed=5)
    p = math.prod(unmasking(trace).probability)
    joint = lm.joint[(0, *trace.tokens)] / lm.joint[0].sum()
    assert p == pytest.approx(joint.item())
    assert unmasking(trace).taken.tolist() == trace.steps[0].info['order']


def test_sampled_sequences_of_a_batch_are_those_of_each_alone():
    lm = Table(4)
    strategy = MaskedDiffusion(2, temperature=1.0)
    batch = list(decode_batch(lm, [[0], [1]], strategy, max_new_tokens=2, seed=3))
    alone = [decode(lm, [i], strategy, 2, seed=3 + i) for i in range(2)]
    assert [t.tokens for t in batch] == [t.tokens for t in alone]


def test_a_model_that_continues_sequences_is_an_error():
    from decodelab import load

    message = error_message(lambda: decode(load('pico'), 'x', MaskedDiffusion(), 2))
    assert 'give a MaskPredictor' in message
