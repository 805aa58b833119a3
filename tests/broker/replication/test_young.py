"""Nothing that is young is deleted, whatever the replicas' clocks and disks are like."""

import asyncio

import pytest

from raftmq.dledger.node import peer_info
from raftmq.remoting.codes import RequestCode
from raftmq.store.disk import DiskUsage
from raftmq.store.retention import HOUR_MS
from tests.broker.cluster import Group
from tests.waiting import until

YEAR = 365 * 24 * HOUR_MS
SETTINGS = {
    "mappedFileSizeCommitLog": 256 << 10,
    "maxMessageSize": 64 << 10,
    "durations": {"snapshot": 50},
    "deleteWhen": ";".join(map(str, range(24))),
    "electionTimeoutMinMs": 600,
    "electionTimeoutMaxMs": 900,
}
COUNT = 24


@pytest.fixture(autouse=True)
def frequent_peer_info(monkeypatch):
    monkeypatch.setattr(peer_info, "SEND_INTERVAL_MS", 20)


async def filled(group):
    """Send what fills some segments, and have it applied, snapshots and all, everywhere."""
    leader = await group.leading()
    assert (await group.create_topic(leader, "T", 1)).code == 0
    for _ in range(COUNT):
        assert (await group.send(leader, "T", bytes(50_000))).code == 0
    for broker in group.brokers.values():
        await until(lambda b=broker: b.store.queues.end_of("T", 0) == COUNT)
        await until(lambda b=broker: b.keeper.fallback_index >= b.engine.log.index.last_index - 2)


async def retained(group):
    """Let all replicas delete what they may, a few times; return how much they did."""
    result = 0
    for _ in range(3):
        for broker in group.brokers.values():
            result += (await broker.keeper.retain(at_once=True)).deleted
            broker.reliever.poll()
        await asyncio.sleep(0.05)
    return result


def heard(group):
    """Whether all replicas have heard of each other's clocks."""
    count = len(group.names) - 1
    return all(
        len(broker.engine.parts.chores.peer_info.extents) == count
        for broker in group.brokers.values()
    )


@pytest.mark.parametrize("when", ["start", "running"])
@pytest.mark.parametrize(
    ("replicas", "wrong", "off"),
    [
        (1, 1, YEAR),
        (1, 1, -YEAR),
        (3, 2, YEAR),
        (3, 2, -YEAR),
        (3, 3, YEAR),
    ],
)
async def test_wrong_clocks_delete_no_young_segment(tmp_path, when, replicas, wrong, off):
    async with Group(tmp_path, replicas, **SETTINGS) as group:
        await filled(group)
        right = group.names[wrong:]
        if when == "start":
            for name in list(group.brokers):
                await group.stop(name)
        group.ahead_ms = dict.fromkeys(group.names[:wrong], off)
        if when == "start":
            for name in group.names:
                await group.start(name)
            group.let_lead(group.names[0])
        await group.leader()
        await until(lambda: heard(group))
        assert await retained(group) == 0
        for name in group.names[:wrong]:
            info = (await group.ask(group.brokers[name], RequestCode.GET_BROKER_RUNTIME_INFO)).body
            assert b"the clock is 36" in info
        if right:  # leadership goes to, or stays at, the only clock that its log bears out
            await until(lambda: group.brokers[right[0]].roles.leading)


@pytest.mark.parametrize("forced", [False, True])
async def test_full_disk_deletes_no_young_segment_and_accepts_admin_requests(tmp_path, forced):
    settings = {"diskSpaceWarningLevelRatio": 90, "cleanFileForciblyEnable": str(forced).lower()}
    async with Group(tmp_path, 3, **SETTINGS, **settings) as group:
        await filled(group)
        for broker in group.brokers.values():
            broker.disk.space = DiskUsage(95, 5)
            broker.reliever.poll()

        def refusing():
            return [b for b in group.brokers.values() if b.roles.leading and b.sends.disk_full]

        await until(refusing)
        (leader,) = refusing()
        assert (await retained(group) > 0) is forced
        assert (leader.unexpired.messages > 0) is forced
        refused = await group.send(leader, "T")
        assert refused.remark.startswith("[DISK_FULL] the disk is 95 percent full")
        # Somebody can get out of it: everything but sends works.
        start = leader.store.queues.queue("T", 0).min_offset
        assert (await group.pull(leader, "T", start)).code == 0
        assert (await group.commit(leader, "T", 0, start + 1)).code == 0
        await until(lambda: leader.state.offsets.get("T", "cg", 0) == start + 1)
        ext = {"topic": "T"}
        assert (await group.ask(leader, RequestCode.DELETE_TOPIC_IN_BROKER, ext)).code == 0
        live = b"fileReservedTime=0"
        assert (await group.ask(leader, RequestCode.UPDATE_BROKER_CONFIG, body=live)).code == 0
        assert leader.config.file_reserved_time == 0


async def test_replica_that_was_off_accepts_the_clocks_of_its_peers(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_info, "SEND_INTERVAL_MS", 100)
    monkeypatch.setattr(peer_info, "KNOWN_MS", 600)
    async with Group(tmp_path, 3, **SETTINGS) as group:
        await filled(group)
        away = next(name for name, broker in group.brokers.items() if not broker.roles.leading)
        broker = group.brokers[away]
        broker.retention._clock._ahead_ms -= YEAR  # the time that its store noted is a year back
        broker.reliever.poll()
        assert broker.retention.contradiction and not broker.engine.core.election.is_willing
        await until(lambda: not broker.retention.contradiction)
        assert broker.retention.clock_lead_ms == 0


async def test_operator_can_confirm_the_clock(tmp_path):
    """The whole group was off for a year."""
    async with Group(tmp_path, **SETTINGS) as group:
        await filled(group)
        await group.stop("n0")
        group.ahead_ms = {"n0": YEAR}
        broker = await group.start("n0")
        await group.leader()
        code = RequestCode.DELETE_EXPIRED_COMMITLOG
        answer = await group.ask(broker, code)
        assert (answer.code, answer.ext["deletedBytes"]) == (0, "0")
        await until(lambda: broker.keeper.fallback_index >= broker.engine.log.index.last_index - 2)
        answer = await group.ask(broker, code, {"trustClock": "true"})
        assert int(answer.ext["deletedBytes"]) > 0
        assert broker.retention.contradiction == ""
