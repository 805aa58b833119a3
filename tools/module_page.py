"""Generates docs/modules.md from the first sentences of all modules' docstrings."""

from __future__ import annotations

import ast
import re
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "modules.md"
HEAD = """# Modules

Every module with the first sentence of its docstring, generated from the code by `make modules`.
The docstrings have the invariants, the formats and the reasons. [Architecture](architecture.md)
shows how the modules work together; `CONTRIBUTING.md` names the file for a change.
"""


def main() -> None:
    PAGE.write_text(page())


def page(root: Path = ROOT) -> str:
    """Return the page: a section per package at the top level, a table per directory."""
    sections = [HEAD]
    for package in packages(root):
        sections.append(f"## {package}\n")
        summary = summary_of(root / package / "__init__.py")
        sections += [f"{summary}\n"] if summary else []
        files = sorted((root / package).rglob("*.py"), key=lambda path: (path.parent, path.name))
        for directory, group in groupby(files, key=lambda path: path.parent):
            sections += table(directory.relative_to(root), list(group))
    return "\n".join(sections)


def packages(root: Path) -> list[str]:
    """Return the directories that `raftmq/` links to."""
    return sorted(path.name for path in (root / "raftmq").iterdir() if path.is_symlink())


def table(directory: Path, files: list[Path]) -> list[str]:
    """Return a directory's rows, below a heading if it is a sub-package; nothing without rows."""
    below = len(directory.parts) > 1
    title = [f"### {directory}\n"] if below else []
    rows = [
        f"| `{path.name}` | {summary_of(path).replace('|', chr(92) + '|')} |"
        for path in files
        if path.name != "__init__.py"
    ]
    summary = next((summary_of(path) for path in files if path.name == "__init__.py"), "")
    if below and summary:
        title.append(f"{summary}\n")
    return [*title, "\n".join(["| module | subject |", "|---|---|", *rows]) + "\n"] if rows else []


def summary_of(path: Path) -> str:
    """Return the first sentence of a module's docstring, or "" if it has none."""
    if not path.exists():
        return ""
    paragraph = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    sentence = re.match(r".*?(?:[.?!](?= )|$)", " ".join(paragraph.split()))
    return sentence[0] if sentence else ""


if __name__ == "__main__":
    main()
