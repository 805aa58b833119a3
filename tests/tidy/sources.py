"""The product's files, what they import, and the circles that their imports make.

An import counts wherever it stands: at the top, inside a function, or under TYPE_CHECKING. It
counts for the file that it names: `from raftmq.store import disk` is an import of `store/disk.py`,
and `from raftmq.store import Store` one of `store/__init__.py`. Functions take the checkout to look
at, so that older commits, whose rooms were imported by bare names, can be compared.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = (
    "remoting",
    "web",
    "store",
    "dledger",
    "broker",
    "namesrv",
    "client",
    "chaos",
    "audit",
    "spark",
    "ops",
    "mqadmin",
    "proxy",
)
# Beside the rooms: the package's own files, not the links to the rooms in it.
FRONT_DOOR = ("raftmq", "pyspark_raftmq")


def sources(root: Path = ROOT) -> list[Path]:
    """Return the files of all rooms."""
    return sorted(path for room in ROOMS for path in (root / room).rglob("*.py"))


def product(root: Path = ROOT) -> list[Path]:
    """Return the files of all rooms and those of the package itself."""
    front = [path for name in FRONT_DOOR for path in (root / name).glob("*.py")]
    return sorted({*sources(root), *front})


@cache
def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text())


def package_of(path: Path) -> list[str]:
    """Return the names of the packages around a file, the outermost first."""
    parent = path.parent
    return [*package_of(parent), parent.name] if (parent / "__init__.py").exists() else []


def module_of(node: ast.ImportFrom, path: Path) -> str:
    """Return the module that a file imports names from: "store.record" for `raftmq.store.record`,
    also where it is written relative to the file."""
    module = node.module or ""
    if node.level:
        package = package_of(path)
        module = ".".join([*package[: len(package) + 1 - node.level], *module.split(".")])
    return module.removeprefix("raftmq.").rstrip(".")


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each module that a file imports from, with the names that it takes out of it.

    Ours are named by room: "store.record" for `raftmq.store.record`.
    """
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.removeprefix("raftmq."), []
        elif isinstance(node, ast.ImportFrom):
            module, names = module_of(node, path), [alias.name for alias in node.names]
            if module == "raftmq":
                for name in names:
                    yield name if name in ROOMS else f"raftmq.{name}", []
            else:
                yield module, names


def imported(path: Path) -> list[str]:
    """Return all modules that a file imports, ours by room."""
    return [name for name, _ in imports(path)]


def graph(root: Path = ROOT) -> dict[str, set[str]]:
    """Return, for every file of the product, the product's files that it imports."""
    files = {str(path.relative_to(root)): path for path in product(root)}

    def file_of(module: str) -> str | None:
        stem = module.replace(".", "/")
        return next((f for f in (f"{stem}.py", f"{stem}/__init__.py") if f in files), None)

    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        found: set[str | None] = set()
        for module, names in imports(path):
            inner = {file_of(f"{module}.{each}"): each for each in names}
            found |= set(inner)
            if not names or None in inner:  # something else than a module is taken out of it
                found.add(file_of(module))
        edges[name] = {each for each in found if each is not None} - {name}
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files that import each other, directly or not, the largest first.

    Tarjan's strongly connected components, without recursion.
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []
    for start in edges:
        work = [] if start in order else [(start, iter(sorted(edges[start])))]
        while work:
            node, rest = work[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
            for after in rest:
                if after not in order:
                    work.append((after, iter(sorted(edges[after]))))
                    break
                if after in stack:
                    low[node] = min(low[node], order[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    at = stack.index(node)
                    found.append(sorted(stack[at:]))
                    del stack[at:]
    return sorted((group for group in found if len(group) > 1), key=lambda g: (-len(g), g))
