"""A consumer's membership in its group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from raftmq.client import (
    ClientError,
    ConsumerConfig,
    LockConfig,
    MessageModel,
    MessageQueue,
    PullConfig,
)
from raftmq.client.consumer.membership import Membership
from raftmq.client.consumer.process_queue import Batch
from raftmq.client.consumer.queue_puller import QueueWorker
from raftmq.client.consumer.remote_offset_store import OffsetStore
from raftmq.client.instance import ClientInstance
from raftmq.remoting.codes import RequestCode
from tests.client.fakes import FakeCluster, queue
from tests.waiting import until

PULL = PullConfig(consume_tasks=0, suspend_ms=200)


class Notes:
    """A member that keeps what it is told."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.gone: list[MessageQueue] = []
        self.committed: list[MessageQueue] = []
        self.all: tuple[MessageQueue, ...] = ()
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    def arrived(self, queue: MessageQueue) -> None: ...

    async def consume(
        self, queue: MessageQueue, batch: Batch, finish: Callable[[], None]
    ) -> None: ...

    def advanced(self, queue: MessageQueue, offset: int) -> None: ...

    def rewound(self, queue: MessageQueue, offset: int) -> None: ...

    def began(self, worker: QueueWorker, offset: int) -> None:
        self.offsets[worker.queue] = offset

    async def released(self, queues: Sequence[MessageQueue]) -> None:
        self.gone += queues
        await self.may_commit.wait()
        self.committed += queues

    def queues_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        self.all = tuple(queues)


def member_of(
    cluster: FakeCluster, notes: Notes, config: ConsumerConfig, lock: LockConfig | None = None
) -> Membership:
    instance = ClientInstance(cluster.namesrv)
    offsets = OffsetStore("g", instance)
    return Membership("g", "CONSUME_PASSIVELY", instance, notes, offsets, config, PULL, lock)


async def test_member_takes_its_queues_and_releases_them_when_it_leaves() -> None:
    notes = Notes()
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.logs["g0"].append("T", 0, b"x")
        cluster.logs["g0"].offsets["g", "T", 0] = 1
        member = member_of(cluster, notes, ConsumerConfig())
        member.subscribe("T", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 4)
        assert member.queues == notes.all == tuple(queue(number) for number in range(4))
        assert notes.offsets == {queue(number): int(number == 0) for number in range(4)}
        assert {by.topic for by in member.held().values()} == {"T"}
        await member.stop()
        assert sorted(notes.gone) == list(notes.all) and member.queues == ()
        assert cluster.brokers["g0"][0].count(RequestCode.UNREGISTER_CLIENT) == 1
        assert not member.instance.running


async def test_queue_that_appears_later_starts_at_its_first_message() -> None:
    """A further broker group gets messages before its consumers rebalance."""
    notes = Notes()
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.logs["g0"].append("T", 0, b"x")
        cluster.logs["g0"].append("T", 4, b"x")
        member = member_of(cluster, notes, ConsumerConfig())
        member.subscribe("T", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 4)
        cluster.name_server.topics["T"] = {"g0": (5, 6)}
        member.rebalancer.ask()
        await until(lambda: len(member.queues) == 5)
        assert (notes.offsets[queue(0)], notes.offsets[queue(4)]) == (1, 0)
        await member.stop()


async def test_member_with_a_failed_last_commit_still_leaves_its_group() -> None:
    """Else it would stay a member, with queues that nobody reads."""

    class Failing(Notes):
        async def released(self, queues: Sequence[MessageQueue]) -> None:
            raise ZeroDivisionError

    async with FakeCluster({"g0": 1}) as cluster:
        member = member_of(cluster, Failing(), ConsumerConfig(), LockConfig())
        member.subscribe("T", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 4)
        with pytest.raises(ZeroDivisionError):
            await member.stop()
        assert cluster.brokers["g0"][0].members == {"g": set()}
        assert not member.instance.running


async def test_leaving_member_waits_for_queues_under_release() -> None:
    notes = Notes()
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        cluster.name_server.topics["U"] = {"g0": (4, 6)}
        member = member_of(cluster, notes, ConsumerConfig(), LockConfig())
        member.subscribe("T", "*", "TAG")
        member.subscribe("U", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 8)
        notes.may_commit.clear()
        member.unsubscribe("T")
        await until(lambda: len(notes.gone) == 4)
        stopping = asyncio.create_task(member.stop())
        await until(lambda: len(notes.gone) == 8)
        assert len(broker.locks) == 8 and broker.members["g"]
        notes.may_commit.set()
        await stopping
        assert sorted(notes.committed) == sorted(notes.gone) and len(notes.gone) == 8
        assert broker.locks == {} and not broker.members["g"]


async def test_queue_is_taken_again_only_after_its_release() -> None:
    """Also if who gave it up waits no longer: its last commit says where to begin."""
    notes = Notes()
    async with FakeCluster({"g0": 1}) as cluster:
        member = member_of(cluster, notes, ConsumerConfig())
        member.subscribe("T", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 4)
        await member.rebalancer.stop()
        notes.may_commit.clear()
        giving_up = asyncio.create_task(member.release([queue(0)]))
        await until(lambda: notes.gone)
        giving_up.cancel()
        await asyncio.wait((giving_up,))
        notes.offsets.clear()
        taking = asyncio.create_task(member.take(queue(0), member.subscriptions["T"]))
        await asyncio.sleep(0.05)
        assert notes.offsets == {} and not notes.committed
        notes.may_commit.set()
        assert await taking and notes.committed == [queue(0)] == list(notes.offsets)
        assert queue(0) in member.offsets.table.finished()
        await member.stop()


