"""The pull consumers, broadcasting and the bounds of the cache, on a scripted cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raftmq.client import (
    BrokerRefused,
    BrokerUnreachable,
    CacheLimits,
    ClientError,
    ConsumeFrom,
    LitePullConfig,
    LitePullConsumer,
    MessageExt,
    MessageModel,
    MessageQueue,
    OffsetFile,
    OffsetStorage,
    PullConfig,
    PullConsumer,
    PullStatus,
    PushConsumer,
)
from raftmq.client.consumer import pull_consumer as pullconsumer
from raftmq.client.consumer.local_offset_store import LocalOffsetStore
from raftmq.client.consumer.process_queue import CacheBudget, ProcessQueue
from raftmq.client.errors import ClientClosed
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.fast_json import MessageQueue as WireQueue
from raftmq.remoting.fast_json import dumps, loads_object
from raftmq.remoting.headers import PullHeader
from tests.client.consumer.test_push_consumer import QUICK, Seen, committed, fill
from tests.client.fakes import FakeBroker, FakeCluster, queue
from tests.client.test_pure import messages_at
from tests.waiting import until

LITE = LitePullConfig(
    consume_from=ConsumeFrom.FIRST_OFFSET,
    auto_commit_interval_ms=0,
    pull=PullConfig(suspend_ms=300),
)


def lite_of(cluster: FakeCluster, config: LitePullConfig = LITE) -> LitePullConsumer:
    return LitePullConsumer("g", cluster.namesrv, config=config)


async def poll_all(consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    got: list[MessageExt] = []
    async with asyncio.timeout(60):
        while len(got) < count:
            got += await consumer.poll(1000)
    return got


# ---- pull


async def test_pull_by_queue_and_offset() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 40, tags="A")
        async with PullConsumer("g", cluster.namesrv) as consumer:
            assert await consumer.queues("T") == tuple(queue(n) for n in range(4))
            result = await consumer.pull(queue(1), 3, 5)
            assert [m.queue_offset for m in result.messages] == [3, 4, 5, 6, 7]
            assert result[2:] == (8, 0, 10) and result.status is PullStatus.FOUND
            nothing = await consumer.pull(queue(1), 3, 5, "B")
            assert nothing.status is PullStatus.NO_MATCHED_MESSAGE and nothing.next_offset == 8
            empty = await consumer.pull(queue(1), 10)
            assert empty.status is PullStatus.NO_NEW_MESSAGE
            assert await consumer.max_offset(queue(1)) == 10
            assert await consumer.min_offset(queue(1)) == 0
            assert await consumer.offset_for(queue(1), 6) == 4
            cluster.brokers["g0"][0].pull_answers.append((16, 0, 0, 0))
            with pytest.raises(BrokerRefused):
                await consumer.pull(queue(1), 0)


async def test_fetch_continues_and_commits_its_position() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 40)
        async with PullConsumer("g", cluster.namesrv) as consumer:
            with pytest.raises(ClientError):
                await consumer.commit(queue(0))
            assert len(await consumer.fetch(queue(0), 4)) == 4
            assert [m.queue_offset for m in await consumer.fetch(queue(0), 4)] == [4, 5, 6, 7]
            await consumer.commit(queue(0))
            assert await consumer.committed(queue(0)) == 8
            assert await consumer.committed(queue(1)) is None
            consumer.seek(queue(0), 2)
            assert (await consumer.fetch(queue(0), 1))[0].queue_offset == 2
            await consumer.commit(queue(0), 1)
            assert committed(cluster)[0] == 1, "the user may go back"
        async with PullConsumer("g", cluster.namesrv) as consumer:
            assert (await consumer.fetch(queue(0)))[0].queue_offset == 1
            # Retention went past us: on with the first there is. A replica that is behind: stay.
            answers = cluster.brokers["g0"][0].pull_answers
            answers.append((21, 50, 50, 60))
            assert await consumer.fetch(queue(0)) == [] and consumer.position(queue(0)) == 50
            answers.append((21, 3, 0, 3))
            assert await consumer.fetch(queue(0)) == [] and consumer.position(queue(0)) == 50


async def test_waiting_pull_survives_a_leader_crash() -> None:
    async with FakeCluster({"g0": 3}) as cluster, PullConsumer("g", cluster.namesrv) as consumer:
        waiting = asyncio.create_task(consumer.pull(queue(0), 0, wait_ms=20_000))
        await until(lambda: cluster.brokers["g0"][0].count(RequestCode.PULL_MESSAGE))
        cluster.lead("g0", 1, tell_route=True)
        await cluster.brokers["g0"][0].stop()
        fill(cluster, 1)
        assert [m.body for m in (await waiting).messages] == [b"0"]


async def test_waiting_pull_follows_the_successor_of_a_frozen_leader() -> None:
    """A frozen leader keeps its connections: only the route tells that another one leads."""
    async with FakeCluster({"g0": 3}) as cluster, PullConsumer("g", cluster.namesrv) as consumer:
        frozen, leader, _ = cluster.brokers["g0"]
        frozen.scripts[RequestCode.PULL_MESSAGE].append("silent")
        waiting = asyncio.create_task(consumer.pull(queue(0), 0, wait_ms=60_000))
        await until(lambda: frozen.count(RequestCode.PULL_MESSAGE))
        cluster.lead("g0", 1, tell_route=True)
        await consumer.queues("T")
        await until(lambda: leader.count(RequestCode.PULL_MESSAGE), patience_s=10)
        header = PullHeader.parse(leader.received(RequestCode.PULL_MESSAGE)[0].ext)
        assert 0 < header.suspend_timeout_ms < 60_000, "what is left"
        fill(cluster, 1)
        assert [m.body for m in (await waiting).messages] == [b"0"]


async def test_pull_times_out_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pullconsumer, "ANSWER_GRACE_MS", 300)
    async with FakeCluster({"g0": 1}) as cluster, PullConsumer("g", cluster.namesrv) as consumer:
        cluster.brokers["g0"][0].scripts[RequestCode.PULL_MESSAGE].extend(["silent"] * 9)
        now = asyncio.get_running_loop().time
        began = now()
        with pytest.raises(BrokerUnreachable) as caught:
            await consumer.pull(queue(0), 0, wait_ms=100)
        assert 0.1 <= now() - began < 1.5
        assert caught.value.outcome_unknown


def cold(cluster: FakeCluster) -> tuple[FakeBroker, FakeBroker]:
    """The leader, and the follower that it suggests; both serve pulls."""
    leader, follower = cluster.brokers["g0"]
    leader.suggests = follower.suggests = 1
    follower.pull_refused = False
    return leader, follower


async def test_cold_data_are_pulled_from_the_suggested_follower() -> None:
    async with FakeCluster({"g0": 2}, queues=1) as cluster:
        leader, follower = cold(cluster)
        fill(cluster, 9, queues=1)
        pull = RequestCode.PULL_MESSAGE
        async with PullConsumer("g", cluster.namesrv) as consumer:
            consumer.seek(queue(0), 0)
            got = [m for _ in range(3) for m in await consumer.fetch(queue(0), 3)]
            assert [m.queue_offset for m in got] == list(range(9))
            assert (leader.count(pull), follower.count(pull)) == (1, 2)
            # That there is nothing new the leader says, and it is the leader who waits.
            waiting = asyncio.create_task(consumer.fetch(queue(0), wait_ms=20_000))
            await until(lambda: leader.count(pull) == 2)
            assert follower.count(pull) == 3 and not waiting.done()
            fill(cluster, 1, queues=1)
            assert [m.queue_offset for m in await waiting] == [9]
            await follower.stop()
            consumer.seek(queue(0), 0)
            assert len(await consumer.fetch(queue(0), 3)) == 3, "from the leader"
            assert leader.count(pull) == 3


async def test_lite_consumer_pulls_from_the_suggested_follower() -> None:
    async with FakeCluster({"g0": 2}, queues=1) as cluster:
        leader, follower = cold(cluster)
        fill(cluster, 9, queues=1)
        pulls = replace(LITE.pull, batch_size=3)
        consumer = lite_of(cluster, replace(LITE, poll_size=3, pull=pulls))
        consumer.subscribe("T")
        async with consumer:
            got = await poll_all(consumer, 9)
            assert [m.queue_offset for m in got] == list(range(9))
            lite = RequestCode.LITE_PULL_MESSAGE
            assert leader.count(lite) == 1 and follower.count(lite) >= 2
            await follower.stop()
            fill(cluster, 1, queues=1)
            assert [m.queue_offset for m in await poll_all(consumer, 1)] == [9]


async def test_lite_consumer_that_is_not_running_raises_client_closed() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        consumer = lite_of(cluster, LITE)
        with pytest.raises(ClientClosed):
            await consumer.poll(10)
        async with consumer:
            assert await consumer.poll(10) == []
        with pytest.raises(ClientClosed):
            await consumer.poll(10)


async def test_expressions_are_limited_in_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pullconsumer, "SUBSCRIPTIONS_MAX", 2)
    async with FakeCluster({"g0": 1}) as cluster, PullConsumer("g", cluster.namesrv) as consumer:
        for tag in ("a", "b", "a"):
            await consumer.pull(queue(0), 0, expression=tag)
        with pytest.raises(ClientError):
            await consumer.pull(queue(0), 0, expression="c")


# ---- lite pull


async def test_polls_share_queues_and_commit_processed_messages() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 40)
        consumer = lite_of(cluster, replace(LITE, poll_size=10))
        consumer.subscribe("T")
        async with consumer:
            got = await poll_all(consumer, 30)
            assert len(consumer.assignment) == 4
            assert sum(max(0, o) for o in committed(cluster)) <= 20, "not what is in hand"
            got += await poll_all(consumer, 10)
            assert sorted(m.queue_id for m in got) == sorted([0, 1, 2, 3] * 10)
            assert await consumer.poll(1) == []
            await until(lambda: committed(cluster) == [10] * 4)
            requests = cluster.brokers["g0"][0].received(RequestCode.LITE_PULL_MESSAGE)
            assert PullHeader.parse(requests[0].ext).sys_flag & 0x10
            beat = cluster.brokers["g0"][0].received(RequestCode.HEART_BEAT)[-1]
            assert loads_object(beat.body)["consumerDataSet"][0]["consumeType"] == (
                "CONSUME_ACTIVELY"
            )


async def test_poll_does_not_wait_for_a_commit() -> None:
    """A broker that is silent keeps nobody from the messages that are here, and is asked once."""
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 12, queues=1)
        broker = cluster.brokers["g0"][0]
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        consumer = lite_of(cluster, replace(LITE, poll_size=4))
        consumer.subscribe("T")
        async with consumer:
            assert len(await poll_all(consumer, 4)) == 4
            broker.scripts[code].append("silent")
            async with asyncio.timeout(1):
                assert len(await consumer.poll(500)) == 4
                await until(lambda: broker.count(code) == 1)
                assert len(await consumer.poll(500)) == 4
                assert await consumer.poll(50) == []
            assert broker.count(code) == 1
        assert cluster.logs["g0"].offsets[("g", "T", 0)] == 12, "after those under way"


async def test_messages_unprocessed_at_a_stop_are_redelivered() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 10, queues=1)
        consumer = lite_of(cluster, replace(LITE, poll_size=4))
        consumer.subscribe("T")
        async with consumer:
            assert len(await poll_all(consumer, 8)) == 8
        assert cluster.logs["g0"].offsets[("g", "T", 0)] == 4


async def test_commits_by_hand() -> None:
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        fill(cluster, 10, queues=1)
        consumer = lite_of(cluster, replace(LITE, poll_size=4, auto_commit=False))
        consumer.subscribe("T")
        async with consumer:
            await poll_all(consumer, 8)
            assert await consumer.committed(queue(0)) is None
            assert await consumer.commit() == {queue(0): 8}
            assert await consumer.commit({queue(0): 3}) == {queue(0): 3}
            assert await consumer.committed(queue(0)) == 3
        assert cluster.logs["g0"].offsets[("g", "T", 0)] == 3


async def test_assigned_queues_seek_pause_and_resume() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 40)
        async with lite_of(cluster) as consumer:
            await consumer.assign([queue(0), queue(2)])
            assert consumer.assignment == tuple(map(queue, (0, 2)))
            with pytest.raises(ClientError):
                consumer.subscribe("T")
            assert len(await poll_all(consumer, 20)) == 20
            await consumer.seek(queue(2), 7)
            assert [m.queue_offset for m in await poll_all(consumer, 3)] == [7, 8, 9]
            consumer.pause([queue(0)])
            await consumer.seek_to_begin(queue(0))
            assert await consumer.poll(30) == []
            consumer.resume([queue(0)])
            assert len(await poll_all(consumer, 10)) == 10
            await consumer.seek_to_end(queue(0))
            assert consumer.position(queue(0)) == 10
            assert await consumer.offset_for(queue(0), 5) == 3
            await consumer.assign([queue(1)])
            assert consumer.assignment == (queue(1),)
            assert {m.queue_id for m in await poll_all(consumer, 10)} == {1}
        assert committed(cluster) == [10, 0, 10, -1], "queue 1 is in hand"


async def test_lite_pulls_follow_the_leader_and_queue_changes_are_reported() -> None:
    reported: list[tuple[str, int]] = []
    async with FakeCluster({"g0": 3}) as cluster:
        fill(cluster, 8)
        consumer = LitePullConsumer(
            "g",
            cluster.namesrv,
            config=LITE,
            on_queues_changed=lambda topic, queues: reported.append((topic, len(queues))),
        )
        consumer.subscribe("T")
        async with consumer:
            await poll_all(consumer, 8)
            cluster.lead("g0", 1, tell_route=True)
            await cluster.brokers["g0"][0].stop()
            fill(cluster, 8)
            assert len({m.commit_log_offset for m in await poll_all(consumer, 8)}) == 8
        assert reported == [("T", 4)]


async def test_lite_consumer_answers_broker_requests() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 40)
        consumer = lite_of(cluster, replace(LITE, poll_size=40))
        consumer.subscribe("T")
        async with consumer:
            await poll_all(consumer, 40)
            await consumer.poll(1)  # and so they are processed
            (connection,) = cluster.brokers["g0"][0].server.connections

            async def ask(code: RequestCode, ext: dict[str, str], body: bytes = b"") -> Any:
                command = RemotingCommand.request(code, ext, body)
                answer = await connection.invoke(command, 5000)
                return answer.code, loads_object(answer.body) if answer.body else None

            positions = {WireQueue("T", "g0", n): 10 for n in range(4)}
            who = {"consumerGroup": "g", "clientId": consumer.client_id}
            code, info = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, who)
            assert code == 0 and info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
            assert {q: v["commitOffset"] for q, v in info["mqTable"].items()} == positions
            assert [s["topic"] for s in info["subscriptionSet"]] == ["T"]
            status = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
            assert await ask(status, {"topic": "T", "group": "g"}) == (
                0,
                {"messageQueueTable": positions},
            )
            assert (await ask(status, {"topic": "T", "group": "other"}))[0] == 1
            reset = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
            table = dumps({"offsetTable": {WireQueue("T", "g0", n): 7 for n in (0, 9)}})
            assert (await ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, table))[0] == 0
            assert committed(cluster)[0] == 7
            again = await poll_all(consumer, 3)
            assert [(m.queue_id, m.queue_offset) for m in again] == [(0, 7), (0, 8), (0, 9)]
            code, _ = await ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, who)
            assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "it has no listener"


# ---- broadcasting


class Kept:
    """An offset storage of the user's own."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.broken = False

    def load(self) -> Mapping[MessageQueue, int]:
        return self.offsets

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        if self.broken:
            raise OSError("no space left on device")
        self.offsets = dict(offsets)


