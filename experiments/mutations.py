"""The flaws of `tests/speculative` and their certificates: which are found, by what evidence, in what time.

    python experiments/mutations.py
    python experiments/mutations.py --only audit --samples 6000 --out runs/mutations.csv
    python experiments/mutations.py --package FOLDER --label before

A row is a flaw and its certificate; --samples says how large one is, by default as large as `certify`
makes it. The last set has strategies without a flaw. Rows of --out are written as they are done, and the
same command goes on after an interruption; flaws that were not found are tried again with other --samples.
--package takes `decodelab` from another checkout, an older one for example; its rows have another --label
in the same table. The stored table has those of commit c5cd959, before certificates tested every token, as
`before`.
"""

import argparse
import csv
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETS = 'audit', 'own', 'greedy', 'held back', 'right'
COLUMNS = (
    'label',
    'set',
    'flaw',
    'samples',
    'verdict',
    'found by',
    'distance',
    'seconds',
    'evidence',
)


def read_arguments(argv=None):
    "The arguments of the command line."
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--only', action='append', choices=SETS, help='this set of flaws')
    parser.add_argument('--package', type=Path, default=HERE.parent, help='checkout of decodelab')
    parser.add_argument('--label', default='now', help='of its rows')
    parser.add_argument('--samples', type=int, help='of a certificate')
    parser.add_argument('--out', type=Path, default=HERE / 'mutations.csv')
    return parser.parse_args(argv)


def flaw_sets() -> dict[str, dict]:
    "Name of a set → flaw → a function that makes the strategy."
    from tests.speculative import flaws
    from tests.speculative.held_back import HELD_BACK

    return dict(zip(SETS, (flaws.AUDIT, flaws.OWN, flaws.GREEDY, HELD_BACK, flaws.RIGHT)))


def certified_row(where: dict, make, options: dict) -> dict:
    "The certificate of a flaw as a row; an error that it raises is in its evidence."
    import torch

    from decodelab import certify

    torch.set_num_threads(1)
    start = time.process_time()
    try:
        certificate = certify(make(), progress=False, **options)
    except Exception as error:
        seconds = round(time.process_time() - start, 1)
        evidence = f'{type(error).__name__}: {error}'.splitlines()[0]
        return where | {'verdict': 'error', 'seconds': seconds, 'evidence': evidence}
    failed = [check for check in certificate.checks if not check.passed]
    return where | {
        'verdict': certificate.verdict,
        'found by': ' and '.join(check.kind for check in failed),
        'distance': f'{certificate.distance:.4f}',
        'seconds': round(time.process_time() - start, 1),
        'evidence': ' | '.join(check.message for check in failed or certificate.checks),
    }


def stored_rows(path: Path) -> list[dict]:
    "Rows of an earlier run."
    if not path.exists():
        return []
    with path.open(encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


def store(path: Path, rows: list[dict]):
    "Write the table."
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('w', encoding='utf-8', newline='') as file:
        table = csv.DictWriter(file, COLUMNS, restval='', lineterminator='\n')
        table.writeheader()
        table.writerows(rows)


def is_done(row: dict, samples: int | None) -> bool:
    "Is a flaw found, or was it looked for with as many samples?"
    return row['verdict'] == 'lossy' or row['samples'] in ('default', str(samples))


def counts(rows: list[dict]) -> list[str]:
    "How many flaws of each set were found, in words."
    lines = []
    for label, name in dict.fromkeys((row['label'], row['set']) for row in rows):
        some = [row for row in rows if (row['label'], row['set']) == (label, name)]
        n_lossy = sum(row['verdict'] == 'lossy' for row in some)
        slowest = max(float(row['seconds']) for row in some)
        lines.append(f'{label}, {name}: {n_lossy} of {len(some)} lossy, {slowest:.0f} s at most')
    return lines


def main(argv=None):
    "Certify what is not in the table yet."
    args = read_arguments(argv)
    sys.path[:0] = [str(args.package.resolve()), str(HERE.parent)]
    sets = flaw_sets()
    rows = {(row['label'], row['set'], row['flaw']): row for row in stored_rows(args.out)}
    options = {} if args.samples is None else dict(samples=args.samples)
    for name in args.only or sets:
        for flaw, make in sets[name].items():
            key = args.label, name, flaw
            if key in rows and is_done(rows[key], args.samples):
                continue
            where = dict(zip(COLUMNS, key)) | dict(samples=args.samples or 'default')
            rows[key] = certified_row(where, make, options)
            store(args.out, rows.values())
            print(f'{flaw}: {rows[key]["verdict"]}, {rows[key]["seconds"]} s', flush=True)
    print('\n'.join(counts(list(rows.values()))))


if __name__ == '__main__':
    main()
