"""Tries a wheel in a bare environment: it generates, certifies, and opens an explorer.

    python tools/bare.py [WHEEL]        # without a wheel, one is built from this checkout

A fresh virtual environment gets the wheel and nothing else of this checkout: the commands run in an empty folder,
offline. Then it gets the extra `lab`, and a kernel of the environment runs a notebook with an explorer. Each step
prints what it saw; the first that fails ends the script with 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # needs nothing installed
PROMPT = 'def fibonacci(n):'
IMPORTS = """
import importlib, pathlib, pkgutil, sys
import decodelab
home = pathlib.Path(decodelab.__file__).resolve()
assert sys.prefix in str(home), home
names = [m.name for m in pkgutil.walk_packages(decodelab.__path__, 'decodelab.')]
needs_lab = {'decodelab.explorers.panel'}
names = [n for n in names if n not in needs_lab and not n.startswith('decodelab.experiments') and '__main__' not in n]
for name in names:
    importlib.import_module(name)
for name in decodelab.__all__:
    getattr(decodelab, name)
print(len(names), 'modules and', len(decodelab.__all__), 'names')
"""
DECODE = f"""
from decodelab import AssistantDrafter, Greedy, Speculative, decode, load
lm, draft = load('pico'), load('pico-draft')
plain = decode(lm, {PROMPT!r}, Greedy(), max_new_tokens=24)
fast = decode(lm, {PROMPT!r}, Speculative(AssistantDrafter(draft)), max_new_tokens=24)
assert fast.tokens == plain.tokens
assert fast.metrics()['target_passes'] < plain.metrics()['target_passes']
print(plain.text, end='')
"""
NOTEBOOK = """
import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
source = 'from decodelab import explore, load\\nexplore(load("pico"), load("pico-draft"), max_new_tokens=16)'
nb = new_notebook(cells=[new_code_cell(source)])
NotebookClient(nb, timeout=300, kernel_name='python3').execute()
outputs = nb.cells[0].outputs
assert not [o for o in outputs if o.output_type == 'error'], outputs
kinds = sorted({kind for o in outputs for kind in o.get('data', {})})
html = ' '.join(''.join(o.data.get('text/html', '')) for o in outputs if 'data' in o)
assert 'application/vnd.jupyter.widget-view+json' in kinds, kinds
assert 'decodelab' in html and 'tokens' in html, html[:500]
print('an explorer with', ', '.join(kinds))
"""


def build(folder):
    "A wheel of the tracked files of this checkout."
    listed = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, check=True)
    source = Path(folder) / 'source'
    for name in filter(None, listed.stdout.decode().split('\0')):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '-w', str(folder)]
    subprocess.run([*command, str(source)], check=True)
    return next(Path(folder).glob('decodelab-*.whl'))


def bare_environment():
    "Variables without those that lead back to a checkout or to the network."
    dropped = ('PYTHON', 'DECODELAB_', 'VIRTUAL_ENV', 'JUPYTER', 'IPYTHON')
    variables = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return variables | dict(HF_HUB_OFFLINE='1', OMP_NUM_THREADS='1')


class Bare:
    "A virtual environment of its own, and an empty folder to run in."

    def __init__(self, folder):
        self.home = Path(folder) / 'env'
        self.folder = Path(folder) / 'empty'
        self.folder.mkdir()
        venv.create(self.home, with_pip=True)
        self.bin = self.home / ('Scripts' if os.name == 'nt' else 'bin')

    def run(self, what, program, *arguments):
        "Run a program of the environment; what it printed. Exits if it fails."
        command = [str(self.bin / program), *arguments]
        run = subprocess.run(
            command, cwd=self.folder, env=bare_environment(), capture_output=True, text=True
        )
        if run.returncode:
            sys.exit(
                f'{what}: {" ".join(command)[:200]} ended with {run.returncode}\n{run.stderr[-3000:]}'
            )
        return run.stdout

    def install(self, requirement):
        "Install a requirement in the tested versions."
        constraints = str(ROOT / 'constraints.txt')
        self.run(
            'install', 'python', '-m', 'pip', 'install', '--quiet', '-c', constraints, requirement
        )

    def show(self, what, program, *arguments):
        "Run a program, and print the first line of its output; all of it is returned."
        output = self.run(what, program, *arguments)
        first = next((line for line in output.splitlines() if line.strip()), '')
        print(f'{what}: {first.strip()}', flush=True)
        return output


def check(wheel, lab=True):
    "Try a wheel; raises or exits where a step fails."
    with tempfile.TemporaryDirectory() as folder:
        bare = Bare(folder)
        bare.install(str(wheel))
        bare.show('version', 'decodelab', '--version')
        bare.show('imports', 'python', '-c', IMPORTS)
        text = bare.show('decodes', 'python', '-c', DECODE)
        options = ('--strategy', 'assisted', '--max-new-tokens', '24')
        generated = bare.show('generates', 'decodelab', 'generate', PROMPT, *options)
        if text.strip() not in generated:
            sys.exit(f'decodelab generate printed another text than decode:\n{generated}\n{text}')
        options = ('--strategy', 'assisted', '--samples', '200', '--no-progress')
        verdict = bare.show('certifies', 'decodelab', 'certify', *options)
        if 'lossless' not in verdict.splitlines()[0].lower():
            sys.exit(f'no certificate: {verdict}')
        if lab:
            bare.install(f'decodelab[lab] @ {Path(wheel).resolve().as_uri()}')
            bare.show('explores', 'python', '-c', NOTEBOOK)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('wheel', nargs='?', help='None: build one from this checkout')
    parser.add_argument('--without-lab', action='store_true', help='no explorer, no notebook')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel or build(folder)
        print(Path(wheel).name)
        check(wheel, not options.without_lab)


if __name__ == '__main__':
    main()
