"""Orderly consumption under the broker's locks, and messages sent back, on a scripted cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from raftmq.client import (
    BlockingConsumer,
    ConsumeResult,
    FailurePolicy,
    Later,
    MessageExt,
    PushConsumer,
)
from raftmq.client.consumer.push_consumer import ConsumerConfig
from raftmq.client.consumer.queue_locks import LockConfig, QueueLocks
from raftmq.client.hosted import on_loop
from raftmq.client.instance import ClientInstance
from raftmq.client.message import MessageQueue
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import SendBackHeader, SendHeader
from raftmq.store.properties import decode_properties
from tests.client.consumer.test_push_consumer import QUICK, Seen, committed, fill
from tests.client.fakes import FakeCluster, queue
from tests.instances import instances_of
from tests.waiting import until

LOCK = RequestCode.LOCK_BATCH_MQ
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
ORDERLY = replace(
    QUICK,
    orderly=True,
    lock=LockConfig(renew_interval_ms=60_000, age_max_ms=30_000, retry_ms=5),
    pull=replace(QUICK.pull, consume_batch_size=1),
)


def orderly(
    cluster: FakeCluster, listener: object, config: ConsumerConfig = ORDERLY
) -> PushConsumer:
    consumer = PushConsumer("g", cluster.namesrv, listener, config=config)  # type: ignore[arg-type]
    consumer.subscribe("T")
    return consumer


def locks_of_another(consumer: PushConsumer) -> QueueLocks:
    """Return the locks of another group's consumer, which asks over the same connections."""
    return QueueLocks("other", consumer.membership.instance, LockConfig(), lambda _queue: None)


async def test_orderly_queues_are_locked_consumed_and_unlocked() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 8)
        broker = cluster.brokers["g0"][0]
        seen = Seen()
        async with orderly(cluster, seen) as consumer:
            await until(lambda: len(seen.messages) == 8)
            held = {key for key, owner in broker.locks.items() if owner == consumer.client_id}
            assert {("g", "T", n) for n in range(4)} <= held
        assert broker.locks == {} and committed(cluster) == [2] * 4
        codes = [r.code for r in broker.requests]
        unlock = codes.index(RequestCode.UNLOCK_BATCH_MQ)
        assert RequestCode.UPDATE_CONSUMER_OFFSET not in codes[unlock:], "committed, then unlocked"


async def test_queue_locked_by_another_client_is_waited_for() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 2, queues=1)
        broker = cluster.brokers["g0"][0]
        broker.locks[("g", "T", 0)] = "somebody"
        seen = Seen()
        async with orderly(cluster, seen) as consumer:
            await until(lambda: broker.count(LOCK) >= 2)
            assert seen.messages == [] and queue(0) not in consumer.queues
            del broker.locks[("g", "T", 0)]
            await until(lambda: len(seen.messages) == 2)


async def test_queue_with_a_lost_lock_restarts_at_the_committed_offset() -> None:
    config = replace(ORDERLY, lock=replace(ORDERLY.lock, renew_interval_ms=10))
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker, log = cluster.brokers["g0"][0], cluster.logs["g0"]
        seen: list[int] = []
        gate = asyncio.Event()

        async def listen(messages: list[MessageExt]) -> None:
            await gate.wait()
            seen.extend(message.queue_offset for message in messages)

        fill(cluster, 4, queues=1)
        async with orderly(cluster, listen, config) as consumer:
            await until(lambda: consumer.membership.workers.get(queue(0)))
            await until(
                lambda: consumer.membership.workers[queue(0)].process_queue.cached_count == 4
            )
            broker.locks[("g", "T", 0)] = "somebody"
            await until(lambda: queue(0) not in consumer.queues)
            log.offsets[("g", "T", 0)] = 3  # somebody works
            requested = broker.count(LOCK)
            await until(lambda: broker.count(LOCK) > requested + 2)  # after all work has ended here
            gate.set()
            assert seen == [] and log.offsets[("g", "T", 0)] == 3
            del broker.locks[("g", "T", 0)]
            await until(lambda: seen == [3])


