"""A group of real members in one loop: real sockets on loopback, real files, and a disk that
fails or blocks on command. For tests of the shell."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.node.peer_info import SEGMENT_SIZE
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.errors import Busy, NotLeader
from raftmq.dledger.raft.messages import Role, RoleEvent
from raftmq.dledger.settings import MemberConfig
from raftmq.dledger.snapshot.transfer import SnapshotSource
from raftmq.dledger.storage.log_flusher import FlushMode
from raftmq.dledger.transport.transport import PeerAddress
from raftmq.store.checkpoint import Checkpoint
from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.disk import OsFile
from raftmq.store.frame import Frame, FrameKind, seal_frame
from tests.loopclock import LoopClock
from tests.ports import bound
from tests.steadydisk import SteadyDisk

SEGMENT_SIZE_BYTES = 1 << 20
# Limits in ms that a slow machine would pass; tests of them say others.
PATIENT = {"sync_stall_ms": 60_000, "command_timeout_ms": 60_000, "transfer_on_stop_ms": 30_000}
WAIT_S = 120  # far more than anything here takes: only a hang gets so far


class TroubledFile:
    """A file of a TroubledDisk; asks it before each write and sync."""

    def __init__(self, disk: TroubledDisk, path: str, file: OsFile) -> None:
        self._disk, self._path, self._file = disk, path, file

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    def pread(self, offset: int, size: int) -> bytes:
        self._disk.before_read(self._path)
        return self._file.pread(offset, size)

    def pwrite(self, offset: int, data: bytes | memoryview) -> None:
        self._disk.before_write(self._path)
        self._file.pwrite(offset, data)

    def pwritev(self, offset: int, buffers: Sequence[bytes | memoryview]) -> None:
        self._disk.before_write(self._path)
        self._file.pwritev(offset, buffers)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def may_have_data(self, offset: int) -> bool:
        return self._file.may_have_data(offset)

    def sync(self) -> None:
        """There is no power cut here, and the machine's disk may take seconds: see SteadyDisk."""
        self._disk.before_sync(self._path)

    def close(self) -> None:
        self._file.close()


