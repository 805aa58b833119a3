"""What a history says, as typed data: every send with its outcome, consumption, commits, faults.

`assemble` turns the records of a history file (docs/architecture.md, *history*) into one `History`.
Pure. Times are nanoseconds of the machine's monotonic clock, as written by the harness.

A send whose outcome was never written (the harness died, or was still waiting) is `OPEN`; like
`UNKNOWN` it stays concurrent with everything after it: it may have been stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Position = tuple[str, int, int]  # topic, queue, offset


class HistoryError(Exception):
    """The records contradict each other or the format: this history proves nothing."""


class Outcome(Enum):
    """How a send ended, for its caller."""

    OK = "ok"
    FAIL = "fail"  # certainly not stored
    UNKNOWN = "unknown"  # may be stored, at most as often as it was attempted
    OPEN = "open"  # no outcome was written


@dataclass(slots=True)
class Send:
    """One send, from invoke to outcome. Filled in once while assembling, then only read."""

    op: int
    process: str
    id: str  # UNIQ_KEY
    topic: str
    key: str
    order: str  # order key, "" when the send asked for no order
    seq: int  # position within its order key
    invoked_ns: int
    outcome: Outcome = Outcome.OPEN
    done_ns: int = 0  # 0 while open
    queue: int = -1
    offset: int = -1
    msg_id: str = ""
    attempts: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Consume:
    """One batch handed to a listener and accepted by it. `ids` may be empty (not recorded)."""

    t_ns: int
    process: str
    topic: str
    queue: int
    offsets: tuple[int, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """A consumer offset the broker acknowledged; `offset` is the next one to consume.

    `fetched` marks the other direction: what the broker answered when a consumer asked.
    """

    t_ns: int
    process: str
    topic: str
    group: str
    queue: int
    offset: int
    fetched: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """Something the nemesis did to one node: from `invoked_ns` to `done_ns`."""

    kind: str  # "kill", "start", …
    node: str
    pid: int
    role: str
    invoked_ns: int
    done_ns: int


@dataclass(frozen=True, slots=True)
class Leader:
    """The observer saw `node` say that it leads `term`."""

    t_ns: int
    node: str
    term: int


@dataclass(frozen=True, slots=True)
class Drain:
    """The harness waited until the group had consumed everything; `complete` says if it had."""

    t_ns: int
    topic: str
    group: str
    complete: bool


@dataclass(slots=True)
class History:
    """Everything one run wrote down, in the order of the file."""

    meta: dict[str, Any]
    sends: list[Send] = field(default_factory=list)
    consumes: list[Consume] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)
    drains: list[Drain] = field(default_factory=list)
    _copies: dict[str, set[Position]] | None = None  # computed when first asked for

    @property
    def start_ns(self) -> int:
        """Clock of the meta line: zero of every chart."""
        return int(self.meta["t_ns"])

    def stored_copies(self) -> Mapping[str, set[Position]]:
        """Message id → positions at which it is known to lie: acknowledged or consumed there.

        Computed once: the history must be complete by then.
        """
        if self._copies is None:
            copies: dict[str, set[Position]] = defaultdict(set)
            for send in self.sends:
                if send.outcome is Outcome.OK:
                    copies[send.id].add((send.topic, send.queue, send.offset))
            for place, message_id in self.consumed_ids():
                copies[message_id].add(place)
            self._copies = copies
        return self._copies

    def consumed_ids(self) -> Iterator[tuple[Position, str]]:
        """Every delivery of which the message's id was recorded."""
        for consume in self.consumes:
            for offset, message_id in zip(consume.offsets, consume.ids, strict=False):
                yield (consume.topic, consume.queue, offset), message_id

    def kills(self) -> list[Fault]:
        """The faults that took a process away."""
        return [fault for fault in self.faults if fault.kind == "kill"]


def assemble(records: Iterable[Mapping[str, Any]]) -> History:
    """Build a History. Raises HistoryError for a missing meta line or an outcome without invoke."""
    stream = iter(records)
    meta = next(stream, None)
    if meta is None or meta.get("type") != "meta":
        raise HistoryError("a history begins with a meta line")
    if meta.get("version") != 1:
        raise HistoryError(f"history version {meta.get('version')!r} is not 1")
    history = History(dict(meta))
    open_sends: dict[int, Send] = {}
    open_faults: dict[int, Mapping[str, Any]] = {}
    for record in stream:
        kind = record.get("f")
        try:
            if kind == "send":
                _take_send(history, open_sends, record)
            elif kind == "consume":
                history.consumes.append(_consume(record))
            elif kind in ("commit", "fetch"):
                history.commits.append(_commit(record, fetched=kind == "fetch"))
            elif kind == "leader":
                history.leaders.append(Leader(record["t_ns"], record["node"], record["term"]))
            elif kind == "drain":
                history.drains.append(
                    Drain(record["t_ns"], record["topic"], record["group"], record["complete"])
                )
            elif "node" in record:
                _take_fault(history, open_faults, record)
            else:
                raise HistoryError(f"unknown kind of operation {kind!r}")
        except KeyError as missing:
            raise HistoryError(f"{kind} record without {missing}") from missing
    return history


def _take_send(history: History, open_sends: dict[int, Send], record: Mapping[str, Any]) -> None:
    op = record["op"]
    if record["type"] == "invoke":
        send = Send(
            op,
            record["p"],
            record["id"],
            record["topic"],
            record["key"],
            record["order"],
            record["seq"],
            record["t_ns"],
        )
        if open_sends.setdefault(op, send) is not send:
            raise HistoryError(f"operation {op} was invoked twice")
        history.sends.append(send)
        return
    found = open_sends.pop(op, None)
    if found is None:
        raise HistoryError(f"operation {op} has an outcome but no invoke")
    found.outcome = Outcome(record["type"])
    found.done_ns = record["t_ns"]
    found.attempts = record.get("attempts", 1)
    found.error = record.get("error", "")
    if found.outcome is Outcome.OK:
        found.queue = record["queue"]
        found.offset = record["offset"]
        found.msg_id = record.get("msg_id", "")


def _take_fault(
    history: History, open_faults: dict[int, Mapping[str, Any]], record: Mapping[str, Any]
) -> None:
    op = record["op"]
    if record["type"] == "invoke":
        open_faults[op] = record
        return
    begun = open_faults.pop(op, record)
    if record["type"] != "ok":
        return  # the fault did not happen; the runner reports that itself
    history.faults.append(
        Fault(
            record["f"],
            record["node"],
            record.get("pid", 0),
            begun.get("role", ""),
            begun["t_ns"],
            record["t_ns"],
        )
    )


def _consume(record: Mapping[str, Any]) -> Consume:
    return Consume(
        record["t_ns"],
        record["p"],
        record["topic"],
        record["queue"],
        tuple(record["offsets"]),
        tuple(record.get("ids", ())),
    )


def _commit(record: Mapping[str, Any], *, fetched: bool) -> Commit:
    return Commit(
        record["t_ns"],
        record["p"],
        record["topic"],
        record["group"],
        record["queue"],
        record["offset"],
        fetched,
    )
