"""Sends that wait to be stored, and sends in flight, in groups that share a frame or a batch.

A `Group` becomes one frame (Raft mode) or one batch (classic mode), with everything in it: the
records of clients' sends, those a broker stores itself (`Outgoing`: delayed messages that are due,
retries, ends of transactions), and the commands that belong to the latter. So a message that moves
and the note that it moved are committed together.

`HeldSends` keeps sends for a moment, instead of refusing them, while a replica is about to lead.
During a hand-over the former leader holds them until it knows its successor, and then refuses them
with the successor's address. A new leader holds them until its term's no-op is committed, and then
takes them. So a client finds the leader with one request instead of asking every replica until one
leads. A held send has not touched the log: if it is refused in the end, it is certainly not stored.
Bounds: HOLD_MS_MAX, and the bytes that the send path counts (waitingBytesMax).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from raftmq.remoting.command import JSON
from raftmq.store.dispatch import EntryBatch
from raftmq.store.frame import Frame

from ..messages.send_request import Record
from ..tables.idempotent_sends import Once
from ..tables.state import several
from .callbacks import Done
from .exactly_once import Written


class Connection(Protocol):
    """The part of a client's connection that is used here (remoting.connection has the rest)."""

    def write_many(self, frames: list[bytes]) -> bool: ...

    def write(self, data: bytes) -> bool: ...

    def abort(self, reason: str) -> None: ...


NO_WAIT = b"WAIT\x01false"
HOLD_MS_MAX = 200  # < the 300 ms that our producer waits for each replica it tries

# The sender to be answered: connection, opaque, one-way (not 0: yes), header codec of the request.
Sender = tuple[Connection, int, int, int]


class _Nobody:
    """Stands in for a connection where the broker itself is the sender: it is never answered."""

    def write_many(self, frames: list[bytes]) -> bool:
        raise AssertionError("nobody is answered")

    def write(self, data: bytes) -> bool:
        raise AssertionError("nobody is answered")

    def abort(self, reason: str) -> None:
        raise AssertionError("nobody is connected")


OWN: Sender = (_Nobody(), 0, 1, JSON)  # one-way


class AttendedTime:
    """A stall-aware clock: it counts only the milliseconds in which this process ran, because while
    it did not run no send was waiting for the disk. The time between two calls of `advance` counts as
    LOOK_MS_MAX at most."""

    STEP_MS_MAX = 50  # twice the tick of broker.scheduler

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.now_ms = 0
        self._clock_ms = clock_ms
        self._last_ms = clock_ms()

    def advance(self) -> int:
        clock_ms = self._clock_ms()
        self.now_ms += min(self.STEP_MS_MAX, clock_ms - self._last_ms)
        self._last_ms = clock_ms
        return self.now_ms


class Backlog:
    """Computes how many bytes of sends may wait or be in flight. That is the configured bound or,
    while sends wait too long, what can be stored in half of the time for which they may wait. So a
    send that is taken is stored in time, and any other is refused at once instead of at its
    time-out."""

    SPAN_MS = 1_000  # to measure the rate; also how long the bound stays low after a long wait
    ALWAYS_BYTES = 64 << 10  # these may always wait: they arrive while a disk stalls for a moment

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._proposed_bytes = 0
        self._scarce_until_ms = 0
        self._seen: deque[tuple[int, int]] = deque()  # when, and the bytes proposed until then

    def proposed(self, size_bytes: int) -> None:
        self._proposed_bytes += size_bytes

    def bytes_allowed(
        self, groups: Sequence[Group], held_bytes: int, wait_ms: int, now_ms: int
    ) -> int:
        """Return the bound in bytes from now on. `groups` are waiting, the oldest first;
        `held_bytes` is the size of all sends that wait or are in flight; `wait_ms` is how long a
        send may wait. Call it about ten times a second."""
        seen = self._seen
        seen.append((now_ms, self._proposed_bytes))
        while seen[0][0] < now_ms - self.SPAN_MS:
            seen.popleft()
        span_ms = now_ms - seen[0][0]
        if groups and now_ms - groups[0].begun_ms >= wait_ms / 4:
            self._scarce_until_ms = now_ms + self.SPAN_MS
        if not span_ms or now_ms >= self._scarce_until_ms:
            return self._bytes_max
        stored_bytes = (self._proposed_bytes - seen[0][1]) * wait_ms // (2 * span_ms)
        under_way = held_bytes - sum(group.held_bytes for group in groups)
        return min(self._bytes_max, under_way + max(self.ALWAYS_BYTES, stored_bytes))


