"""The installer offers and receives snapshot installs. The driver of
dledger/raft/snapshot_install.py.

A leader copies the application's state on the loop (`capture`), encodes it in a thread, and keeps
the parcel while a follower asks for it. A follower collects a parcel in memory. When it is complete
and still needed, the member stops sending for good (`silence`), so nothing more is promised on the
old log. Then the group snapshot is noted durably, and the source's `installed` is called. The
process has to stop this member, carry the snapshot install out (marker.py,
broker.tables.snapshot_install) and restart. If the note fails the old log stays, and the next start
uses it.

Limits: one parcel, one capture at a time, one chunk in flight per follower;
GROUP_SNAPSHOT_BYTES_MAX in memory on either side. After a parcel that is larger, or cannot be
encoded, the next attempt follows after `InstallTiming.pause_ms`; until then retention does not
wait.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Protocol

from raftmq.store.disk import Disk
from raftmq.store.transient_errors import RETRY_S, passes

from ..raft.core import RaftCore
from ..raft.messages import NodeId, Role
from ..raft.progress import PeerState
from ..raft.snapshot_install import (
    GROUP_SNAPSHOT_BYTES_MAX,
    Donor,
    GroupSnapshot,
    GroupSnapshotDamaged,
    InstallChunk,
    InstallMessage,
    InstallOffer,
    InstallRequest,
    Receiver,
    configuration_section,
    decode_group_snapshot,
    lacks,
)
from ..settings import MemberConfig
from ..storage.log_storage import RaftLog
from . import marker as snapshotmarker

log = logging.getLogger("raftmq.dledger.installer")


class Capture(Protocol):
    """A copy of the application's state."""

    @property
    def applied_index(self) -> int: ...

    def encode(self) -> bytes:
        """Return the state as bytes. Blocking; called in a thread."""
        ...


class SnapshotSource(Protocol):
    """The application's part in snapshot install, besides the needs of RaftMember."""

    def capture(self) -> Capture | None:
        """Copy the state, on the loop; return None if that is not possible now."""
        ...

    def installed(self, reason: str) -> None:
        """Stop this member, carry the noted snapshot install out, and restart."""
        ...


