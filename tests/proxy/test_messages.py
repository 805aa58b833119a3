"""Sending, receiving and acknowledging through a proxy, call by call."""

import asyncio
import hashlib
import time
import zlib
from datetime import timedelta
from typing import Any

import grpc
import pytest

from raftmq.client import metadata as directory
from raftmq.proxy import message_conversion
from raftmq.proxy import receive_message as receives
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.endpoints import Receipt
from raftmq.proxy.message_conversion import TIME_MS_MAX
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.server import ProxyServer
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.headers import SendHeader
from tests.client.fakes import FakeCluster
from tests.proxy.world import PROXY, WAITS, Caller, World, consumer, message, producer
from tests.waiting import until


@pytest.fixture
async def world(tmp_path):
    async with World(tmp_path, enablePropertyFilter=True, enableMixedMessageType=True) as world:
        yield world


@pytest.fixture
async def caller(world):
    async with Caller(world.proxies[0]) as caller:
        yield caller


async def test_message_is_received_as_it_was_sent(world, caller):
    await world.topic("T")
    properties = {"colour": "red"}
    sent = await caller.send(
        "T", b"body", message_id="01AB", tag="a", keys=["k1", "k2"], properties=properties,
        born_host="host-1",
    )  # fmt: skip
    assert sent.status.code == pb.Code.OK
    assert sent.message_id == sent.transaction_id == "01AB"  # as Apache's brokers answer
    (one,) = await caller.received("T")
    system = one.system_properties
    assert one.body == b"body" and one.topic.name == "T"
    assert dict(one.user_properties) == properties
    assert (system.tag, list(system.keys), system.message_id) == ("a", ["k1", "k2"], "01AB")
    assert (system.born_host, system.delivery_attempt) == ("host-1", 1)
    assert system.message_type == pb.MessageType.NORMAL
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert (system.queue_offset, system.body_encoding) == (sent.offset, pb.Encoding.IDENTITY)
    assert await caller.ack(one) == pb.Code.OK
    broker = await world.group.leading()
    assert broker.state.pops.in_flight("T", "cg") == 0
    nothing = await caller.receive("T")
    assert nothing.code == pb.Code.MESSAGE_NOT_FOUND


