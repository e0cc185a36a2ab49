"`python -m tests.fuzz --minutes 30 --seed 1` prints counts, refusals and a small reproduction of each failure."

import argparse
import sys

from tests.fuzz.models import architectures
from tests.fuzz.run import KINDS, run

parser = argparse.ArgumentParser(prog='python -m tests.fuzz', description=__doc__)
parser.add_argument('--minutes', type=float, default=3, help='of processor time, for each kind')
parser.add_argument('--cases', type=int, default=10**9, help='at most, for each kind')
parser.add_argument('--seed', type=int, default=0)
parser.add_argument('--kind', choices=list(KINDS), action='append', help='default: all')
parser.add_argument('--all', action='store_true', help="all of transformers' architectures")
args = parser.parse_args()
failed = 0
for kind in args.kind or KINDS:
    names = architectures() if args.all else None
    report = run(
        kind, 60 * args.minutes, args.seed, args.cases, names, lambda s: print(s, flush=True)
    )
    print(report, flush=True)
    failed += len(report.failed)
sys.exit(bool(failed))
