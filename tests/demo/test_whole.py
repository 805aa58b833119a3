"""The whole demo, small: 2,400 departures, two real kills, the Spark audit, exit status 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from raftmq.chaos.cluster.clusterfile import load_state
from raftmq.chaos.cluster.process import state
from tests.smallspark import PROGRAM

pytestmark = pytest.mark.timeout(900)  # Spark starts in it, and may have to share a processor


def demo(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    text = ["--dir", str(directory / "work"), "--report", str(directory / "report"), *arguments]
    return subprocess.run(
        [sys.executable, "-m", "demo.flights", *text],
        env=os.environ | PROGRAM,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )


def test_demo_end_to_end(tmp_path: Path) -> None:
    done = demo(tmp_path, "--limit", "2400", "--rate", "200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything holds" in done.stdout
    verdict = orjson.loads((tmp_path / "report" / "verdict.json").read_bytes())
    assert verdict["ok"] is True
    figures = verdict["audit"]["figures"]
    assert (figures["sent"], figures["acknowledged"]) == (2400, 2400)
    assert verdict["recovery"]["recovered"] == 2
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("<svg") > 2  # the pictures
    assert len(page) < 1_000_000
    nodes = load_state(tmp_path / "work" / "cluster").nodes
    assert [state(node.process) for node in nodes if node.process] == ["dead"] * 4


def test_demo_rejects_a_load_too_short_to_kill_under(tmp_path: Path) -> None:
    done = demo(tmp_path, "--limit", "40")
    assert done.returncode == 2
    assert "larger --limit or a lower --rate" in done.stderr
    nodes = load_state(tmp_path / "work" / "cluster").nodes
    assert [state(node.process) for node in nodes if node.process] == ["dead"] * 4
