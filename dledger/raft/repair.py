"""The protocol of frame repair, with a peer's answer, and the choice of the peer to ask.

A frame of one index and term has the same bytes and position in every log that has it, and so has
everything before it (log matching, Raft 5.3). So bytes from a peer may replace damaged bytes once
it is proven that they are *those* frames:

- The term of the damaged frame is known, from its intact header or an earlier read. Then any peer's
  frame of that index and term will do, committed or not.
- Its term is unknown, but the frame before it is the same here and there, and a further condition
  holds. Either the peer's frame is committed; or the intact frame *behind* the damage is, by index
  and term, the next frame in the peer's log, or has the term of the peer's last frame in between;
  or the peer leads in a term T no lower than any term of this replica (`StartRepair`'s `term`, from
  the vote file). In the last case everything that this replica acknowledged in T is in the peer's
  log, and earlier acknowledged frames are there or never committed (Raft 5.4.3). So that log
  replaces this log from the damage on, as an AppendRequest does, and the rest is truncated
  (`Patch.last`). This rule prevents a deadlock of a leader that needs this replica to commit,
  because another replica recovers, and a repair that waits for the commit.

Committed frames prove nothing about the frames behind them here, because frames of an unrelated
leader may fit by position, index and rising term. A frame that is not proven to follow a patch
counts as damaged in its turn (`Patch.proven`).

`StartRepair` repairs a log before its replica participates; `FrameRepair` repairs single known
frames while it does. Both ask through an `Asker`: every peer, then the peer that had something, and
every peer again at growing intervals. Received frames are checked here (both checksums, position,
index, term); the driver writes and syncs them before anything builds upon them.

**Giving up.** A ready leader has every committed frame. If it has no frame there, or a different
frame, or retention deleted it, then the frames behind the damage cannot be trusted and come from
the leader. Without a leader, and with too few recovered replicas to elect one, the same happens
once every peer has answered for `give_up_ms` that it cannot help, and the group continues with the
best surviving log. A replica that gives up has lost promises and must recover (HardState.recovered)
before it votes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from raftmq.store.errors import StoreDamaged
from raftmq.store.frame import (
    HEADER_SIZE_BYTES,
    PAYLOAD_SIZE_BYTES_MAX,
    Frame,
    FrameError,
    parse_frame,
    parse_header,
)
from raftmq.store.record import BLANK_SIZE_BYTES

from .log_index import LogIndex
from .messages import TERM_MAX, NodeId, Role
from .quorum import majority

RESPONSE_BYTES_MAX = 1 << 20
DAMAGED_FRAMES_MAX = 4096  # max. known damage at run time; other frames are found again by reads


class Outcome(IntEnum):
    """A peer's answer about a damaged frame."""

    FRAMES = 1  # the answer has frames
    LATER = 2  # not yet committed, or also damaged or unknown here
    LACKS = 3  # the log ends before the frame
    TRIMMED = 4  # retention deleted them
    CONFLICT = 5  # the log has other frames there, which will stay


class ResponderState(IntEnum):
    RECOVERED = 0
    LEADS = 1  # a ready leader, which has committed all committed frames
    RECOVERING = 2  # recovering, without a vote that counts
    REPAIRS = 3  # does not participate


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """Asks for frame `index`, which follows a frame of `prev_term`, and possibly for later frames.
    `term` is the frame's own, 0 if unknown. `offset` is the count of its bytes that are here
    already. The answer repeats `number`."""

    sender: NodeId
    to: NodeId
    number: int
    index: int
    prev_term: int
    term: int
    offset: int


@dataclass(frozen=True, slots=True)
class RepairResponse:
    """A peer's answer. `data` has complete frames from `index` on, or bytes of a frame that is
    larger than a response, from the request's offset on. `next_term` is the term of the frame
    behind them in that log, 0 for none. Frames up to `commit_index` are committed. `term` is the
    sender's, 0 during its own repair."""

    sender: NodeId
    to: NodeId
    number: int
    index: int
    outcome: Outcome
    responder: ResponderState
    commit_index: int
    next_term: int
    data: bytes
    term: int


def responder_state(role: Role, leader_ready: bool, recovered: bool) -> ResponderState:
    """Return the state of a replica with a running core."""
    if role is Role.LEADER and leader_ready:
        return ResponderState.LEADS
    return ResponderState.RECOVERED if recovered else ResponderState.RECOVERING


