"""Faults of disks and clocks on real processes, with promises that hold and controls that break."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
from pathlib import Path
from types import TracebackType

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.cluster.launch import log_path, node_directory
from raftmq.chaos.cluster.probe import ReplicaView, leader_of
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.chaos.faults import disk, power
from raftmq.chaos.faults.base import Context, Injection, Planned
from raftmq.chaos.faults.catalogue import make
from raftmq.chaos.faults.power import LoopDisk
from raftmq.chaos.history.files import HistoryWriter, Records
from raftmq.client import Admin, ClientError, Message, MessageQueue, Producer, SendConfig

TOPIC = "Chaos"
MESSAGE = re.compile(rb"m-\d{6}-")
PATIENCE_S = 120.0
POLL_S = 0.02
SYNC = {"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": str(8 << 20)}
# A busy machine must not change the leader where a test rules that out.
PATIENT = {"electionTimeoutMinMs": "4000", "electionTimeoutMaxMs": "6000"}


def half_a_copy(source: Path, target: Path) -> None:
    target.mkdir()
    (target / "identity").touch()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Town:
    """A small cluster over the fault layer and a sender."""

    def __init__(
        self,
        directory: Path,
        settings: dict[str, str],
        faultable: bool = True,
        *,
        once: bool = False,
    ) -> None:
        """With `once`, a message that is sent again after a lost answer is stored once."""
        self.directory = directory
        self.cluster = Cluster(directory / "cluster")
        self.history = HistoryWriter(directory / "history.jsonl")
        self.context = Context(self.cluster, self.history, rng=random.Random(1))
        self._settings = settings
        self._faultable = faultable
        self._send_config = SendConfig(idempotent=once)
        self._faults = 0
        self._sent = 0
        self.acknowledged: set[bytes] = set()

    async def __aenter__(self) -> Town:
        state = await self.cluster.up(Shape(faultable=self._faultable), self._settings)
        self._producer = Producer("town", state.namesrv, config=self._send_config)
        await self._producer.start()
        self.admin = Admin(state.namesrv)
        await self.admin.start()
        await self.admin.topic.create(TOPIC, 4)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.admin.stop()
        await self._producer.stop()
        await self.cluster.down()
        await self.cluster.close()
        self.history.close()

    def fault(self, kind: str, whom: str, choice: float = 0.5, **params: float) -> Injection:
        self._faults += 1
        planned = Planned(self._faults, 0, 1, kind, whom, choice, params)
        fault = make(planned, self.context)
        assert isinstance(fault, Injection)
        return fault

    async def send(self, timeout_ms: int = 60_000) -> None:
        """Send a message; it is acknowledged."""
        self._sent += 1
        name = b"m-%06d-" % self._sent
        await self._producer.send(Message(TOPIC, name + b"." * 100), timeout_ms)
        self.acknowledged.add(name)

    async def send_some(self, count: int = 20) -> None:
        await asyncio.gather(*(self.send() for _ in range(count)))

    def stored(self, node: str) -> set[bytes]:
        """The messages in a node's log, as its files are now."""
        result: set[bytes] = set()
        for path in (self.directory / "cluster" / node / "store" / "commitlog").iterdir():
            result |= set(MESSAGE.findall(path.read_bytes()))
        return result

    def lost(self, node: str) -> set[bytes]:
        return self.acknowledged - self.stored(node)

    async def leads(self) -> ReplicaView:
        """The leader, through elections and moments without an answer."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                views = [status.view for status in await self.cluster.status()]
                if (result := leader_of(views, "broker-a")) is not None:
                    return result
                await asyncio.sleep(POLL_S)

    async def _start_ended(self) -> None:
        while True:
            for node in self.cluster.state().brokers:
                if not self.cluster.is_alive(node.name):
                    self.cluster.start(node.name)
            await asyncio.sleep(POLL_S)

    async def whole_again(self, *, ended: bool = False) -> None:
        """All replicas have everything and continue. `ended` means that the healed fault may end
        brokers; a broker that ends late is started afterwards."""
        starting = asyncio.create_task(self._start_ended()) if ended else None
        try:
            await wait_recovered(self.cluster, PATIENCE_S)
        finally:
            if starting is not None:
                starting.cancel()
                await asyncio.wait([starting])
        await self.send_some()
        await wait_recovered(self.cluster, PATIENCE_S)
        for node in self.cluster.state().brokers:
            assert not self.lost(node.name), node.name


async def refused(town: Town, words: str) -> None:
    """Return once a send is refused with these words."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await town.send(timeout_ms=1_000)
            except ClientError as error:
                if words in str(error):
                    return
            await asyncio.sleep(POLL_S)


