"""Telemetry, heartbeats, routes and assignments; what a proxy says when it stops."""

import asyncio
import contextlib
import gc
from typing import Any

import grpc
import pytest

from raftmq.proxy import server
from raftmq.proxy import telemetry as presence
from raftmq.proxy.clients import (
    CLIENT_BYTES,
    CLIENT_BYTES_MAX,
    QUEUE_MAX,
    SILENCE_S,
    TOPICS_MAX,
    Clients,
)
from raftmq.proxy.cluster import Brokers
from raftmq.proxy.config import ProxyConfig
from raftmq.proxy.protocol import messaging_pb2 as pb
from raftmq.proxy.server import ProxyServer
from raftmq.proxy.status_codes import StatusError
from raftmq.proxy.validation import EXPRESSION_CHARS_MAX, SETTINGS_BYTES_MAX, SUBSCRIPTIONS_MAX
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.memory_limits import Allowance
from tests.client.fakes import FakeCluster
from tests.proxy.world import PROXY, Caller, World, consumer, producer
from tests.waiting import until

GROUP = pb.Resource(name="cg")


@pytest.fixture
async def world(tmp_path):
    async with World(tmp_path) as world:
        await world.topic("T")
        yield world


@pytest.fixture
async def caller(world):
    async with Caller(world.proxies[0]) as caller:
        yield caller


async def test_producer_settings_are_answered_with_broker_limits(world, caller):
    _, answer = await caller.telemetry(producer("T"))
    reported = answer.settings
    assert answer.status.code == pb.Code.OK
    assert (
        reported.publishing.max_body_size == 4 << 20 and reported.publishing.validate_message_type
    )
    assert reported.backoff_policy.max_attempts == 3
    assert reported.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
    broker = await world.group.leading()
    assert "c1" in broker.clients.producers["T"]


async def test_consumer_settings_are_answered_with_its_groups_settings(world, caller):
    await world.consumer_group("cg", consumeMessageOrderly=True, retryMaxTimes=3)
    _, answer = await caller.telemetry(consumer("cg", "T"))
    reported = answer.settings
    assert reported.subscription.fifo and reported.subscription.receive_batch_size == 32
    assert reported.subscription.long_polling_timeout.seconds == 20
    assert reported.backoff_policy.max_attempts == 4
    assert [one.seconds for one in reported.backoff_policy.customized_backoff.next][:3] == [
        1,
        5,
        10,
    ]
    broker = await world.group.leading()
    assert broker.clients.client_ids("cg") == ["c1"]
    assert broker.clients.subscription("cg", "T") is not None


async def test_empty_settings_end_the_stream(world, caller):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await caller.telemetry(pb.Settings(client_type=pb.ClientType.PRODUCER))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "settings, words",
    [
        (consumer("cg", "T", expression="a" * (EXPRESSION_CHARS_MAX + 1)), "16385 characters"),
        (consumer("cg", *(f"T{n}" for n in range(SUBSCRIPTIONS_MAX + 1))), "901 subscriptions"),
        (consumer("g" * 256, "T"), "256 characters long"),
        (producer("T", "t" * 480_000), "bytes"),
        (pb.Settings(user_agent=pb.UA(hostname="h" * SETTINGS_BYTES_MAX)), "bytes"),
    ],
)
async def test_oversized_settings_end_the_stream(world, caller, settings, words):
    if settings.WhichOneof("pub_sub") is None:
        settings.MergeFrom(producer("T"))
    (proxy,) = world.proxies
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await caller.telemetry(settings)
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.value.details()
    assert proxy.figures().kept_bytes == 0


async def test_largest_settings_are_accepted_and_sent_to_brokers(world, caller, monkeypatch):
    expression = "a" * EXPRESSION_CHARS_MAX
    await caller.telemetry(consumer("cg", "T", expression=expression))
    broker = await world.group.leading()
    assert broker.clients.subscription("cg", "T").expression == expression
    many = consumer("cg", *(f"T{number}" for number in range(SUBSCRIPTIONS_MAX)))
    route = Brokers.route

    async def known(brokers, caller, topic):
        return await route(brokers, caller, "T")

    monkeypatch.setattr(Brokers, "route", known)
    _, answer = await caller.telemetry(many)
    assert len(answer.settings.subscription.subscriptions) == SUBSCRIPTIONS_MAX


async def test_telemetry_messages_are_not_kept_in_memory(world, caller):
    def held():
        gc.collect()
        return sum(isinstance(one, pb.TelemetryCommand) for one in gc.get_objects())

    before = held()
    for topics in (("T",), ("T", "t" * 300)):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await caller.telemetry(producer(*topics))
    await until(lambda: held() == before)


