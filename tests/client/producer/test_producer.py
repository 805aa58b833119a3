"""The producer against a scripted cluster: every outcome, and how it gets past trouble."""

from __future__ import annotations

import asyncio
import time
import zlib
from dataclasses import replace

import pytest

from raftmq.client import (
    Message,
    Producer,
    SendConfig,
    SendFailed,
    SendOutcomeUnknown,
    SendStatus,
    SplitFailed,
    TooManyInFlight,
    split_batch,
)
from raftmq.client import metadata as directory
from raftmq.client.errors import ClientClosed, ClientError, InvalidMessage, RequestTimedOut
from raftmq.client.instance import ClientInstance
from raftmq.client.message import MessageQueue, SendResult
from raftmq.client.producer import sender as sending
from raftmq.client.producer.send_frame import OutgoingSend, SendTemplate, batch_item_size
from raftmq.remoting.codes import NOT_STORED, RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import SendHeader
from raftmq.remoting.recall_handle import RecallHandle
from tests.client.fakes import FakeCluster, queue
from tests.instances import instances_of
from tests.waiting import until

QUICK = SendConfig(attempt_timeout_ms=150, scout_timeout_ms=100, silence_ms=100)
# Where an answer in time is what is tested: a moment's standstill is no silence.
PATIENT = SendConfig(attempt_timeout_ms=600, scout_timeout_ms=600, silence_ms=300)


async def test_send_result_has_queue_offset_and_ids() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Producer("p", cluster.namesrv) as producer:
        result = await producer.send(Message("T", b"hello", tags="A", keys="k1 k2"))
        assert result.status is SendStatus.OK
        assert result.queue.broker_name == "g0" and result.queue_offset == 0
        assert result.attempts == 1
        assert len(result.msg_id) == 32 and len(result.offset_msg_id) == 32
        leader = cluster.brokers["g0"][0]
        header = SendHeader.parse(leader.requests[-1].ext)
        assert header.properties == (
            f"UNIQ_KEY\x01{result.msg_id}\x02WAIT\x01true\x02TAGS\x01A\x02KEYS\x01k1 k2\x02"
        )
        assert cluster.logs["g0"].unique_keys("T") == [result.msg_id]


async def test_sends_are_distributed_round_robin_over_queues() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        results = [await producer.send(Message("T", b"x")) for _ in range(8)]
        assert sorted(r.queue.queue_id for r in results) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_queue_and_selector_are_obeyed() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        result = await producer.send(Message("T", b"x"), queue=queue(2))
        assert result.queue == queue(2)
        chosen = await producer.send(
            Message("T", b"x"), selector=lambda queues, _m, arg: queues[arg % len(queues)], arg=7
        )
        assert chosen.queue == queue(3)


@pytest.mark.parametrize("status", [s for s in SendStatus if s is not SendStatus.OK])
async def test_stored_send_with_a_replication_status_is_no_error(status: SendStatus) -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        cluster.brokers["g0"][0].script.append((int(status), "slow disk"))
        result = await producer.send(Message("T", b"x"), queue=queue(0))
        assert result.status is status and result.attempts == 1


async def test_send_success_without_a_position_has_an_unknown_outcome() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        cluster.brokers["g0"][0].script.append((0, "no fields"))
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("T", b"x"), queue=queue(0))


# What the leader does to every attempt → the error, whether it is retriable, at least so many tries
OUTCOMES = [
    ((13, "message too big"), SendFailed, False, 1, 1),
    ((29, "bad queue"), SendFailed, False, 1, 1),
    ((2, "[BUSY] later"), SendFailed, True, 3, 60),
    ((14, "[DISK_FULL] no room"), SendFailed, True, 3, 60),
    ("refuse", SendFailed, True, 3, 100),
    ((1, "[OUTCOME_UNKNOWN] quorum"), SendOutcomeUnknown, True, 3, 60),
    ((1, "may be stored"), SendOutcomeUnknown, True, 3, 60),
    ((1, "queueId 99 is illegal", {NOT_STORED: "true"}), SendFailed, False, 1, 1),
    ("silent", SendOutcomeUnknown, True, 1, 1),  # over one connection once
    ("close", SendOutcomeUnknown, True, 3, 100),
]


@pytest.mark.parametrize(("mode", "error", "retriable", "least", "most"), OUTCOMES)
async def test_send_outcome_at_the_time_out(
    mode: object, error: type[Exception], retriable: bool, least: int, most: int
) -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        broker.mode = mode  # type: ignore[assignment]
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            loop = asyncio.get_running_loop()
            started = loop.time()
            with pytest.raises(error) as raised:
                await producer.send(Message("T", b"x"), timeout_ms=600)
            assert loop.time() - started < 5
            assert type(raised.value) is error
            assert raised.value.retriable is retriable  # type: ignore[attr-defined]
            attempts = raised.value.attempts  # type: ignore[attr-defined]
            sends = broker.count(RequestCode.SEND_MESSAGE_V2)
            assert least <= attempts <= most
            assert attempts == sends
            assert producer.in_flight == 0


