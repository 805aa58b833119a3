"""The healer repairs the damage in a member's log. The driver of dledger.raft.repair.

Before the core starts, `recover` reads the log to its end. It asks the peers for damaged frames,
writes and syncs them in place, and continues until the log is complete. Then the replica has lost
nothing. Neither has it if a damaged part is also missing in the leader's log, and is truncated. If
no peer can help (see dledger.raft.repair), it first notes the replica as recovering, then copies
the log behind the damage aside, then truncates it.

While the core runs, damage that a read or the scrubber finds is repaired frame by frame; reads of
that frame wait or are repeated.

Limits: a single question at a time, a single frame in memory, DAMAGED_FRAMES_MAX known damaged
frames, ASIDE_FILES_MAX copies of at most ASIDE_BYTES_MAX.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.commitlog.log_sync import SyncTicket
from raftmq.store.disk import Disk
from raftmq.store.errors import StoreDamaged
from raftmq.store.frame import Frame

from ..raft.core import RaftCore
from ..raft.errors import FrameDamaged
from ..raft.log_index import LogIndex
from ..raft.messages import NodeId
from ..raft.repair import (
    Asker,
    DamagedFrame,
    FrameRepair,
    GiveUp,
    Patch,
    RepairRequest,
    RepairResponse,
    ResponderState,
    StartRepair,
    answer,
    responder_state,
)
from ..settings import MemberConfig
from ..storage.log_storage import RaftLog
from .scrubber import Scrubber

log = logging.getLogger("raftmq.dledger.repair.repairer")
Result = TypeVar("Result")

ASIDE_FILES_MAX = 4
ASIDE_BYTES_MAX = 256 << 20  # per copy, for manual inspection
ASIDE_PREFIX = "damaged-"
_COPY_BYTES = 1 << 20
_NOTHING = LogIndex()


class Healer:
    """Repairs a member's log. All methods run on the loop; blocking work runs in `pool`."""

    def __init__(
        self,
        config: MemberConfig,
        disk: Disk,
        raft_log: RaftLog,
        clock_ms: Callable[[], float],
        *,
        send: Callable[[RepairRequest | RepairResponse], None],
        on_failed: Callable[[str, BaseException], None],
    ) -> None:
        """`on_failed` is called when the disk fails."""
        self._config = config
        self._disk = disk
        self._log = raft_log
        self._clock_ms = clock_ms
        self._send = send
        self._on_failed = on_failed
        voters = frozenset(config.peers)
        # Random, so that an answer to an earlier process does not match.
        numbers = [secrets.randbelow(1 << 60) for _ in range(2)]
        askers = [Asker(config.node_id, voters, config.repair, number) for number in numbers]
        self._start = StartRepair(askers[0], voters, config.repair, raft_log)
        self._frames = FrameRepair(askers[1], config.repair)
        self._scrubber = Scrubber(
            raft_log,
            config.scrub_bytes_per_s,
            config.scrub_pause_ms,
            self._scrub_failed,
            self._blank_damaged,
        )
        self._pool: Executor | None = None
        self._core: RaftCore | None = None  # once it runs
        self._committed: Callable[[], int] = lambda: 0
        self._on_repaired: Callable[[], None] = lambda: None
        self._log_is_busy = False  # a thread uses the log before it is open
        self._verdict: asyncio.Future[Patch | GiveUp] | None = None
        self._repairing: DamagedFrame | None = None
        self._regions = 0
        self._syncing: set[asyncio.Future[None]] = set()
        self._stopping = False
        self._failure: BaseException | None = None

    def set_members(self, members: frozenset[NodeId]) -> None:
        self._start.asker.set_members(members)
        self._frames.asker.set_members(members)

    # -- before the core runs -------------------------------------------------------------------

    async def recover(
        self,
        pool: Executor,
        open_links: Callable[[], Awaitable[None]],
        give_up: Callable[[str], None],
        last_term: Callable[[], int],
    ) -> None:
        """Open the log, repaired if needed. `give_up(reason)` makes durable that this replica has
        lost promises; `last_term` reads the last term with promises; both run in `pool`.

        Raises StoreDamaged for damage in a group of one, OSError."""
        self._pool = pool
        damaged = await self._in_pool(self._log.recover)
        voted = self._disk.exists(f"{self._config.directory}/hardstate")
        if self._log.may_lack_its_end and voted:  # otherwise it is blank, and recovers anyway
            await self._in_pool(partial(give_up, "how far the log was durable is not known"))
        if damaged is None:
            return
        position, reason = damaged.position, self._log.damage_reason
        if not self._start.asker.peers:
            raise StoreDamaged(position, f"{reason}; and there is no peer to repair it from")
        self._start.term = await self._in_pool(last_term)
        await open_links()
        followed = 0  # the frame that continues the region under repair
        while damaged is not None:
            self._repairing = damaged
            if damaged.index != followed:
                self._note_region(damaged)
            verdict = await self._ask(damaged)
            if isinstance(verdict, GiveUp):
                await self._give_up(damaged, verdict.reason, give_up)
                break
            followed = damaged.index + len(verdict.frames)
            if verdict.last:
                log.warning("log_ends node=%s index=%d", self._config.node_id, followed - 1)
            repair = partial(self._log.repair, verdict.frames, verdict.proven, verdict.last)
            damaged = await self._in_pool(repair)
        self._repairing = None
        log.warning(
            "repair_done node=%s regions=%d frames=%d bytes=%d last=%d",
            self._config.node_id,
            self._regions,
            self._start.patched_frames,
            self._start.patched_bytes,
            self._log.last_index,
        )

    def abandon(self, error: BaseException) -> None:
        """Make `recover` raise `error` instead of waiting for an answer."""
        self._failure = error
        if self._verdict is not None and not self._verdict.done():
            self._verdict.set_exception(error)

    def _note_region(self, damaged: DamagedFrame) -> None:
        self._regions += 1
        log.warning(
            "log_damaged node=%s position=%d index=%d reason=%s",
            self._config.node_id,
            damaged.position,
            damaged.index,
            self._log.damage_reason,
        )

    async def _ask(self, damaged: DamagedFrame) -> Patch | GiveUp:
        """Ask the peers until an answer decides the repair."""
        repair = self._start
        repair.start(damaged, self._clock_ms())
        while True:
            if self._failure is not None:
                raise self._failure
            verdict: asyncio.Future[Patch | GiveUp] = asyncio.get_running_loop().create_future()
            self._verdict = verdict
            self._send_requests(repair.asker)
            wait_ms = max(1.0, repair.asker.due_ms - self._clock_ms())
            await asyncio.wait([verdict], timeout=wait_ms / 1000)
            if verdict.done():
                return verdict.result()
            repair.tick(self._clock_ms())

    async def _give_up(
        self, damaged: DamagedFrame, reason: str, give_up: Callable[[str], None]
    ) -> None:
        reason = f"damaged at {damaged.position} ({self._log.damage_reason}); {reason}"

        def cut() -> str:
            give_up(reason)
            commitlog = self._log.commitlog
            aside = set_aside(self._disk, self._config.directory, commitlog, damaged.position)
            self._log.cut_damaged()
            return aside

        aside = await self._in_pool(cut)
        log.error(
            "log_cut node=%s position=%d index=%d aside=%s reason=%s",
            self._config.node_id,
            damaged.position,
            damaged.index,
            aside,
            reason,
        )

    async def _in_pool(self, work: Callable[[], Result]) -> Result:
        """Run blocking work on a log that is not open and has no other reader."""
        assert self._pool is not None
        self._log_is_busy = True
        task = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(task)
        finally:
            if not task.done():  # cancelled, but a thread cannot be stopped
                await asyncio.wait([task])
            self._log_is_busy = False

    # -- while it runs --------------------------------------------------------------------------

    def start(
        self,
        pool: Executor,
        core: RaftCore,
        committed: Callable[[], int],
        on_repaired: Callable[[], None],
    ) -> None:
        """Start to watch for damage in an open log. `committed()` is the last committed frame in
        the log's files, which may be behind the core's (Applier.commit_index). `on_repaired` is
        called when a frame is readable again."""
        self._pool, self._core, self._on_repaired = pool, core, on_repaired
        self._committed = committed
        self._log.tell_damage(self._damaged)
        self._scrubber.start(pool)

    async def stop(self) -> None:
        """Ignore further answers; wait for the work in flight in a thread."""
        self._stopping = True
        await self._scrubber.stop()
        if self._syncing:
            await asyncio.wait(self._syncing)

    def tick(self, now_ms: float, busy: bool) -> None:
        """Ask for damaged frames, repeatedly, and scrub; `busy` slows the scrubber down."""
        self._frames.prune(self._is_there)
        self._frames.tick(now_ms)
        self._send_requests(self._frames.asker)
        for index in self._frames.hopeless(now_ms):
            if self._core is not None and index > self._core.commit_index:
                # The next start drops the frame, and recovers: see dledger.raft.repair.
                damage = StoreDamaged(self._log.index.position_of(index), f"frame {index}")
                self._on_failed("nobody else has an uncommitted frame", damage)
                return
        self._scrubber.tick(now_ms, busy)

    def has_work(self, now_ms: float) -> bool:
        """Return whether a damaged frame is known, or the scrubber does not pause."""
        return bool(self._frames) or self._scrubber.has_work(now_ms)

    def on_message(self, message: RepairRequest | RepairResponse) -> None:
        """Handle a repair message, before or after the core starts."""
        if isinstance(message, RepairRequest):
            self._send(self._answer(message))
        elif self._verdict is not None and not self._log.is_open:
            verdict = self._start.step(message, self._clock_ms())
            if verdict is not None and not self._verdict.done():
                self._verdict.set_result(verdict)
            self._send_requests(self._start.asker)
        elif self._log.is_open and not self._stopping:
            frame = self._frames.step(message, self._clock_ms(), self._log.segment_end)
            if frame is not None:
                self._frames.forget(frame.index)
                if self._is_there(frame.index, frame.term):
                    self._repair(frame)
            self._send_requests(self._frames.asker)

    def _repair(self, frame: Frame) -> None:
        try:
            ticket = self._log.overwrite(frame)
        except OSError as error:
            self._on_failed("mending a frame failed", error)
            return
        log.warning("frame_repaired node=%s frame=%r", self._config.node_id, frame)
        self._sync(ticket)
        self._on_repaired()

    def _answer(self, request: RepairRequest) -> RepairResponse:
        core, frames = self._core, self._log.frames
        if core is not None:
            responder = responder_state(core.role, core.leader_ready, core.recovered)
            settled = min(self._committed(), self._log.last_index)
            return answer(request, self._log.index, settled, responder, frames, core.term)
        index = _NOTHING if self._log_is_busy else self._log.index
        return answer(request, index, 0, ResponderState.REPAIRS, frames, 0)

    def _is_there(self, index: int, term: int) -> bool:
        """Return whether the frame is still in the log."""
        there = self._log.index
        return there.first_index <= index <= there.last_index and there.term_at(index) == term

    def _damaged(self, damage: FrameDamaged) -> None:
        if not self._frames.add(self._log.damaged_frame(damage.index)):
            return
        log.error(
            "frame_damaged node=%s index=%d position=%d reason=%s",
            self._config.node_id,
            damage.index,
            damage.position,
            damage.reason,
        )
        self._frames.tick(self._clock_ms())
        self._send_requests(self._frames.asker)

    def _blank_damaged(self, index: int) -> None:
        ticket = self._log.overwrite_blank(index)
        if ticket is not None:
            log.error("blank_repaired node=%s behind=%d", self._config.node_id, index)
            self._sync(ticket)

    def _scrub_failed(self, error: BaseException) -> None:
        self._on_failed("reading the log failed", error)

    def _send_requests(self, asker: Asker) -> None:
        for request in asker.requests():
            self._send(request)

    def _sync(self, ticket: SyncTicket) -> None:
        """Make a patch durable. Nothing waits for it, because otherwise the frame stays damaged on
        disk, and is found again."""
        assert self._pool is not None
        syncing = asyncio.get_running_loop().run_in_executor(self._pool, ticket.run)
        self._syncing.add(syncing)

        def done(future: asyncio.Future[None]) -> None:
            self._syncing.discard(syncing)
            error = future.exception()
            if error is not None:
                self._on_failed("fdatasync of a mended frame failed", error)
            else:
                self._log.commitlog.finish_sync(ticket)

        syncing.add_done_callback(done)

    # -- for the status -------------------------------------------------------------------------

    @property
    def repairing(self) -> dict[str, object] | None:
        """The repair that must finish before the core can start, for the status, or None."""
        damaged = self._repairing
        if damaged is None:
            return None
        return {
            "index": damaged.index,
            "position": damaged.position,
            "reason": self._log.damage_reason,
            "regions": self._regions,
            "patched_frames": self._start.patched_frames,
            "patched_bytes": self._start.patched_bytes,
            "answers": {
                peer: f"{response.responder.name.lower()}: {response.outcome.name.lower()}"
                for peer, response in self._start.asker.answers.items()
            },
        }

    def status(self) -> dict[str, object]:
        """Return the known damage, the repairs since the start, and the scrubber's progress."""
        return {
            "repairing": self.repairing,
            "damaged": self._frames.indexes()[:100],
            "damaged_count": len(self._frames),
            "repaired": self._frames.patched_frames + self._start.patched_frames,
            "scrub": self._scrubber.status(),
        }


