"""A test for a reader of the code: shown a function's docstring, name its file.

`python -m tests.tidy.guess --seed 1` prints the docstrings of functions drawn at random, without
the names that would give them away, and `--answers` prints where the same functions are. Read
docs/modules.md first, write a path per docstring, then compare. A wrong guess points to a function
that is away from its family, or to a file whose name misleads.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator

from tests.tidy.sources import ROOT, parsed, product

COUNT = 40
WORDS_MIN = 5  # a shorter docstring says less than the function's name
# Paths, dotted names, names with an underscore or a capital letter inside.
NAMES = re.compile(r"[\w/]+\.py\b|\b\w+(?:\.\w+)+\b|\b\w*[a-z0-9]_\w+\b|\b[A-Z]\w*[a-z][A-Z]\w*\b")


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield (place, name, docstring) of each function of the product that has a docstring."""
    for path in product():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = " ".join((ast.get_docstring(node) or "").split())
                if len(text.split()) >= WORDS_MIN:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node.name, text


def blanked(name: str, text: str) -> str:
    """Return a docstring without the function's own name and without names that look like code."""
    return re.sub(rf"\b{re.escape(name)}\b", "…", NAMES.sub("…", text))


def main() -> None:
    parser = argparse.ArgumentParser(description="Show docstrings, whose files are to be guessed.")
    parser.add_argument("--seed", type=int, required=True, help="the drawing to show")
    parser.add_argument("--count", type=int, default=COUNT, help="functions to draw")
    parser.add_argument("--answers", action="store_true", help="print the functions' places")
    given = parser.parse_args()
    drawn = random.Random(given.seed).sample(sorted(documented()), given.count)
    for number, (place, name, text) in enumerate(drawn, 1):
        print(f"{number:2}  {f'{place} {name}' if given.answers else blanked(name, text)}")


if __name__ == "__main__":
    main()
