"""What a notebook should not have: `python tools/audit.py [PART or NOTEBOOK …]` prints it, `test_layout` holds it.

Each check yields lines of the form 'cell N: what'. `python tools/audit.py --counts` prints how cells follow each other."""

import ast
import functools
import re
import sys
import unicodedata

import nbformat
from repo import ROOT, cells, directives, is_exported, lines, module_name, notebooks, numbered
from words import FORBIDDEN

WIDEST = 110  # characters of a line of code
COLUMNS = 78  # of a diagram: what JupyterLab shows beside its list of files on a small screen
STORED = {'marked'}  # names that stored files have: `Detection.marked`
WALL = 5  # assertions that a reader skips
COMPREHENSIONS = ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
METHODS = {'logits', 'strategies', 'speculative', 'drafters', 'watermark', 'detection'}
OPENINGS = re.compile(
    r'(?:What|The same|Whether|As)\b'
)  # of a docstring: a verb or a noun begins one


# all checks read one notebook after the other, so the cells of some are enough
@functools.lru_cache(512)
def tree_of(source):
    "A cell as a tree; magics and cells in other languages count as empty."
    source = '\n'.join('' if line.startswith(('%', '!')) else line for line in source.splitlines())
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


@functools.lru_cache(512)
def nodes_of(source):
    "The nodes of that tree."
    return tuple(ast.walk(tree_of(source)))


def words_of(name):
    "The words of an identifier."
    return [w.lower() for w in re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+', name)]


def defined_names(nodes):
    "Names that nodes of a tree give to functions, classes, parameters and attributes."
    for n in nodes:
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield n.name
        elif isinstance(n, ast.arg):
            yield n.arg
        elif isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store):
            yield n.id if isinstance(n, ast.Name) else n.attr


def data_lines(source):
    "The lines, from 1, of triple-quoted strings that are no docstrings: tables, prompts, scripts, styles."
    docs = {ast.get_docstring(n, clean=False) for n in documented_nodes(source)}
    for n in nodes_of(source):
        if not isinstance(n, (ast.Constant, ast.JoinedStr)) or n.end_lineno == n.lineno:
            continue
        quoted = TRIPLE.match(ast.get_source_segment(source, n) or '')
        if quoted and getattr(n, 'value', None) not in docs:
            yield from range(n.lineno, n.end_lineno + 1)


TRIPLE = re.compile(r"[rRbBfFuU]*(?:\"{3}|'{3})")


def wide(path):
    "Lines of code over 110 characters, data aside."
    for i, s in enumerate(cells(path)):
        lines = {k: x for k, x in enumerate(s.splitlines(), 1) if len(x) > WIDEST}
        for k in lines.keys() - set(data_lines(s) if lines else ()):
            yield f'cell {i}: {len(lines[k])} characters: {lines[k].strip()[:60]}'


FENCE = re.compile(r' {0,3}(`{3,}|~{3,})')


def preformatted(source):
    "Lines of the fenced and of the indented text in a cell of markdown."
    fence, after = '', True
    for line in source.splitlines():
        opening = FENCE.match(line)
        if fence and line.strip() == fence:
            fence = ''
        elif fence:
            yield line
        elif opening:
            fence = opening[1]
        elif after and line.startswith('    '):
            yield line[4:]
        after = not line.strip() or (after and line.startswith('    '))


def columns(line):
    "Columns of a line in a monospaced font: none for an accent, two for a wide character."
    wide = sum(unicodedata.east_asian_width(c) in 'WF' for c in line)
    return len(line) + wide - sum(map(bool, map(unicodedata.combining, line)))


def diagrams(path):
    "Fenced or indented text of markdown over 78 columns, which wraps on a small screen."
    markdown = [s if kind == 'markdown' else '' for kind, s, _ in every_cell(path)]
    for i, s in enumerate(markdown):
        for line in preformatted(s):
            if columns(line) > COLUMNS:
                yield f'cell {i}: {columns(line)} columns: {line.strip()[:60]}'


def attached(path):
    "`Class.method = function`"
    for i, s in enumerate(cells(path)):
        if not is_exported(s):
            continue
        for n in tree_of(s).body:
            targets = [
                x
                for t in getattr(n, 'targets', [])
                for x in (t.elts if isinstance(t, ast.Tuple) else [t])
            ]
            for t in targets:
                if (
                    isinstance(t, ast.Attribute)
                    and isinstance(t.value, ast.Name)
                    and t.value.id[:1].isupper()
                ):
                    yield f'cell {i}: {ast.unparse(t)} is attached: write it in the class, or use @patch'


