"""Bounds of tables that consumers fill: offsets of existing queues, groups up to groupsMax."""

import asyncio

import orjson
import pytest

from raftmq.remoting.codes import RequestCode, ResponseCode
from tests.broker.cluster import Group
from tests.waiting import until


async def test_offsets_are_kept_only_of_existing_or_former_queues(tmp_path):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 4)
        await group.send(broker, "T", queue=3)
        for queue_id, offset in ((0, 0), (3, 1)):
            assert (await group.commit(broker, "T", queue_id, offset)).code == 0
        for queue_id in (-1, 4, 1 << 40, (1 << 63) - 1):
            refused = await group.commit(broker, "T", queue_id, 0)
            assert (refused.code, "queue" in refused.remark) == (ResponseCode.SYSTEM_ERROR, True)
        await group.create_topic(broker, "T", 1)
        assert broker.state.topics.get("T").read_queue_count == 1
        assert (await group.commit(broker, "T", 3, 1)).code == 0
        assert (await group.commit(broker, "T", 2, 0)).code == ResponseCode.SYSTEM_ERROR


def heartbeat(*groups):
    consumers = [{"groupName": name, "subscriptionDataSet": []} for name in groups]
    return orjson.dumps({"clientID": "c", "consumerDataSet": consumers, "producerDataSet": []})


async def test_consumer_groups_are_limited_apart_from_topics(tmp_path, monkeypatch):
    async with Group(tmp_path, groupsMax="3", topicsMax="2") as group:
        broker = await group.leading()
        code, groups = RequestCode.HEART_BEAT, broker.state.groups.entries
        assert (await group.ask(broker, code, None, heartbeat("g1"))).code == 0
        propose = broker.engine.propose_command

        def unanswered(payload):
            """It is applied, and its proposer does not know that yet."""
            propose(payload)
            return asyncio.get_running_loop().create_future()

        with monkeypatch.context() as patched:
            patched.setattr(broker.engine, "propose_command", unanswered)
            assert (await group.ask(broker, code, None, heartbeat("g2"))).code == 0
        await until(lambda: len(groups) == 2)
        assert (await group.ask(broker, code, None, heartbeat("g3"))).code == 0
        await until(lambda: len(groups) == 3)
        busy = await group.ask(broker, code, None, heartbeat("g4"))
        assert (busy.code, busy.remark[:6]) == (ResponseCode.SYSTEM_BUSY, "[BUSY]")
        assert "g4" not in broker.clients.consumers
        assert (await group.ask(broker, code, None, heartbeat("g1", "g2"))).code == 0
        for name in ("T", "U"):
            assert (await group.create_topic(broker, name)).code == 0
        assert (await group.create_topic(broker, "V")).code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize("topic", ["Nobody's", "T"])
async def test_rejected_pull_creates_no_group(tmp_path, topic):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 1)
        answer = await group.pull(broker, topic, 0, queue=1)
        assert answer.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR)
        assert "cg" not in broker.state.groups.entries
