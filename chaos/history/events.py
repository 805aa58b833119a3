"""Typed events of a history, such as sends, consumption, offsets, metadata, faults, replicas.

Data only; `chaos.history.assembly` makes it of the records of a file (docs/history.md has the
format). Times are nanoseconds of the machine's monotonic clock, as the harness wrote them.

An operation without a written outcome (the harness died, or was still waiting) is `OPEN`. Like
`UNKNOWN` it may have happened, and is concurrent with everything after it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any

Position = tuple[str, str, int, int]  # broker name ("" in old histories), topic, queue, offset
SEND_OK = "SEND_OK"


class HistoryError(Exception):
    """The records contradict each other or the format, so this history proves nothing."""


class Outcome(Enum):
    OK = "ok"
    FAIL = "fail"  # certainly not done
    UNKNOWN = "unknown"  # may be done; a send at most as often as it was attempted
    OPEN = "open"  # no outcome was written


class Kind(IntEnum):
    """The kinds of event; checkers are given the kind and the object it is about."""

    SEND_INVOKED = 0
    SEND_DECIDED = 1
    CONSUMED = 2
    COMMIT_INVOKED = 3
    COMMITTED = 4
    FETCHED = 5
    RESET = 6
    JOINED = 7
    LEFT = 8
    DRAINED = 9
    META_INVOKED = 10
    META_DECIDED = 11
    META_READ = 12
    LED = 13
    FAULT = 14  # it was injected
    HEALED = 15
    LOG_LINE = 16
    LOGS = 17
    REPLICAS = 18
    POSTED = 19  # from here on in chaos.history.deferred_events
    DECIDED = 20
    DELIVERED = 21
    GIVEN_BACK = 22
    STORED = 23
    SCANNED = 24
    WORKED = 25
    LOCK_REQUESTED = 26
    POPPED = 27
    POP_ENDED = 28


@dataclass(slots=True)
class Send:
    """A send, from invoke to outcome. Filled in while assembling, read-only afterwards."""

    op: int
    process: str
    id: str  # UNIQ_KEY
    topic: str
    key: str
    order: str  # order key, "" when the send asked for no order
    seq: int  # position within its order key
    invoked_ns: int
    due_ns: int  # intended time of an open loop's send; invoked_ns for a closed loop
    outcome: Outcome = Outcome.OPEN
    done_ns: int = 0  # 0 while open
    broker: str = ""
    queue: int = -1
    offset: int = -1
    msg_id: str = ""
    attempts: int = 0
    error: str = ""
    # status of an `ok`; others were stored, but on fewer disks or brokers than promised
    status: str = SEND_OK
    shed: bool = False  # never sent, because the load's own backlog was full
    once: bool = False  # idempotent, so stored once

    @property
    def promised(self) -> bool:
        """True if it was answered SEND_OK: its loss breaks a promise."""
        return self.outcome is Outcome.OK and self.status == SEND_OK

    @property
    def position(self) -> Position:
        return (self.broker, self.topic, self.queue, self.offset)


@dataclass(frozen=True, slots=True)
class Consume:
    """A batch that a listener accepted. `ids` may be empty (not recorded)."""

    t_ns: int
    process: str
    topic: str
    queue: int
    offsets: tuple[int, ...]
    ids: tuple[str, ...]
    broker: str = ""
    group: str = ""
    orderly: bool = False  # the consumer promises the order of each queue


@dataclass(slots=True)
class Commit:
    """A consumer offset, the next offset to consume. `offset` is None if the broker has none.

    `fetched` marks the answer to a fetch. `invoked_ns` is the time of the request (in old histories
    the time of the answer).
    """

    t_ns: int  # of the answer; 0 without an answer
    process: str
    topic: str
    group: str
    queue: int
    offset: int | None
    fetched: bool = False
    broker: str = ""
    invoked_ns: int = 0
    op: int = 0


@dataclass(slots=True)
class Fault:
    """A fault that the nemesis injected into any number of nodes."""

    kind: str  # "kill", "pause", …
    nodes: tuple[str, ...]
    pid: int
    role: str
    invoked_ns: int
    done_ns: int
    number: int
    whom: str
    healed_ns: int = 0  # 0: not healed in this history
    detail: str = ""

    @property
    def node(self) -> str:
        """The first node; "" for a fault that hits none."""
        return self.nodes[0] if self.nodes else ""


@dataclass(frozen=True, slots=True)
class Leader:
    """The observer found `node` leading `term` of `group` ("": the only group)."""

    t_ns: int
    node: str
    term: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """The harness waited for the group to consume everything; `complete` if it did."""

    t_ns: int
    topic: str
    group: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Membership:
    """A consumer started to join its group, or left it. `process` is an incarnation of it."""

    t_ns: int
    process: str
    group: str


@dataclass(slots=True)
class MetaWrite:
    """A topic or group created or changed; no two writes to an object have the same version."""

    op: int
    process: str
    broker: str
    what: str  # "topic" or "group"
    name: str
    version: int
    invoked_ns: int
    outcome: Outcome = Outcome.OPEN
    done_ns: int = 0


@dataclass(slots=True)
class MetaRead:
    """A topic or group read back from the leader; `version` is None if it is missing."""

    op: int
    process: str
    broker: str
    what: str
    name: str
    invoked_ns: int
    outcome: Outcome = Outcome.OPEN
    version: int | None = None
    done_ns: int = 0


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a node's log that should not be in it. `t_ns` is the time of the search,
    `logged_ns` the time of the line (0: unknown)."""

    t_ns: int
    node: str
    line: str
    level: str
    logged_ns: int = 0


