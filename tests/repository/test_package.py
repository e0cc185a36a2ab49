"The installed package: its names, imports, files and versions."

import ast
import importlib
import re
import subprocess
import sys
from configparser import ConfigParser

import pytest
import stubs
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repo import ROOT, exported_names, module_name, module_path, notebooks, project, tracked

import decodelab

MODULES = [module_name(p) for p in notebooks()]
# These need the packages of [lab]; the first is imported when an explorer is shown
FORMS = ['explorers.panel', 'explorers.replay']
# What a user is promised to find at the top, as far as it exists.
PROMISED = '''load LM Session decode decode_batch generate Trace Step Stop Request
    Greedy Sample BeamSearch DiverseBeamSearch ConstrainedBeamSearch ContrastiveSearch DoLa ContrastiveDecoding Speculative
    AssistantDrafter PromptLookupDrafter SuffixDrafter EarlyExitDrafter UniversalDrafter TreeDrafter
    LookaheadDecodingDrafter MedusaDrafter EagleDrafter SyntheticDrafter
    ExactMatchVerifier TokenVerifier BlockVerifier MultiDraftVerifier TypicalAcceptanceVerifier LenientVerifier
    FixedLookahead HeuristicLookahead ConfidenceLookahead RocLookahead EntropyLookahead CumulativeLookahead
    ClassifierLookahead CostAwareLookahead OracleLookahead Temperature TopK TopP MinP RepetitionPenalty
    GreenList Gumbel SynthID Unigram detect bench summary certify tune_lookahead DraftTable'''.split()


