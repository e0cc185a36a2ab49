"""Speed against evidence: the price of a watermark under speculation, for 08_watermark_speculation.ipynb.

Hu and Huang (2024, arXiv 2410.20418) put both on one figure. To the right is speed, the average accepted
tokens per step (AATPS): tokens from one pass of the target, its own token counted, so that plain decoding
has 1. Upwards is strength, the average negative log p-value per token (ANLPPT). Each scheme is a curve
over draft lengths. Their p-values come from a test for other watermarks; ours are exact
(`decodelab.watermark.null`), so the order of schemes can be compared and their numbers cannot.
"""

import math
from collections.abc import Sequence

import torch

from decodelab import FixedLookahead, Sample, Speculative, TokenVerifier, decode
from decodelab.speculative.protocol import Drafter
from decodelab.watermark.base import Watermark
from decodelab.watermark.dual_gumbel import DualGumbel, HarmonicGumbel, TripleGumbel
from decodelab.watermark.null import null_distribution
from decodelab.watermark.speculation import (
    DrafterWithBase,
    WatermarkedDrafter,
    dual_key_speculation,
)

# Models whose distributions are chosen


class MarkovLM:
    "A language model that depends on the last token: logits `(V, V)`, a row for each last token."

    tokenizer = None
    eos = ()
    max_length = None
    device = 'cpu'
    decoder_start_ids = ()

    def __init__(self, logits: torch.Tensor, name: str = 'table'):
        self.logits = logits
        self.vocab_size = len(logits)
        self.name = name

    def session(self) -> 'MarkovSession':
        "One sequence."
        return MarkovSession(self)

    def decode(self, ids) -> str:
        "A text in which each id is visible."
        return ''.join(f'<{i}>' for i in ids)

    def __repr__(self):
        return f'MarkovLM({self.name!r}, {self.vocab_size} tokens)'


class MarkovSession:
    "One sequence of a `MarkovLM`."

    def __init__(self, lm: MarkovLM):
        self.lm = lm
        self.passes = 0
        self.n_read = 0

    def __len__(self):
        return self.n_read

    def logits(self, ids, last=1):
        "`(last, V)` after each of the last prefixes of `ids`."
        self.passes += 1
        self.n_read = len(ids)
        return self.lm.logits[ids[-last:]]


def cyclic_model(row: torch.Tensor, name: str = 'table') -> MarkovLM:
    """The model whose logits after token c are `row` `(V,)`, rolled by c.

    Every position of every sequence has the same entropy, and the same agreement with a second model
    of this kind.
    """
    return MarkovLM(torch.stack([row.roll(c) for c in range(len(row))]), name)


def markov_pair(
    vocab_size: int = 50,
    scale: float = 1.5,  # standard deviation of the target's logits: larger gives less entropy
    distance: float = 1.0,  # standard deviation of the draft's difference; 0: the same model
    seed: int = 0,
) -> tuple[MarkovLM, MarkovLM]:
    "`(target, draft)`, with the same entropy and the same agreement at each position."
    rng = torch.Generator().manual_seed(seed)
    p = torch.randn(vocab_size, generator=rng, dtype=torch.float64)
    noise = torch.randn(vocab_size, generator=rng, dtype=torch.float64)
    target = cyclic_model(scale * p, 'table-target')
    return target, cyclic_model(scale * p + distance * noise, 'table-draft')


def mean_acceptance(target: MarkovLM, draft: MarkovLM) -> float:
    "β = Σ min(p, q), the mean over rows."
    p, q = target.logits.softmax(-1), draft.logits.softmax(-1)
    return torch.minimum(p, q).sum(-1).mean().item()


# Schemes, each with the watermark that a detector looks for


