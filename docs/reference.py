"""The pages of the API reference: one for each class, one for each part with its functions.

A class has its signature and parameters, an example that runs, the pages that use it, and its relatives.
It is all made from the package, the notebooks and docs/examples/."""

import ast
import functools
import os
import re
from dataclasses import dataclass

import examples
import nbformat
import pages
from pages import ROOT

FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
MOST_USES = 12  # pages listed below "Used in"; the rest is counted


@dataclass(frozen=True)
class Entry:
    "A public name: where it is defined, and how a user imports it."

    name: str
    module: str  # `strategies.sampling`
    full: str  # `decodelab.Greedy`

    @property
    def part(self):
        return self.module.partition('.')[0]

    @property
    def page(self):
        "The page of a class; its path in the sources of the site."
        return f'api/{self.part}/{self.name}.md'

    @functools.cached_property
    def node(self):
        "The statement that defines it; None for a value."
        return pages.definition(self.module, self.name)

    @property
    def is_class(self):
        return isinstance(self.node, ast.ClassDef)

    @property
    def summary(self):
        "The first paragraph of the docstring."
        text = ast.get_docstring(self.node) if self.node else ''
        return ' '.join((text or '').split('\n\n')[0].split())


@functools.cache
def entries(part):
    "The public names of a part, in the order of its notebooks."
    return [
        Entry(name, module, full)
        for module, names in pages.api_names(part).items()
        for name, full in names
    ]


def classes(part):
    return [e for e in entries(part) if e.is_class]


def others(part):
    "Functions and values of a part."
    return [e for e in entries(part) if not e.is_class]


# Used in


def names_read(source):
    "The names that Python source reads; none for source that does not parse (magics)."
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)
    }


@functools.cache
def names_of_notebook(path):
    "The names that the visible demonstrations of a notebook read."
    names = set()
    for cell in nbformat.read(path, 4).cells:
        kinds = pages.directives(cell.source)
        exported = any(kind.startswith('export') for kind in kinds)
        if cell.cell_type == 'code' and not exported and not kinds & {'hide', 'default_exp'}:
            lines = [
                line for line in cell.source.splitlines() if not line.startswith(('#|', '%', '!'))
            ]
            names |= names_read('\n'.join(lines))
    return names


@functools.cache
def names_of_page(path):
    "Heading -> names that the Python blocks below it read, of a Markdown page."
    names, heading = {}, ''
    text = path.read_text(encoding='utf-8')
    for match in re.finditer(r'^#+ (.+)$|^```python\n(.*?)^```', text, flags=re.M | re.S):
        if match.group(1):
            heading = match.group(1).strip()
        else:
            names.setdefault(heading, set()).update(names_read(match.group(2)))
    return names


def uses_in_pages(site, name):
    "`(title, page, anchor)` of the tutorials and how-tos that use a name."
    docs = ROOT / 'docs'
    for path in sorted((docs / 'tutorials').glob('*.md')):
        if any(name in names for names in names_of_page(path).values()):
            title = path.read_text(encoding='utf-8').partition('\n')[0].removeprefix('# ')
            yield f'Tutorial: {title}', site.pages[path], ''
    howto = docs / 'howto.md'
    for heading, names in names_of_page(howto).items():
        if name in names and heading != 'How do I …?':
            yield f'How do I …? {heading}', site.pages[howto], f'#{pages.slug(heading)}'


def uses_in_notebooks(site, name, home):
    "`(title, page, anchor)` of the experiments and notebooks that use a name, its own aside."
    for path in [*site.experiments, *site.notebooks]:
        if path != home and name in names_of_notebook(path):
            title, _ = pages.page_title(path)
            kind = 'Experiment: ' if path in site.experiments else ''
            yield f'{kind}{title}', site.pages[path], ''


# Pages


def link(title, page, anchor, home):
    "A link of one page to another."
    return f'[{title}]({os.path.relpath(page, os.path.dirname(home))}{anchor})'


def source_link(site, entry):
    "The lines of the module that define a name, in the repository."
    path = f'decodelab/{entry.module.replace(".", "/")}.py'
    node = entry.node
    lines = f'#L{node.lineno}-L{node.end_lineno}' if node else ''
    return f'{site.repository}/blob/main/{path}{lines}'


def notebook_of(site, entry):
    "The notebook that a name is written in; None where the site leaves it out."
    paths = (p for p in pages.notebooks('nbs') if entry.module == f'{entry.part}.{p.stem[3:]}')
    path = next(paths)
    return path if path in site.pages else None


def origin(site, entry, home):
    "A line: how it is imported, its notebook, its lines."
    root = entry.full.rpartition('.')[0]
    pieces = [f'`from {root} import {entry.name}`']
    path = notebook_of(site, entry)
    if path:
        title, _ = pages.page_title(path)
        pieces.append(f'written in {link(title, site.pages[path], "", home)}')
    pieces.append(f'[source]({source_link(site, entry)})')
    return '{.origin}\n' + ' · '.join(pieces)