def shapes(path):
    "Statements that need a second reading, in exported cells."
    for i, s in enumerate(cells(path)):
        if not is_exported(s):
            continue
        for n in nodes_of(s):
            if isinstance(n, ast.IfExp) and any(
                isinstance(m, ast.IfExp) for m in ast.walk(n) if m is not n
            ):
                yield f'cell {i}: nested conditional expression: {ast.unparse(n)[:60]}'
            if isinstance(n, ast.Assign) and any(
                isinstance(t, ast.Tuple) and len(t.elts) > 2 for t in n.targets
            ):
                if isinstance(n.value, ast.Tuple):
                    yield f'cell {i}: {len(n.targets[0].elts)} targets: {ast.unparse(n)[:60]}'
            if isinstance(n, ast.Call) and any(isinstance(a, ast.NamedExpr) for a in n.args):
                yield f'cell {i}: walrus inside a call: {ast.unparse(n)[:60]}'
            if isinstance(n, ast.Expr) and isinstance(n.value, ast.Tuple):
                yield f'cell {i}: a tuple as a statement: {ast.unparse(n)[:60]}'
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from (
                    f'cell {i}: class {m.name} made in {n.name}'
                    for m in ast.walk(n)
                    if isinstance(m, ast.ClassDef)
                )


def flags(path):
    """`getattr(x, 'flag', default)` and `hasattr` of our own parts.

    Members of a protocol with a default instead.
    """
    for i, s in enumerate(cells(path)):
        if not is_exported(s):
            continue
        for n in nodes_of(s):
            if (
                isinstance(n, ast.Call)
                and isinstance(n.func, ast.Name)
                and n.func.id in ('getattr', 'hasattr')
                and len(n.args) > 1
            ):
                if isinstance(n.args[1], ast.Constant) and not FOREIGN.search(
                    ast.unparse(n.args[0])
                ):
                    yield f'cell {i}: {ast.unparse(n)[:80]}'


FOREIGN = re.compile(
    r'\bt\b|node|client|config|model|module|tensor|tokenizer|layer|torch|rust|encoding|streamer|'
    r'\bos\b|\bnp\b|attention|text|value|\blm\b|\bv\b|user_|hf_|transformers|processor\b'
)


def forbidden_names(source):
    "Names that a source defines with a forbidden word in them, and the word to use."
    for name in dict.fromkeys(defined_names(nodes_of(source))):
        for w in words_of(name):
            if w in FORBIDDEN and name not in STORED:
                yield f'{name}: {w!r} → {FORBIDDEN[w]}'


def vocabulary(path):
    "Forbidden words in the names that cells define, and in the docstrings of exported ones."
    for i, s in enumerate(cells(path)):
        yield from (f'cell {i}: {problem}' for problem in forbidden_names(s))
        for n in documented_nodes(s) if is_exported(s) else ():
            doc = re.sub(r'`[^`]*`', '', ast.get_docstring(n)).lower()
            for w in dict.fromkeys(re.findall(r'[a-z]+', doc)):
                if w in FORBIDDEN and w not in ('found', 'kept', 'wanted'):
                    yield f'cell {i}: docstring of {n.name}: {w!r} → {FORBIDDEN[w]}'


def documented_nodes(source):
    "Functions and classes of a source that have a docstring."
    for n in nodes_of(source):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if ast.get_docstring(n):
                yield n


def openings(path):
    "Docstrings of exported cells that begin with neither a verb nor a noun."
    for i, s in enumerate(cells(path)):
        for n in documented_nodes(s) if is_exported(s) else ():
            if OPENINGS.match(ast.get_docstring(n)):
                yield f'cell {i}: docstring of {n.name}: {ast.get_docstring(n)[:60]}'


def documented(path):
    "Public definitions without a docstring."
    for i, s in enumerate(cells(path)):
        if is_exported(s):
            for n in tree_of(s).body:
                if (
                    isinstance(n, (ast.FunctionDef, ast.ClassDef))
                    and not n.name.startswith('_')
                    and not ast.get_docstring(n)
                ):
                    yield f'cell {i}: {n.name} has no docstring'


def is_patched(node):
    "Is a definition a method that `@patch` gives to a class?"
    decorators = getattr(node, 'decorator_list', [])
    return any(ast.unparse(d).startswith('patch') for d in decorators)


@functools.cache
def every_cell(path):
    "The kind, the source and the outputs of each cell of a notebook, markdown too."
    return [(c.cell_type, c.source, c.get('outputs', ())) for c in nbformat.read(path, 4).cells]


def silent(path):
    "`@patch` cells with nothing between them and the exported cell before."
    before = False
    for i, (kind, s, _) in enumerate(every_cell(path)):
        exported = kind == 'code' and is_exported(s)
        if exported and before and any(map(is_patched, tree_of(s).body)):
            yield f'cell {i}: a patched method follows an exported cell without a word'
        before = exported


def empty(path):
    "Exported cells that hold nothing."
    for i, s in enumerate(cells(path)):
        if is_exported(s) and not lines(s):
            yield f'cell {i}: nothing is exported here'


def compound_assertions(source):
    "Assertions of three or more claims, which fail without saying which."
    for n in nodes_of(source):
        if isinstance(n, ast.Assert) and isinstance(n.test, ast.BoolOp):
            if isinstance(n.test.op, ast.And) and len(n.test.values) > 2:
                yield f'{len(n.test.values)} claims in one assertion: {ast.unparse(n)[:60]}'


