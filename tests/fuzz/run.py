"Runs cases until the time is over, counts them, and makes failing ones small."

import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.fuzz import greedy, law
from tests.fuzz.cases import Case, FailedError, RejectedError, random_case, shrink
from tests.fuzz.models import USUAL, VOCABULARY, architectures, build

KINDS = dict(greedy=(greedy.check, VOCABULARY), law=(law.check, law.VOCABULARY))


@dataclass
class Report:
    "The counts of a run."

    kind: str
    seed: int
    compared: int = 0
    skipped: int = 0  # ties, and enumerations with too many paths
    rejected: Counter = field(default_factory=Counter)  # sentence → times
    failed: list[tuple[Case, str]] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.compared + self.skipped + self.rejected.total() + len(self.failed)

    def __str__(self):
        lines = [
            f'{self.kind}, seed {self.seed}: {self.cases} combinations, {self.compared} compared, '
            f'{self.rejected.total()} rejected, {self.skipped} skipped, {len(self.failed)} failed'
        ]
        lines += [
            f'  rejected {n}: {sentence[:150]}' for sentence, n in self.rejected.most_common(12)
        ]
        for case, message in self.failed:
            lines.append(f'FAILED {message}\n  {reproduction(self.kind, case)}')
        return '\n'.join(lines)


def reproduction(kind: str, case: Case) -> str:
    "A line of Python that runs one case."
    return (
        f'from tests.fuzz import {kind}; from tests.fuzz.cases import Case; {kind}.check({case!r})'
    )


def fails(check, case) -> bool:
    try:
        check(case)
    except FailedError:
        return True
    except RejectedError:
        return False
    return False


def run(kind: str, seconds: float, seed: int, most: int = 10**9, names=None, log=None) -> Report:
    """Run cases of a kind for some seconds or `most` of them.

    A failure is printed as it comes, made small; the same message is counted once per drafter.
    """
    check, vocab_size = KINDS[kind]
    draw = random.Random(f'{kind} {seed}')
    names = [a for a in names or USUAL + tuple(architectures()[::4]) if build(a, 0, vocab_size)]
    report = Report(kind, seed)
    end = time.monotonic() + seconds
    with contextlib.suppress(KeyboardInterrupt):  # what was counted by then is reported
        while time.monotonic() < end and report.cases < most:
            case = random_case(draw, names, vocab_size, enumerated=kind == 'law')
            try:
                compared = check(case)
            except RejectedError as refusal:
                report.rejected[str(refusal)] += 1
            except FailedError as failure:
                small = shrink(case, lambda c: fails(check, c))
                report.failed.append((small, str(failure)))
                if log:
                    log(f'FAILED {failure}\n  {reproduction(kind, small)}')
            else:
                report.compared += compared
                report.skipped += not compared
    return report