async def test_unsubscribed_topic_is_released() -> None:
    notes = Notes()
    async with FakeCluster({"g0": 1}) as cluster:
        config = ConsumerConfig(message_model=MessageModel.BROADCASTING)
        member = member_of(cluster, notes, config)
        with pytest.raises(ClientError):
            member.subscribe("T", "a || ", "TAG")
        member.subscribe("T", "a", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 4)
        member.unsubscribe("T")
        await until(lambda: member.queues == ())
        await member.stop()


async def test_rebalance_releases_and_takes_only_changed_queues() -> None:
    notes = Notes()
    mine = {"T": slice(0, 2), "U": slice(0, 4)}

    def allocate(
        queues: Sequence[MessageQueue], clients: Sequence[str], client: str
    ) -> tuple[MessageQueue, ...]:
        return tuple(queues[mine[queues[0].topic]])

    def held(topic: str) -> dict[MessageQueue, str]:
        return {q: by.expression for q, by in member.held().items() if q.topic == topic}

    async with FakeCluster({"g0": 1}) as cluster:
        cluster.name_server.topics["U"] = {"g0": (4, 6)}
        member = member_of(cluster, notes, ConsumerConfig(allocation=allocate))
        member.subscribe("T", "*", "TAG")
        member.subscribe("U", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 6)
        mine["T"] = slice(1, 3)
        member.rebalancer.ask()
        await until(lambda: held("T") == {queue(1): "*", queue(2): "*"} and notes.gone)
        assert notes.gone == [queue(0)] and len(held("U")) == 4
        member.subscribe("U", "a", "TAG")
        of_u = [queue(number, topic="U") for number in range(4)]
        await until(lambda: held("U") == dict.fromkeys(of_u, "a") and len(notes.gone) == 5)
        assert notes.gone == [queue(0), *of_u] and len(held("T")) == 2
        await member.stop()


async def test_lost_lock_during_a_release_does_not_end_rebalancing() -> None:
    notes = Notes()
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.name_server.topics["U"] = {"g0": (4, 6)}
        lock = LockConfig(renew_interval_ms=20)
        member = member_of(cluster, notes, ConsumerConfig(), lock)
        member.subscribe("T", "*", "TAG")
        member.subscribe("U", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 8)
        notes.may_commit.clear()
        for topic in "TU":
            member.unsubscribe(topic)
        await until(lambda: notes.gone)
        left = {"T", "U"} - {queue.topic for queue in notes.gone}
        lost = queue(0, topic=left.pop())
        cluster.brokers["g0"][0].locks["g", lost.topic, 0] = "another client"
        await until(lambda: lost not in member.queues)
        notes.may_commit.set()
        await until(lambda: len(notes.gone) == 7)  # they are told a moment after `queues` are empty
        assert not member.queues and lost not in notes.gone
        member.subscribe("T", "*", "TAG")
        await until(lambda: len(member.queues) >= 3)
        await member.stop()


async def test_queue_whose_lock_is_lost_before_its_start_is_not_started() -> None:
    """The offset that was read belongs to another one's past."""
    notes = Notes()
    async with FakeCluster({"g0": 1}) as cluster:
        locks = cluster.brokers["g0"][0].locks
        member = member_of(cluster, notes, ConsumerConfig(), LockConfig(renew_interval_ms=20))
        read, may_read = member.offsets.committed, asyncio.Event()

        async def committed(queue: MessageQueue) -> int | None:
            result = await read(queue)
            await may_read.wait()
            return result

        member.offsets.committed = committed  # type: ignore[method-assign]
        member.subscribe("T", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        mine = member.locks
        assert mine is not None
        await until(lambda: all(mine.held(queue(number)) for number in range(4)))
        locks["g", "T", 0] = "another client"
        await until(lambda: not mine.held(queue(0)))
        may_read.set()
        await until(lambda: len(member.queues) == 3)
        assert queue(0) not in notes.offsets
        del locks["g", "T", 0]
        await until(lambda: queue(0) in member.queues)
        await member.stop()


@pytest.mark.parametrize("answer", [ZeroDivisionError(), None], ids=["raises", "nothing"])
async def test_failing_allocation_strategy_is_retried(
    answer: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes()
    answers = [answer]

    def allocate(
        queues: Sequence[MessageQueue], clients: Sequence[str], client: str
    ) -> tuple[MessageQueue, ...]:
        if not answers:
            return tuple(queues)
        failure = answers.pop()
        if failure is not None:
            raise failure
        return failure  # type: ignore[return-value]

    async with FakeCluster({"g0": 1}) as cluster:
        member = member_of(cluster, notes, ConsumerConfig(allocation=allocate))
        member.subscribe("T", "*", "TAG")
        await member.start({})
        member.rebalancer.start()
        await until(lambda: len(member.queues) == 4)
        await member.stop()
    assert "rebalance_failed group=g" in caplog.text