async def test_every_retry_has_the_same_unique_key() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        broker.script.extend(["close", (1, "[OUTCOME_UNKNOWN]"), (2, "[BUSY]")])
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            result = await producer.send(Message("T", b"x"))
        assert result.attempts == 4
        sends = [r for r in broker.requests if r.code == RequestCode.SEND_MESSAGE_V2]
        keys = {SendHeader.parse(r.ext).properties for r in sends}
        assert len(sends) == 4 and len(keys) == 1
        # The broken attempt was stored, and so was the last: at most once per attempt.
        assert cluster.logs["g0"].unique_keys("T") == [result.msg_id] * 2


async def test_final_rejection_leaves_an_earlier_unknown_attempt_unknown() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.brokers["g0"][0].script.extend([(1, "[OUTCOME_UNKNOWN]"), (13, "too big")])
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            with pytest.raises(SendOutcomeUnknown) as raised:
                await producer.send(Message("T", b"x"))
            assert raised.value.attempts == 2


async def test_unknown_outcome_is_final_without_retry_unknown() -> None:
    config = SendConfig(retry_unknown=False)
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        for mode in ("close", (1, "[OUTCOME_UNKNOWN]"), "silent"):
            broker.mode = mode
            async with Producer("p", cluster.namesrv, config=config) as producer:
                with pytest.raises(SendOutcomeUnknown) as raised:
                    await producer.send(Message("T", b"x"))
                assert raised.value.attempts == 1


@pytest.mark.parametrize("hint", [False, True])
async def test_rejection_moves_the_send_to_the_new_leader_at_once(hint: bool) -> None:
    async with FakeCluster({"g0": 3}) as cluster, Producer("p", cluster.namesrv) as producer:
        await producer.send(Message("T", b"before"))
        cluster.lead("g0", 2, tell_route=False, hint=hint)
        result = await producer.send(Message("T", b"after"))
        assert result.attempts == (2 if hint else 3)
        assert result.offset_msg_id[8:16] == f"{cluster.brokers['g0'][2].port:08X}"
        assert cluster.logs["g0"].bodies("T").count(b"after") == 1


async def test_send_waits_for_a_new_leader_after_a_crash() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Producer("p", cluster.namesrv) as producer:
        await producer.send(Message("T", b"before"))
        cluster.no_leader("g0")
        await cluster.brokers["g0"][0].stop()
        requested = cluster.name_server.count(RequestCode.GET_BROKER_CLUSTER_INFO)
        sends = [asyncio.create_task(producer.send(Message("T", b"%d" % n))) for n in range(50)]
        await until(lambda: cluster.brokers["g0"][1].count(RequestCode.SEND_MESSAGE_V2) >= 3)
        assert cluster.name_server.count(RequestCode.GET_BROKER_CLUSTER_INFO) > requested
        probes = sum(b.count(RequestCode.SEND_MESSAGE_V2) for b in cluster.brokers["g0"][1:])
        assert probes < 50, "one message probes for the others"
        cluster.lead("g0", 2, tell_route=False)
        loop = asyncio.get_running_loop()
        ready_at = loop.time()
        results = await asyncio.gather(*sends)
        assert loop.time() - ready_at < 2  # generous; measured: a few tens of ms
        assert all(r.status is SendStatus.OK for r in results)
        assert sorted(cluster.logs["g0"].bodies("T")) == sorted(
            [b"before", *(b"%d" % n for n in range(50))]
        )


async def test_classic_slave_gets_no_sends() -> None:
    """Not while its master is away, nor by any kind of send; consumers may still ask it."""
    async with FakeCluster({"g0": 2}) as cluster:
        cluster.name_server.raft = False
        master, slave = cluster.brokers["g0"]
        slave.mode = (ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy")
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            await producer.send(Message("T", b"before"))
            await master.stop()
            with pytest.raises((SendFailed, SendOutcomeUnknown)):
                await producer.send(Message("T", b"after"), timeout_ms=500)
            with pytest.raises(SendFailed):
                await producer.send_oneway(Message("T", b"one-way"), timeout_ms=500)
        assert slave.count(RequestCode.HEART_BEAT) > 0
        assert slave.count(RequestCode.SEND_MESSAGE_V2) == 0


async def test_sends_in_flight_survive_a_broken_connection() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Producer("p", cluster.namesrv) as producer:
        await producer.send(Message("T", b"before"))
        leader = cluster.brokers["g0"][0]
        leader.mode = "silent"
        sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(20)]
        await until(lambda: leader.count(RequestCode.SEND_MESSAGE_V2) == 21)
        cluster.lead("g0", 1, tell_route=True)
        for connection in list(leader.server.connections):
            connection.abort("killed")
        results = await asyncio.gather(*sends)
        assert {r.attempts for r in results} <= {2, 3}
        assert {r.offset_msg_id[8:16] for r in results} == {f"{cluster.brokers['g0'][1].port:08X}"}


