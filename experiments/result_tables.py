"""Stored rows as Markdown tables, for the pages that show them.

`count_line`, `sources_table` and `scripts_list` are on the front page of this folder, README.md,
`sources_page` and `claims_table` on its second page, CLAIMS.md; `pace_table` is in the README of the
project; `drafters_table` and `which_drafter` are shown by 16_drafters.ipynb. Nothing is measured here:
each sentence follows from a row.
"""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd

from decodelab.core.metrics import speeds, speedup
from decodelab.lab.claims import LEVEL
from decodelab.lab.experiment import read_verdicts
from decodelab.lab.freshness import STATES, stored_freshness
from decodelab.lab.requirements import experiments_folder, notebook_of, source_of, title_of
from decodelab.lab.run_report import compare_runs, runs_in


def markdown_row(cells) -> str:
    "A row of a Markdown table; a line break or a bar within a cell would end it."
    escaped = (str(cell).replace('|', '\\|').replace('\n', ' ') for cell in cells)
    return f'| {" | ".join(escaped)} |'


def markdown_table(headings, rows) -> str:
    "A Markdown table."
    return '\n'.join(map(markdown_row, [headings, ['---'] * len(headings), *rows]))


# Claims and verdicts

VERDICTS = {True: 'agrees', False: 'does not', None: 'open'}


def by_scale(values: dict) -> str:
    "A value for each scale in one cell."
    return '; '.join(f'{scale}: {value}' for scale, value in values.items())


def claim_cells(row) -> tuple[str, str, str, str, str]:
    "Claim, the source's figure, the rule, ours at each scale, and the verdict at each scale."
    measured = {scale: figure for scale, (figure, _, _) in row.runs.items()}
    verdicts = {scale: VERDICTS[agrees] for scale, (_, agrees, _) in row.runs.items()}
    return row.claim, row.source, row.rule, by_scale(measured), by_scale(verdicts)


STATE = re.compile(r' \*\(([^()|]*: )?(stale|unknown)[^()|]*\)\*')
WARNING = '> **Freshness.** '


def state_text(results: list) -> str:
    "A label for the rows of an experiment that are not fresh; empty if all are."
    states = {f'{r.scale} {r.part}'.strip(): r.state for r in results if r.state != 'fresh'}
    return f' *({by_scale(states)})*' if states else ''


def freshness_warning(results: list) -> str:
    "The numbers of fresh, stale and unknown results, and the meaning of these words, in one line."
    states = [r.state for r in results]
    counts = [f'{states.count(state)} are {state}' for state in STATES]
    return (
        f'{WARNING}Of {len(results)} stored results, {", ".join(counts)}. Rows are *fresh* if '
        'they were measured with the code, models and data of this checkout, *stale* if one of '
        'these has changed since, *unknown* if they were stored before that was recorded; the '
        'latter two are labelled. `python tools/refresh.py status` shows what changed, and `python '
        'tools/refresh.py refresh` measures them again.'
    )


def without_states(page: str) -> str:
    "A page without the parts that depend on the code of today: its labels, and the numbers in its warning."
    lines = [WARNING if line.startswith(WARNING) else line for line in page.split('\n')]
    return STATE.sub('', '\n'.join(lines))


def claims_of(folder: Path):
    "The claims of all experiments in a folder, short forms aside, in the order of their names."
    runs = [run for run in runs_in(folder) if run.verdicts and not run.quick]
    return compare_runs(runs).sort_values('name', kind='stable')


SECTIONS = {  # the first word of a conclusion → the heading of its claims
    'holds': 'Holds',
    'fails': 'Does not hold',
    'differs': 'Holds at one scale, and not at another',
    'open': 'Open at the scales that were measured: for a GPU, or for the models of the source',
}


def with_stop(text: str) -> str:
    "A text that ends like a sentence."
    return text if text.endswith(('.', '!', '?')) else f'{text}.'


def claim_item(row) -> str:
    "A claim that does not hold, or is open, as a list item: theirs, ours, and why at each scale."
    ours = [
        f'Ours, {scale}: {with_stop(figure)} Why: {with_stop(why)}'
        for scale, (figure, _, why) in row.runs.items()
    ]
    return f'- *{with_stop(row.claim)}* Theirs: {with_stop(row.source)} {" ".join(ours)}'


