"""Figures of the product: lines of code, files, circles of imports, longest files and functions.

    python -m tests.tidy.report [CHECKOUT]

A person reads it: a long file or function is a hint to look whether it does two things, no more.
Lines of code are lines that hold code: not blank, no comment, no docstring.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

from tests.tidy.sources import ROOT, circles, graph, parsed, product

SHOWN = 10
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_code(text: str) -> set[int]:
    """Return the numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def longest_functions(root: Path = ROOT) -> list[tuple[int, str]]:
    """Return the lengths of all functions, in lines of code, and where they stand."""
    found = []
    for path in product(root):
        text = path.read_text()
        code = lines_of_code(text)
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                place = f"{path.relative_to(root)}:{node.lineno} {node.name}"
                found.append((len(code.intersection(own)), place))
    return sorted(found, reverse=True)


def longest_files(root: Path = ROOT) -> list[tuple[int, str]]:
    """Return the lengths of all files, in lines of code, and their names."""
    sizes = [(len(lines_of_code(p.read_text())), str(p.relative_to(root))) for p in product(root)]
    return sorted(sizes, reverse=True)


def show(title: str, rows: list[tuple[int, str]]) -> None:
    print(f"\n{title}")
    for size, name in rows[:SHOWN]:
        print(f"{size:6,}  {name}")


def main() -> None:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    files = longest_files(root)
    rings = circles(graph(root))
    rooms: dict[str, int] = {}
    for size, name in files:
        rooms[name.split("/")[0]] = rooms.get(name.split("/")[0], 0) + size
    print(f"{sum(size for size, _ in files):,} lines of code in {len(files)} files")
    print(", ".join(f"{room} {size:,}" for room, size in sorted(rooms.items())))
    sizes = ", ".join(str(len(ring)) for ring in rings) or "none"
    print(f"circles of files that import each other: {sizes}")
    show("Longest files, in lines of code", files)
    show("Longest functions, in lines of code", longest_functions(root))


if __name__ == "__main__":
    main()
