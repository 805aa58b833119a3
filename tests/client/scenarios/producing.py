"""Scenarios of producers, each with a leader killed in the middle (where there are several)."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from raftmq.client import (
    BrokerRefused,
    Compression,
    CompressionType,
    ConsumeFrom,
    ConsumerConfig,
    InvalidMessage,
    Message,
    MessageExt,
    Producer,
    PullConfig,
    PushConsumer,
    SendConfig,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from tests.client.scenarios.providers import PATIENCE_S, Cluster, fresh, topic_of
from tests.waiting import until

QUICK = ConsumerConfig(
    consume_from=ConsumeFrom.FIRST_OFFSET,
    rebalance_interval_ms=1000,
    commit_interval_ms=200,
    stop_grace_ms=1000,
    pull=PullConfig(suspend_ms=5000),
)
SEND_MS = 120_000  # a broker that is started again may need long on a busy machine


class Seen:
    """A listener that keeps everything."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    def __call__(self, messages: list[MessageExt]) -> None:
        self.messages += messages

    @property
    def bodies(self) -> Counter[bytes]:
        return Counter(message.body for message in self.messages)

    async def has(self, bodies: list[bytes]) -> None:
        expected = set(bodies)
        await until(lambda: expected <= set(self.bodies), lambda: expected - set(self.bodies))


def consumer_of(
    cluster: Cluster, topic: str, listener: Any, config: ConsumerConfig = QUICK
) -> PushConsumer:
    consumer = PushConsumer(fresh("G"), cluster.namesrv, listener, config=config)
    consumer.subscribe(topic)
    return consumer


async def single_sends(cluster: Cluster) -> None:
    topic, seen = await topic_of(cluster), Seen()
    bodies = [b"%d" % n for n in range(40)]
    async with Producer(fresh("P"), cluster.namesrv) as producer:
        async with consumer_of(cluster, topic, seen):
            for number, body in enumerate(bodies):
                if number == 20:
                    await cluster.fail_over()
                message = Message(topic, body, tags="A", keys=f"k{number}")
                await producer.send(message, SEND_MS)
            await seen.has(bodies)
    keys = {message.keys for message in seen.messages}
    assert keys == {f"k{n}" for n in range(40)}
    assert {message.tags for message in seen.messages} == {"A"}


async def sends_with_callbacks(cluster: Cluster) -> None:
    topic, seen = await topic_of(cluster), Seen()
    stored: list[SendResult] = []
    errors: list[Any] = []
    done = asyncio.Event()

    def told(result: SendResult | None, error: Any) -> None:
        if result is not None:
            stored.append(result)
        else:
            errors.append(error)
        if len(stored) + len(errors) == 300:
            done.set()

    async with Producer(fresh("P"), cluster.namesrv) as producer:
        await producer.queues(topic)
        killing = None
        for number in range(300):
            if number == 150:
                killing = asyncio.create_task(cluster.fail_over())
            producer.send_nowait(Message(topic, b"%d" % number), told, SEND_MS)
            if not number % 10:
                await asyncio.sleep(0.005)
        async with asyncio.timeout(PATIENCE_S):
            await done.wait()
        assert killing is not None
        await killing
        assert errors == []
        async with consumer_of(cluster, topic, seen):
            await seen.has([b"%d" % n for n in range(300)])
    # Once each, or again where an attempt's outcome was unknown: never more often than tried.
    tries = {result.msg_id: result.attempts for result in stored}
    complete = [message.msg_id for message in seen.messages if "UNIQ_KEY" in message.properties]
    assert len(seen.messages) - len(complete) <= cluster.torn_max
    for key, count in Counter(complete).items():
        assert count <= tries[key]


async def one_way_sends(cluster: Cluster) -> None:
    topic, seen = await topic_of(cluster), Seen()
    async with Producer(fresh("P"), cluster.namesrv) as producer:
        async with consumer_of(cluster, topic, seen):
            for number in range(10):
                await producer.send_oneway(Message(topic, b"%d" % number))
            await seen.has([b"%d" % n for n in range(10)])
            await cluster.fail_over()
            await producer.send(Message(topic, b"new leader"), SEND_MS)
            for number in range(10, 20):
                await producer.send_oneway(Message(topic, b"%d" % number))
            await seen.has([b"%d" % n for n in range(10, 20)])