# -- the answering side ----------------------------------------------------------------------------


def answer(
    request: RepairRequest,
    log: LogIndex,
    commit_index: int,
    responder: ResponderState,
    read: Callable[[int, int, int], Sequence[Frame]],
    term: int,
) -> RepairResponse:
    """Return the answer of this replica, `request.to`. `read(first, last, bytes_max)` is
    `RaftLog.frames`. During this replica's own repair `log` is the recovered part, and `term` is 0.
    """
    outcome, frames = Outcome.LATER, tuple[Frame, ...]()
    try:
        # A leader truncates nothing of its log, committed or not.
        settled_index = log.last_index if responder is ResponderState.LEADS else commit_index
        outcome, frames = _find(request, log, settled_index, read)
    except StoreDamaged:
        pass  # also damaged here; this replica repairs it itself
    if responder is ResponderState.REPAIRS and outcome is not Outcome.FRAMES:
        outcome = Outcome.LATER  # the requested term is unknown
    data, next_term = b"", 0
    if frames:
        last = frames[-1].index
        next_term = log.term_at(last + 1) if last < log.last_index else 0
        data = b"".join([frame.data for frame in frames])
        data = data[request.offset : request.offset + RESPONSE_BYTES_MAX]
    return RepairResponse(
        request.to,
        request.sender,
        request.number,
        request.index,
        outcome,
        responder,
        commit_index,
        next_term,
        data,
        term,
    )


def _find(
    request: RepairRequest,
    log: LogIndex,
    settled_index: int,
    read: Callable[[int, int, int], Sequence[Frame]],
) -> tuple[Outcome, tuple[Frame, ...]]:
    index = request.index
    if index < log.first_index:
        return Outcome.TRIMMED, ()
    if index > log.last_index:
        return Outcome.LACKS, ()
    if request.term:
        if log.term_at(index) == request.term:
            return Outcome.FRAMES, tuple(read(index, index, RESPONSE_BYTES_MAX))
        return Outcome.CONFLICT if index <= settled_index else Outcome.LATER, ()
    if log.term_at(index - 1) != request.prev_term:
        return Outcome.CONFLICT if index - 1 <= settled_index else Outcome.LATER, ()
    if request.offset:
        return Outcome.FRAMES, tuple(read(index, index, RESPONSE_BYTES_MAX))
    last = log.last_within(index, RESPONSE_BYTES_MAX)
    return Outcome.FRAMES, tuple(read(index, last, RESPONSE_BYTES_MAX))


# -- the asking side -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DamagedFrame:
    """The known properties of a damaged frame at `position`.

    With `term` 0 it may also be at the next segment's first byte, behind a blank record at
    `position`. `size_bytes` is 0 if unknown."""

    index: int
    prev_term: int
    term: int
    position: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RepairTiming:
    """Intervals of a repair, in milliseconds."""

    retry_ms: float = 200  # several round trips
    retry_ms_max: float = 2_000
    give_up_ms: float = 5_000  # several elections without a leader


@dataclass(frozen=True, slots=True)
class Patch:
    """Verdict: write these frames. With `proven` the intact frames behind them belong there. With
    `last` nothing belongs behind them and the rest may be truncated; `frames` may then be empty."""

    frames: tuple[Frame, ...]
    proven: bool
    peer: NodeId
    last: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Verdict: truncate the log from the damage on, and recover."""

    reason: str


class DamagedLog(Protocol):
    """The log under repair, as the repair sees it."""

    def segment_end(self, position: int) -> int:
        """Return the offset behind the segment of `position`."""
        ...

    def following(self, position: int) -> tuple[int, int] | None:
        """Return (index, term) of the frame with an intact header behind a frame that ends at
        `position`, or None."""
        ...


class BadPatch(Exception):
    """A peer's bytes are not the requested frames."""