async def test_expired_lock_is_renewed_before_consumption() -> None:
    config = replace(ORDERLY, lock=LockConfig(60_000, 40, 5))
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        seen = Seen()
        async with orderly(cluster, seen, config) as consumer:
            await until(lambda: queue(0) in consumer.queues)
            await until(lambda: not consumer.membership.locks.valid(queue(0)))  # type: ignore[union-attr]
            before = cluster.brokers["g0"][0].count(LOCK)
            fill(cluster, 1, queues=1)
            await until(lambda: len(seen.messages) == 1)
            assert cluster.brokers["g0"][0].count(LOCK) > before


async def test_locks_are_requested_from_a_new_leader_at_once() -> None:
    async with FakeCluster({"g0": 3}, queues=1) as cluster:
        fill(cluster, 2, queues=1)
        seen = Seen()
        async with orderly(cluster, seen) as consumer:
            await until(lambda: len(seen.messages) == 2)
            old, new = cluster.brokers["g0"][:2]
            cluster.lead("g0", 1, tell_route=True)
            await old.stop()
            fill(cluster, 2, queues=1)
            await until(lambda: len(seen.messages) == 4)
            assert new.locks[("g", "T", 0)] == consumer.client_id
        assert [m.queue_offset for m in seen.messages] == [0, 1, 2, 3]


async def test_orderly_message_beyond_the_retry_limit_is_a_dead_letter() -> None:
    config = replace(ORDERLY, failure=FailurePolicy(1, 1, max_reconsume_times=2))
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker = cluster.brokers["g0"][0]
        broker.send_back_code = int(ResponseCode.SUCCESS)
        fill(cluster, 3, queues=1)
        got: list[tuple[int, int]] = []

        def listen(messages: list[MessageExt]) -> ConsumeResult:
            got.extend((m.queue_offset, m.reconsume_times) for m in messages)
            bad = messages[0].queue_offset == 1
            return ConsumeResult.RECONSUME_LATER if bad else ConsumeResult.SUCCESS

        async with orderly(cluster, listen, config):
            await until(lambda: cluster.logs["g0"].offsets.get(("g", "T", 0)) == 3)
        assert got == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
        (back,) = broker.received(BACK)
        assert SendBackHeader.parse(back.ext).delay_level == -1


async def test_orderly_queue_is_suspended_for_the_listeners_time() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 1, queues=1)
        times: list[float] = []

        def listen(messages: list[MessageExt]) -> Later | None:
            times.append(asyncio.get_running_loop().time())
            return Later(suspend_ms=120) if len(times) == 1 else None

        async with orderly(cluster, listen):
            await until(lambda: len(times) == 2)
        assert times[1] - times[0] >= 0.119


async def test_lock_validity_counts_from_the_request() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        async with orderly(cluster, Seen()) as consumer:
            await until(lambda: len(consumer.queues) == 4)
            locks = locks_of_another(consumer)
            assert locks.age_ms(queue(0)) is None and not locks.valid(queue(0))
            assert await locks.acquire(queue(0))
            age_ms = locks.age_ms(queue(0))
            assert age_ms is not None and age_ms > 0, "the way there and back counts"
            await locks.release([queue(0)])
            assert not locks.valid(queue(0))


async def test_expired_lock_is_still_released_at_the_broker() -> None:
    """A new leader has it from its log. Found by mqchaos: a consumer that left in a failover kept
    its queues from everybody for a minute."""
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        async with orderly(cluster, Seen()) as consumer:
            await until(lambda: len(consumer.queues) == 4)
            locks = locks_of_another(consumer)
            for number in range(3):
                assert await locks.acquire(queue(number))
            locks.leader_changed("g0")
            assert not locks.valid(queue(0))
            await locks.release([queue(0)])
            assert {key for key in broker.locks if key[0] == "other"} == {
                ("other", "T", 1), ("other", "T", 2),
            }  # fmt: skip
            await locks.release([queue(1)], notify=False)  # somebody is still at work there
            await locks.hold(queue(1))  # and asks for it once more
            await locks.release_all()
            assert {key for key in broker.locks if key[0] == "other"} == {("other", "T", 1)}


async def test_queue_is_not_locked_again_while_a_thread_consumes_it() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        async with orderly(cluster, Seen()) as consumer:
            await until(lambda: len(consumer.queues) == 4)
            locks = locks_of_another(consumer)
            work: Future[None] = Future()
            assert await locks.acquire(queue(0))
            locks.worked_on(queue(0), work)
            await locks.release([queue(0)], notify=False)
            assert not await locks.acquire(queue(0)) and await locks.acquire(queue(1))
            work.set_result(None)
            assert await locks.acquire(queue(0))
            assert not locks._working, "what has ended is not kept"