def python(code, *args):
    "What a fresh interpreter prints, without the variables of a test run."
    run = subprocess.run(
        [sys.executable, '-c', code, *args], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


# Names

TOOLS = sorted((ROOT / 'tools').glob('*.py'))
PARTS = [p.parent.name for p in sorted((ROOT / 'decodelab').glob('*/__init__.pyi'))]


def offered(folder):
    "Name -> module of what a stub offers, its parts aside."
    tree = ast.parse((folder / '__init__.pyi').read_text())
    return {
        a.name: n.module
        for n in tree.body
        if isinstance(n, ast.ImportFrom) and n.module
        for a in n.names
    }


def test_the_root_is_small_and_promised_names_are_there():
    names = offered(ROOT / 'decodelab')
    assert set(PROMISED) <= set(names)
    assert len(names) <= 100
    assert set(dir(decodelab)) >= {*names, *PARTS}
    assert len(PARTS) == 16
    with pytest.raises(AttributeError, match='nothing_of_the_kind'):
        decodelab.nothing_of_the_kind


def test_the_root_has_at_most_a_hundred_names():
    parts = {'core', 'models', 'logits', 'strategies', 'zoo', 'evaluate', 'speculative', 'drafters'}
    parts |= {'tuning', 'watermark', 'detection', 'hf', 'engines', 'explorers', 'lab', 'cli'}
    assert len(set(decodelab.__all__) - parts - {'__version__'}) <= 100


@pytest.mark.parametrize('part', ['', *PARTS])
def test_stubs_name_the_module_of_each_name_and_every_name_resolves(part):
    package = importlib.import_module(f'decodelab.{part}'.strip('.'))
    names = offered(ROOT / 'decodelab' / part)
    assert names
    assert {n for n in dir(package) if not n.startswith('_')} >= set(names)
    for name, module in names.items():
        home = f'{part}.{module}'.strip('.')
        assert home in MODULES, f'{home} does not export {name}'
        assert name in exported_names(module_path(home)), f'{home} does not export {name}'
        assert getattr(package, name) is getattr(
            importlib.import_module(f'decodelab.{home}'), name
        ), name


@pytest.mark.parametrize('module', MODULES)
def test_names_without_a_stub_are_helpers(module):
    "What stands in `__all__` is public: the root's stub or the part's lists it."
    part = module.split('.')[0]
    root = {n for n, home in offered(ROOT / 'decodelab').items() if home == module}
    own = {
        n for n, home in offered(ROOT / 'decodelab' / part).items() if f'{part}.{home}' == module
    }
    assert set(exported_names(module_path(module))) == root | own, (
        'helpers stand in #| exporti cells'
    )


def test_a_part_offers_no_name_that_a_module_of_it_has():
    "`decodelab.hf.generate` is the module; the function of that name is at the root."
    assert {
        (p, n)
        for p in PARTS
        for n in offered(ROOT / 'decodelab' / p)
        if (ROOT / 'decodelab' / p / f'{n}.py').exists()
    } == set()


def test_the_root_offers_functions_whatever_was_imported_before():
    both = [n for n, home in offered(ROOT / 'decodelab').items() if home.split('.')[-1] == n]
    assert both
    code = '''if 1:
        import importlib, sys
        import decodelab
        for name, home in zip(sys.argv[1::2], sys.argv[2::2]):
            module = importlib.import_module('decodelab.' + home)
            assert getattr(decodelab, name) is getattr(module, name), name
    '''
    python(code, *(x for n in both for x in (n, offered(ROOT / 'decodelab')[n])))


# Imports


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys; before = set(sys.modules); import decodelab; print(*{m.split('.')[0] for m "
        "in set(sys.modules) - before})"
    )
    heavy = {
        'torch',
        'transformers',
        'numpy',
        'pandas',
        'matplotlib',
        'sklearn',
        'scipy',
        'accelerate',
        'tokenizers',
        'safetensors',
    }
    assert heavy & set(python(code).split()) == set()


def test_everything_imports_without_the_tools_of_development():
    code = '''if 1:
        import importlib, sys
        class Without:
            "A finder for which some packages are not installed."
            def __init__(self, finder): self.finder = finder
            def __getattr__(self, name): return getattr(self.finder, name)
            def find_spec(self, name, *args):
                return None if name.split('.')[0] in ('nbdev', 'execnb', 'IPython', 'ipykernel', 'nbclient', 'nbconvert', 'nbformat', 'nh3', 'pytest', 'ipywidgets', 'anywidget') else self.finder.find_spec(name, *args)
        sys.meta_path[:] = [Without(f) for f in sys.meta_path]
        try: import IPython
        except ModuleNotFoundError: pass
        else: raise SystemExit('IPython is still there')
        for name in sys.argv[1:]: importlib.import_module('decodelab.' + name)
        import decodelab
        for name in decodelab.__all__: getattr(decodelab, name)
        print('done')
    '''
    modules = [name for name in MODULES if name not in FORMS]
    assert python(code, *modules).split()[-1] == 'done'


# Files


def read(wheel, ending):
    return wheel.read(next(n for n in wheel.namelist() if n.endswith(ending))).decode()


def test_the_wheel_holds_modules_weights_and_data(wheel):
    held = {n for n in wheel.namelist() if n.startswith('decodelab/')}
    names = tracked()
    expected = (
        {p.as_posix() for p in names if p.parts[0] == 'decodelab'}
        if names
        else {module_path(m).relative_to(ROOT).as_posix() for m in MODULES}
    )
    shipped = {n for n in held if n.startswith('decodelab/experiments/')}
    made = {p.with_suffix('.pyi') for p in stubs.patched_modules(ROOT / 'decodelab')}
    assert held - shipped == expected | {p.relative_to(ROOT).as_posix() for p in made}
    assert {
        'decodelab/experiments/00_tour.ipynb',
        'decodelab/experiments/results/00_tour.pico.csv',
        'decodelab/experiments/board/h100_19_gpu_costs.json',
    } <= shipped
    assert {n.rpartition('.')[2] for n in shipped} <= {'ipynb', 'py', 'csv', 'json'}
    assert not any('/quick/' in n or '/runs/' in n for n in shipped)
    assert sum(i.compress_size for i in wheel.infolist()) < 40e6
    assert any(n.endswith('licenses/LICENSE') for n in wheel.namelist())


def test_the_wheel_has_parameters_in_its_docstrings(wheel):
    assert 'max_new_tokens : int, default 64\n        the budget' in read(wheel, 'core/driver.py')
    assert not [n for n in wheel.namelist() if 'parameter_docs' in n or 'glossary' in n]


def test_the_source_archive_has_what_builds_the_wheel():
    "What setup.py imports is in tools/, which is no package."
    listed = (ROOT / 'MANIFEST.in').read_text().split()
    tree = ast.parse((ROOT / 'setup.py').read_text())
    imports = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    names = {getattr(n, 'module', None) or n.names[0].name for n in imports}
    needed = {f'tools/{name}.py' for name in names} & {f'tools/{p.name}' for p in TOOLS}
    assert needed >= {'tools/parameter_docs.py', 'tools/stubs.py'}
    assert needed <= set(listed)


def test_the_wheel_states_its_requirements_and_commands(wheel):
    metadata, entry = read(wheel, '/METADATA'), read(wheel, '/entry_points.txt')
    needs = [
        Requirement(l.partition(': ')[2])
        for l in metadata.splitlines()
        if l.startswith('Requires-Dist')
    ]
    assert not {r.name for r in needs if not r.marker} & {
        'nbdev',
        'execnb',
        'ghapi',
        'ipython',
        'jupyterlab',
        'pytest',
    }
    assert f'Version: {decodelab.__version__}' in metadata
    assert 'License-Expression: Apache-2.0' in metadata
    assert 'decodelab = decodelab.cli.main:main' in entry
    assert 'decodelab = decodelab._modidx:d' in entry


def test_the_weights_are_small():
    weights = {p.parent.name: p.stat().st_size for p in (ROOT / 'decodelab').rglob('*.safetensors')}
    encoders = {n: size for n, size in weights.items() if 'seq2seq' in n or 'whisper' in n}
    assert sum(encoders.values()) < 12e6
    assert sum(weights.values()) - sum(encoders.values()) < 28e6
    assert len(encoders) == 4


# Versions


def pins():
    "Canonical name -> the exact version of constraints.txt."
    rows = [l.split('#')[0].strip() for l in (ROOT / 'constraints.txt').read_text().splitlines()]
    pairs = [r.split('==') for r in rows if r]
    return {canonicalize_name(name): version for name, version in pairs}


def requirements():
    meta = project()['project']
    every = meta['dependencies'] + sum(meta['optional-dependencies'].values(), [])
    return [r for r in map(Requirement, every) if r.name != meta['name']]


def test_every_requirement_has_a_pin_that_meets_it():
    assert [str(r) for r in requirements() if canonicalize_name(r.name) not in pins()] == []
    assert [
        str(r)
        for r in requirements()
        if not r.specifier.contains(pins()[canonicalize_name(r.name)])
    ] == []


def test_conda_gets_the_same():
    spec = yaml.safe_load((ROOT / 'environment.yml').read_text())
    pip = next(d['pip'] for d in spec['dependencies'] if isinstance(d, dict))
    conda = [d for d in spec['dependencies'] if isinstance(d, str)]
    assert pip == [
        '-c constraints.txt',
        '-e .[dev]',
    ]  # all versions come from the two files that pip reads
    assert {re.split('[=<>]', d)[0] for d in conda} == {'python', 'pip', 'quarto'}
    version = next(d.split('=')[1] for d in conda if d.startswith('python='))
    assert Requirement(f'python{project()["project"]["requires-python"]}').specifier.contains(
        version
    )


def test_nbdev_and_the_package_agree():
    settings = ConfigParser()
    settings.read(ROOT / 'settings.ini')
    settings, meta = settings['DEFAULT'], project()['project']
    assert settings['version'] == decodelab.__version__
    assert f'## {decodelab.__version__}' in (ROOT / 'CHANGELOG.md').read_text()
    assert meta['requires-python'] == f'>={settings["min_python"]}'
    assert meta['description'] == settings['description']
    assert meta['name'] == settings['lib_name']
    assert settings['update_pyproject'] == 'False'
    assert settings['tst_flags'].split() == ['gpu', 'slow', 'net']


# Places


def test_no_file_names_a_folder_of_its_author():
    names = tracked()
    if names is None:
        pytest.skip('not a git checkout')
    texts = {n: (ROOT / n).read_bytes() for n in names if n.suffix != '.safetensors'}
    homes = re.compile(rb'(?<![\w.-])/(?:root|work|home/\w+|Users/\w+)/|file:/' + b'//')
    assert {str(n): m.group() for n, t in texts.items() if (m := homes.search(t))} == {}
