"""The push consumer against a scripted cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from raftmq.client import (
    CacheLimits,
    ConsumeFrom,
    ConsumerConfig,
    ConsumeResult,
    FailurePolicy,
    InstanceConfig,
    MessageExt,
    MessageQueue,
    PullConfig,
    PushConsumer,
)
from raftmq.client import log_rate_limit as logpace
from raftmq.client.consumer.consume_service import ConcurrentDeliverer, GuardedListener
from raftmq.client.consumer.send_back import SendBack
from raftmq.client.log_rate_limit import ListenerLog
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import MessageQueue as WireQueue
from raftmq.remoting.fast_json import dumps, loads_object
from tests.client.fakes import FakeCluster, queue
from tests.waiting import until

QUICK = ConsumerConfig(
    consume_from=ConsumeFrom.FIRST_OFFSET,
    commit_interval_ms=20,
    rebalance_interval_ms=60_000,
    stop_grace_ms=200,
    pull=PullConfig(suspend_ms=300, moved_pause_ms=5, backward_confirmations=3),
    failure=FailurePolicy(retry_pause_ms_first=5, retry_pause_ms_max=20),
)


class Seen:
    """A listener that remembers; fails as often as `failures` says."""

    def __init__(self, failures: int = 0) -> None:
        self.messages: list[MessageExt] = []
        self.batches: list[int] = []
        self.failures = failures

    def __call__(self, messages: list[MessageExt]) -> ConsumeResult | None:
        self.batches.append(len(messages))
        if self.failures:
            self.failures -= 1
            if self.failures % 2:
                raise RuntimeError("the user's listener is broken today")
            return ConsumeResult.RECONSUME_LATER
        self.messages.extend(messages)
        return ConsumeResult.SUCCESS

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def consumer_of(
    cluster: FakeCluster, listener: object, config: ConsumerConfig = QUICK, expression: str = "*"
) -> PushConsumer:
    consumer = PushConsumer("g", cluster.namesrv, listener, config=config)  # type: ignore[arg-type]
    consumer.subscribe("T", expression)
    return consumer


def fill(cluster: FakeCluster, count: int, queues: int = 4, tags: str = "") -> None:
    properties = f"TAGS\x01{tags}\x02" if tags else ""
    for number in range(count):
        cluster.logs["g0"].append("T", number % queues, b"%d" % number, properties)
    for broker in cluster.brokers["g0"]:
        broker.appended()


def committed(cluster: FakeCluster) -> list[int]:
    return [cluster.logs["g0"].offsets.get(("g", "T", n), -1) for n in range(4)]


async def test_old_and_new_messages_are_consumed_and_committed() -> None:
    async with FakeCluster({"g0": 3}) as cluster:
        fill(cluster, 100)
        seen = Seen()
        async with consumer_of(cluster, seen) as consumer:
            await until(lambda: len(seen.messages) == 100)
            assert consumer.queues == tuple(queue(n) for n in range(4))
            fill(cluster, 8)
            await until(lambda: len(seen.messages) == 108)
            await until(lambda: committed(cluster) == [27] * 4)
        per_queue: dict[int, list[int]] = {}
        for message in seen.messages:
            per_queue.setdefault(message.queue_id, []).append(message.queue_offset)
        assert per_queue == {n: list(range(27)) for n in range(4)}


async def test_async_listener_that_returns_none_means_success() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 10)
        seen: list[bytes] = []

        async def listen(messages: list[MessageExt]) -> None:
            await asyncio.sleep(0)
            seen.extend(message.body for message in messages)

        async with consumer_of(cluster, listen):
            await until(lambda: len(seen) == 10)


async def test_shutdown_commits_confirmed_and_unregisters() -> None:
    config = replace(QUICK, commit_interval_ms=60_000)
    async with FakeCluster({"g0": 3}) as cluster:
        fill(cluster, 40)
        seen = Seen()
        async with consumer_of(cluster, seen, config):
            await until(lambda: len(seen.messages) == 40)
            assert committed(cluster) == [-1] * 4
        assert committed(cluster) == [10] * 4
        assert not cluster.brokers["g0"][0].members["g"]
        commits = [
            r
            for r in cluster.brokers["g0"][0].requests
            if r.code == RequestCode.UPDATE_CONSUMER_OFFSET
        ]
        assert commits and not any(r.is_oneway for r in commits)


async def stop_in_a_task(consumer: PushConsumer) -> None:
    await asyncio.create_task(consumer.stop())


async def test_listener_that_stops_its_consumer_gets_no_further_messages() -> None:
    seen: list[int] = []

    async def listen(messages: list[MessageExt]) -> None:
        seen.append(messages[0].queue_offset)
        await consumer.stop()

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 10, queues=1)
        pull = replace(QUICK.pull, consume_batch_size=1, consume_tasks=1)
        consumer = consumer_of(cluster, listen, replace(QUICK, pull=pull))
        async with consumer:
            stop, may_go_on = consumer.membership.rebalancer.stop, asyncio.Event()

            async def slow() -> None:
                await may_go_on.wait()
                await stop()

            consumer.membership.rebalancer.stop = slow  # type: ignore[method-assign]
            await until(lambda: bool(seen))
            for _ in range(20):
                await asyncio.sleep(0)
            may_go_on.set()
        assert seen == [0]


@pytest.mark.parametrize("stop", [PushConsumer.stop, stop_in_a_task])
@pytest.mark.parametrize("orderly", [False, True])
async def test_listener_may_stop_its_consumer(
    stop: Callable[[PushConsumer], Awaitable[None]], orderly: bool
) -> None:
    """What it has then is finished when it returns."""
    pull = replace(QUICK.pull, consume_batch_size=1, consume_tasks=1)
    config = replace(
        QUICK, orderly=orderly, commit_interval_ms=60_000, stop_grace_ms=60_000, pull=pull
    )
    seen: list[int] = []

    async def listen(messages: list[MessageExt]) -> None:
        seen.append(messages[0].queue_offset)
        if len(seen) == 3:
            await stop(consumer)
            await asyncio.sleep(0.02)

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 10, queues=1)
        consumer = consumer_of(cluster, listen, config)
        async with consumer:
            await until(lambda: len(seen) == 3)
        assert seen == [0, 1, 2] and committed(cluster)[0] == 3
        assert not cluster.brokers["g0"][0].members["g"] and consumer.queues == ()


async def test_task_of_a_finished_listener_may_await_the_stop() -> None:
    later: list[asyncio.Task[None]] = []
    ask = asyncio.Event()

    async def stop() -> None:
        await ask.wait()
        await consumer.stop()

    def listen(messages: list[MessageExt]) -> None:
        later.append(asyncio.create_task(stop()))

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 1, queues=1)
        consumer = consumer_of(cluster, listen)
        await consumer.start()
        await until(lambda: committed(cluster)[0] == 1)
        ask.set()
        await later[0]
        assert not cluster.brokers["g0"][0].members["g"]


async def test_concurrent_stops_share_one_stop_and_wait_for_the_listener() -> None:
    config = replace(QUICK, stop_grace_ms=60_000)
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 1, queues=1)
        stuck = Stuck(ConsumeResult.SUCCESS)
        consumer = consumer_of(cluster, stuck, config)
        await consumer.start()
        await until(lambda: stuck.bodies)
        stops = [asyncio.create_task(consumer.stop()) for _ in range(2)]
        await asyncio.sleep(0.05)
        stuck.let_go.set()
        await asyncio.gather(*stops)
        assert stuck.returned == 1 and committed(cluster)[0] == 1


async def test_cancelled_stop_leaves_the_group_at_once() -> None:
    config = replace(QUICK, stop_grace_ms=60_000)
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 1, queues=1)
        stuck = Stuck(ConsumeResult.SUCCESS)
        consumer = consumer_of(cluster, stuck, config)
        await consumer.start()
        await until(lambda: stuck.bodies)
        stops = [asyncio.create_task(consumer.stop()) for _ in range(2)]
        await asyncio.sleep(0.05)
        stops[0].cancel()
        await asyncio.wait(stops)
        assert stops[0].cancelled() and stops[1].exception() is None
        assert not cluster.brokers["g0"][0].members["g"] and not stuck.returned


async def test_heartbeat_in_flight_does_not_rejoin_the_group_after_the_stop() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        async with consumer_of(cluster, Seen()):
            await until(lambda: broker.members["g"])
            broker.heartbeat_s = 0.2
            beats = broker.count(RequestCode.HEART_BEAT)
            broker.pull_answers.extend([(25, 0, 0, 0)] * 4)  # "I do not know your subscription"
            broker.appended()
            fill(cluster, 4)
            await until(lambda: broker.count(RequestCode.HEART_BEAT) > beats)
        assert not broker.members["g"]
        await asyncio.sleep(0.4)
        assert not broker.members["g"], "no ghost came after it left"


async def test_consumer_with_rejected_heartbeats_logs_it_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "heartbeat_refused address="

    def lines() -> list[str]:
        return [r.message for r in caplog.records if r.message.startswith(refused)]

    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        broker.heartbeat_refusal = (1, "AclException: wrong signature")
        async with consumer_of(cluster, Seen()) as consumer:
            await until(lambda: broker.count(RequestCode.HEART_BEAT) > 3)
            await until(lambda: len(lines()) == 1)
            assert lines()[0].endswith("code=1 remark=AclException: wrong signature")
            broker.heartbeat_refusal = (16, "not allowed")
            await until(lambda: len(lines()) == 2)
            monkeypatch.setattr(logpace, "PAUSE_S", 0.0)
            await until(lambda: len(lines()) > 2)
            assert not consumer.queues
            broker.heartbeat_refusal = None
            await until(lambda: bool(consumer.queues))


async def test_next_consumer_continues_at_the_committed_offset() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 20)
        first, second = Seen(), Seen()
        async with consumer_of(cluster, first):
            await until(lambda: len(first.messages) == 20)
        fill(cluster, 4)
        async with consumer_of(cluster, second):
            await until(lambda: len(second.messages) == 4)
        assert sorted(second.bodies) == [b"0", b"1", b"2", b"3"]


async def test_on_commit_reports_confirmed_offsets() -> None:
    config = replace(QUICK, confirm_commits=True)
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 20)
        reported: dict[MessageQueue, int] = {}
        announced: list[tuple[MessageQueue, int]] = []

        def confirmed(of: MessageQueue, offset: int) -> None:
            assert (of, offset) in announced, "nothing is confirmed that was not announced"
            reported[of] = offset

        consumer = PushConsumer(
            "g",
            cluster.namesrv,
            Seen(),
            config=config,
            on_commit=confirmed,
            on_committing=lambda of, offset: announced.append((of, offset)),
        )
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: [reported.get(queue(n)) for n in range(4)] == [5] * 4)
        assert committed(cluster) == [5] * 4


@pytest.mark.parametrize(
    ("start", "expected"), [(ConsumeFrom.FIRST_OFFSET, 24), (ConsumeFrom.LAST_OFFSET, 4)]
)
async def test_new_group_starts_at_the_configured_offset(start: ConsumeFrom, expected: int) -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 20)
        seen = Seen()
        async with consumer_of(cluster, seen, replace(QUICK, consume_from=start)) as consumer:
            await until(lambda: len(consumer.queues) == 4)
            fill(cluster, 4)
            await until(lambda: len(seen.messages) == expected)


async def test_new_group_stopped_before_a_message_continues_at_it() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 8)
        config = replace(QUICK, consume_from=ConsumeFrom.LAST_OFFSET)
        async with consumer_of(cluster, Seen(), config) as consumer:
            await until(lambda: len(consumer.queues) == 4)
        fill(cluster, 4)
        seen = Seen()
        async with consumer_of(cluster, seen, config):
            await until(lambda: len(seen.messages) == 4)


async def test_tag_is_checked_again_as_text() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 8, tags="Aa")
        fill(cluster, 8, tags="BB")  # same hash
        seen = Seen()
        async with consumer_of(cluster, seen, expression="BB || CC"):
            await until(lambda: committed(cluster) == [4] * 4)
        assert {message.tags for message in seen.messages} == {"BB"}
        assert len(seen.messages) == 8


async def test_queues_are_shared_and_taken_over() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 8)
        one, two = Seen(), Seen()
        first = consumer_of(cluster, one)
        await first.start()
        await until(lambda: len(first.queues) == 4)
        second = consumer_of(cluster, two)
        await second.start()
        broker = cluster.brokers["g0"][0]
        await until(lambda: len(broker.members["g"]) == 2)
        changed = RemotingCommand.request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}
        )
        broker.push(changed)
        await until(lambda: len(first.queues) == 2 and len(second.queues) == 2)
        assert set(first.queues) | set(second.queues) == {queue(n) for n in range(4)}
        await first.stop()
        broker.push(
            RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
        )
        await until(lambda: len(second.queues) == 4)
        before = len(two.messages)
        fill(cluster, 4)
        await until(lambda: len(two.messages) == before + 4)
        await second.stop()


async def test_failed_messages_are_redelivered_locally_if_send_back_fails() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 3, queues=1)
        cluster.brokers["g0"][0].mode = (13, "no sends today")  # nor takes them whole
        seen = Seen(failures=4)
        async with consumer_of(cluster, seen):
            await until(lambda: len(seen.messages) == 3)
        assert seen.bodies == [b"0", b"1", b"2"]
        assert {message.reconsume_times for message in seen.messages} == {4}
        assert cluster.logs["g0"].offsets[("g", "T", 0)] == 3
        assert cluster.brokers["g0"][0].count(RequestCode.CONSUMER_SEND_MSG_BACK) == 1


@pytest.mark.parametrize("threaded", [False, True])
async def test_listener_that_awaits_a_cancelled_future_fails_its_batch_only(
    threaded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(QUICK, pull=replace(QUICK.pull, consume_batch_size=1))
    bad = 2 * config.pull.consume_tasks
    seen = Seen()

    def listen(messages: list[MessageExt]) -> Any:
        if messages[0].queue_offset >= bad:
            return seen(messages)
        cancelled = Future[None]() if threaded else asyncio.get_running_loop().create_future()
        cancelled.cancel()
        return cancelled

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, bad + 1, queues=1)
        async with consumer_of(cluster, listen, config):
            await until(lambda: committed(cluster)[0] == bad + 1)
        assert len(cluster.logs["g0"].bodies("%RETRY%g")) == bad and seen.bodies == [b"8"]
    assert "listener_raised group=g topic=T" in caplog.text


async def test_listener_that_cancels_its_own_task_fails_its_batch_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = replace(QUICK, pull=replace(QUICK.pull, consume_batch_size=1, consume_tasks=1))
    seen = Seen()

    async def listen(messages: list[MessageExt]) -> None:
        if messages[0].queue_offset:
            seen(messages)
            return
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 2, queues=1)
        async with consumer_of(cluster, listen, config):
            await until(lambda: committed(cluster)[0] == 2)
        assert cluster.logs["g0"].bodies("%RETRY%g") == [b"0"] and seen.bodies == [b"1"]
    assert "listener_raised group=g topic=T" in caplog.text


async def test_listener_that_raises_a_base_exception_fails_its_batch_only() -> None:
    class Odd(BaseException):
        """As test tools and some libraries have them."""

    config = replace(QUICK, pull=replace(QUICK.pull, consume_batch_size=1, consume_tasks=1))
    seen = Seen()

    def listen(messages: list[MessageExt]) -> Any:
        if messages[0].queue_offset:
            return seen(messages)
        raise Odd

    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 2, queues=1)
        async with consumer_of(cluster, listen, config):
            await until(lambda: committed(cluster)[0] == 2)
        assert cluster.logs["g0"].bodies("%RETRY%g") == [b"0"] and seen.bodies == [b"1"]


async def test_offset_stays_while_messages_fail() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 3, queues=1)
        cluster.brokers["g0"][0].mode = (13, "no sends today")
        seen = Seen(failures=10**6)
        async with consumer_of(cluster, seen):
            await until(lambda: len(seen.batches) > 5)
        assert cluster.logs["g0"].offsets.get(("g", "T", 0), 0) == 0


async def test_failed_messages_are_sent_back_to_the_broker() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        cluster.brokers["g0"][0].send_back_code = int(ResponseCode.SUCCESS)
        fill(cluster, 3, queues=1)
        seen = Seen(failures=1)
        async with consumer_of(cluster, seen):
            await until(lambda: cluster.logs["g0"].offsets.get(("g", "T", 0)) == 3)
        back = [
            r
            for r in cluster.brokers["g0"][0].requests
            if r.code == RequestCode.CONSUMER_SEND_MSG_BACK
        ]
        assert len(back) == 3 and seen.messages == []
        assert (back[0].ext or {})["group"] == "g" and (back[0].ext or {})["offset"] == "0"


class Stuck:
    """A listener that does not return before it is let go, then with `answer`."""

    def __init__(self, answer: ConsumeResult) -> None:
        self.answer = answer
        self.let_go = asyncio.Event()
        self.bodies: list[bytes] = []
        self.returned = 0

    async def __call__(self, messages: list[MessageExt]) -> ConsumeResult:
        self.bodies += [message.body for message in messages]
        await self.let_go.wait()
        self.returned += 1
        return self.answer


TIMED = replace(
    QUICK, consume_timeout_ms=50, pull=replace(QUICK.pull, consume_tasks=1, consume_batch_size=2)
)


async def test_timed_out_message_is_sent_back_and_its_late_result_ignored() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker, offsets = cluster.brokers["g0"][0], cluster.logs["g0"].offsets
        broker.send_back_code = int(ResponseCode.SUCCESS)
        fill(cluster, 3, queues=1)
        stuck = Stuck(ConsumeResult.RECONSUME_LATER)
        async with consumer_of(cluster, stuck, TIMED) as consumer:
            await until(lambda: offsets.get(("g", "T", 0)) == 2)
            back = broker.received(RequestCode.CONSUMER_SEND_MSG_BACK)
            assert [(r.ext or {})["delayLevel"] for r in back] == ["3", "3"]
            assert consumer.timed_out == 2
            assert stuck.bodies == [b"0", b"1"], "its place is not free before it returns"
            stuck.let_go.set()
            await until(lambda: stuck.returned == 2)
            await until(lambda: offsets.get(("g", "T", 0)) == 3)
            # Only the third is sent back for what the listener said.
            back = broker.received(RequestCode.CONSUMER_SEND_MSG_BACK)
            assert [(r.ext or {})["delayLevel"] for r in back] == ["3", "3", "0"]
            assert consumer.timed_out == 2


async def test_timed_out_message_that_no_broker_takes_stays_with_the_listener() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker, offsets = cluster.brokers["g0"][0], cluster.logs["g0"].offsets
        broker.mode = (13, "no sends today")
        fill(cluster, 2, queues=1)
        stuck = Stuck(ConsumeResult.SUCCESS)
        async with consumer_of(cluster, stuck, TIMED) as consumer:
            await until(lambda: broker.count(RequestCode.SEND_MESSAGE_V2) >= 4)  # both, twice
            assert offsets.get(("g", "T", 0), 0) == 0 and consumer.timed_out == 0
            stuck.let_go.set()
            await until(lambda: offsets.get(("g", "T", 0)) == 2)
        assert stuck.bodies == [b"0", b"1"], "once"


class SlowBack(SendBack):
    """Takes messages back when it is let go."""

    def __init__(self) -> None:
        self.levels: list[int] = []
        self.let_go = asyncio.Event()

    async def send(self, message: MessageExt, delay_level: int, reconsume_times_max: int) -> bool:
        self.levels.append(delay_level)
        await self.let_go.wait()
        return True


async def test_message_that_fails_during_its_send_back_is_sent_back_once() -> None:
    stuck, back = Stuck(ConsumeResult.RECONSUME_LATER), SlowBack()
    listener = GuardedListener(stuck, ListenerLog("g"))
    deliverer = ConcurrentDeliverer(listener, back, FailurePolicy(), lambda name: None)
    one = MessageExt("T", b"0", b"", "g0", 0, 0, 0, 0, 0, 0, b"", 0, b"", 0, 0, 100)
    delivery = asyncio.create_task(deliverer.deliver(one.queue, [one], lambda: None))
    await until(lambda: stuck.bodies)
    expiry = asyncio.create_task(deliverer.expire_forever(0))
    await until(lambda: back.levels)
    stuck.let_go.set()
    await until(lambda: stuck.returned)
    back.let_go.set()
    await delivery
    expiry.cancel()
    assert back.levels == [3] and deliverer.timed_out == 1


async def test_message_waiting_for_a_listener_does_not_time_out() -> None:
    async with FakeCluster({"g0": 1}, queues=2) as cluster:
        broker, offsets = cluster.brokers["g0"][0], cluster.logs["g0"].offsets
        broker.send_back_code = int(ResponseCode.SUCCESS)
        fill(cluster, 2, queues=2)
        stuck = Stuck(ConsumeResult.SUCCESS)
        async with consumer_of(cluster, stuck, replace(TIMED, listeners_max=1)) as consumer:
            await until(lambda: consumer.timed_out == 1)
            await asyncio.sleep(0.2)  # four time-outs
            assert len(stuck.bodies) == consumer.timed_out == 1
            stuck.let_go.set()
            await until(lambda: [offsets.get(("g", "T", n)) for n in (0, 1)] == [1, 1])
            assert sorted(stuck.bodies) == [b"0", b"1"] and consumer.timed_out == 1


async def test_orderly_listener_has_no_time_out() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        broker, offsets = cluster.brokers["g0"][0], cluster.logs["g0"].offsets
        fill(cluster, 2, queues=1)
        stuck = Stuck(ConsumeResult.SUCCESS)
        async with consumer_of(cluster, stuck, replace(TIMED, orderly=True)) as consumer:
            await until(lambda: len(stuck.bodies) == 2)
            await asyncio.sleep(0.2)
            assert consumer.timed_out == 0 and offsets.get(("g", "T", 0), 0) == 0
            stuck.let_go.set()
            await until(lambda: offsets.get(("g", "T", 0)) == 2)
        assert not broker.count(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_retry_topic_is_consumed_with_the_topic_restored() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.name_server.topics["%RETRY%g"] = {"g0": (1, 6)}
        cluster.logs["g0"].append("%RETRY%g", 0, b"again", "RETRY_TOPIC\x01T\x02")
        seen = Seen()
        async with consumer_of(cluster, seen):
            await until(lambda: len(seen.messages) == 1)
            await until(lambda: cluster.logs["g0"].offsets.get(("g", "%RETRY%g", 0)) == 1)
        assert seen.messages[0].topic == "T"


async def test_orderly_consumer_delivers_a_queue_in_order_one_batch_at_a_time() -> None:
    config = replace(QUICK, orderly=True, pull=replace(QUICK.pull, consume_batch_size=3))
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 30, queues=1)
        got: list[int] = []
        running = 0

        async def listen(messages: list[MessageExt]) -> ConsumeResult:
            nonlocal running
            running += 1
            assert running == 1
            await asyncio.sleep(0.001)
            running -= 1
            if len(got) == 9 and messages[0].reconsume_times < 2:
                return ConsumeResult.RECONSUME_LATER
            got.extend(message.queue_offset for message in messages)
            return ConsumeResult.SUCCESS

        async with consumer_of(cluster, listen, config):
            await until(lambda: len(got) == 30)
        assert got == list(range(30))
        assert cluster.brokers["g0"][0].count(RequestCode.CONSUMER_SEND_MSG_BACK) == 0


async def test_pulling_stops_at_the_cache_limit() -> None:
    limits = CacheLimits(messages_max=10)
    config = replace(
        QUICK, pull=replace(QUICK.pull, batch_size=5, consume_batch_size=1, limits=limits)
    )
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 100, queues=1)
        gate = asyncio.Event()
        got: list[int] = []

        async def listen(messages: list[MessageExt]) -> None:
            await gate.wait()
            got.extend(message.queue_offset for message in messages)

        async with consumer_of(cluster, listen, config):
            broker = cluster.brokers["g0"][0]
            await until(lambda: broker.count(RequestCode.PULL_MESSAGE) == 2)
            await asyncio.sleep(0.05)
            assert broker.count(RequestCode.PULL_MESSAGE) == 2, "10 cached: no further pull"
            gate.set()
            await until(lambda: sorted(got) == list(range(100)))


async def test_pulls_with_messages_keep_their_interval() -> None:
    config = replace(QUICK, pull=replace(QUICK.pull, batch_size=2, interval_ms=100))
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 6, queues=1)
        at: list[float] = []
        loop = asyncio.get_running_loop()
        async with consumer_of(cluster, lambda messages: at.append(loop.time()), config):
            await until(lambda: len(at) == 3)
        assert at[2] - at[0] >= 0.19


@pytest.mark.parametrize("hint", [False, True])
async def test_pulls_follow_the_leader(hint: bool) -> None:
    async with FakeCluster({"g0": 3}) as cluster:
        fill(cluster, 8)
        seen = Seen()
        async with consumer_of(cluster, seen):
            await until(lambda: len(seen.messages) == 8)
            cluster.lead("g0", 1, tell_route=not hint, hint=hint)
            await cluster.brokers["g0"][0].stop()
            fill(cluster, 8)
            await until(lambda: len(seen.messages) == 16)
            assert len(set(seen.messages)) == 16
            await until(lambda: committed(cluster) == [4] * 4)


async def test_consumer_leaves_a_frozen_leader_when_the_route_changes() -> None:
    config = replace(QUICK, pull=replace(QUICK.pull, suspend_ms=60_000))
    async with FakeCluster({"g0": 3}) as cluster:
        seen = Seen()
        consumer = PushConsumer(
            "g",
            cluster.namesrv,
            seen,
            config=config,
            instance_config=InstanceConfig(route_interval_ms=30),
        )
        consumer.subscribe("T")
        async with consumer:
            old, new = cluster.brokers["g0"][:2]
            await until(lambda: old.count(RequestCode.PULL_MESSAGE) == 4)
            for n in range(4):  # only the new leader wakes its pulls
                cluster.logs["g0"].append("T", n, b"x")
            cluster.lead("g0", 1, tell_route=True)
            await until(lambda: len(seen.messages) == 4)
            assert new.count(RequestCode.PULL_MESSAGE) >= 4


async def test_consumer_continues_after_a_broken_connection() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 4)
        seen = Seen()
        async with consumer_of(cluster, seen):
            await until(lambda: len(seen.messages) == 4)
            await cluster.brokers["g0"][0].stop()
            fill(cluster, 4)
            await asyncio.sleep(0.05)
            await cluster.brokers["g0"][0].restart()
            await until(lambda: len(seen.messages) == 8)
        assert sorted(m.queue_offset for m in seen.messages) == [0] * 4 + [1] * 4


async def test_stale_replica_does_not_set_the_consumer_back() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 10, queues=1)
        seen = Seen()
        async with consumer_of(cluster, seen):
            await until(lambda: len(seen.messages) == 10)
            broker = cluster.brokers["g0"][0]
            broker.pull_answers.extend([(21, 3, 0, 3), (21, 3, 0, 3)])  # one short of belief
            broker.appended()
            await until(lambda: not broker.pull_answers)
            fill(cluster, 1, queues=1)
            await until(lambda: len(seen.messages) == 11)
        assert [m.queue_offset for m in seen.messages] == list(range(11))


async def test_retention_moves_the_consumer_forward() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 1, queues=1)
        seen = Seen()
        async with consumer_of(cluster, seen):
            await until(lambda: len(seen.messages) == 1)
            broker, log = cluster.brokers["g0"][0], cluster.logs["g0"]
            broker.pull_answers.extend([(21, 50, 50, 51), (21, 50, 50, 51)])
            log.records[("T", 0)] = []
            log.first[("T", 0)] = 50
            log.append("T", 0, b"after the gap")
            broker.appended()
            await until(lambda: len(seen.messages) == 2)
            await until(lambda: log.offsets.get(("g", "T", 0)) == 51)
        assert seen.messages[1].queue_offset == 50


async def test_offset_reset_by_an_administrator() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 10, queues=1)
        seen = Seen()
        async with consumer_of(cluster, seen):
            await until(lambda: committed(cluster)[0] == 10)
            body = dumps({"offsetTable": {WireQueue("T", "g0", 0): 7}})
            ext = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
            cluster.brokers["g0"][0].push(
                RemotingCommand.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
            )
            await until(lambda: len(seen.messages) == 13)
            assert [m.queue_offset for m in seen.messages[10:]] == [7, 8, 9]


async def test_consumer_running_info_is_answered() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 4)
        async with consumer_of(cluster, Seen()) as consumer:
            await until(lambda: len(consumer.queues) == 4)
            connections = list(cluster.brokers["g0"][0].server.connections)
            answer = await connections[0].invoke(
                RemotingCommand.request(
                    RequestCode.GET_CONSUMER_RUNNING_INFO,
                    {"consumerGroup": "g", "clientId": consumer.client_id},
                ),
                3000,
            )
            info = loads_object(answer.body)
            assert set(info["mqTable"]) == {WireQueue("T", "g0", n) for n in range(4)}
            assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"


async def test_damaged_pull_body_is_not_skipped() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 2, queues=1)
        log = cluster.logs["g0"]
        good = log.records[("T", 0)][0]
        log.records[("T", 0)][0] = good[:-1] + b"\xff" + b"tail"
        seen = Seen()
        async with consumer_of(cluster, seen):
            broker = cluster.brokers["g0"][0]
            await until(lambda: broker.count(RequestCode.PULL_MESSAGE) >= 3)
            assert seen.messages == []
            log.records[("T", 0)][0] = good
            await until(lambda: len(seen.messages) == 2)
