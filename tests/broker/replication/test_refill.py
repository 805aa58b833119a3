"""A replica that was away until its frames were gone everywhere is refilled under load.
(One that lost its store, too: test_refill_processes.py.)"""

import asyncio
from typing import Any

import pytest

from raftmq.broker.replication.engine import preferred_of
from raftmq.remoting.codes import RequestCode
from raftmq.store.retention import Expired
from tests.broker.cluster import Group
from tests.waiting import until

KIB = 1 << 10
BODY = bytes(range(256)) * 40


@pytest.fixture
async def group(tmp_path):
    settings = {
        "mappedFileSizeCommitLog": 256 * KIB,
        "maxMessageSize": 64 * KIB,
        "fileReservedTime": 0,
        "deleteWhen": ";".join(map(str, range(24))),
        "durations": {"snapshot": 100, "retention": 100},
        "flushDiskType": "SYNC_FLUSH",
    }
    async with Group(tmp_path, count=3, **settings) as three:
        yield three


async def start_again(group, name):
    """Start the broker anew in the same process, as `mqbroker` does after a snapshot install."""
    broker = await group.start(name)
    times = 0
    while not broker.restarts:
        if broker.application.applied_position and broker.store.commitlog.min_offset:
            return times
        await asyncio.sleep(0.01)
    reason = await broker.failed
    assert "a group snapshot takes its place" in reason
    await group.stop(name)
    times += 1
    await group.start(name)
    return times


class Load:
    """Sends one after the other to whoever leads; a send that fails ends the test."""

    def __init__(self, group):
        self.group = group
        self.sent = 0
        self.task: Any = None
        self.wanted = True

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self._send())
        return self

    async def __aexit__(self, *_):
        self.wanted = False
        await self.task

    async def _send(self):
        while self.wanted:
            answer = await self.group.send(await self.group.leading(), "T", BODY)
            assert answer.code == 0, answer
            self.sent += 1

    async def until_first_frames_are_gone(self):
        stores = [broker.store for broker in self.group.brokers.values()]
        before = max(store.commitlog.max_offset for store in stores)
        async with asyncio.timeout(120):
            while min(store.commitlog.min_offset for store in stores) <= before:
                assert not self.task.done(), self.task
                await asyncio.sleep(0.02)


def keep_all(broker):
    """No more retention."""
    log = broker.store.commitlog
    broker.store.expiry.expired = lambda *_, **__: Expired(log.min_offset, 0)


async def pulled(group, broker, topic, queue=0):
    """Where a queue begins and ends, and all records in between."""
    header = {"topic": topic, "queueId": str(queue)}
    low = await group.ask(broker, RequestCode.GET_MIN_OFFSET, header)
    high = await group.ask(broker, RequestCode.GET_MAX_OFFSET, header)
    offset, end = int(low.ext["offset"]), int(high.ext["offset"])
    result = []
    while offset < end:
        answer = await group.pull(broker, topic, offset, queue=queue, wait_ms=0)
        assert answer.code == 0, answer
        result.append(answer.body)
        offset = int(answer.ext["nextBeginOffset"])
    return int(low.ext["offset"]), end, b"".join(result)


def same_logs(one, other):
    """Where both have it, byte for byte."""
    a, b = one.store.commitlog, other.store.commitlog
    start = max(a.min_offset, b.min_offset)
    assert a.max_offset == b.max_offset > start
    while start < a.max_offset:
        size = min(64 * KIB, a.segment_end(start) - start)
        assert a.read(start, size) == b.read(start, size), start
        start += size


async def test_replica_catches_up_after_the_oldest_segments_were_deleted(group):
    leader = await group.leader()
    first = group.brokers[leader]
    for topic in ("T", "Gone"):
        await group.create_topic(first, topic)
    for _ in range(5):
        await group.send(first, "Gone", queue=2)
    assert (await group.commit(first, "Gone", 2, 4)).code == 0
    await until(
        lambda: len({b.store.derived.dispatched_offset for b in group.brokers.values()}) == 1
    )
    name = next(n for n in group.names if n != leader)
    await group.kill(name)
    preferring = {"op": "prefer", "memberId": leader}
    assert (await group.ask(first, RequestCode.CHANGE_MEMBERS, preferring)).code == 0
    async with Load(group) as load:
        await load.until_first_frames_are_gone()
        keep_all(first)
        assert await start_again(group, name) == 1
        back = group.brokers[name]
        keep_all(back)
        await until(lambda: back.store.derived.dispatched_offset > first.store.commitlog.min_offset)
        await until(lambda: back.engine.status()["recovered"])
        await until(lambda: first.engine.status()["peers"][name]["state"] == "replicate")
        sent = load.sent
        await until(lambda: load.sent > sent + 20)
    assert back.engine.status()["installing"] is None
    assert preferred_of(back.engine) == leader, "it came with the group snapshot"
    await group.ask(first, RequestCode.CHANGE_MEMBERS, {"op": "prefer"})
    await until(
        lambda: back.store.derived.dispatched_offset == first.store.derived.dispatched_offset
    )
    same_logs(first, back)
    want = [await pulled(group, first, "T"), await pulled(group, first, "Gone", 2)]
    assert want[1] == (5, 5, b"")
    assert (await group.transfer(first, name)).code == 0
    await until(lambda: back.roles.leading)
    assert [await pulled(group, back, "T"), await pulled(group, back, "Gone", 2)] == want
    assert (await group.committed(back, "Gone", 2)).ext["offset"] == "4"
    assert (await group.send(back, "Gone", b"next", queue=2)).ext["queueOffset"] == "5"