@dataclass(frozen=True, slots=True)
class Logs:
    """The number of lines searched in each node's log."""

    t_ns: int
    lines: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The CommitLogs of a group's replicas, compared once everything was healed.

    Bytes [begin, end) of each node's log as digests by first position, SHA-256 in hex. `errors` are
    the reasons for which a node's log could not be read.
    """

    t_ns: int
    group: str
    start: int
    end: int
    parts: Mapping[str, Mapping[int, str]]
    errors: Mapping[str, str]


@dataclass(slots=True)
class History:
    """All events of a run, each list in the order of the file."""

    meta: dict[str, Any]
    sends: list[Send] = field(default_factory=list)
    consumes: list[Consume] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)  # answered commits, and fetches
    unanswered: list[Commit] = field(default_factory=list)  # commits that may have happened
    resets: list[Commit] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)
    drains: list[Drain] = field(default_factory=list)
    joins: list[Membership] = field(default_factory=list)
    leaves: list[Membership] = field(default_factory=list)
    meta_writes: list[MetaWrite] = field(default_factory=list)
    meta_reads: list[MetaRead] = field(default_factory=list)
    log_lines: list[LogLine] = field(default_factory=list)
    logs: list[Logs] = field(default_factory=list)
    replicas: list[Replicas] = field(default_factory=list)
    later: list[tuple[Kind, Any]] = field(default_factory=list)  # chaos.history.deferred_events
    torn: bool = False  # the last line of the file is incomplete, because the writer was killed
    ended: bool = False  # the run ended normally
    skipped: tuple[str, ...] = ()  # faults that could not be done or healed, in words
    # Faults after which the cluster did not recover in time; None if the history does not record
    # them
    stuck: tuple[str, ...] | None = None
    watched: Mapping[str, Any] | None = None  # the result of a continuous audit

    @property
    def start_ns(self) -> int:
        """Clock of the meta line, zero of every chart."""
        return int(self.meta["t_ns"])

    def kills(self) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind == "kill"]

    def timeline(self) -> Iterator[tuple[Kind, Any]]:
        """Yield all events in the order of time, as an Assembler would.

        Objects that are filled in later, such as sends, are complete already.
        """
        moments: list[tuple[int, int, Kind, Any]] = []
        for send in self.sends:
            moments.append((send.invoked_ns, 0, Kind.SEND_INVOKED, send))
            if send.outcome is not Outcome.OPEN:
                moments.append((send.done_ns, 1, Kind.SEND_DECIDED, send))
        for commit in (*self.commits, *self.unanswered):
            if not commit.fetched:
                moments.append((commit.invoked_ns, 0, Kind.COMMIT_INVOKED, commit))
            if commit.t_ns:
                kind = Kind.FETCHED if commit.fetched else Kind.COMMITTED
                moments.append((commit.t_ns, 1, kind, commit))
        for write in self.meta_writes:
            moments.append((write.invoked_ns, 0, Kind.META_INVOKED, write))
            if write.outcome is not Outcome.OPEN:
                moments.append((write.done_ns, 1, Kind.META_DECIDED, write))
        moments += [(read.done_ns, 1, Kind.META_READ, read) for read in self.meta_reads]
        for fault in self.faults:
            moments.append((fault.done_ns, 1, Kind.FAULT, fault))
            if fault.healed_ns:
                moments.append((fault.healed_ns, 2, Kind.HEALED, fault))
        for kind, events in (
            (Kind.CONSUMED, self.consumes),
            (Kind.RESET, self.resets),
            (Kind.JOINED, self.joins),
            (Kind.LEFT, self.leaves),
            (Kind.DRAINED, self.drains),
            (Kind.LED, self.leaders),
            (Kind.LOG_LINE, self.log_lines),
            (Kind.LOGS, self.logs),
            (Kind.REPLICAS, self.replicas),
        ):
            moments += [(event.t_ns, 2, kind, event) for event in events]
        moments += [(event.t_ns, 2, kind, event) for kind, event in self.later]
        moments.sort(key=lambda moment: moment[:2])
        for _, _, kind, event in moments:
            yield kind, event
