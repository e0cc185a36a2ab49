"The file name is the address: an exported cell imports only from notebooks that come before, and never what only developers have."
import ast
from collections import Counter

import pytest

import decodelab
from repo import ROOT, cells, directives, is_exported, module_name, notebooks, project

ORDER = [module_name(p) for p in notebooks()] # chapters of one number follow each other by name
LATE = { # (module, function, what it imports): all that looks forward
    ('core', 'Trace.metrics', 'metrics'), ('core', 'Trace._repr_html_', 'plot'),
    ('zoo', 'main', 'cli'), # python -m decodelab.zoo is the command's zoo
    ('speculative', 'default_verifier', 'verifiers'), # a sampling base is verified by rejection
    ('speculative', 'default_verifier', 'verifiers_tree'), # … also along trees
    ('heads', 'load_heads', 'eagle'), ('heads', 'load_heads', 'medusa'), # the kinds whose names a file may bear
    ('generate', 'by_recipe', 'recipe_load'), # custom_generate='user/repository'
    ('arguments_whisper', 'by_loop', 'recipe'), # a strategy behind transformers' own loop over pieces of sound
}
every = pytest.mark.parametrize('path', notebooks(), ids=lambda p: p.stem)


def imports(tree, where=''):
    "Yield (qualified name of the function around it, module, names) for each import, wherever it stands."
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import): yield from ((where, alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = '.'.join(filter(None, ['decodelab' if node.level else '', node.module or '']))
            yield where, module, tuple(a.name for a in node.names)
        name = getattr(node, 'name', '') if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else ''
        yield from imports(node, f'{where}.{name}'.strip('.') if name else where)


def exported_imports(path):
    for source in filter(is_exported, cells(path)): yield from imports(ast.parse(source))


def problems(path):
    "What the exported cells of a notebook import and may not."
    own = module_name(path)
    before = ORDER[:ORDER.index(own)]
    for where, module, names in exported_imports(path):
        top, _, target = module.partition('.')
        if top in ('nbdev', 'fastcore', 'IPython', 'execnb'): yield f'{where or "top"} imports {module}'
        if top != 'decodelab': continue
        for target in [target] if target else [decodelab._public.get(name, name) for name in names if name != '__version__']:
            late = target not in before and (own, where, target) not in LATE
            if late: yield f'{where or "top"} imports {target}, which ' + ('comes later' if target in ORDER else 'no notebook makes')


@every
def test_exported_cells_import_only_what_comes_before(path):
    assert list(problems(path)) == []


@every
def test_a_notebook_does_not_import_its_own_module(path):
    own = module_name(path)
    found = [source for source in cells(path) for _, module, names in imports(python(source))
             if module == f'decodelab.{own}' or module == 'decodelab' and own in {decodelab._public.get(n, n) for n in names}]
    assert found == []


def python(source):
    "A cell as a tree; magics and cells in other languages count as empty."
    source = '\n'.join(l for l in source.splitlines() if not l.startswith(('%', '!')))
    try: return ast.parse(source)
    except SyntaxError: return ast.Module([], [])


def test_the_check_sees_what_it_should(tmp_path):
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook
    bad = ['from decodelab.plot import x', 'def f():\n    import decodelab.metrics', 'import fastcore.basics', 'from decodelab import PromptLookup',
           'class Trace:\n    def metrics(self):\n        from decodelab.metrics import metrics', 'from .plot import x']
    nb = new_notebook(cells=[new_code_cell('#| export\n' + source) for source in bad + ['import json\nfrom decodelab import __version__']])
    nbformat.write(nb, tmp_path/'01_models.ipynb')
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), 'ORDER', ['core', 'models', 'metrics', 'plot'])
        assert len(list(problems(tmp_path/'01_models.ipynb'))) == len(bad)
        nbformat.write(nb, tmp_path/'00_core.ipynb')
        assert len(list(problems(tmp_path/'00_core.ipynb'))) == len(bad) - 1 # the one method that may look forward


def test_no_two_notebooks_make_one_module():
    assert [n for n, k in Counter(module_name(p) for p in notebooks()).items() if k > 1] == []


@every
def test_the_first_cell_names_the_module(path):
    exports = [s.split()[2] for source in cells(path) for s in source.splitlines() if s.startswith('#| default_exp')]
    assert exports == [module_name(path)] and cells(path)[0].startswith('#| default_exp')
    assert not [d for source in cells(path) for d in directives(source) if d == 'exports']
    targets = [l for source in cells(path) for l in source.splitlines() if l.startswith('#| export') and len(l.split()) > 2]
    assert targets == [] # a cell exported into another notebook's module


def test_what_is_imported_is_declared():
    import re, sys
    normal = dict(sklearn='scikit-learn', yaml='pyyaml', PIL='pillow')
    declared = {re.split(r'[<>=!~\[ ;]', d)[0].lower() for d in [*project()['project']['dependencies'], *(d for extra in ('quantized', 'experiments', 'lab') for d in project()['project']['optional-dependencies'][extra])]}
    used = {module.split('.')[0] for p in notebooks() for _, module, _ in exported_imports(p)} - set(sys.stdlib_module_names) - {'decodelab'}
    assert {normal.get(u, u) for u in used} <= declared


def test_the_modules_are_the_notebooks():
    assert {p.stem for p in (ROOT/'decodelab').glob('*.py')} - {'__init__', '_modidx'} == set(ORDER)
