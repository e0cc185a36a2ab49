"Fixtures that several files of tests share."

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

import preloaded
import pytest
from repo import ROOT, tracked
from seconds import slow_tests, stored


def pytest_configure():
    """Models are read as on a machine without the library, which may be in the cache of this user.

    One thread, as in `tests/run.sh`: more threads add numbers in another order.
    """
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    os.environ['DECODELAB_CACHE'] = f'{tempfile.gettempdir()}/no-library-{os.getpid()}'


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    "Mark the tests that `tests/seconds.csv` shows to be slow."
    slow = slow_tests(stored())
    for item in items:
        if (str(item.path.relative_to(ROOT)), item.originalname) in slow:
            item.add_marker('slow')


def pytest_collection_finish(session):
    preloaded.search_less()
    if any(vars(item.module).get('preloaded') is preloaded for item in session.items):
        preloaded.start_server()


@pytest.fixture
def one_thread():
    "As for stored results, and in processes that are started: more threads add numbers in another order."
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='session')
def shelf(tmp_path_factory):
    "One folder of stand-ins for all workers."
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base) / 'paper'
    for part in ('hub', 'data'):
        (folder / part).mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope='session')
def runner(shelf):
    "Runs notebooks with nothing of this environment's settings, offline, beside the stand-ins."
    foreign = ('DECODELAB_', 'HF_', 'HUGGINGFACE_', 'TRANSFORMERS_')
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    env |= dict(
        HF_HOME=str(shelf),
        HF_HUB_OFFLINE='1',
        CUDA_VISIBLE_DEVICES='',
        OMP_NUM_THREADS='1',
        DECODELAB_CACHE=os.environ['DECODELAB_CACHE'],
    )
    runner = preloaded.Runner(env)
    yield runner
    runner.close()


@pytest.fixture(scope='session')
def wheel(tmp_path_factory):
    "A wheel built, without network, from what git tracks (all of the tree outside a checkout)."
    source, out = tmp_path_factory.mktemp('source'), tmp_path_factory.mktemp('wheel')
    names = tracked() or [
        p.relative_to(ROOT)
        for p in ROOT.rglob('*')
        if p.is_file() and '.' not in p.parts[len(ROOT.parts)][0]
    ]
    for name in names:
        if name.parts[0] in (
            'decodelab',
            'experiments',
            'pyproject.toml',
            'setup.py',
            'tools',
            'README.md',
            'LICENSE',
        ):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    args = 'wheel --quiet --no-build-isolation --no-deps --no-index --disable-pip-version-check -w'.split()
    subprocess.run([sys.executable, '-m', 'pip', *args, str(out), str(source)], check=True)
    return zipfile.ZipFile(next(out.glob('*.whl')))
