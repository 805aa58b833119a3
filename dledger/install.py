"""Installations: what stands in for frames that retention took everywhere. Pure.

A follower that needs frames from before the leader's first one (its disk is new, or it was away
for too long: `PeerState.STRANDED`) cannot be brought on by appends. It gets an *installation*:

- where the leader's log begins: its first index F, the term of F - 1, and the CommitLog position
  of F, which is a segment's first byte; a log that begins there is filled by ordinary appends, and
  is byte for byte the leader's;
- the application's state (broker.tables.installation: tables, and where every queue begins) as
  of an applied index X >= F - 1. Frames F..X are applied again: tables skip what they reflect
  already;
- the newest configuration known to be committed, which is not older than the one in force before
  F, and the index of its frame, as they stand in a replica's file of them (configurationfile.py);
  empty while nobody ever changed it: then broker.conf's is in force.

Who asks what. The leader offers where its log begins, again and again, while a follower is
stranded. The follower asks for a chunk, and for the next one when it has come: one chunk in
flight. The first question has number 0; the leader then makes a *parcel*, one for all, and its
chunks name that parcel. A parcel that is gone (another leader, retention went on, too old) is
answered by an empty chunk: the follower begins anew with the next offer. The whole has a
checksum besides the ones of the messages. The leader need not be ready for that: the majority that
its first no-op waits for may be one with the stranded replica.

Why the follower may throw its own log away for it. All that an installation says is committed:
retention takes only applied frames, the state is of applied frames, and what is committed once is
so for ever, whoever says it, deposed or not. So it is enough to look at what is thrown away.
`lacks` is true only if F - 1 is above this replica's commit index, and its log has no frame F - 1
of that term. Let it have frames 1..L.
- Those at and below F - 1 either are the committed ones, which the installation stands for, or
  others, which can never be committed (state machine safety).
- Frames above F - 1 it can only have behind a frame F - 1 that is another than the committed one
  (were it absent, L would be below). By log matching (Raft 5.3) none of them is in any log that
  has the committed frame F - 1, which every committed frame above stands behind: they were not
  and will not be committed.
So its acknowledgements of frames stay true as far as they can matter, and a replica that was whole
is whole. Its log is now at least as good as before by Raft 5.4.1 as far as what it lost was
committed: no vote that it grants from now on can elect a leader without a committed frame. Term
and vote are not touched. A replica that recovers has nothing to keep; it becomes whole
by its barrier, as always (standing.py): that is a frame above X.

But between the decision and the replica's restart it must acknowledge nothing (an append of a
next leader to the log that goes away): it falls silent first (installer.py), before the
installation is noted on disk (installation.py, which also says what a kill in between leaves).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from google_crc32c import value as crc32c

from raftmq.dledger.configuration import Configuration, encode_configuration
from raftmq.dledger.index import LogIndex
from raftmq.dledger.messages import TERM_MAX, NodeId

CHUNK_BYTES = 256 << 10
INSTALLATION_BYTES_MAX = 256 << 20  # a million topics; in memory, once, on either side
PARCEL_KEEP_MS = 60_000  # not asked for by anybody for so long: made anew
_MAGIC = b"RMQI"
_VERSION = 1
# magic, version, first index, previous term, position, applied index, segment size,
# bytes of the configuration, bytes of the state
_HEAD = struct.Struct(">4sBqqqqqiq")


_INDEX = struct.Struct(">q")


class InstallationDamaged(Exception):
    """These bytes are no installation; the message says why."""


@dataclass(frozen=True, slots=True)
class Installation:
    """See the module."""

    first_index: int
    previous_term: int
    position: int
    applied_index: int
    segment_size_bytes: int
    configuration: bytes
    state: bytes

    def encode(self) -> bytes:
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


def decode_installation(data: bytes) -> Installation:
    """Raises InstallationDamaged."""
    if len(data) < _HEAD.size + 4:
        raise InstallationDamaged(f"{len(data)} bytes")
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "big"):
        raise InstallationDamaged("the checksum does not match")
    magic, version, first, term, position, applied, segment, configured, size = _HEAD.unpack_from(
        data
    )
    if magic != _MAGIC or version != _VERSION:
        raise InstallationDamaged(f"{magic!r} version {version}")
    at = _HEAD.size + configured
    if configured < 0 or at + size + 4 != len(data):
        raise InstallationDamaged(f"{len(data)} bytes with parts of {configured} and {size}")
    if first < 1 or applied < first - 1 or segment <= 0 or position < 0 or position % segment:
        raise InstallationDamaged(f"frame {first} at {position}, state of frame {applied}")
    if not 0 <= term <= TERM_MAX:
        raise InstallationDamaged(f"frame {first} behind one of term {term}")
    return Installation(first, term, position, applied, segment, data[_HEAD.size : at], data[at:-4])


def configuration_part(index: int, configuration: Configuration) -> bytes:
    """What an installation says of the configuration in frame `index`; 0: the founding one."""
    return _INDEX.pack(index) + encode_configuration(configuration) if index else b""


def lacks(log: LogIndex, commit_index: int, first_index: int, previous_term: int) -> bool:
    """Whether only an installation can help a log to the frames of one that begins at
    `first_index`, and the log holds nothing that it would miss then; see the module."""
    before = first_index - 1
    if before <= commit_index:
        return False
    return before > log.last_index or log.term_at(before) != previous_term


# -- messages --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstallOffer:
    """The leader's log: frames `first_index`.., behind one of `previous_term`, up to byte
    `end_position`. To whom it does not help, it only says how far that one is behind."""

    sender: NodeId
    to: NodeId
    term: int
    first_index: int
    previous_term: int
    end_position: int


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Wants the bytes of parcel `number` from `offset` on; number 0: of any, from its start."""

    sender: NodeId
    to: NodeId
    term: int
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class InstallChunk:
    """A part of a parcel of `size_bytes`; no `data`: there is no such parcel (any more)."""

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
    """Milliseconds."""

    offer_ms: float = 150  # between offers to one follower: two heartbeats
    retry_ms: float = 1_000  # a question without an answer is asked again
    retries_max: int = 10  # then all begins anew
    hold_ms: float = 30 * 60_000  # retention waits so long, at most, for one that is refilled
    silent_ms: float = 15_000  # and not for one that is silent


