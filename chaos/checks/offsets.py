"""The check for consumer offsets that went back. Pure.

A group's offset in a queue is a register that clients write (commit) and read (fetch). Violations:
- a fetch answers less than a commit or fetch that was answered before this one was asked;
- a commit is below an acknowledged one of the same consumer: the offset was set back;
- a consumer joined after a commit was acknowledged and begins below it.

Allowed: a reset; a fetch that answers the value of a lower commit still unanswered; a lower commit
by another consumer than the last, which took the queue over before it knew (counted in the detail:
its messages are handed out again). Memory: one object a queue, and `UNANSWERED_MAX` commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raftmq.chaos.checks.prefix import PrefixMax
from raftmq.chaos.checks.verdict import Check, Handlers, Offenders
from raftmq.chaos.history.events import Commit, Consume, Kind, Membership

UNANSWERED_MAX = 64  # commits per queue that may still take effect; older ones are dropped

QueueKey = tuple[str, str, int]  # broker, topic, queue


@dataclass(slots=True)
class _Register:
    """One group's offset of one queue."""

    floor: PrefixMax = field(default_factory=PrefixMax)
    epoch: int = 0  # counts how often it was set back in a way that is allowed
    last_process: str = ""
    last_ns: int = 0
    unanswered: dict[int, int] = field(default_factory=dict)  # op → offset

    def set_back(self, t_ns: int, offset: int) -> None:
        self.floor.clear()
        self.floor.note(t_ns, offset)
        self.epoch += 1


@dataclass(frozen=True, slots=True)
class _Start:
    """The offsets that were certain when a consumer began to join: queue → (offset, epoch)."""

    group: str
    floors: Mapping[QueueKey, tuple[int, int]]


class OffsetsBack:
    """The check for consumer offsets that went back."""

    def __init__(self) -> None:
        self._registers: dict[tuple[str, QueueKey], _Register] = {}  # (group, queue)
        self._starts: dict[str, _Start] = {}  # process → the offsets it must begin at or above
        self._begun: set[tuple[str, QueueKey]] = set()  # (process, queue) that has consumed
        self._wrong = Offenders()
        self._seen = 0
        self._taken_over = 0

    def handlers(self) -> Handlers:
        return {
            Kind.COMMIT_INVOKED: self._invoked,
            Kind.COMMITTED: self._committed,
            Kind.FETCHED: self._fetched,
            Kind.RESET: self._reset,
            Kind.JOINED: self._joined,
            Kind.CONSUMED: self._consumed,
        }

    @property
    def applies(self) -> bool:
        return self._seen > 0

    def result(self, name: str) -> Check:
        detail = f"{len(self._registers)} queues, {self._seen} commits and fetches"
        if self._taken_over:
            detail += f"; {self._taken_over} lower commits by a consumer that had just taken over"
        return self._wrong.check(name, detail, self._seen)

    def _register(self, event: Commit) -> _Register:
        key = (event.group, (event.broker, event.topic, event.queue))
        found = self._registers.get(key)
        if found is None:
            found = self._registers[key] = _Register()
        return found

    def _blame(self, event: Commit, what: str) -> None:
        where = f"{event.broker}:" if event.broker else ""
        self._wrong.add(f"{event.group} {where}{event.topic}-{event.queue}: {what}")

    def _invoked(self, commit: Commit) -> None:
        register = self._register(commit)
        assert commit.offset is not None
        register.unanswered[commit.op] = commit.offset
        if len(register.unanswered) > UNANSWERED_MAX:
            del register.unanswered[next(iter(register.unanswered))]

    def _committed(self, commit: Commit) -> None:
        self._seen += 1
        register = self._register(commit)
        register.unanswered.pop(commit.op, None)
        offset = commit.offset
        assert offset is not None
        before = register.floor.before(commit.invoked_ns)
        if before is not None and offset < before:
            if register.last_process == commit.process and register.last_ns <= commit.invoked_ns:
                self._blame(commit, f"{commit.process} committed {offset} after {before}")
            else:
                self._taken_over += 1
            register.set_back(commit.t_ns, offset)
        elif offset < (register.floor.last or 0):
            register.set_back(commit.t_ns, offset)  # concurrent ones: either may be the last
        elif (
            register.last_process not in ("", commit.process)
            and register.last_ns > commit.invoked_ns
            and register.floor.last is not None
        ):
            pass  # concurrent, answered in the other order: the lower one is certain
        else:
            register.floor.note(commit.t_ns, offset)
        register.last_process, register.last_ns = commit.process, commit.t_ns

    def _fetched(self, fetch: Commit) -> None:
        self._seen += 1
        register = self._register(fetch)
        before = register.floor.before(fetch.invoked_ns)
        offset = -1 if fetch.offset is None else fetch.offset
        if before is not None and offset < before:
            if offset not in register.unanswered.values():
                found = "nothing" if fetch.offset is None else str(offset)
                self._blame(fetch, f"{fetch.process} read {found} after {before}")
            register.set_back(fetch.t_ns, offset)
        elif offset >= 0:
            register.floor.note(fetch.t_ns, offset)

    def _reset(self, reset: Commit) -> None:
        assert reset.offset is not None
        register = self._register(reset)
        register.set_back(reset.t_ns, reset.offset)
        register.last_process = ""

    def _joined(self, join: Membership) -> None:
        floors = {
            queue: (register.floor.last, register.epoch)
            for (group, queue), register in self._registers.items()
            if group == join.group and register.floor.last is not None
        }
        self._starts[join.process] = _Start(join.group, floors)

    def _consumed(self, batch: Consume) -> None:
        start = self._starts.get(batch.process)
        if start is None or not batch.offsets:
            return
        queue = (batch.broker, batch.topic, batch.queue)
        if (batch.process, queue) in self._begun:
            return
        self._begun.add((batch.process, queue))
        if queue not in start.floors:
            return
        floor, epoch = start.floors[queue]
        register = self._registers[start.group, queue]
        first = min(batch.offsets)
        excused = any(offset <= first for offset in register.unanswered.values())
        if first < floor and epoch == register.epoch and not excused:
            where = f"{batch.broker}:" if batch.broker else ""
            self._wrong.add(
                f"{start.group} {where}{batch.topic}-{batch.queue}: {batch.process} began at "
                f"{first} though {floor} had been acknowledged before it joined"
            )