class TroubledDisk(SteadyDisk):
    """A real disk that can be made to fail, or to hang in fdatasync, below one directory."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.trouble_below = "commitlog/"
        self.fail_reads = False
        self.fail_writes = False
        self.write_error = errno.EIO
        self.power_cuts = 0
        self.fail_syncs = False
        self.let_sync = threading.Event()
        self.let_sync.set()

    def open(self, path: str, *, allocate_bytes: int | None = None) -> TroubledFile:  # type: ignore[override]
        return TroubledFile(self, path, super().open(path, allocate_bytes=allocate_bytes))

    def boot_id(self) -> str:
        return f"boot {self.power_cuts}"

    def before_read(self, path: str) -> None:
        if self.fail_reads and path.startswith(self.trouble_below):
            raise OSError(errno.EIO, "cannot read, says the test")

    def before_write(self, path: str) -> None:
        if self.fail_writes and path.startswith(self.trouble_below):
            raise OSError(self.write_error, "cannot write, says the test")

    def before_sync(self, path: str) -> None:
        if path.startswith(self.trouble_below):
            assert self.let_sync.wait(WAIT_S)
            if self.fail_syncs:
                raise OSError(5, "input/output error, says the test")


class ListApplication:
    """The replicated state is the list of everything applied. Sends get their fate noted."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.applied_index = 0
        self.frames: list[Frame] = []
        self.events: list[RoleEvent] = []
        self.truncations: list[int] = []
        self.fates: dict[bytes, str] = {}
        self.cuts: list[int] = []  # how many messages each frame took
        self.waiting: deque[bytes] = deque()
        self._proposed: dict[int, tuple[int, list[bytes]]] = {}
        self.wake = wake
        self.member: RaftMember | None = None

    def send(self, message: bytes) -> None:
        self.waiting.append(message)
        assert self.member is not None
        self.member.request_cut()

    @property
    def payloads(self) -> list[bytes]:
        """Return the payloads that were replicated, without no-ops."""
        return [bytes(f.payload) for f in self.frames if f.kind != FrameKind.NOOP]

    @property
    def ready(self) -> bool:
        return bool(self.events) and self.events[-1].leader_ready

    def cut(self, term: int, index: int, place: Callable[[int], int]) -> Frame | None:
        if not self.waiting:
            return None
        messages = list(self.waiting)
        self.waiting.clear()
        payload = b",".join(messages)
        self._proposed[index] = (term, messages)
        self.cuts.append(len(messages))
        position = place(60 + len(payload))
        return seal_frame(index, term, position, 1, FrameKind.MESSAGES, len(messages), payload)

    def apply(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            assert frame.index == self.applied_index + 1, (frame, self.applied_index)
            self.applied_index = frame.index
            self.frames.append(frame)
            term, messages = self._proposed.pop(frame.index, (0, []))
            if term == frame.term:
                for message in messages:
                    self.fates[message] = "stored"
        self.wake()

    def role_changed(self, event: RoleEvent) -> None:
        self.events.append(event)
        self.wake()

    def truncated(self, from_index: int) -> None:
        self.truncations.append(from_index)
        for index in [i for i in self._proposed if i >= from_index]:
            for message in self._proposed.pop(index)[1]:
                self.fates[message] = "not stored"
        self.wake()


class Node:
    """One member with its disk and its application; can be stopped, cut off and started again."""

    def __init__(self, group: Group, node_id: str) -> None:
        self.group = group
        self.node_id = node_id
        self.disk = TroubledDisk(str(group.root / node_id))
        self.sock: socket.socket | None = None
        self.fatal: list[str] = []
        self.running = False
        self.snapshot_index = 0
        self.source: SnapshotSource | None = None
        self.settings: dict[str, object] = {}  # other than the group's
        self.segment_size_bytes = group.segment_size_bytes
        self.tells = True  # its peers how large its segments are
        self.sock = bound()
        self.port = self.sock.getsockname()[1]
        self.held = bound(self.port)  # nobody else is given the port while this node is down

    async def start(self, recovering: str | None = None) -> None:
        group = self.group
        self.app = ListApplication(group.wake)
        self.app.applied_index = self.snapshot_index
        checkpoint = Checkpoint(self.disk, "checkpoint")
        checkpoint.open(verify=True)
        self.checkpoint = checkpoint
        self.commitlog = CommitLog(
            self.disk,
            "commitlog",
            self.segment_size_bytes,
            checkpoint,
        )
        self.commitlog.open(restore=True)
        sock, self.sock = self.sock, None
        self.member = RaftMember(
            replace(group.config, node_id=self.node_id, **self.settings),  # type: ignore[arg-type]
            self.disk,
            self.commitlog,
            self.app,
            rng=random.Random(f"{group.seed}{self.node_id}"),
            clock_ms=group.clock.now_ms,
            wall_ms=lambda: int(time.time() * 1000),
            on_fatal=self._on_fatal,
            listen_socket=sock,
            source=self.source,
            settings=self._alike,
        )
        self.app.member = self.member
        self.running = True
        if recovering is not None:
            self.member.start_recovering(recovering)
        await self.member.start()

    async def stop(self) -> None:
        self.running = False
        await self.member.stop()
        self.commitlog.close()
        self.checkpoint.close()

    @property
    def leads(self) -> bool:
        return self.member.has_core and self.member.core.role is Role.LEADER

    async def lose_disk(self) -> None:
        """Killed, and what it had stored is gone."""
        await self.kill()
        shutil.rmtree(self.disk.root)
        self.disk = TroubledDisk(self.disk.root)

    async def kill(self) -> None:
        """Without a word: what was written stays, no transfer, no last message."""
        self.member.life.running = False
        self.member.links.abort()
        await self.stop()

    def _alike(self) -> dict[str, str]:
        return {SEGMENT_SIZE: str(self.segment_size_bytes)} if self.tells else {}

    def _on_fatal(self, reason: str) -> None:
        self.fatal.append(reason)
        self.group.wake()


class Group:
    """`async with Group(tmp_path) as group` starts all and stops all."""

    def __init__(
        self,
        root: Path,
        count: int = 3,
        flush: FlushMode = FlushMode.ASYNC,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        seed: int = 1,
        core: CoreConfig | None = None,
        **limits: int,
    ) -> None:
        self.root = root
        self.seed = seed
        self.segment_size_bytes = segment_size_bytes
        self.clock = LoopClock()
        self._changed = asyncio.Event()
        self.nodes = [Node(self, f"n{n}") for n in range(count)]
        peers = {n.node_id: PeerAddress(n.node_id, "127.0.0.1", n.port) for n in self.nodes}
        self.config = replace(
            MemberConfig("n0", "g", peers, flush),
            core=core or CoreConfig(),
            **(PATIENT | limits),  # type: ignore[arg-type]
        )

    async def __aenter__(self) -> Group:
        self.clock.run()
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for node in self.nodes:
            node.disk.let_sync.set()
        # The leader is last: nobody is left to be handed anything, and to be waited for.
        for node in sorted(self.nodes, key=lambda node: node.running and node.leads):
            if node.running:
                await node.stop()
            if node.sock is not None:
                node.sock.close()
            node.held.close()

    def wake(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something happened that makes `condition` true."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                try:
                    async with asyncio.timeout(0.05):  # conditions that nobody wakes for
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def leader(self, among: Sequence[Node] | None = None) -> Node:
        """The ready leader of the highest term among the running nodes, all of them recovered."""
        nodes = self.nodes if among is None else among

        def ready() -> list[Node]:
            running = [n for n in nodes if n.running]
            if not all(n.member.core.recovered or n.fatal for n in running):
                return []
            return [n for n in running if n.app.ready and n.member.core.role is Role.LEADER]

        await self.until(lambda: bool(ready()))
        return max(ready(), key=lambda n: n.member.core.term)

    async def hand_over(self, target: Node) -> None:
        """Until `target` leads; asked for again when it was refused, or took too long."""
        async with asyncio.timeout(WAIT_S):
            while not target.app.ready:
                leader = await self.leader()
                if leader is not target and leader.member.core.transfer_target is None:
                    try:
                        leader.member.transfer(target.node_id)
                    except (Busy, NotLeader):
                        pass  # it has not told yet that it is recovered; or another leads by now
                await asyncio.sleep(0.02)

    def joiner(self, node_id: str) -> Node:
        """A new node, not started yet, that waits to be taken in."""
        node = Node(self, node_id)
        address = PeerAddress(node_id, "127.0.0.1", node.port)
        node.settings = {"join": True, "peers": {**self.config.peers, node_id: address}}
        self.nodes.append(node)
        return node

    def others(self, node: Node) -> list[Node]:
        return [n for n in self.nodes if n is not node]

    async def all_applied(self, nodes: Sequence[Node] | None = None) -> None:
        """Until all running nodes have applied the same frames as the leader has."""
        chosen = [n for n in (nodes or self.nodes) if n.running]
        leader = await self.leader(chosen)

        def same() -> bool:
            last = leader.member.core.last_index
            return all(n.member.applied_index == last for n in chosen)

        await self.until(same)
