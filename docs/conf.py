"Sphinx's settings. `python docs/build.py` writes the sources and calls it."

import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'docs'), str(ROOT / 'tools')]

import decodelab
from parameter_docs import Package, written

SOURCES = Package(ROOT / 'decodelab')

project = 'decodelab'
author = 'The decodelab authors'
copyright = '2026, The decodelab authors'
version = release = decodelab.__version__

extensions = [
    'myst_nb',
    'sphinx.ext.autodoc',
    'mathml',
    'sphinx_design',
    'sphinx_copybutton',
]
source_suffix = {'.md': 'myst-nb', '.ipynb': 'myst-nb'}
root_doc = 'index'

# Pages and notebooks: shown as they were saved
nb_execution_mode = 'off'
nb_merge_streams = True
nb_mime_priority_overrides = [('html', 'text/html', 1), ('html', 'text/markdown', 5)]
myst_enable_extensions = [
    'amsmath',
    'attrs_block',
    'colon_fence',
    'deflist',
    'dollarmath',
]
myst_heading_anchors = 4
myst_dmath_double_inline = True

# API: names are documented as a user types them
add_module_names = False
autodoc_typehints = 'none'
autodoc_member_order = 'bysource'
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = 'hide'

# How it looks
html_math_renderer = 'mathml'
html_theme = 'furo'
html_title = 'decodelab'
html_static_path = ['_static']
html_css_files = ['site.css']
html_copy_source = False
html_show_sphinx = False
pygments_style = 'friendly'
pygments_dark_style = 'github-dark'
copybutton_exclude = '.linenos, .gp, .go'
html_theme_options = dict(
    source_repository='https://github.com/decodelab/decodelab/',
    top_of_page_buttons=[],
    footer_icons=[],
)


def plain_markup(text):
    "A docstring of the package as reStructuredText: code in backticks, formulas, nothing else is markup."
    pieces = re.split(r'(`[^`]+`|\$[^$\n]+\$)', text)
    for i, piece in enumerate(pieces):
        if piece.startswith('`') and len(piece) > 1:
            pieces[i] = f'``{piece[1:-1].strip()}``'
        elif piece.startswith('$') and len(piece) > 1:
            pieces[i] = f':math:`{piece[1:-1]}`'
        else:
            pieces[i] = re.sub(r'([*|_\\])', r'\\\1', piece)
    return ''.join(pieces)


def parameter_table(module, node):
    "The rows of `help()` as a table."
    rows = SOURCES.parameters(module, node)
    if not rows:
        return []
    lines = ['.. list-table::', '   :header-rows: 1', '   :class: parameters', '']
    lines += ['   * - parameter', '     - default', '     - meaning']
    for row in rows:
        kind = f' : {plain_markup(row.annotation)}' if row.annotation else ''
        default = f'``{row.default}``' if row.default else ''
        lines += [f'   * - ``{row.name}``{kind}', f'     - {default}']
        lines += [f'     - {plain_markup(row.comment)}']
    return [*lines, '']


def returned(node):
    "The annotation of a function's result, as a line."
    kind = written(getattr(node, 'returns', None))
    return [] if kind in ('', 'None') else [f'Returns ``{kind}``.', '']


def document(app, what, name, item, options, lines):
    "The docstring of a function or class with its parameters as a table."
    if what == 'data':  # its docstring is that of its type
        lines.clear()
    text = '\n'.join(lines).rstrip()
    lines[:] = [*plain_markup(text).splitlines(), '']
    if what in ('class', 'exception', 'function', 'method'):
        item = inspect.unwrap(getattr(item, '__func__', item))
        source = SOURCES.definition(item.__module__, item.__qualname__)
        lines += [*parameter_table(*source), *returned(source[1])] if source else []


def setup(app):
    app.connect('autodoc-process-docstring', document)
    return dict(parallel_read_safe=True, parallel_write_safe=True)
