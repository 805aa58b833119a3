"""The simple consumer against a scripted cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from raftmq.client import metadata as directory
from raftmq.client.consumer import simple_consumer as simple
from raftmq.client.consumer.simple_consumer import LATE_MAX, Answer, LatePops, Pop, SimpleConsumer
from raftmq.client.decode import decode_messages
from raftmq.client.errors import BrokerUnreachable, ClientClosed, ClientError, NoRoute
from raftmq.client.message import MessageExt
from raftmq.client.subscription import Subscription, subscribe
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.names import pop_retry_topic
from raftmq.remoting.pop_headers import POP_CK, BatchAck, Handle, PopHeader, batch_acks
from tests.client.consumer.test_push_consumer import fill
from tests.client.fakes import FakeCluster, SharedLog
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


async def test_messages_of_several_topics_are_acknowledged_separately() -> None:
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


async def test_partly_void_acknowledgement_is_repeated_for_all_messages_at_once() -> None:
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        (broker,) = cluster.brokers["g0"]
        messages = [popped_message("T", offset) for offset in range(3)]
        void = (int(ResponseCode.NO_MESSAGE), "redelivered")
        broker.scripts[RequestCode.BATCH_ACK_MESSAGE] += [void, void]
        broker.scripts[RequestCode.ACK_MESSAGE] += [void, "ok", void, "silent"]
        assert len(await consumer.ack(messages)) == 2
        broker.requests.clear()
        acknowledging = asyncio.create_task(consumer.ack(messages))
        await until(lambda: broker.count(RequestCode.ACK_MESSAGE) == 3)  # the first is silent
        acknowledging.cancel()


async def test_waiting_pop_follows_the_successor_of_a_frozen_leader() -> None:
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


async def test_receive_times_out_without_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simple, "ANSWER_GRACE_MS", 300)
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        cluster.brokers["g0"][0].scripts[POP].extend(["silent"] * 9)
        now = asyncio.get_running_loop().time
        began = now()
        with pytest.raises(BrokerUnreachable) as caught:
            await consumer.receive(await_ms=100)
        assert 0.1 <= now() - began < 1.5
        assert caught.value.outcome_unknown


async def test_pops_that_a_broker_answers_at_once_are_repeated_with_pauses() -> None:
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        (broker,) = cluster.brokers["g0"]
        broker.scripts[POP].extend(["full"] * 1000)
        assert await consumer.receive(await_ms=4 * simple.ROUND_MS_MIN) == []
        assert 1 <= broker.count(POP) <= 5
        broker.scripts[POP].clear()
        fill(cluster, 1)
        (message,) = await consumer.receive(await_ms=1000)
        assert message.body == b"0"


async def test_silent_broker_group_does_not_block_messages_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simple, "SLICE_MS", 100)
    groups = {"g0": 1, "g1": 1}
    async with FakeCluster(groups) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        cluster.brokers["g1"][0].scripts[POP].extend(["silent"] * 99)
        fill(cluster, 6, queues=1)
        now = asyncio.get_running_loop().time
        for number in range(6):
            began = now()
            (message,) = await consumer.receive(await_ms=1000)
            assert message.body == b"%d" % number
            assert now() - began < 0.5
        assert await consumer.receive(await_ms=0) == [], "g0 answers"
        cluster.brokers["g0"][0].mode = "silent"
        with pytest.raises(BrokerUnreachable) as caught:
            await consumer.receive(await_ms=300)
        assert caught.value.outcome_unknown


async def test_late_pop_is_returned_while_another_group_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simple, "SLICE_MS", 50)
    groups = {"g0": 1, "g1": 1}
    async with FakeCluster(groups) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        slow, silent = cluster.brokers["g0"][0], cluster.brokers["g1"][0]
        silent.scripts[POP].append("silent")
        slow.scripts[POP].append("late")
        with pytest.raises(BrokerUnreachable):
            await consumer.receive(await_ms=0)
        monkeypatch.setattr(simple, "SLICE_MS", 60_000)
        consumer._turn = 0  # the silent group is first
        waiting = asyncio.create_task(consumer.receive(await_ms=60_000))
        await until(lambda: len(consumer._late.unanswered()) == 1)  # it waits for the silent group
        fill(cluster, 1, queues=1)
        slow.late.set()
        async with asyncio.timeout(2):  # no pop is given up before 3 s
            assert [message.body for message in await waiting] == [b"0"]
        assert silent.count(POP) == slow.count(POP) == 1


async def cancelled(waiting: asyncio.Task[list[MessageExt]]) -> None:
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert waiting.cancelled()


async def late_message(
    cluster: FakeCluster, consumer: SimpleConsumer, *, count: int, in_one_turn: bool = False
) -> None:
    """Have a pop get the message "0" of `count` for a caller who is gone."""
    broker = cluster.brokers["g0"][0]
    broker.scripts[POP].append("late")
    gone = asyncio.create_task(consumer.receive())
    await until(lambda: broker.count(POP))
    (pop,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("pop "))
    if in_one_turn:
        pop.add_done_callback(lambda _: gone.cancel())
    else:
        await cancelled(gone)
    fill(cluster, count, queues=1)
    broker.late.set()
    await asyncio.wait((pop,))
    await asyncio.wait((gone,))
    assert gone.cancelled()
    assert broker.count(POP) == 1


@pytest.mark.parametrize("in_one_turn", [False, True])
@pytest.mark.parametrize(("count_max", "invisible_ms"), [(32, 60_000), (1, 60_000), (32, 30_000)])
async def test_pop_of_a_cancelled_receive_is_returned_by_the_next(
    count_max: int, invisible_ms: int, in_one_turn: bool
) -> None:
    """Nobody else could have it before its invisible time is over. The answer may come in the very
    turn of the loop in which the caller goes."""
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        await late_message(cluster, consumer, count=2, in_one_turn=in_one_turn)
        for body in (b"0", b"1"):
            got = await consumer.receive(count_max, invisible_ms=invisible_ms, await_ms=1000)
            assert [message.body for message in got] == [body]


async def test_several_cancelled_receives_leave_a_pop_each() -> None:
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        broker = cluster.brokers["g0"][0]
        broker.scripts[POP].extend(["late"] * 2)
        both = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        await until(lambda: broker.count(POP) == 2)
        for gone in both:
            await cancelled(gone)
        fill(cluster, 2, queues=1)
        broker.late.set()
        got = [await consumer.receive(await_ms=1000) for _ in range(2)]
        assert {message.body for (message,) in got} == {b"0", b"1"}
        assert broker.count(POP) == 2


@pytest.mark.parametrize(("expression", "pops"), [("*", 1), ("A", 2)])
async def test_late_pop_of_another_expression_is_not_returned(expression: str, pops: int) -> None:
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        await late_message(cluster, consumer, count=1)
        await consumer.subscribe("T", expression)
        got = await consumer.receive(await_ms=0)
        assert [message.body for message in got] == ([b"0"] if pops == 1 else [])
        assert cluster.brokers["g0"][0].count(POP) == pops


async def test_receive_ended_by_a_stop_raises_client_closed() -> None:
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        await consumer.subscribe("T")
        waiting = asyncio.create_task(consumer.receive())
        await until(lambda: cluster.brokers["g0"][0].count(POP))
        await consumer.stop()
        with pytest.raises(ClientClosed):
            await waiting


async def test_deleted_topic_does_not_block_messages_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "UNUSED_TOPIC_S", 0)
    async with FakeCluster({"g0": 1}) as cluster, SimpleConsumer("g", cluster.namesrv) as consumer:
        cluster.name_server.topics["U"] = {"g0": (1, 6)}
        await consumer.subscribe("U")
        await consumer.subscribe("T")
        del cluster.name_server.topics["U"]
        await consumer._instance.directory.refresh_all()
        await consumer._instance.directory.refresh_all()
        fill(cluster, 1)
        assert [m.body for m in await consumer.receive()] == [b"0"]
        consumer.unsubscribe("T")
        with pytest.raises(NoRoute):
            await consumer.receive(await_ms=0)


TARGET = ("T", "g0")
ALL = subscribe("T", "*", 1)
SILENT = BrokerUnreachable("no answer")


async def a_pop(
    found: int | ClientError | None,
    *,
    subscription: Subscription = ALL,
    count_max: int = 32,
    wait_ms: int = 20_000,
) -> Pop:
    """A pop that was begun at 0 s with 60 s of invisible time; answered at 10 s with so many
    messages, or an error. None: not answered."""
    messages: list[MessageExt] | ClientError | None
    messages = [popped_message("T", n) for n in range(found)] if isinstance(found, int) else found

    async def work() -> Answer:
        return Answer(await asyncio.Future() if messages is None else messages, 10.0)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    return Pop(TARGET, subscription, count_max, 60_000, 0.0, wait_ms, task)


@pytest.mark.parametrize(
    ("found", "count_max", "invisible_ms", "now_s", "taken"),
    [
        (2, 32, 60_000, 25.0, True),
        (2, 32, 60_000, 26.0, False),  # less than 45 s of the invisible time are left
        (2, 32, 30_000, 47.0, True),
        (2, 32, 90_000, 11.0, False),
        (2, 2, 60_000, 11.0, True),
        (2, 1, 60_000, 11.0, False),
        (None, 32, 60_000, 19.0, True),
        (None, 31, 60_000, 19.0, False),  # it may get more
    ],
)
async def test_late_pop_is_taken_by_a_matching_call(
    found: int | None, count_max: int, invisible_ms: int, now_s: float, taken: bool
) -> None:
    pops, pop = LatePops(), await a_pop(found)
    pops.keep(pop, 10.0)
    assert pops.take(TARGET, ALL, count_max, invisible_ms, now_s) is (pop if taken else None)
    later = pops.take(TARGET, ALL, 32, 30_000, now_s)
    assert later is (None if taken else pop), "it was taken once, or stays for whom it serves"


@pytest.mark.parametrize(("wait_ms", "popped_s"), [(0, 0.0), (1_000, 1.0), (20_000, 10.0)])
async def test_messages_are_invisible_since_the_wait_of_a_late_answer(
    wait_ms: int, popped_s: float
) -> None:
    """The broker popped them before its answer arrived, and no later than at the end of a wait."""
    for late_s, taken in ((15.0, True), (15.1, False)):
        pops, pop = LatePops(), await a_pop(1, wait_ms=wait_ms)
        pops.keep(pop, 10.0)
        now_s = popped_s + late_s
        assert pops.take(TARGET, ALL, 32, 60_000, now_s) is (pop if taken else None)


@pytest.mark.parametrize("found", [0, SILENT])
async def test_late_pop_without_messages_is_not_kept(found: int | ClientError) -> None:
    pops = LatePops()
    pops.keep(await a_pop(found), 11.0)
    assert pops.take(TARGET, ALL, 32, 1_000, 11.0) is None


async def test_late_pop_after_its_invisible_time_is_dropped() -> None:
    pops = LatePops()
    pops.keep(await a_pop(1), 11.0)
    assert pops.take(TARGET, ALL, 32, 1, 70.0) is None
    assert pops.take(TARGET, ALL, 32, 1, 11.0) is None


async def test_late_pops_are_limited_in_number() -> None:
    made = [await a_pop(1) for _ in range(LATE_MAX + 1)]
    pops = LatePops()
    for pop in made:
        pops.keep(pop, 11.0)
    taken = [pops.take(TARGET, ALL, 32, 60_000, 11.0) for _ in made]
    assert taken == [*made[:LATE_MAX], None], "the oldest first"


async def test_late_pop_of_another_expression_or_topic_is_dropped() -> None:
    pops = LatePops()
    pops.keep(await a_pop(1), 11.0)
    assert pops.take(TARGET, subscribe("T", "A", 2), 32, 60_000, 11.0) is None
    assert pops.take(TARGET, ALL, 32, 60_000, 11.0) is None
    pops.keep(await a_pop(1), 11.0)
    assert pops.take(TARGET, subscribe("T", "*", 2), 32, 60_000, 11.0) is not None
    pops.keep(await a_pop(1), 11.0)
    pops.forget("T")
    assert pops.take(TARGET, ALL, 32, 60_000, 11.0) is None


async def test_target_is_owed_while_a_late_pop_is_unanswered() -> None:
    pops, pop = LatePops(), await a_pop(None)
    assert not pops.owed(TARGET)
    pops.keep(await a_pop(1), 11.0)
    assert not pops.owed(TARGET), "it answered"
    pops.keep(pop, 11.0)
    assert pops.owed(TARGET)
    while len(pops._pops[TARGET]) < LATE_MAX:
        pops.keep(pop, 11.0)
    assert not pops.owed(TARGET), "no further one would be kept"
    assert pop.silence(19.0) == []
    assert isinstance(pop.silence(20.0), BrokerUnreachable)
