"""Processes, recognised beyond their pid, signalled exactly, with the ends of their logs."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from raftmq.chaos.cluster import process
from raftmq.chaos.cluster.process import ProcessId, send_signal, spawn, state, tail
from tests.chaos.doubles import SLEEPS
from tests.waiting import wait_until


def wait_for(child: ProcessId, wanted: str) -> None:
    wait_until(lambda: state(child) == wanted, lambda: (state(child), wanted))


@pytest.fixture
def sleeper(tmp_path: Path):
    child = spawn([sys.executable, "-S", "-c", SLEEPS], tmp_path / "log.txt", os.environ)
    yield child
    if state(child) != "dead":
        send_signal(child, signal.SIGKILL)
        wait_for(child, "dead")


def test_process_starts_runs_and_ends(sleeper: ProcessId) -> None:
    assert state(sleeper) == "running"
    assert os.getsid(sleeper.pid) == sleeper.pid  # a session of its own
    send_signal(sleeper, signal.SIGSTOP)
    wait_for(sleeper, "stopped")
    send_signal(sleeper, signal.SIGCONT)
    wait_for(sleeper, "running")
    send_signal(sleeper, signal.SIGKILL)
    wait_for(sleeper, "dead")
    with pytest.raises(ProcessLookupError):
        send_signal(sleeper, signal.SIGKILL)


def test_process_with_a_reused_pid_is_never_signalled(sleeper: ProcessId) -> None:
    earlier = replace(sleeper, start_ticks=sleeper.start_ticks - 1)
    assert state(earlier) == "dead"
    with pytest.raises(ProcessLookupError):
        send_signal(earlier, signal.SIGKILL)
    assert state(sleeper) == "running"


def test_missing_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        spawn([str(tmp_path / "nothing")], tmp_path / "log.txt", {})


def test_process_log_is_appended_to_and_its_tail_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "n0" / "log.txt"
    assert tail(log, 3) == ""
    for word in ("first", "second"):
        child = spawn([sys.executable, "-S", "-c", f"print('{word}')"], log, os.environ)
        wait_for(child, "dead")
    assert tail(log, 3) == "first\nsecond"
    assert tail(log, 1) == "second"
    monkeypatch.setattr(process, "LOG_TAIL_BYTES", 9)
    assert tail(log, 3) == "t\nsecond"  # 9 bytes with the last newline