@dataclass(slots=True, eq=False)
class Group:
    """Sends that will share a frame.

    `begun_ms`: when the first one came, by `AttendedTime`. `replies`: (sender, unique key, record
    count) of each send, in the order of `records`. `commands` go with the records; `dones` are
    called with the outcome. `once`: the idempotent sends; `written`: the requests of writers.
    `answered_queues`: for each record, by index, whose sender is told another queue than the
    record's, that queue's id and, for a timer message, its recall handle."""

    begun_ms: int = 0
    records: list[Record] = field(default_factory=list)
    replies: list[tuple[Sender, str, int]] = field(default_factory=list)
    commands: list[bytes] = field(default_factory=list)
    dones: list[Done] = field(default_factory=list)
    answered_queues: dict[int, tuple[int, str]] | None = None
    once: list[Once] | None = None
    written: list[Written] | None = None
    size_bytes: int = 0  # of the records
    command_bytes: int = 0  # upper bound of what the commands take together
    held_bytes: int = 0  # with the overhead, as counted against waitingBytesMax

    @property
    def command(self) -> bytes:
        """The command for the tables that goes with the records; b"": none."""
        return several(self.commands) if self.commands else b""

    def add_redirected(
        self, record: Record, sender: Sender, unique_key: str, queue_id: int, handle: str
    ) -> None:
        """Add a send whose message is stored elsewhere than in the queue that its sender chose."""
        if self.answered_queues is None:
            self.answered_queues = {}
        self.answered_queues[len(self.records)] = queue_id, handle
        self.records.append(record)
        self.replies.append((sender, unique_key, 1))

    def take_callbacks(self) -> list[Done]:
        """Return the callbacks of the broker's own messages, each to be called once."""
        dones, self.dones = self.dones, []
        return dones


class HeldSend(NamedTuple):
    """One send as it arrived."""

    sender: Sender
    ext: Mapping[str, str]
    body: bytes
    born_host: bytes
    code: int


class HeldSends:
    """The held sends and their common deadline. Holds nothing until `start`."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._until_ms = 0
        self.sends: list[HeldSend] = []
        self.groups: list[Group] = []  # admitted by a leader that leaves, never put into a frame

    @property
    def holding(self) -> bool:
        return self._until_ms > 0

    def start(self) -> None:
        """Hold from now on. Calling it again does not extend the deadline."""
        if not self._until_ms:
            self._until_ms = self._clock_ms() + HOLD_MS_MAX

    @property
    def overdue(self) -> bool:
        return 0 < self._until_ms <= self._clock_ms()

    def finish(self) -> tuple[list[HeldSend], list[Group]]:
        """Stop holding; return what was held to the caller."""
        self._until_ms = 0
        sends, self.sends = self.sends, []
        groups, self.groups = self.groups, []
        return sends, groups


@dataclass(slots=True, eq=False)
class Stored:
    """A group whose records were built, with each record's position and queue offset."""

    group: Group
    positions: list[int]
    offsets: list[int]
    units: list[Units]
    built_s: float = field(default_factory=time.perf_counter, init=False)  # 0: not to be timed


@dataclass(slots=True, eq=False)
class Pending(Stored):
    """A frame that was built here and is not applied yet."""

    frame: Frame
    built_ms: int


@dataclass(slots=True, eq=False)
class Batch(Stored):
    """Records built for a log without frames (classic mode); `data` goes to `position`."""

    position: int
    data: bytes
    stamp_ms: int

    @property
    def end(self) -> int:
        return self.position + len(self.data)


def split_unwaiting(batch: Batch) -> Stored | None:
    """Split off the sends that do not wait for disk and slaves (property WAIT=false), to be
    answered by themselves; the batch keeps those that do. None: all of them do."""
    if NO_WAIT not in batch.data:
        return None
    group = batch.group
    early = Group()
    early.records = group.records
    early.answered_queues = group.answered_queues
    late: list[tuple[Sender, str, int]] = []
    at = 0
    for sender, unique_key, count in group.replies:
        silent = (sender[0], sender[1], 1, sender[3])
        waits = does_wait(group.records[at][10])
        early.replies.append((silent if waits else sender, unique_key, count))
        late.append((sender if waits else silent, unique_key, count))
        at += count
    group.replies = late
    unwaiting = Stored(early, batch.positions, batch.offsets, batch.units)
    unwaiting.built_s = 0.0
    return unwaiting


def does_wait(tail: bytes) -> bool:
    """Return whether a message's properties (the end of its record) let its sender wait: WAIT is
    not "false"."""
    at = tail.find(NO_WAIT)
    while at > 0:
        starts = tail[at - 1] == 2 or at == _properties_start(tail)
        ends = tail[at + len(NO_WAIT) : at + len(NO_WAIT) + 1] in (b"\x02", b"")
        if starts and ends:
            return False
        at = tail.find(NO_WAIT, at + 1)
    return True


def _properties_start(tail: bytes) -> int:
    """Return the offset behind topic length, topic and properties length; see
    broker.send.frame_builder on the topic length."""
    return 3 + tail[0] if tail[0] else 4 + int.from_bytes(tail[:2], "big")
