"""The blocking clients."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from raftmq.client import (
    BlockingConsumer,
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingTransactionProducer,
    ClientClosed,
    ConsumeFrom,
    ConsumerConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PullConfig,
    PullConsumer,
    PushConsumer,
    RequestTimedOut,
    SendFailed,
    TransactionProducer,
    TransactionState,
)
from raftmq.remoting.codes import RequestCode
from tests.client.fakes import FakeCluster
from tests.client.producer.test_transaction import check_back
from tests.steadyloop import SteadyLoop
from tests.waiting import until

PATIENCE_MS = 120_000  # a bound against hanging: the clients' loops are not the servers'
PAIRS = [
    (Producer, BlockingProducer),
    (TransactionProducer, BlockingTransactionProducer),
    (PushConsumer, BlockingConsumer),
    (LitePullConsumer, BlockingLitePullConsumer),
    (PullConsumer, BlockingPullConsumer),
]
CALLED_BACK = {"consume", "released", "reset_offsets"}  # by own parts


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops in threads, too, take no time for standing still with all of the process."""
    monkeypatch.setattr(asyncio, "Runner", partial(asyncio.Runner, loop_factory=SteadyLoop))


@pytest.mark.parametrize(("client", "blocks"), PAIRS, ids=lambda one: one.__name__)
def test_every_client_coroutine_has_a_blocking_method(client, blocks) -> None:
    result = {
        name: method
        for name, method in inspect.getmembers(client, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in CALLED_BACK
    }
    assert result
    for name, method in result.items():
        blocking = getattr(blocks, name)
        assert not inspect.iscoroutinefunction(blocking)
        if name not in ("start", "stop", "fetch"):  # fetch leaves out the expression's type
            assert inspect.signature(blocking) == inspect.signature(method)
            assert blocking.__doc__ == method.__doc__


async def test_blocking_producer_and_consumer() -> None:
    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        stop_grace_ms=60_000,
        pull=PullConfig(suspend_ms=200),
    )
    seen: list[bytes] = []

    def listen(messages: list[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    async with FakeCluster({"g0": 1}) as cluster:

        def produce() -> None:
            with BlockingProducer("p", cluster.namesrv) as producer:
                for number in range(5):
                    producer.send(Message("T", b"%d" % number), PATIENCE_MS)
                producer.send_batch([Message("T", b"a")], PATIENCE_MS)
                with pytest.raises(SendFailed):
                    producer.send(Message("missing", b"x"), timeout_ms=50)
            with pytest.raises(ClientClosed):
                producer.send(Message("T", b"x"))

        await asyncio.to_thread(produce)
        cluster.logs["g0"].records.clear()
        for number in range(5):
            cluster.logs["g0"].append("T", number % 4, b"%d" % number)
        consumer = BlockingConsumer("g", cluster.namesrv, listen, config=config, threads=2)
        consumer.subscribe("T")
        await asyncio.to_thread(consumer.start)
        await until(lambda: len(seen) == 5)
        await asyncio.to_thread(consumer.stop)
        assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]
        assert sum(cluster.logs["g0"].offsets.values()) == 5


async def test_blocking_listener_may_stop_its_consumer() -> None:
    """A script that ends after so many messages; the last ones count."""
    pull = PullConfig(suspend_ms=200, consume_batch_size=1, consume_tasks=1)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET, stop_grace_ms=60_000, pull=pull)
    seen: list[int] = []
    enough = threading.Event()

    def listen(messages: list[MessageExt]) -> None:
        seen.append(messages[0].queue_offset)
        if len(seen) >= 3:
            consumer.stop()
            enough.set()

    def consume() -> None:
        with consumer:
            assert enough.wait(PATIENCE_MS / 1000)

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        for number in range(1000):
            cluster.logs["g0"].append("T", 0, b"%d" % number)
        consumer = BlockingConsumer("g", cluster.namesrv, listen, config=config)
        consumer.subscribe("T")
        await asyncio.to_thread(consume)
        assert len(seen) < 1000 and cluster.logs["g0"].offsets["g", "T", 0] == len(seen)
        assert not cluster.brokers["g0"][0].members["g"]
        await until(lambda: not {"consumer g", "stop"} & {t.name for t in threading.enumerate()})


async def test_blocking_listener_that_exits_has_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pull = PullConfig(suspend_ms=200, consume_batch_size=1, consume_tasks=1)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET, commit_interval_ms=20, pull=pull)
    seen: list[bytes] = []

    def listen(messages: list[MessageExt]) -> None:
        seen.append(messages[0].body)
        if messages[0].body == b"bad":
            sys.exit(3)

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        log = cluster.logs["g0"]
        for body in (b"bad", b"good"):
            log.append("T", 0, body)
        consumer = BlockingConsumer("g", cluster.namesrv, listen, config=config)
        consumer.subscribe("T")
        await asyncio.to_thread(consumer.start)
        await until(lambda: log.offsets.get(("g", "T", 0)) == 2)
        await asyncio.to_thread(consumer.stop)
        assert seen == [b"bad", b"good"] and log.bodies("%RETRY%g") == [b"bad"]
    assert "listener_raised group=g topic=T" in caplog.text


