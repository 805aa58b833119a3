"""The exercises of docs/concepts.md show what the page says."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.docs.pages import ROOT

FAULTS = ("power_cut_all", "kill", "fail_sync", "rot")
ACKNOWLEDGED_MIN = 150  # "184", which a change of the programs may move
WAIT_S = 300.0  # a bound against hanging, not an expectation


def test_exercise_seed_shows_what_the_page_promises() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text()
    matches = re.findall(r"python -m tests\.simulator --verbose (\d+)", page)
    assert len(matches) == 1
    played = subprocess.run(
        [sys.executable, "-m", "tests.simulator", "--verbose", matches[0]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert played.returncode == 0, played.stderr
    shown = played.stdout
    assert "role_changed node=" in shown
    assert "recovering node=" in shown and "recovered node=" in shown
    assert [fault for fault in FAULTS if f"fault {fault}\n" not in shown] == []
    acknowledged = re.search(r"'acknowledged': (\d+)", shown)
    assert acknowledged is not None
    assert int(acknowledged[1]) >= ACKNOWLEDGED_MIN