async def test_released_queue_stays_locked_while_a_thread_consumes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    seen: list[int] = []

    def listen(messages: list[MessageExt]) -> None:
        seen.append(messages[0].queue_offset)
        gate.wait(60)

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 1, queues=1)
        config = replace(ORDERLY, stop_grace_ms=100)
        consumers = instances_of(monkeypatch, PushConsumer)
        consumer = BlockingConsumer("g", cluster.namesrv, listen, config=config)
        consumer.subscribe("T")
        await asyncio.to_thread(consumer.start)
        await until(lambda: seen)
        member = consumers[0].membership
        await asyncio.to_thread(on_loop(PushConsumer.unsubscribe), consumer, "T")
        await until(lambda: queue(0) not in member.workers)
        await asyncio.to_thread(consumer.stop)
        gate.set()
        assert set(cluster.brokers["g0"][0].locks) == {("g", "T", 0)}


async def test_batch_in_progress_at_a_queue_release_is_committed_at_the_stop() -> None:
    gate = asyncio.Event()
    seen: list[int] = []

    async def listen(messages: list[MessageExt]) -> None:
        seen.append(messages[0].queue_offset)
        await gate.wait()

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 1, queues=1)
        config = replace(ORDERLY, stop_grace_ms=60_000, commit_interval_ms=60_000)
        consumer = orderly(cluster, listen, config)
        await consumer.start()
        await until(lambda: seen)
        consumer.unsubscribe("T")
        await until(lambda: queue(0) not in consumer.queues)
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done() and ("g", "T", 0) in cluster.brokers["g0"][0].locks
        gate.set()
        await stopping
        assert committed(cluster)[0] == 1 and cluster.brokers["g0"][0].locks == {}


class Delayed:
    """An instance whose next questions for locks are lost once, and asked again at `again`."""

    def __init__(self, instance: ClientInstance) -> None:
        self.client_id = instance.client_id
        self._instance = instance
        self.again = asyncio.Event()
        self.again.set()

    async def invoke_leader(
        self, name: str, command: Callable[[], RemotingCommand], **rest: Any
    ) -> RemotingCommand:
        if not self.again.is_set() and command().code == RequestCode.LOCK_BATCH_MQ:
            await self.again.wait()
        return await self._instance.invoke_leader(name, command, **rest)


@pytest.mark.parametrize("notify", [True, False])
async def test_queue_released_during_its_lock_request_is_not_requested_again(
    notify: bool,
) -> None:
    """It belonged to nobody for a minute: this client did not know that it had the lock."""
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        async with orderly(cluster, Seen()) as consumer:
            await until(lambda: len(consumer.queues) == 4)
            delayed = Delayed(consumer.membership.instance)
            lost: list[MessageQueue] = []
            locks = QueueLocks("other", cast(ClientInstance, delayed), LockConfig(), lost.append)
            for number in range(3):
                assert await locks.acquire(queue(number))
            delayed.again.clear()
            renewal = asyncio.ensure_future(locks._renew("g0"))
            await asyncio.sleep(0)
            await locks.release([queue(0), queue(1)], notify)
            for number in range(2):
                broker.locks.pop(("other", "T", number), None)  # unlocked, or over by then
            delayed.again.set()
            assert await locks.acquire(queue(1)), "by a question of its own"
            await renewal
            assert {key for key in broker.locks if key[0] == "other"} == {
                ("other", "T", 1), ("other", "T", 2),
            }  # fmt: skip
            assert [locks.valid(queue(number)) for number in range(3)] == [False, True, True]
            assert lost == [] and locks.held(queue(1))


