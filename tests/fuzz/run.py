"Runs cases until the time is over, counts them, and makes failing ones small."

import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.fuzz import around, deep, greedy, law
from tests.fuzz.cases import Case, FailedError, RejectedError, random_case, shrink
from tests.fuzz.models import USUAL, architectures, build

KINDS = dict(greedy=greedy, law=law, deep=deep, around=around)  # modules with `KIND` and `check`
LONGER = 8


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


def tiny_models(kind: str, names=None, log=None) -> list[str]:
    "The architectures of a kind, whose models are built here, before a clock starts."
    settings = KINDS[kind].KIND
    names = settings.architectures or names or USUAL + tuple(architectures()[::4])
    start = time.monotonic()
    if log:
        log(f'{kind}: {len(names)} architectures are built, which takes up to a minute')
    possible = [a for a in names if build(a, 0, settings.vocab_size)]
    build('llama', 1, settings.vocab_size)  # the draft model
    if log:
        log(f'{kind}: {len(possible)} models in {time.monotonic() - start:.0f} s')
    return possible


def first_failure(kind: str, seed: int, most: int, names=None) -> tuple[int, str] | None:
    "The number of the first case that fails, and its message; None if none of `most` fails."
    draw = random.Random(f'{kind} {seed}')
    names = tiny_models(kind, names)
    for number in range(most):
        case = random_case(draw, names, KINDS[kind].KIND)
        try:
            KINDS[kind].check(case)
        except RejectedError:
            continue
        except FailedError as failure:
            return number, f'{failure}\n  {reproduction(kind, case)}'
    return None


def run(
    kind: str, seconds: float, seed: int, most: int = 10**9, names=None, log=None, least: int = 0
) -> Report:
    """Run cases of a kind for some seconds of processor time, after its models are built, or `most` of them.

    A slow machine gets up to `LONGER` times as long to compare `least` cases. A failure is printed as it comes, made
    small. An enumeration that takes longer than the rest of the time is skipped.
    """
    check, settings = KINDS[kind].check, KINDS[kind].KIND
    draw = random.Random(f'{kind} {seed}')
    names = tiny_models(kind, names, log)
    report = Report(kind, seed)
    start = time.process_time()  # a busy machine runs as many cases as a quiet one

    def left():
        allowed = seconds if report.compared >= least else LONGER * seconds
        return allowed - (time.process_time() - start)

    with contextlib.suppress(KeyboardInterrupt):  # what was counted by then is reported
        while left() > 0 and report.cases < most:
            case = random_case(draw, names, settings)
            limit = dict(seconds=min(left(), seconds)) if settings.enumerated else {}
            try:
                compared = check(case, **limit)
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
