"""The console: who uses it is told that nobody reads any more."""

from __future__ import annotations

import os

import pytest

from raftmq.ops.console import PipedConsole, QuietConsole
from tests.brokenpipe import unread


def test_nobody_reads_any_more() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w", buffering=1) as file:
        console = PipedConsole(file=file)
        with pytest.raises(BrokenPipeError):
            console.print("words")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writes)  # what is left goes nowhere


def test_a_program_goes_on_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with unread(monkeypatch):
        console = QuietConsole()
        for _ in range(3):
            console.print("words")
