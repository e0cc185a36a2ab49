"""The sources of the site, written from the repository: what Sphinx reads is made here, before it starts.

Notebooks lose what is not for readers (hidden cells, directives), links between files of the repository
become links between pages, and the pages of the parts, of the API and of the glossary are made from the
package and its notebooks. No notebook is run. Needs nbformat, not Sphinx."""

import ast
import csv
import functools
import html
import os
import re
from configparser import ConfigParser
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
DOWNLOADS = '_notebooks'  # where the built site has the notebooks themselves
LINK = re.compile(r'(?<=\]\()(?![a-z][a-z+.-]*:|#|<)([^)\s#]+)(#[^)\s]*)?(?=[)\s])')
FENCE = re.compile(r'^(`{3,}|~{3,}).*?^\1[`~]*$', flags=re.M | re.S)
RENDERED = {
    'nbs/14_explorers/10_explorers.ipynb': 'explorers.ipynb',
    'nbs/15_lab/14_write_your_own.ipynb': 'tutorials/write_your_own.ipynb',
}  # notebook -> its page, where that is not in the book
GLOSSARY = ROOT / 'nbs' / '01_core' / '12_glossary.ipynb'
KERNEL = dict(
    kernelspec=dict(name='python3', display_name='Python 3', language='python'),
    language_info=dict(name='python', pygments_lexer='ipython3'),
)


# What there is


def notebooks(folder):
    "The numbered notebooks of a folder and of the folders in it, in order."
    paths = sorted((ROOT / folder).rglob('[0-9]*.ipynb'))
    return [p for p in paths if '.ipynb_checkpoints' not in p.parts]


def repository():
    "The address of the repository."
    settings = ConfigParser()
    settings.read(ROOT / 'settings.ini')
    return settings['DEFAULT']['git_url']


def part_of(folder):
    "The part of a folder of notebooks: `07_speculative` -> `speculative`."
    return folder.name.partition('_')[2]


def first_docstring(path):
    return ast.get_docstring(ast.parse(path.read_text())) or ''