async def test_silent_leader_is_left_when_the_route_names_another() -> None:
    async with FakeCluster({"g0": 3}) as cluster:
        config = SendConfig(attempt_timeout_ms=60_000, silence_ms=50)
        async with Producer("p", cluster.namesrv, config=config) as producer:
            await producer.send(Message("T", b"before"))
            cluster.brokers["g0"][0].mode = "silent"
            send = asyncio.create_task(producer.send(Message("T", b"x"), timeout_ms=20_000))
            leader = cluster.brokers["g0"][0]
            await until(lambda: leader.count(RequestCode.SEND_MESSAGE_V2) == 2)
            cluster.lead("g0", 1, tell_route=True)
            leader.mode = "silent"  # frozen, connection open
            result = await send
            assert result.attempts == 2
            assert leader.count(RequestCode.SEND_MESSAGE_V2) == 2


@pytest.mark.parametrize("known", [False, True], ids=["scout", "known leader"])
async def test_slow_live_leader_gets_a_send_only_once(known: bool) -> None:
    async with FakeCluster({"g0": 3}) as cluster:
        broker = cluster.brokers["g0"][0]
        async with Producer("p", cluster.namesrv, config=PATIENT) as producer:
            if known:
                await producer.send(Message("T", b"before"))
            broker.mode = "slow"
            send = asyncio.create_task(producer.send(Message("T", b"x"), timeout_ms=20_000))
            await until(lambda: broker.count(RequestCode.HEART_BEAT) >= 4)  # several time-outs
            (request,) = [r for b in cluster.brokers["g0"] for r in b.requests if r.body == b"x"]
            ext = {"msgId": "0" * 32, "queueId": "1", "queueOffset": "9"}
            for connection in list(broker.server.connections):
                connection.reply(request, RemotingCommand.response_to(request, 0, None, ext))
            result = await send
            assert (result.queue_offset, result.attempts) == (9, 1)


@pytest.mark.parametrize("known", [False, True], ids=["scout", "known leader"])
async def test_slow_live_leader_is_left_when_another_leads(known: bool) -> None:
    async with FakeCluster({"g0": 3}) as cluster:
        old, new = cluster.brokers["g0"][:2]
        async with Producer("p", cluster.namesrv, config=PATIENT) as producer:
            if known:
                await producer.send(Message("T", b"before"))
            old.mode = "slow"
            send = asyncio.create_task(producer.send(Message("T", b"x"), timeout_ms=20_000))
            await until(lambda: old.count(RequestCode.SEND_MESSAGE_V2) == 1 + known)
            cluster.lead("g0", 1, tell_route=True)
            old.mode = "slow"
            result = await send
            assert result.attempts == 2 and new.count(RequestCode.SEND_MESSAGE_V2) == 1


async def test_frozen_replica_is_skipped_in_the_leader_search() -> None:
    async with FakeCluster({"g0": 3}) as cluster:
        cluster.lead("g0", 1, tell_route=False)  # the route still names the first
        frozen = cluster.brokers["g0"][0]
        frozen.mode = "silent"
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            result = await producer.send(Message("T", b"x"), timeout_ms=20_000)
            assert result.attempts == 2 and frozen.count(RequestCode.SEND_MESSAGE_V2) == 1
            frozen.mode = "ok"  # it thaws: its heartbeats are answered, nobody waits to leave


async def test_late_answer_of_an_abandoned_attempt_counts() -> None:
    async with FakeCluster({"g0": 2}) as cluster:
        broker, other = cluster.brokers["g0"]
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            broker.mode = other.mode = "silent"
            send = asyncio.create_task(producer.send(Message("T", b"x"), timeout_ms=20_000))
            await until(lambda: other.count(RequestCode.SEND_MESSAGE_V2) == 1)
            (first,) = broker.received(RequestCode.SEND_MESSAGE_V2)
            ext = {"msgId": "0" * 32, "queueId": "1", "queueOffset": "9"}
            answer = RemotingCommand.response_to(first, 0, None, ext)
            for connection in list(broker.server.connections):
                connection.reply(first, answer)
            result = await send
            assert result.queue_offset == 9 and result.attempts == 2
            assert producer.in_flight == 0
            broker.mode = other.mode = "ok"


