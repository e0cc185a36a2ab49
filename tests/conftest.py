"Fixtures that several files of tests share."

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import preloaded
import pytest
from repo import ROOT, tracked
from seconds import slow_tests, stored

NO_LIBRARY = Path(tempfile.gettempdir()) / f'no-library-{os.getpid()}'  # the cache of tests: empty
# what a wheel is built from
PACKAGED = {
    'decodelab',
    'experiments',
    'pyproject.toml',
    'setup.py',
    'tools',
    'README.md',
    'LICENSE',
}


def pytest_configure():
    """Models are read as on a machine without the library, which may be in the cache of this user.

    One thread, as in `tests/run.sh`: more threads add numbers in another order.
    """
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    os.environ['DECODELAB_CACHE'] = str(NO_LIBRARY)


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


@pytest.fixture(autouse=True)
def no_library():
    "A test that compiles the library does so into a folder of its own, or later tests would be read by it."
    yield
    assert not NO_LIBRARY.exists(), 'set DECODELAB_CACHE for this test'


@pytest.fixture
def one_thread():
    "As for stored results, and in processes that are started: more threads add numbers in another order."
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def common_folder(tmp_path_factory, name: str) -> Path:
    "A folder that all workers of this run share."
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope='session')
def shelf(tmp_path_factory):
    "One folder of stand-ins for all workers."
    folder = common_folder(tmp_path_factory, 'paper')
    for part in ('hub', 'data'):
        (folder / part).mkdir(exist_ok=True)
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
    "A wheel built once, without network, from what git tracks (all of the tree outside a checkout)."
    from decodelab.core.files import WriterLock

    out = common_folder(tmp_path_factory, 'wheel')
    lock = WriterLock(out / '.lock').acquire('builds the wheel', wait=240)
    try:
        if not list(out.glob('*.whl')):
            build_wheel(tmp_path_factory.mktemp('source'), out)
    finally:
        lock.release()
    return zipfile.ZipFile(next(out.glob('*.whl')))


def build_wheel(source: Path, out: Path):
    "Copy what belongs to the package, and build it there."
    names = tracked() or [
        p.relative_to(ROOT)
        for p in ROOT.rglob('*')
        if p.is_file() and '.' not in p.parts[len(ROOT.parts)][0]
    ]
    for name in names:
        if name.parts[0] in PACKAGED:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    options = '--quiet --no-build-isolation --no-deps --no-index --disable-pip-version-check'
    command = [sys.executable, '-m', 'pip', 'wheel', *options.split(), '-w', str(out), str(source)]
    subprocess.run(command, check=True)
