"""Deleting topics and groups: offsets and pops that were committed just before are deleted, too.
And the topic of message traces, which only the broker itself may create."""

import asyncio

import pytest

from raftmq.broker.errors import Refused
from raftmq.broker.tables.topics import TopicConfig
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.names import TRACE_TOPIC
from tests.broker.cluster import Group
from tests.broker.http.client import Client
from tests.broker.popping.consumer import Popper
from tests.waiting import until

LATE = {"offsetCommitIntervalMs": "5000"}
CLASSIC = LATE | {"enableDLegerCommitLog": "false", "dLegerPeers": ""}


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


@pytest.mark.parametrize("settings", [LATE, CLASSIC], ids=["raft", "classic"])
@pytest.mark.parametrize("delete", [by_request, by_condition, the_group])
async def test_a_gathered_commit_does_not_outlive_what_it_was_for(tmp_path, delete, settings):
    async with Group(tmp_path, **settings) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 1)
        assert broker.commits.commit("T", "cg", 0, 7)
        await delete(group, broker)
        broker.commits.flush()
        await group.create_topic(broker, "T", 1)
        assert broker.state.offsets.offsets == {}
        assert (await group.committed(broker, "T", 0)).ext["offset"] == "0"  # not 7


async def remove_topic(broker):
    await broker.catalog.remove_topic("T")


async def remove_group(broker):
    await broker.catalog.remove_group("cg", offsets=True)


@pytest.mark.parametrize("remove", [remove_topic, remove_group])
async def test_offsets_and_pops_while_what_they_are_for_is_deleted_are_refused(tmp_path, remove):
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
async def test_what_pops_change_does_not_outlive_what_it_was_for(tmp_path, remove):
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


async def test_pops_do_not_outlive_their_topic(tmp_path):
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
async def test_the_topic_of_traces_is_made_where_sends_make_none(tmp_path, settings):
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
        told = (await group.ask(broker, RequestCode.GET_BROKER_CONFIG)).body
        assert told.count(b"traceTopicEnable=true\n") == told.count(b"traceTopicEnable") == 1


async def test_without_the_setting_there_is_none_before_the_first_send(group, broker):
    broker.catalog._create_trace_topic()
    await group.create_topic(broker, "T")
    assert broker.state.topics.get(TRACE_TOPIC) is None


async def test_read_queues_stay_until_they_are_consumed(tmp_path):
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
