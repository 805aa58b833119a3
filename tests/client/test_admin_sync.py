"""Admin requests and the blocking facade."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from raftmq.client import (
    Admin,
    BlockingConsumer,
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingTransactionProducer,
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    ConsumeFrom,
    ConsumerConfig,
    LitePullConfig,
    Message,
    MessageExt,
    NameServerUnreachable,
    NoRoute,
    PullConfig,
    RequestTimedOut,
    SendFailed,
    TransactionState,
)
from raftmq.remoting.codes import RequestCode
from tests.client.fakes import FakeCluster, queue, until
from tests.client.test_transaction import check_back
from tests.steadyloop import SteadyLoop

PATIENCE_MS = 120_000  # a bound against hanging: the clients' loops are not the servers'


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops in threads, too, take no time for standing still with all of the process."""
    monkeypatch.setattr(asyncio, "Runner", partial(asyncio.Runner, loop_factory=SteadyLoop))


async def test_cluster_topics_and_route() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Admin(cluster.namesrv) as admin:
        info = await admin.cluster_info()
        assert info.clusters == {"c": ("g0",)}
        assert info.brokers["g0"].leader == cluster.brokers["g0"][0].address
        assert len(info.brokers["g0"].addresses) == 3
        assert await admin.topics() == ("T",)
        assert len((await admin.route("T")).write_queues("T")) == 4
        with pytest.raises(NoRoute):
            await admin.route("missing")


async def test_offsets() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Admin(cluster.namesrv) as admin:
        cluster.logs["g0"].append("T", 0, b"x")
        assert await admin.max_offset(queue(0)) == 1
        assert await admin.min_offset(queue(0)) == 0
        assert await admin.consumer_offset("g", queue(0)) is None
        await admin.update_consumer_offset("g", queue(0), 1)
        assert await admin.consumer_offset("g", queue(0)) == 1


async def test_topic_is_created_at_the_leader_wherever_it_is() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Admin(cluster.namesrv) as admin:
        cluster.lead("g0", 2, tell_route=False)
        await admin.create_topic("new", 6)
        request = cluster.brokers["g0"][2].requests[-1]
        assert request.code == RequestCode.UPDATE_AND_CREATE_TOPIC
        assert (request.ext or {})["readQueueNums"] == "6"


async def test_message_by_id_and_runtime_info() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Admin(cluster.namesrv) as admin:
        address = cluster.brokers["g0"][0].address
        _, position = cluster.logs["g0"].append("T", 0, b"look", "TAGS\x01A\x02")
        found = await admin.view_message_at(address, position)
        assert found.body == b"look" and found.tags == "A"
        with pytest.raises(BrokerRefused):
            await admin.view_message_at(address, 999)
        with pytest.raises(BrokerRefused):
            await admin.view_message("nonsense")
        assert (await admin.broker_runtime_info(address))["raftRole"] == "leader"
        assert await admin.consumers("nobody", address) == ()


async def test_unreachable_servers_are_said_so() -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(NameServerUnreachable):
            await admin.cluster_info()
        with pytest.raises(BrokerUnreachable):
            await admin.invoke("127.0.0.1:1", 28)
    with pytest.raises(ClientClosed):
        await admin.invoke("127.0.0.1:1", 28)


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
                assert asked.wait(PATIENCE_MS / 1000)

        loop = asyncio.get_running_loop()
        asked = threading.Event()
        producing = asyncio.create_task(asyncio.to_thread(produce))
        await until(lambda: broker.count(RequestCode.END_TRANSACTION) == 2)
        asked.set()
        await producing
    assert len(threads) == 2 and all(name.startswith("transactions") for name in threads)