async def test_client_memory_is_limited_and_released(world, caller, monkeypatch):
    monkeypatch.setattr(server, "KEPT_BYTES_MAX", 72_000)
    proxy = await world.add_proxy()
    async with Caller(proxy, client_id="a") as first, Caller(proxy, client_id="b") as second:
        await first.telemetry(consumer("cg", "T", expression="a" * 16_000))
        # What it was answered counts until it is sent.
        await until(lambda: 16_000 < proxy.figures().kept_bytes < 25_000)
        before = proxy.figures().kept_bytes
        await first.telemetry(consumer("cg", "T", expression="b" * 16_000))  # in its place
        await until(lambda: proxy.figures().kept_bytes == before)
        many = consumer("cg", "T", "U", expression="a" * 16_000)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await second.telemetry(many)
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.ok("NotifyClientTermination", group=GROUP)
        await second.telemetry(many)
        await second.ok("NotifyClientTermination", group=GROUP)
    assert proxy.figures().kept_bytes == 0


async def test_heartbeat_registers_a_client_at_another_proxy(world, caller):
    answer = await caller.call("Heartbeat")
    assert answer.status.code == pb.Code.UNRECOGNIZED_CLIENT_TYPE
    await caller.telemetry(consumer("cg", "T"))
    other = await world.add_proxy()
    broker = await world.group.leading()
    async with Caller(other) as moved:
        assert (await moved.receive("T")).code == pb.Code.MESSAGE_NOT_FOUND
        member = broker.clients.consumers["cg"].members["c1"]
        before = member.connection
        await moved.ok("Heartbeat", group=GROUP, client_type=pb.ClientType.PUSH_CONSUMER)
        assert broker.clients.consumers["cg"].members["c1"].connection is not before
        await moved.ok("NotifyClientTermination", group=GROUP)
        assert broker.clients.client_ids("cg") == []


async def test_route_names_the_endpoint_that_the_client_used(world, caller):
    route = await caller.ok("QueryRoute", topic={"name": "T"}, endpoints=caller.endpoints)
    assert [queue.id for queue in route.message_queues] == [0, 1, 2, 3]
    queue = route.message_queues[0]
    assert queue.broker.endpoints == caller.endpoints and queue.broker.id == 0
    assert queue.permission == pb.Permission.READ_WRITE
    assert list(queue.accept_message_types) == [pb.MessageType.NORMAL]
    await world.topic("F", kind="FIFO")
    route = await caller.ok("QueryRoute", topic={"name": "F"}, endpoints=caller.endpoints)
    assert list(route.message_queues[0].accept_message_types) == [pb.MessageType.FIFO]
    answer = await caller.call("QueryRoute", topic={"name": "X"}, endpoints=caller.endpoints)
    assert answer.status.code == pb.Code.TOPIC_NOT_FOUND
    answer = await caller.call("QueryRoute", topic={"name": "T"})
    assert answer.status.code == pb.Code.ILLEGAL_ACCESS_POINT


async def test_push_consumer_is_assigned_a_broker_or_in_order_its_queues(world, caller):
    async def assigned(group):
        result = await caller.ok(
            "QueryAssignment", topic={"name": "T"}, group={"name": group},
            endpoints=caller.endpoints,
        )  # fmt: skip
        return [one.message_queue.id for one in result.assignments]

    await world.consumer_group("orderly", consumeMessageOrderly=True)
    assert await assigned("cg") == [-1]
    assert await assigned("orderly") == [0, 1, 2, 3]


async def test_stopping_proxy_redirects_its_clients(world, caller):
    proxy = await world.add_proxy()
    async with Caller(proxy) as leaving:
        stream, _ = await leaving.telemetry(consumer("cg", "T"))
        waiting = asyncio.create_task(leaving.receive("T", poll_ms=8000))
        broker = await world.group.leading()
        await until(lambda: broker.popping.pops.waiting.count)
        health = leaving.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"") == b"\x08\x01"
        world.proxies.remove(proxy)
        await proxy.stop()
        reported = await stream.read()
        assert reported.WhichOneof("command") == "reconnect_endpoints_command"
        assert (await waiting).code == pb.Code.MESSAGE_NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stream.read()
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_hanging_replica_does_not_delay_clients(monkeypatch):
    monkeypatch.setattr(presence, "LATE_MAX", 2)
    async with FakeCluster({"g0": 3}) as cluster:
        _, *followers = cluster.brokers["g0"]
        for follower in followers:
            follower.mode = "silent"
        config = ProxyConfig(**(PROXY | {"namesrv": cluster.namesrv}))
        async with ProxyServer(config) as proxy, Caller(proxy) as caller:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await caller.telemetry(producer("T"))
            await caller.ok("Heartbeat")
            await caller.ok("NotifyClientTermination")
            assert loop.time() - began_s < 2.5
            late = [task for task in asyncio.all_tasks() if task.get_name() == "send"]
            assert len(late) == 2, "so many go on"
        for broker in cluster.brokers["g0"]:
            assert broker.count(RequestCode.HEART_BEAT) == 2
            assert broker.count(RequestCode.UNREGISTER_CLIENT) == 1


