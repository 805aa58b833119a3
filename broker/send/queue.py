"""Waiting sends and sends in flight, in groups that share a frame or a batch.

A `Group` becomes a frame (Raft mode) or a batch (classic mode). It holds records of clients' sends
and of the broker's own messages (`Outgoing`), with the commands of the latter. So a moved message
and the record of its move are committed together.

`HeldSends` delays sends briefly while a replica is about to lead. During a transfer the old leader
holds sends until it can reject them with its successor's address, and the new leader until its
term's no-op is committed. So a client finds the leader with a single request. A held send has not
reached the log. Limits are HOLD_MS_MAX and the bytes that the send path counts (waitingBytesMax).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from raftmq.remoting.command import JSON
from raftmq.store.frame import EntryBatch, Frame

from ..messages.send_request import Record
from ..tables.idempotent_sends import Once
from ..tables.state import several
from .callbacks import Done
from .exactly_once import Written


class Connection(Protocol):
    """The methods of a client's connection used here (see remoting.connection)."""

    def write_many(self, frames: list[bytes]) -> bool: ...

    def write(self, data: bytes) -> bool: ...

    def abort(self, reason: str) -> None: ...


NO_WAIT = b"WAIT\x01false"
HOLD_MS_MAX = 200  # < the 300 ms that our producer waits for a replica

# Connection, opaque, one-way (nonzero if so), and header codec of the request.
Sender = tuple[Connection, int, int, int]


class _Nobody:
    """The connection of the broker's own messages, which get no response."""

    def write_many(self, frames: list[bytes]) -> bool:
        raise AssertionError("nobody is answered")

    def write(self, data: bytes) -> bool:
        raise AssertionError("nobody is answered")

    def abort(self, reason: str) -> None:
        raise AssertionError("nobody is connected")


OWN: Sender = (_Nobody(), 0, 1, JSON)  # one-way


class AttendedTime:
    """A clock that counts only the time in which this process ran, since a stalled process is not
    waiting for the disk. The time between two `advance` calls counts as STEP_MS_MAX at most."""

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
    """Limits the bytes of sends that wait or are in flight. The limit is the configured value.
    While sends wait too long, it is the amount stored in half of their waiting limit. So accepted
    sends are stored in time, and the rest are rejected immediately instead of at their timeout."""

    SPAN_MS = 1_000  # of the rate measurement; also how long the limit stays low after a long wait
    ALWAYS_BYTES = 64 << 10  # always allowed, for sends that arrive while a disk stalls briefly

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._proposed_bytes = 0
        self._scarce_until_ms = 0
        self._seen: deque[tuple[int, int]] = deque()  # time, bytes proposed until then

    def proposed(self, size_bytes: int) -> None:
        self._proposed_bytes += size_bytes

    def bytes_allowed(
        self, groups: Sequence[Group], held_bytes: int, wait_ms: int, now_ms: int
    ) -> int:
        """Return the new limit in bytes. `groups` wait, the oldest first; `held_bytes` includes
        those in flight. Called about ten times per second."""
        seen = self._seen
        seen.append((now_ms, self._proposed_bytes))
        while seen[0][0] < now_ms - self.SPAN_MS:
            seen.popleft()
        span_ms = now_ms - seen[0][0]
        if groups and now_ms - groups[0].started_ms >= wait_ms / 4:
            self._scarce_until_ms = now_ms + self.SPAN_MS
        if not span_ms or now_ms >= self._scarce_until_ms:
            return self._bytes_max
        stored_bytes = (self._proposed_bytes - seen[0][1]) * wait_ms // (2 * span_ms)
        under_way = held_bytes - sum(group.held_bytes for group in groups)
        return min(self._bytes_max, under_way + max(self.ALWAYS_BYTES, stored_bytes))


