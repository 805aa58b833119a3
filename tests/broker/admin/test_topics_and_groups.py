"""Deleting topics and groups: offsets and pops that were committed just before are deleted, too.
A topic that is made again begins empty. And the topic of message traces, which only the broker
itself may create."""

import asyncio
import shutil

import orjson
import pytest

from raftmq.broker.errors import Refused
from raftmq.broker.tables.topics import STARTS_MAX, TopicConfig, TopicTable
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.names import TRACE_TOPIC
from raftmq.store.record import decode_record, walk_records
from tests.broker.cluster import PATIENCE_S, Group
from tests.broker.delayed.test_delay_group import PATIENT
from tests.broker.http.client import Client
from tests.broker.pop.consumer import Popper
from tests.broker.replication.ha.pair import Classic
from tests.waiting import until

CLASSIC = {"enableDLegerCommitLog": "false", "dLegerPeers": ""}


async def by_request(group, broker):
    answer = await group.ask(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert answer.code == 0, answer.remark


async def by_condition(group, broker):
    path = "/api/v1/topics/T"
    async with Client(broker.http.address) as client:
        version = (await client.get(path)).headers["ETag"]
        assert (await client.delete(path, If_Match=version)).status == 204


async def the_group(group, broker):
    ext = {"groupName": "cg", "cleanOffset": "true"}
    answer = await group.ask(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize("settings", [{}, CLASSIC], ids=["raft", "classic"])
@pytest.mark.parametrize("delete", [by_request, by_condition, the_group])
async def test_gathered_commit_is_dropped_with_its_deleted_topic(tmp_path, delete, settings):
    group = Group(tmp_path, **settings)
    group.commit_interval_ms = 5_000
    async with group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 1)
        assert broker.commits.commit("T", "cg", 0, 7)
        await delete(group, broker)
        broker.commits.flush()
        await group.create_topic(broker, "T", 1)
        assert broker.state.offsets.offsets == {}
        assert (await group.committed(broker, "T", 0)).ext["offset"] == "0"  # not 7


async def ends(group, broker, topic="T"):
    """Return the first and the next offset of a topic's queue, as clients are told them."""
    ext = {"topic": topic, "queueId": "0"}
    codes = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
    return [int((await group.ask(broker, code, ext)).ext["offset"]) for code in codes]


async def make_again(group, broker, how):
    """Delete T, and make it again."""
    if how == "empty":
        answer = await group.ask(broker, RequestCode.EMPTY_TOPIC, {"topic": "T"})
        assert loads_object(answer.body) == {"messages": 5, "groups": ["cg", "poppers"]}
        return
    await by_request(group, broker)
    if how == "create":
        await group.create_topic(broker, "T", 1)
    elif how == "keep":
        header = TopicHeader("T", 1, 1, 6, keep_messages=True)
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        assert (await group.ask(broker, code, header.to_ext())).code == 0
    elif how == "http":
        async with Client(broker.http.address) as client:
            assert (await client.put("/api/v1/topics/T", {}, If_None_Match="*")).status == 200


@pytest.mark.parametrize("settings", [{}, CLASSIC], ids=["raft", "classic"])
@pytest.mark.parametrize("how", ["create", "send", "http", "empty", "keep"])
async def test_recreated_topic_starts_empty_unless_requested(tmp_path, settings, how):
    """So do the retries of its pops, and its groups; after a restart without queue files, too."""
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        for topic in ("T", "%RETRY%poppers_T"):
            await group.create_topic(broker, topic, 1)
            for number in range(5):
                await group.send(broker, topic, b"old %d" % number)
        await group.commit(broker, "T", 0, 2)
        popper = Popper(group, "poppers")
        (held,) = await popper.pop(broker, count=1)
        await make_again(group, broker, how)
        assert await popper.ack(broker, held) != 0
        assert (await group.send(broker, "T", b"new")).ext["queueOffset"] == "5"
        first = 0 if how == "keep" else 5
        for _ in range(2):
            assert await ends(group, broker) == [first, 6]
            reported = await group.committed(broker, "T", 0)
            assert reported.code == ResponseCode.QUERY_NOT_FOUND
            result = await group.pull(broker, "T", first)
            bodies = [decode_record(result.body, at).body for at, _ in walk_records(result.body)]
            assert bodies[-1] == b"new" and len(bodies) == 6 - first
            name = await group.leader()
            await group.stop(name)
            shutil.rmtree(tmp_path / name / "consumequeue")
            broker = await group.start(name)
            await group.leader()
        popped = await Popper(group, "poppers").pop(broker)
        assert len(popped) == 6 - first
        await group.create_topic(broker, "%RETRY%poppers_T", 1)
        assert await ends(group, broker, "%RETRY%poppers_T") == [5, 5]


async def test_every_replica_and_leader_shows_the_same_recreated_topic(tmp_path):
    """Also one that was down meanwhile, and one that begins with an empty directory."""
    async with Group(tmp_path, 3, {"snapshot": 200}, **PATIENT) as group:
        broker = await group.leading()
        old, leader = "T", await group.leader()
        down, wiped = (name for name in group.names if name != leader)
        await group.create_topic(broker, old, 1)
        for _ in range(5):
            await group.send(broker, old)
        await group.kill(down)
        await by_request(group, broker)
        queues = broker.store.queues
        await until(lambda: queues.queue(old, 0) is not queues.queue(old, 0))  # it left memory
        await group.create_topic(broker, old, 1)
        await group.send(broker, old, b"new")
        await group.start(down)
        await group.kill(wiped)
        shutil.rmtree(tmp_path / wiped)
        await group.start(wiped)

        def same():
            queues = [one.store.queues.queue(old, 0) for one in group.brokers.values()]
            return [(q.min_offset, q.max_offset) for q in queues if q is not None] == [(5, 6)] * 3

        await until(same)
        await until(lambda: all(b.engine.status()["recovered"] for b in group.brokers.values()))
        await group.kill(leader)
        assert await ends(group, await group.leading()) == [5, 6]


async def test_slave_shows_the_same_emptied_topic_as_its_master(tmp_path):
    async with Classic(tmp_path) as pair:
        await pair.create_topic(pair.master, "T", 1)
        for _ in range(3):
            await pair.send(pair.master, "T")
        (slave,) = (broker for name, broker in pair.brokers.items() if name != "master")
        await until(lambda: slave.state.topics.get("T") is not None)
        await until(lambda: slave.store.queues.end_of("T", 0) == 3)
        async with asyncio.timeout(PATIENCE_S):
            answer = await pair.ask(pair.master, RequestCode.EMPTY_TOPIC, {"topic": "T"})
        assert answer.code == 0
        await until(lambda: slave.store.queues.queue("T", 0).min_offset == 3)


def test_remembered_deleted_topics_are_limited():
    table = TopicTable()
    table.put(TopicConfig("made-again"), 1)
    table.restart_at("made-again", 7)
    for number in range(STARTS_MAX + 1):
        table.restart_at(f"gone {number}", 8 + number)
    assert len(table.starts) == STARTS_MAX + 1
    assert table.starts["made-again"] == 7 and "gone 0" not in table.starts
    other = TopicTable()
    other.load(orjson.loads(orjson.dumps(table.to_json())), 3)
    assert other.starts == table.starts


async def remove_topic(broker):
    await broker.catalog.remove_topic("T")


async def remove_group(broker):
    await broker.catalog.remove_group("cg", offsets=True)


@pytest.mark.parametrize("remove", [remove_topic, remove_group])
async def test_offsets_and_pops_are_rejected_during_a_deletion(tmp_path, remove):
    """They would come into the log behind the deletion."""
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 1)
        deleting = asyncio.ensure_future(remove(broker))
        await asyncio.sleep(0)
        assert broker.state.topics.get("T") is not None
        assert not broker.commits.commit("T", "cg", 0, 7)
        with pytest.raises(Refused, match="is being deleted"):
            await broker.commits.commit_and_wait("T", "cg", 0, 7)
        with pytest.raises(Refused, match="is being deleted"):
            await broker.resets.reset("cg", "T", {0: 7})
        with pytest.raises(Refused, match="is being deleted"):
            await broker.popping.assignments.change_mode("T", "cg", "POP")
        await broker.popping.assignments.change_mode("U", "other", "POP")
        await deleting
        await group.create_topic(broker, "T", 1)
        assert broker.state.offsets.offsets == {}
        assert broker.commits.commit("T", "cg", 0, 7)


