"""The exact law of long drafts: two tokens in the vocabulary, three to five in a draft, and more than one round.

As `law`, over thousands of paths: the models remember their logits.
"""

import math

from tests.fuzz import law
from tests.fuzz.cases import Case, Kind
from tests.fuzz.models import build_memo

KIND = Kind(
    2,
    lengths=(1, 3, 6),  # half of them are repeated: up to twelve ids
    new_tokens=(4, 5, 5, 6),
    lookaheads=(3, 4, 4, 5),
    architectures=('llama', 'gpt2'),
    enumerated=True,
)
PATHS = 12_000
BUDGET = 40  # seconds of processor time


def check(case: Case, seconds: float = math.inf) -> bool:
    "As `law.check`."
    return law.check(case, KIND.vocab_size, build_memo, PATHS, BUDGET, seconds)
