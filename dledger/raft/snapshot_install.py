"""Snapshot install, which replaces frames that retention deleted on the leader.

A follower that needs frames from before the leader's first frame (new disk, or away for too long:
`PeerState.STRANDED`) cannot catch up by appends. It receives a *group snapshot*:

- the start of the leader's log: its first index F, the term of F - 1, and the CommitLog position of
  F, which is a segment's first byte. Ordinary appends then fill a log that is byte for byte the
  leader's;
- the application's state (broker.tables.snapshot_install) as of an applied index X >= F - 1. Frames
  F..X are applied again, and tables skip frames that they already reflect;
- the newest configuration known to be committed, not older than the configuration before F, with
  the index of its frame, in the format of the configuration file
  (dledger/storage/configuration_file.py). It is empty while broker.conf's configuration is in
  force.

**Protocol.** The leader repeatedly offers the start of its log to a stranded follower. The follower
asks for one chunk at a time. The first request has number 0; the leader then makes a *parcel*, one
for all followers, and its chunks name that parcel. A request for a parcel that is gone (new leader,
further retention, too old) gets an empty chunk, and the follower restarts with the next offer. The
parcel has a checksum besides those of the messages. The leader need not be ready, because the
majority for its first no-op may need the stranded replica.

**Why the follower may drop its own log.** A group snapshot describes committed state only.
Retention deletes only applied frames, the tables reflect applied frames, and committed frames stay
committed, even if a deposed leader reports them. `lacks` is true only if F - 1 is above this
replica's commit index, and its log has no frame F - 1 of that term. Let its frames be 1..L.

- Its frames up to F - 1 are either the committed frames, which the group snapshot replaces, or
  others, which can never be committed (state machine safety).
- Frames above F - 1 follow a frame F - 1 that differs from the committed one. By log matching (Raft
  5.3) none of them is in any log with the committed frame F - 1, and every committed frame above
  follows that one. So they were not and will not be committed.

So its acknowledgements stay true as far as they matter, and a recovered replica stays recovered. By
Raft 5.4.1 its log is at least as good as before with regard to committed frames, so no later vote
of it can elect a leader without a committed frame. Term and vote stay. A recovering replica has
nothing to keep, and recovers by its barrier (recovery.py), which is a frame above X.

Between the decision and its restart the replica must acknowledge nothing, such as a next leader's
append to the old log. It stops sending first (dledger/snapshot/transfer.py), before the group
snapshot is noted on disk (dledger/snapshot/marker.py, also about a kill in between).
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
GROUP_SNAPSHOT_BYTES_MAX = 256 << 20  # a million topics; in memory once per side
PARCEL_KEEP_MS = 60_000  # a parcel without a request for this long is dropped
_MAGIC = b"RMQI"
_VERSION = 1
# magic, version, first index, previous term, position, applied index, segment size,
# bytes of the configuration, bytes of the state
_HEAD = struct.Struct(">4sBqqqqqiq")


_INDEX = struct.Struct(">q")


class GroupSnapshotDamaged(Exception):
    """Bytes that are not a group snapshot; the message has the reason."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A snapshot of a group, with the start of a log, the application's state as of
    `applied_index`, and the configuration. `position` and sizes are in bytes."""

    first_index: int
    previous_term: int
    position: int
    applied_index: int
    segment_size_bytes: int
    configuration: bytes
    state: bytes

    def encode(self) -> bytes:
        """Return the bytes for `decode_group_snapshot`, with a checksum."""
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


def configuration_section(index: int, configuration: Configuration) -> bytes:
    """Return the `configuration` part of a group snapshot, for the configuration in frame `index`;
    empty for the founding one (index 0)."""
    return _INDEX.pack(index) + encode_configuration(configuration) if index else b""


def lacks(log: LogIndex, commit_index: int, first_index: int, previous_term: int) -> bool:
    """Return whether a log can catch up with a log that starts at `first_index` only by a group
    snapshot. The module's docstring proves that the log may then be dropped."""
    before = first_index - 1
    if before <= commit_index:
        return False
    return before > log.last_index or log.term_at(before) != previous_term