def sections_of(rows) -> list[str]:
    "The claims of one source under the headings of `SECTIONS`; those that hold in one sentence."
    blocks = []
    for word, heading in SECTIONS.items():
        chosen = [row for row in rows.itertuples() if row.conclusion.split()[0] == word]
        if chosen and word == 'holds':
            blocks.append(f'{heading}: {"; ".join(row.claim for row in chosen)}.')
        elif chosen:
            blocks.append(f'{heading}:\n\n' + '\n'.join(map(claim_item, chosen)))
    return blocks


def count_conclusions(rows) -> list[int]:
    "The numbers of claims that hold, fail, differ between scales and are open."
    words = [conclusion.split()[0] for conclusion in rows.conclusion]
    return [words.count(word) for word in SECTIONS]


def count_line(
    folder=None,  # of the experiments; None: those of the package
) -> str:
    "All claims and their conclusions in one line."
    claims = claims_of(Path(folder or experiments_folder()))
    holds, fails, differs, still_open = count_conclusions(claims)
    between = f', {differs} agree at one scale only' if differs else ''
    return (
        f'**{len(claims)} claims measured: {holds} agree, {fails} do not{between}, '
        f'{still_open} are open.**'
    )


def error_line(
    folder=None,  # of the experiments; None: those of the package
) -> str:
    "The number of verdicts from intervals, and that of those expected to be wrong at random."
    results = Path(folder or experiments_folder()) / 'results'
    families = [read_verdicts(path).p.ne('') for path in sorted(results.glob('*.verdicts.csv'))]
    sizes = [int(family.sum()) for family in families if family.any()]
    return (
        f'{sum(sizes)} verdicts come from intervals of 95 %, in {len(sizes)} families, each of them '
        f'corrected by the method of Holm to a level of {LEVEL:g}: at most {LEVEL * len(sizes):.1f} of '
        'all verdicts are expected to be wrong at random. The others are exact (ids, counts, '
        'theorems, published tables), or were not measured. The rules of '
        '[Claims](../nbs/15_lab/03_claims.ipynb) were set beside the figure of the source.'
    )


def changes_table(
    folder=None,  # of the experiments; None: those of the package
) -> str:
    "The verdicts that the rules have changed, of `judged_again.csv`, as Markdown."
    path = Path(folder or experiments_folder()) / 'judged_again.csv'
    rows = pd.read_csv(path, keep_default_na=False)
    return markdown_table(rows.columns, rows.itertuples(index=False))


def sources_table(
    folder=None,  # of the experiments; None: those of the package
    page: str = 'CLAIMS.md',  # with the section of each source
) -> str:
    "The conclusions of each source in numbers, as Markdown."
    folder = Path(folder or experiments_folder())
    lines = []
    for name, rows in claims_of(folder).groupby('name', sort=False):
        path = notebook_of(name, folder)
        counts = [count or '' for count in count_conclusions(rows)]
        lines.append((source_of(path) or title_of(path), f'[{name}]({page}#{name})', *counts))
    return markdown_table(('source', 'claims', 'hold', 'do not', 'differ', 'open'), lines)


def sources_page(
    folder=None,  # of the experiments; None: those of the package
    link: str = 'experiments/{}.ipynb',  # of a notebook
) -> str:
    "The claims of each source that hold, those that do not and why, and those that are open, as Markdown."
    folder = Path(folder or experiments_folder())
    parts = []
    for name, rows in claims_of(folder).groupby('name', sort=False):
        path = notebook_of(name, folder)
        title, source = title_of(path), source_of(path)
        after = f', after {source}' if source else ''
        heading = f'### {name}\n\n[{title}]({link.format(name)}){after}.'
        parts.append('\n\n'.join([heading, *sections_of(rows)]))
    return '\n\n'.join(parts)


def scripts_list(
    folder=None,  # of the experiments; None: those of the package
) -> str:
    "The scripts of the folder, each with the first sentence of its docstring, as Markdown."
    lines = []
    for path in sorted(Path(folder or experiments_folder()).glob('*.py')):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8')))
        summary = ' '.join(docstring.partition('\n\n')[0].split())
        lines.append(f'- [{path.name}]({path.name}): {summary}')
    return '\n'.join(lines)


