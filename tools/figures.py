"""Draws the figures of notebooks again and stores them; other outputs stay: `python tools/figures.py NOTEBOOK …`

Each notebook runs in a kernel of its own. A figure is stored without a background, at twice its size on the page, with
its title as the text for those who do not see it. Those of an experiment are drawn from its stored rows: nothing is
measured. `--all` stores every output of the cells that have one. Views of widgets, which need a kernel, what a
finished progress bar leaves, warnings, and white cards behind pictures are never stored; `--clean` removes those alone.
"""

import argparse
import copy
import os
import shutil
import tempfile
from pathlib import Path

import nbformat
from repo import ROOT, directives

FORMATTER = '''
def _store_figures():
    import io
    import matplotlib.pyplot as plt
    from IPython import get_ipython
    from IPython.core.pylabtools import print_figure
    from matplotlib.figure import Figure
    from PIL import Image

    def title(figure):
        texts = [figure.get_suptitle(), *(t for ax in figure.axes for t in titles(ax))]
        return '; '.join(dict.fromkeys(' '.join(t.split()) for t in texts if t.strip()))

    def titles(ax):
        return [ax.get_title(loc=loc) for loc in ('left', 'center', 'right')]

    def png(figure):
        data = print_figure(figure, 'png', dpi=2 * figure.dpi, bbox_inches='tight')
        if not data:
            return None
        image = Image.open(io.BytesIO(data))
        file = io.BytesIO()
        image.quantize(255, method=Image.Quantize.FASTOCTREE, dither=0).save(file, 'PNG', optimize=True)
        small = min(data, file.getvalue(), key=len)
        width, height = (n // 2 for n in image.size)
        return small, dict(width=width, height=height, alt=title(figure))

    def install(*info):
        get_ipython().display_formatter.formatters['image/png'].for_type(Figure, png)

    plt.close(plt.figure())  # the backend is loaded, and sets a formatter of its own
    install()
    get_ipython().events.register('pre_run_cell', install)

_store_figures()
'''
SKIPPED = {'eval:', 'gpu', 'net', 'slow'}
WIDGET = 'application/vnd.jupyter.widget-view+json'
CARD = 'needs_background'  # JupyterLab puts a white card behind such a picture in the dark


def runs(cell, flags) -> bool:
    "Is a cell run? One with a flag of nbdev that was not given is not."
    return cell.cell_type == 'code' and not (set(directives(cell.source)) & SKIPPED) - set(flags)


def visible(outputs) -> list:
    "Outputs that show something in a saved notebook: no warnings, no views of widgets."
    printed = [o for o in outputs if o.get('name') != 'stderr']
    return [o for o in printed if 'data' not in o or (o['data'] and WIDGET not in o['data'])]


def clean_outputs(outputs) -> list:
    "Outputs without views of widgets, white cards and counts of runs; those that stay are changed in place."
    stay = visible(outputs)
    for output in stay:
        output.pop('execution_count', None)
        output.get('metadata', {}).pop(CARD, None)
        if output['output_type'] == 'execute_result':
            output['execution_count'] = None
    return stay


def pictures(outputs) -> list:
    return [o for o in outputs if 'image/png' in o.get('data', {})]


def to_run(path, scale, flags, out):
    "A notebook's cells that are run, and the environment; of an experiment those that draw from its rows."
    nb = nbformat.read(path, 4)
    env = os.environ | dict(OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1')
    if path.is_relative_to(ROOT / 'experiments'):
        from decodelab.lab.notebook_runner import without_measuring
        from decodelab.lab.runner import environment, stored_rows

        nb = without_measuring(nb)
        (out / 'results').mkdir()
        for file in stored_rows(path.stem, scale, path.parent / 'results'):
            shutil.copy(file, out / 'results')
        env |= environment(out, scale, quick=False, fetch=False)
    nb.cells = [c for c in nb.cells if runs(c, flags)]
    return nb, env


def execute(path, scale, flags=(), timeout=1800):
    "The cells of a notebook by their ids, after a run of its own kernel."
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        nb, env = to_run(path, scale, flags, Path(folder))
        nb.cells.insert(0, nbformat.v4.new_code_cell(FORMATTER))
        nb.metadata.pop('widgets', None)
        home = dict(metadata=dict(path=str(path.parent)))
        client = NotebookClient(nb, timeout=timeout, kernel_name='python3', resources=home)
        client.execute(env=env | dict(MPLBACKEND='module://matplotlib_inline.backend_inline'))
    return {c.id: c for c in nb.cells}


def store(path, fresh, every=False) -> int:
    "Store the pictures (or every output) of fresh cells in a notebook; how many cells changed."
    nb = nbformat.read(path, 4)
    nb.metadata.pop('widgets', None)
    changed = 0
    for cell in nb.cells:
        if cell.cell_type != 'code' or not cell.outputs:
            continue
        before = copy.deepcopy(cell.outputs)
        new = visible(fresh[cell.id].outputs) if cell.id in fresh else None
        if new is not None and every:
            cell.outputs = new
        elif new is not None and pictures(cell.outputs):
            replace_pictures(cell, new)
        cell.outputs = clean_outputs(cell.outputs)
        changed += before != cell.outputs
    nbformat.write(nb, path)
    return changed


def replace_pictures(cell, fresh):
    "The new pictures in place of the old ones, in their order; raises `ValueError` if their number differs."
    old, new = pictures(cell.outputs), pictures(fresh)
    if len(old) != len(new):
        raise ValueError(
            f'cell {cell.id} stores {len(old)} pictures and draws {len(new)}: use --all'
        )
    for a, b in zip(old, new):
        a.data['image/png'] = b.data['image/png']
        a.data['text/plain'] = b.data['text/plain']
        a.metadata = b.metadata


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('notebooks', nargs='+', type=Path)
    parser.add_argument(
        '--all', action='store_true', help='store every output of cells that have one'
    )
    parser.add_argument(
        '--clean', action='store_true', help='run nothing: views of widgets and white cards go'
    )
    parser.add_argument('--flags', default='', help='also run cells with these flags: gpu net slow')
    parser.add_argument('--scale', default='pico', help='of the rows of an experiment')
    options = parser.parse_args()
    flags = options.flags.split()
    for path in options.notebooks:
        fresh = {} if options.clean else execute(path.resolve(), options.scale, flags)
        print(f'{path}: {store(path, fresh, options.all)} cells changed', flush=True)