async def led_by_another(town: Town, old: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await town.leads()).node != old:
                return
            await asyncio.sleep(POLL_S)


async def test_power_cuts_under_sync_flush_lose_no_acknowledged_message(tmp_path: Path) -> None:
    async with Town(tmp_path, SYNC) as town:
        for whom, lose_all in (("all", 1), ("leader", 0), ("minority", 1), ("all", 0)):
            await town.send_some()
            sending = asyncio.create_task(town.send_some())  # in the middle of it
            fault = town.fault("power-cut", whom, lose_all=lose_all)
            await fault.inject()
            assert "unsynced" in fault.describe()
            await fault.heal()
            await sending
            await town.whole_again()
    deeds = [r for r in Records(tmp_path / "history.jsonl") if r.get("f") == "inject"]
    assert [r["type"] for r in deeds] == ["invoke", "ok"] * 4
    assert re.search(r"n0: \d+ of \d+ unsynced pages", deeds[1]["detail"])


@pytest.mark.long
async def test_leaders_with_full_failing_and_stalled_disks_lose_nothing(tmp_path: Path) -> None:
    """Full, failing, stalled; a new leader takes over or the send is rejected; nothing is lost."""
    async with Town(tmp_path, SYNC) as town:
        await town.send_some()
        full = town.fault("disk-full", "all")
        await full.inject()

        await refused(town, "[DISK_FULL]")
        await full.heal()
        await town.whole_again()

        for kind in ("eio-sync", "eio-write", "stalled-fsync"):
            fault = town.fault(kind, "leader")
            await fault.inject()
            assert fault.hit is not None
            sending = asyncio.create_task(town.send_some())  # something to write and sync
            await led_by_another(town, fault.hit.names[0])
            await sending
            await fault.heal()
            await town.whole_again(ended=True)

        loss = town.fault("disk-loss", "follower")
        await loss.inject()
        await town.send_some()
        await loss.heal()
        await town.whole_again()


async def test_leader_with_a_rolled_back_disk_reports_it_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Town(tmp_path, SYNC) as town:
        await town.send_some()
        with monkeypatch.context() as patched:
            patched.setattr(disk, "copy_files", half_a_copy)
            with pytest.raises(ClusterError, match="No space"):
                await town.fault("old-disk", "leader").inject()
        await town.whole_again()  # half an image is put nowhere
        assert all(not town.lost(node.name) for node in town.cluster.state().brokers)
        old = town.fault("old-disk", "leader")
        await old.inject()
        assert old.hit is not None
        (node,) = old.hit.nodes
        await town.whole_again()
        await town.send_some()
        await old.heal()
        await town.whole_again()
        directory = node_directory(town.cluster.directory, node)
        assert (
            "its store is older than what it promised"
            in log_path(town.cluster.directory, node).read_text()
        )
        await old.heal()  # nothing is left to do
        assert not list(directory.glob("image-*"))


async def test_lying_fsync_with_a_power_cut_loses_acknowledged_messages(tmp_path: Path) -> None:
    """The negative control, Raft without fsync. The replicas return without the messages."""
    async with Town(tmp_path, SYNC, once=True) as town:
        await town.send_some()
        lie = town.fault("lying-fsync", "all")
        await lie.inject()
        honest = set(town.acknowledged)
        await town.send_some()
        cut = town.fault("power-cut", "all", lose_all=1)
        await cut.inject()
        for node in town.cluster.state().brokers:
            assert town.lost(node.name) >= town.acknowledged - honest, node.name
        await lie.heal()
        await cut.heal()
        await wait_recovered(town.cluster, PATIENCE_S)
        for node in town.cluster.state().brokers:
            assert town.lost(node.name) == town.acknowledged - honest, node.name
        counts = [
            await town.admin.offset.max(MessageQueue(TOPIC, "broker-a", queue))
            for queue in range(4)
        ]
        assert sum(counts) == len(honest) < len(town.acknowledged)


