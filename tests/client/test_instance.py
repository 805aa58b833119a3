"""A client's identity towards a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from raftmq.client import ClientClosed, Message, Producer, PushConsumer, SimpleConsumer
from raftmq.client.instance import ClientInstance
from tests.client.consumer.test_push_consumer import Seen, fill
from tests.client.fakes import FakeCluster
from tests.instances import instances_of


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_clients_created_before_a_fork_have_distinct_ids_per_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one id, two members of a group would hold all queues; with one key, a broker would take
    the second of two idempotent messages for the first one again."""
    instances = instances_of(monkeypatch, ClientInstance)
    producer = Producer("p", "127.0.0.1:1")
    consumer = PushConsumer("c", "127.0.0.1:1", Seen())

    async def identity() -> str:
        await producer.start()
        await consumer.start()
        key = producer._outgoing(Message("T", b"x")).unique_key
        return f"{instances[0].client_id} {consumer.client_id} {key[8:20]}"

    lives = []
    for _ in range(2):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, asyncio.run(identity()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        lives.append((child, os.read(reading, 1000).decode().split()))
        os.close(reading)
        os.close(writing)
    (_, of_first), (_, of_second) = lives
    assert not set(of_first) & set(of_second)
    for child, (*ids, key_start) in lives:
        assert all(f"@{child}#" in one for one in ids)
        assert key_start.startswith(f"{child & 0xFFFF:04X}")


async def test_client_on_another_event_loop_is_rejected() -> None:
    """A client on a second event loop would wait for ever, or fail with words about futures."""
    async with (
        FakeCluster({"g0": 1}) as cluster,
        Producer("p", cluster.namesrv) as producer,
        SimpleConsumer("s", cluster.namesrv) as consumer,
    ):
        message = Message("T", b"x")
        fill(cluster, 1, queues=1)
        await consumer.subscribe("T")
        await producer.send(message)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: producer.send(message),
            lambda: producer.send_oneway(message),
            producer.stop,
            producer.start,
            lambda: consumer.subscribe("T"),
            consumer.receive,
            consumer.stop,
        ]

        async def refused() -> None:
            for call in calls:
                with pytest.raises(ClientClosed, match="another event loop"):
                    await asyncio.wait_for(call(), 5)

        await asyncio.to_thread(asyncio.run, refused())
        await producer.send(message)
        assert len(await consumer.receive(await_ms=0)) == 1
