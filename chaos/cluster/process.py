"""Starts, recognises and signals processes that outlive the command that starts them.

A process is identified by its pid and its start time (clock ticks since boot, field 22 of
/proc/PID/stat). The check and the signal use a single pidfd, so a reused pid is never signalled.
Linux only. A stopped (SIGSTOP) process is alive; a zombie is dead once its last thread has closed
its files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOG_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """A run of a container, and its start time in the engine."""

    container: str
    started_at: str = ""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, distinct from a later process with its pid. With `run`, a container's, the pid is
    the engine's, and the start is the run's."""

    pid: int
    start_ticks: int
    run: ContainerRun | None = None


def spawn(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> ProcessId:
    """Start `command` in a session of its own, output appended to `log`; do not wait for it.

    Raises OSError if the program cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(environment),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o640),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        setsigmask=[],
    )
    result = _stat(pid)
    if result is None:  # our own child is visible until it is waited for
        raise ProcessLookupError(f"process {pid} vanished while it was started")
    return ProcessId(pid, result[1])


def state(process: ProcessId) -> str:
    """Return "running", "stopped" or "dead". Reaps the process if it is a dead child of ours."""
    result = _stat(process.pid)
    if result is None or result[1] != process.start_ticks:
        return "dead"
    if result[0] in "ZX":
        if result[2] > 1:  # killed, and a thread of it is still in the middle of a system call
            return "running"
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            pass  # a foreign child, reaped by its parent or init
        return "dead"
    return "stopped" if result[0] in "Tt" else "running"


def send_signal(process: ProcessId, number: signal.Signals) -> None:
    """Signal exactly this process. Raises ProcessLookupError if it is gone."""
    descriptor = os.pidfd_open(process.pid)
    try:
        if state(process) == "dead":
            raise ProcessLookupError(f"process {process.pid} is gone")
        signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def tail(log: Path, lines: int) -> str:
    """Return the last `lines` lines of a log, "" if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return (state letter, start ticks, threads) of a pid, None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name in brackets may hold anything
    return fields[0], int(fields[19]), int(fields[17])
