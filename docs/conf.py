"Sphinx's settings. `python docs/build.py` writes the sources and calls it."

import inspect
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'docs'), str(ROOT / 'tools')]

import inventories
import pages
import reference
from parameter_docs import Package, written

import decodelab

SOURCES = Package(ROOT / 'decodelab')

project = 'decodelab'
author = 'The decodelab authors'
copyright = '2026, The decodelab authors'
version = release = decodelab.__version__

extensions = [
    'myst_nb',
    'sphinx.ext.autodoc',
    'sphinx.ext.intersphinx',
    'sphinx.ext.linkcode',
    'accessible',
    'mathml',
    'navigation',
    'search_index',
    'social',
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

# Names of other projects: small inventories in docs/inventories, so that a build needs no network
intersphinx_mapping = inventories.mapping(Path(__file__).parent / '_build' / 'inventories')

# For other programs: search engines, previews of links
html_baseurl = os.environ.get('DECODELAB_SITE', 'https://decodelab.github.io/decodelab/')
html_favicon = '_static/favicon.svg'
social_description = (
    'Decoding strategies for language models that you can read, certify and measure.'
)
social_image_alt = 'decodelab: 48 tokens in 12 passes of the target model, coloured by their origin'

# How it looks
html_math_renderer = 'mathml'
html_theme = 'furo'
html_title = 'decodelab'
html_static_path = ['_static']
templates_path = ['_templates']
html_css_files = ['site.css']
html_js_files = ['search.js', 'site.js']
html_copy_source = False
html_show_sphinx = False
pygments_style = 'default'  # no colour below 4.5 : 1 on its ground
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


LINKED = {
    e.name: e.full for part in pages.Site().parts for e in reference.entries(part) if e.is_class
}
LINKED |= inventories.names()


def linked_types(annotation):
    "An annotation in which the names of classes are links to their pages."

    def replace(match):
        full = LINKED.get(match.group())
        return f':py:obj:`{match.group()} <{full}>`' if full else plain_markup(match.group())

    pieces = re.split(r'([A-Za-z_][\w.]*)', annotation)
    # a backslash and a space end a role without a space between
    return ''.join(
        (f'\\ {replace(re.match(r".*", p))}\\ ' if i % 2 and p in LINKED else plain_markup(p))
        for i, p in enumerate(pieces)
    ).strip('\\ ')


def parameter_table(module, node):
    "The rows of `help()` as a table."
    rows = SOURCES.parameters(module, node)
    if not rows:
        return []
    table = [['parameter', 'default', 'meaning']]
    for row in rows:
        kind = f' : {linked_types(row.annotation)}' if row.annotation else ''
        default = f'``{row.default}``' if row.default else ''
        table.append([f'``{row.name}``{kind}', default, plain_markup(row.comment)])
    columns = [column for column in zip(*table) if any(column[1:])]  # none is empty
    lines = ['.. list-table::', '   :header-rows: 1', '   :class: parameters', '']
    for cells in zip(*columns):
        lines += [f'   {"* -" if i == 0 else "  -"} {cell}' for i, cell in enumerate(cells)]
    return [*lines, '']


def returned(node):
    "The annotation of a function's result, as a line."
    kind = written(getattr(node, 'returns', None))
    return [] if kind in ('', 'None') else [f'Returns {linked_types(kind)}.', '']


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


REF = os.environ.get('DECODELAB_SITE_REF', 'main')  # a tag, for the site of a release


def linkcode_resolve(domain, info):
    "The lines of a name in the repository, for its [source]."
    item = inspect.getattr_static(
        sys.modules.get(info['module']), info['fullname'].partition('.')[0], None
    )
    item = getattr(decodelab, info['fullname'].partition('.')[0], item) if item is None else item
    for part in info['fullname'].split('.')[1:]:
        item = inspect.getattr_static(item, part, None)
    item = inspect.unwrap(getattr(item, 'fget', None) or getattr(item, '__func__', item))
    found = SOURCES.definition(getattr(item, '__module__', ''), getattr(item, '__qualname__', ''))
    if not found:
        return None
    node = found[1]
    path = item.__module__.replace('.', '/')
    return f'{pages.repository()}/blob/{REF}/{path}.py#L{node.lineno}-L{node.end_lineno}'


def setup(app):
    app.connect('autodoc-process-docstring', document)
    return dict(parallel_read_safe=True, parallel_write_safe=True)
