"The pages of experiments/: tables and advice from stored rows."

import json
import math
import sys
from dataclasses import replace

import nbformat
import pandas as pd
from nbformat.v4 import new_markdown_cell, new_notebook
from repo import ROOT

from decodelab.lab.freshness import stored_freshness

sys.path.insert(0, str(ROOT / 'experiments'))
from result_tables import (
    DRAFTER_HEADINGS,
    claims_table,
    count_line,
    drafters_table,
    error_line,
    freshness_warning,
    pace_table,
    scripts_list,
    sources_page,
    sources_table,
    which_drafter,
    without_states,
)

ROW = dict(
    base='sampling',
    drafter='d',
    verifier='v',
    exact_tv=0.0,
    families=math.nan,
    batch_32=32,
    block_efficiency=2.345,
    speedup=1.2,
    speedup_low=1.0,
    speedup_high=1.301,
    step_cost=1.5,
    added_mb=0.0,
    real_efficiency=math.nan,
    real_speedup=math.nan,
    speech_efficiency=math.nan,
    speech_speedup=math.nan,
)


def store(folder, rows, scale='pico'):
    "Verdicts of an experiment called 01_demo."
    results = folder / 'results'
    results.mkdir(parents=True, exist_ok=True)
    fields = ('claim', 'source', 'measured', 'agrees', 'why', 'rule', 'p')
    frame = pd.DataFrame(rows, columns=fields)
    frame.to_csv(results / f'01_demo.{scale}.verdicts.csv', index=False)
    (results / f'01_demo.{scale}.json').write_text(json.dumps(dict(machine='laptop')))


def test_claims_of_a_folder(tmp_path):
    more = [('a | b', '1', '2', False, 'no', 'above 3', '0.01')]
    store(tmp_path, [*more, ('scales', '10', '–', None, 'no GPU', 'above 9', '')])
    store(tmp_path, [('a | b', '1', '1.1', True, 'yes', 'above 3', '')], scale='gpu')
    texts = ('# A demonstration', '## Claim', 'The post *Demonstrations for all* says')
    nbformat.write(new_notebook(cells=[*map(new_markdown_cell, texts)]), tmp_path / '01_demo.ipynb')
    assert claims_table(tmp_path).splitlines()[2:] == [
        r'| Demonstrations for all | [01_demo](experiments/01_demo.ipynb) *(gpu: unknown; pico: unknown)* '
        r'| a \| b | 1 | above 3 '
        '| gpu: 1.1; pico: 2 | gpu: agrees; pico: does not |',
        '|  |  | scales | 10 | above 9 | pico: – | pico: open |',
    ]
    assert count_line(tmp_path) == (
        '**2 claims measured: 0 agree, 0 do not, 1 agree at one scale only, 1 are open.**'
    )
    line = error_line(tmp_path)
    assert line.startswith('1 verdicts come from intervals of 95 %, in 1 families')
    assert 'at most 0.1 of' in line
    assert sources_table(tmp_path).splitlines()[2:] == [
        '| Demonstrations for all | [01_demo](CLAIMS.md#01_demo) |  |  | 1 | 1 |'
    ]
    assert sources_page(tmp_path).splitlines() == [
        '### 01_demo',
        '',
        '[A demonstration](experiments/01_demo.ipynb), after Demonstrations for all.',
        '',
        'Holds at one scale, and not at another:',
        '',
        '- *a | b.* Theirs: 1. Ours, gpu: 1.1. Why: yes. Ours, pico: 2. Why: no.',
        '',
        'Open at the scales that were measured: for a GPU, or for the models of the source:',
        '',
        '- *scales.* Theirs: 10. Ours, pico: –. Why: no GPU.',
    ]
    unknown = stored_freshness(tmp_path)
    fresh = [replace(result, state='fresh', reason='') for result in unknown]
    pages = [
        f'{freshness_warning(results)}\n\n{claims_table(tmp_path, results=results)}'
        for results in (unknown, fresh)
    ]
    assert 'Of 2 stored results, 0 are fresh, 0 are stale, 2 are unknown' in pages[0]
    assert 'unknown)' not in pages[1]
    assert '[01_demo](experiments/01_demo.ipynb) |' in pages[1]
    assert pages[0] != pages[1]
    assert without_states(pages[0]) == without_states(pages[1])


def test_scripts_of_a_folder(tmp_path):
    (tmp_path / 'a.py').write_text('"""Times a thing,\nin turns.\n\nMore of it."""\n')
    (tmp_path / 'b.py').write_text('"One line."\n')
    assert scripts_list(tmp_path).splitlines() == [
        '- [a.py](a.py): Times a thing, in turns.',
        '- [b.py](b.py): One line.',
    ]