def set_aside(disk: Disk, directory: str, commitlog: CommitLog, position: int) -> str:
    """Copy the log from `position` on, without the zeros at its end, to `damaged-<position>` in
    `directory`, for manual inspection. Return the file's path, or the reason why there is none."""
    disk.makedirs(directory)
    old = [name for name in disk.listdir(directory) if name.startswith(ASIDE_PREFIX)]
    name = f"{ASIDE_PREFIX}{position:020d}"
    path = f"{directory}/{name}"
    for spare in [n for n in old if n != name][: max(0, len(old) - ASIDE_FILES_MAX + 1)]:
        disk.remove(f"{directory}/{spare}")
    end = min(commitlog.max_offset, position + ASIDE_BYTES_MAX)
    try:
        file = disk.open(path)
        try:
            file.truncate(0)
            for data, at in _pieces(commitlog, position, end):
                if data.count(0) < len(data):
                    file.pwrite(at - position, data)
        finally:
            file.close()
    except OSError as error:  # a full or failing disk, and the copy is optional
        return f"not copied: {error}"
    return path


def _pieces(commitlog: CommitLog, position: int, end: int) -> Iterator[tuple[bytes, int]]:
    while position < end:
        data = commitlog.read(position, min(_COPY_BYTES, end - position))
        yield data, position
        position += len(data)