async def test_broadcasting_consumers_get_all_messages_and_keep_local_offsets(
    tmp_path: Path,
) -> None:
    file = OffsetFile(tmp_path / "a" / "offsets.json")
    kept = Kept()
    config = replace(QUICK, message_model=MessageModel.BROADCASTING)
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 8)
        seen = [Seen(), Seen(failures=10**6)]
        storages: list[OffsetStorage] = [file, kept]
        consumers = [
            PushConsumer("g", cluster.namesrv, s, config=replace(config, offset_storage=o))
            for s, o in zip(seen, storages, strict=True)
        ]
        for consumer in consumers:
            consumer.subscribe("T")
            await consumer.start()
        await until(lambda: len(seen[0].messages) == 8)
        await until(lambda: list(kept.offsets.values()) == [2] * 4)  # failures are passed over
        kept.broken = True
        fill(cluster, 4)
        await until(lambda: len(seen[0].messages) == 12)
        kept.broken = False
        for consumer in consumers:
            await consumer.stop()
        assert cluster.logs["g0"].offsets == {} and set(kept.offsets.values()) == {3}
        broker = cluster.brokers["g0"][0]
        assert broker.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 0
        assert file.load() == {queue(n): 3 for n in range(4)}
        fill(cluster, 4)
        again = Seen()
        last = PushConsumer(
            "g", cluster.namesrv, again, config=replace(config, offset_storage=file)
        )
        last.subscribe("T")
        async with last:
            await until(lambda: len(again.messages) == 4)
            await asyncio.sleep(0)
        assert {m.queue_offset for m in again.messages} == {3}


