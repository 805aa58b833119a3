"""Assembly of a history file's records into typed events, record by record.

`Assembler.take(record)` returns (Kind, object) or None. It keeps only open operations, so it reads
histories of any length. An invoke and its outcome are the same object. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from .deferred_events import (
    Decision,
    Delivery,
    Ended,
    GivenBack,
    LockRequested,
    Popped,
    Post,
    Scanned,
    Stored,
    Worked,
)
from .events import (
    SEND_OK,
    Commit,
    Consume,
    Drain,
    Fault,
    History,
    HistoryError,
    Kind,
    Leader,
    LogLine,
    Logs,
    Membership,
    MetaRead,
    MetaWrite,
    Outcome,
    Replicas,
    Send,
)

VERSION = 1
FAULTS_OPEN_MAX = 10_000  # injected and not healed at once; a nemesis has a handful

Record = Mapping[str, Any]
Event = tuple[Kind, Any]

_OUTCOMES = {outcome.value: outcome for outcome in Outcome} | {"invoke": Outcome.OPEN}
_KEYS = {"process": "p", "outcome": "type"}  # fields that a record calls otherwise


def _taker(kind: Kind, event: type[Any], **defaults: Any) -> Callable[[Record], Event]:
    """Return a function that makes an `event` of a single record.

    The record has every field of the event; only those in `defaults` may be missing.
    """
    keys = {field.name: _KEYS.get(field.name, field.name) for field in fields(event)}

    def take(record: Record) -> Event:
        known = {**defaults, **record}
        values = {name: known[key] for name, key in keys.items()}
        if "outcome" in values:
            values["outcome"] = _OUTCOMES[values["outcome"]]
        return kind, event(**values)

    return take


TAKERS: Mapping[str, Callable[[Record], Event]] = {
    "join": _taker(Kind.JOINED, Membership),
    "leave": _taker(Kind.LEFT, Membership),
    "leader": _taker(Kind.LED, Leader, group=""),
    "drain": _taker(Kind.DRAINED, Drain),
    "log_line": _taker(Kind.LOG_LINE, LogLine, level="", logged_ns=0),
    "logs": _taker(Kind.LOGS, Logs),
    "post": _taker(Kind.POSTED, Post, delay_ms=0, attempts=0, error=""),
    "decide": _taker(Kind.DECIDED, Decision, check=False),
    "deliver": _taker(Kind.DELIVERED, Delivery),
    "give_back": _taker(Kind.GIVEN_BACK, GivenBack, tries=0),
    "stored": _taker(Kind.STORED, Stored, born_ms=0),
    "scan": _taker(Kind.SCANNED, Scanned),
    "work": _taker(Kind.WORKED, Worked),
    "pop": _taker(Kind.POPPED, Popped),
    "pop_end": _taker(Kind.POP_ENDED, Ended),
    "lock": _taker(Kind.LOCK_REQUESTED, LockRequested, granted=False),
}


class Assembler:
    """Turns records into events. The first record must be the meta line."""

    def __init__(self) -> None:
        self.meta: dict[str, Any] | None = None
        self.ended = False
        self.skipped: tuple[str, ...] = ()
        self.stuck: tuple[str, ...] | None = None
        self.watched: Record | None = None
        self._open: dict[int, Any] = {}  # operations without an outcome, by op
        self._started: dict[int, int] = {}  # op of a fault's injection or healing → t_ns of invoke
        self._unhealed: dict[int, Fault] = {}  # by number
        self._names: dict[str, str] = {}  # one copy of each topic, process, order key, broker
        self._takers: dict[str, Callable[[Record], Event | None]] = {
            "send": self._send,
            "consume": self._consume,
            "commit": self._commit,
            "fetch": self._fetch,
            "reset": self._reset,
            "meta_write": self._meta_write,
            "meta_read": self._meta_read,
            "inject": self._inject,
            "heal": self._heal,
            "inflicted": self._inflicted,
            "watched": self._watched,
            "replicas": self._replicas,
            **TAKERS,
            "note": _nothing,  # words for a person; no check uses them
            "end": self._over,
        }

    def take(self, record: Record) -> Event | None:
        """Process a record. Raises HistoryError if it violates the format."""
        if self.meta is None:
            self._meta(record)
            return None
        kind = record.get("f", "")
        taker = self._takers.get(kind)
        try:
            if taker is not None:
                return taker(record)
        except KeyError as missing:
            raise HistoryError(f"{kind} record without {missing}") from missing
        raise HistoryError(f"unknown kind of operation {kind!r}")

    def unanswered(self) -> list[Any]:
        """Return the operations that have no outcome yet."""
        return list(self._open.values())

    def _meta(self, record: Record) -> None:
        if record.get("type") != "meta":
            raise HistoryError("a history begins with a meta line")
        if record.get("version") != VERSION:
            raise HistoryError(f"history version {record.get('version')!r} is not {VERSION}")
        self.meta = dict(record)

    def _name(self, text: str) -> str:
        return self._names.setdefault(text, text)

    def _start(self, op: int, event: Any) -> None:
        if self._open.setdefault(op, event) is not event:
            raise HistoryError(f"operation {op} was invoked twice")

    def _end(self, op: int, kind: type[Any]) -> Any:
        event = self._open.pop(op, None)
        if event is None:
            raise HistoryError(f"operation {op} has an outcome but no invoke")
        if type(event) is not kind:
            raise HistoryError(f"operation {op} ends as another kind than it began")
        return event

    # ---- messages

    def _send(self, record: Record) -> Event:
        op, t_ns = record["op"], record["t_ns"]
        kind = record["type"]
        name = self._name
        if kind == "invoke":
            order = record["order"]
            send = Send(
                op,
                name(record["p"]),
                record["id"],
                name(record["topic"]),
                record["key"],
                name(order) if order else "",
                record["seq"],
                t_ns,
                record.get("due_ns", t_ns),
                once=record.get("once", False),
            )
            self._start(op, send)
            return Kind.SEND_INVOKED, send
        send = self._end(op, Send)
        send.outcome = _OUTCOMES[kind]
        send.done_ns = t_ns
        send.attempts = record.get("attempts", 1)
        if kind == "ok":
            send.broker = name(record.get("broker", ""))
            send.queue = record["queue"]
            send.offset = record["offset"]
            send.msg_id = record.get("msg_id", "")
            send.status = record.get("status", SEND_OK)
        else:
            send.error = name(record.get("error", ""))
            send.shed = record.get("shed", False)
        return Kind.SEND_DECIDED, send

    def _consume(self, record: Record) -> Event:
        return Kind.CONSUMED, Consume(
            record["t_ns"],
            self._name(record["p"]),
            self._name(record["topic"]),
            record["queue"],
            tuple(record["offsets"]),
            tuple(record.get("ids", ())),
            self._name(record.get("broker", "")),
            self._name(record.get("group", "")),
            record.get("orderly", False),
        )

    # ---- consumer offsets

    def _offset(self, record: Record, *, answered: bool, fetched: bool = False) -> Commit:
        t_ns = record["t_ns"]
        return Commit(
            t_ns if answered else 0,
            self._name(record["p"]),
            self._name(record["topic"]),
            self._name(record["group"]),
            record["queue"],
            record["offset"],
            fetched,
            self._name(record.get("broker", "")),
            record.get("invoked_ns", t_ns),
            record.get("op", 0),
        )

    def _commit(self, record: Record) -> Event | None:
        kind = record["type"]
        if kind == "invoke":
            commit = self._offset(record, answered=False)
            self._start(record["op"], commit)
            return Kind.COMMIT_INVOKED, commit
        if kind != "ok":
            return None  # it stays concurrent with all later events
        started = self._open.pop(record.get("op", 0), None)
        if started is None:  # an old history has answers only
            return Kind.COMMITTED, self._offset(record, answered=True)
        started.t_ns = record["t_ns"]
        return Kind.COMMITTED, started

    def _fetch(self, record: Record) -> Event:
        return Kind.FETCHED, self._offset(record, answered=True, fetched=True)

    def _reset(self, record: Record) -> Event:
        return Kind.RESET, self._offset(record, answered=True)

    def _over(self, _: Record) -> None:
        self.ended = True

    # ---- metadata

    def _meta_write(self, record: Record) -> Event:
        if record["type"] == "invoke":
            write = MetaWrite(
                record["op"],
                self._name(record["p"]),
                self._name(record.get("broker", "")),
                record["what"],
                self._name(record["name"]),
                record["version"],
                record["t_ns"],
            )
            self._start(record["op"], write)
            return Kind.META_INVOKED, write
        write = self._end(record["op"], MetaWrite)
        write.outcome = _OUTCOMES[record["type"]]
        write.done_ns = record["t_ns"]
        return Kind.META_DECIDED, write

    def _meta_read(self, record: Record) -> Event | None:
        if record["type"] == "invoke":
            read = MetaRead(
                record["op"],
                self._name(record["p"]),
                self._name(record.get("broker", "")),
                record["what"],
                self._name(record["name"]),
                record["t_ns"],
            )
            self._start(record["op"], read)
            return None
        read = self._end(record["op"], MetaRead)
        read.outcome = _OUTCOMES[record["type"]]
        read.done_ns = record["t_ns"]
        if read.outcome is Outcome.OK:
            read.version = record["version"]
        return Kind.META_READ, read

    # ---- the cluster

    def _inject(self, record: Record) -> Event | None:
        op, t_ns = record["op"], record["t_ns"]
        if record["type"] == "invoke":
            self._started[op] = t_ns
            return None
        started_ns = self._started.pop(op, t_ns)
        if record["type"] != "ok":
            return None  # it did not happen; the runner reports that itself
        fault = Fault(
            record["kind"],
            tuple(record["nodes"]),
            record.get("pid", 0),
            record.get("role", ""),
            started_ns,
            t_ns,
            record["fault"],
            record.get("whom", ""),
            detail=record.get("detail", ""),
        )
        if len(self._unhealed) >= FAULTS_OPEN_MAX:
            raise HistoryError(f"more than {FAULTS_OPEN_MAX} faults are not healed")
        self._unhealed[fault.number] = fault
        return Kind.FAULT, fault

    def _heal(self, record: Record) -> Event | None:
        fault = self._unhealed.get(record["fault"])
        if record["type"] != "ok" or fault is None:
            return None
        fault.healed_ns = record["t_ns"]
        del self._unhealed[record["fault"]]
        return Kind.HEALED, fault

    def _inflicted(self, record: Record) -> None:
        self.skipped, self.stuck = tuple(record["skipped"]), tuple(record["stuck"])

    def _watched(self, record: Record) -> None:
        self.watched = {key: record[key] for key in ("judged", "kills", "findings", "examples")}

    def _replicas(self, record: Record) -> Event:
        parts = {
            node: {int(position): digest for position, digest in digests.items()}
            for node, digests in record["parts"].items()
        }
        return Kind.REPLICAS, Replicas(
            record["t_ns"],
            record.get("group", ""),
            record["start"],
            record["end"],
            parts,
            record.get("errors", {}),
        )


def assemble(records: Iterable[Record]) -> History:
    """Build a whole History. Raises HistoryError, also without a meta line."""
    assembler = Assembler()
    take = assembler.take
    history = History({})
    lists: dict[Kind, list[Any]] = {
        Kind.SEND_INVOKED: history.sends,
        Kind.CONSUMED: history.consumes,
        Kind.COMMITTED: history.commits,
        Kind.FETCHED: history.commits,
        Kind.RESET: history.resets,
        Kind.JOINED: history.joins,
        Kind.LEFT: history.leaves,
        Kind.DRAINED: history.drains,
        Kind.META_INVOKED: history.meta_writes,
        Kind.META_READ: history.meta_reads,
        Kind.LED: history.leaders,
        Kind.FAULT: history.faults,
        Kind.LOG_LINE: history.log_lines,
        Kind.LOGS: history.logs,
        Kind.REPLICAS: history.replicas,
    }
    for record in records:
        event = take(record)
        if event is not None:
            kind, result = event
            target = lists.get(kind)
            if target is not None:
                target.append(result)
            elif kind >= Kind.POSTED:
                history.later.append((kind, result))
    if assembler.meta is None:
        raise HistoryError("a history begins with a meta line")
    history.meta = assembler.meta
    history.ended = assembler.ended
    history.skipped, history.stuck = assembler.skipped, assembler.stuck
    history.watched = assembler.watched
    history.unanswered = [c for c in assembler.unanswered() if isinstance(c, Commit)]
    return history


def _nothing(_: Record) -> None:
    return None
