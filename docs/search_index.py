"""The search of the site: an index of sections, made while Sphinx reads them; a Sphinx extension.

Sphinx's own search gives every hit in a body the same weight, so a page about a subject is lost among
those that mention it. Here a section of a page is one entry, with its words and where they stand;
`_static/search.js` ranks entries by them, and forgives a typing error. Nothing is fetched: the index is a
script beside the pages."""

import json
import re
from collections import Counter
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

# pages by their path: what kind of page it is; the first that fits. search.js has the weights of kinds
KINDS = {
    r'index$': 'home',
    r'install$': 'install',
    r'tutorials/': 'tutorial',
    r'explorers$': 'tutorial',
    r'howto$': 'task',
    r'glossary$': 'glossary',
    r'api/': 'reference',
    r'experiments/claims$': 'claims',
    r'experiments/': 'experiment',
    r'models/': 'model',
    r'book/': 'book',
    r'': 'page',
}
MEMBERS = 'attribute', 'method', 'property'  # of a class, which has a page
WORD = re.compile(r"[^\W_]+(?:[-_'’][^\W_]+)*")
CAMEL = re.compile(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+')
STOP = set(
    'a an and are as at be by for from has have in is it its of on or that the this to with which'.split()
)


def stem(word):
    "A word without the s of a plural, as in search.js."
    return word[:-1] if len(word) > 3 and word.endswith('s') and not word.endswith('ss') else word


def words(text):
    "The words of a text in order: `TopP` is topp, top and p; `top-p` is topp, top and p."
    for match in WORD.finditer(text):
        whole = match.group()
        parts = [
            p for piece in re.split(r"[-_'’]", whole) for p in (CAMEL.findall(piece) or [piece])
        ]
        joined = re.sub(r"[-_'’]", '', whole).lower()
        yield stem(joined)
        if len(parts) > 1:
            yield from (stem(p.lower()) for p in parts)


def kind_of(docname):
    return next(kind for pattern, kind in KINDS.items() if re.match(pattern, docname))


# Entries


def own_text(section):
    "The text of a section without that of the sections and definitions inside it."
    for node in section.children:
        if isinstance(node, (nodes.section, nodes.title, addnodes.desc)):
            continue
        yield from text_of(node)


def text_of(node):
    "Prose of a node; of code the names, once each; nothing of outputs."
    if isinstance(node, (nodes.section, addnodes.desc, nodes.raw, nodes.image, addnodes.toctree)):
        return
    classes = node.get('classes', ()) if isinstance(node, nodes.Element) else ()
    if 'cell_output' in classes or 'origin' in classes:
        return
    if isinstance(node, nodes.literal_block):
        yield ' '.join(dict.fromkeys(re.findall(r'[A-Za-z_]\w{2,}', node.astext())))
    elif isinstance(node, nodes.Text):
        yield node.astext()
    else:
        for child in node.children:
            yield from text_of(child)


def entry(docname, anchor, title, page, text):
    "An entry: where it is, what it is called, and how often it has each word."
    counts = Counter(word for word in words(text) if word not in STOP)
    return dict(
        url=docname + '.html' + (f'#{anchor}' if anchor else ''),
        title=' '.join(title.split()),
        page=page,
        kind=kind_of(docname),
        words=counts,
    )


def entries_of(doctree, docname):
    "The entries of a page: its sections, the names it documents, the terms it defines."
    top = next(doctree.findall(nodes.section), None)
    if top is None or docname in ('search',):
        return
    page = top.next_node(nodes.title).astext()
    for section in doctree.findall(nodes.section):
        title = section.next_node(nodes.title).astext()
        text = ' '.join(own_text(section))
        anchor = '' if section is top else section['ids'][0]
        yield entry(docname, anchor, title, page, text)
    for name in doctree.findall(addnodes.desc):
        signature = name.next_node(addnodes.desc_signature)
        if signature is not None and signature['ids']:
            text = ' '.join(node.astext() for node in name.findall(nodes.paragraph))
            anchor = signature['ids'][0]
            one = entry(docname, anchor, anchor.rpartition('.')[2], page, text)
            yield one | (dict(kind='member') if name['objtype'] in MEMBERS else {})
    for item in doctree.findall(nodes.definition_list_item):
        term = item.next_node(nodes.term)
        if term is not None and term['ids'] and term['ids'][0].startswith('term-'):
            text = item.next_node(nodes.definition).astext()
            yield entry(docname, term['ids'][0], term.astext(), page, text)


# The extension


def collect(app, doctree):
    "Store the entries of a page that was read."
    docname = app.env.docname
    stored = vars(app.env).setdefault('search_entries', {})
    stored[docname] = list(entries_of(doctree, docname))


def purge(app, env, docname):
    vars(env).setdefault('search_entries', {}).pop(docname, None)


def merge(app, env, docnames, other):
    "Take the entries of pages that another process read."
    stored = vars(env).setdefault('search_entries', {})
    theirs = vars(other).get('search_entries', {})
    stored.update({name: theirs[name] for name in docnames if name in theirs})


def index_of(entries):
    "The index: entries, and word -> [entry, count, entry, count, …], entries as steps."
    postings = {}
    for i, one in enumerate(entries):
        for word, count in one['words'].items():
            postings.setdefault(word, []).append((i, count))
    rows = [[e['url'], e['title'], e['page'], e['kind'], sum(e['words'].values())] for e in entries]
    packed = {}
    for word in sorted(postings):
        steps, before = [], 0
        for i, count in postings[word]:
            steps += [i - before, min(count, 9)]
            before = i
        packed[word] = steps
    return dict(entries=rows, words=packed)


def write(app, error):
    "Write the index as a script, which a page opened from a disk can load, too."
    if error or app.builder.name != 'html':
        return
    stored = app.env.search_entries
    entries = [e for name in sorted(stored) for e in stored[name]]
    data = json.dumps(index_of(entries), ensure_ascii=False, separators=(',', ':'))
    path = Path(app.outdir) / '_static' / 'searchdata.js'
    path.write_text(f'Search.load({data});\n', encoding='utf-8')


def page(app):
    "The page that shows results."
    yield 'search', {}, 'search.html'


def without_own_index(app):
    "Sphinx's index is not made."
    app.builder.search = False


def setup(app):
    app.connect('builder-inited', without_own_index)
    app.connect('doctree-read', collect)
    app.connect('env-purge-doc', purge)
    app.connect('env-merge-info', merge)
    app.connect('html-collect-pages', page)
    app.connect('build-finished', write)
    return dict(version='1', env_version=1, parallel_read_safe=True, parallel_write_safe=True)
