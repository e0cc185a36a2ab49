"""Writes tests/seconds.csv, and from it the tables of tests/README.md.

    python tools/seconds.py runs/tests.xml  # of a whole `sh tests/run.sh`
    python tools/seconds.py                 # the tables only: after a file of tests was added

A test is slow if its folder's other tests would not fit into LOOP seconds with it. `tests/conftest.py` marks it.
"""

import ast
import sys
from xml.etree import ElementTree

import pandas as pd
from repo import ROOT

SECONDS = ROOT / 'tests' / 'seconds.csv'
PAGE = ROOT / 'tests' / 'README.md'
LOOP = 45  # seconds of a folder's tests that are not slow
COLUMNS = ['file', 'test', 'cases', 'seconds']
BEGIN, END = '<!-- tables -->', '<!-- end of tables -->'


def measured(report) -> pd.DataFrame:
    "Seconds of each test function, all its cases together, in a report in JUnit's format."
    rows = []
    for case in ElementTree.parse(report).iter('testcase'):
        file = case.get('classname').replace('.', '/') + '.py'
        rows.append((file, case.get('name').partition('[')[0], float(case.get('time'))))
    frame = pd.DataFrame(rows, columns=['file', 'test', 'seconds'])
    table = frame.groupby(['file', 'test']).seconds.agg(cases='size', seconds='sum')
    return table.round(2).reset_index()[COLUMNS]


def stored() -> pd.DataFrame:
    "The stored seconds; no rows before anything was measured."
    if SECONDS.exists():
        return pd.read_csv(SECONDS)
    types = dict(file=str, test=str, cases=int, seconds=float)
    return pd.DataFrame(columns=COLUMNS).astype(types)


def slow_tests(table) -> set[tuple[str, str]]:
    "The costliest tests of each folder, so many that the others take at most LOOP seconds."
    slow = set()
    for _, rows in table.groupby(table.file.map(lambda name: name.rpartition('/')[0])):
        rows = rows.sort_values('seconds')
        late = rows[rows.seconds.cumsum() > LOOP]
        slow |= set(zip(late.file, late.test))
    return slow


def purpose(path) -> str:
    "The first paragraph of a file's docstring, on one line."
    words = ast.get_docstring(ast.parse(path.read_text())).partition('\n\n')[0]
    return ' '.join(words.split()).replace('|', r'\|')


def seconds_text(rows) -> str:
    return f'{rows.seconds.sum():.0f}' if len(rows) else '–'


def tables(table) -> str:
    "A table for each folder, in the order of the parts."
    order = [p.name.partition('_')[2] for p in sorted((ROOT / 'nbs').glob('[0-9]*_*'))]
    folders = sorted({p.parent for p in ROOT.glob('tests/*/test_*.py')})
    rank = {name: i for i, name in enumerate(order)}
    folders.sort(key=lambda p: rank.get(p.name, len(order)))
    slow = slow_tests(table)
    is_slow = pd.Series([pair in slow for pair in zip(table.file, table.test)], dtype=bool)
    text = []
    for folder in folders:
        rows = table[table.file.str.startswith(f'tests/{folder.name}/')]
        quick = rows[~is_slow[rows.index]]
        total = f'{rows.seconds.sum():.0f} s, {quick.seconds.sum():.0f} s without slow tests'
        text.append(f'### {folder.name}\n\n{total if len(rows) else "not measured yet"}\n')
        text.append('| file | guards | s |\n|---|---|---|')
        for path in sorted(folder.glob('test_*.py')):
            mine = rows[rows.file == str(path.relative_to(ROOT))]
            link = f'[{path.stem}]({folder.name}/{path.name})'
            text.append(f'| {link} | {purpose(path)} | {seconds_text(mine)} |')
        text.append('')
    return '\n'.join(text)


def page(table) -> str:
    "The text of tests/README.md with these tables."
    head, _, rest = PAGE.read_text().partition(BEGIN)
    return f'{head}{BEGIN}\n\n{tables(table)}\n{END}{rest.partition(END)[2]}'


if __name__ == '__main__':
    if sys.argv[1:]:
        measured(sys.argv[1]).to_csv(SECONDS, index=False)
    PAGE.write_text(page(stored()))
