"`help()` shows the comments beside parameters, for every public name."

import importlib
import inspect
import pydoc
import subprocess
import sys

import pytest

import decodelab
from decodelab.core.parameter_docs import parameters
from tests.repository.test_package import PARTS, offered
from repo import ROOT


def public():
    "`(package, name)` of every name that the root and the parts offer."
    for part in ['', *PARTS]:
        for name in offered(ROOT / 'decodelab' / part):
            yield f'decodelab.{part}'.strip('.'), name


def documented():
    "Full name -> object, of the functions and classes among them, each once."
    table = {}
    for package, name in public():
        item = getattr(importlib.import_module(package), name)
        if inspect.isclass(item) or inspect.isroutine(item):
            table.setdefault(id(item), (f'{package}.{name}', item))
    return dict(table.values())


def test_every_public_name_shows_its_parameters():
    items = documented()
    missing = [
        f'{name}: {row.name}'
        for name, item in items.items()
        for row in parameters(item)
        if str(row) not in inspect.getdoc(item)
    ]
    assert missing == []
    assert len(items) > 250
    assert sum(len(parameters(item)) for item in items.values()) > 600


def test_methods_show_theirs():
    "The methods that public classes define, where they have a docstring and parameters."
    missing, n = [], 0
    for name, item in documented().items():
        if not inspect.isclass(item) or not item.__module__.startswith('decodelab.'):
            continue
        for method in vars(item).values():
            if inspect.isfunction(method) and method.__doc__ and method.__name__[0] != '_':
                rows = parameters(method)
                n += len(rows)
                missing += [
                    f'{name}.{method.__name__}: {r.name}'
                    for r in rows
                    if str(r) not in method.__doc__
                ]
    assert missing == []
    assert n > 100


@pytest.mark.parametrize(
    'name', ['decode', 'Speculative', 'GreenList', 'load', 'generate', 'detect']
)
def test_help_prints_the_comments(name):
    item = getattr(decodelab, name)
    page = pydoc.plain(pydoc.render_doc(item))
    rows = parameters(item)
    assert rows
    assert any(row.comment for row in rows)
    for row in rows:
        assert row.name in page
        assert row.comment in page


def test_most_parameters_have_a_comment():
    "A parameter needs one unless its name and its annotation say everything."
    rows = [row for item in documented().values() for row in parameters(item)]
    assert sum(bool(row.comment) for row in rows) > len(rows) / 2


def test_importing_documents_nothing():
    "The comments are read when a name is taken, not when the package is imported."
    code = (
        'import sys, decodelab; from decodelab.core import parameter_docs;'
        'assert not parameter_docs._DONE and "inspect" not in sys.modules and "fastcore" not in sys.modules;'
        'decodelab.decode; assert len(parameter_docs._DONE) == 1'
    )
    subprocess.run([sys.executable, '-S', '-c', path_code() + code], cwd=ROOT, check=True)


def path_code():
    "`sys.path` of this process for a bare interpreter, in which `site` has imported nothing."
    return f'import sys; sys.path[:] = {[str(ROOT), *sys.path]!r};'
