"""Looks inside the product's classes: objects have parts, and no fields of somebody else's.

Everything here is told from the source text alone, so a name that is assembled at run time
(setattr, a class made by a function) is not seen.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.tidy.sources import ROOT, module_of, parsed, product

# Classes from outside that make a heap of data or of names out of a class, or only declare.
DATA_BASES = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag", "NamedTuple", "TypedDict"}
DECLARING_BASES = {"Protocol", "ABC"}

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Class:
    """A class of the product: where it stands, what it inherits from, and its syntax tree."""

    file: str
    node: ast.ClassDef
    bases: list[str]  # names as written, without what stands in brackets
    parents: list["Class"] = field(default_factory=list)  # of the product

    @property
    def name(self) -> str:
        return f"{self.file}::{self.node.name}"

    def ancestors(self) -> Iterator["Class"]:
        for parent in self.parents:
            yield parent
            yield from parent.ancestors()

    def inherits(self, names: set[str]) -> bool:
        return any(
            base.rsplit(".", 1)[-1] in names
            for each in (self, *self.ancestors())
            for base in each.bases
        )

    def is_exception(self) -> bool:
        return any(
            base.endswith(("Error", "Exception", "Warning")) or base in ("KeyboardInterrupt",)
            for each in (self, *self.ancestors())
            for base in each.bases
        )

    def only_declares(self) -> bool:
        """Return whether it has neither fields with values nor methods that do something."""
        return all(_declares(statement) for statement in self.node.body)


def _declares(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return all(_is_text_or_dots(each) for each in node.body)
    return _is_text_or_dots(node) or (isinstance(node, ast.AnnAssign) and node.value is None)


def _is_text_or_dots(node: ast.stmt) -> bool:
    if isinstance(node, ast.Pass):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def classes(root: Path = ROOT) -> list[Class]:
    """Return every class of the product, with its parents among them found."""
    by_file: dict[str, dict[str, Class]] = {}
    names: dict[str, dict[str, tuple[str, str]]] = {}  # file -> local name -> (module, name)
    for path in product(root):
        file = str(path.relative_to(root))
        tree = parsed(path)
        by_file[file] = {
            node.name: Class(file, node, [_written(base) for base in node.bases])
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }
        names[file] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = module_of(node, path)
                for alias in node.names:
                    names[file][alias.asname or alias.name] = (module, alias.name)

    def find(file: str, name: str, seen: frozenset[tuple[str, str]] = frozenset()) -> Class | None:
        """Follow a name through imports, re-exports too, to the class that it means."""
        if (file, name) in seen:
            return None
        head, _, rest = name.partition(".")
        if not rest and head in by_file[file]:
            return by_file[file][head]
        if head not in names[file]:
            return None
        module, taken = names[file][head]
        stem = f"{module}.{taken}" if rest else module
        for target in (f"{stem.replace('.', '/')}.py", f"{stem.replace('.', '/')}/__init__.py"):
            if target in by_file:
                return find(target, rest or taken, seen | {(file, name)})
        return None

    for file, found in by_file.items():
        for each in found.values():
            parents = [find(file, base) for base in each.bases]
            each.parents = [parent for parent in parents if parent is not None]
    return [each for found in by_file.values() for each in found.values()]


def _written(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


def inheritors(root: Path = ROOT) -> list[str]:
    """Return the classes that take fields or methods from another class of the product.

    Exceptions may, and so may enumerations and records. A base that only declares gives nothing.
    """
    return [
        f"{each.name}({parent.node.name})"
        for each in classes(root)
        for parent in each.parents
        if not each.is_exception()
        and not each.inherits(DATA_BASES)
        and not (parent.inherits(DECLARING_BASES) and parent.only_declares())
    ]


def stubs(root: Path = ROOT) -> list[str]:
    """Return the methods that raise NotImplementedError."""
    return [
        f"{path.relative_to(root)}::{function.name}"
        for path in product(root)
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and ast.unparse(node.exc).startswith("NotImplementedError")
    ]


def late_attributes(root: Path = ROOT) -> list[str]:
    """Return the attributes that a method sets on its object and that its `__init__` did not.

    A dataclass declares its fields in its body; in any other class an annotation in the body sets
    nothing and does not count.
    """
    found = []
    for each in classes(root):
        known = set().union(*(_declared(c) for c in (each, *each.ancestors())))
        late = {
            name
            for method in _methods(each.node)
            if method.name not in ("__init__", "__new__")
            for name in _set_on_self(method)
            if name not in known
        }
        found += [f"{each.name}.{name}" for name in sorted(late)]
    return found


def _methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.args.args:
            yield statement


def _declared(each: Class) -> set[str]:
    names = set()
    is_dataclass = any("dataclass" in ast.unparse(d) for d in each.node.decorator_list)
    for statement in each.node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            if is_dataclass or each.inherits(DATA_BASES):
                names.add(statement.target.id)
        elif isinstance(statement, ast.FunctionDef) and any(
            ast.unparse(d).endswith(".setter") for d in statement.decorator_list
        ):
            names.add(statement.name)
    for method in _methods(each.node):
        if method.name in ("__init__", "__new__", "__post_init__"):
            names |= _set_on_self(method)
    return names


def _set_on_self(method: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    first = method.args.args[0].arg
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == first
        and first in ("self", "cls")
    }


def planted(root: Path = ROOT) -> list[str]:
    """Return the places where a function is set as an attribute of another object.

    Seen: a lambda, a function of the same file, a method of one's own, or what has the name of a
    method and of no attribute in the product; set on anything else than `self`.
    """
    trees = {path: parsed(path) for path in product(root)}
    methods: set[str] = set()
    attributes: set[str] = set()
    for tree in trees.values():
        second_names = _second_names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for method in _methods(node):
                    kind = attributes if _is_property(method) else methods
                    kind.add(method.name)
                attributes |= {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if node not in second_names:
                    attributes.add(node.attr)
    found = []
    for path, tree in trees.items():
        functions = {node.name for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _is_function(
                node.value, functions, methods - attributes
            ):
                found += [
                    f"{path.relative_to(root)}::{ast.unparse(target)}"
                    for target in node.targets
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) != "self"
                ]
    return found


def _second_names(tree: ast.AST) -> set[ast.expr]:
    """Return where an object gets what a part has, under the same name: `self.ask = asker.ask`."""
    return {
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == node.value.attr
    }


def _is_function(value: ast.expr, of_file: set[str], methods: set[str]) -> bool:
    match value:
        case ast.Lambda():
            return True
        case ast.Name(id=name):
            return name in of_file
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name in of_file or name in methods
        case ast.Attribute(attr=name):
            return name in methods
    return False


def _is_property(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = [ast.unparse(each) for each in method.decorator_list]
    return any("property" in each or each.endswith(".setter") for each in decorators)
