"""The files that docstrings and comments name, and which of them are not there.

A file is named from the top of the repository ("store/frame.py") or, in its own directory, by its
name alone ("sources.py"). A test may do so for the files of the directory that it mirrors, too.
"""

import ast
import io
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

    def gone(text: str) -> set[str]:
        names = set(_NAME.findall(text))
        return {n for n in names if not any((place / n).is_file() for place in places)}

    text = path.read_text()
    if not gone(text):  # wherever in the file: most are not taken apart, which takes long
        return []
    return sorted(set().union(*map(gone, _texts(text))))


def _texts(text: str) -> Iterator[str]:
    """Yield the docstrings and comments of a file's text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