async def batches(cluster: Cluster) -> None:
    topic, seen = await topic_of(cluster), Seen()
    messages = [Message(topic, b"%04d" % n + b"x" * 500, tags="A") for n in range(200)]
    async with Producer(fresh("P"), cluster.namesrv) as producer:
        results = await producer.send_split(messages[:100], 16_000, SEND_MS)
        await cluster.fail_over()
        results += await producer.send_split(messages[100:], 16_000, SEND_MS)
        assert len(results) >= 7
        async with consumer_of(cluster, topic, seen):
            await seen.has([message.body for message in messages])
    first = results[0]
    positions = {(m.msg_id, m.queue_id, m.queue_offset) for m in seen.messages}
    for number, key in enumerate(first.msg_id.split(",")):
        position = (key, first.queue.queue_id, first.queue_offset + number)
        assert position in positions, (position, sorted(p for p in positions if p[0] == key))


async def ordered_sends(cluster: Cluster) -> None:
    topic, seen = await topic_of(cluster), Seen()
    async with Producer(fresh("P"), cluster.namesrv) as producer:
        for number in range(30):
            if number == 15:
                await cluster.fail_over()
            for key in range(3):
                result = await producer.send(
                    Message(topic, b"%d/%d" % (key, number)),
                    SEND_MS,
                    selector=lambda queues, _message, k: queues[k % len(queues)],
                    arg=key,
                )
                assert result.queue.queue_id == key
        async with consumer_of(cluster, topic, seen):
            await seen.has([b"%d/%d" % (key, n) for key in range(3) for n in range(30)])
    for key in range(3):
        ours = sorted((m for m in seen.messages if m.queue_id == key), key=lambda m: m.queue_offset)
        numbers = [int(message.body.split(b"/")[1]) for message in ours]
        assert numbers == sorted(numbers), "an attempt twice at most, never out of order"


async def idempotent_sends(cluster: Cluster) -> None:
    """Sent again by the application, over a failover: stored once, answered as the first time."""
    topic, seen = await topic_of(cluster), Seen()
    config = SendConfig(idempotent=True)
    async with Producer(fresh("P"), cluster.namesrv, config=config) as producer:
        messages = [Message(topic, b"%d" % n) for n in range(10)]
        first = [await producer.send(message, SEND_MS) for message in messages]
        for message, result in zip(messages, first, strict=True):
            message.unique_key = result.msg_id
        await cluster.fail_over()
        again = [await producer.send(message, SEND_MS) for message in messages]
        await producer.send(Message(topic, b"end"), SEND_MS)
        async with consumer_of(cluster, topic, seen):
            await seen.has([b"end", *(message.body for message in messages)])
    assert set(seen.bodies.values()) == {1}
    assert [r.offset_msg_id for r in again] == [r.offset_msg_id for r in first]