def nested_comprehensions(source):
    "Comprehensions in comprehensions, or of two loops."
    for n in nodes_of(source):
        if isinstance(n, COMPREHENSIONS):
            inner = [m for m in ast.walk(n) if isinstance(m, COMPREHENSIONS)]
            if len(inner) > 1 or len(n.generators) > 1:
                yield f'nested comprehension: {ast.unparse(n)[:60]}'


def compound(path):
    "Assertions of three or more claims."
    for i, s in enumerate(cells(path)):
        yield from (f'cell {i}: {problem}' for problem in compound_assertions(s))


def is_hidden(source):
    return 'hide' in directives(source)


def walls(path):
    "Visible cells of many assertions: tests, which belong in a hidden cell."
    for i, s in enumerate(cells(path)):
        n = sum(isinstance(n, ast.Assert) for n in nodes_of(s))
        if n >= WALL and not is_hidden(s) and not is_exported(s):
            yield f'cell {i}: {n} assertions in a visible cell'


def tuples(path):
    "Visible cells that end with a tuple, where a small table says more."
    for i, s in enumerate(cells(path)):
        last = tree_of(s).body[-1:]
        if last and isinstance(last[0], ast.Expr) and isinstance(last[0].value, ast.Tuple):
            if not is_hidden(s):
                yield f'cell {i}: ends with {ast.unparse(last[0])[:60]}'


def long_floats(path):
    "Stored outputs with three or more numbers of fifteen digits."
    stored = [outputs for kind, _, outputs in every_cell(path) if kind == 'code']
    for i, outputs in enumerate(stored):
        texts = [o.get('text') or o.get('data', {}).get('text/plain', '') for o in outputs]
        if any(len(re.findall(r'\d\.\d{14,}', ''.join(t))) > 2 for t in texts):
            yield f'cell {i}: numbers of fifteen digits in its output'


def first_screen(path):
    "A notebook of a method shows it before its first exported definition: a figure, a table, a diagram."
    if not METHODS & {module_name(path).split('.')[0]}:
        return
    for kind, source, outputs in every_cell(path):
        if kind == 'markdown' and PICTURE.search(source):
            return
        if kind == 'code' and is_exported(source):
            if any(isinstance(n, (ast.FunctionDef, ast.ClassDef)) for n in tree_of(source).body):
                break
        elif kind == 'code':
            shown = set().union(*(o.get('data', {}) for o in outputs))
            if shown & {'image/png', 'text/html'} or DRAWS.search(source):
                return
    yield 'nothing is shown before the first definition'


# a fenced diagram, a table, or a picture
PICTURE = re.compile(r'^```(?:text)?\n|^\|.*\|\s*\n\|[\s:|-]+\||!\[|<svg|<img|<pre', re.M)
DRAWS = re.compile(r'plt\.|\bplot_|\.plot|HTML\(|DataFrame|\bdisplay\(')


def cell_counts(paths):
    "How exported cells follow each other, over several notebooks."
    counts = dict(exported=0, in_runs=0, patched=0, silent=0)
    for path in paths:
        run = 0
        for kind, s, _ in [*every_cell(path), ('markdown', '', ())]:
            if kind == 'code' and is_exported(s):
                run += 1
                counts['exported'] += 1
                counts['patched'] += any(map(is_patched, tree_of(s).body))
                continue
            counts['in_runs'] += run if run > 2 else 0
            run = 0
        counts['silent'] += len(list(silent(path)))
    return counts


CHECKS = dict(
    wide=wide,
    diagrams=diagrams,
    attached=attached,
    shapes=shapes,
    flags=flags,
    vocabulary=vocabulary,
    documented=documented,
    openings=openings,
    silent=silent,
    empty=empty,
    compound=compound,
    walls=walls,
    tuples=tuples,
    long_floats=long_floats,
    first_screen=first_screen,
)
READ_CHECKS = 'wide', 'vocabulary', 'compound', 'tuples', 'diagrams'  # of experiments


def named(names):
    "The notebooks of parts that are named, all of them without a name; a wrong name ends the program."
    owns = {module_name(path): path for path in numbered()}
    chosen = {}
    for name in names:
        matching = {o: p for o, p in owns.items() if o == name or o.startswith(name + '.')}
        if not matching:
            parts = ', '.join(dict.fromkeys(own.partition('.')[0] for own in owns))
            sys.exit(
                f'no part and no notebook is named {name}: name one of {parts}, or a part.notebook'
            )
        chosen |= matching
    return list((chosen or owns).values())


def main(names):
    if names == ['--counts']:
        return print(cell_counts(notebooks()))
    pages = [(path, CHECKS) for path in named(names)]
    if not names:
        pages += [(path, READ_CHECKS) for path in notebooks('experiments')]
    total = dict.fromkeys(CHECKS, 0)
    for path, checks in pages:
        for name in checks:
            problems = list(CHECKS[name](path))
            total[name] += len(problems)
            for p in problems:
                print(f'{path.relative_to(ROOT)} {name}: {p}')
    print(total)
    return sum(total.values())


if __name__ == '__main__':
    sys.exit(bool(main(sys.argv[1:])))
