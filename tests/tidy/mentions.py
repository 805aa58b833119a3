"""The files that docstrings and comments name, and which of them are not there.

A file is named from the top of the repository ("store/frame.py") or, in its own directory, by its
name alone ("sources.py"). A test may do so for the files of the directory that it mirrors, too.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import ROOT

_NAME = re.compile(r"[\w./*-]*\w\.py\b")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def missing(path: Path, root: Path = ROOT) -> list[str]:
    """Return the files that `path` names and that do not exist."""
    beside = path.parent.relative_to(root)
    places = [root, root / beside]
    if beside.parts[:1] == ("tests",):
        places.append(root.joinpath(*beside.parts[1:]))
    names = {name for text in _texts(path) for name in _NAME.findall(text)}
    return sorted(n for n in names if not any((place / n).is_file() for place in places))


def _texts(path: Path) -> Iterator[str]:
    """Yield a file's docstrings and comments."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, _DOCUMENTED):
            yield ast.get_docstring(node) or ""
    with tokenize.open(path) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT:
                yield token.string