@dataclass(slots=True, eq=False)
class Group:
    """Sends that will share a frame.

    `started_ms` is the time of the first send, by `AttendedTime`. `replies` holds (sender, unique
    key, record count) per send, in the order of `records`. `dones` are called with the outcome.
    `once` lists the idempotent sends and `written` the requests of writers. `answered_queues` maps
    the index of a redirected record to its response's queue id and recall handle."""

    started_ms: int = 0
    records: list[Record] = field(default_factory=list)
    replies: list[tuple[Sender, str, int]] = field(default_factory=list)
    commands: list[bytes] = field(default_factory=list)
    dones: list[Done] = field(default_factory=list)
    answered_queues: dict[int, tuple[int, str]] | None = None
    once: list[Once] | None = None
    written: list[Written] | None = None
    size_bytes: int = 0  # of the records
    command_bytes: int = 0  # an upper bound
    held_bytes: int = 0  # with overhead, as counted by waitingBytesMax

    @property
    def command(self) -> bytes:
        return several(self.commands) if self.commands else b""

    def add_redirected(
        self, record: Record, sender: Sender, unique_key: str, queue_id: int, handle: str
    ) -> None:
        """Add a send stored in another topic. The response names the queue its sender chose."""
        if self.answered_queues is None:
            self.answered_queues = {}
        self.answered_queues[len(self.records)] = queue_id, handle
        self.records.append(record)
        self.replies.append((sender, unique_key, 1))

    def take_callbacks(self) -> list[Done]:
        """Remove and return the callbacks of the broker's own messages."""
        dones, self.dones = self.dones, []
        return dones


class HeldSend(NamedTuple):
    """A send as it was received."""

    sender: Sender
    ext: Mapping[str, str]
    body: bytes
    born_host: bytes
    code: int


class HeldSends:
    """Held sends and their common deadline. Holds nothing before `start`."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._until_ms = 0
        self.sends: list[HeldSend] = []
        self.groups: list[Group] = []  # of a resigning leader; never part of a frame

    @property
    def holding(self) -> bool:
        return self._until_ms > 0

    def start(self) -> None:
        """Start holding. A second call does not extend the deadline."""
        if not self._until_ms:
            self._until_ms = self._clock_ms() + HOLD_MS_MAX

    @property
    def overdue(self) -> bool:
        return 0 < self._until_ms <= self._clock_ms()

    def finish(self) -> tuple[list[HeldSend], list[Group]]:
        """Stop holding, and return the held sends and groups."""
        self._until_ms = 0
        sends, self.sends = self.sends, []
        groups, self.groups = self.groups, []
        return sends, groups


@dataclass(slots=True, eq=False)
class Stored:
    """A group with the position and queue offset of each record."""

    group: Group
    positions: list[int]
    offsets: list[int]
    built_s: float = field(default_factory=time.perf_counter, init=False)  # 0: not timed


@dataclass(slots=True, eq=False)
class Pending(Stored):
    """A proposed frame of this replica that is not applied yet."""

    frame: Frame
    built_ms: int


@dataclass(slots=True, eq=False)
class Batch(Stored):
    """Records of classic mode, where the log has no frames; `data` belongs at `position`."""

    entries: list[EntryBatch]
    position: int
    data: bytes
    stamp_ms: int

    @property
    def end(self) -> int:
        return self.position + len(self.data)


def split_unwaiting(batch: Batch) -> Stored | None:
    """Split off the sends with WAIT=false, which do not wait for disk and slaves. Returns None if
    there are none; the batch keeps the rest."""
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
    unwaiting = Stored(early, batch.positions, batch.offsets)
    unwaiting.built_s = 0.0
    return unwaiting


def does_wait(tail: bytes) -> bool:
    """Return False if a record's properties contain WAIT=false."""
    at = tail.find(NO_WAIT)
    while at > 0:
        starts = tail[at - 1] == 2 or at == _properties_start(tail)
        ends = tail[at + len(NO_WAIT) : at + len(NO_WAIT) + 1] in (b"\x02", b"")
        if starts and ends:
            return False
        at = tail.find(NO_WAIT, at + 1)
    return True


def _properties_start(tail: bytes) -> int:
    """Return the offset behind topic length, topic and properties length (see
    broker.send.frame_builder)."""
    return 3 + tail[0] if tail[0] else 4 + int.from_bytes(tail[:2], "big")
