"""Parameters in `help()`: the comment beside a parameter is its documentation.

In this package a parameter has a line of its own, with a comment. A reader of the source sees it; a reader of
`help(decode)`, of `decode?` or of a tooltip does not, because Python forgets comments and all three show `__doc__`.
A comment and a paragraph of the docstring would drift apart. So the comments are written into the docstrings when
the package is built, in the form of numpydoc:

    the source                                    help(check_int) of the installed package

    def check_int(                                name : str
        name: str,  # the argument, as …     ──▶      the argument, as the caller knows it
        value,                                    value
        minimum: int | None = 1,  # None: …       minimum : int | None, default 1
        …                                             None: no lower bound

`setup.py` calls `document_folder` on the copied modules; the API pages of the site take the same rows. A class shows
the parameters of its `__init__`, which may be inherited, or its dataclass fields. Sources are parsed, not imported.

`python tools/parameter_docs.py FOLDER` documents the modules of a package in place.
"""

import ast
import functools
import inspect
import io
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

HEADING = 'Parameters\n----------'
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
DEFINITIONS = *FUNCTIONS, ast.ClassDef


@dataclass
class Parameter:
    "A parameter of a function or of a class: its signature, and the comment beside it."

    name: str  # `*args` and `**kwargs` with their stars
    annotation: str = ''  # as it is written
    default: str = ''  # as it is written; '' if the parameter is required
    comment: str = ''

    def __str__(self):
        "`name : annotation, default value`, and the comment on a line below."
        default = f'default {self.default}' if self.default else ''
        kind = ', '.join(filter(None, [self.annotation, default]))
        head = ' : '.join(filter(None, [self.name, kind]))
        return '\n    '.join(filter(None, [head, self.comment]))


# Parameters of one definition


def comments_of(source):
    "Line → comment, of a module."
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip('#').strip() for t in tokens if t.type == tokenize.COMMENT}


def comment_beside(top, first, last, comments, lines):
    "The comment on the lines of a parameter, or the comment lines above it and below the line `top`."
    beside = [comments[line] for line in range(first, last + 1) if line in comments]
    if beside:
        return ' '.join(beside)
    above = []
    while first - 1 > top and lines[first - 2].lstrip().startswith('#'):
        first -= 1
        above.insert(0, comments[first])
    return ' '.join(above)


def code(node):
    "An expression as code; '' for None."
    return '' if node is None else ast.unparse(node)


def written(annotation):
    "An annotation as code, without quotes around the whole of it."
    quoted = isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)
    return annotation.value if quoted else code(annotation)


def arguments(function):
    "`(name with its stars, argument, default or None)` of a definition, in the order of its signature."
    args = function.args
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + args.defaults
    yield from ((arg.arg, arg, default) for arg, default in zip(plain, defaults))
    if args.vararg:
        yield f'*{args.vararg.arg}', args.vararg, None
    yield from ((a.arg, a, default) for a, default in zip(args.kwonlyargs, args.kw_defaults))
    if args.kwarg:
        yield f'**{args.kwarg.arg}', args.kwarg, None


def field_default(value):
    "The default of a dataclass field, `field(…)` included."
    if not (isinstance(value, ast.Call) and ast.unparse(value.func).endswith('field')):
        return code(value)
    options = {k.arg: k.value for k in value.keywords}
    factory = options.get('default_factory')
    if isinstance(factory, ast.Lambda):
        return code(factory.body)
    return f'{code(factory)}()' if factory else code(options.get('default'))


def is_field(node):
    "Is a statement of a class a field that its `__init__` takes?"
    if not isinstance(node, ast.AnnAssign) or 'ClassVar' in ast.unparse(node.annotation):
        return False
    return node.value is None or 'init=False' not in ast.unparse(node.value)


def has_fields(node):
    "Is a class a dataclass or a named tuple?"
    named = any(ast.unparse(base).endswith('NamedTuple') for base in node.bases)
    return named or any('dataclass' in ast.unparse(d) for d in node.decorator_list)


def patched_name(function):
    "`Class.method` of a function that fastcore's `patch` makes a method; the name of any other."
    decorators = [ast.unparse(d) for d in function.decorator_list]
    if not any(d.startswith('patch') for d in decorators):
        return function.name
    return f'{written(function.args.args[0].annotation)}.{function.name}'


# A package


class Module:
    "A parsed file: its definitions, and where its imported names come from."

    def __init__(self, name, path):
        self.name = name
        self.path = path
        self.source = path.read_text(encoding='utf-8')
        self.tree = ast.parse(self.source)
        self.lines = self.source.splitlines()
        self.definitions = dict(self.named_definitions())
        self.constants = {
            n.targets[0].id: n.value
            for n in self.tree.body
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
        }

    def named_definitions(self):
        "`(name, definition)` of functions, classes and methods: `f`, `Class`, `Class.method`."
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                members = [n for n in node.body if isinstance(n, FUNCTIONS)]
                yield node.name, node
                yield from ((f'{node.name}.{n.name}', n) for n in members)
            elif isinstance(node, FUNCTIONS):
                yield patched_name(node), node

    def default(self, node):
        "A default as code; a constant of the module as its value."
        value = self.constants.get(code(node))
        return code(value if isinstance(value, ast.Constant) else node)

    @functools.cached_property
    def comments(self):
        return comments_of(self.source)

    @functools.cached_property
    def imports(self):
        "Name → `(module, name there)`."
        package = self.name.split('.')[: None if self.path.stem == '__init__' else -1]
        out = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                home = '.'.join([*base, *filter(None, [node.module])])
                out |= {a.asname or a.name: (home, a.name) for a in node.names}
        return out

    def comment(self, definition, first, last):
        "The comment of a parameter that is on some lines of a definition."
        return comment_beside(definition.lineno, first, last, self.comments, self.lines)

    def parameters(self, function):
        "The parameters of a function of this module, without `self` and `cls`."
        for name, arg, default in arguments(function):
            if name in ('self', 'cls'):
                continue
            last = (default or arg).end_lineno
            comment = self.comment(function, arg.lineno, last)
            yield Parameter(name, written(arg.annotation), self.default(default), comment)

    def fields(self, node):
        "The fields of a dataclass of this module as parameters."
        for field in filter(is_field, node.body):
            comment = self.comment(node, field.lineno, field.end_lineno)
            default = field_default(field.value)
            yield Parameter(field.target.id, written(field.annotation), default, comment)