async def test_stopping_consumer_waits_for_the_save_in_progress() -> None:
    """Or two of them would write one file, or write it after the consumer is gone."""
    started, go_on = threading.Event(), threading.Event()

    class Slow(Kept):
        saving = 0

        def save(self, offsets: Mapping[MessageQueue, int]) -> None:
            self.saving += 1
            assert self.saving == 1, "another save is under way"
            started.set()
            assert go_on.wait(60)
            super().save(offsets)
            self.saving -= 1

    kept = Slow()
    store = LocalOffsetStore(kept)
    store.table.start(queue(0), 1)
    periodic = asyncio.create_task(store.commit_oneway())
    assert await asyncio.to_thread(started.wait, 60)
    periodic.cancel()
    last = asyncio.create_task(store.commit_confirmed())
    await asyncio.sleep(0.01)  # time enough to begin
    assert kept.saving == 1 and not periodic.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await periodic
    assert await last == {queue(0): 1} == kept.offsets


def test_offset_file_is_javas_and_survives_damage(tmp_path: Path) -> None:
    file = OffsetFile(tmp_path / "offsets.json")
    assert file.load() == {}
    file.save({queue(0): 1})
    file.save({queue(0): 5, queue(1): 2**40})
    text = file.path.read_bytes()
    assert text.startswith(b'{"offsetTable":{{"brokerName":"g0","queueId":0,"topic":"T"}:5,')
    assert file.load() == {queue(0): 5, queue(1): 2**40}
    file.path.write_bytes(text[:20])
    assert file.load() == {queue(0): 1}, "the version before it"
    file.path.with_name("offsets.json.bak").write_bytes(b"{}")
    assert file.load() == {}


