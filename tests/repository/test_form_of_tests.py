"Tests and tools are written as the notebooks are: words of the glossary, one claim an assertion, plain statements."

import ast

import pandas as pd
import pytest
from audit import FORBIDDEN, defined_names, words_of
from repo import ROOT
from seconds import COLUMNS, LOOP, PAGE, page, slow_tests, stored

FILES = sorted([*ROOT.glob('tests/**/*.py'), *ROOT.glob('tools/*.py')])
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def forbidden_names(tree):
    "Names with a word that the glossary forbids."
    for name in dict.fromkeys(defined_names(ast.walk(tree))):
        yield from (f'{name}: {FORBIDDEN[w]}' for w in words_of(name) if w in FORBIDDEN)


def joined_claims(tree):
    "Assertions of several claims, which fail without saying which."
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.BoolOp):
            if isinstance(node.test.op, ast.And):
                yield ast.unparse(node)


def nested(tree, kinds):
    "Expressions of some kinds in one another."
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            inner = [child for child in ast.walk(node) if child is not node]
            if any(isinstance(child, kinds) for child in inner):
                yield ast.unparse(node)


def many_targets(tree):
    "Assignments of three or more values, and tuples as statements."
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            if any(len(getattr(target, 'elts', ())) > 2 for target in node.targets):
                yield ast.unparse(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Tuple):
            yield ast.unparse(node)


def is_constant(statement):
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def split_docstrings(tree):
    "Bodies that begin with two constants: a docstring in two pieces."
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
            if [is_constant(statement) for statement in node.body[:2]] == [True, True]:
                yield ast.unparse(node)[:80]


CHECKS = dict(
    names=forbidden_names,
    claims=joined_claims,
    comprehensions=lambda tree: nested(tree, COMPREHENSIONS),
    conditions=lambda tree: nested(tree, ast.IfExp),
    targets=many_targets,
    docstrings=split_docstrings,
)
BAD = dict(
    names='kept = 1',
    claims='assert a and b',
    comprehensions='[[x for x in y] for y in z]',
    conditions='a if b else c if d else e',
    targets='a, b, c = 1, 2, 3',
    docstrings='"One."\n"Two."',
)


@pytest.mark.parametrize('check', CHECKS)
def test_tests_and_tools_have_the_form_of_notebooks(check):
    problems = {}
    for path in FILES:
        problems[str(path.relative_to(ROOT))] = list(CHECKS[check](ast.parse(path.read_text())))
    assert len(problems) > 100
    assert {path: lines for path, lines in problems.items() if lines} == {}


@pytest.mark.parametrize('check', CHECKS)
def test_each_check_sees_its_flaw_only(check):
    tree = ast.parse(BAD[check])
    assert [name for name in CHECKS if list(CHECKS[name](tree))] == [check]


def test_each_test_is_in_the_folder_of_a_part():
    "Only helpers are at the top of `tests/`, and no two files of tests have one name."
    assert [path.name for path in ROOT.glob('tests/test_*.py')] == []
    names = [path.name for path in ROOT.glob('tests/*/test_*.py')]
    assert len(names) == len(set(names)) > 80


def test_the_page_of_tests_is_up_to_date():
    assert PAGE.read_text() == page(stored()), 'python tools/seconds.py writes it'


def test_the_costliest_tests_of_a_folder_are_slow():
    rows = [('tests/a/test_x.py', f'test_{n}', 1, n) for n in (1, 30, 20)]
    table = pd.DataFrame([*rows, ('tests/b/test_y.py', 'test_all', 9, LOOP)], columns=COLUMNS)
    assert slow_tests(table) == {('tests/a/test_x.py', 'test_30')}