async def test_send_is_written_only_once_per_connection() -> None:
    async with FakeCluster({"g0": 2}) as cluster:
        frozen, follower = cluster.brokers["g0"]
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            frozen.mode = "silent"
            send = asyncio.create_task(producer.send(Message("T", b"x"), timeout_ms=20_000))
            # Whoever does not lead is asked again and again, for he may lead by now.
            await until(lambda: follower.count(RequestCode.SEND_MESSAGE_V2) >= 3)
            (first,) = frozen.received(RequestCode.SEND_MESSAGE_V2)
            frozen.mode = "ok"  # it thaws, and answers what it has
            ext = {"msgId": "0" * 32, "queueId": "1", "queueOffset": "9"}
            for connection in list(frozen.server.connections):
                connection.reply(first, RemotingCommand.response_to(first, 0, None, ext))
            assert (await send).queue_offset == 9
            await producer.send(Message("T", b"y"))
            assert frozen.count(RequestCode.SEND_MESSAGE_V2) == 2


async def test_failing_broker_group_is_avoided_except_for_a_chosen_queue() -> None:
    async with FakeCluster({"g0": 1, "g1": 1}) as cluster:
        async with Producer("p", cluster.namesrv) as producer:
            for _ in range(8):
                await producer.send(Message("T", b"warm"))
            cluster.no_leader("g0")
            results = [await producer.send(Message("T", b"x")) for _ in range(10)]
            assert {r.queue.broker_name for r in results} == {"g1"}
            # The first that met the trouble went on elsewhere; the rest never went there.
            assert sum(r.attempts for r in results) <= 12
            fixed = asyncio.create_task(
                producer.send(Message("T", b"fixed"), queue=queue(1), timeout_ms=20_000)
            )
            await asyncio.sleep(0.05)
            cluster.lead("g0", 0, tell_route=True)
            assert (await fixed).queue == queue(1), "a chosen queue is never changed"


async def test_busy_broker_group_is_avoided() -> None:
    async with FakeCluster({"g0": 1, "g1": 1}) as cluster:
        async with Producer("p", cluster.namesrv) as producer:
            for _ in range(8):
                await producer.send(Message("T", b"warm"))
            cluster.brokers["g0"][0].mode = (2, "[BUSY]")
            results = [await producer.send(Message("T", b"x")) for _ in range(6)]
            assert {r.queue.broker_name for r in results} == {"g1"}


async def test_send_nowait_calls_back_once_each_in_queue_order() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        outcomes: list[tuple[SendResult | None, object]] = []
        keys = [
            producer.send_nowait(
                Message("T", b"%d" % n), lambda r, e: outcomes.append((r, e)), queue=queue(0)
            )
            for n in range(300)
        ]
        await until(lambda: len(outcomes) == 300)
        assert all(error is None for _, error in outcomes)
        results = [result for result, _ in outcomes if result is not None]
        assert {r.msg_id: r.queue_offset for r in results} == {k: n for n, k in enumerate(keys)}
        assert producer.in_flight == 0


async def test_sends_in_flight_are_limited() -> None:
    config = SendConfig(in_flight_max=10)
    async with FakeCluster({"g0": 1}) as cluster:
        broker = cluster.brokers["g0"][0]
        async with Producer("p", cluster.namesrv, config=config) as producer:
            await producer.send(Message("T", b"first"))
            broker.mode = "silent"
            outcomes: list[object] = []
            for _ in range(10):
                producer.send_nowait(
                    Message("T", b"x"), lambda r, e: outcomes.append(r or e), timeout_ms=60_000
                )
            with pytest.raises(TooManyInFlight):
                producer.send_nowait(Message("T", b"x"), lambda r, e: None)
            with pytest.raises(TooManyInFlight) as raised:
                await producer.send(Message("T", b"x"), timeout_ms=100)
            assert raised.value.attempts == 0 and not raised.value.outcome_unknown
            waiting = asyncio.create_task(producer.send(Message("T", b"waits"), timeout_ms=20_000))
            await asyncio.sleep(0.01)
            assert not waiting.done() and producer.in_flight == 10
            broker.mode = "ok"
            for connection in list(broker.server.connections):
                connection.abort("killed")  # and what it had is sent again
            await waiting  # went in as soon as there was room
            await until(lambda: len(outcomes) == 10)


async def test_send_bytes_in_flight_are_limited() -> None:
    config = SendConfig(in_flight_bytes_max=100)
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.brokers["g0"][0].mode = "silent"
        async with Producer("p", cluster.namesrv, config=config) as producer:
            producer.send_nowait(Message("T", b"x" * 90), lambda r, e: None)
            with pytest.raises(TooManyInFlight):
                producer.send_nowait(Message("T", b"x" * 11), lambda r, e: None)
            producer.send_nowait(Message("T", b"x" * 10), lambda r, e: None)