def offered(package):
    "Name -> module that a stub offers, modules aside: `decode` -> `core.driver` at the root."
    tree = ast.parse((ROOT / 'decodelab' / package / '__init__.pyi').read_text())
    return {
        alias.name: f'{package}.{node.module}'.strip('.')
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


@functools.cache
def page_title(path):
    "`(title, subtitle)` of a notebook: its first heading, and the quotation below it."
    cells = nbformat.read(path, 4).cells
    text = next(c.source for c in cells if c.cell_type == 'markdown')
    title = re.search(r'^# (.+)$', text, flags=re.M)
    subtitle = re.search(r'^> (.+)$', text, flags=re.M)
    return title.group(1), subtitle.group(1) if subtitle else ''


# Links


@dataclass
class Site:
    "The pages of a site: file of the repository -> its page, and texts of pages that no file holds."

    notebooks: list[Path] = field(default_factory=lambda: notebooks('nbs'))
    experiments: list[Path] = field(default_factory=lambda: notebooks('experiments'))
    parts: list[str] | None = None  # parts with an API page; None: all

    def __post_init__(self):
        self.repository = repository()
        self.folders = sorted({p.parent for p in self.notebooks})
        every = [part_of(p) for p in sorted((ROOT / 'nbs').glob('[0-9]*')) if p.is_dir()]
        self.parts = every if self.parts is None else self.parts
        docs = [p for p in (ROOT / 'docs').rglob('*.md') if not {'_build', 'examples'} & {*p.parts}]
        made = ['glossary.md', 'book/index.md', 'api/index.md', 'models/index.md']
        made += [f'book/{folder.name}/index.md' for folder in self.folders]
        made += [f'api/{part}/index.md' for part in self.parts]
        self.pages = {ROOT / 'docs' / name: name for name in made}
        self.pages |= {p: p.relative_to(ROOT / 'docs').as_posix() for p in docs}
        weights = ROOT / 'decodelab' / 'weights'
        self.pages |= {p: f'models/{p.parent.name}.md' for p in weights.glob('*/README.md')}
        self.pages[weights / 'pico' / 'CORPUS.md'] = 'models/corpus.md'
        self.pages |= {p: self.book_page(p) for p in self.notebooks}
        self.pages |= {p: f'experiments/{p.name}' for p in self.experiments}
        self.pages[ROOT / 'experiments' / 'README.md'] = 'experiments/index.md'
        self.pages[ROOT / 'experiments' / 'CLAIMS.md'] = 'experiments/claims.md'
        self.pages[ROOT / 'nbs' / 'index.ipynb'] = self.pages[ROOT / 'README.md'] = 'index.md'

    def book_page(self, path):
        "The page of a notebook: in the book, or elsewhere on the site."
        return RENDERED.get(path.relative_to(ROOT).as_posix()) or (
            f'book/{path.relative_to(ROOT / "nbs").as_posix()}'
        )

    def link(self, target, home):
        "A link of the file `home` as a link of its page; a file that has no page is one of the repository."
        path = Path(os.path.normpath(home.parent / target))
        if path in self.pages:
            here = os.path.dirname(self.pages[home])
            return os.path.relpath(self.pages[path], here or '.')
        if path.suffix in ('.svg', '.png') and path.exists():
            return '/' + path.relative_to(ROOT / 'docs').as_posix()
        if not path.exists():
            raise FileNotFoundError(f'{home.relative_to(ROOT)} links to {target}')
        kind = 'tree' if path.is_dir() else 'blob'
        return f'{self.repository}/{kind}/main/{path.relative_to(ROOT).as_posix()}'

    def relink(self, text, home):
        "A Markdown text of `home` with the links of its page; fenced code stays as it is."

        def replace(match):
            anchor = (match.group(2) or '').lower()
            return self.link(match.group(1), home) + anchor

        pieces, end = [], 0
        for fence in FENCE.finditer(text):
            pieces += [LINK.sub(replace, text[end : fence.start()]), fence.group()]
            end = fence.end()
        return ''.join([*pieces, LINK.sub(replace, text[end:])])


# Notebooks


def directives(source):
    "The first words of a cell's `#|` lines."
    return {l[2:].split()[0] for l in source.splitlines() if l.startswith('#|') and l[2:].split()}


def readable_cell(cell):
    "Is a cell for readers? Hidden ones, the name of the module and empty ones are not."
    return bool(cell.source.strip()) and not directives(cell.source) & {'hide', 'default_exp'}


def visible_output(output):
    "An output without views of widgets where there is something to see without a kernel."
    data = output.get('data', {})
    if len(data) > 1:
        for kind in [k for k in data if k.startswith('application/vnd.jupyter.')]:
            del data[kind]
    return output


def alternative(cell):
    "The texts of a cell's pictures for those who do not see them; '' without pictures."
    metadata = [output.get('metadata', {}).get('image/png', {}) for output in cell.outputs]
    return '; '.join(dict.fromkeys(m['alt'] for m in metadata if m.get('alt')))


def code_cell(cell):
    "A cell of code without its directives; those of the module are tagged, pictures have their text."
    kinds = directives(cell.source)
    lines = [line for line in cell.source.splitlines() if not line.startswith('#|')]
    cell.source = '\n'.join(lines).strip('\n')
    tags = ['module'] if any(kind.startswith('export') for kind in kinds) else []
    alt = alternative(cell)
    metadata = (dict(tags=tags) if tags else {}) | (
        dict(mystnb=dict(image=dict(alt=alt))) if alt else {}
    )
    cell.metadata = nbformat.from_dict(metadata)
    cell.outputs = [visible_output(o) for o in cell.outputs if o.get('name') != 'stderr']
    return cell


COLAB = 'https://colab.research.google.com/github'
BINDER = 'https://mybinder.org/v2/gh'


def origin_line(site, path, module):
    "The module of a page if it makes one, and ways to open its notebook."
    inside = path.relative_to(ROOT).as_posix()
    name = site.repository.partition('github.com/')[2]
    ways = {
        'Download notebook': '../' * site.pages[path].count('/') + f'{DOWNLOADS}/{inside}',
        'Open in Colab': f'{COLAB}/{name}/blob/main/{inside}',
        'Open in Binder': f'{BINDER}/{name}/main?urlpath=lab/tree/{inside}',
        'Source': f'{site.repository}/blob/main/{inside}',
    }
    links = [f'<a href="{html.escape(url)}">{words}</a>' for words, url in ways.items()]
    links[0] = links[0].replace('<a ', '<a download ')
    made = f'<code>decodelab.{module}</code> ' if module else ''
    return f'<p class="notebook-links">{made}{" ".join(links)}</p>'


def notebook_page(site, path):
    "A notebook as a page: what is for readers, with links that lead to pages."
    nb = nbformat.read(path, 4)
    names = [re.match(r'#\| default_exp (\S+)', c.source) for c in nb.cells[:1]]
    module = names[0].group(1) if any(names) else ''
    nb.cells = [c for c in nb.cells if readable_cell(c)]
    nb.metadata = nbformat.from_dict(KERNEL)
    for cell in nb.cells:
        if cell.cell_type == 'markdown':
            cell.metadata = nbformat.from_dict({})
            cell.source = site.relink(cell.source, path)
        else:
            code_cell(cell)
    first = next(c for c in nb.cells if c.cell_type == 'markdown')
    head, _, rest = first.source.partition('\n')
    first.source = f'{head}\n\n{origin_line(site, path, module)}\n\n{rest}'
    return nbformat.writes(nb)


# Pages of lists


def toctree(targets, **options):
    rows = '\n'.join(f':{name}: {value}'.rstrip() for name, value in options.items())
    return f'```{{toctree}}\n{rows}\n\n' + '\n'.join(targets) + '\n```\n'


def part_page(site, folder):
    "The page of a part: what it is, and its notebooks in order."
    about = first_docstring(ROOT / 'decodelab' / part_of(folder) / '__init__.py')
    members = [p for p in site.notebooks if p.parent == folder]
    home = f'book/{folder.name}'
    rows = []
    for path in members:
        title, text = page_title(path)
        rows.append(f'- [{title}]({os.path.relpath(site.pages[path], home)}): {text}')
    api = f'The names it offers: [API of {part_of(folder)}](../../api/{part_of(folder)}/index.md).'
    return (
        f'# {part_of(folder)}\n\n{about}\n\n'
        + '\n'.join(rows)
        + (f'\n\n{api}\n\n' if part_of(folder) in site.parts else '\n\n')
        + toctree([p.name for p in members if site.pages[p].startswith(home)], hidden='')
    )


def book_page(site):
    "The table of contents of the book: the parts in the order in which they build on each other."
    rows = []
    for folder in site.folders:
        about = first_docstring(ROOT / 'decodelab' / part_of(folder) / '__init__.py')
        n = sum(p.parent == folder for p in site.notebooks)
        rows.append(f'1. [{part_of(folder)}]({folder.name}/index.md) ({n} notebooks): {about}')
    head = (
        '# The book\n\nEvery module of decodelab is a notebook: the problem, the equation, the code, '
        'a demonstration, an assertion. Each part builds on those before it. A cell with a coloured '
        'edge is part of the module.\n\n'
    )
    tree = toctree([f'{folder.name}/index.md' for folder in site.folders], hidden='', maxdepth=2)
    return f'{head}{chr(10).join(rows)}\n\n{tree}'


def verdict_sections(table):
    "The table of all claims as one table for each source, which fits a page."
    for line in table.splitlines()[2:]:
        source, notebook, *claim = re.split(r'(?<!\\)\|', line)[1:-1]
        if source.strip():
            name = re.search(r'\[(.+?)\]', notebook).group(1)
            title, _ = page_title(ROOT / 'experiments' / f'{name}.ipynb')
            yield f'\n### {title}\n\n{source.strip()} · notebook: {notebook.strip()}\n'
            yield '| claim | source | rule | measured | verdict |\n|---|---|---|---|---|'
        yield f'|{"|".join(claim)}|'


def made_page(site, home):
    "A page of the experiments that was made, without the comment which states that, with the site's links."
    return site.relink(re.sub(r'<!--.*?-->\n', '', home.read_text()), home)


def experiments_page(site):
    "The front page of the experiments: numbers of claims by source, and the notebooks that measure them."
    text = made_page(site, ROOT / 'experiments' / 'README.md')
    return f'{text}\n{toctree(["claims.md", *(p.name for p in site.experiments)], hidden="")}'


def claims_page(site):
    "The claims of all sources with their verdicts."
    text = made_page(site, ROOT / 'experiments' / 'CLAIMS.md')
    head, first, rest = text.partition('\n| source | notebook |')
    table, empty, after = f'{first.strip()}{rest}'.partition('\n\n')
    return '\n'.join([head, *verdict_sections(table), empty + after])


def slug(title):
    "The anchor of a heading."
    return re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-')


def task_list(text):
    "The headings of a page as links, a paragraph for each section."
    for section in re.split(r'^## ', text, flags=re.M)[1:]:
        tasks = re.findall(r'^### (.+)$', section, flags=re.M)
        linked = ' · '.join(f'[{task}](#{slug(task)})' for task in tasks)
        yield f'**{section.splitlines()[0]}**: {linked}\n'


def glossary():
    "Word -> (definition, source): the data of the glossary's notebook, from its cells of assignments."
    names = {}
    for cell in nbformat.read(GLOSSARY, 4).cells:
        body = ast.parse(cell.source).body if cell.cell_type == 'code' else []
        if body and all(isinstance(node, (ast.Assign, ast.AnnAssign)) for node in body):
            exec(cell.source, names)
        if 'GLOSSARY' in names:
            return names['GLOSSARY']
    raise ValueError(f'{GLOSSARY} has no GLOSSARY')


def glossary_page():
    "The glossary as a page, so that other pages can refer to its words."
    rows = [
        f'{word}\n  {meaning} ({source})\n'
        for word, (meaning, source) in sorted(glossary().items())
    ]
    return '# Glossary\n\n:::{glossary}\n' + '\n'.join(rows) + ':::\n'


GUIDES = dict(
    text_generation_strategies_2023='Text generation strategies (2023)',
    generation_strategies_2024='Generation strategies (2024)',
    assisted_decoding_2025='Assisted decoding (2025)',
    assisted_decoding_2025_ko='Assisted decoding (2025, Korean)',
)  # name in the stored rows -> title


def inline(text, limit=90):
    "A text as code in a cell of a table, cut to a length."
    shown = text if len(text) <= limit else f'{text[:limit]}…'
    shown = shown.replace('\n', '⏎').replace('|', '\\|').replace('`', "'")
    return f'`{shown}`' if shown.strip() else ''


def guide_rows(path=ROOT / 'experiments' / 'results' / '21_guides.pico.csv'):
    "Guide line, command and result, from the stored rows of the experiment."
    with path.open(newline='', encoding='utf-8') as file:
        rows = list(csv.DictReader(file))
    pieces = []
    for guide, title in GUIDES.items():
        pieces.append(f'\n## {title}\n\n| block | line | result with `pico` | verdict |')
        pieces.append('|---|---|---|---|')
        for row in (r for r in rows if r['guide'] == guide):
            place = f'{row["block"]}{" " * bool(row["part"])}{row["part"]}: {row["section"]}'
            cells = [place, inline(row['command'], 400), inline(row['ours']), row['verdict']]
            pieces.append(f'| {" | ".join(cells)} |')
    return '\n'.join(pieces)


def board_rows(folder=ROOT / 'experiments' / 'board'):
    "The tables of the board, from its checked contributions."
    from decodelab.lab import board_markdown, read_board

    return board_markdown(read_board(folder))


# API


def api_names(part):
    "Module -> the names to document: what the part offers, and the root from it; as a user types them."
    root = offered('')
    own = {name: (module, f'decodelab.{part}.{name}') for name, module in offered(part).items()}
    own |= {
        name: (module, f'decodelab.{name}')
        for name, module in root.items()
        if module.split('.')[0] == part
    }
    homes = {}
    for name, (module, full) in own.items():
        homes.setdefault(module, []).append((name, full))
    order = [p.stem[3:] for p in notebooks('nbs') if part_of(p.parent) == part]
    return dict(sorted(homes.items(), key=lambda item: order.index(item[0].split('.')[1])))


def definition(module, name):
    "The statement that defines a name; None for a value."
    tree = ast.parse((ROOT / 'decodelab' / f'{module.replace(".", "/")}.py').read_text())
    return next((node for node in tree.body if getattr(node, 'name', None) == name), None)


def api_entry(module, name, full):
    "The directive of autodoc for a class, a function or a value."
    node = definition(module, name)
    if isinstance(node, ast.ClassDef):
        bases = '   :show-inheritance:\n' if node.bases else ''
        directive = f'.. autoclass:: {full}\n   :members:\n{bases}'
    elif node:
        directive = f'.. autofunction:: {full}\n'
    else:
        directive = f'.. autodata:: {full}\n   :no-value:\n'
    return f'```{{eval-rst}}\n{directive}```\n'


# All of it


# Comments in files of docs/, which no reader of the file sees: a page has something made there
FIRST_SCREEN = '<!-- first screen of the README -->'
TASKS = '<!-- list of the tasks -->'
GUIDE_ROWS = '<!-- rows of 21_guides -->'
BOARD_ROWS = '<!-- rows of the board -->'


def insert(text, comment, made):
    "A page with what is made in the position of a comment; raises `ValueError` if it is not there once."
    if text.count(comment) != 1:
        raise ValueError(f'a page has {comment!r} {text.count(comment)} times, and needs it once')
    return text.replace(comment, made)


def first_screen(site):
    "The part of the README below its title and before its next heading."
    text = (ROOT / 'README.md').read_text()
    body = text.partition('\n# ')[2].partition('\n## ')[0].partition('\n')[2].strip()
    return site.relink(body, ROOT / 'README.md')