def checked_frames(
    data: bytes, damaged: DamagedFrame, segment_end: Callable[[int], int]
) -> tuple[Frame, ...]:
    """Return the frames in `data`, each checked, and contiguous. Raises BadPatch."""
    frames: list[Frame] = []
    at, position, index, term = 0, damaged.position, damaged.index, damaged.prev_term
    while at < len(data):
        try:
            frame = parse_frame(data, at)
        except FrameError as error:
            raise BadPatch(f"{error.reason} at byte {at}") from error
        if frame.index != index or not term <= frame.term <= TERM_MAX:
            raise BadPatch(f"{frame!r} where {index} behind term {term} belongs")
        ends = segment_end(position)
        if frame.position == ends:
            ends = segment_end(frame.position)
        elif frame.position != position:
            raise BadPatch(f"{frame!r} does not stand at {position} or {ends}")
        if frame.end + BLANK_SIZE_BYTES > ends:
            raise BadPatch(f"{frame!r} goes beyond its segment")
        frames.append(frame)
        at += frame.size_bytes
        position, index, term = frame.end, index + 1, frame.term
    if not frames:
        raise BadPatch("no frame")
    if damaged.term:
        first = frames[0]
        fits = (first.term, first.position) == (damaged.term, damaged.position)
        if not fits or damaged.size_bytes not in (0, first.size_bytes) or len(frames) > 1:
            raise BadPatch(f"{first!r} is not the one of term {damaged.term} at {damaged.position}")
    return tuple(frames)


class Asker:
    """Asks the peers for a frame, until a peer has it.

    `first_number` starts a range that no earlier asker of this node used, because a late answer to
    an earlier asker may no longer fit this log."""

    def __init__(
        self,
        node_id: NodeId,
        voters: AbstractSet[NodeId],
        timing: RepairTiming,
        first_number: int,
    ) -> None:
        self.node_id = node_id
        self.peers = tuple(sorted(voters - {node_id}))
        self.damaged: DamagedFrame | None = None
        self.answers: dict[NodeId, RepairResponse] = {}  # of the round under way
        self.due_ms = 0.0  # when the round is over
        self._timing = timing
        self._retry_ms = timing.retry_ms
        self._number = first_number
        self._requested: tuple[NodeId, ...] = ()
        self._helper: NodeId | None = None  # the peer that had bytes last time
        self._have = b""  # bytes of a frame that arrives in parts
        self._out: list[RepairRequest] = []

    def set_members(self, members: AbstractSet[NodeId]) -> None:
        """Ask these members from the next round on."""
        self.peers = tuple(sorted(members - {self.node_id}))

    def start(self, damaged: DamagedFrame, now_ms: float) -> None:
        self.damaged = damaged
        self._retry_ms = self._timing.retry_ms
        self._ask(() if self._helper is None else (self._helper,), now_ms)

    def end(self) -> None:
        self.damaged = None
        self._out.clear()

    def requests(self) -> list[RepairRequest]:
        """Return the requests to send; each is handed out once."""
        out, self._out = self._out, []
        return out

    def tick(self, now_ms: float) -> None:
        """Ask all peers again if the round is over."""
        if self.damaged is not None and now_ms >= self.due_ms:
            self._retry_ms = min(2 * self._retry_ms, self._timing.retry_ms_max)
            self._ask((), now_ms)

    def take(self, response: RepairResponse, now_ms: float) -> bytes | None:
        """Handle an answer; return the bytes of complete frames if it completes them."""
        damaged = self.damaged
        if damaged is None or response.number != self._number:
            return None  # an answer to an earlier question
        if response.sender not in self._requested or response.index != damaged.index:
            return None
        if response.outcome is not Outcome.FRAMES:
            self.refuse(response, now_ms)
            return None
        self.answers[response.sender] = response
        data = self._have + response.data
        try:
            _, _, _, _, _, _, payload_length, *_ = parse_header(data)
        except FrameError:
            self.refuse(response, now_ms)
            return None
        size = HEADER_SIZE_BYTES + payload_length
        if len(data) < size:
            assert size <= HEADER_SIZE_BYTES + PAYLOAD_SIZE_BYTES_MAX
            if not response.data:
                self.refuse(response, now_ms)
                return None
            self._ask((response.sender,), now_ms, data)
            return None
        self._helper = response.sender
        return data

    def refuse(self, response: RepairResponse, now_ms: float) -> None:
        """Note that the peer cannot help in this round."""
        self.answers[response.sender] = response
        if self._helper == response.sender:
            self._helper = None
        if len(self._requested) < len(self.peers):
            self._ask((), now_ms)

    @property
    def unanimous(self) -> bool:
        """True if all peers have answered in this round."""
        return all(peer in self.answers for peer in self.peers)

    def _ask(self, whom: tuple[NodeId, ...], now_ms: float, have: bytes = b"") -> None:
        assert self.damaged is not None
        damaged = self.damaged
        self._number += 1
        self._have = have
        self._requested = whom or self.peers
        self.answers = {}
        self.due_ms = now_ms + self._retry_ms
        for peer in self._requested:
            self._out.append(
                RepairRequest(
                    self.node_id,
                    peer,
                    self._number,
                    damaged.index,
                    damaged.prev_term,
                    damaged.term,
                    len(have),
                )
            )