def test_drafters():
    greedy = dict(base='greedy', exact_tv=math.nan, families='22 of 22', added_mb=2.26)
    measured = dict(
        real_efficiency=1.5, real_speedup=1.1, speech_efficiency=4.0, speech_speedup=0.9
    )
    rows = [ROW, ROW | dict(exact_tv=0.25), ROW | greedy | measured]
    lines = drafters_table(pd.DataFrame(rows)).splitlines()
    assert len(lines) == 5
    assert all(l.count('|') == len(DRAFTER_HEADINGS) + 1 for l in lines)
    plain = lines[2].replace('2.34 |', '2.35 |')
    assert 'TV = 0 |  | 32 of 32 | 2.35 | 1.20 [1.00, 1.30] | 1.50 | 0 |  |  |' in plain
    assert lines[4].endswith('| 2.3 MB | 1.50, 1.10 | 4.00, 0.90 |')
    assert 'TV 0.25, lossy' in lines[3]
    assert '|  | 22 of 22 |' in lines[4]


def test_which_drafter():
    greedy = dict(base='greedy', verifier='exact match', exact_tv=math.nan)
    speeds = {
        'assistant': 1.3,
        'suffix': 1.4,
        'tree 3·2·1·1': 1.5,
        'universal (SLEM)': 0.7,
        'synthetic, 0.8': 9.0,
    }
    rows = [
        ROW | greedy | dict(drafter=name, speedup=speed, speedup_high=speed + 0.1)
        for name, speed in speeds.items()
    ]
    rows += [
        ROW | dict(drafter='tree 3·2·1·1', verifier='multi-draft', speedup=1.1),
        ROW | dict(drafter='assistant', verifier='lenience 0.5', exact_tv=0.3, speedup=1.6),
    ]
    lines = which_drafter(pd.DataFrame(rows)).splitlines()
    assert len(lines) == 10
    assert '**suffix**, 1.40' in lines[0]
    assert '**tree 3·2·1·1**, 1.50' in lines[1]
    assert 'nothing was measured' in lines[3]
    assert 'with multi-draft' in lines[4]
    assert '**assistant**, 1.60' in lines[5]
    assert lines[8].endswith('universal (SLEM).')


def test_stored_rows_of_the_package():
    rows = pd.read_csv(ROOT / 'experiments' / 'results' / '16_drafters.pico.csv')
    table = drafters_table(rows)
    assert table.startswith('| base | drafter | verifier | distance |')
    assert len({line.count('|') for line in table.splitlines()}) == 1
    advice = which_drafter(rows)
    assert len(advice.splitlines()) == 10
    assert 'nothing was measured' not in advice


def test_other_libraries():
    "Medians of ratios by hand: 2 for the native forward, 3 for the library; what was not measured is a dash."
    seconds = {'greedy | generate': 6.0, 'greedy | lean': 3.0, 'greedy | library': 2.0}
    seconds |= {'beam 4 | generate': 8.0, 'beam 4 | lean': 2.0}
    rows = [
        dict(part='decoding', strategy=s, prompt=p, repeat=r, seconds=t, new_tokens=10)
        for s, t in seconds.items()
        for p in range(3)
        for r in range(2)
    ]
    seconds = {'CTranslate2': 1.0, 'generate, compiled': 4.0, 'lean': 2.0, 'library': 1.0}
    for strategy, cpu in seconds.items():
        rows += [
            dict(part='engine', model='pico', batch=1, strategy=strategy, repeat=r)
            | dict(seconds=9.0, cpu_seconds=cpu, new_tokens=10)
            for r in range(4)
        ]
    for strategy, wall in {'draft | library': 1.0, 'draft | openvino': 2.5}.items():
        rows += [
            dict(part='other engines', strategy=strategy, repeat=r, seconds=wall, new_tokens=10)
            for r in range(4)
        ]
    lines = [line.strip('| ').split(' | ') for line in pace_table(pd.DataFrame(rows)).splitlines()]
    result = {line[0]: line[1:] for line in lines[2:]}
    assert result['transformers, greedy'] == ['2.00 [2.00, 2.00]', '3.00 [3.00, 3.00]']
    assert result['transformers, four beams'] == ['4.00 [4.00, 4.00]', '–']
    assert result['transformers, prompt lookup'] == ['–', '–']
    assert result['CTranslate2, greedy'] == ['0.50 [0.50, 0.50]', '1.00 [1.00, 1.00]']
    assert result['transformers compiled, greedy'] == ['2.00 [2.00, 2.00]', '4.00 [4.00, 4.00]']
    modes = 'greedy, draft model, prompt lookup'
    assert result[f'OpenVINO GenAI: {modes}'] == ['–', '–; 2.50 [2.50, 2.50]; –']
    assert result[f'llama-cpp-python: {modes}'] == ['–', '–; –; –']
    stored = pd.DataFrame(rows[:30])
    assert '–' in pace_table(stored).splitlines()[-1]