def schemes(
    drafter: Drafter,
    watermark: Watermark = HarmonicGumbel(42),  # the last three schemes need one with two keys
    processors=(),  # as in `Sample`, before the watermark
    n: int = 4,  # tokens of a draft
) -> dict[str, tuple[Speculative, Watermark]]:
    "Name → strategy, and the watermark that is detected in its texts."
    one = watermark.a if isinstance(watermark, DualGumbel) else watermark
    lookahead = FixedLookahead(n)
    verifier = TokenVerifier()
    plain = Sample(list(processors))
    watermarked = Sample([*processors, one])
    on_p = DrafterWithBase(drafter, plain)
    on_q = WatermarkedDrafter(drafter, one)
    strategies = {
        'no mark': Speculative(drafter, plain, verifier, lookahead),
        'mark on p': Speculative(on_p, watermarked, verifier, lookahead),
        'mark on q': Speculative(on_q, plain, verifier, lookahead),
        'mark on both': Speculative(drafter, watermarked, verifier, lookahead),
    }
    pairs = {name: (strategy, one) for name, strategy in strategies.items()}
    if not isinstance(watermark, DualGumbel):
        return pairs
    triple = TripleGumbel(watermark.key, watermark.context, watermark.alpha)
    published = dual_key_speculation(drafter, watermark, processors, lookahead, watermark.b)
    ours = dual_key_speculation(drafter, watermark, processors, lookahead)
    keyed = dual_key_speculation(drafter, triple, processors, lookahead)
    return pairs | {
        'dual key, as published': (published, watermark),
        'dual key': (ours, watermark),
        'keyed acceptance': (keyed, triple),
    }


# The two numbers


def evidence_rate(watermark: Watermark, trace) -> float:
    """-log p for each new token of a trace.

    Raises `ValueError` where p is too small to be a number, beyond some 700 nats.
    """
    token_scores = watermark.score_tokens(trace.prompt + trace.tokens, len(trace.prompt))
    p = null_distribution(watermark).tail(token_scores.total, token_scores.count)
    if p <= 0:
        raise ValueError(
            f'p of {len(trace.tokens)} tokens is below the smallest number: give fewer new tokens'
        )
    return -math.log(p) / len(trace.tokens)


def measure_tradeoff(
    lm, prompts: Sequence, strategy, watermark: Watermark, max_new_tokens: int, seed: int
) -> dict:
    "Speed and strength of one strategy over one text for each prompt."
    traces = [
        decode(lm, prompt, strategy, max_new_tokens, seed=seed + i)
        for i, prompt in enumerate(prompts)
    ]
    rates = torch.tensor([evidence_rate(watermark, t) for t in traces], dtype=torch.float64)
    steps = [s for t in traces for s in t.steps]
    tokens = sum(len(s.tokens) for s in steps)
    passes = sum(s.target_passes for s in steps)
    drafted = sum(s.drafted for s in steps)
    accepted = sum(s.accepted for s in steps)
    return dict(
        aatps=tokens / passes,
        accepted=accepted / passes,
        acceptance=accepted / drafted if drafted else math.nan,
        anlppt=rates.mean().item(),
        anlppt_se=rates.std().item() / len(rates) ** 0.5 if len(rates) > 1 else math.nan,
        texts=len(traces),
        tokens=tokens,
        passes=passes,
    )


def tradeoff_rows(
    lm,  # the target: an `LM` or a `MarkovLM`
    drafter: Drafter,
    prompts: Sequence,  # strings or lists of ids, one text for each; under one key they should differ
    watermark: Watermark = HarmonicGumbel(42),
    names: Sequence[str] | None = None,  # of `schemes`; None: all that the watermark allows
    lengths: Sequence[int] = (1, 2, 3, 4),  # tokens of a draft
    processors=(),  # as in `Sample`, before the watermark
    max_new_tokens: int = 60,
    seed: int = 0,  # of the first text
) -> list[dict]:
    """A row for each scheme and draft length n, with `aatps` and `anlppt`.

    The first row, n = 0, is plain watermarked decoding. Raises `ValueError` for an unknown scheme.
    """

    def row(scheme, n, strategy, detected):
        measures = measure_tradeoff(lm, prompts, strategy, detected, max_new_tokens, seed)
        return dict(scheme=scheme, n=n, **measures)

    one = watermark.a if isinstance(watermark, DualGumbel) else watermark
    rows = [row('no drafter', 0, Sample([*processors, one]), one)]
    for n in lengths:
        available = schemes(drafter, watermark, processors, n)
        unknown = sorted(set(names or ()) - set(available))
        if unknown:
            raise ValueError(
                f'no scheme {unknown[0]!r} with {type(watermark).__name__}: '
                f'give some of {", ".join(available)}'
            )
        rows += [row(name, n, *available[name]) for name in names or available]
    return rows
