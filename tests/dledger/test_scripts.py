"""Interaction scripts: commands and the exact trace that must come of them.

RAFTMQ_REWRITE=1 pytest tests/dledger/test_scripts.py   writes what came as what is expected.
Read the difference before committing it: every line is a claim about Raft.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.dledger.script import Script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_interaction_script_has_its_recorded_trace(path: Path) -> None:
    expected = path.read_text()
    actual = Script().run(expected)
    if os.environ.get("RAFTMQ_REWRITE"):
        path.write_text(actual)
        return
    assert actual == expected


def test_interaction_scripts_exist() -> None:
    assert len(SCRIPTS) >= 20
    for path in SCRIPTS:
        assert path.read_text().startswith("# "), f"{path.name} does not say what it shows"