def claims_table(
    folder=None,  # of the experiments; None: those of the package
    link: str = 'experiments/{}.ipynb',  # of a notebook
    results=None,  # of `stored_freshness`; None: of this folder
) -> str:
    """Every claim of every experiment, as Markdown.

    Source, notebook, claim, the source's figure, the rule, ours at each scale, and the verdict. The
    first row of an experiment has the source and the notebook, with a label if rows are stale.
    """
    folder = Path(folder or experiments_folder())
    claims = claims_of(folder)
    results = stored_freshness(folder) if results is None else results
    lines = []
    for name, rows in claims.groupby('name', sort=False):
        path = notebook_of(name, folder)
        state = state_text([result for result in results if result.name == name])
        first = (source_of(path) or title_of(path), f'[{name}]({link.format(name)}){state}')
        for i, row in enumerate(rows.itertuples()):
            lines.append((*(first if i == 0 else ('', '')), *claim_cells(row)))
    headings = ('source', 'notebook', 'claim', 'theirs', 'rule', 'ours', 'verdict')
    return markdown_table(headings, lines)


# Drafters and verifiers

DRAFTER_HEADINGS = (
    'base',
    'drafter',
    'verifier',
    'distance',
    'greedy, 11 architectures',
    'batch of 32',
    'tokens a pass',
    'speed over plain',
    'cost of a round',
    'weights added',
    'stories: tokens, speed',
    'speech: tokens, speed',
)


def distance_text(exact_tv: float) -> str:
    "The distance of a distribution from plain decoding's; empty where none was measured."
    if math.isnan(exact_tv):
        return ''
    return 'TV = 0' if exact_tv == 0 else f'TV {exact_tv:.2f}, lossy'


def pair_text(tokens: float, speed: float) -> str:
    "Tokens a pass and speed; empty where nothing was measured."
    return '' if math.isnan(speed) else f'{tokens:.2f}, {speed:.2f}'


def drafter_cells(row) -> tuple:
    "One drafter with one verifier."
    return (
        row.base,
        row.drafter,
        row.verifier,
        distance_text(row.exact_tv),
        row.families if isinstance(row.families, str) else '',
        f'{row.batch_32:.0f} of 32',
        f'{row.block_efficiency:.2f}',
        f'{row.speedup:.2f} [{row.speedup_low:.2f}, {row.speedup_high:.2f}]',
        f'{row.step_cost:.2f}',
        f'{row.added_mb:.1f} MB' if row.added_mb else '0',
        pair_text(row.real_efficiency, row.real_speedup),
        pair_text(row.speech_efficiency, row.speech_speedup),
    )


def drafters_table(
    rows: pd.DataFrame,  # of `results/16_drafters.*.csv`
) -> str:
    "Each drafter with each verifier, its certificate, and what it yields, as Markdown."
    return markdown_table(DRAFTER_HEADINGS, map(drafter_cells, rows.itertuples()))


# Which to choose when

SITUATIONS = {  # beginnings of the names of drafters
    'nothing but the target': ('prompt lookup', 'suffix', 'early exit', 'lookahead decoding'),
    'a smaller model with its tokenizer': (
        'assistant',
        'tree',
        'growing tree',
        'branches',
        'lookup first',
        'staged',
    ),
    'a smaller model with another tokenizer': ('universal', 'intersection'),
    'time to train heads': ('Medusa', 'EAGLE'),
}


def fastest(
    rows: pd.DataFrame,
    names: tuple | None = None,  # beginnings of names of drafters; None: all
) -> str:
    "The row with the largest speed, in words."
    if names is not None:
        rows = rows[rows.drafter.str.startswith(names)]
    if rows.empty:
        return 'nothing was measured'
    best = rows.loc[rows.speedup.idxmax()]
    verifier = '' if best.base == 'greedy' else f' with {best.verifier}'
    speed = f'{best.speedup:.2f} times plain speed at {best.block_efficiency:.2f} tokens a pass'
    return f'**{best.drafter}**, {speed}{verifier}'