# ---- the table


def table(clients_max=10, bytes_max=10 << 20, now_s=lambda: 0.0, queue_bytes_max=1_000):
    kept = Allowance(bytes_max)
    return kept, Clients(clients_max, now_s, kept, queue_bytes_max=queue_bytes_max)


def test_clients_are_limited_and_removed_after_a_silence():
    now = [0.0]
    kept, clients = table(2, now_s=lambda: now[0])
    clients.touch("a", "").queue = clients.new_queue()
    clients.add_topic("b", "", "T")
    clients.add_topic("c", "", "T")  # one too many is not known
    assert len(clients) == 2
    with pytest.raises(StatusError):
        clients.touch("c", "")
    with pytest.raises(StatusError):
        clients.touch("a", "another account")
    now[0] = 100.0
    clients.expire(lambda _: True)
    assert [client.client_id for client in clients] == ["a"]
    for number in range(TOPICS_MAX + 5):
        clients.add_topic("a", "", f"T{number}")
    assert len(clients.touch("a", "").topics) == TOPICS_MAX
    clients.touch("a", "").queue = None
    now[0] += SILENCE_S + 1
    clients.expire(lambda _: True)
    assert len(clients) == 0 and kept.used_bytes == 0


def test_client_data_are_limited_per_client_and_in_total():
    kept, clients = table(bytes_max=CLIENT_BYTES_MAX + 2 * CLIENT_BYTES)
    client = clients.touch("a", "")
    with pytest.raises(StatusError) as refused:
        client.subscribe({"T": ("SQL92", "x" * CLIENT_BYTES_MAX)}, 1)
    assert refused.value.code == pb.Code.TOO_MANY_REQUESTS
    assert client.subscriptions == {} and kept.used_bytes == CLIENT_BYTES
    much = {"T": ("SQL92", "x" * (CLIENT_BYTES_MAX - 2 * CLIENT_BYTES))}
    client.subscribe(much, 1)
    client.subscribe(much, 2)
    other = clients.touch("b", "")
    with pytest.raises(StatusError):
        other.subscribe(much, 1)
    client.subscribe({}, 3)
    other.subscribe(much, 1)
    for number in range(1_000):
        clients.add_topic("b", "", f"T{number}")
    assert kept.used_bytes <= CLIENT_BYTES_MAX + CLIENT_BYTES
    clients.forget("a")
    clients.forget("b")
    assert kept.used_bytes == 0
    _, none = table(bytes_max=CLIENT_BYTES - 1)
    with pytest.raises(StatusError):
        none.touch("a", "")


def test_producers_of_a_topic_are_checked_in_turn():
    _, clients = table()
    for name in ("a", "b", "c"):
        client = clients.touch(name, "")
        client.kind = pb.ClientType.PRODUCER
        client.queue = clients.new_queue() if name != "c" else None
        client.add_topic("T")
    requested = {clients.producer_of("T", lambda _: True).client_id for _ in range(4)}
    assert requested == {"a", "b"} and clients.producer_of("U", lambda _: True) is None
    assert clients.producer_of("T", lambda client: client.client_id == "b").client_id == "b"
    assert clients.producer_of("T", lambda _: False) is None


async def test_unread_telemetry_queue_becomes_full():
    _, clients = table()
    line = clients.new_queue()
    assert all(line.put(pb.TelemetryCommand()) for _ in range(QUEUE_MAX))
    assert not line.put(pb.TelemetryCommand())


async def test_telemetry_queue_is_limited_in_bytes_and_released():
    command = pb.TelemetryCommand(settings=producer("t" * 100))
    size = command.ByteSize()
    kept, clients = table(queue_bytes_max=3 * size)
    line, other = clients.new_queue(), clients.new_queue()
    assert [line.put(command) for _ in range(4)] == [True] * 3 + [False]
    assert other.put(command)
    written = []

    async def write(one):
        written.append(one)

    writing = asyncio.create_task(line.run(write))
    await until(lambda: len(written) == 3)
    assert kept.used_bytes == size
    assert line.put(command)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    line.end()
    other.end()
    assert kept.used_bytes == 0


async def test_finished_telemetry_queue_writes_nothing():
    kept, clients = table()
    line = clients.new_queue()
    assert all(line.put(pb.TelemetryCommand(settings=producer("T"))) for _ in range(QUEUE_MAX))
    line.finish()
    written: list[Any] = []
    await asyncio.wait_for(line.run(written.append), 5)
    assert written == [] and kept.used_bytes == 0
