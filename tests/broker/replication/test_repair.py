"""Brokers over damaged files: log, ConsumeQueues, snapshots; what clients see meanwhile."""

import asyncio
import shutil
import signal
import sys
from typing import Any

import orjson
import pytest

from raftmq.broker.errors import StateError
from raftmq.broker.tables import snapshot
from raftmq.broker.tables.state import BrokerState
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.store.disk import OsDisk
from raftmq.store.dispatch import QUEUE_ENTRY_BYTES
from raftmq.store.errors import QueuesLost
from raftmq.store.record import decode_record, walk_records
from raftmq.store.retention import Expired
from tests.broker.cluster import Group
from tests.waiting import until

SEGMENT = 196_608
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": SEGMENT,
    "maxMessageSize": 32_768,
}


async def filled(group, count=60):
    broker = await group.leading()
    await group.create_topic(broker, "T")
    for n in range(count):
        broker = await stored(group, b"%03d" % n + bytes(9_000))
    await group.commit(broker, "T", 0, 7)
    last = broker.engine.log.index.last_index
    await until(lambda: all(b.state.applied_index >= last for b in group.brokers.values()))
    return broker


async def stored(group, body):
    """The leader that took it. A busy machine's group may elect another in the middle."""
    while True:
        broker = await group.leading()
        response = await group.send(broker, "T", body)
        if response.code == ResponseCode.SUCCESS:
            return broker
        assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE, response


async def follower(group):
    leader = await group.leader()
    return next(name for name in group.names if name != leader)


def damage(path, at, data=b"\xff\xff\xff"):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


async def bodies(group, broker, count):
    """Everything in queue 0, pulled; refused pulls, and those of what is not applied yet, are tried
    again."""
    later = (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.TOPIC_NOT_EXIST,  # of a follower that has lost its tables: not applied yet
    )
    result: list[Any] = []
    async with asyncio.timeout(120):
        while len(result) < count:
            response = await group.pull(broker, "T", len(result), wait_ms=0, flags=0x4)
            if response.code in later:
                await asyncio.sleep(0.02)
                continue
            assert response.code == ResponseCode.SUCCESS, response
            for at, _ in walk_records(response.body):
                record = decode_record(response.body, at)
                assert record.queue_offset == len(result)
                result.append(record.body[:3])
    return result


EXPECTED = [b"%03d" % n for n in range(60)]


