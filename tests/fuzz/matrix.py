"""`python -m tests.fuzz.matrix` writes docs/architectures.md: what works on which architecture.

Tiny random models of transformers' own list, in float64: each way of reading as `lm.capabilities` reports it,
and each drafter greedily on two prompts against plain decoding by the full forward pass.
"""

import random
import sys
from pathlib import Path

import torch
from transformers import GenerationConfig

from decodelab.speculative.protocol import Drafter
from tests.fuzz import greedy
from tests.fuzz.cases import Case, FailedError, RejectedError
from tests.fuzz.models import architectures, build, quiet
from tests.fuzz.parts import Maker, classes

PAGE = Path(__file__).parents[2] / 'docs' / 'architectures.md'
REFERENCE_SUITE = '<!-- peer suite -->'  # tools/peer_suite.py writes the page from here on
SIGNS = dict(works='✓', replaced='○', refused='–', failed='✗')
WRAPPERS = ('CappedDrafter', 'CascadeDrafter', 'FirstOfDrafter', 'ParallelDrafter')
PROMPTS = ((1, 2, 3, 1, 2, 3, 1), (5,))


def expressions() -> dict[str, str]:
    "Name → expression of each drafter that stands for itself."
    maker = Maker(random.Random(3), 40)
    made = {n: maker.make(c, 0) for n, c in classes(Drafter).items() if n not in WRAPPERS}
    return made | dict(
        AssistantDrafter='AssistantDrafter(draft)',
        MedusaDrafter='MedusaDrafter(medusa, (2, 1))',
        TreeDrafter='TreeDrafter(draft, (2, 1))',
        SyntheticTreeDrafter='SyntheticTreeDrafter((2, 1), (0.5, 0.3))',
        DynamicTreeDrafter='DynamicTreeDrafter(draft, nodes=4, expand=2)',
    )


def try_drafter(architecture: str, drafter: str) -> tuple[str, str]:
    "`(verdict, reason)` of a drafter on one architecture."
    for prompt in PROMPTS:
        case = Case(architecture, drafter, 'None', 'FixedLookahead(3)', (), (prompt,), 10)
        try:
            greedy.check(case)
        except RejectedError as error:
            return 'refused', str(error)
        except FailedError as error:
            return 'failed', str(error)
    return 'works', ''


def transformers_differs(lm) -> bool:
    """Are the greedy tokens of transformers' `generate` others than those of the model's full forward pass?

    Without the settings of the model's own generation configuration, such as a forced end.
    """
    lm.model.generation_config = GenerationConfig(pad_token_id=0)
    for prompt in PROMPTS:
        case = Case('', '', '', '', (), (prompt,), 10)
        expected = greedy.plain_greedy(case, lm, (), prompt)
        if expected is None:
            continue
        ids = torch.tensor([prompt])
        try:
            mask = torch.ones_like(ids)
            output = lm.model.generate(ids, attention_mask=mask, max_new_tokens=case.n)
        except Exception:  # no tokens are no other tokens
            return False
        if output[0, len(prompt) :].tolist() != expected:
            return True
    return False


def page(names) -> str:
    drafters = expressions()
    rows = []
    notes = {}
    ways = []
    others = []
    for name in names:
        lm = build(name)
        if lm is None:
            continue
        with quiet():
            others += [name] if transformers_differs(lm) else []
            ways = [way for way, _, _ in lm.capabilities.rows()]
            results = [(verdict, why) for _, verdict, why in lm.capabilities.rows()]
            results += [try_drafter(name, drafter) for drafter in drafters.values()]
        signs = []
        for verdict, why in results:
            sign = SIGNS.get(verdict, verdict)
            if verdict in ('refused', 'failed'):
                reason = why.replace(lm.name, 'the model').replace(
                    type(lm.model).__name__, 'the model'
                )
                number = notes.setdefault(reason.replace('\n', ' '), len(notes) + 1)
                sign += f'[{number}](#reasons)'
            signs.append(sign)
        rows.append(f'| {name} | ' + ' | '.join(signs) + ' |')
        print(rows[-1], flush=True)
    columns = [*ways, *(n.removesuffix('Drafter') for n in drafters)]
    table = [
        '| architecture | ' + ' | '.join(columns) + ' |',
        '|---' * (len(columns) + 1) + '|',
        *rows,
    ]
    reasons = [f'{number}. {reason}' for reason, number in notes.items()]
    first = head(len(rows), len(drafters), others)
    return '\n'.join([*first, *table, '', '## Reasons', '', *reasons, ''])


def head(n_architectures: int, n_drafters: int, others: list[str]) -> list[str]:
    "The lines before the table; `others` are the architectures that transformers' `generate` decodes otherwise."
    return [
        '# Architectures, ways of reading, drafters',
        '',
        f"{n_architectures} architectures of transformers' list of causal language models, as tiny random models "
        'in float64. The first columns are the ways of reading that '
        '[`lm.capabilities`](../nbs/02_models/10_capabilities.ipynb) compares with the model\'s own full '
        f'forward pass; then {n_drafters} drafters, whose greedy tokens are compared with plain decoding by that '
        'pass. Made by `python -m tests.fuzz.matrix`; architectures that could not be built tiny are not listed.',
        '',
        '✓ works · ○ replaced by another way with the same result · – raises an error that says why · '
        '✗ wrong',
        '',
        "How many of transformers' own tests pass through `generate` stands [below](#transformers-own-tests).",
        '',
        *others_in_transformers(others),
    ]


def others_in_transformers(names: list[str]) -> list[str]:
    "A paragraph on the architectures whose tokens are others in transformers; none for none."
    if not names:
        return []
    listed = ', '.join(names)
    return [
        f"On these architectures transformers' own `generate` returns other greedy tokens than the model's full "
        f'forward pass, which decodelab follows: {listed}. '
        "[Defects](defects.md#roberta-and-its-kin-are-decoded-at-wrong-positions) has RoBERTa's.",
        '',
    ]


if __name__ == '__main__':
    text = page(sys.argv[1:] or architectures())
    rest = PAGE.read_text(encoding='utf-8').partition(REFERENCE_SUITE)
    PAGE.write_text(f'{text}\n{"".join(rest[1:])}', encoding='utf-8')
    print(f'{PAGE.name}: {text.count(SIGNS["failed"] + "[")} failures')
