"""Stubs of the modules: their signatures without bodies, each method in its class.

A type checker does not see that `@patch` puts a function into a class, so `trace.metrics()` would be an error to
it. In a stub the method stands in its class:

    class Trace: …                                class Trace:
                                      ──▶             …
    @patch                                            def metrics(self) -> dict: ...
    def metrics(self: Trace) -> dict: …

`setup.py` writes the stubs of modules with such methods into the built package, which promises types (py.typed).
`python tools/signatures.py` checks all of them. Sources are parsed, not imported.

`python tools/stubs.py FOLDER` writes the stubs of a package in place.
"""

import ast
import sys
from pathlib import Path

FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
CONSTANTS = ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp
BODY = [ast.Expr(ast.Constant(...))]


# Patched methods


def patch_options(node):
    "The options of a function's `@patch` by name; None for a function without it."
    for decorator in getattr(node, 'decorator_list', []):
        function = getattr(decorator, 'func', decorator)
        if ast.unparse(function) == 'patch':
            options = getattr(decorator, 'keywords', [])
            return {o.arg: ast.literal_eval(o.value) for o in options}
    return None


def patched_class(node):
    "The name of the class that a patched function becomes a method of."
    annotation = node.args.args[0].annotation
    quoted = isinstance(annotation, ast.Constant)
    return annotation.value if quoted else ast.unparse(annotation)


def as_method(node):
    "A patched function as the method that it becomes."
    options = patch_options(node)
    decorators = [d for d in node.decorator_list if ast.unparse(getattr(d, 'func', d)) != 'patch']
    names = dict(as_prop='property', cls_method='classmethod')
    decorators += [ast.Name(name) for option, name in names.items() if options.get(option)]
    node.decorator_list = decorators
    node.args.args[0].annotation = None
    return node


# Signatures


def short_default(value):
    "A default as it stands where it is a name or a literal, else `...`."
    literal = isinstance(value, CONSTANTS)
    return value if literal or value is None else ast.Constant(...)


def signature(node):
    "A function without its body."
    args = node.args
    args.defaults = [short_default(d) for d in args.defaults]
    args.kw_defaults = [short_default(d) for d in args.kw_defaults]
    node.body = BODY
    return node


def assigned_attributes(function):
    "`(name, annotation or None)` of what a method assigns to attributes of its instance."
    if not function.args.args:
        return
    instance = function.args.args[0].arg
    arguments = [*function.args.args, *function.args.kwonlyargs]
    annotations = {a.arg: a.annotation for a in arguments}
    for node in ast.walk(function):
        targets = getattr(node, 'targets', [getattr(node, 'target', None)])
        value = getattr(node, 'value', None)
        for target in targets if isinstance(node, (ast.Assign, ast.AnnAssign)) else ():
            for name in getattr(target, 'elts', [target]):
                if isinstance(name, ast.Attribute) and ast.unparse(name.value) == instance:
                    given = annotations.get(value.id) if isinstance(value, ast.Name) else None
                    yield name.attr, getattr(node, 'annotation', given)


def named(statement):
    "The names that a statement of a module or a class defines."
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return [statement.name]
    targets = getattr(statement, 'targets', [getattr(statement, 'target', None)])
    elements = [e for t in targets for e in getattr(t, 'elts', [t])]
    return [e.id for e in elements if isinstance(e, ast.Name)]


def of_any_type(names):
    "Annotations of names whose type is not written."
    return [ast.AnnAssign(ast.Name(name), ast.Name('Any'), None, 1) for name in names]


def attributes(methods, defined):
    "Annotations of the attributes that methods assign and a class does not define."
    annotations = {}
    for method in methods:
        for name, annotation in assigned_attributes(method):
            if name not in defined and annotations.get(name) is None:
                annotations[name] = annotation
    for name, annotation in annotations.items():
        yield ast.AnnAssign(ast.Name(name), annotation or ast.Name('Any'), None, 1)


