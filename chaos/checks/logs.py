"""Searches the nodes' logs for lines that must not be there. Blocking.

A finding is a line; for a traceback it is the line before the traceback and the exception at its
end. Its time is the time at the start of the line. A traceback has the time of the previous line if
that line is of level WARNING or above, because otherwise a restarted process may have written the
traceback. chaos.checks.replicas decides if an injected fault explains a finding.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from pathlib import Path

from ..history.files import HistoryWriter

BAD = re.compile(
    r"Traceback \(most recent call last\)|[Ii]nvariant|member_failed|StoreDamaged|AssertionError"
    r"|\b(unforeseen|contained) what=|\b(request|call|task)_failed \S|\bloop_exception "
    r"|\bCRITICAL\b|Fatal Python error|was never (awaited|retrieved)|Task was destroyed"
)
TRACEBACK = "Traceback (most recent call last)"
LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
HEADS = frozenset({"WARNING", "ERROR", "CRITICAL"})  # levels of lines that a traceback belongs to
TIME = re.compile(r'(?:\{"time":")?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]\d+(?:Z|[+-]\d\d:\d\d)?)')
LINE_LENGTH_MAX = 500
TRACEBACK_LINES_MAX = 500
FINDINGS_MAX = 1_000  # per node, because a log full of one failure is one failure


@dataclass(frozen=True, slots=True)
class Finding:
    """A line that should not be in a log; `number` counts from 1. `time` is as in the log, or "" if
    the line has none; then `until` is the time of the next line with a time, or ""."""

    number: int
    line: str
    level: str
    time: str = ""
    until: str = ""


def write_findings(
    history: HistoryWriter,
    logs: Mapping[str, Path],
    zone: tzinfo | None = None,
    since_ns: int | None = None,
) -> int:
    """Search the nodes' logs; record at most FINDINGS_MAX findings each, and the end of the search.

    A missing log has no lines. `zone` is the zone of times without one, or None for this machine's.
    Lines from before `since_ns`, on the history's clock, are ignored. Returns the number of
    findings.
    """
    lines: dict[str, int] = {}
    result = 0
    zero_ns = time.time_ns() - time.monotonic_ns()  # the wall clock when the history's was 0
    for node, path in logs.items():
        lines[node] = 0
        if not path.exists():
            continue
        counted = _Counted(path)
        of_node = 0
        for finding in search(counted):
            logged_ns = _logged_ns(finding.time, zone, zero_ns)
            latest_ns = logged_ns or _logged_ns(finding.until, zone, zero_ns)
            early = since_ns is not None and latest_ns != 0 and latest_ns < since_ns
            if early or of_node == FINDINGS_MAX:
                continue
            of_node += 1
            history.record(
                "log_line",
                "observer",
                node=node,
                line=finding.line,
                level=finding.level,
                logged_ns=logged_ns,
            )
        result += of_node
        lines[node] = counted.count
    history.record("logs", "observer", lines=lines)
    return result


def search(lines: Iterable[str]) -> Iterator[Finding]:
    before, timeless = "", list[Finding]()
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        text = line.rstrip("\n")
        if timeless and (dated := TIME.match(text)):
            yield from (replace(one, until=dated.group(1)) for one in timeless)
            timeless.clear()
        if BAD.search(text):
            message = head = text.strip()
            is_traceback = TRACEBACK in text
            if is_traceback:
                message, head = f"{before} | {_exception(numbered)}".removeprefix(" | "), before
            result = LEVEL.search(head)
            level = result.group(1) if result else ""
            at = TIME.match(head) if level in HEADS or not is_traceback else None
            message = message[:LINE_LENGTH_MAX]
            if at is not None:
                yield Finding(number, message, level, at.group(1))
            elif len(timeless) < FINDINGS_MAX:
                timeless.append(Finding(number, message, level))
        before = text.strip()[: LINE_LENGTH_MAX // 2]
    yield from timeless


def _exception(lines: Iterator[tuple[int, str]]) -> str:
    """Skip a traceback's indented lines; return the line that names the exception."""
    for skipped, (_, line) in enumerate(lines):
        if line.strip() and not line.startswith(" "):
            return line.strip()
        if skipped >= TRACEBACK_LINES_MAX:
            break
    return "a traceback without an end"


def _logged_ns(text: str, zone: tzinfo | None, zero_ns: int) -> int:
    """Return a log line's time on the history's clock, 0 at `zero_ns`; 0 without a time."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return 0
    if at.tzinfo is None and zone is not None:
        at = at.replace(tzinfo=zone)
    return round(at.timestamp() * 1_000) * 1_000_000 - zero_ns


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