# -- the donor -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Refill:
    """A follower that is being refilled. Retention keeps what it needs."""

    first_index: int  # of the parcel that it got
    since_ms: float
    last_index: int  # what the log was when it asked last: caught up when it has that


class Donor:
    """The leader's side. Time and randomness are handed in."""

    def __init__(self, node_id: NodeId, timing: InstallTiming, first_number: int) -> None:
        """`first_number`: above 0, and above all that earlier processes of this node used."""
        self._node_id = node_id
        self._timing = timing
        self._number = first_number
        self._data = b""
        self._first_index = 0  # of the parcel; 0: there is none
        self._asked_ms = 0.0
        self._waiting: dict[NodeId, int] = {}  # asked for a parcel, in this term
        self._offered_ms: dict[NodeId, float] = {}
        self._refills: dict[NodeId, _Refill] = {}

    def drop(self) -> None:
        """It leads no more."""
        if self._first_index or self._offered_ms or self._waiting:
            self._data, self._first_index = b"", 0
            self._waiting, self._offered_ms, self._refills = {}, {}, {}

    def offers(
        self, stranded: Iterable[NodeId], term: int, log: LogIndex, now_ms: float
    ) -> list[InstallOffer]:
        """What is to be said to stranded followers now, and to those that are being refilled."""
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
    def wants_parcel(self) -> bool:
        """Whether one should be made now, and given to `made`."""
        return bool(self._waiting) and not self._first_index

    def made(
        self, data: bytes, log: LogIndex, first_index: int, now_ms: float
    ) -> list[InstallChunk]:
        """A parcel is ready, unless retention went on meanwhile: first chunks for who waits."""
        assert 0 < len(data) <= INSTALLATION_BYTES_MAX, len(data)
        if first_index != log.first_index:
            return []
        self._number += 1
        self._data, self._first_index, self._asked_ms = data, first_index, now_ms
        waiting, self._waiting = self._waiting, {}
        return [self._chunk(peer, term, 0) for peer, term in waiting.items()]

    def step(self, request: InstallRequest, log: LogIndex, now_ms: float) -> InstallChunk | None:
        """The answer; None: it comes when there is a parcel (`wants_parcel`)."""
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
        """Followers that are being refilled; `peers`: what each has, and when it was heard last.
        While there are some retention shall take nothing, if there is room."""
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
    """The follower's side: collects one parcel at a time, from one leader in one term."""

    def __init__(self, node_id: NodeId, timing: InstallTiming) -> None:
        self._node_id = node_id
        self._timing = timing
        self._data = bytearray()
        self._number = 0
        self._due_ms = 0.0
        self._retries = 0
        self._out: list[InstallRequest] = []
        self.leader: NodeId | None = None  # whom it collects from; None: nobody
        self.term = 0
        self.size_bytes = 0
        self.begun = 0  # parcels, since the start

    @property
    def received_bytes(self) -> int:
        return len(self._data)

    def follow(self, leader: NodeId | None, term: int) -> None:
        """Who leads now: an installation from anybody else is given up."""
        if self.leader is not None and (self.leader, self.term) != (leader, term):
            self.give_up()

    def give_up(self) -> None:
        self._data = bytearray()
        self._out.clear()
        self.leader, self._number, self.size_bytes = None, 0, 0

    def offered(self, offer: InstallOffer, now_ms: float) -> None:
        """An offer from the current leader of what this replica `lacks`."""
        if self.leader is None:
            self.leader, self.term = offer.sender, offer.term
            self.begun += 1
            self._retries = 0
            self._ask(now_ms)

    def step(self, chunk: InstallChunk, now_ms: float) -> bytes | None:
        """Take a chunk; the whole parcel when this was its last one."""
        if (chunk.sender, chunk.term) != (self.leader, self.term):
            return None
        if self._number and chunk.number != self._number:
            return None
        if not chunk.data:
            self.give_up()  # the next offer begins anew
            return None
        if chunk.offset != len(self._data):
            return None  # once more, after all
        size = chunk.size_bytes
        if size > INSTALLATION_BYTES_MAX or (self._number and size != self.size_bytes):
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
        if self.leader is None or now_ms < self._due_ms:
            return
        self._retries += 1
        if self._retries > self._timing.retries_max:
            self.give_up()
        else:
            self._ask(now_ms)

    def requests(self) -> list[InstallRequest]:
        """What is to be sent; each is handed out once."""
        out, self._out = self._out, []
        return out

    def _ask(self, now_ms: float) -> None:
        assert self.leader is not None
        self._due_ms = now_ms + self._timing.retry_ms
        self._out = [
            InstallRequest(self._node_id, self.leader, self.term, self._number, len(self._data))
        ]