# -- messages --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstallOffer:
    """Announces the leader's log from `first_index` on, behind a frame of `previous_term`, up to
    byte `end_position`. A follower that needs no group snapshot uses it to measure its lag."""

    sender: NodeId
    to: NodeId
    term: int
    first_index: int
    previous_term: int
    end_position: int


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Asks for parcel `number` from `offset` on; number 0 means any, from its start."""

    sender: NodeId
    to: NodeId
    term: int
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class InstallChunk:
    """A part of a parcel of `size_bytes`. Without `data`, the parcel does not exist any more."""

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

    offer_ms: float = 150  # between offers to a follower, as two heartbeats
    retry_ms: float = 1_000  # a request without an answer is sent again
    retries_max: int = 10  # then the install restarts
    hold_ms: float = 30 * 60_000  # retention waits at most this long for a follower
    silent_ms: float = 15_000  # nor for a follower that was silent for this long
    pause_ms: float = 5 * 60_000  # pause after a failure to make a parcel


# -- the donor -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Refill:
    """A follower with a snapshot install under way. Retention keeps the frames that it needs."""

    first_index: int  # number of its parcel
    since_ms: float
    last_index: int  # the log's last index at its last request, which is the goal


class Donor:
    """The leader's side of snapshot install. Time and randomness are arguments."""

    def __init__(self, node_id: NodeId, timing: InstallTiming, first_number: int) -> None:
        """`first_number` is positive, and above all numbers of earlier processes of this node."""
        self._node_id = node_id
        self._timing = timing
        self._number = first_number
        self._data = b""
        self._first_index = 0  # the parcel's number; 0: no parcel
        self._requested_ms = 0.0
        self._paused_until_ms = float("-inf")  # no parcel is made before
        self._waiting: dict[NodeId, int] = {}  # followers that asked for a parcel in this term
        self._offered_ms: dict[NodeId, float] = {}
        self._refills: dict[NodeId, _Refill] = {}

    def drop(self) -> None:
        """Forget everything, because this replica no longer leads."""
        if self._first_index or self._offered_ms or self._waiting:
            self._data, self._first_index = b"", 0
            self._waiting, self._offered_ms, self._refills = {}, {}, {}

    def offers(
        self, stranded: Iterable[NodeId], term: int, log: LogIndex, now_ms: float
    ) -> list[InstallOffer]:
        """Return the due offers, to stranded followers and those with an install under way."""
        if self._first_index and (
            self._first_index != log.first_index or now_ms - self._requested_ms > PARCEL_KEEP_MS
        ):
            self._data, self._first_index = b"", 0
        offers = []
        for peer in sorted({*stranded, *self._refills}):
            if now_ms - self._offered_ms.get(peer, float("-inf")) < self._timing.offer_ms:
                continue
            self._offered_ms[peer] = now_ms
            offers.append(
                InstallOffer(
                    self._node_id,
                    peer,
                    term,
                    log.first_index,
                    log.previous_term,
                    log.end_position,
                )
            )
        return offers

    @property
    def is_busy(self) -> bool:
        """True while a parcel is kept or needed, or a snapshot install is under way."""
        return bool(self._first_index or self._waiting or self._refills)

    @property
    def wants_parcel(self) -> bool:
        """True if the caller should make a parcel now and pass it to `made`."""
        return bool(self._waiting) and not self._first_index

    def made(
        self, data: bytes, log: LogIndex, first_index: int, now_ms: float
    ) -> list[InstallChunk]:
        """Accept a parcel; return the first chunks for the waiting followers. The parcel is dropped
        if retention has deleted more since."""
        assert 0 < len(data) <= GROUP_SNAPSHOT_BYTES_MAX, len(data)
        if first_index != log.first_index:
            return []
        self._number += 1
        self._data, self._first_index, self._requested_ms = data, first_index, now_ms
        waiting, self._waiting = self._waiting, {}
        return [self._chunk(peer, term, 0) for peer, term in waiting.items()]

    def failed(self, now_ms: float) -> None:
        """Handle a failure to make the parcel. The waiting followers are forgotten, so that
        retention continues, and no parcel is made for `pause_ms`, because each attempt is
        expensive."""
        for peer in self._waiting:
            self._refills.pop(peer, None)
        self._waiting = {}
        self._paused_until_ms = now_ms + self._timing.pause_ms

    def step(self, request: InstallRequest, log: LogIndex, now_ms: float) -> InstallChunk | None:
        """Return the answer; None if a parcel follows (`wants_parcel`), or for a retry."""
        if now_ms < self._paused_until_ms:
            return None
        peer = request.sender
        refill = _Refill(log.first_index, now_ms, log.last_index)
        if peer in self._refills:
            refill.since_ms = self._refills[peer].since_ms
        self._refills[peer] = refill
        there = self._first_index == log.first_index
        if request.number == 0 and there:
            self._requested_ms = now_ms
            return self._chunk(peer, request.term, 0)
        if request.number == 0:
            self._waiting[peer] = request.term
            return None
        if not there or request.number != self._number or request.offset >= len(self._data):
            return InstallChunk(self._node_id, peer, request.term, request.number, 0, 0, b"")
        self._requested_ms = now_ms
        return self._chunk(peer, request.term, request.offset)

    def _chunk(self, peer: NodeId, term: int, offset: int) -> InstallChunk:
        data = self._data[offset : offset + CHUNK_BYTES]
        size = len(self._data)
        return InstallChunk(self._node_id, peer, term, self._number, offset, size, data)

    def still_refilled(self, peers: dict[NodeId, tuple[int, float]], now_ms: float) -> list[NodeId]:
        """Return the followers with an install under way. `peers` maps each to its last index and
        the time it was last heard. Retention should delete nothing for them if the disk has space.
        """
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
    """The follower's side of snapshot install, which collects a single parcel at a time."""

    def __init__(self, node_id: NodeId, timing: InstallTiming) -> None:
        self._node_id = node_id
        self._timing = timing
        self._data = bytearray()
        self._number = 0
        self._due_ms = 0.0
        self._retries = 0
        self._out: list[InstallRequest] = []
        self.leader: NodeId | None = None  # the parcel's sender; None: no parcel
        self.term = 0
        self.size_bytes = 0
        self.offered_count = 0  # parcels since the start

    @property
    def received_bytes(self) -> int:
        return len(self._data)

    def follow(self, leader: NodeId | None, term: int) -> None:
        """Note the leader; drop a group snapshot from any other replica."""
        if self.leader is not None and (self.leader, self.term) != (leader, term):
            self.give_up()

    def give_up(self) -> None:
        """Drop the received bytes; the next offer starts again."""
        self._data = bytearray()
        self._out.clear()
        self.leader, self._number, self.size_bytes = None, 0, 0

    def offered(self, offer: InstallOffer, now_ms: float) -> None:
        """Accept the current leader's offer of frames that this replica `lacks`."""
        if self.leader is None:
            self.leader, self.term = offer.sender, offer.term
            self.offered_count += 1
            self._retries = 0
            self._ask(now_ms)

    def step(self, chunk: InstallChunk, now_ms: float) -> bytes | None:
        """Accept a chunk; return the parcel if it is complete."""
        if (chunk.sender, chunk.term) != (self.leader, self.term):
            return None
        if self._number and chunk.number != self._number:
            return None
        if not chunk.data:
            self.give_up()  # the next offer restarts
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
        """Repeat a request without an answer; give up after too many attempts."""
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