def class_stub(node, patches):
    "A class with its patched methods and the attributes of its instances, without bodies."
    body = [s for s in node.body if not isinstance(s, ast.Expr)]
    body += [as_method(f) for f in patches.pop(node.name, ())]
    methods = [s for s in body if isinstance(s, FUNCTIONS)]
    defined = [name for s in body for name in named(s)]
    stubs = list(attributes(methods, defined))
    is_dataclass = 'dataclass' in ' '.join(map(ast.unparse, node.decorator_list))
    for statement in body:  # what a dataclass assigns without an annotation is no field of it
        plain = is_dataclass and isinstance(statement, ast.Assign)
        stubs += [statement] if plain else statement_stubs(statement, patches)
    node.body = stubs or BODY
    return node


def is_type(node):
    "Is a value a type, as that of `Rows = list[int] | None`?"
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and is_type(node.left) and is_type(node.right)
    if isinstance(node, ast.Subscript):
        return is_type(node.value)
    name = ast.unparse(node)
    return all(part.isidentifier() for part in name.split('.')) and not name.isupper()


def is_plain(node):
    "Is a value one whose type a checker infers: a number, a string, a tuple of such, a type?"
    if isinstance(node, ast.Constant):
        return node.value is not None
    return is_type(node) or (isinstance(node, ast.Tuple) and all(map(is_plain, node.elts)))


def statement_stubs(node, patches):
    "The statements of a stub for one of a module or a class."
    if isinstance(node, FUNCTIONS):
        return [signature(node)]
    if isinstance(node, ast.ClassDef):
        return [class_stub(node, patches)]
    if isinstance(node, ast.Assign) and named(node) != ['__all__'] and not is_plain(node.value):
        return of_any_type(named(node))
    if isinstance(node, ast.ImportFrom) and node.level:  # modules import helpers through each other
        for alias in node.names:
            alias.asname = alias.asname or alias.name
    return [node]


STATEMENTS = *FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign


def patches_of(tree):
    "Class -> the functions of a module that become its methods."
    patches = {}
    for node in tree.body:
        if patch_options(node) is not None:
            patches.setdefault(patched_class(node), []).append(node)
    return patches


def module_stub(source, others=()):
    "The stub of a module; `others` are functions of other modules that become methods of its classes."
    tree = ast.parse(source)
    body = [s for s in tree.body if isinstance(s, (*STATEMENTS, ast.If)) and not is_main(s)]
    body = [s for s in body if patch_options(s) is None]
    patches = patches_of(tree)
    for function in others:
        patches.setdefault(patched_class(function), []).append(function)
    stub = ast.parse('from typing import Any').body
    for statement in body:
        stub += statement_stubs(statement, patches)
    tree = ast.fix_missing_locations(ast.Module(stub, []))
    return f'# Made from the module by tools/stubs.py.\n{ast.unparse(tree)}\n'


def is_main(node):
    "Is a statement the one that runs a module as a script?"
    return isinstance(node, ast.If) and '__name__' in ast.unparse(node.test)


def modules(folder):
    "The modules of a package that could have a stub, and have none yet."
    paths = [p for p in sorted(Path(folder).rglob('*.py')) if '__' not in p.name]
    return [p for p in paths if p.name != '_modidx.py' and not p.with_suffix('.pyi').exists()]


def imported_from(tree, name, path):
    "The file of the module from which a module of the package imports a name."
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and name in {a.asname or a.name for a in node.names}:
            return path.parents[node.level - 1].joinpath(*node.module.split('.')).with_suffix('.py')
    raise ValueError(f'{path} neither defines nor imports {name}')


def patched_modules(folder):
    "Module -> the functions that become methods of its classes, for those with such classes."
    homes = {}
    for path in modules(folder):
        tree = ast.parse(path.read_text(encoding='utf-8'))
        local = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
        for name, functions in patches_of(tree).items():
            home = path if name in local else imported_from(tree, name, path)
            homes.setdefault(home, []).extend(functions if home != path else [])
    return homes


def write(folder, every=False):
    "Write stubs into a package beside its modules with patched methods, or beside all; the stubs' paths."
    homes = patched_modules(folder)
    written = []
    for path in modules(folder) if every else sorted(homes):
        stub = path.with_suffix('.pyi')
        source = path.read_text(encoding='utf-8')
        stub.write_text(module_stub(source, homes.get(path, ())), encoding='utf-8')
        written.append(stub)
    return written


if __name__ == '__main__':
    print(len(write(sys.argv[1])), 'stubs')
