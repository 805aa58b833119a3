"""Private members of the product that tests read, replace or import.

A name counts if a class or module of the product defines it and the test's own file does not. The
receiver's type is unknown, so a foreign object's member counts too if the product has another
member of its name. Only classes and modules imported from elsewhere are known to be foreign.
"""

import ast
from collections.abc import Iterable
from pathlib import Path

from tests.tidy.sources import ROOT, parsed, product

_PATCHES = ("setattr", "getattr", "object")  # monkeypatch.setattr, getattr, patch.object
_NAMEDTUPLE = {"_replace", "_asdict", "_fields", "_make"}


def reached(root: Path = ROOT) -> list[str]:
    """Return "file:line name" of each use."""
    private = set().union(*(_defined(parsed(path)) for path in product(root))) - _NAMEDTUPLE
    uses = []
    for path in sorted((root / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text())
        wanted, foreign = private - _defined(tree), _foreign(tree)
        found = ((line, name) for line, name in _uses(tree, foreign) if name in wanted)
        uses += [f"{path.relative_to(root)}:{line} {name}" for line, name in sorted(found)]
    return uses


def _defined(tree: ast.Module) -> set[str]:
    """Return the private names that a file assigns or declares."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if _is_own(node.value) else set()
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def _foreign(tree: ast.Module) -> set[str]:
    """Return the names that a file imports from elsewhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not _is_ours(node):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names} - {"raftmq"}
    return names


def _is_ours(node: ast.ImportFrom) -> bool:
    return (node.module or "").split(".")[0] in ("raftmq", "tests")


def _uses(tree: ast.Module, foreign: set[str]) -> Iterable[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            receiver = node.value
            known = isinstance(receiver, ast.Name) and receiver.id in foreign
            if not known and not _is_own(receiver):
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("raftmq"):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in _PATCHES:
            for argument in node.args[1:2]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def _is_own(receiver: ast.expr) -> bool:
    if isinstance(receiver, ast.Call):
        receiver = receiver.func  # super()
    return isinstance(receiver, ast.Name) and receiver.id in ("self", "cls", "super")