class StartRepair:
    """Repairs a log before its replica participates.

    Call `start` at each damaged place, `step` for each answer, and `tick` over time. Send the
    `asker`'s requests after each of these."""

    def __init__(
        self, asker: Asker, voters: AbstractSet[NodeId], timing: RepairTiming, log: DamagedLog
    ) -> None:
        self.term = 0  # the highest term of this replica, even if its votes are lost
        self.asker = asker
        self.patched_frames = 0
        self.patched_bytes = 0
        self._voters = voters
        self._timing = timing
        self._log = log
        self._hopeless_since_ms: float | None = None

    def start(self, damaged: DamagedFrame, now_ms: float) -> None:
        self._hopeless_since_ms = None
        self.asker.start(damaged, now_ms)

    def tick(self, now_ms: float) -> None:
        """Ask again if it is time to."""
        asker = self.asker
        if now_ms >= asker.due_ms and not asker.unanimous:
            self._hopeless_since_ms = None  # a silent peer may have more
        asker.tick(now_ms)

    def step(self, response: RepairResponse, now_ms: float) -> Patch | GiveUp | None:
        """Handle an answer; return a verdict or None. After a Patch or GiveUp nothing is asked
        before the next `start`."""
        asker = self.asker
        damaged = asker.damaged
        data = asker.take(response, now_ms)
        if data is not None and damaged is not None:
            patch = self._patch(response, data, damaged)
            if patch is not None:
                self.patched_frames += len(patch.frames)
                self.patched_bytes += sum(frame.size_bytes for frame in patch.frames)
                asker.end()
                return patch
            asker.refuse(response, now_ms)
        verdict = self._void() or self._hopeless(now_ms)
        if verdict is not None:
            asker.end()
        return verdict

    def _patch(self, response: RepairResponse, data: bytes, damaged: DamagedFrame) -> Patch | None:
        """Return a patch of the frames that are proven to belong here (see the module), or None."""
        try:
            frames = checked_frames(data, damaged, self._log.segment_end)
        except BadPatch:
            return None
        if damaged.term:
            return Patch(frames, True, response.sender)
        terms = [frame.term for frame in frames[1:]] + [response.next_term]
        for count, (frame, next_term) in enumerate(zip(frames, terms, strict=True), 1):
            following = self._log.following(frame.end)
            if following is not None and following[0] == frame.index + 1:
                if following[1] in (frame.term, next_term):
                    return Patch(frames[:count], True, response.sender)
        if self._governs(response):
            return Patch(frames, False, response.sender, response.next_term == 0)
        committed = tuple(f for f in frames if self._is_committed(f, response))
        return Patch(committed, False, response.sender) if committed else None

    def _is_committed(self, frame: Frame, response: RepairResponse) -> bool:
        return frame.index <= response.commit_index

    def _governs(self, response: RepairResponse) -> bool:
        """Return whether the peer's log may replace this log, because it leads in a term no lower
        than this replica's."""
        return response.responder is ResponderState.LEADS and response.term >= self.term

    def _void(self) -> Patch | None:
        """Return a patch that only truncates, if the log of a governing leader does not have the
        damaged frame."""
        for peer, response in self.asker.answers.items():
            if self._governs(response) and response.outcome in (Outcome.LACKS, Outcome.CONFLICT):
                return Patch((), False, peer, last=True)
        return None

    def _hopeless(self, now_ms: float) -> GiveUp | None:
        answers = self.asker.answers
        for peer, response in answers.items():
            if response.responder is ResponderState.LEADS and response.outcome in (
                Outcome.LACKS,
                Outcome.TRIMMED,
                Outcome.CONFLICT,
            ):
                return GiveUp(f"{peer} leads: {response.outcome.name.lower()}")
        if not self.asker.unanimous:
            return None
        # A leader of an earlier term than this replica's may be unable to commit.
        recovered = [
            r
            for r in answers.values()
            if r.responder in (ResponderState.RECOVERED, ResponderState.LEADS)
        ]
        voters = sum(response.sender in self._voters for response in recovered)
        if any(map(self._governs, recovered)) or voters >= majority(len(self._voters)):
            self._hopeless_since_ms = None  # there is a leader, or there will be one
            return None
        if self._hopeless_since_ms is None:
            self._hopeless_since_ms = now_ms
        if now_ms - self._hopeless_since_ms < self._timing.give_up_ms:
            return None
        return GiveUp("nobody has it, and too few replicas have recovered to elect a leader")


