"""docs/compatibility.md: what foreign clients are tested for, as tests/interop has it.

`RAFTMQ_REWRITE=1 pytest tests/docs` writes the table anew.
"""

from __future__ import annotations

import os

from tests.docs.pages import ROOT
from tests.interop.scenarios import ALL, TABLE

PAGE = ROOT / "docs" / "compatibility.md"
NAMES = {"java49": "Java 4.9", "java53": "Java 5.3", "go": "Go 2.1", "node": "Node 3.12"}


def table() -> str:
    """One row a scenario."""
    heads = [f"| scenario | {' | '.join(NAMES[client] for client in ALL)} |", "|---" * 5 + "|"]
    rows = [
        f"| {row.name} | {' | '.join('yes' if c in row.clients else '' for c in ALL)} |"
        for row in TABLE
    ]
    return "\n".join([*heads, *rows]) + "\n"


def test_the_page_says_what_foreign_clients_are_tested_for() -> None:
    text = PAGE.read_text()
    start = text.index("| scenario |")
    end = text.index("\n\n", start) + 1
    if os.environ.get("RAFTMQ_REWRITE"):
        PAGE.write_text(text[:start] + table() + text[end:])
        text, end = PAGE.read_text(), start + len(table())
    said = text[start:end].splitlines()
    assert not set(said) - set(table().splitlines())  # nothing that is not so
    assert len(said) > 20
    assert set(NAMES) == set(ALL)