async def test_power_cut_under_async_flush_loses_unsynced_messages(tmp_path: Path) -> None:
    settings = SYNC | {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "600000"}
    async with Town(tmp_path, settings) as town:
        await town.send_some()
        cut = town.fault("power-cut", "all", lose_all=1)
        await cut.inject()
        for node in town.cluster.state().brokers:
            assert town.lost(node.name), node.name
        town.acknowledged.clear()


async def test_damaged_replicas_recover_or_are_replaced(tmp_path: Path) -> None:
    async with Town(tmp_path, SYNC) as town:
        await town.send_some()
        tidy = town.fault("stop-all", "all")  # in order, so queues and tables are on disk
        await tidy.inject()
        await tidy.heal()
        await wait_recovered(town.cluster, PATIENCE_S)
        for kind, hurt in (
            ("torn-tail", "commitlog/"),
            ("flip-payload", "commitlog/"),
            ("flip-vote", "raft/"),
            ("flip-checkpoint", "checkpoint byte"),
            ("lost-segment", "commitlog/"),
        ):
            await town.send_some()
            fault = town.fault(kind, "follower")
            await fault.inject()
            assert hurt in fault.describe()
            await fault.heal()
            await town.whole_again()


@pytest.mark.long
async def test_slow_follower_disks_and_clock_jumps_change_no_leader(
    tmp_path: Path,
) -> None:
    async with Town(tmp_path, SYNC | PATIENT) as town:
        await town.send_some()
        before = await town.leads()
        slow = town.fault("slow-fsync", "follower", delay_ms=50)
        await slow.inject()
        await town.send_some()
        await slow.heal()
        steps = [("clock-forward", "leader"), ("clock-back", "all"), ("clock-strobe", "all")]
        for kind, whom in steps:
            fault = town.fault(kind, whom, **({} if "strobe" in kind else {"step_s": 3600}))
            await fault.inject()
            for _ in range(10):  # over many heartbeats and election time-outs
                await town.send_some(5)
                await asyncio.sleep(0.05)
            await fault.heal()
        after = await town.leads()
        assert (after.node, after.term) == (before.node, before.term)
        await town.whole_again()


async def test_disk_faults_without_the_fault_layer_are_rejected(tmp_path: Path) -> None:
    async with Town(tmp_path, SYNC, faultable=False) as town:
        for kind in ("power-cut", "disk-full", "clock-back"):
            with pytest.raises(ClusterError, match="without the fault layer"):
                town.fault(kind, "leader")
        not_mounted = town.fault("kernel-power-cut", "leader") if not power.unavailable() else None
        if not_mounted is not None:
            with pytest.raises(ClusterError, match="no file system of its own"):
                await not_mounted.inject()
        await town.send_some()  # nothing is wrong


async def test_kernel_power_cut_loses_no_acknowledged_message(tmp_path: Path) -> None:
    """Where a loop device can be had; where not, the reason is said instead."""
    reason = power.unavailable()
    town = Town(tmp_path, SYNC, faultable=False)
    disks = [LoopDisk(tmp_path / "cluster" / name / "store") for name in ("n0", "n1", "n2")]
    try:
        if reason is not None:
            with pytest.raises(ClusterError, match=re.escape(reason)):
                disks[0].make()
            return
        for disk in disks:
            disk.make()
        async with town:
            await town.send_some()
            fault = town.fault("kernel-power-cut", "all")
            await fault.inject()
            await fault.heal()
            await town.whole_again()
    finally:
        town.history.close()
        for disk in disks:
            disk.remove()
