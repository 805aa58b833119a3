"""Failovers of a group, derived from events.

Events are maps {kind, node, group, term, at, detail} from several processes, sorted by `at` (their
wall clocks, ms). Times between machines are as exact as these clocks. A failover has these marks:

    leaderLost       routeChanged without a leader, after the loss of its connection
    transfer         transfer, a planned failover
    electionStarted  electionStarted
    elected          roleChanged to leader
    leaderReady      roleChanged to leader with ready, after its first committed frame of the term
    routeChanged     routeChanged with a leader, for clients; the end of the failover

A failover is *complete* when its leader is ready or in routes, and until then in progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MARKS_MAX = 40  # long split elections repeat their marks
KINDS = ("routeChanged", "transfer", "electionStarted", "roleChanged")

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of a failover."""

    what: str
    at_ms: int
    node: str
    term: int


@dataclass(slots=True)
class Failover:
    """A failover. `old_leader` and `new_leader` are names or addresses, or ""."""

    group: str
    planned: bool
    old_leader: str
    new_leader: str = ""
    term: int = 0
    marks: list[Mark] = field(default_factory=list)
    ready: bool = False
    routed: bool = False

    def as_fields(self) -> dict[str, Any]:
        start = self.marks[0].at_ms
        end = self.marks[-1].at_ms if self.ready or self.routed else None
        return {
            "group": self.group,
            "planned": self.planned,
            "complete": self.ready or self.routed,
            "oldLeader": self.old_leader,
            "newLeader": self.new_leader,
            "term": self.term,
            "startedAt": start,
            "durationMs": None if end is None else end - start,
            "marks": [
                {
                    "what": mark.what,
                    "at": mark.at_ms,
                    "sinceMs": mark.at_ms - start,
                    "node": mark.node,
                    "term": mark.term,
                }
                for mark in self.marks
            ],
        }


def failovers(group: str, events: Iterable[Event]) -> list[Failover]:
    """Return all failovers of `group` in these events, in order. A group's first election is a
    failover with `old_leader` ""."""
    reader = _Reader(group)
    mine = [event for event in events if event.get("group") == group]
    for event in sorted(mine, key=_at_ms):
        reader.take(event)
    # A registration of the present leader is no election.
    return [f for f in reader.failovers if any(mark.what != "routeChanged" for mark in f.marks)]


class _Reader:
    def __init__(self, group: str) -> None:
        self.group = group
        self.failovers: list[Failover] = []
        self.leader = ""  # according to the events so far
        self.leader_address = ""  # the leader in this name server's routes

    def take(self, event: Event) -> None:
        kind, detail = event.get("kind"), event.get("detail")
        reported = detail if isinstance(detail, Mapping) else {}
        last = self.failovers[-1] if self.failovers else None
        if kind == "transfer":
            self._mark(self._open(start=True, planned=True), "transfer", event)
        elif kind == "electionStarted":
            if last is None or _term(event) > last.term:  # otherwise a late candidate
                self._mark(self._open(start=True), "electionStarted", event)
        elif kind == "roleChanged":
            self._role(event, reported)
        elif kind == "routeChanged":
            addresses = reported.get("addresses")
            listed = addresses.values() if isinstance(addresses, Mapping) else ()
            self._route(event, str(reported.get("leader") or ""), self.leader_address in listed)

    def _role(self, event: Event, reported: Mapping[str, Any]) -> None:
        role = reported.get("role") or reported.get("to")
        node = str(event.get("node") or "")
        if role not in ("leader", "master"):
            return
        ready = bool(reported.get("ready") or reported.get("leaderReady"))
        term = _term(event)
        last = self.failovers[-1] if self.failovers else None
        if last is not None and last.term == term and last.new_leader == node:
            failover = last  # already elected, and possibly ready now
        else:
            failover = self._open(start=True)
            failover.new_leader, failover.term = node, term
            self._mark(failover, "elected", event)
        if ready and not failover.ready:
            failover.ready = True
            self._mark(failover, "leaderReady", event)
        self.leader = node

    def _route(self, event: Event, leader: str, still_listed: bool) -> None:
        last = self.failovers[-1] if self.failovers else None
        if not leader:
            # A former leader that registers as a follower of the elected leader is no loss. A
            # leader that left is a loss, even if the election was faster than the name server.
            elected = last is not None and not last.routed and last.term > 0
            known = last is not None and not last.routed and _has(last, _LOST)
            if self.leader_address and not known and not (elected and still_listed):
                self._mark(self._open(start=not elected), _LOST, event, self.leader_address)
        elif leader != self.leader_address or (last is not None and not last.routed):
            failover = self._open()
            self._mark(failover, "routeChanged", event, leader)
            failover.routed = True
            failover.new_leader = failover.new_leader or leader
            self.leader = self.leader or leader
        self.leader_address = leader

    def _open(self, *, start: bool = False, planned: bool = False) -> Failover:
        """Return the current failover, or a new failover for this event."""
        last = self.failovers[-1] if self.failovers else None
        if last is not None and not last.routed and not (start and last.ready):
            return last
        self.failovers.append(Failover(self.group, planned, self.leader or self.leader_address))
        return self.failovers[-1]

    def _mark(self, failover: Failover, subject: str, event: Event, node: str = "") -> None:
        if len(failover.marks) < MARKS_MAX:
            node = node or str(event.get("node") or "")
            failover.marks.append(Mark(subject, _at_ms(event), node, _term(event)))


_LOST = "leaderLost"


def _has(failover: Failover, subject: str) -> bool:
    return any(mark.what == subject for mark in failover.marks)


def _at_ms(event: Event) -> int:
    value = event.get("at")
    return int(value) if isinstance(value, int | float) else 0


def _term(event: Event) -> int:
    value = event.get("term")
    return value if type(value) is int else 0


def last_of(result: Sequence[Failover]) -> dict[str, Any] | None:
    return result[-1].as_fields() if result else None
