"""The applier passes committed frames to the application, in order, exactly once per process.

Frames are read from the log's cache, or from the file when there is much to catch up with. A long
tail is applied in bounded batches, one per turn of the loop, so that heartbeats and votes are
answered in between. At a damaged frame the applier waits for its repair, possibly until its member
stops. While the application cannot apply (ApplyLater), the applier retries.

The broker implements `Application`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from raftmq.store.frame import Frame
from raftmq.store.transient_errors import RETRY_S

from ..raft.errors import ApplyLater, FrameDamaged
from ..raft.messages import RoleEvent
from ..storage.log_storage import RaftLog
from .proposals import Proposals

log = logging.getLogger("raftmq.dledger.node.applier")

APPLY_BYTES_MAX = 1 << 20  # per batch; a larger frame is applied alone


class Application(Protocol):
    """The replicated state and the source of message frames. Called on the loop, never awaited. An
    exception stops the node, except ApplyLater."""

    @property
    def applied_index(self) -> int:
        """The last frame that the application's recovered state reflects. First read in a thread,
        where it may block, once the log is recovered and before any other call."""
        ...

    def cut(self, term: int, index: int, allocate: Callable[[int], int]) -> Frame | None:
        """Seal the waiting messages into a frame (index, term) at position `allocate(its length)`.

        Return None if nothing waits. Called only while this node leads and has applied everything
        up to its no-op; a returned frame counts as proposed."""
        ...

    def apply(self, frames: Sequence[Frame]) -> None:
        """Apply committed frames of every kind, in order. A waiting send is stored if the frame of
        its index has the term of its proposal. Raises ApplyLater, without any change."""
        ...

    def role_changed(self, event: RoleEvent) -> None:
        """Handle a change of this node's role. `leader_ready` is true only when everything up to
        the term's no-op is applied."""
        ...

    def truncated(self, from_index: int) -> None:
        """Note that this node's proposals with index >= from_index that are not applied yet are
        certainly not stored, because a committed frame of a higher term has replaced them."""
        ...


@dataclass(slots=True, eq=False)
class Applier:
    """Applies frames from `applied_index` + 1 up to the commit index. Call `start` first."""

    _log: RaftLog
    _application: Application
    _proposals: Proposals
    applied_index: int
    _batch_bytes_max: int = APPLY_BYTES_MAX
    _commit_index: int = field(default=0, init=False)
    _later: asyncio.Handle | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)
    _on_applied: Callable[[], None] | None = field(default=None, init=False)
    _on_failed: Callable[[Exception], None] | None = field(default=None, init=False)

    @property
    def commit_index(self) -> int:
        """Return the last committed frame in the log's files.

        The core may be ahead of the files. While a vote is being saved it accepts and commits
        frames, and the files still have frames that it has truncated."""
        return max(self._commit_index, self.applied_index)

    def start(self, on_applied: Callable[[], None], on_failed: Callable[[Exception], None]) -> None:
        """Call `on_applied` after each batch, and `on_failed` if a batch of the loop raises
        (`advance` itself raises to its caller)."""
        self._on_applied, self._on_failed = on_applied, on_failed

    def resume(self) -> None:
        """Continue after the repair of the next frame."""
        if self._later is None and self.applied_index < self._commit_index:
            self._later = asyncio.get_running_loop().call_soon(self._continue)

    def stop(self) -> None:
        self._stopped = True
        self._do_nothing_later()

    def go_back(self, applied_index: int) -> None:
        """Forget frames after `applied_index`; apply nothing before the next `advance`."""
        self._do_nothing_later()
        self.applied_index = self._commit_index = applied_index

    def advance(self, commit_index: int) -> None:
        """Apply committed frames up to `commit_index`, a batch now and the rest later."""
        self._commit_index = commit_index
        if self._later is None and self.applied_index < commit_index:
            self._apply_batch()

    def _do_nothing_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _apply_batch(self) -> None:
        if self._stopped:
            return
        try:
            frames = self._log.frames(
                self.applied_index + 1, self._commit_index, self._batch_bytes_max
            )
        except FrameDamaged:
            if not self._log.has_mender:
                raise  # without a mender the frame stays damaged
            return  # `resume` after the repair
        assert frames, (self.applied_index, self._commit_index)
        assert frames[0].index == self.applied_index + 1, (frames[0], self.applied_index)
        proposals = self._proposals
        refuted = proposals.refuted_by(frames)
        if refuted is not None:
            self._application.truncated(refuted)
        try:
            self._application.apply(frames)
        except ApplyLater as error:
            log.warning("apply_waits index=%d: %s", frames[0].index, error)
            self._later = asyncio.get_running_loop().call_later(RETRY_S, self._continue)
            return
        self.applied_index = frames[-1].index
        proposals.applied(frames)
        if self.applied_index < self._commit_index:
            self._later = asyncio.get_running_loop().call_soon(self._continue)
        assert self._on_applied is not None, "not started"
        self._on_applied()

    def _continue(self) -> None:
        self._later = None
        try:
            self._apply_batch()
        except Exception as error:  # handled at the boundary, where it ends the member
            assert self._on_failed is not None, "not started"
            self._on_failed(error)
