"""The console: who uses it is told that nobody reads any more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from raftmq.ops.console import PipedConsole, QuietConsole
from tests.brokenpipe import unread


def test_piped_console_raises_on_closed_output() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w", buffering=1) as file:
        console = PipedConsole(file=file)
        with pytest.raises(BrokenPipeError):
            console.print("words")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writes)  # what is left goes nowhere


def test_quiet_console_ignores_closed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with unread(monkeypatch):
        console = QuietConsole()
        for _ in range(3):
            console.print("words")


@pytest.mark.parametrize("reader", ["gone", "full"])
def test_complaint_to_closed_stderr_keeps_the_exit_status(reader: str) -> None:
    text = "from raftmq.ops.console import complain; complain('no store'); raise SystemExit(2)"
    if reader == "full":
        errors = os.open("/dev/full", os.O_WRONLY)
    else:
        reads, errors = os.pipe()
        os.close(reads)
    try:
        ended = subprocess.run([sys.executable, "-c", text], stderr=errors, check=False)
    finally:
        os.close(errors)
    assert ended.returncode == 2
