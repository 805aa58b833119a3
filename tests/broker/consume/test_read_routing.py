"""Which replica serves whom: suggestions, and a Raft group's followers that serve cold data."""

import pytest

from raftmq.broker.consume.read_routing import ClassicReads, RaftReads, read_policy
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.client import Message as ClientMessage
from raftmq.client import Producer, PullConsumer
from raftmq.namesrv.server import NameServer, NameServerConfig
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.headers import PullHeader
from tests.broker.cluster import Group
from tests.broker.replication.ha.test_consumer import Seen, consumer_of
from tests.present import present
from tests.waiting import until

COLD = {
    "slaveReadEnable": "true",
    "accessMessageInMemoryMaxRatio": 0,
    # The leader stays, however busy the machine is.
    "electionTimeoutMinMs": 2_000,
    "electionTimeoutMaxMs": 4_000,
}


@pytest.mark.parametrize(
    ("slow", "normal", "own", "followers", "cold", "suggested"),
    [
        (1, 0, 0, [1, 2], True, 1),
        (1, 0, 0, [1, 2], False, 0),
        (1, 0, 0, [2, 3], True, 2),  # 1 leads, and is 0 therefore
        (1, 0, 0, [], True, 0),
        (0, 0, 0, [1], True, 0),
        (1, 2, 0, [1, 2], False, 2),
        (1, 2, 0, [1], False, 0),
        (1, 0, 2, [], True, 2),  # a follower is as good as another
        (1, 0, 2, [], False, 0),
        (1, 2, 2, [], False, 2),
        (1, 1, 2, [], False, 0),
    ],
)
def test_pull_suggestions_in_a_raft_group(slow, normal, own, followers, cold, suggested):
    group = SubscriptionGroup("g", broker_id=normal, slow_broker_id=slow)
    policy = RaftReads(True, lambda: True, lambda: own, lambda: followers)
    assert policy.suggest(group, cold) == suggested
    assert RaftReads(False, lambda: True, lambda: own, lambda: followers).suggest(group, cold) == 0


def test_pull_suggestions_without_a_configured_group():
    assert RaftReads(True, lambda: True, lambda: 0, lambda: [1, 3]).suggest(None, True) == 1
    assert ClassicReads(True, lambda: False).suggest(None, True) == 1
    assert ClassicReads(True, lambda: False).suggest(None, False) == 0
    assert ClassicReads(False, lambda: False).suggest(None, True) == 0


def test_leader_redirects_reads_only_with_the_setting():
    assert not RaftReads(False, lambda: True, lambda: 1, list).redirects()
    assert RaftReads(True, lambda: True, lambda: 1, list).redirects()
    assert not RaftReads(True, lambda: False, lambda: 1, list).redirects()


def within_reach(leader):
    policy = read_policy(leader.context)
    assert isinstance(policy, RaftReads)
    return set(policy.followers())


async def test_cold_data_are_read_from_followers_and_the_end_from_the_leader(tmp_path):
    settings = COLD | {"shortPollingTimeMills": 100}
    async with Group(tmp_path, 3, **settings) as group:
        name = await group.leader()
        leader = group.brokers[name]
        await group.create_topic(leader, "T")
        for _ in range(3):
            await group.send(leader, "T")
        follower = next(b for n, b in group.brokers.items() if n != name)
        ids = {b.log.identity.broker_id for n, b in group.brokers.items() if n != name}
        await until(lambda: within_reach(leader) == ids)
        cold = await group.pull(leader, "T", 0)
        assert (cold.code, int(cold.ext["suggestWhichBrokerId"]) in ids) == (0, True)
        end = await group.pull(leader, "T", 3)
        assert end.ext["suggestWhichBrokerId"] == "0"
        await until(lambda: follower.store.queues.end_of("T", 0) == 3)
        own = str(follower.log.identity.broker_id)
        there = await group.pull(follower, "T", 0)
        assert (there.code, there.ext["suggestWhichBrokerId"]) == (0, own)
        # Nothing new, and what it does not know: the consumer is back at the leader soon.
        for offset in (3, 7):
            nothing = await group.pull(follower, "T", offset, flags=0x6, wait_ms=60_000)
            assert nothing.code == ResponseCode.PULL_NOT_FOUND
            assert nothing.ext["suggestWhichBrokerId"] == "0"
            assert nothing.ext["nextBeginOffset"] == str(offset)


async def test_consumer_reads_cold_data_at_a_follower_then_at_the_leader(tmp_path):
    seen = Seen()
    async with NameServer(NameServerConfig(bind="127.0.0.1", port=0)) as server:
        namesrv = f"127.0.0.1:{server.port}"
        async with Group(tmp_path, 3, namesrvAddr=namesrv, **COLD) as group:
            name = await group.leader()
            leader = group.brokers[name]
            await group.create_topic(leader, "T", queues=1)
            await until(lambda: server.table.queues("T") is not None)
            bodies = [b"a%d" % n * 100 for n in range(100)]
            async with Producer("pg", namesrv) as producer:
                for body in bodies:
                    await producer.send(ClientMessage("T", body), timeout_ms=60_000)
                await until(
                    lambda: all(
                        b.store.queues.end_of("T", 0) >= 100 for b in group.brokers.values()
                    )
                )
                # Followers are suggested when they are within reach, and asked when they are known.
                ids = {b.log.identity.broker_id for n, b in group.brokers.items() if n != name}
                await until(lambda: within_reach(leader) == ids)
                await until(
                    lambda: set(present(server.table.group("group-a")).addresses) == {0, *ids}
                )
                async with consumer_of(namesrv, seen):
                    await until(lambda: set(seen.bodies) == set(bodies))
                    await producer.send(ClientMessage("T", b"new"), timeout_ms=60_000)
                    await until(lambda: b"new" in seen.bodies)
            assert set(seen.bodies) == {*bodies, b"new"}

            def served() -> int:
                return sum(b.pulls.get_count for n, b in group.brokers.items() if n != name)

            before = served()
            assert before > 0
            async with PullConsumer("readers", namesrv) as reader:
                (queue,) = await reader.queues("T")
                reader.seek(queue, 0)
                read: list[bytes] = []
                while len(read) < 100:
                    read += [m.body for m in await reader.fetch(queue, 50)]
                assert read[:100] == bodies and served() > before, "not the leader alone"


async def test_broker_without_read_permission_rejects_pulls(tmp_path):
    async with Group(tmp_path, brokerPermission=2) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        refused = await group.pull(broker, "T", 0)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "pulling message is forbidden" in refused.remark


async def test_lite_pulls_are_served(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T")
        ext = PullHeader("cg", "T", 0, 0, 32, 0x14, 0, 1_000, "*", 0).to_ext()
        lite = RequestCode.LITE_PULL_MESSAGE
        assert (await group.ask(broker, lite, ext)).code == ResponseCode.PULL_NOT_FOUND
