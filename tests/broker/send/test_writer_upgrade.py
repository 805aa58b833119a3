"""A rolling upgrade, under load, from the last program without writers, and without attributes of
topics, to this one: no writer is opened and no attribute kept before the last replica knows them,
and then they work; nothing that was acknowledged is lost."""

import asyncio

import pytest

from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object
from tests.broker.replication.test_peer_upgrade import (
    BETWEEN,
    QUEUES,
    Acknowledged,
    all_there,
    caught_up,
    upgrading,
)
from tests.broker.replication.test_refill_processes import NAMES, PATIENCE_S
from tests.broker.send.test_frame_builder import batch_body, fields

BEFORE = "4eb1ebd"  # the last commit without writers
OPEN = {"op": "open", "topic": "T", "writer": "w", "epoch": "1"}


async def opened(group):
    """Return the leader, and its answer to a request to open the writer."""
    leader = await group.leader()
    return leader, await group.ask(leader, RequestCode.WRITERS, dict(OPEN))


async def attributed(group):
    """Return the answer to a request to say which kind of messages the topic is for, and the
    topic's attributes as the leader then has them."""
    leader = await group.leader()
    header = TopicHeader("T", QUEUES, QUEUES, 6, attributes="+message.type=NORMAL")
    answer = await group.ask(leader, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
    return answer, await attributes(group, leader)


async def attributes(group, node):
    answer = await group.ask(node, RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    return loads_object(answer.body)["attributes"] if answer.body else None


@pytest.mark.long
async def test_a_group_gets_writers_when_its_last_replica_knows_them(tmp_path):
    async with upgrading(tmp_path, BEFORE) as group:
        async with Acknowledged(group) as load:
            for name in NAMES:
                await load.more(BETWEEN)
                leader, refused = await opened(group)
                assert refused.code in (
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,  # an old program leads
                    ResponseCode.SYSTEM_BUSY,
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                )
                _, kept = await attributed(group)
                assert not kept, "by some replicas, and not by others"
                await asyncio.to_thread(group.upgrade, name)
                await group.until(caught_up)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    leader, answer = await opened(group)
                    if answer.code == ResponseCode.SUCCESS:
                        break
                    await asyncio.sleep(0.1)
            put, kept = await attributed(group)
            assert (put.code, kept) == (ResponseCode.SUCCESS, {"message.type": "NORMAL"})
            (writer,) = loads_object(answer.body)["writers"]
            assert (writer["epoch"], writer["watermarks"]) == (1, {})
            ext = fields(properties="", e="1", m="true")
            ext |= {"writer": "w", "epoch": "1", "batch": "1", "sequence": "0"}
            body = batch_body((b"of the writer", b"", 0))
            for _ in range(2):
                wrote = await group.ask(leader, RequestCode.SEND_WRITER_BATCH, ext, body)
                assert wrote.code == ResponseCode.SUCCESS, wrote.remark
            await load.more(BETWEEN)
        await group.until(caught_up)
        await all_there(group, [*load.bodies, b"of the writer"])
        for name in NAMES:
            assert await attributes(group, name) == {"message.type": "NORMAL"}