@pytest.mark.parametrize("harm", ["log", "segment", "queue", "checkpoint", "snapshot"])
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_damaged_replica_is_restored_to_its_previous_state(tmp_path, harm, end):
    async with Group(tmp_path, 3, **SETTINGS) as group:
        broker = await filled(group)
        name = await follower(group)
        state = group.brokers[name].state.offsets.to_json()
        if end == "stop":
            await group.stop(name)
        else:
            await group.brokers[name].keeper.write_snapshot()
            await group.kill(name)
        root = tmp_path / name
        segments = sorted((root / "commitlog").iterdir())
        if harm == "log":
            damage(segments[0], 20_000, bytes(8192))
            damage(segments[1], 30)
        elif harm == "segment":
            segments[1].unlink()
        elif harm == "queue":
            damage(root / "consumequeue" / "T" / "0" / f"{0:020d}", 20 * 59)
        elif harm == "checkpoint":
            damage(root / "checkpoint", 24)
        else:
            for file in (root / "config").glob("*.json"):
                damage(file, file.stat().st_size // 2)
        broker = await group.start(name)
        end = (await group.leading()).store.derived.dispatched_offset
        await until(lambda: broker.store.derived.dispatched_offset >= end)
        assert await bodies(group, broker, 60) == EXPECTED
        assert broker.state.offsets.to_json()["offsetTable"] == state["offsetTable"]
        await stored(group, b"060")
        for one in group.brokers.values():
            await until(lambda one=one: one.store.queues.queue("T", 0).max_offset == 61)
            assert await bodies(group, one, 61) == [*EXPECTED, b"060"]


async def test_corruption_in_a_running_broker_is_repaired_and_never_served(tmp_path):
    async with Group(tmp_path, 3, maxTransferCountOnMessageInDisk=32, **SETTINGS) as group:
        broker = await filled(group)
        leader = await group.leader()
        assert broker.store.config.hot_span_bytes > 0
        queue = broker.store.queues.queue("T", 0)
        broker.store.queues.write_tails()
        position, _, _ = queue.entry(20)
        at_queue = tmp_path / leader / "consumequeue" / "T" / "0" / f"{0:020d}"
        damage(at_queue, 33 * QUEUE_ENTRY_BYTES, bytes(3 * QUEUE_ENTRY_BYTES))
        segment = position // SEGMENT * SEGMENT
        # The record's head, so that the hot path sees it, too.
        damage(tmp_path / leader / "commitlog" / f"{segment:020d}", position % SEGMENT + 14)
        refused = await group.pull(broker, "T", 20, wait_ms=0, flags=0x4)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert await bodies(group, broker, 60) == EXPECTED
        assert broker.store.repairs.rewritten == 3
        await until(lambda: broker.engine.status()["damaged_count"] == 0)
        assert broker.engine.status()["repaired"] == 1
        assert await group.leader() == leader


async def test_tables_that_cannot_be_rebuilt_prevent_the_start(tmp_path):
    async with Group(tmp_path, **SETTINGS) as group:
        broker = await filled(group)
        log = broker.store.commitlog
        broker.store.expiry.expired = lambda *_, **__: Expired(log.max_offset, log.max_offset)
        for _ in range(2):
            await group.send(broker, "T", b"x")
            await broker.keeper.write_snapshot()
        await broker.keeper.retain()
        assert broker.store.commitlog.min_offset > 0
        await group.kill("n0")
        config = tmp_path / "n0" / "config"
        good = (config / "topics.json").read_bytes()
        damage(config / "topics.json", 10)
        await group.start("n0")  # from the .bak
        broker = await group.leading()
        assert broker.state.topics.get("T") is not None
        await group.kill("n0")
        damage(config / "topics.json.bak", 10)
        with pytest.raises(StateError, match=r"topics.json under config/ cannot be read or are g"):
            await group.start("n0")
        await group.stop("n0")
        (config / "topics.json").write_bytes(good)
        await group.start("n0")
        assert (await group.leading()).state.topics.get("T") is not None
        await group.kill("n0")
        for lost in ("pops.json", "consumerOffset.json", ""):  # the last: all of them
            config.rename(away := tmp_path / "away")
            shutil.copytree(away, config, ignore=lambda *_, lost=lost: [lost, f"{lost}.bak"])
            if not lost:
                shutil.rmtree(config)
            with pytest.raises(StateError, match=f"{lost}.* under config/ cannot be read or are g"):
                await group.start("n0")
            await group.stop("n0")
            shutil.rmtree(config, ignore_errors=True)
            away.rename(config)
        queues = tmp_path / "n0" / "consumequeue"
        queues.rename(tmp_path / "queues")
        manifest = (tmp_path / "n0" / "consumequeue.manifest").rename(tmp_path / "manifest")
        with pytest.raises(QueuesLost, match="start this replica with an empty directory"):
            await group.start("n0")
        await group.stop("n0")
        shutil.rmtree(queues)
        (tmp_path / "queues").rename(queues)
        manifest.rename(tmp_path / "n0" / "consumequeue.manifest")
        await group.start("n0")
        assert (await group.leading()).store.queues.end_of("T", 0) > 0


def test_flipped_bit_in_valid_json_is_detected(tmp_path):
    disk = OsDisk(str(tmp_path))
    state = BrokerState()
    state.offsets.commit([("T", "g", 0, 12345)])
    state.advance(9)
    for _ in range(2):
        snapshot.write(disk, snapshot.capture(state))
    path = tmp_path / "config" / "consumerOffset.json"
    good = path.read_bytes()
    assert orjson.loads(good)["raftChecksum"]
    path.write_bytes(good.replace(b"12345", b"12305"))
    again = BrokerState()
    assert snapshot.load(disk, again) == 9
    assert again.offsets.get("T", "g", 0) == 12345
    assert again.damaged == ["consumerOffset.json"]
    without = orjson.loads(good)
    del without["raftChecksum"]
    path.write_bytes(orjson.dumps(without))
    again = BrokerState()
    assert snapshot.load(disk, again) == 9
    assert again.damaged == ["consumerOffset.json"]


async def test_broker_that_waits_for_its_peers_can_be_stopped(tmp_path):
    """As an operator does it: the process, a damaged log, nobody there, SIGTERM."""
    async with Group(tmp_path, 3, **SETTINGS) as group:
        await filled(group, 20)
        name = await follower(group)
        config = group.config(name)  # its port is held for it until the group ends
        for one in list(group.brokers):
            await group.stop(one)
        log = min((tmp_path / name / "commitlog").iterdir())
        damage(log, 20_000)
        before = log.read_bytes()
        conf = tmp_path / "broker.conf"
        conf.write_text(config.properties_text())
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "raftmq.broker.cli",
            "-c",
            str(conf),
            "--set",
            f"storePathRootDir={tmp_path / name}",
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(120):
                await process.stderr.readuntil(b"log_damaged")
                process.send_signal(signal.SIGTERM)
                rest = await process.stderr.read()
                assert await process.wait() == 0, rest
            assert b"before the start was through" in rest
        finally:
            if process.returncode is None:
                process.kill()
        assert log.read_bytes() == before


@pytest.mark.parametrize("read", ["pull", "view"])
async def test_corrupt_property_is_repaired_and_never_served(tmp_path, read):
    """No checksum of a record covers its properties; its frame's does."""
    async with Group(tmp_path, 3, **SETTINGS) as group:
        await filled(group)
        name = await follower(group)
        await group.stop(name)
        broker = await group.start(name)  # what it wrote before is not in its memory now
        end = (await group.leading()).store.derived.dispatched_offset
        await until(lambda: broker.store.derived.dispatched_offset >= end)
        position, size, _ = broker.store.queues.queue("T", 0).entry(20)
        intact = broker.store.commitlog.read(position, size)
        file = tmp_path / name / "commitlog" / f"{position // SEGMENT * SEGMENT:020d}"
        damage(file, position % SEGMENT + size - 1)

        async def ask():
            if read == "pull":
                return await group.pull(broker, "T", 20, wait_ms=0, flags=0x4)
            offset = {"offset": str(position)}
            return await group.ask(broker, RequestCode.VIEW_MESSAGE_BY_ID, offset)

        refused = await ask()
        assert refused.code != ResponseCode.SUCCESS
        assert "frame" in refused.remark
        await until(lambda: broker.engine.status()["damaged_count"] == 0)
        assert (await ask()).body[:size] == intact
        assert broker.engine.status()["repaired"] >= 1