async def test_queue_released_and_taken_again_has_one_listener_at_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker grants its lock at once to who has it already."""
    caplog.set_level("INFO")
    gate = threading.Event()
    seen: list[int] = []
    at_once: list[int] = []
    most = 0

    def listen(messages: list[MessageExt]) -> None:
        nonlocal most
        at_once.append(messages[0].queue_offset)
        most = max(most, len(at_once))
        gate.wait(60)
        seen.append(at_once.pop())

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 2, queues=1)
        config = replace(ORDERLY, stop_grace_ms=10)
        consumer = BlockingConsumer("g", cluster.namesrv, listen, config=config)
        consumer.subscribe("T")
        await asyncio.to_thread(consumer.start)
        await until(lambda: at_once)
        await asyncio.to_thread(on_loop(PushConsumer.subscribe), consumer, "T", "*")
        await until(lambda: len(at_once) > 1 or "queue_still_worked_on" in caplog.text)
        gate.set()
        await until(lambda: seen == [0, 0, 1])
        await asyncio.to_thread(consumer.stop)
    assert most == 1


async def test_lock_with_a_lost_grant_is_released_at_the_end() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        async with orderly(cluster, Seen()) as consumer:
            await until(lambda: len(consumer.queues) == 4)
            locks = locks_of_another(consumer)
            broker.locks[("other", "T", 0)] = consumer.client_id  # the answer was lost
            locks._perhaps.add(queue(0))
            await locks.release_all()
            assert ("other", "T", 0) not in broker.locks


# ---- concurrent: what comes again


@pytest.mark.parametrize(
    ("later", "level", "sent_back"),
    [
        (ConsumeResult.RECONSUME_LATER, 0, [0, 1, 2]),
        (Later(delay_level=5), 5, [0, 1, 2]),
        (Later(done=2, delay_level=-1), -1, [2]),
        (Later(done=3), 0, []),
    ],
)
async def test_failed_message_is_sent_back_with_its_delay_level(
    later: ConsumeResult | Later, level: int, sent_back: list[int]
) -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker = cluster.brokers["g0"][0]
        broker.send_back_code = int(ResponseCode.SUCCESS)
        fill(cluster, 3, queues=1)
        consumer = PushConsumer("g", cluster.namesrv, lambda _m: later, config=QUICK)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: cluster.logs["g0"].offsets.get(("g", "T", 0)) == 3)
        headers = [SendBackHeader.parse(r.ext) for r in broker.received(BACK)]
        log = cluster.logs["g0"].records[("T", 0)]
        assert [h.commitlog_offset for h in headers] == [len(log[0]) * n for n in sent_back]
        assert {h.delay_level for h in headers} <= {level}
        assert {h.max_reconsume_times for h in headers} <= {16}


@pytest.mark.parametrize(
    ("answer", "times", "delay"),
    [(Later(), "1", "3"), (Later(delay_level=7), "1", "7"), (Later(delay_level=-1), "17", None)],
)
async def test_message_that_cannot_be_sent_back_is_resent_completely(
    answer: Later, times: str, delay: str | None
) -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker = cluster.brokers["g0"][0]
        cluster.logs["g0"].append(
            "T", 0, b"body", "UNIQ_KEY\x01K\x02TAGS\x01a\x02TRAN_MSG\x01x\x02"
        )
        consumer = PushConsumer("g", cluster.namesrv, lambda _m: answer, config=QUICK)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: cluster.logs["g0"].offsets.get(("g", "T", 0)) == 1)
        (sent,) = broker.received(RequestCode.SEND_MESSAGE_V2)
        header = SendHeader.parse(sent.ext)
        assert (header.topic, header.reconsume_times, header.max_reconsume_times) == (
            "%RETRY%g",
            int(times),
            16,
        )
        assert sent.body == b"body"
        assert decode_properties(header.properties) == {
            "UNIQ_KEY": "K",
            "TAGS": "a",
            "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": "K",
            "RECONSUME_TIME": times,
            "MAX_RECONSUME_TIMES": "16",
        } | ({"DELAY": delay} if delay else {})


async def test_retry_topic_is_found_soon_after_the_first_failure() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker = cluster.brokers["g0"][0]
        broker.send_back_code = int(ResponseCode.SUCCESS)
        fill(cluster, 1, queues=1)
        seen = Seen(failures=1)
        consumer = PushConsumer("g", cluster.namesrv, seen, config=QUICK)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: broker.count(BACK) == 1)
            cluster.name_server.topics["%RETRY%g"] = {"g0": (1, 6)}
            await until(lambda: MessageQueue("%RETRY%g", "g0", 0) in consumer.queues)