class Package:
    "The modules of a folder, parsed when they are needed."

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.modules = {}

    def module(self, name):
        "A module by its full name, a package by its stub; None for those of others."
        path = self.folder.parent / name.replace('.', '/')
        files = [path.with_suffix('.py'), path / '__init__.pyi']
        file = next((f for f in files if f.is_file()), None)
        if name not in self.modules:
            inside = file is not None and file.is_relative_to(self.folder)
            self.modules[name] = Module(name, file) if inside else None
        return self.modules[name]

    def find(self, module, name):
        "`(module, class)` of a name in a module, through imports; None for those of other packages."
        if name in module.definitions:
            return module, module.definitions[name]
        home, original = module.imports.get(name, (None, None))
        other = self.module(home) if home else None
        return self.find(other, original) if other and other is not module else None

    def bases(self, module, node):
        "`(module, class)` of the bases of a class that belong to this package."
        names = [ast.unparse(base).partition('[')[0] for base in node.bases]
        return [pair for name in names if (pair := self.find(module, name))]

    def class_parameters(self, module, node):
        "The parameters of a class: those of its `__init__`, its fields, or its first base that has any."
        for name in ('__init__', '__new__'):
            maker = module.definitions.get(f'{node.name}.{name}')
            if maker:
                return list(module.parameters(maker))
        inherited = [self.class_parameters(*pair) for pair in self.bases(module, node)]
        if not has_fields(node):
            return next(filter(None, inherited), [])
        rows = {row.name: row for group in reversed(inherited) for row in group}
        return list((rows | {row.name: row for row in module.fields(node)}).values())

    def parameters(self, module, node):
        "The parameters of a function or of a class."
        if isinstance(node, ast.ClassDef):
            return self.class_parameters(module, node)
        return list(module.parameters(node))

    def definition(self, module, name):
        "`(module, definition)` of `function`, `Class` or `Class.method`; None for those of others."
        module = self.module(module)
        node = module.definitions.get(name) if module else None
        return (module, node) if node else None


# Docstrings


def docstring_of(node):
    "The expression of a docstring; None without one."
    first = node.body[0] if node.body else None
    value = first.value if isinstance(first, ast.Expr) else None
    return value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def documented(tree):
    "Public functions and classes of a module and the public methods of its classes, with a docstring."
    for node in tree.body:
        if isinstance(node, DEFINITIONS) and not node.name.startswith('_'):
            members = node.body if isinstance(node, ast.ClassDef) else []
            methods = [m for m in members if isinstance(m, FUNCTIONS) and m.name[0] != '_']
            yield from filter(docstring_of, [node, *methods])


def literal(text, indent):
    "A docstring as it is written in a source, between triple quotes."
    escaped = text.replace('\\', '\\\\').replace('"""', r'\"\"\"')
    lines = [f'{indent}{line}'.rstrip() for line in escaped.splitlines()]
    return '"""' + '\n'.join(lines).lstrip() + f'\n{indent}"""'


def with_parameters(text, rows):
    "A docstring with the section of its parameters."
    section = '\n'.join(map(str, rows))
    return f'{inspect.cleandoc(text)}\n\n{HEADING}\n{section}'


def document_source(package, module):
    "The source of a module with parameters in its docstrings."
    lines = module.source.encode().splitlines(keepends=True)
    replacements = []
    for node in documented(module.tree):
        doc, rows = docstring_of(node), package.parameters(module, node)
        if rows and HEADING not in inspect.cleandoc(doc.value):
            replacements.append((doc, with_parameters(doc.value, rows)))
    for doc, text in sorted(replacements, key=lambda pair: -pair[0].lineno):
        first, last = doc.lineno - 1, doc.end_lineno - 1
        new = literal(text, ' ' * doc.col_offset).encode()
        rest = lines[last][doc.end_col_offset :]
        lines[first : last + 1] = [lines[first][: doc.col_offset] + new + rest]
    return b''.join(lines).decode()


def document_folder(folder):
    "Write parameters into the docstrings of the modules of all parts of a package, in place."
    package = Package(folder)
    name = package.folder.name
    paths = [
        p for stub in package.folder.glob('*/__init__.pyi') for p in stub.parent.glob('[a-z]*.py')
    ]
    modules = [package.module(f'{name}.{p.parent.name}.{p.stem}') for p in sorted(paths)]
    for module, text in [(m, document_source(package, m)) for m in modules]:
        module.path.write_text(text, encoding='utf-8')


if __name__ == '__main__':
    document_folder(sys.argv[1])