async def test_send_to_an_unknown_topic_is_not_stored() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        with pytest.raises(SendFailed) as raised:
            await producer.send(Message("missing", b"x"), timeout_ms=150)
        assert raised.value.attempts == 0 and "no route" in raised.value.message
        outcomes: list[object] = []
        producer.send_nowait(Message("missing", b"x"), lambda r, e: outcomes.append(e), 150)
        await until(lambda: bool(outcomes))
        assert isinstance(outcomes[0], SendFailed)


@pytest.mark.parametrize(
    ("message", "target", "problem"),
    [
        (Message("no spaces", b"x"), None, "characters"),
        (Message("", b"x"), None, "empty"),
        (Message("t" * 128, b"x"), None, "128 characters"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), None, "only brokers"),
        (Message("T", b"x"), MessageQueue("Other", "g0", 0), "its queue of 'Other'"),
        (Message("a:b", b"x"), MessageQueue("a:b", "g0", 0), "characters"),
        (Message(5, b"x"), None, "the topic is a text"),  # type: ignore[arg-type]
        (Message("T", b"x", tags=["a"]), None, "one text, not list"),  # type: ignore[arg-type]
        (Message("T", b"x", tags=["a"], keys="k"), None, "'TAGS' is a text, not list"),  # type: ignore[arg-type]
        (Message("T", b"x", keys=[1]), None, "keys are a text or texts"),  # type: ignore[list-item]
        (Message("T", b"x", properties={"a": 1}), None, "'a' is a text, not int"),  # type: ignore[dict-item]
        (Message("T", b"x", flag="1"), None, "flag is a number"),  # type: ignore[arg-type]
        (Message("T", b"x", flag=1 << 31), None, "flag is a number of 32 bits"),
        (Message("T", b"x"), MessageQueue("T", "g0", "2"), "id is a number"),  # type: ignore[arg-type]
        (Message("T", b"x"), MessageQueue("T", ["g0"], 2), "group is a text"),  # type: ignore[arg-type]
    ],
)
async def test_send_that_no_broker_would_store_is_rejected_at_once(
    message: Message, target: MessageQueue | None, problem: str
) -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        with pytest.raises(InvalidMessage, match=problem):
            await producer.send(message, queue=target)
        with pytest.raises(InvalidMessage, match=problem):
            await producer.send_batch([message], queue=target)
        with pytest.raises(InvalidMessage, match=problem):
            await producer.send_oneway(message, queue=target)
        with pytest.raises(InvalidMessage, match=problem):
            producer.send_nowait(message, lambda r, e: None, queue=target)
        assert producer.in_flight == 0
        assert cluster.brokers["g0"][0].count(RequestCode.SEND_MESSAGE_V2) == 1


async def test_topic_that_appears_while_waiting_is_used() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        send = asyncio.create_task(producer.send(Message("new", b"x"), timeout_ms=10_000))
        await until(lambda: cluster.name_server.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= 2)
        cluster.name_server.topics["new"] = {"g0": (2, 6)}
        assert (await send).queue.topic == "new"


@pytest.mark.parametrize("first", ["short", "long"])
async def test_send_without_a_route_keeps_its_own_time_out(first: str) -> None:
    times_ms = {"short": 100, "long": 20_000}
    ended: list[str] = []
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:

        def send(name: str) -> None:
            def told(result: SendResult | None, error: Exception | None) -> None:
                ended.append(f"{name}: {error or 'stored'}")

            producer.send_nowait(Message("new", b"x"), told, times_ms[name])

        for name in sorted(times_ms, key=lambda name: name != first):
            send(name)
            await asyncio.sleep(0.05)
        await until(lambda: ended)
        (failure,) = ended
        assert failure.startswith("short: topic 'new': no route")
        assert producer.in_flight == 1
        cluster.name_server.topics["new"] = {"g0": (2, 6)}
        await until(lambda: ended[1:] == ["long: stored"])


async def test_send_is_routed_although_earlier_ones_timed_out() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        outcomes: list[object] = []
        for _ in range(3):
            producer.send_nowait(Message("new", b"x"), lambda r, e: outcomes.append(r or e), 50)
            await until(lambda: producer.in_flight == 0)
        producer.send_nowait(Message("new", b"x"), lambda r, e: outcomes.append(r or e), 20_000)
        cluster.name_server.topics["new"] = {"g0": (2, 6)}
        await until(lambda: producer.in_flight == 0)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [SendFailed, SendFailed, SendFailed, SendResult]