# ---- bounds


def test_cached_messages_are_limited_over_all_queues() -> None:
    limits = CacheLimits(all_messages_max=5, all_size_bytes_max=10_000)
    budget = CacheBudget(limits)
    woken: list[str] = []
    budget.waiting["x"] = lambda: woken.append("x")
    one, two = ProcessQueue(0, limits, budget), ProcessQueue(0, limits, budget)
    one.add(messages_at(0, 1, 2), 3)
    assert not two.full
    two.add(messages_at(0, 1), 2)
    assert one.full and two.full and woken == []
    batch = one.take(1)
    assert batch is not None
    one.finish(batch)
    assert not two.full and woken == ["x"]
    two.discard()
    two.discard()
    assert budget.count == 2
    one.add(messages_at(3, 4, 5), 6)
    assert one.full
    one.discard()
    batch = one.take(1)
    assert batch is not None
    one.finish(batch)  # a batch in hand of a queue that is given up
    assert (budget.count, budget.size_bytes) == (0, 0)
    heavy = ProcessQueue(0, replace(limits, all_size_bytes_max=100))
    heavy.add(messages_at(0), 1)
    assert heavy.full, "by bytes"


def test_stuck_message_stops_pulling_at_the_span_limit() -> None:
    cached = ProcessQueue(0, CacheLimits(span_max=10))
    cached.add(messages_at(*range(10)), 10)
    first = cached.take(1)
    rest = cached.take(9)
    assert first is not None and rest is not None
    cached.finish(rest)
    assert cached.cached_count == 1 and cached.full
    cached.finish(first)
    assert not cached.full
    cached.add([], 5000)
    assert not cached.full, "what was filtered out would not come again"


