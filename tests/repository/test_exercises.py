"""The exercises of the notebooks: each runs without an answer, the folded solution is right, and the mistake is not."""

import importlib
import re
import warnings

import nbformat
import pytest
from repo import directives, module_name, notebooks

HEADING = '## Your turn'
FOLD = re.compile(
    r'<details><summary>([^<]+)</summary>\n\n(.*?)```python\n(.*?)```\n\n</details>', re.S
)


def read(path):
    return nbformat.read(path, 4).cells


def exercise(path):
    "The cells of an exercise, which are the last of a notebook: task, body to write, assertions."
    cells = read(path)
    start = next(i for i, c in enumerate(cells) if c.source == HEADING)
    return cells[start + 1 :]


def folds(text):
    "Title → code of the folds of a task."
    return {title: code for title, _, code in FOLD.findall(text)}


def has_exercise(path):
    return any(cell.source == HEADING for cell in read(path))


EXERCISES = [path for path in notebooks() if has_exercise(path)]
each = pytest.mark.parametrize('path', EXERCISES, ids=lambda p: f'{p.parent.name}.{p.stem}')


def names_of(path):
    "What a reader has at the end of a notebook: its module, and what its hidden cell imports."
    names = dict(vars(importlib.import_module(f'decodelab.{module_name(path)}')))
    hidden = next(
        c.source
        for c in read(path)
        if c.cell_type == 'code' and 'hide' in directives(c.source) and 'import ' in c.source
    )
    exec(hidden, names)
    return names


def sentence(check, answer, names):
    "What the last line of the assertions shows with an answer in place; raises for a wrong one."
    body, _, last = check.rstrip().rpartition('\n')
    names = dict(names)
    exec(answer, names)
    exec(body, names)
    return eval(last, names)


def test_twelve_notebooks_have_one():
    assert len(EXERCISES) == 12


@each
def test_an_exercise_asks_its_solution_is_right_and_a_mistake_is_not(path):
    task, stub, check = exercise(path)
    answers = folds(task.source)
    assert list(answers) == ['Solution', 'A mistake that the assertions catch']
    name = re.match(r'(?:def|class) (\w+)', stub.source).group(1)
    solution, mistake = answers.values()
    for answer in (solution, mistake):
        assert re.match(r'(?:def|class) (\w+)', answer).group(1) == name
    assert stub.source.rstrip().endswith('raise NotImplementedError')
    names = names_of(path)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        asks = f'Write the body of {name} above, then run this cell again.'
        assert sentence(check.source, stub.source, names) == asks
        assert check.outputs[0].data['text/plain'] == repr(asks)
        assert sentence(check.source, solution, names) == f'{name} is right.'
        with pytest.raises(AssertionError):
            sentence(check.source, mistake, names)
