"""A leader's proposals, of commands and of the application's frames in turns.

Batching needs no timer. The application is asked for a frame while fewer than
`frames_in_flight_max` are uncommitted. So a single message is proposed at once, and under load the
messages that arrive while frames are in flight form the next frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from raftmq.store.frame import Frame, FrameKind, seal_frame

from ..raft.configuration import Change, encode_configuration
from ..raft.core import RaftCore
from ..raft.errors import Busy, NotLeader, RaftError
from ..raft.messages import NodeId
from ..storage.log_storage import RaftLog
from .applier import Application
from .proposals import Proposals

log = logging.getLogger("raftmq.dledger.node.proposer")


@dataclass(slots=True, eq=False)
class Proposer:
    """Proposes a member's frames, from its start on.

    A frame is sealed for its place in the log, so only when the core certainly accepts it.
    `frame_due` is set while the application may have waiting messages. `_change` waits to be
    proposed."""

    _core: RaftCore
    _log: RaftLog
    _application: Application
    _proposals: Proposals
    _clock_ms: Callable[[], float]
    _wall_ms: Callable[[], int]
    _frames_in_flight_max: int
    _is_at: Callable[[NodeId, str], bool]  # a replica is reached at this address
    frame_due: bool = field(default=False, init=False)
    _command_last: bool = field(default=False, init=False)  # the last frame was a command
    _change: tuple[Change, asyncio.Future[int]] | None = field(default=None, init=False)

    def propose_noop(self) -> None:
        """Propose the no-op that opens a term, before anything else."""
        noop = self._seal(FrameKind.NOOP, b"")
        self._proposals.note(noop.index, noop.term)
        self._core.propose(noop)

    def propose_next(self) -> bool:
        """Propose a frame if there is room and something waits; return False if not.

        It must be performed (written) before the next frame, because the next place depends on it.
        """
        core = self._core
        if not core.can_propose:
            return False
        if core.last_index - core.commit_index >= self._frames_in_flight_max:
            return False
        frame = self._next_frame()
        if frame is None:
            return False
        core.propose(frame)
        return True

    @property
    def waiting(self) -> int:
        """Commands not yet proposed."""
        return self._proposals.waiting

    def submit(self, payload: bytes) -> asyncio.Future[int]:
        """Queue a command; the future gives its applied index. Raises Busy, CommandTooLarge."""
        return self._proposals.submit(payload, self._clock_ms())

    def expire(self) -> None:
        """Fail the commands that have waited for too long."""
        self._proposals.expire(self._clock_ms())

    def ask_change(self, change: Change) -> asyncio.Future[int]:
        """Queue a change of members; the future gives its frame's index once it is applied here.
        Raises Busy while a change waits."""
        if self._change is not None:
            raise Busy("another change of members waits to be proposed")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._change = (change, future)
        return future

    @property
    def change_waits(self) -> bool:
        """True while a change of members waits to be proposed."""
        return self._change is not None

    def propose_change(self) -> bool:
        """Propose the waiting change, or refuse it; return False if neither is possible now. It
        must be performed before the next frame, as with `propose_next`."""
        if self._change is None:
            return False
        (change, future), self._change = self._change, None
        core = self._core
        try:
            there = self._is_at(change.node_id, change.address)
            payload = encode_configuration(core.configuration_after(change, there))
            frame = self._seal(FrameKind.CONFIGURATION, payload)
            core.propose(frame)
        except RaftError as error:
            if not future.done():
                future.set_exception(error)
            return True
        log.info("change node=%s change=%s frame=%r", core.node_id, change, frame)
        self._proposals.note(frame.index, frame.term)
        self._proposals.expect(frame.index, frame.term, self._clock_ms(), future)
        return True

    def leadership_lost(self, leader: NodeId | None) -> None:
        """Fail all that was never proposed; `leader` leads. Proposals await their outcome."""
        self._drop()
        self._proposals.leadership_lost(leader)

    def close(self, reason: str) -> None:
        """Fail everything, because the member ends."""
        self._drop()
        self._proposals.close(reason)

    def _drop(self) -> None:
        if self._change is not None:
            (_, future), self._change = self._change, None
            if not future.done():
                future.set_exception(NotLeader(self._core.leader))

    def _next_frame(self) -> Frame | None:
        if self._command_last:
            self._command_last = False
            return self._cut_frame() or self._command_frame()
        frame = self._command_frame()
        self._command_last = frame is not None
        return frame or self._cut_frame()

    def _command_frame(self) -> Frame | None:
        if not self._proposals.waiting:
            return None
        index, term = self._core.last_index + 1, self._core.term
        payload = self._proposals.take(index, term)
        if payload is None:
            return None
        self._proposals.note(index, term)
        return self._seal(FrameKind.COMMAND, payload)

    def _cut_frame(self) -> Frame | None:
        if not self.frame_due:
            return None
        index, term = self._core.last_index + 1, self._core.term
        frame = self._application.cut(term, index, self._log.commitlog.allocate)
        if frame is None:
            self.frame_due = False
            return None
        assert frame.index == index, (frame, index)
        assert frame.term == term, (frame, term)
        self._proposals.note(index, term)
        return frame

    def _seal(self, kind: FrameKind, payload: bytes) -> Frame:
        core = self._core
        position = self._log.allocate(len(payload))
        index = core.last_index + 1
        return seal_frame(index, core.term, position, self._wall_ms(), kind, 0, payload)
