"""Snapshot install: a group snapshot replaces frames that retention deleted on the leader. Pure.

A follower that needs frames from before the leader's first one (its disk is new, or it was away
for too long: `PeerState.STRANDED`) cannot catch up by appends. It gets a *group snapshot*:

- where the leader's log begins: its first index F, the term of F - 1, and the CommitLog position
  of F, which is a segment's first byte; a log that begins there is filled by ordinary appends, and
  is byte for byte the leader's;
- the application's state (broker.tables.snapshot_install: tables, and where every queue begins) as
  of an applied index X >= F - 1. Frames F..X are applied again: tables skip what they reflect
  already;
- the newest configuration known to be committed, which is not older than the one in force before
  F, and the index of its frame, in the format of a replica's configuration file
  (dledger/storage/configuration_file.py); empty if it was never changed: then broker.conf's is in
  force.

The protocol. The leader offers where its log begins, again and again, while a follower is
stranded. The follower asks for a chunk, and for the next one when it has come: one chunk in
flight. The first request has number 0; the leader then makes a *parcel*, one for all followers,
and its chunks name that parcel. A request for a parcel that is gone (another leader, retention
went on, too old) is answered by an empty chunk: the follower begins anew with the next offer. The
whole parcel has a checksum besides those of the messages. The leader need not be ready for that:
the majority that its first no-op waits for may need the stranded replica.

Why the follower may throw its own log away. All that a group snapshot says is committed: retention
deletes only applied frames, the state is of applied frames, and what is committed once is so for
ever, even if a deposed leader says so. So only what is thrown away has to be considered.
`lacks` is true only if F - 1 is above this replica's commit index, and its log has no frame F - 1
of that term. Let it have frames 1..L.
- Its frames at and below F - 1 either are the committed ones, which the group snapshot replaces, or
  others, which can never be committed (state machine safety).
- Frames above F - 1 can only stand behind a frame F - 1 that differs from the committed one (if it
  had no frame F - 1, L would be below). By log matching (Raft 5.3) none of them is in any log that
  has the committed frame F - 1, and every committed frame above stands behind that one: they were
  not and will not be committed.
So its acknowledgements of frames stay true as far as they can matter, and a replica that was
recovered stays recovered. By Raft 5.4.1 its log is at least as good as before with regard to
committed frames: no vote that it grants from now on can elect a leader without a committed frame.
Term and vote are not touched. A recovering replica has nothing to keep; it recovers by its barrier,
as always (recovery.py), which is a frame above X.

But between the decision and its restart the replica must acknowledge nothing (such as a next
leader's append to the old log): it falls silent first (dledger/snapshot/transfer.py), before the
group snapshot is noted on disk (dledger/snapshot/marker.py, which also says what a kill in between
leaves).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from google_crc32c import value as crc32c

from .configuration import Configuration, encode_configuration
from .log_index import LogIndex
from .messages import TERM_MAX, NodeId

CHUNK_BYTES = 256 << 10
GROUP_SNAPSHOT_BYTES_MAX = 256 << 20  # a million topics; in memory, once, on either side
PARCEL_KEEP_MS = 60_000  # a parcel not asked for during this time is dropped
_MAGIC = b"RMQI"
_VERSION = 1
# magic, version, first index, previous term, position, applied index, segment size,
# bytes of the configuration, bytes of the state
_HEAD = struct.Struct(">4sBqqqqqiq")


_INDEX = struct.Struct(">q")


class GroupSnapshotDamaged(Exception):
    """Bytes that are not a group snapshot; the message says why."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A snapshot of a group at one moment: where a log begins, the application's state as of
    `applied_index`, and the configuration. `position` and sizes are in bytes."""

    first_index: int
    previous_term: int
    position: int
    applied_index: int
    segment_size_bytes: int
    configuration: bytes
    state: bytes

    def encode(self) -> bytes:
        """Return the bytes that `decode_group_snapshot` takes, with a checksum."""
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self.first_index,
            self.previous_term,
            self.position,
            self.applied_index,
            self.segment_size_bytes,
            len(self.configuration),
            len(self.state),
        )
        body = head + self.configuration + self.state
        return body + int(crc32c(body)).to_bytes(4, "big")


def decode_group_snapshot(data: bytes) -> GroupSnapshot:
    """Return the group snapshot encoded in `data`. Raises GroupSnapshotDamaged."""
    if len(data) < _HEAD.size + 4:
        raise GroupSnapshotDamaged(f"{len(data)} bytes")
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "big"):
        raise GroupSnapshotDamaged("the checksum does not match")
    magic, version, first, term, position, applied, segment, configured, size = _HEAD.unpack_from(
        data
    )
    if magic != _MAGIC or version != _VERSION:
        raise GroupSnapshotDamaged(f"{magic!r} version {version}")
    at = _HEAD.size + configured
    if configured < 0 or at + size + 4 != len(data):
        raise GroupSnapshotDamaged(f"{len(data)} bytes with parts of {configured} and {size}")
    if first < 1 or applied < first - 1 or segment <= 0 or position < 0 or position % segment:
        raise GroupSnapshotDamaged(f"frame {first} at {position}, state of frame {applied}")
    if not 0 <= term <= TERM_MAX:
        raise GroupSnapshotDamaged(f"frame {first} behind one of term {term}")
    return GroupSnapshot(
        first, term, position, applied, segment, data[_HEAD.size : at], data[at:-4]
    )


def configuration_part(index: int, configuration: Configuration) -> bytes:
    """Return a group snapshot's `configuration` part, for the configuration in frame `index`; empty
    for the founding one (index 0)."""
    return _INDEX.pack(index) + encode_configuration(configuration) if index else b""


def lacks(log: LogIndex, commit_index: int, first_index: int, previous_term: int) -> bool:
    """Return whether a log can catch up with one that begins at `first_index` only by an
    snapshot. Then it may be thrown away for it (the module's docstring says why)."""
    before = first_index - 1
    if before <= commit_index:
        return False
    return before > log.last_index or log.term_at(before) != previous_term


# -- messages --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstallOffer:
    """Says which frames the leader's log has: from `first_index` on, behind one of `previous_term`,
    up to byte `end_position`. A follower that needs no group snapshot only learns how far it is
    behind."""

    sender: NodeId
    to: NodeId
    term: int
    first_index: int
    previous_term: int
    end_position: int


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Asks for the bytes of parcel `number` from `offset` on; number 0: of any parcel, from its
    start."""

    sender: NodeId
    to: NodeId
    term: int
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class InstallChunk:
    """A part of a parcel of `size_bytes`; without `data`: there is no such parcel (any more)."""

    sender: NodeId
    to: NodeId
    term: int
    number: int
    offset: int
    size_bytes: int
    data: bytes


InstallMessage = InstallOffer | InstallRequest | InstallChunk


@dataclass(frozen=True, slots=True)
class InstallTiming:
    """Intervals and limits, in milliseconds (`retries_max` in attempts)."""

    offer_ms: float = 150  # between offers to one follower: two heartbeats
    retry_ms: float = 1_000  # a request without an answer is sent again
    retries_max: int = 10  # then all begins anew
    hold_ms: float = 30 * 60_000  # the longest that retention waits for a follower's refill
    silent_ms: float = 15_000  # retention does not wait for a follower silent for this long
    pause_ms: float = 5 * 60_000  # no parcel is made for this long after one that failed


# -- the donor -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Refill:
    """A follower whose snapshot install is under way. Retention keeps what it needs."""

    first_index: int  # of the parcel that it got
    since_ms: float
    last_index: int  # the log's last index when it asked last: caught up when it has that frame


class Donor:
    """The leader's side of snapshot install. Time and randomness are handed in."""

    def __init__(self, node_id: NodeId, timing: InstallTiming, first_number: int) -> None:
        """`first_number` is above 0, and above all numbers that earlier processes of this node
        used."""
        self._node_id = node_id
        self._timing = timing
        self._number = first_number
        self._data = b""
        self._first_index = 0  # of the parcel; 0: there is none
        self._asked_ms = 0.0
        self._paused_until_ms = float("-inf")  # no parcel is made before
        self._waiting: dict[NodeId, int] = {}  # asked for a parcel, in this term
        self._offered_ms: dict[NodeId, float] = {}
        self._refills: dict[NodeId, _Refill] = {}

    def drop(self) -> None:
        """Forget everything: this replica does not lead any more."""
        if self._first_index or self._offered_ms or self._waiting:
            self._data, self._first_index = b"", 0
            self._waiting, self._offered_ms, self._refills = {}, {}, {}

    def offers(
        self, stranded: Iterable[NodeId], term: int, log: LogIndex, now_ms: float
    ) -> list[InstallOffer]:
        """Return the offers due now to stranded followers and to those being refilled."""
        if self._first_index and (
            self._first_index != log.first_index or now_ms - self._asked_ms > PARCEL_KEEP_MS
        ):
            self._data, self._first_index = b"", 0
        found = []
        for peer in sorted({*stranded, *self._refills}):
            if now_ms - self._offered_ms.get(peer, float("-inf")) < self._timing.offer_ms:
                continue
            self._offered_ms[peer] = now_ms
            found.append(
                InstallOffer(
                    self._node_id,
                    peer,
                    term,
                    log.first_index,
                    log.previous_term,
                    log.end_position,
                )
            )
        return found

    @property
    def is_busy(self) -> bool:
        """True while a parcel is kept or wanted, or a follower is being refilled."""
        return bool(self._first_index or self._waiting or self._refills)

    @property
    def wants_parcel(self) -> bool:
        """True if the caller should make a parcel now and pass it to `made`."""
        return bool(self._waiting) and not self._first_index

    def made(
        self, data: bytes, log: LogIndex, first_index: int, now_ms: float
    ) -> list[InstallChunk]:
        """Take a parcel that was made; return the first chunks for the followers that wait. It is
        dropped if retention went on meanwhile."""
        assert 0 < len(data) <= GROUP_SNAPSHOT_BYTES_MAX, len(data)
        if first_index != log.first_index:
            return []
        self._number += 1
        self._data, self._first_index, self._asked_ms = data, first_index, now_ms
        waiting, self._waiting = self._waiting, {}
        return [self._chunk(peer, term, 0) for peer, term in waiting.items()]

    def failed(self, now_ms: float) -> None:
        """Note that the parcel wanted could not be made. The followers that wait for it are
        forgotten, so that retention goes on, and none is made for `pause_ms`: the copy and its
        encoding cost much, and the next would hardly end otherwise."""
        for peer in self._waiting:
            self._refills.pop(peer, None)
        self._waiting = {}
        self._paused_until_ms = now_ms + self._timing.pause_ms

    def step(self, request: InstallRequest, log: LogIndex, now_ms: float) -> InstallChunk | None:
        """Return the answer; None: it follows when there is a parcel (`wants_parcel`), or the
        follower has to ask again later."""
        if now_ms < self._paused_until_ms:
            return None
        peer = request.sender
        refill = _Refill(log.first_index, now_ms, log.last_index)
        if peer in self._refills:
            refill.since_ms = self._refills[peer].since_ms
        self._refills[peer] = refill
        there = self._first_index == log.first_index
        if request.number == 0 and there:
            self._asked_ms = now_ms
            return self._chunk(peer, request.term, 0)
        if request.number == 0:
            self._waiting[peer] = request.term
            return None
        if not there or request.number != self._number or request.offset >= len(self._data):
            return InstallChunk(self._node_id, peer, request.term, request.number, 0, 0, b"")
        self._asked_ms = now_ms
        return self._chunk(peer, request.term, request.offset)

    def _chunk(self, peer: NodeId, term: int, offset: int) -> InstallChunk:
        data = self._data[offset : offset + CHUNK_BYTES]
        size = len(self._data)
        return InstallChunk(self._node_id, peer, term, self._number, offset, size, data)

    def still_refilled(self, peers: dict[NodeId, tuple[int, float]], now_ms: float) -> list[NodeId]:
        """Return the followers still being refilled. `peers` gives the last index each has, and
        when it was heard last. While there are any, retention should delete nothing if the disk
        has room."""
        timing = self._timing
        for peer, refill in list(self._refills.items()):
            match_index, heard_ms = peers.get(peer, (0, float("-inf")))
            if (
                match_index >= refill.last_index
                or now_ms - heard_ms > timing.silent_ms
                or now_ms - refill.since_ms > timing.hold_ms
            ):
                del self._refills[peer]
        return sorted(self._refills)


# -- the receiver ----------------------------------------------------------------------------------


class Receiver:
    """The follower's side of snapshot install: collects one parcel at a time, from one leader in
    one term."""

    def __init__(self, node_id: NodeId, timing: InstallTiming) -> None:
        self._node_id = node_id
        self._timing = timing
        self._data = bytearray()
        self._number = 0
        self._due_ms = 0.0
        self._retries = 0
        self._out: list[InstallRequest] = []
        self.leader: NodeId | None = None  # the sender of the parcel; None: collects none
        self.term = 0
        self.size_bytes = 0
        self.begun = 0  # parcels, since the start

    @property
    def received_bytes(self) -> int:
        """The bytes of the current parcel that have come."""
        return len(self._data)

    def follow(self, leader: NodeId | None, term: int) -> None:
        """Note who leads now; give up a group snapshot from anybody else."""
        if self.leader is not None and (self.leader, self.term) != (leader, term):
            self.give_up()

    def give_up(self) -> None:
        """Drop what was received; the next offer begins anew."""
        self._data = bytearray()
        self._out.clear()
        self.leader, self._number, self.size_bytes = None, 0, 0

    def offered(self, offer: InstallOffer, now_ms: float) -> None:
        """Take the current leader's offer of what this replica `lacks`."""
        if self.leader is None:
            self.leader, self.term = offer.sender, offer.term
            self.begun += 1
            self._retries = 0
            self._ask(now_ms)

    def step(self, chunk: InstallChunk, now_ms: float) -> bytes | None:
        """Take a chunk; return the whole parcel if this was its last one."""
        if (chunk.sender, chunk.term) != (self.leader, self.term):
            return None
        if self._number and chunk.number != self._number:
            return None
        if not chunk.data:
            self.give_up()  # the next offer begins anew
            return None
        if chunk.offset != len(self._data):
            return None  # a repeated answer
        size = chunk.size_bytes
        if size > GROUP_SNAPSHOT_BYTES_MAX or (self._number and size != self.size_bytes):
            self.give_up()
            return None
        self._number, self.size_bytes = chunk.number, size
        self._data += chunk.data
        self._retries = 0
        if len(self._data) < size:
            self._ask(now_ms)
            return None
        data = bytes(self._data)
        self.give_up()
        return data if len(data) == size else None

    def tick(self, now_ms: float) -> None:
        """Ask again for a chunk that did not come; give up after too many attempts."""
        if self.leader is None or now_ms < self._due_ms:
            return
        self._retries += 1
        if self._retries > self._timing.retries_max:
            self.give_up()
        else:
            self._ask(now_ms)

    def requests(self) -> list[InstallRequest]:
        """Return the requests to send; each is handed out once."""
        out, self._out = self._out, []
        return out

    def _ask(self, now_ms: float) -> None:
        assert self.leader is not None
        self._due_ms = now_ms + self._timing.retry_ms
        self._out = [
            InstallRequest(self._node_id, self.leader, self.term, self._number, len(self._data))
        ]
