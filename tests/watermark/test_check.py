"Watermarks with one flaw each, and the promise of `check_watermark` that each of them breaks."

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from decodelab import GreenList, Gumbel, SynthID
from decodelab.watermark.check import check_keys, check_watermark


@dataclass(frozen=True, repr=False)
class OneKeyForAll(GreenList):
    "Marks and scores by key 1, whatever its own."

    def bind(self, request):
        return GreenList(1).bind(request)

    def score_tokens(self, *args, **options):
        return GreenList(1).score_tokens(*args, **options)


@dataclass(frozen=True, repr=False)
class TwoBitsOfTheKey(GreenList):
    "Marks and scores by two bits of its key."

    def bind(self, request):
        return GreenList(self.key % 4).bind(request)

    def score_tokens(self, *args, **options):
        return GreenList(self.key % 4).score_tokens(*args, **options)


@dataclass(frozen=True, repr=False)
class OneListForAllContexts(GreenList):
    "Has the list of context 0 everywhere."

    def green_lists(self, contexts, vocab_size, device):
        return super().green_lists(np.zeros_like(contexts), vocab_size, device)

    def is_green(self, contexts, tokens):
        return super().is_green(np.zeros_like(contexts), tokens)


@dataclass(frozen=True, repr=False)
class OffForLongPrompts(GreenList):
    "Does nothing for prompts of more than five ids."

    def bind(self, request):
        return super().bind(request) if len(request.prompt) < 6 else lambda ids, scores: scores


@dataclass(frozen=True, repr=False)
class OffAfterForty(GreenList):
    "Does nothing after forty ids."

    def bind(self, request):
        processor = super().bind(request)
        return lambda ids, scores: scores if len(ids) > 40 else processor(ids, scores)


@dataclass(frozen=True, repr=False)
class FavoursOneToken(Gumbel):
    "Raises the score of id 7, and declares itself unbiased."

    def process(self, ids, scores):
        return super().process(ids, scores + 2.0 * (torch.arange(scores.shape[-1]) == 7))


@dataclass(frozen=True, repr=False)
class FirstKeyAlone(SynthID):
    "Of its keys the first is used, and constants for the other layers."

    @property
    def used(self):
        return SynthID((self.keys[0], *range(1000, 999 + len(self.keys))))

    def bind(self, request):
        return self.used.bind(request)

    def score_tokens(self, *args, **options):
        return self.used.score_tokens(*args, **options)


BROKEN = {
    OneKeyForAll: 'random keys of OneKeyForAll give the same scores',
    TwoBitsOfTheKey: 'random keys of TwoBitsOfTheKey give the same scores',
    OneListForAllContexts: 'ignores the context that it declares',
    OffForLongPrompts: 'with a prompt of 12',
    OffAfterForty: '60 ids into a sequence',
    FavoursOneToken: 'declares itself unbiased and is not',
}


@pytest.mark.parametrize('broken', BROKEN)
def test_a_broken_promise_is_named(broken):
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        check_watermark(broken(42), keys=30)


def test_every_key_of_a_tournament_counts():
    with pytest.raises(AssertionError, match='after a number of its key was changed'):
        check_keys(FirstKeyAlone((11, 24, 37)), vocab_size=64, keys=8)


@pytest.mark.parametrize('sound', [GreenList(42), Gumbel(42)], ids=repr)
def test_the_watermarks_without_the_flaw_pass(sound):
    check_watermark(sound, samples=100, keys=30)