class FrameRepair:
    """Repairs frames of known index, term, position and size in sequence."""

    def __init__(self, asker: Asker, timing: RepairTiming) -> None:
        self.asker = asker
        self.patched_frames = 0
        self.dropped = 0  # not noted at the limit
        self._damaged: OrderedDict[int, DamagedFrame] = (
            OrderedDict()
        )  # by index; the first one is asked
        self._hopeless_since_ms: dict[int, float] = {}  # rounds in which no peer had it
        self._timing = timing

    def __len__(self) -> int:
        return len(self._damaged)

    def __contains__(self, index: int) -> bool:
        return index in self._damaged

    def indexes(self) -> list[int]:
        """Return the damaged frames in the order of requests."""
        return list(self._damaged)

    def add(self, damaged: DamagedFrame) -> bool:
        """Add a damaged frame; return False if it is known already or there are too many."""
        assert damaged.term > 0, damaged
        if damaged.index in self._damaged:
            return False
        if len(self._damaged) >= DAMAGED_FRAMES_MAX:
            self.dropped += 1
            return False
        self._damaged[damaged.index] = damaged
        return True

    def forget(self, index: int) -> None:
        """Forget a frame that is intact again, truncated, or deleted by retention."""
        self._damaged.pop(index, None)
        self._hopeless_since_ms.pop(index, None)
        current = self.asker.damaged
        if current is not None and current.index == index:
            self.asker.end()

    def prune(self, is_there: Callable[[int, int], bool]) -> None:
        """Forget the frames (index, term) that are no longer in the log."""
        gone = [w.index for w in self._damaged.values() if not is_there(w.index, w.term)]
        for index in gone:
            self.forget(index)

    def tick(self, now_ms: float) -> None:
        """Ask for the next frame; after a round without success, for another frame."""
        asker, damaged = self.asker, self._damaged
        if asker.damaged is not None and now_ms >= asker.due_ms:
            if not asker.unanimous:
                self._hopeless_since_ms.pop(asker.damaged.index, None)
            else:
                self._hopeless_since_ms.setdefault(asker.damaged.index, now_ms)
        if asker.damaged is None:
            if damaged:
                asker.start(next(iter(damaged.values())), now_ms)
        elif now_ms >= asker.due_ms:
            if len(damaged) > 1:
                damaged.move_to_end(asker.damaged.index)
                asker.start(next(iter(damaged.values())), now_ms)
            else:
                asker.tick(now_ms)

    def hopeless(self, now_ms: float) -> list[int]:
        """Return the frames that no peer has had for `give_up_ms`, though all answered. A committed
        frame will be available again. An uncommitted frame may have been on this replica only,
        which then can neither lead nor follow past it."""
        since = now_ms - self._timing.give_up_ms
        return [index for index, at in self._hopeless_since_ms.items() if at <= since]

    def step(
        self, response: RepairResponse, now_ms: float, segment_end: Callable[[int], int]
    ) -> Frame | None:
        """Handle an answer; return the frame to write, if the answer has it. Call `forget` after
        the write."""
        damaged = self.asker.damaged
        data = self.asker.take(response, now_ms)
        if data is None or damaged is None:
            return None
        try:
            frame = checked_frames(data, damaged, segment_end)[0]
        except BadPatch:
            self.asker.refuse(response, now_ms)
            return None
        self.patched_frames += 1
        return frame