class Installer:
    """Offers and receives snapshot installs on the loop; encoding and noting are in a thread."""

    def __init__(
        self,
        config: MemberConfig,
        disk: Disk,
        raft_log: RaftLog,
        core: RaftCore,
        pool: Executor,
        clock_ms: Callable[[], float],
        source: SnapshotSource | None,
        *,
        send: Callable[[InstallMessage], None],
        silence: Callable[[str], None],
        refuse: Callable[[NodeId, str], None],
        on_failed: Callable[[str, BaseException], None],
    ) -> None:
        """Without a `source` nothing is offered or received. `silence(reason)` stops the member's
        sending and receiving. `refuse(peer, reason)` is called if the peer's state does not fit,
        `on_failed` when the disk failed."""
        self._config = config
        self._disk = disk
        self._log = raft_log
        self._core = core
        self._pool = pool
        self._clock_ms = clock_ms
        self._source = source
        self._send = send
        self._silence = silence
        self._refuse = refuse
        self._on_failed = on_failed
        first = 1 + secrets.randbelow(1 << 60)
        self._donor = Donor(config.node_id, config.install, first)
        self._receiver = Receiver(config.node_id, config.install)
        self._work: asyncio.Future[None] | None = None
        self._again: asyncio.TimerHandle | None = None  # noting, when a shortage is to be over
        self._leader_end = 0  # of the leader's log, by its offers
        self._installing = False

    async def stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._work is not None:
            await asyncio.wait([self._work])

    # -- by the clock ---------------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Send due offers or requests; stop offering when this replica does not lead."""
        core = self._core
        if self._source is None or self._installing:
            return
        if (
            core.role is Role.LEADER
        ):  # ready or not, because its no-op may wait for a stranded follower
            progress = core.progress.values()
            stranded = [p.peer for p in progress if p.state is PeerState.STRANDED]
            for offer in self._donor.offers(stranded, core.term, self._log.index, now_ms):
                self._send(offer)
            if self._donor.wants_parcel and self._work is None:
                self._make_parcel(self._source)
        else:
            self._donor.drop()
        follows = core.role is Role.FOLLOWER and core.election.unfit is None
        self._receiver.follow(core.leader if follows else None, core.term)
        self._receiver.tick(now_ms)
        self._send_requests()

    @property
    def is_busy(self) -> bool:
        """True while a snapshot install is offered or received."""
        stranded = any(p.state is PeerState.STRANDED for p in self._core.progress.values())
        return stranded or self._donor.is_busy or self._receiver.leader is not None

    def refilled(self) -> list[NodeId]:
        """Return the followers with an install under way, for retention to spare."""
        core, now_ms = self._core, self._clock_ms()
        peers = {
            p.peer: (p.match_index, now_ms - (core.silent_ms(p.peer) or 0.0))
            for p in core.progress.values()
        }
        return self._donor.still_refilled(peers, now_ms)

    # -- messages -------------------------------------------------------------------------------

    def on_message(self, message: InstallMessage) -> None:
        """Handle a message of a snapshot install; messages of other terms are dropped."""
        core = self._core
        if self._source is None or self._installing or message.term != core.term:
            return
        now_ms = self._clock_ms()
        if isinstance(message, InstallRequest):
            if core.role is Role.LEADER and message.sender in core.progress:
                chunk = self._donor.step(message, self._log.index, now_ms)
                if chunk is not None:
                    self._send(chunk)
        elif core.role is Role.FOLLOWER and message.sender == core.leader:
            if isinstance(message, InstallOffer):
                self._leader_end = message.end_position
                if self._is_needed(message.first_index, message.previous_term):
                    self._receiver.offered(message, now_ms)
            else:
                self._take(message, now_ms)
            self._send_requests()

    def _is_needed(self, first_index: int, previous_term: int) -> bool:
        core = self._core
        index = self._log.index
        written = index.last_index == core.last_index  # otherwise the disk is full
        return (
            core.election.unfit is None
            and written
            and lacks(index, core.commit_index, first_index, previous_term)
        )

    def _send_requests(self) -> None:
        for request in self._receiver.requests():
            self._send(request)

    # -- the leader -----------------------------------------------------------------------------

    def _make_parcel(self, source: SnapshotSource) -> None:
        index, commitlog = self._log.index, self._log.commitlog
        first, position = index.first_index, commitlog.min_offset
        captured = source.capture()
        if captured is None or captured.applied_index < first - 1:
            return
        assert first > index.last_index or index.position_of(first) == position, (index, position)
        stateless = GroupSnapshot(
            first,
            index.previous_term,
            position,
            captured.applied_index,
            commitlog.segment_size_bytes,
            configuration_section(*self._core.membership.configurations.settled),
            b"",
        )

        def encode() -> bytes:
            return replace(stateless, state=captured.encode()).encode()

        making = asyncio.get_running_loop().run_in_executor(self._pool, encode)
        self._work = making  # type: ignore[assignment]

        def made(future: asyncio.Future[bytes]) -> None:
            self._work = None
            error = future.exception()
            if error is not None:
                log.error("installation_not_made error=%r", error)
                self._donor.failed(self._clock_ms())
                return
            data = future.result()
            if len(data) > GROUP_SNAPSHOT_BYTES_MAX:
                log.error("installation_too_large bytes=%d", len(data))
                self._donor.failed(self._clock_ms())
                return
            log.info("parcel_made first=%d bytes=%d", first, len(data))
            for chunk in self._donor.made(data, index, first, self._clock_ms()):
                self._send(chunk)

        making.add_done_callback(made)

    # -- the follower ---------------------------------------------------------------------------

    def _take(self, chunk: InstallChunk, now_ms: float) -> None:
        data = self._receiver.step(chunk, now_ms)
        if data is None:
            return
        try:
            snapshot = decode_group_snapshot(data)
        except GroupSnapshotDamaged as error:
            log.error("installation_damaged from=%s error=%s", chunk.sender, error)
            return
        size = self._log.commitlog.segment_size_bytes
        if snapshot.segment_size_bytes != size:
            theirs = snapshot.segment_size_bytes
            reason = f"segments of {theirs} bytes at {chunk.sender}, of {size} here"
            log.error("installation_refused: %s", reason)
            self._refuse(chunk.sender, reason)
            return
        if self._is_needed(snapshot.first_index, snapshot.previous_term) and self._work is None:
            self._note(snapshot, data)

    def _note(self, snapshot: GroupSnapshot, data: bytes) -> None:
        """Stop sending, so that nothing more is promised on this log; then note the snapshot, which
        makes the log void."""
        reason = (
            f"a group snapshot takes its place: frames from {snapshot.first_index} at "
            f"{snapshot.position}, state of frame {snapshot.applied_index}"
        )
        log.warning(
            "installing node=%s first=%d position=%d applied=%d had=%r commit=%d",
            self._config.node_id,
            snapshot.first_index,
            snapshot.position,
            snapshot.applied_index,
            self._log.index,
            self._core.commit_index,
        )
        self._installing = True
        self._silence(reason)
        self._write_note(data, reason)

    def _write_note(self, data: bytes, reason: str) -> None:
        loop = asyncio.get_running_loop()
        self._work = loop.run_in_executor(
            self._pool, snapshotmarker.note, self._disk, self._config.directory, data
        )
        self._work.add_done_callback(partial(self._noted, data, reason))

    def _noted(self, data: bytes, reason: str, done: asyncio.Future[None]) -> None:
        self._work = None
        error = done.exception()
        if passes(error):
            log.warning("installation_not_noted: %s", error)
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(RETRY_S, self._write_note, data, reason)
        elif error is not None:
            self._on_failed("noting a group snapshot failed", error)
        else:
            assert self._source is not None
            self._source.installed(reason)

    # -- for the status -------------------------------------------------------------------------

    def status(self) -> dict[str, object]:
        """Return `installing` (None, or its progress) and `behind_bytes`, the missing part of the
        leader's log by its last offer."""
        receiver = self._receiver
        installing: dict[str, object] | None = None
        if self._installing or receiver.leader is not None:
            installing = {
                "from": self._core.leader,
                "received_bytes": receiver.received_bytes,
                "size_bytes": receiver.size_bytes,
                "noted": self._installing,
            }
        follows = self._core.role is Role.FOLLOWER
        behind = self._leader_end - self._log.index.end_position if follows else 0
        return {"installing": installing, "behind_bytes": max(0, behind)}