async def compressed_bodies(cluster: Cluster) -> None:
    topic, seen = await topic_of(cluster), Seen()
    bodies = []
    for kind in CompressionType:
        config = SendConfig(compression=Compression(kind, 4096))
        async with Producer(fresh("P"), cluster.namesrv, config=config) as producer:
            for size in (10, 4095, 4096, 200_000):
                body = (kind.name.encode() + b" the same again") * (size // 10)
                bodies.append(body[:size])
                await producer.send(Message(topic, bodies[-1]), SEND_MS)
            if kind is CompressionType.ZSTD:
                await cluster.fail_over()
    async with consumer_of(cluster, topic, seen):
        await seen.has(bodies)
    assert all(message.sys_flag & 1 == 0 for message in seen.messages)
    big = [message for message in seen.messages if len(message.body) == 200_000]
    assert {m.sys_flag & 0x700 for m in big} == {0x100, 0x200, 0x300}
    assert all(message.store_size_bytes < 20_000 for message in big)


async def delayed_messages(cluster: Cluster) -> None:
    topic, seen = await topic_of(cluster), Seen()
    async with Producer(fresh("P"), cluster.namesrv) as producer:
        async with consumer_of(cluster, topic, seen):
            for number in range(6):
                message = Message(topic, b"%d" % number, tags="A", delay_level=1 + number % 2)
                await producer.send(message, SEND_MS)
            await cluster.fail_over()
            await seen.has([b"%d" % n for n in range(6)])
    for given in seen.messages:
        seconds = 1 + int(given.body) % 2
        assert given.topic == topic and given.tags == "A"
        assert given.store_timestamp_ms - given.born_timestamp_ms >= seconds * 1000 - 50
        assert "DELAY" not in given.properties or given.properties["DELAY"] == str(seconds)


async def timer_messages(cluster: Cluster) -> None:
    """At any time, at once if that is over; what is recalled never comes."""
    topic, seen = await topic_of(cluster), Seen()
    times: dict[bytes, datetime] = {}
    async with Producer(fresh("P"), cluster.namesrv) as producer:
        async with consumer_of(cluster, topic, seen):

            async def send(body: bytes, at: datetime) -> SendResult:
                times[body] = at
                message = Message(topic, body, tags="A", deliver_time=at)
                sent = await producer.send(message, SEND_MS)
                assert sent.recall_handle or datetime.now(UTC) >= at
                return sent

            for number in range(5):
                ahead = timedelta(milliseconds=2_000 + 410 * (number * 2 % 5))
                await send(b"%d" % number, datetime.now(UTC) + ahead)
            over = await send(b"over", datetime.now(UTC) - timedelta(hours=1))
            assert not over.recall_handle
            recalled, at = await recalled_one(producer, topic)
            await send(b"behind it", at + timedelta(milliseconds=1_100))
            delay = timedelta(milliseconds=2_700)
            await producer.send(Message(topic, b"delayed", tags="A", delay_time=delay), SEND_MS)
            await cluster.fail_over()
            await seen.has([*times, b"delayed"])
    assert recalled not in seen.bodies
    for message in seen.messages:
        assert message.topic == topic and message.tags == "A"
        if message.body in times:
            assert message.store_timestamp_ms / 1000 >= times[message.body].timestamp()
        else:
            assert message.store_timestamp_ms - message.born_timestamp_ms >= 2_700 - 50


async def recalled_one(producer: Producer, topic: str) -> tuple[bytes, datetime]:
    """The body of a message that was recalled, and when it would have come. A busy machine may be
    too late for one."""
    for seconds in (3, 10, 30):
        body, at = b"recalled-%d" % seconds, datetime.now(UTC) + timedelta(seconds=seconds)
        sent = await producer.send(Message(topic, body, deliver_time=at), SEND_MS)
        try:
            assert await producer.recall(topic, sent.recall_handle) == sent.msg_id
        except (BrokerRefused, InvalidMessage) as error:
            assert datetime.now(UTC) >= at - timedelta(seconds=1), error
        else:
            return body, at
    raise AssertionError("none was recalled in time")


class Books:
    """A transaction listener: what became of each transaction, by body."""

    def __init__(self) -> None:
        self.answers: dict[bytes, TransactionState] = {}
        self.truth: dict[bytes, TransactionState] = {}
        self.during: Any = None
        self.checked: list[bytes] = []

    async def execute(self, message: Message, arg: Any) -> TransactionState:
        if message.body == b"killed":
            await self.during()
        self.truth[message.body] = arg
        return self.answers.get(message.body, arg)

    def check(self, message: MessageExt) -> TransactionState:
        self.checked.append(message.body)
        return self.truth[message.body]


async def transactions(cluster: Cluster) -> None:
    topic, seen, books = await topic_of(cluster), Seen(), Books()
    commit, rollback = TransactionState.COMMIT, TransactionState.ROLLBACK
    books.during = cluster.fail_over
    # These two say "ask me later"; the broker asks.
    books.answers = {b"late yes": TransactionState.UNKNOWN, b"late no": TransactionState.UNKNOWN}
    async with TransactionProducer(fresh("TP"), cluster.namesrv, books) as producer:
        async with consumer_of(cluster, topic, seen):
            reported = {}
            for body, arg in (
                (b"yes", commit),
                (b"no", rollback),
                (b"late yes", commit),
                (b"late no", rollback),
                (b"killed", commit),
                (b"after", commit),
            ):
                message = Message(topic, body, tags="A", properties={"of": "mine"})
                reported[body] = await producer.send_in_transaction(message, arg, SEND_MS)
            await seen.has([b"yes", b"late yes", b"killed", b"after"])
            await until(lambda: b"late no" in books.checked)
    assert set(seen.bodies) == {b"yes", b"late yes", b"killed", b"after"}
    assert reported[b"yes"].confirmed and reported[b"no"].confirmed
    assert not reported[b"late yes"].confirmed
    assert {(m.tags, m.properties["of"], m.topic) for m in seen.messages} == {("A", "mine", topic)}


async def request_and_reply(cluster: Cluster) -> None:
    topic = await topic_of(cluster)
    async with (
        Producer(fresh("P"), cluster.namesrv) as asking,
        Producer(fresh("P"), cluster.namesrv) as answering,
    ):

        async def answer(messages: list[MessageExt]) -> None:
            for message in messages:
                if message.body == b"3":
                    await cluster.fail_over()
                await answering.reply(message, b"re:" + message.body * 2000, SEND_MS)

        async with consumer_of(cluster, topic, answer):
            for number in range(6):
                reply = await asking.request(Message(topic, b"%d" % number), SEND_MS)
                assert reply.body == b"re:" + b"%d" % number * 2000


SCENARIOS = (
    single_sends,
    sends_with_callbacks,
    one_way_sends,
    batches,
    ordered_sends,
    idempotent_sends,
    compressed_bodies,
    delayed_messages,
    timer_messages,
    transactions,
    request_and_reply,
)