@pytest.mark.parametrize("remove", [remove_topic, remove_group])
async def test_gathered_pop_step_is_dropped_with_its_deleted_topic(tmp_path, remove):
    """Pop steps that arrive while a command is in flight are gathered into the next command."""
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 1)
        changes = []
        for mode in ("POP", "PULL"):
            change = broker.popping.assignments.change_mode("T", "cg", mode)
            changes.append(asyncio.ensure_future(change))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert broker.state.pops.modes == {}
        await remove(broker)
        await asyncio.gather(*changes)
        assert broker.state.pops.modes == {}


async def test_pops_are_deleted_with_their_topic(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()

        async def pop_all(topic, queue):
            popper = Popper(group, topic=topic)
            while (await popper.answer(broker, queue=queue, count=1)).code == 0:
                pass

        for topic in ("T1", "T2", "T3", "T4", "T5", "T6"):
            await group.create_topic(broker, topic, 4)
            sends = [group.send(broker, topic, b"m", queue=n % 4) for n in range(40)]
            await asyncio.gather(*sends)
            pops = [asyncio.ensure_future(pop_all(topic, n % 4)) for n in range(8)]
            await asyncio.sleep(0.005)
            await broker.catalog.remove_topic(topic)
            await asyncio.gather(*pops)
        assert broker.state.offsets.offsets == {}
        assert broker.state.pops.queues == {}


@pytest.mark.parametrize("settings", [{}, CLASSIC], ids=["raft", "classic"])
async def test_trace_topic_is_created_without_automatic_topic_creation(tmp_path, settings):
    """Clients send traces only to a topic that name servers know."""
    settings = settings | {"autoCreateTopicEnable": "false", "traceTopicEnable": "true"}
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        await until(lambda: broker.state.topics.get(TRACE_TOPIC) is not None)
        topic = broker.state.topics.entries[TRACE_TOPIC]
        assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (1, 1, 6)
        assert (await group.send(broker, TRACE_TOPIC)).code == 0
        refused = await group.create_topic(broker, TRACE_TOPIC)
        assert "is the system's" in refused.remark
        reported = (await group.ask(broker, RequestCode.GET_BROKER_CONFIG)).body
        assert (
            reported.count(b"traceTopicEnable=true\n") == reported.count(b"traceTopicEnable") == 1
        )


async def test_trace_topic_is_not_created_without_the_setting(group, broker):
    (chore,) = broker.catalog.service().chores
    chore.run()
    await group.create_topic(broker, "T")
    assert broker.state.topics.get(TRACE_TOPIC) is None


async def test_read_queues_are_removed_only_after_they_are_consumed(tmp_path):
    """Consumers would not see what is in the queues beyond, and no lag would show it."""
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 4)
        await group.send(broker, "T", queue=3)
        shrunk = TopicConfig("T", 2, 2)
        with pytest.raises(Refused, match=r"queues 3 of topic \[T\] .* no group has consumed"):
            await broker.catalog.change_topic(shrunk)
        assert (await group.commit(broker, "T", 3, 0)).code == 0
        with pytest.raises(Refused, match="groups cg have not consumed"):
            await broker.catalog.change_topic(shrunk)
        await broker.catalog.change_topic(TopicConfig("T", 4, 2))  # no sends to it any more
        assert (await group.commit(broker, "T", 3, 1)).code == 0
        assert (await broker.catalog.change_topic(shrunk)).read_queue_count == 2
