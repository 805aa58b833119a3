"""Checks of the cluster from outside, of leaders, replicas' bytes, and lines in logs.

A fault may cause a log line that is a violation otherwise (a full disk stops a node on purpose).
Lines like DISK_TROUBLE are allowed after a fault like DISK_FAULTS, on the nodes that the fault hit.
A line without a time is also allowed, because it may be later than the fault. Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict

from ..history.events import Fault, Kind, Leader, LogLine, Logs, Replicas
from .verdict import Check, Handlers, Offenders

DISK_FAULTS = re.compile(r"^(disk|eio|short|flip|torn|lost|lying)-|power-cut")
DISK_TROUBLE = re.compile(
    r"OSError|No space left|Input/output error|fsync|member_failed|StoreDamaged|damaged"
)
CLOCKS_APART_NS = 100_000_000  # logs have milliseconds of a clock that may be set during a run


class TwoLeaders:
    """The check of election safety, at most one leader per term and group (Raft 5.2).

    Terms are above 0: classic masters have none.
    """

    def __init__(self) -> None:
        self._terms: dict[tuple[str, int], set[str]] = defaultdict(set)

    def handlers(self) -> Handlers:
        return {Kind.LED: self._led}

    @property
    def applies(self) -> bool:
        return bool(self._terms)

    def _led(self, leader: Leader) -> None:
        if leader.term > 0:
            self._terms[leader.group, leader.term].add(leader.node)

    def result(self, name: str) -> Check:
        wrong = Offenders()
        for (group, term), nodes in sorted(self._terms.items()):
            if len(nodes) > 1:
                where = f"{group} " if group else ""
                wrong.add(f"{where}term {term}: {', '.join(sorted(nodes))}")
        return wrong.check(name, f"{len(self._terms)} terms seen", len(self._terms))


class ReplicasDiffer:
    """The check that replicas of a group hold the same bytes up to the common commit position."""

    def __init__(self) -> None:
        self._last: dict[str, Replicas] = {}  # group → its last comparison

    def handlers(self) -> Handlers:
        return {Kind.REPLICAS: self._compared}

    @property
    def applies(self) -> bool:
        return bool(self._last)

    def _compared(self, replicas: Replicas) -> None:
        self._last[replicas.group] = replicas

    def result(self, name: str) -> Check:
        wrong = Offenders()
        decided = 0
        complaints = []
        for group, compared in sorted(self._last.items()):
            complaints += [
                f"{group or 'group'} {n}: {reason}" for n, reason in compared.errors.items()
            ]
            if len(compared.parts) < 2 or compared.end <= compared.start:
                complaints.append(f"{group or 'group'}: fewer than two logs to compare")
                continue
            decided += 1
            for text in differences(compared):
                wrong.add(text)
        size = sum(compared.end - compared.start for compared in self._last.values())
        detail = "; ".join([f"{len(self._last)} groups, {size:,} bytes each", *complaints])
        return wrong.check(name, detail, 0 if complaints else decided)


def differences(replicas: Replicas) -> list[str]:
    """Describe each node that differs from the majority, or else from the first."""
    votes: dict[tuple[tuple[int, str], ...], list[str]] = defaultdict(list)
    for node, parts in sorted(replicas.parts.items()):
        votes[tuple(sorted(parts.items()))].append(node)
    right, holders = max(votes.items(), key=lambda vote: len(vote[1]))
    expected = dict(right)
    text = []
    for node, parts in sorted(replicas.parts.items()):
        if node in holders:
            continue
        positions = [p for p in sorted(expected | dict(parts)) if expected.get(p) != parts.get(p)]
        text.append(
            f"{replicas.group or 'group'}: {node} is unlike {', '.join(holders)} "
            f"from the part at {positions[0]} on, below {replicas.end}"
        )
    return text


class BadLogLines:
    """The check for assertion failures, tracebacks and broken invariants in the nodes' logs."""

    def __init__(self) -> None:
        self._hits: dict[str, list[Fault]] = defaultdict(list)  # node → faults
        self._lines: list[LogLine] = []
        self._searched = 0

    def handlers(self) -> Handlers:
        return {Kind.FAULT: self._fault, Kind.LOG_LINE: self._line, Kind.LOGS: self._logs}

    @property
    def applies(self) -> bool:
        return bool(self._lines) or self._searched > 0

    def _fault(self, fault: Fault) -> None:
        for node in fault.nodes:
            self._hits[node].append(fault)

    def _line(self, line: LogLine) -> None:
        self._lines.append(line)

    def _logs(self, logs: Logs) -> None:
        self._searched = sum(logs.lines.values())

    def result(self, name: str) -> Check:
        wrong = Offenders()
        excused = 0
        for line in self._lines:
            if self._is_expected(line):
                excused += 1
            else:
                wrong.add(f"{line.node}: {line.line}")
        detail = f"{self._searched:,} lines searched"
        if excused:
            detail += f", {excused} excused by the faults that were injected"
        return wrong.check(name, detail, self._searched)

    def _is_expected(self, line: LogLine) -> bool:
        return any(
            DISK_FAULTS.search(fault.kind) and DISK_TROUBLE.search(line.line)
            for fault in self._hits.get(line.node, ())
            if not line.logged_ns or line.logged_ns + CLOCKS_APART_NS >= fault.invoked_ns
        )
