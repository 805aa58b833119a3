"""Searches the nodes' logs for lines that must not be there. Blocking.

A finding is one line; for a traceback it is the line before it and the exception at its end.
chaos.checks.replicas decides whether an injected fault explains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from raftmq.chaos.history.files import HistoryWriter

BAD = re.compile(
    r"Traceback \(most recent call last\)|[Ii]nvariant|member_failed|StoreDamaged|AssertionError"
    r"|\bCRITICAL\b|Fatal Python error|was never (awaited|retrieved)|Task was destroyed"
)
TRACEBACK = "Traceback (most recent call last)"
LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
LINE_LENGTH_MAX = 500
TRACEBACK_LINES_MAX = 500
FINDINGS_MAX = 1_000  # of one node: a log full of one failure is one failure


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that should not be there; `number` counts from 1."""

    number: int
    line: str
    level: str


def write_findings(history: HistoryWriter, logs: Mapping[str, Path]) -> int:
    """Search each node's log; write a record for every finding and one for the search.

    A missing log has no lines. Returns the number of findings.
    """
    lines: dict[str, int] = {}
    found = 0
    for node, path in logs.items():
        lines[node] = 0
        if not path.exists():
            continue
        counted = _Counted(path)
        for finding in search(counted):
            found += 1
            history.event(
                "ok",
                "log_line",
                "observer",
                history.next_op(),
                node=node,
                line=finding.line,
                level=finding.level,
            )
        lines[node] = counted.count
    history.event("ok", "logs", "observer", history.next_op(), lines=lines)
    return found


def search(lines: Iterable[str]) -> Iterator[Finding]:
    """Yield the findings of a log, at most FINDINGS_MAX."""
    count = 0
    before = ""
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        text = line.rstrip("\n")
        if BAD.search(text) and count < FINDINGS_MAX:
            count += 1
            words = text.strip()
            if TRACEBACK in text:
                words = f"{before} | {_exception(numbered)}".removeprefix(" | ")
            level = LEVEL.search(before if TRACEBACK in text else text)
            yield Finding(number, words[:LINE_LENGTH_MAX], level.group(1) if level else "")
        before = text.strip()[: LINE_LENGTH_MAX // 2]


def _exception(lines: Iterator[tuple[int, str]]) -> str:
    """Skip a traceback's indented lines; return the line that names the exception."""
    for skipped, (_, line) in enumerate(lines):
        if line.strip() and not line.startswith(" "):
            return line.strip()
        if skipped >= TRACEBACK_LINES_MAX:
            break
    return "a traceback without an end"


class _Counted:
    """A log's lines, counted as they are read."""

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._path = path

    def __iter__(self) -> Iterator[str]:
        with self._path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self.count += 1
                yield line