# ---- what is asked of a consumer


async def test_consumer_offset_status_is_answered() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        fill(cluster, 8)
        consumer = PushConsumer("g", cluster.namesrv, Seen(), config=QUICK)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: committed(cluster) == [2] * 4)
            (connection,) = list(cluster.brokers["g0"][0].server.connections)[:1]
            for group, code in (("g", 0), ("another", 1)):
                ask = RemotingCommand.request(221, {"topic": "T", "group": group})
                answer = await connection.invoke(ask, 3000)
                assert answer.code == code
                if not code:
                    table = loads_object(answer.body)["messageQueueTable"]
                    assert table == {WireQueue("T", "g0", n): 2 for n in range(4)}


@pytest.mark.parametrize("answer", [(1, "filtering is off"), (23, "no grammar")])
async def test_expression_rejected_by_the_broker_prevents_the_start(
    answer: tuple[int, str],
) -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        broker.scripts[RequestCode.CHECK_CLIENT_CONFIG].append(answer)
        consumer = PushConsumer("g", cluster.namesrv, Seen(), config=QUICK)
        consumer.subscribe("T", "a >", "SQL92")
        with pytest.raises(BrokerRefused):
            await consumer.start()
        seen = Seen()
        good = PushConsumer("g", cluster.namesrv, seen, config=QUICK)
        good.subscribe("T", "a > 5", "SQL92")
        async with good:
            fill(cluster, 4)
            await until(lambda: len(seen.messages) == 4)
        pulls = [PullHeader.parse(r.ext) for r in broker.received(RequestCode.PULL_MESSAGE)]
        assert ("SQL92", "a > 5") in {(p.expression_type, p.subscription) for p in pulls}
