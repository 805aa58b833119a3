"""Linearizability of consumer offsets, topics and groups as registers.

The last write counts, and every read returns it (chaos.checks.linearizability defines concurrent
and unanswered operations). Violations are an acknowledged write that is missing or disappears after
a read, and a read of a replaced value, of a value that was never written, or of a write that
certainly failed.

- A group's offset in a queue. Commits and resets write, higher or lower; fetches read. A consumer
  that joins also reads at some time before its first message, which has an offset no lower than the
  value read. Each request of a commit is an operation, because the client repeats an unanswered
  request, and the first may still take effect later. A group without an offset is answered 0 in an
  empty queue, so a read 0 may mean no offset.
- The version of a topic or a group, written by one or several clients.

The state before a history is unknown, so the first read may return any value. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..history.deferred_events import Popped
from ..history.events import Commit, Consume, Kind, Membership, MetaRead, MetaWrite, Outcome
from .linearizability import ANY, ILLEGAL, Operation
from .objects import Objects
from .verdict import Check, Handlers, of_broker, queue_title

QueueKey = tuple[str, str, str, int]  # group, broker, topic, queue


@dataclass(frozen=True, slots=True)
class Write:
    value: int


@dataclass(frozen=True, slots=True)
class Read:
    value: int | None  # None for no value


@dataclass(frozen=True, slots=True)
class ReadAtMost:
    """A read of nothing, or of a value that is not above this."""

    value: int


def step(state: Any, action: Any) -> Any:
    """Return the register's value after a write or read; ANY if it is still unknown."""
    if isinstance(action, Write):
        return action.value
    if isinstance(action, Read):
        return action.value if state is ANY or state == action.value else ILLEGAL
    return state if state is ANY or state is None or state <= action.value else ILLEGAL


def relevant(operations: Sequence[Operation]) -> list[Operation]:
    """Leave out the writes without an answer that no read can have seen."""
    reads = [one for one in operations if one.reads and one.returned_ns is not None]

    def seen(write: Operation) -> bool:
        return any(
            (read.returned_ns or 0) >= write.called_ns
            and step(write.action.value, read.action) is not ILLEGAL
            for read in reads
        )

    return [one for one in operations if one.returned_ns is not None or seen(one)]


def check(registers: Objects, name: str, what: str) -> Check:
    """Return the answer for registers that were both written and read."""
    reads, writes = registers.reads, registers.writes
    detail = f"{len(registers)} {what}, {writes} acknowledged, {reads} read"
    return registers.check(name, detail, min(reads, writes))


class OffsetRegisters:
    """The check that consumer offsets are linearizable. Groups that pop are ignored, because their
    pops also move their offsets."""

    def __init__(self) -> None:
        self._registers = Objects(step, _offset_text, queue_title, relevant)
        self._joined: dict[str, Membership] = {}
        # pairs of process and queue that have consumed
        self._started: set[tuple[str, str, str, int]] = set()
        self._popped: set[tuple[str, str]] = set()  # group, topic
        self._read: set[QueueKey] = set()

    @property
    def applies(self) -> bool:
        return self._registers.reads > 0 and self._registers.writes > 0

    def handlers(self) -> Handlers:
        return {
            Kind.COMMIT_INVOKED: self._invoked,
            Kind.COMMITTED: self._committed,
            Kind.FETCHED: self._fetched,
            Kind.RESET: self._committed,
            Kind.JOINED: self._join,
            Kind.CONSUMED: self._consumed,
            Kind.POPPED: self._pop,
        }

    def result(self, name: str) -> Check:
        return check(self._registers, name, "queues of groups")

    def _pop(self, pop: Popped) -> None:
        pair = pop.group, pop.topic
        if pair not in self._popped:
            self._popped.add(pair)
            for key in [key for key in self._read if (key[0], key[2]) == pair]:
                self._registers.forget(key)

    def _invoked(self, commit: Commit) -> None:
        assert commit.offset is not None
        self._registers.start(_key(commit), commit, commit.invoked_ns, Write(commit.offset))

    def _committed(self, commit: Commit) -> None:
        if not self._registers.knows(_key(commit), commit):
            self._invoked(commit)  # a reset, or an old history with answers only
        self._registers.end(_key(commit), commit, commit.t_ns)

    def _fetched(self, fetch: Commit) -> None:
        key = _key(fetch)
        if (key[0], key[2]) in self._popped:
            return
        self._read.add(key)
        action = ReadAtMost(0) if fetch.offset == 0 else Read(fetch.offset)
        self._registers.start(key, fetch, fetch.invoked_ns, action, reads=True)
        self._registers.end(key, fetch, fetch.t_ns)

    def _join(self, join: Membership) -> None:
        self._joined[join.process] = join

    def _consumed(self, batch: Consume) -> None:
        joined = self._joined.get(batch.process)
        if joined is None or not batch.offsets:
            return
        start = (batch.process, batch.broker, batch.topic, batch.queue)
        if start in self._started:
            return
        self._started.add(start)
        key = (joined.group, batch.broker, batch.topic, batch.queue)
        first = ReadAtMost(min(batch.offsets))
        self._registers.start(key, batch, joined.t_ns, first, reads=True)
        self._registers.end(key, batch, batch.t_ns)


class MetadataRegisters:
    """The check that topics and groups are linearizable."""

    def __init__(self) -> None:
        self._registers = Objects(step, _metadata_text, _object_text, relevant)

    @property
    def applies(self) -> bool:
        return len(self._registers) > 0

    def handlers(self) -> Handlers:
        return {
            Kind.META_INVOKED: self._invoked,
            Kind.META_DECIDED: self._decided,
            Kind.META_READ: self._read,
        }

    def result(self, name: str) -> Check:
        return check(self._registers, name, "topics and groups")

    def _invoked(self, write: MetaWrite) -> None:
        self._registers.start(_object(write), write, write.invoked_ns, Write(write.version))

    def _decided(self, write: MetaWrite) -> None:
        if write.outcome is Outcome.OK:
            self._registers.end(_object(write), write, write.done_ns)
        elif write.outcome is Outcome.FAIL:
            self._registers.withdraw(_object(write), write)

    def _read(self, read: MetaRead) -> None:
        if read.outcome is Outcome.OK:
            action = Read(read.version)
            self._registers.start(_object(read), read, read.invoked_ns, action, reads=True)
            self._registers.end(_object(read), read, read.done_ns)


def _key(event: Commit) -> QueueKey:
    return (event.group, event.broker, event.topic, event.queue)


def _offset_text(one: Operation) -> str:
    action, event = one.action, one.event
    if isinstance(action, Write):
        return f"{event.process} committed {action.value}"
    if isinstance(event, Consume):
        return f"{event.process} joined and began at {action.value}"
    return f"{event.process} read {'nothing' if action.value is None else action.value}"


def _object(event: MetaWrite | MetaRead) -> tuple[str, str, str]:
    return (event.what, event.broker, event.name)


def _object_text(key: tuple[str, str, str]) -> str:
    what, broker, name = key
    return f"{what} {of_broker(broker, name)}"


def _metadata_text(one: Operation) -> str:
    value = one.action.value
    if isinstance(one.action, Write):
        return f"{one.event.process} wrote version {value}"
    return f"{one.event.process} found {'nothing' if value is None else f'version {value}'}"