async def test_topic_is_created_by_the_first_send_where_enabled() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        cluster.name_server.topics["TBW102"] = {"g0": (8, 7)}
        result = await producer.send(Message("auto", b"x"))
        assert result.queue.topic == "auto" and result.queue.queue_id < 4
        cluster.name_server.topics["auto"] = {"g0": (1, 6)}
        later = await producer.send(Message("auto", b"x"))
        assert later.queue.queue_id == 0


async def test_second_name_server_is_used_when_the_first_is_down() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        async with Producer("p", f"127.0.0.1:1;{cluster.namesrv}") as producer:
            assert (await producer.send(Message("T", b"x"))).status is SendStatus.OK


async def test_batch_is_one_request_with_a_key_per_message() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        result = await producer.send_batch([Message("T", b"a"), Message("T", b"bb", tags="t")])
        assert len(result.msg_id.split(",")) == 2
        request = cluster.brokers["g0"][0].requests[-1]
        assert request.code == RequestCode.SEND_BATCH_MESSAGE
        header = SendHeader.parse(request.ext, request.code)
        assert header.batch
        sizes = int.from_bytes(request.body[:4], "big")
        assert request.body[20:21] == b"a" and request.body[sizes + 20 : sizes + 22] == b"bb"
        for key in result.msg_id.split(","):
            assert key.encode() in request.body


async def test_one_way_send_is_written_without_an_answer() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        await producer.send_oneway(Message("T", b"fire"))
        await until(lambda: cluster.logs["g0"].bodies("T") == [b"fire"])
        assert cluster.brokers["g0"][0].requests[-1].is_oneway


async def test_large_body_is_sent_compressed() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        body = b"abc" * 2000
        await producer.send(Message("T", body))
        request = cluster.brokers["g0"][0].requests[-1]
        assert SendHeader.parse(request.ext).sys_flag == 0x301
        assert zlib.decompress(request.body) == body


BAD = [
    Message("T", b""),
    Message("T", "a text"),  # type: ignore[arg-type]
    Message("T", 7),  # type: ignore[arg-type]
    Message("T", b"x" * (4 * 1024 * 1024 + 1)),
    Message("T", b"x", properties={"TAGS": "no"}),
    Message("T", b"x", properties={"POP_CK": "0 1 60000 0 0 g0 0 5"}),
    Message("T", b"x", properties={"a": "b\x01c"}),
    Message("T", b"x", properties={"a": "b" * 40_000}),
    Message("T", b"x", tags="a\x02b"),
]


@pytest.mark.parametrize("message", BAD, ids=range(len(BAD)))
async def test_invalid_message_is_rejected_before_it_is_sent(message: Message) -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        with pytest.raises(InvalidMessage):
            await producer.send(message)
        with pytest.raises(InvalidMessage):
            producer.send_nowait(message, lambda r, e: None)
        assert producer.in_flight == 0


async def test_producer_stop_ends_sends_with_their_known_outcome() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.brokers["g0"][0].mode = "silent"
        outcomes: list[object] = []
        producer = Producer("p", cluster.namesrv)
        await producer.start()
        producer.send_nowait(Message("T", b"written"), lambda r, e: outcomes.append(e), 60_000)
        await until(lambda: cluster.brokers["g0"][0].count(RequestCode.SEND_MESSAGE_V2) == 1)
        producer.send_nowait(Message("T", b"not"), lambda r, e: outcomes.append(e), 60_000)
        producer.send_nowait(Message("nowhere", b"x"), lambda r, e: outcomes.append(e), 60_000)
        await producer.stop()
        kinds = sorted(type(error).__name__ for error in outcomes)
        assert kinds == ["SendFailed", "SendFailed", "SendOutcomeUnknown"]
        with pytest.raises(ClientClosed):
            await producer.send(Message("T", b"x"))


@pytest.mark.parametrize("silent", [True, False], ids=["asking", "between two attempts"])
async def test_producer_stop_ends_a_send_that_waits_for_its_route(silent: bool) -> None:
    """In an error: nobody cancelled it, and a task group would be silent about a cancellation."""
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.name_server.silent = silent
        producer = Producer("p", cluster.namesrv)
        await producer.start()
        sends = [
            asyncio.create_task(producer.send(Message("nowhere", b"x"), 60_000)) for _ in range(2)
        ]
        await until(lambda: cluster.name_server.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) > 0)
        await asyncio.sleep(0.05)
        await producer.stop()
        done, _ = await asyncio.wait(sends, timeout=5)
        assert {type(task.exception()) for task in sends if task in done} == {ClientClosed}


