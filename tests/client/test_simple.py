"""The simple consumer against a scripted cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from raftmq.client.decode import decode_messages
from raftmq.client.message import MessageExt
from raftmq.client.simple import SimpleConsumer
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.fastjson import loads_object
from raftmq.remoting.names import pop_retry_topic
from raftmq.remoting.popheaders import POP_CK, BatchAck, Handle, PopHeader, batch_acks
from tests.client.fakes import FakeCluster, SharedLog
from tests.client.test_consumer import fill
from tests.waiting import until

POP = RequestCode.POP_MESSAGE


def popped_message(topic: str, offset: int, *, retry: bool = False) -> MessageExt:
    """A message of queue 0 that was popped with all of its queue, from offset 0 on."""
    log = SharedLog()
    log.append(topic, 0, b"x")
    (message,) = decode_messages(log.records[topic, 0][0], "g0")
    message = replace(message, queue_offset=offset)
    message.properties[POP_CK] = Handle(0, 5, 60_000, 0, retry, "g0", 0, offset).encode()
    return message


async def test_messages_of_several_topics_are_acknowledged_each_in_its_own() -> None:
    """A broker takes what it does not know for acknowledged before, and says all is well."""
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        messages = [popped_message(topic, offset) for topic in "TU" for offset in (0, 2)]
        messages += [popped_message(topic, 1, retry=True) for topic in "TU"]
        assert await consumer.ack(messages) == []
        (request,) = cluster.brokers["g0"][0].received(RequestCode.BATCH_ACK_MESSAGE)
        stored = [(topic, 0b101) for topic in "TU"]
        stored += [(pop_retry_topic(topic, "g"), 0b010) for topic in "TU"]
        assert batch_acks(loads_object(request.body)) == [
            BatchAck("g", topic, 0, 0, 5, 60_000, 0, bits) for topic, bits in stored
        ]


async def test_a_waiting_pop_follows_the_leader_that_takes_over_from_a_silent_one() -> None:
    """A frozen leader keeps its connections: only the route tells that another one leads."""
    async with FakeCluster({"g0": 3}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        frozen, leader, _ = cluster.brokers["g0"]
        frozen.scripts[POP].append("silent")
        await consumer.subscribe("T")
        waiting = asyncio.create_task(consumer.receive(await_ms=60_000))
        await until(lambda: frozen.count(POP))
        cluster.lead("g0", 1, tell_route=True)
        await consumer._instance.directory.refresh("T")
        await until(lambda: leader.count(POP), patience_s=10)
        assert 0 < PopHeader.parse(leader.received(POP)[0].ext).poll_ms < 60_000, "what is left"
        fill(cluster, 1)
        assert [m.body for m in await waiting] == [b"0"]
