"""transformers' own generation tests through `generate`: `python tools/peer_suite.py [ARCHITECTURE …]`.

The suite is no part of the repository: it lies in `shared/peer_suite` beside the checkout, or in `--suite FOLDER`,
and needs the package parameterized. Each test runs with transformers' `generate` and with decodelab's in its place;
those that pass with both, among those that pass with transformers', are the rate. Failures are compared with
tests/hf/peer_differences.csv. `--tests FOLDER` has further `tests/models/ARCHITECTURE`, which are held back;
`--write` stores the rates in tests/hf/peer_rates.csv and on docs/architectures.md, `--package FOLDER` those of
the package of an earlier checkout.
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
from repo import ROOT, cells

SUITE = ROOT.parent / 'shared' / 'peer_suite'
RATES = (
    ROOT / 'tests' / 'hf' / 'peer_rates.csv'
)  # architecture, held_back, transformers, before, now
DIFFERENCES = ROOT / 'tests' / 'hf' / 'peer_differences.csv'  # architecture, test, reason
PAGE = ROOT / 'docs' / 'architectures.md'
NOTEBOOK = ROOT / 'nbs' / '12_hf' / '12_generate.ipynb'
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
            rows.append(dict(architecture=key[0], transformers=1, passing=int(good)))
    return pd.DataFrame(rows).groupby('architecture').sum().reset_index()


def share(table: pd.DataFrame) -> str:
    "`a of b (c %; before: d, e %)`: tests that pass, and those that passed before, where these were counted."
    n, now = table[['transformers', 'now']].sum()
    before = ''
    if table.before.notna().all():
        count = int(table.before.sum())
        before = f'; before: {count}, {count / n:.0%}'
    return f'{now} of {n} ({now / n:.1%}{before})'


def refusals() -> str:
    "The table of refused calls in the notebook of `generate`."
    (cell,) = (text for text in cells(NOTEBOOK, 'markdown') if '| refused |' in text)
    return '\n'.join(line for line in cell.splitlines() if line.startswith('|'))


def section(table: pd.DataFrame) -> str:
    "The rates as a section of the page."
    rows = []
    for r in table.itertuples():
        others = 'yes' if r.held_back else ''
        before = '' if pd.isna(r.before) else int(r.before)
        rows.append(f'| {r.architecture} | {others} | {r.transformers} | {before} | {r.now} |')
    return '\n'.join(
        [
            BEGIN,
            "## transformers' own tests",
            '',
            "The tests of transformers that call `generate`, unchanged, with "
            '[`decodelab.generate`](../nbs/12_hf/12_generate.ipynb) in its place, counted where they '
            "pass with transformers' own (`python tools/peer_suite.py`; tests of `torch.compile` and of "
            'export are left out). Of the architectures by which it was written pass '
            f'{share(table[~table.held_back])}. Of others, at its first run with them, '
            f'{share(table[table.held_back])}; the causes of the rest are mended since, but for those of '
            '`tests/hf/peer_differences.csv`. "Before" is decodelab without [In step]'
            '(../nbs/12_hf/05_lockstep.ipynb).',
            '',
            "| architecture | held back | pass with transformers' | with ours, before | with ours |",
            '|---|---|---|---|---|',
            *rows,
            '',
            '## What `generate` refuses',
            '',
            'Calls that run in transformers, and raise one sentence in decodelab.',
            '',
            refusals(),
            END,
        ]
    )


def write(table: pd.DataFrame, column: str, held_back: bool):
    "Store the rates as the column `before` or `now`, and put them on the page."
    stored = pd.read_csv(RATES).set_index('architecture') if RATES.exists() else pd.DataFrame()
    for r in table.itertuples():
        stored.loc[r.architecture, 'held_back'] = held_back
        stored.loc[r.architecture, 'transformers'] = r.transformers
        stored.loc[r.architecture, column] = r.passing
    stored = stored.rename_axis('architecture').sort_values(['held_back', 'architecture'])
    stored = stored[['held_back', 'transformers', 'before', 'now']]
    stored = stored.astype(dict(held_back=bool, transformers=int, before='Int64', now='Int64'))
    stored.to_csv(RATES)
    put_section(pd.read_csv(RATES))


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
    parser.add_argument('--package', type=Path)
    parser.add_argument('--write', action='store_true')
    arguments = parser.parse_args()
    names = arguments.names or architectures(arguments.tests or arguments.suite)
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(Path(folder), arguments.suite, arguments.tests)
        theirs, ours = {}, {}
        for name in names:  # a process each: tests of one change what others find
            theirs |= suite.run([name], ours=False)
            ours |= suite.run([name], ours=True, package=arguments.package or ROOT)
    table = rates(theirs, ours)
    print(table.to_string(index=False))
    both = {key: x for key, x in ours.items() if theirs.get(key, {}).get('outcome') == 'passed'}
    for (name, test), error in unexpected(both)[0].items():
        print(f'    {name} {test}: {error[:150]}')
    n, good = table[['transformers', 'passing']].sum()
    print(f'{good} of {n}: {good / n:.1%}')
    if arguments.write:
        column = 'now' if arguments.package is None else 'before'
        write(table, column, held_back=arguments.tests is not None)


if __name__ == '__main__':
    main()