async def test_cancelled_send_without_a_route_does_not_affect_another() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        cluster.name_server.silent = True
        sends = [asyncio.create_task(producer.send(Message("T", b"x"), 30_000)) for _ in range(2)]
        await until(lambda: cluster.name_server.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) > 0)
        cluster.name_server.silent = False
        sends[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await sends[0]
        assert (await sends[1]).status is SendStatus.OK


async def test_producer_heartbeat_is_sent_to_every_replica() -> None:
    async with FakeCluster({"g0": 3}) as cluster, Producer("p", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        brokers = cluster.brokers["g0"]
        await until(lambda: all(b.count(RequestCode.HEART_BEAT) == 1 for b in brokers))


@pytest.mark.parametrize("at", [0, 2], ids=["probe", "behind it"])
async def test_send_that_cannot_be_encoded_fails_alone(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait for the leader with it are written, and nothing stays in flight."""

    class Template(SendTemplate):
        def frame(self, item: OutgoingSend, *rest: int) -> bytes:
            if item.body == b"bad":
                raise TypeError("no number")
            return super().frame(item, *rest)

    monkeypatch.setattr(sending, "template_for", lambda _, *names: Template(*names))
    async with FakeCluster({"g0": 1}) as cluster:
        cluster.no_leader("g0")
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            bodies = [b"%d" % number for number in range(4)]
            bodies.insert(at, b"bad")
            sends = [asyncio.ensure_future(producer.send(Message("T", body))) for body in bodies]
            await until(lambda: producer.in_flight == (5 if at else 4))
            cluster.lead("g0", 0, tell_route=True)
            async with asyncio.timeout(10):
                outcomes = await asyncio.gather(*sends, return_exceptions=True)
            failure = outcomes.pop(at)
            assert isinstance(failure, SendFailed) and not failure.retriable
            assert all(isinstance(outcome, SendResult) for outcome in outcomes)
            assert producer.in_flight == 0
            written: list[object] = []
            producer.send_nowait(Message("T", b"bad"), lambda r, e: written.append(e))
            assert not written  # a callback is not called from within
            await until(lambda: written and producer.in_flight == 0)


async def test_raising_send_callback_does_not_stop_later_ones() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        seen: list[object] = []

        def bad(_result: object, _error: object) -> None:
            raise RuntimeError("user bug")

        producer.send_nowait(Message("T", b"x"), bad)
        producer.send_nowait(Message("T", b"x"), lambda r, e: seen.append(r))
        await until(lambda: len(seen) == 1 and producer.in_flight == 0)


async def test_callback_may_send_again_when_a_waiting_send_times_out() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            await producer.send(Message("T", b"first"))
            await cluster.brokers["g0"][0].stop()
            expired: list[str] = []
            outcomes: list[object] = []

            def again(result: SendResult | None, error: object) -> None:
                expired.append("x")
                producer.send_nowait(
                    Message("T", b"y"), lambda r, e: outcomes.append(r or e), timeout_ms=60_000
                )

            for _ in range(20):
                producer.send_nowait(Message("T", b"x"), again, timeout_ms=200)
            await until(lambda: len(expired) == 20)
            assert producer.in_flight == 20
            await cluster.brokers["g0"][0].restart()
            await until(lambda: len(outcomes) == 20)
            assert all(isinstance(outcome, SendResult) for outcome in outcomes)


async def test_many_messages_are_split_by_size() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        messages = [Message("T", b"%03d" % n + b"x" * 997, tags="A") for n in range(100)]
        results = await producer.send_split(messages, 20_000)
        requests = cluster.brokers["g0"][0].received(RequestCode.SEND_BATCH_MESSAGE)
        assert len(results) == len(requests) > 5
        assert all(len(request.body) <= 20_000 for request in requests)
        assert len(requests[0].body) + 1200 > 20_000, "as full as can be"
        assert sum(len(result.msg_id.split(",")) for result in results) == 100
        biggest = batch_item_size(messages[0])
        assert len(list(split_batch(messages[:4], biggest))) == 4
        with pytest.raises(InvalidMessage):
            list(split_batch(messages, biggest - 1))
        with pytest.raises(InvalidMessage):
            list(split_batch(messages, 5 * 1024 * 1024))


async def test_split_send_failure_reports_unsent_and_doubtful_messages() -> None:
    async with FakeCluster({"g0": 1}) as cluster:
        async with Producer("p", cluster.namesrv, config=QUICK) as producer:
            broker = cluster.brokers["g0"][0]
            messages = [Message("T", b"x" * 1000) for _ in range(9)]
            broker.script.extend(["ok", (13, "illegal")])
            with pytest.raises(SplitFailed) as raised:
                await producer.send_split(messages, 3500)
            assert len(raised.value.results) == 1 and len(raised.value.unsent) == 6
            assert raised.value.in_doubt == 0 and not raised.value.outcome_unknown
            broker.script.extend(["ok", (0, "no fields")])
            with pytest.raises(SplitFailed) as raised:
                await producer.send_split(messages, 3500)
            assert len(raised.value.unsent) == 6 and raised.value.in_doubt == 3


@pytest.mark.parametrize(
    "messages",
    [
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x"), Message("T", b"x", delay_level=1)],
        [Message("T", b"x"), Message("T", b"x", wait_store=False)],
        [Message("T", b"x"), Message("T", b"x", born_timestamp_ms=1)],
        [Message("%RETRY%g", b"x")],
        [],
    ],
)
async def test_invalid_batch_is_rejected(messages: list[Message]) -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        with pytest.raises(InvalidMessage):
            await producer.send_batch(messages)


async def test_birth_time_is_the_given_one_or_the_time_of_the_send() -> None:
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        begin_ms = int(time.time() * 1000)
        await producer.send(Message("T", b"x"))
        await producer.send(Message("T", b"x", born_timestamp_ms=77))
        sent = cluster.brokers["g0"][0].received(RequestCode.SEND_MESSAGE_V2)
        now, said = (SendHeader.parse(one.ext).born_timestamp_ms for one in sent)
        assert begin_ms <= now <= time.time() * 1000
        assert said == 77
        for wrong in (-1, 1 << 63):
            with pytest.raises(InvalidMessage, match="born_timestamp_ms"):
                await producer.send(Message("T", b"x", born_timestamp_ms=wrong))


async def test_idempotent_sends_are_marked_and_stay_in_their_broker_group() -> None:
    config = replace(QUICK, idempotent=True)
    async with FakeCluster({"g0": 1, "g1": 1}) as cluster:
        async with Producer("p", cluster.namesrv, config=config) as producer:
            for name in ("g0", "g1"):  # both are known to lead
                await producer.send(Message("T", b"x"), queue=queue(0, name))
            one = cluster.brokers["g0"][0].received(RequestCode.SEND_MESSAGE_V2)[-1]
            assert SendHeader.parse(one.ext).properties.endswith("\x02IDEMPOTENT\x01true\x02")
            for number in range(4):
                for name in ("g0", "g1"):
                    cluster.brokers[name][0].script.append((1, "[OUTCOME_UNKNOWN]"))
                result = await producer.send(Message("T", b"%d" % number))
                assert result.attempts == 2
                (other,) = {"g0", "g1"} - {result.queue.broker_name}
                assert cluster.brokers[other][0].script, "nothing went to the other group"
                cluster.brokers[other][0].script.clear()
            with pytest.raises(InvalidMessage):
                await producer.send_batch([Message("T", b"x")])


@pytest.mark.parametrize("later", ["silent", "refuse"])
async def test_recall_times_out_with_an_unknown_outcome(later: str) -> None:
    """Also if the last of its requests was refused for certain."""
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        await producer.queues("T")
        broker = cluster.brokers["g0"][0]
        broker.scripts[RequestCode.RECALL_MESSAGE].append("close")
        broker.mode = later
        now = asyncio.get_running_loop().time
        began = now()
        with pytest.raises(ClientError) as caught:
            await producer.recall("T", RecallHandle("T", "g0", 5, "key").encode(), 300)
        assert now() - began < 1.5
        assert caught.value.outcome_unknown


async def test_restarted_producer_follows_the_routes() -> None:
    """And tells the brokers of itself, or they could push it no reply."""
    async with FakeCluster({"g0": 1}, queues=1) as cluster:
        producer = Producer("p", cluster.namesrv)
        async with producer:
            assert len(await producer.queues("T")) == 1
            with pytest.raises(RequestTimedOut):
                await producer.request(Message("T", b"x"), 50)
        cluster.name_server.topics["T"] = {"g0": (3, 6)}
        async with producer:
            assert len(await producer.queues("T")) == 3
            await producer.send(Message("T", b"x"))
            assert not producer._announced


async def test_deleted_topic_is_looked_up_again_by_a_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "UNUSED_TOPIC_S", 0)
    instances = instances_of(monkeypatch, ClientInstance)
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        await producer.send(Message("T", b"x"))
        del cluster.name_server.topics["T"]
        await instances[0].directory.refresh_all()
        await instances[0].directory.refresh_all()
        with pytest.raises(SendFailed, match="no route"):
            await producer.send(Message("T", b"x"), 300)
        cluster.name_server.topics["T"] = {"g0": (3, 6)}
        await producer.send(Message("T", b"x"))
        assert len(await producer.queues("T")) == 3


async def test_producer_caches_few_of_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.client.producer.producer.PUBLICATIONS_MAX", 2)
    async with FakeCluster({"g0": 1}) as cluster, Producer("p", cluster.namesrv) as producer:
        for topic in ("T", "U", "V", "T"):
            cluster.name_server.topics[topic] = {"g0": (1, 6)}
            await producer.send(Message(topic, b"x"))
            assert len(producer._publications) <= 2