def on_stories(rows: pd.DataFrame) -> pd.DataFrame:
    "The rows measured on the other checkpoint, with its speed and efficiency."
    measured = rows.dropna(subset='real_speedup')
    return measured.assign(speedup=measured.real_speedup, block_efficiency=measured.real_efficiency)


def which_drafter(
    rows: pd.DataFrame,  # of `results/16_drafters.*.csv`
) -> str:
    "Ten lines of Markdown: what to choose when, each the fastest row of its situation."
    greedy = rows[rows.base == 'greedy']
    sampled = rows[(rows.base == 'sampling') & (rows.exact_tv == 0)]
    lossy = rows[(rows.base == 'sampling') & (rows.exact_tv > 0)]
    trees = sampled[sampled.verifier == 'multi-draft']
    slow = ', '.join(greedy[greedy.speedup_high < 1].drafter) or 'none'
    stories = on_stories(greedy)
    greedy = greedy[~greedy.drafter.str.startswith('synthetic')]
    lines = [f'With {what}: {fastest(greedy, names)}.' for what, names in SITUATIONS.items()]
    lines += [
        f'Sampling, and the distribution must stay: {fastest(sampled)}; by a tree: {fastest(trees)}.',
        f'Sampling, and it need not: {fastest(lossy)}; its distance is in the table.',
        f'No extra memory: {fastest(greedy[greedy.added_mb == 0])}.',
        f'On the other checkpoint (stories): {fastest(stories)}.',
        f'Slower than plain decoding here, interval and all: {slow}.',
        'Where nothing is known of a sequence: `CostAwareLookahead(costs)`, which stops drafting '
        'where it does not pay; and measure, with `decodelab bench`.',
    ]
    return '\n'.join(f'{i}. {line}' for i, line in enumerate(lines, 1))


# Beside the peers

MODES = {  # of the rows, in words
    'greedy': 'greedy',
    'assisted': 'with a draft model',
    'prompt lookup': 'prompt lookup',
    'beam 4': 'four beams',
}
COMPILED = {'generate, compiled': 'transformers compiled', 'CTranslate2': 'CTranslate2'}
SPECULATING = {'llama.cpp': 'llama-cpp-python', 'openvino': 'OpenVINO GenAI'}
SPECULATING_MODES = {  # of these rows, in words
    'plain': 'greedy',
    'draft': 'draft model',
    'lookup': 'prompt lookup',
}
PACE_HEADINGS = ('times the speed of', 'as loaded', '`compile()`')


def pace_beside(
    rows: pd.DataFrame,
    ours: str,
    theirs: str,  # strategies of the rows
) -> str:
    "Our speed over a reference's, the median over prompts and repeats with its interval; – if not measured."
    if not {ours, theirs} <= set(rows.strategy):
        return '–'
    frame = rows if rows.prompt.notna().all() else rows.assign(prompt=rows.repeat, repeat=0)
    return str(speedup(frame, ours, theirs, lambda a, b: np.median(speeds(a) / speeds(b))))


def pace_table(
    rows: pd.DataFrame,  # of `results/16_engine.*.csv`
) -> str:
    "Each way of decoding beside transformers' own, and greedy decoding beside compiled peers, as Markdown."
    decoding = rows[rows.part == 'decoding']
    table = []
    for mode, words in MODES.items():
        paces = [
            pace_beside(decoding, f'{mode} | {e}', f'{mode} | generate')
            for e in ('lean', 'library')
        ]
        table.append((f'transformers, {words}', *paces))
    engine = rows[rows.part == 'engine']
    if len(engine):
        alone = engine[(engine.model == 'pico') & (engine.batch == 1)]
        engine = alone.assign(seconds=alone.cpu_seconds)
    for reference, words in COMPILED.items():
        paces = [pace_beside(engine, e, reference) for e in ('lean', 'library')]
        table.append((f'{words}, greedy', *paces))
    others = rows[rows.part == 'other engines']
    for other, words in SPECULATING.items():
        paces = [
            pace_beside(others, f'{mode} | library', f'{mode} | {other}')
            for mode in SPECULATING_MODES
        ]
        table.append((f'{words}: {", ".join(SPECULATING_MODES.values())}', '–', '; '.join(paces)))
    return markdown_table(PACE_HEADINGS, table)
