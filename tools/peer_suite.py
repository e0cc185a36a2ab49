"""transformers' own generation tests through `generate`: `python tools/peer_suite.py [ARCHITECTURE …]`.

The suite is no part of the repository: it lies in `shared/peer_suite` beside the checkout, or in `--suite FOLDER`,
and needs the package parameterized. Each test runs with transformers' `generate` and with decodelab's in its place;
those that pass with both, among those that pass with transformers', are the rate. Failures are compared with
tests/hf/peer_differences.csv. `--write` stores the rates in tests/hf/peer_rates.csv and on docs/architectures.md,
`--package FOLDER` tries the package of another checkout, `--tests FOLDER` has more `tests/models/ARCHITECTURE`.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from repo import ROOT

SUITE = ROOT.parent / 'shared' / 'peer_suite'
RATES = ROOT / 'tests' / 'hf' / 'peer_rates.csv'  # architecture, transformers, before, now
DIFFERENCES = ROOT / 'tests' / 'hf' / 'peer_differences.csv'  # architecture, test, reason
PAGE = ROOT / 'docs' / 'architectures.md'
BEGIN, END = '<!-- peer suite -->', '<!-- end of peer suite -->'
LEFT_OUT = (
    'not compil and not export and not static_cache_no_recompile'  # torch.compile takes minutes
)
FAST = (
    'bart',
    'gpt2',
    'llama',
    'mamba',
    'qwen2_vl',
    't5',
)  # of different kinds, for each run of the tests


def architectures(folder: Path = SUITE) -> list[str]:
    "The architectures that a folder has tests of."
    folders = [p for p in (folder / 'tests' / 'models').iterdir() if p.is_dir()]
    return sorted(p.name for p in folders if not p.name.startswith('_'))


def missing() -> str:
    "The reason why the suite cannot run here, or nothing."
    if not SUITE.exists():
        return 'no folder shared/peer_suite beside the checkout'
    if importlib.util.find_spec('parameterized') is None:
        return 'pip install parameterized'
    return ''


class Suite:
    "A copy of the suite in a folder of its own, with more architectures."

    def __init__(self, folder: Path, suite: Path = SUITE, more: Path | None = None):
        self.folder = folder
        for name in ('tests', 'utils'):
            shutil.copytree(suite / name, folder / name, dirs_exist_ok=True)
        shutil.copy(suite / 'door.py', folder)
        for path in (folder, *folder.rglob('*')):
            path.chmod(path.stat().st_mode | 0o200)
        if more is not None:
            target = folder / 'tests' / 'models'
            for path in (more / 'tests' / 'models').iterdir():
                if path.is_dir() and not (target / path.name).exists():
                    shutil.copytree(path, target / path.name)
        words = ['[pytest]', 'markers =', '    generate: generation', 'addopts = -p no:warnings']
        (folder / 'pytest.ini').write_text('\n'.join(words))

    def run(self, names: list[str], ours: bool, package: Path = ROOT) -> dict[tuple, dict]:
        "(architecture, test) → its outcome and its error, with our `generate` or with transformers'."
        report = self.folder / f'outcomes{int(ours)}.jsonl'
        report.unlink(missing_ok=True)
        paths = [
            self.folder,
            self.folder / 'utils',
            package,
            *os.environ.get('PYTHONPATH', '').split(os.pathsep),
        ]
        env = os.environ | dict(DOOR=str(int(ours)), OUT=str(report))
        env['PYTHONPATH'] = os.pathsep.join(str(path) for path in paths if str(path))
        env |= dict(OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', TRANSFORMERS_VERBOSITY='error')
        command = [sys.executable, '-m', 'pytest', '-q', '--tb=no', '-p', 'door']
        command += ['-p', 'no:cacheprovider', '--continue-on-collection-errors', '-m', 'generate']
        command += ['-k', LEFT_OUT, *(f'tests/models/{n}/test_modeling_{n}.py' for n in names)]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError(f'no test ran: {(done.stdout + done.stderr)[-2000:]}')
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        return {(x['id'].split('/')[2], x['id'].split('.py::')[1]): x for x in lines}


def differences() -> pd.DataFrame:
    "The tests that are expected to fail with ours, each with its reason."
    return pd.read_csv(DIFFERENCES, dtype=str, keep_default_na=False)


def failures(outcomes: dict) -> dict[tuple, str]:
    "(architecture, test) → error of the tests that failed."
    return {key: x['error'] for key, x in outcomes.items() if x['outcome'] == 'failed'}


def unexpected(outcomes: dict) -> tuple[dict, list]:
    "The failures that are not listed, and the listed ones that pass: the list may only shrink."
    failed = failures(outcomes)
    names = {name for name, _ in outcomes}
    table = differences()
    listed = {key for key in zip(table.architecture, table.test) if key[0] in names}
    return {k: v for k, v in failed.items() if k not in listed}, sorted(listed - failed.keys())


def rates(theirs: dict, ours: dict) -> pd.DataFrame:
    "For each architecture, the tests that pass with transformers', and those of them that pass with ours."
    rows = []
    for key, x in theirs.items():
        if x['outcome'] == 'passed':
            good = ours.get(key, {}).get('outcome') == 'passed'
            rows.append(dict(architecture=key[0], transformers=1, now=int(good)))
    return pd.DataFrame(rows).groupby('architecture').sum().reset_index()


def section(table: pd.DataFrame) -> str:
    "The rates as a section of the page."
    total = table[['transformers', 'before', 'now']].sum()
    rows = [
        f'| {r.architecture} | {r.transformers} | {r.before} | {r.now} |'
        for r in table.itertuples()
    ]
    return '\n'.join(
        [
            BEGIN,
            "## transformers' own tests",
            '',
            "The tests of transformers that call `generate`, unchanged, with "
            '[`decodelab.generate`](../nbs/12_hf/09_generate.ipynb) in its place '
            f"(`python tools/peer_suite.py`). Of {total.transformers} that pass with transformers' own, "
            f'{total.now} pass ({total.now / total.transformers:.1%}); of the release before, '
            f'{total.before} did ({total.before / total.transformers:.0%}). Left out are tests of '
            '`torch.compile` and of export.',
            '',
            "| architecture | tests that pass with transformers' | with ours, before | with ours, now |",
            '|---|---|---|---|',
            *rows,
            END,
        ]
    )


def write(table: pd.DataFrame):
    "Store the rates, and put them on the page."
    stored = pd.read_csv(RATES) if RATES.exists() else table.assign(before=0).iloc[:0]
    before = dict(zip(stored.architecture, stored.before))
    table = table.assign(before=[before.get(name, 0) for name in table.architecture])
    rest = stored[~stored.architecture.isin(table.architecture)]
    table = pd.concat([rest, table]).sort_values('architecture')
    table = table[['architecture', 'transformers', 'before', 'now']].astype(dict(before=int))
    table.to_csv(RATES, index=False)
    put_section(table)


def put_section(table: pd.DataFrame):
    "Replace the section on the page, or append it."
    text = PAGE.read_text(encoding='utf-8')
    if BEGIN in text:
        head, rest = text.split(BEGIN)
        text = head + section(table) + rest.split(END)[1]
    else:
        text = f'{text.rstrip()}\n\n{section(table)}\n'
    PAGE.write_text(text, encoding='utf-8')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='*', metavar='ARCHITECTURE')
    parser.add_argument('--suite', type=Path, default=SUITE)
    parser.add_argument('--tests', type=Path)
    parser.add_argument('--package', type=Path, default=ROOT)
    parser.add_argument('--write', action='store_true')
    arguments = parser.parse_args()
    names = arguments.names or architectures(arguments.tests or arguments.suite)
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(Path(folder), arguments.suite, arguments.tests)
        for name in names:
            theirs, ours = (suite.run([name], door, arguments.package) for door in (False, True))
            parts.append(rates(theirs, ours))
            print(parts[-1].to_string(index=False, header=False), flush=True)
            news, _ = unexpected(ours)
            for (_, test), error in news.items():
                print(f'    {test}: {error[:150]}', flush=True)
    table = pd.concat(parts)
    total = table[['transformers', 'now']].sum()
    print(f'{total.now} of {total.transformers}: {total.now / total.transformers:.1%}')
    if arguments.write:
        write(table)


if __name__ == '__main__':
    main()