async def test_message_with_a_birth_time_in_microseconds_is_received(world, caller):
    await world.topic("T", queues=1)
    broker = await world.group.leading()
    for number, born in enumerate((time.time_ns() // 1000, 1, (1 << 63) - 1, 1)):
        header = SendHeader("pg", "T", "TBW102", 4, 0, 0, born, 0, f"UNIQ_KEY\x01k{number}\x02")
        ext = header.to_ext(RequestCode.SEND_MESSAGE_V2)
        sent = await world.group.ask(broker, RequestCode.SEND_MESSAGE_V2, ext, b"%d" % number)
        assert sent.code == 0, sent
    result = await caller.receive("T")
    assert [one.body for one in result] == [b"0", b"1", b"2", b"3"]
    assert result[0].system_properties.born_timestamp.ToMilliseconds() == TIME_MS_MAX


async def test_unconvertible_message_does_not_block_other_messages(world, caller, monkeypatch):
    await world.topic("T", queues=1)
    bodies = [b"bad", b"1", b"worse", b"2", b"bad"]
    for body in bodies:
        await caller.send("T", body)
    tell = message_conversion.inbound

    def broken(record, *rest, **more):
        if not record.body.isdigit():
            raise ValueError("no such message")
        return tell(record, *rest, **more)

    monkeypatch.setattr(receives, "inbound", broken)
    assert [one.body for one in await caller.receive("T")] == [b"1", b"2"]
    (proxy,) = world.proxies
    broker = await world.group.leading()
    assert proxy.figures().returned == 0  # else it would come again at once, and be given up
    assert broker.state.pops.in_flight("T", "cg") == len(bodies)
    assert (await caller.receive("T")).code == pb.Code.MESSAGE_NOT_FOUND


async def test_compressed_body_is_marked_as_compressed(world, caller):
    await world.topic("T")
    packed = zlib.compress(b"x" * 100)
    await caller.send("T", packed, body_encoding=pb.Encoding.GZIP)
    (one,) = await caller.received("T")
    assert one.body == packed and one.system_properties.body_encoding == pb.Encoding.GZIP


async def test_receive_waits_for_a_later_message(world, caller):
    await world.topic("T")
    waiting = asyncio.create_task(caller.receive("T", poll_ms=5000))
    broker = await world.group.leading()
    await until(lambda: broker.popping.pops.waiting.count)
    await caller.send("T", b"late")
    (one,) = await waiting
    assert one.body == b"late"


async def test_messages_of_a_message_group_keep_their_order_and_queue(world, caller):
    await world.topic("F", kind="FIFO")
    await world.consumer_group("cg", consumeMessageOrderly=True)
    for number in range(6):
        sent = await caller.send("F", b"%d" % number, message_group="g")
        assert sent.status.code == pb.Code.OK
    result = await caller.received("F", count=6)
    assert [one.body for one in result] == [b"%d" % n for n in range(6)]
    assert len({one.system_properties.queue_id for one in result}) == 1
    assert result[0].system_properties.message_type == pb.MessageType.FIFO
    assert result[0].system_properties.message_group == "g"
    assert dict(result[0].user_properties) == {"__SHARDINGKEY": "g"}
    forwarded = await caller.send("F", properties=dict(result[0].user_properties))
    assert forwarded.status.code == pb.Code.OK
    again = await caller.received("F", "other", count=7)
    assert again[-1].system_properties.message_group == "g"


async def test_message_of_a_message_group_waits_for_its_own_broker_group():
    async with FakeCluster({"g0": 1, "g1": 1}) as cluster:
        settings = {"namesrv": cluster.namesrv, "topic_message_type_check": False}
        proxy = ProxyServer(ProxyConfig(**(PROXY | settings)), WAITS)
        await proxy.start()
        try:
            async with Caller(proxy) as caller:
                while not all(cluster.logs[name].bodies("T") for name in ("g0", "g1")):
                    await caller.send("T")  # both are known to lead
                for number, name in enumerate("abcd"):
                    scripts = [cluster.brokers[group][0].script for group in ("g0", "g1")]
                    for script in scripts:
                        script.clear()
                        script.append((2, "[BUSY]"))
                    sent = await caller.send("T", b"%d" % number, message_group=name)
                    assert sent.status.code == pb.Code.OK
                    assert sorted(map(len, scripts)) == [0, 1], "nothing went to the other group"
        finally:
            await proxy.stop()


async def test_repeated_fifo_attempt_gets_its_messages_and_new_ones(world, caller):
    await world.topic("F", queues=1, kind="FIFO")
    await world.consumer_group("cg", consumeMessageOrderly=True)
    await caller.send("F", b"1", message_group="g")
    (first,) = await caller.received("F", attempt_id="a1")
    await caller.send("F", b"2", message_group="g")
    assert (await caller.receive("F", attempt_id="a2")).code == pb.Code.MESSAGE_NOT_FOUND
    again = await caller.received("F", attempt_id="a1")
    assert [(one.body, one.system_properties.delivery_attempt) for one in again] == [
        (first.body, 1),
        (b"2", 1),
    ]
    assert [await caller.ack(one) for one in again] == [pb.Code.OK] * 2
    assert (await caller.receive("F", attempt_id="a3")).code == pb.Code.MESSAGE_NOT_FOUND


async def test_delayed_message_is_delivered_in_time_and_can_be_recalled(world, caller):
    await world.topic("D", kind="DELAY")
    now_ms = int(time.time() * 1000)
    sent = await caller.send(
        "D", b"soon", deliver_ms=now_ms + 1500, message_type=pb.MessageType.DELAY
    )
    late = await caller.send(
        "D", b"never", deliver_ms=now_ms + 3500, message_type=pb.MessageType.DELAY
    )
    assert sent.recall_handle and late.recall_handle
    recalled = await caller.ok(
        "RecallMessage", topic=pb.Resource(name="D"), recall_handle=late.recall_handle
    )
    assert recalled.message_id == late.message_id
    (one,) = await caller.received("D")
    assert one.body == b"soon" and time.time() * 1000 >= now_ms + 1400
    assert one.system_properties.message_type == pb.MessageType.DELAY


async def test_tag_and_sql_filters_select_messages(world, caller):
    await world.topic("T")
    for tag in ("a", "b", "Aa", "BB"):
        await caller.send("T", tag.encode(), tag=tag)
    expected = pb.FilterExpression(type=pb.FilterType.TAG, expression="a || Aa")
    result = await caller.received("T", count=2, filter_expression=expected)
    assert sorted(one.body for one in result) == [b"Aa", b"a"]  # "BB" has the same hash as "Aa"
    for size in (1, 7):
        await caller.send("T", b"%d" % size, properties={"size": str(size)})
    large = pb.FilterExpression(type=pb.FilterType.SQL, expression="size > 5")
    (one,) = await caller.received("T", "sql", filter_expression=large)
    assert one.body == b"7"
    broken = pb.FilterExpression(type=pb.FilterType.SQL, expression="a >")
    answer = await caller.receive("T", "other", filter_expression=broken)
    assert answer.code == pb.Code.ILLEGAL_FILTER_EXPRESSION


async def test_changed_invisible_time_gives_a_new_handle_and_voids_the_old(world, caller):
    await world.topic("T")
    await caller.send("T")
    (one,) = await caller.received("T")
    changed = await caller.ok(
        "ChangeInvisibleDuration",
        group=pb.Resource(name="cg"),
        topic=one.topic,
        receipt_handle=one.system_properties.receipt_handle,
        invisible_duration={"seconds": 1},
    )
    assert Receipt.decode(changed.receipt_handle).handle.invisible_ms == 1_000
    assert await caller.ack(one) == pb.Code.INVALID_RECEIPT_HANDLE
    (again,) = await caller.received("T")
    assert again.system_properties.delivery_attempt == 2
    assert again.system_properties.receipt_handle != changed.receipt_handle
    assert await caller.ack(again) == pb.Code.OK


async def test_invisible_time_change_of_unknown_outcome_is_not_repeated():
    """Its handle would be void by then, and the answer that there is no such message untrue."""
    code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
    async with FakeCluster({"g0": 1}) as cluster:
        (broker,) = cluster.brokers["g0"]
        broker.scripts[code] += [(1, "[OUTCOME_UNKNOWN] the leader changed"), (208, "no message")]
        proxy = ProxyServer(ProxyConfig(**(PROXY | {"namesrv": cluster.namesrv})), WAITS)
        await proxy.start()
        try:
            async with Caller(proxy) as caller:
                answer = await caller.call(
                    "ChangeInvisibleDuration",
                    group=pb.Resource(name="cg"),
                    topic=pb.Resource(name="T"),
                    receipt_handle="0 1795577939254 30000 0 0 g0 0 0",
                    invisible_duration={"seconds": 1},
                )
        finally:
            await proxy.stop()
        assert broker.count(code) == 1
        assert answer.status.code == pb.Code.MASTER_PERSISTENCE_TIMEOUT  # it may have taken effect


async def test_message_is_forwarded_to_the_dead_letter_queue(world, caller):
    await world.topic("T")
    await caller.send("T", b"bad", message_id="0B")
    (one,) = await caller.received("T")
    await caller.ok(
        "ForwardMessageToDeadLetterQueue",
        group=pb.Resource(name="cg"),
        topic=one.topic,
        receipt_handle=one.system_properties.receipt_handle,
        message_id="0B",
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    broker = await world.group.leading()
    assert broker.state.pops.in_flight("T", "cg") == 0
    assert broker.store.queues.queue("%DLQ%cg", 0).max_offset == 1


CALLED = {"topic": {"name": "T"}, "group": {"name": "cg"}}
HANDLE = "0 1795577939254 30000 0 0 b 0 508"
LONG = "x" * (1 << 20)
MANY = pb.Endpoints(addresses=[pb.Address(host="h" * 400, port=1)] * 20)
DAY_MS = 86_400_000
# What Apache's proxy 5.3.3 says are no names of a user's properties (MessageConst.STRING_HASH_SET).
NOT_THE_USERS = (
    "TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP "
    "MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG "
    "RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET "
    "1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID "
    "CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE "
    "INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS "
    "TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL "
    "__BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID __CRC32#"
).split()


def differs(expected, given):
    """Return the code and the text for a message of a different type than its topic's."""
    types = f"the expected type is {expected}, but actual type is {given}"
    return "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", f"TopicMessageType validate failed, {types}"


# Messages, the code of the answer, and what its text has: codes are those of Apache's proxy.
SENDS = [
    ({"properties": {name: "x"}}, "ILLEGAL_MESSAGE_PROPERTY_KEY", name) for name in NOT_THE_USERS
] + [
    ({"message_id": " \t"}, "ILLEGAL_MESSAGE_ID", "no id"),
    ({"message_id": "m" * 256}, "ILLEGAL_MESSAGE_ID", "255"),
    ({"tag": "a|b"}, "ILLEGAL_MESSAGE_TAG", ""),
    ({"tag": "a\x85"}, "ILLEGAL_MESSAGE_TAG", ""),
    ({"keys": [" "]}, "ILLEGAL_MESSAGE_KEY", ""),
    ({"properties": {"a\x01": "x"}}, "ILLEGAL_MESSAGE_PROPERTY_KEY", ""),
    ({"properties": {f"{n}": "x" for n in range(129)}}, "MESSAGE_PROPERTIES_TOO_LARGE", "128"),
    ({"properties": {"é": "é" * 8_191}}, "OK", ""),
    ({"properties": {"é": "é" * 8_192}}, "MESSAGE_PROPERTIES_TOO_LARGE", "16384"),
    ({"tag": "t" * 16_384}, "OK", ""),
    ({"tag": "t" * 16_385}, "MESSAGE_PROPERTIES_TOO_LARGE", "16384"),
    ({"keys": ["k" * 16_000, "k" * 384]}, "OK", ""),
    ({"keys": ["k" * 16_000, "k" * 385]}, "MESSAGE_PROPERTIES_TOO_LARGE", "16384"),
    (
        {"properties": {"a": "x" * 8_000}, "tag": "t" * 8_000, "keys": ["k" * 384]},
        "MESSAGE_PROPERTIES_TOO_LARGE",
        "16385",
    ),
    ({"trace_context": "t" * 33_000}, "MESSAGE_PROPERTIES_TOO_LARGE", "32767"),
    ({"topic": "F", "message_group": "é" * 31}, "OK", ""),
    ({"message_group": "é" * 32}, "ILLEGAL_MESSAGE_GROUP", "63 bytes"),
    ({"body": b""}, "MESSAGE_BODY_EMPTY", ""),
    ({"body": b"x" * ((4 << 20) + 1)}, "MESSAGE_BODY_TOO_LARGE", "4194304"),
    ({"topic": "a b"}, "ILLEGAL_TOPIC", ""),
    ({"topic": "rmq_sys_x"}, "ILLEGAL_TOPIC", "system"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, "ILLEGAL_TOPIC", "system"),
    (
        {"topic": "Nowhere"},
        "TOPIC_NOT_FOUND",
        "CODE: 17  DESC: No topic route info in name server for the topic: Nowhere",
    ),
    ({"topic": "D", "ahead_ms": DAY_MS - 60_000}, "OK", ""),
    ({"ahead_ms": DAY_MS + 60_000}, "ILLEGAL_DELIVERY_TIME", "maxDelayTimeMills"),
    ({"deliver_ms": -1}, "ILLEGAL_DELIVERY_TIME", ""),
    ({"message_type": pb.MessageType.DELAY}, "ILLEGAL_DELIVERY_TIME", ""),
    ({"message_type": pb.MessageType.FIFO}, "ILLEGAL_MESSAGE_GROUP", ""),
    ({"message_group": "g", "deliver_ms": 1}, "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", ""),
    (
        {
            "message_type": pb.MessageType.TRANSACTION,
            "orphaned_transaction_recovery_duration": timedelta(seconds=3_601),
        },
        "BAD_REQUEST",
        "3600 s",
    ),
    ({"topic": "F"}, *differs("FIFO", "NORMAL")),
    ({"message_group": "g"}, *differs("NORMAL", "FIFO")),
    ({"ahead_ms": 60_000}, *differs("NORMAL", "DELAY")),
    ({"message_type": pb.MessageType.TRANSACTION}, *differs("NORMAL", "TRANSACTION")),
    ({"topic": "M", "message_group": "g"}, "OK", ""),
]
# Receives by a proxy with the times that are the default.
RECEIVES: list[tuple[dict[str, Any], Any, str]] = [
    ({"invisible_duration": {"nanos": 1}}, "ILLEGAL_INVISIBLE_TIME", "invisibleTime is too small"),
    ({"invisible_duration": {"seconds": 9, "nanos": 999_000_000}}, "ILLEGAL_INVISIBLE_TIME", ""),
    (
        {"invisible_duration": {"seconds": 43_200, "nanos": 1_000_000}},
        "ILLEGAL_INVISIBLE_TIME",
        "the invisibleTime is too large",
    ),
    ({"timeout_s": 3}, "ILLEGAL_POLLING_TIME", ""),
    ({"group": "a b"}, "ILLEGAL_CONSUMER_GROUP", ""),
    ({"group": "CID_RMQ_SYS_TRANS"}, "ILLEGAL_CONSUMER_GROUP", "system"),
    (
        {"filter_expression": {"type": pb.FilterType.TAG, "expression": "a" * 16_385}},
        "ILLEGAL_FILTER_EXPRESSION",
        "16384",
    ),
    ({"attempt_id": "a" * 256}, "BAD_REQUEST", "attempt_id"),
]
CALLS: list[tuple[str, dict[str, Any], Any, str]] = [
    ("SendMessage", {}, "MESSAGE_CORRUPTED", ""),
    ("SendMessage", {"messages": [message("T"), message("U")]}, "MESSAGE_CORRUPTED", "one topic"),
    ("QueryRoute", {"topic": {"name": "T"}, "endpoints": MANY}, "ILLEGAL_ACCESS_POINT", ""),
    ("QueryAssignment", {**CALLED, "endpoints": MANY}, "ILLEGAL_ACCESS_POINT", ""),
    ("Heartbeat", {"group": {"name": LONG}, "client_type": 2}, "ILLEGAL_CONSUMER_GROUP", ""),
    ("RecallMessage", {"topic": {"name": "T"}, "recall_handle": LONG}, "BAD_REQUEST", ""),
    ("RecallMessage", {"topic": {"name": "T"}, "recall_handle": "x"}, "BAD_REQUEST", ""),
    ("EndTransaction", {"topic": {"name": "T"}}, "INVALID_TRANSACTION_ID", ""),
    (
        "EndTransaction",
        {"topic": {"name": "T"}, "transaction_id": LONG},
        "INVALID_TRANSACTION_ID",
        "",
    ),
    (
        "EndTransaction",
        {"topic": {"name": "T"}, "transaction_id": "YiAxIDIgMw", "message_id": "m" * 256},
        "ILLEGAL_MESSAGE_ID",
        "",
    ),
    # Java's client throws the text, and its users look for the name.
    *(
        (
            "AckMessage",
            {**CALLED, "entries": [{"receipt_handle": handle}]},
            "INVALID_RECEIPT_HANDLE",
            "INVALID_RECEIPT_HANDLE",
        )
        for handle in (LONG, "x", HANDLE)
    ),
    ("AckMessage", {**CALLED, "entries": [{"receipt_handle": HANDLE}] * 1_001}, "BAD_REQUEST", ""),
    ("ChangeInvisibleDuration", {**CALLED, "receipt_handle": LONG}, "INVALID_RECEIPT_HANDLE", ""),
    (
        "ChangeInvisibleDuration",
        {**CALLED, "receipt_handle": HANDLE, "invisible_duration": {"nanos": -1_000_000}},
        "ILLEGAL_INVISIBLE_TIME",
        "the invisibleTime is too small",
    ),
    (
        "ChangeInvisibleDuration",
        {**CALLED, "receipt_handle": HANDLE, "invisible_duration": {"seconds": 43_201}},
        "ILLEGAL_INVISIBLE_TIME",
        "the invisibleTime is too large",
    ),
    (
        "ForwardMessageToDeadLetterQueue",
        {**CALLED, "receipt_handle": HANDLE, "message_id": "m" * 256},
        "ILLEGAL_MESSAGE_ID",
        "",
    ),
]


async def test_invalid_request_is_answered_with_its_code_and_reason(world, caller):
    for name, kind in (("T", ""), ("F", "FIFO"), ("D", "DELAY"), ("M", "MIXED")):
        await world.topic(name, kind=kind)
    for system, code, text in SENDS:
        given = dict(system)
        if "ahead_ms" in given:
            given["deliver_ms"] = int(time.time() * 1000) + given.pop("ahead_ms")
        sent = await caller.send(given.pop("topic", "T"), given.pop("body", b"x"), **given)
        assert_told(sent.status, code, text, system)
    for name, fields, code, text in CALLS:
        assert_told((await caller.call(name, **fields)).status, code, text, (name, fields))
    strict = await world.add_proxy(receives.Waits())
    async with Caller(strict) as other:
        for fields, code, text in RECEIVES:
            assert_told(await other.receive("T", **fields), code, text, fields)
    async with Caller(world.proxies[0], metadata=(("x-mq-namespace", "n" * 256),)) as other:
        assert_told((await other.call("Heartbeat")).status, "BAD_REQUEST", "namespace", "")


def assert_told(status, code, text, asked):
    assert pb.Code.Name(status.code) == code, (str(asked)[:200], status)
    assert text in status.message and len(status.message) <= 1_000, (str(asked)[:200], status)


async def test_messages_of_any_type_are_sent_without_the_check(tmp_path):
    async with World(tmp_path, proxy={"topic_message_type_check": False}) as world:
        await world.topic("T")
        async with Caller(world.proxies[0]) as caller:
            sent = await caller.send("T", message_group="g", message_type=pb.MessageType.FIFO)
            assert sent.status.code == pb.Code.OK
            _, reported = await caller.telemetry(producer("T"))
            assert not reported.settings.publishing.validate_message_type


async def test_delivery_time_rejected_by_the_broker_is_reported(tmp_path):
    settings = {"delay_ms_max": 0}
    async with World(tmp_path, proxy=settings, timerMaxDelaySec=60) as world:
        async with Caller(world.proxies[0]) as caller:
            await world.topic("D", kind="DELAY")
            deliver_ms = int(time.time() * 1000) + 100_000
            sent = await caller.send("D", deliver_ms=deliver_ms)
            assert_told(sent.status, "ILLEGAL_DELIVERY_TIME", "timerMaxDelaySec", "")


async def test_several_messages_of_one_call_have_an_entry_each(world, caller):
    await world.topic("T")
    messages = [message("T", b"%d" % number) for number in range(3)]
    answer = await caller.ok("SendMessage", messages=messages)
    assert [one.message_id for one in answer.entries] == [
        one.system_properties.message_id for one in messages
    ]


async def test_messages_of_a_cancelled_receive_are_returned(world, caller):
    await world.topic("T")
    async with Caller(world.proxies[0], client_id="gone") as gone:
        waiting = asyncio.create_task(gone.receive("T", poll_ms=8000))
        await asyncio.sleep(0.3)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0.1)
    await caller.send("T", b"not lost")
    (one,) = await caller.received("T")
    assert one.body == b"not lost"


async def test_unimplemented_method_and_missing_client_id_are_rejected(world, caller):
    method = caller.channel.unary_unary("/apache.rocketmq.v2.MessagingService/GetOffset")
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await method(b"", metadata=caller.metadata)
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED
    caller.metadata = ()
    answer = await caller.call("Heartbeat")
    assert answer.status.code == pb.Code.CLIENT_ID_REQUIRED


async def test_push_consumer_keeps_a_message_while_its_heartbeats_arrive(world, caller):
    await world.topic("T")
    _, answer = await caller.telemetry(consumer("cg", "T"))
    assert answer.status.code == pb.Code.OK
    broker = await world.group.leading()
    await until(lambda: broker.clients.client_ids("cg") == ["c1"])
    await caller.send("T")
    (one,) = await caller.received("T", auto_renew=True)
    assert one.system_properties.invisible_duration.seconds == 60
    (queue,) = (q for _, q in broker.state.pops.all_queues() if q.batches)
    (batch,) = queue.batches.values()
    assert batch.client == "c1"
    await caller.ok("NotifyClientTermination", group=pb.Resource(name="cg"))
    await until(lambda: broker.clients.client_ids("cg") == [])


async def test_lost_receive_answer_is_repeated_through_another_proxy(world, caller):
    await world.topic("T")
    await caller.telemetry(consumer("cg", "T"))
    for number in range(5):
        await caller.send("T", b"%d" % number)
    first = await caller.received("T", auto_renew=True, attempt_id="a1")
    other = await world.add_proxy()
    async with Caller(other) as moved:
        again = await moved.received("T", auto_renew=True, attempt_id="a1")
        assert {one.system_properties.receipt_handle for one in again} == {
            one.system_properties.receipt_handle for one in first
        }
        for one in again:
            assert await moved.ack(one) == pb.Code.OK


async def test_idempotent_message_sent_twice_is_stored_once(world):
    await world.topic("T")
    async with Caller(await world.add_proxy(idempotent_sends=True)) as caller:
        first = await caller.send("T", message_id="01AB", properties={"a": "b"})
        again = await caller.send("T", message_id="01AB", properties={"a": "b"})
        assert first == again and again.status.code == pb.Code.OK
        (one,) = await caller.received("T")
        assert dict(one.user_properties) == {"a": "b"}
        assert (await caller.receive("T")).code == pb.Code.MESSAGE_NOT_FOUND


async def test_deleted_topic_is_unknown_and_not_recreated_by_a_send(world, caller, monkeypatch):
    monkeypatch.setattr(directory, "UNUSED_TOPIC_S", 0.1)
    await world.topic("T", queues=1)
    assert (await caller.send("T")).status.code == pb.Code.OK
    broker = await world.group.leading()
    code = RequestCode.DELETE_TOPIC_IN_BROKER
    assert (await world.group.ask(broker, code, {"topic": "T"})).code == 0

    async def unknown():
        answer = await caller.call("QueryRoute", topic={"name": "T"}, endpoints=caller.endpoints)
        return answer.status.code == pb.Code.TOPIC_NOT_FOUND

    await until(unknown)
    assert (await caller.send("T")).status.code == pb.Code.TOPIC_NOT_FOUND
    assert await unknown()
    await world.topic("T", queues=2, kind="FIFO")
    route = await caller.ok("QueryRoute", topic={"name": "T"}, endpoints=caller.endpoints)
    assert len(route.message_queues) == 2
    assert (await caller.send("T", message_group="g")).status.code == pb.Code.OK