def relatives(entry):
    "Public classes of the part with a base in common, in order."
    bases = {ast.unparse(base) for base in entry.node.bases} - {
        'Component',
        'NamedTuple',
        'list',
        'tuple',
    }
    related = []
    for other in classes(entry.part):
        shared = bases & ({ast.unparse(b) for b in other.node.bases} | {other.name})
        child = entry.name in {ast.unparse(b) for b in other.node.bases}
        if other != entry and (shared or child):
            related.append(other)
    return related


def used_in(site, entry, home):
    "The section of pages that use a name; '' if none does."
    own = notebook_of(site, entry)
    uses = [*uses_in_pages(site, entry.name), *uses_in_notebooks(site, entry.name, own)]
    if not uses:
        return ''
    lines = [f'- {link(*use, home)}' for use in uses[:MOST_USES]]
    if len(uses) > MOST_USES:
        lines.append(f'- and {len(uses) - MOST_USES} more')
    return '\n'.join(['## Used in', '', *lines, ''])


def example_of(entry, level=2):
    "The section with the example of a name; '' if there is none."
    example = examples.entries(entry.part).get(entry.name)
    return f'{"#" * level} Example\n\n{example}' if example else ''


def class_page(site, entry):
    "The page of a class."
    home = entry.page
    pieces = [f'# {entry.name}', origin(site, entry, home)]
    pieces.append(pages.api_entry(entry.module, entry.name, entry.full))
    pieces.append(example_of(entry))
    pieces.append(used_in(site, entry, home))
    related = relatives(entry)
    if related:
        lines = [f'- {link(e.name, e.page, "", home)}: {markdown(e.summary)}' for e in related]
        pieces.append('\n'.join(['## See also', '', *lines]))
    back = link(f'the names of {entry.part}', f'api/{entry.part}/index.md', '', home)
    return '\n\n'.join([*filter(None, pieces), f'All of them: {back}.\n'])


def markdown(text):
    "A docstring's sentence in Markdown: stars and underscores outside of code are no emphasis."
    pieces = re.split(r'(`[^`]+`|\$[^$\n]+\$)', text)
    return ''.join(
        piece if piece.startswith(('`', '$')) else re.sub(r'([*_<>|\[\]])', r'\\\1', piece)
        for piece in pieces
    )


def function_entry(site, entry, home):
    "A function or value on the page of its part."
    pieces = [f'### {entry.name}', origin(site, entry, home)]
    pieces.append(pages.api_entry(entry.module, entry.name, entry.full))
    pieces.append(example_of(entry, 4).partition('\n\n')[2])
    return '\n\n'.join(filter(None, pieces))


def part_page(site, part):
    "The page of a part: its classes as a table, its functions in full."
    home = f'api/{part}/index.md'
    about = pages.first_docstring(ROOT / 'decodelab' / part / '__init__.py')
    pieces = [f'# {part}\n\n{about}']
    named = classes(part)
    if named:
        rows = [f'| {link(e.name, e.page, "", home)} | {markdown(e.summary)} |' for e in named]
        pieces.append('\n'.join(['## Classes', '', '| class | |', '|---|---|', *rows]))
        pieces.append(pages.toctree([f'{e.name}.md' for e in named], hidden=''))
    if others(part):
        pieces.append('## Functions')
        pieces += [function_entry(site, e, home) for e in others(part)]
    return '\n\n'.join(pieces) + '\n'


def index_page(site):
    "The names at the root, part by part."
    home = 'api/index.md'
    rows = [
        '# API reference\n\nThe names that a user types, a page for each class, with an example that runs. '
        '`help(decodelab.decode)` of an installed package prints the same parameters: both are made '
        'from the comments beside them. Other projects can link here with intersphinx.\n'
    ]
    for part in site.parts:
        about = pages.first_docstring(ROOT / 'decodelab' / part / '__init__.py')
        root = [e for e in entries(part) if e.full.count('.') == 1]
        other = [e for e in entries(part) if e.full.count('.') > 1]
        rows.append(f'## [{part}]({part}/index.md)\n\n{about}\n')
        rows += names_line('decodelab', root, home) + names_line(f'decodelab.{part}', other, home)
    return '\n'.join([*rows, pages.toctree([f'{part}/index.md' for part in site.parts], hidden='')])


def names_line(root, members, home):
    "Names that one import statement brings, each as a link."
    if not members:
        return []
    linked = ', '.join(
        link(f'`{e.name}`', e.page if e.is_class else f'api/{e.part}/index.md', anchor(e), home)
        for e in members
    )
    return [f'`from {root} import …`: {linked}\n']


def anchor(entry):
    "The anchor of a function on the page of its part; '' for a class, which has a page."
    return '' if entry.is_class else f'#{pages.slug(entry.name)}'


def sources(site):
    "Name -> text of every page of the reference."
    made = {'api/index.md': index_page(site)}
    for part in site.parts:
        made[f'api/{part}/index.md'] = part_page(site, part)
        made |= {e.page: class_page(site, e) for e in classes(part)}
    return made
