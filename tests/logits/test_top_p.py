"Top-p from the best scores alone equals top-p from all of them, to the bit."

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.generation import logits_process as hf

from decodelab import MinP, TopK, TopP
from decodelab.logits import warpers

SIZES = (4096, 32_769, 50_257, 128_000, 256_000)


def whole(warper: TopP, scores):
    "The scores after a sort of all of them."
    return scores.masked_fill(scores < warper.sorted_cutoff(scores), -math.inf)


def same_bits(one, other):
    "Are two tensors of floats the same to the bit?"
    kinds = {torch.float32: torch.int32, torch.float64: torch.int64}
    return torch.equal(one.view(kinds[one.dtype]), other.view(kinds[other.dtype]))


def scores_of(kind: str, V: int, seed: int, scale: float, dtype=torch.float32):
    "Two rows of scores."
    generator = torch.Generator().manual_seed(seed)
    if kind == 'zipf':
        ranks = torch.stack([torch.randperm(V, generator=generator) for _ in range(2)]) + 1.0
        rows = -scale * ranks.double().log()
    else:
        rows = scale * torch.randn(2, V, generator=generator, dtype=torch.float64)
    if kind == 'ties':
        rows = rows.mul(2).round() / 2
    if kind == 'forbidden':
        rows = rows.masked_fill(torch.rand(2, V, generator=generator) < 0.9, -math.inf)
    if kind == 'peaked':
        rows[:, seed % V] += 30
    return rows.to(dtype)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(['zipf', 'normal', 'ties', 'forbidden', 'peaked']),
    V=st.sampled_from(SIZES),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.01, 0.5, 1.2, 1.6, 3.0, 9.0]),
    top_p=st.one_of(
        st.sampled_from([0.0, 1e-9, 1e-4, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-7, 1.0]),
        st.floats(0, 1),
    ),
    least=st.sampled_from([1, 1, 3, 1000]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@example('forbidden', 128_000, 1, 9.0, 1 - 2**-53, 1, torch.float32)  # a tail of one rounding
def test_the_same_bits_as_after_a_sort_of_all(kind, V, seed, scale, top_p, least, dtype):
    scores = scores_of(kind, V, seed, scale, dtype)
    warper = TopP(top_p, least)
    assert same_bits(warper(None, scores), whole(warper, scores))


@settings(max_examples=40, deadline=None)
@given(
    V=st.sampled_from(SIZES[1:]),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1.2, 1.6, 2.0]),
    rank=st.integers(1, 2000),
    nudge=st.sampled_from([-1e-7, -1e-9, 0.0, 1e-9, 1e-7]),
)
def test_where_rounding_decides(V, seed, scale, rank, nudge):
    "A tail that ends exactly at one of the cumulative sums of the whole sort."
    scores = scores_of('zipf', V, seed, scale)
    sums = scores.sort(-1).values.softmax(-1).cumsum(-1)
    top_p = min(1.0, max(0.0, 1 - float(sums[0, -rank]) + nudge))
    assert same_bits(TopP(top_p)(None, scores), whole(TopP(top_p), scores))


@pytest.mark.parametrize('V', SIZES)
def test_the_same_as_transformers(V):
    scores = scores_of('normal', V, 1, 3.0)
    for top_p in (0.1, 0.5, 0.9, 0.99, 1.0):
        assert torch.equal(TopP(top_p)(None, scores), hf.TopPLogitsWarper(top_p)(None, scores))


class SortCounter(TorchDispatchMode):
    "Counts torch's sorts, and selections of more than `limit`."

    def __init__(self, limit: int):
        super().__init__()
        self.limit = limit
        self.long = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ('sort', 'argsort') and args[0].shape[-1] > self.limit:
            self.long.append(name)
        if name == 'topk' and args[1] > self.limit:
            self.long.append(name)
        return func(*args, **kwargs or {})


def long_sorts(monkeypatch, warper, scores, limit: int) -> int:
    "The number of sorts over more than `limit` scores, of torch or of NumPy."
    lengths = []
    sort = np.sort

    def counted(a, *args, **kwargs):
        lengths.append(a.shape[-1])
        return sort(a, *args, **kwargs)

    with monkeypatch.context() as patch, SortCounter(limit) as counter:
        patch.setattr(warpers.np, 'sort', counted)
        warper(None, scores)
    return len(counter.long) + sum(n > limit for n in lengths)


@pytest.mark.parametrize('V', [128_000, 256_000])
def test_rows_like_those_of_language_models_are_not_sorted_whole(monkeypatch, V):
    for top_p in (0.5, 0.9, 0.95):
        sorts = 0
        for seed in range(5):
            scores = scores_of('zipf', V, seed, 1.7)
            sorts += long_sorts(monkeypatch, TopP(top_p), scores, V // 4)
        assert sorts <= 1  # of 10 rows
    for warper in (TopK(50), MinP(0.05), MinP(0.05, 20)):
        assert long_sorts(monkeypatch, warper, scores, 100) == 0
    flat = scores_of('normal', V, 0, 0.01)
    assert long_sorts(monkeypatch, TopP(0.9), flat, V // 4) == 2  # the exact way out, for each row


def test_short_rows_and_other_precisions_are_sorted():
    long = torch.zeros(1, warpers.SELECT_FROM + 1)
    assert warpers.can_select(long)
    assert not warpers.can_select(long[:, 1:])
    assert not warpers.can_select(long.bfloat16())
    assert not warpers.can_select(long.to('meta'))
