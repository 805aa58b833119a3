"""Request and reply against a scripted cluster."""

from __future__ import annotations

import asyncio

import pytest

from raftmq.client import Message, MessageExt, Producer, SendConfig, SendFailed, TooManyInFlight
from raftmq.client.compression import Compression
from raftmq.client.decode import decode_messages
from raftmq.client.errors import InvalidMessage, RequestTimedOut
from raftmq.client.producer.request_reply import WaitingRequests, reply_message
from raftmq.remoting.codes import RequestCode
from tests.client.fakes import FakeCluster, SharedLog
from tests.waiting import until

QUICK = SendConfig(
    attempt_timeout_ms=150, scout_timeout_ms=100, silence_ms=100, compression=Compression()
)


async def stored_request(cluster: FakeCluster) -> MessageExt:
    """The first request in the log, as a consumer sees it: the broker added its cluster's name."""
    log = cluster.logs["g0"]
    await until(lambda: log.bodies("T"))
    data = next(items[0] for (topic, _), items in log.records.items() if topic == "T" and items)
    (message,) = decode_messages(data, "g0")
    message.properties["CLUSTER"] = "c"
    return message


@pytest.mark.parametrize("body", [b"pong", b"a long answer " * 1000])
async def test_request_gets_its_reply(body: bytes) -> None:
    async with (
        FakeCluster({"g0": 3}) as cluster,
        Producer("asks", cluster.namesrv, config=QUICK) as asking,
        Producer("answers", cluster.namesrv, config=QUICK) as answering,
    ):
        waiting = asyncio.create_task(asking.request(Message("T", b"ping"), 10_000))
        request = await stored_request(cluster)
        assert request.properties["TTL"] == "10000"
        await answering.reply(request, body)
        reply = await waiting
        assert reply.body == body and not reply.sys_flag & 1
        assert reply.properties["CORRELATION_ID"] == request.properties["CORRELATION_ID"]
        (sent,) = cluster.brokers["g0"][0].received(RequestCode.SEND_REPLY_MESSAGE_V2)
        assert (sent.ext or {})["b"] == "c_REPLY_TOPIC"
        await answering.reply(request, b"again")  # nobody waits any more: no harm


async def test_reply_arrives_through_a_new_leader() -> None:
    async with (
        FakeCluster({"g0": 3}) as cluster,
        Producer("asks", cluster.namesrv, config=QUICK) as asking,
        Producer("answers", cluster.namesrv, config=QUICK) as answering,
    ):
        waiting = asyncio.create_task(asking.request(Message("T", b"ping"), 10_000))
        request = await stored_request(cluster)
        cluster.lead("g0", 2, tell_route=True)
        await cluster.brokers["g0"][0].stop()
        await answering.reply(request, b"pong")
        assert (await waiting).body == b"pong"


async def test_requests_without_a_reply_time_out() -> None:
    async with (
        FakeCluster({"g0": 1}) as cluster,
        Producer("asks", cluster.namesrv, config=QUICK) as asking,
    ):
        await asking.send(Message("T", b"before"))  # route and connection are there
        with pytest.raises(RequestTimedOut) as raised:
            await asking.request(Message("T", b"ping"), 400)
        assert raised.value.outcome_unknown
        cluster.brokers["g0"][0].mode = (13, "no")
        with pytest.raises(SendFailed):
            await asking.request(Message("T", b"ping"), 3000)
        assert len(asking._requests) == 0


@pytest.mark.parametrize("frozen", [0, 2], ids=["leader", "follower"])
async def test_request_keeps_its_deadline_with_any_frozen_replica(frozen: int) -> None:
    """Only the leader's heartbeat is waited for, and nothing is sent when the time is over."""
    async with FakeCluster({"g0": 3}) as cluster:
        cluster.name_server.topics["U"] = {"g0": (4, 6)}
        cluster.brokers["g0"][frozen].heartbeat_s = 3600.0
        async with Producer("asks", cluster.namesrv, config=QUICK) as asking:
            await asking.send(Message("U", b"before"))  # the connection is there
            start = asyncio.get_running_loop().time()
            with pytest.raises(RequestTimedOut if frozen else SendFailed):
                await asking.request(Message("T", b"ping"), 500)
            assert asyncio.get_running_loop().time() - start < 2  # a heartbeat is given 3 s
            assert cluster.logs["g0"].bodies("T") == ([b"ping"] if frozen else [])
            assert asking.in_flight == 0
            with pytest.raises(RequestTimedOut):  # the wait is not repeated
                await asking.request(Message("T", b"again"), 500)


async def test_requests_are_limited_in_number() -> None:
    waiting = WaitingRequests(lambda: "me", 2)
    first, _ = waiting.start(Message("T", b"x"), 1)
    waiting.start(Message("T", b"x"), 1)
    with pytest.raises(TooManyInFlight):
        waiting.start(Message("T", b"x"), 1)
    waiting.end(first)
    waiting.start(Message("T", b"x"), 1)


def test_only_requests_can_be_replied_to() -> None:
    log = SharedLog()
    log.append("T", 0, b"no request", "CLUSTER\x01c\x02")
    log.append("T", 0, b"no cluster", "CORRELATION_ID\x01a\x02REPLY_TO_CLIENT\x01b\x02")
    for message in decode_messages(b"".join(log.records[("T", 0)]), "g0"):
        with pytest.raises(InvalidMessage):
            reply_message(message, b"x")
