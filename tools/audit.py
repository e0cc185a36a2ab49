"""What a notebook should not have: `python tools/audit.py [PART or NOTEBOOK …]` prints it, `test_layout` holds it.

Each check yields lines of the form 'cell N: what'. The words are those of `words.py`."""

import ast
import re
import sys

from repo import ROOT, cells, is_exported, module_name, numbered
from words import FORBIDDEN

WIDEST = 110  # characters of a line of code
LARGEST = 1800  # characters of a cell
IDENTIFIERS = set(FORBIDDEN) - {
    'found',
    'kept',
    'wanted',
    'place',
    'places',
    'mark',
    'marks',
    'marked',
    'unmarked',
}


def tree_of(source):
    "A cell as a tree; magics and cells in other languages count as empty."
    source = '\n'.join('' if line.startswith(('%', '!')) else line for line in source.splitlines())
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def words_of(name):
    "The words of an identifier."
    return [w.lower() for w in re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+', name)]


def defined_names(tree):
    "Names that a cell gives to functions, classes, parameters and attributes."
    for n in ast.walk(tree):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield n.name
        elif isinstance(n, ast.arg):
            yield n.arg
        elif isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store):
            yield n.id if isinstance(n, ast.Name) else n.attr


def data_lines(source):
    "The lines, from 1, of string literals over several lines: tables, prompts, scripts, styles."
    for n in ast.walk(tree_of(source)):
        if isinstance(n, (ast.Constant, ast.JoinedStr)) and n.end_lineno > n.lineno:
            yield from range(n.lineno, n.end_lineno + 1)


def wide(path):
    "Lines of code over 110 characters, data aside."
    for i, s in enumerate(cells(path)):
        lines = {k: x for k, x in enumerate(s.splitlines(), 1) if len(x) > WIDEST}
        for k in lines.keys() - set(data_lines(s) if lines else ()):
            yield f'cell {i}: {len(lines[k])} characters: {lines[k].strip()[:60]}'


def large(path):
    "Cells that could be cut between two statements; one function or class is never torn apart."
    for i, s in enumerate(cells(path)):
        if len(s) > LARGEST and len(tree_of(s).body) > 1:
            yield f'cell {i}: {len(s)} characters'


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
        for n in ast.walk(tree_of(s)):
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
        for n in ast.walk(tree_of(s)):
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


def vocabulary(path):
    "Forbidden words in the names that exported cells define and in their docstrings."
    for i, s in enumerate(cells(path)):
        if not is_exported(s):
            continue
        tree = tree_of(s)
        for name in dict.fromkeys(defined_names(tree)):
            for w in words_of(name):
                if w in IDENTIFIERS:
                    yield f'cell {i}: {name}: {w!r} → {FORBIDDEN[w]}'
        for n in ast.walk(tree):
            if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and (
                doc := ast.get_docstring(n)
            ):
                for w in dict.fromkeys(re.findall(r'[a-z]+', re.sub(r'`[^`]*`', '', doc).lower())):
                    if w in FORBIDDEN and w not in ('found', 'kept', 'wanted'):
                        yield f'cell {i}: docstring of {n.name}: {w!r} → {FORBIDDEN[w]}'


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


CHECKS = dict(
    wide=wide,
    large=large,
    attached=attached,
    shapes=shapes,
    flags=flags,
    vocabulary=vocabulary,
    documented=documented,
)


def main(names):
    total = dict.fromkeys(CHECKS, 0)
    for path in numbered():
        own = module_name(path)
        if names and not any(own == n or own.startswith(n + '.') for n in names):
            continue
        for name, check in CHECKS.items():
            problems = list(check(path))
            total[name] += len(problems)
            for p in problems:
                print(f'{path.relative_to(ROOT)} {name}: {p}')
    print(total)
    return sum(total.values())


if __name__ == '__main__':
    sys.exit(bool(main(sys.argv[1:])))