async def test_blocking_pull_and_lite_pull() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        for number in range(10):
            cluster.logs["g0"].append("T", 0, b"%d" % number)

        def pull() -> list[bytes]:
            with BlockingPullConsumer("g", cluster.namesrv) as consumer:
                (queue,) = consumer.queues("T")
                got = consumer.fetch(queue, 4)
                consumer.seek(queue, 2)
                got += consumer.fetch(queue, 1)
                consumer.commit(queue)
                assert consumer.committed(queue) == 3
            return [message.body for message in got]

        def poll() -> list[bytes]:
            config = LitePullConfig(pull=PullConfig(suspend_ms=200))
            with BlockingLitePullConsumer("g", cluster.namesrv, config=config) as consumer:
                consumer.assign(consumer.fetch_queues("T"))
                (queue,) = consumer.assignment
                got = consumer.poll(10_000, 3)
                assert consumer.commit() == {queue: 6}
                consumer.pause([queue])
                consumer.seek(queue, 8)
                assert consumer.poll(20) == []
                consumer.resume([queue])
                got += consumer.poll(10_000)
                assert consumer.committed(queue) == 6
            return [message.body for message in got]

        assert await asyncio.to_thread(pull) == [b"0", b"1", b"2", b"3", b"2"]
        assert await asyncio.to_thread(poll) == [b"3", b"4", b"5", b"8", b"9"]


class Interrupted(BaseException):
    """Raised by a signal's handler."""


@contextmanager
def interrupted(after: Callable[[Future[object]], object]) -> Iterator[None]:
    """Interrupt the wait for the next result, after `after(future)`."""

    def result(future: Future[object]) -> object:
        patched.undo()
        after(future)
        raise Interrupted

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Future, "result", result)
        yield


async def test_messages_of_an_interrupted_poll_or_fetch_are_redelivered() -> None:
    config = LitePullConfig(pull=PullConfig(suspend_ms=200), auto_commit_interval_ms=0)
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker, log = cluster.brokers["g0"][0], cluster.logs["g0"]

        def append() -> None:
            for number in range(10):
                log.append("T", 0, b"%d" % number)
            broker.appended()

        def poll() -> list[bytes]:
            with BlockingLitePullConsumer("g", cluster.namesrv, config=config) as consumer:
                (queue,) = consumer.fetch_queues("T")
                consumer.assign([queue])
                with interrupted(lambda _: None):  # before there is anything
                    consumer.poll(PATIENCE_MS)
                loop.call_soon_threadsafe(append)
                with interrupted(lambda future: wait((future,))):
                    consumer.poll(PATIENCE_MS, 4)
                got = consumer.poll(PATIENCE_MS, 6)
                assert consumer.committed(queue) in (None, 0)
                got += consumer.poll(PATIENCE_MS, 6)
                return [message.body for message in got]

        def fetch() -> list[bytes]:
            with BlockingPullConsumer("other", cluster.namesrv) as consumer:
                (queue,) = consumer.queues("T")
                for after in (lambda _: None, lambda future: wait((future,))):
                    with interrupted(after):
                        consumer.fetch(queue, 4)
                return [message.body for message in consumer.fetch(queue, 32)]

        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(poll) == [b"%d" % number for number in range(10)]
        assert await asyncio.to_thread(fetch) == [b"%d" % number for number in range(10)]


async def test_blocking_transactions_and_requests() -> None:
    threads: list[str] = []

    class Blocks:
        def execute(self, message: Message, arg: object) -> TransactionState:
            threads.append(threading.current_thread().name)
            return TransactionState.COMMIT

        def check(self, message: MessageExt) -> TransactionState:
            threads.append(threading.current_thread().name)
            return TransactionState.ROLLBACK

    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]

        def produce() -> None:
            with BlockingTransactionProducer("tp", cluster.namesrv, Blocks()) as producer:
                result = producer.send_in_transaction(Message("T", b"half"), timeout_ms=PATIENCE_MS)
                assert result.confirmed
                loop.call_soon_threadsafe(lambda: broker.push(check_back(cluster)))
                with pytest.raises(RequestTimedOut):
                    producer.request(Message("T", b"ping"), 2_000)  # enough to be sent in
                assert requested.wait(PATIENCE_MS / 1000)

        loop = asyncio.get_running_loop()
        requested = threading.Event()
        producing = asyncio.create_task(asyncio.to_thread(produce))
        await until(lambda: broker.count(RequestCode.END_TRANSACTION) == 2)
        requested.set()
        await producing
    assert len(threads) == 2 and all(name.startswith("transactions") for name in threads)


class Commits:
    def execute(self, message: Message, arg: object) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT


@pytest.mark.parametrize("kind", ["consumer", "lite pull", "transactions"])
async def test_blocking_client_with_a_pool_rejects_a_second_start(
    kind: str,
) -> None:
    """Its pool was gone, and every message failed and went to the dead letters."""
    async with FakeCluster({"g0": 1}) as cluster:
        namesrv = cluster.namesrv
        makers: dict[str, Callable[[], Any]] = {
            "consumer": lambda: BlockingConsumer("g", namesrv, print),
            "lite pull": lambda: BlockingLitePullConsumer("g", namesrv),
            "transactions": lambda: BlockingTransactionProducer("g", namesrv, Commits()),
        }

        def twice() -> None:
            client = makers[kind]()
            with client:
                pass
            with pytest.raises(ClientClosed, match="does not start again"):
                client.start()

        await asyncio.to_thread(twice)


async def test_blocking_producer_can_start_again() -> None:
    async with FakeCluster({"g0": 1}) as cluster:

        def twice() -> None:
            producer = BlockingProducer("p", cluster.namesrv)
            for _ in range(2):
                with producer:
                    producer.send(Message("T", b"x"), PATIENCE_MS)

        await asyncio.to_thread(twice)
        assert len(cluster.logs["g0"].bodies("T")) == 2
