"""A client's identity towards a cluster."""

from __future__ import annotations

import asyncio
import os

import pytest

from raftmq.client import Message, Producer, PushConsumer
from tests.client.test_consumer import Seen


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_clients_built_before_a_fork_are_others_in_each_process() -> None:
    """With one id, two members of a group would hold all queues; with one key, a broker would take
    the second of two idempotent messages for the first one again."""
    producer = Producer("p", "127.0.0.1:1")
    consumer = PushConsumer("c", "127.0.0.1:1", Seen())

    async def identity() -> str:
        await producer.start()
        await consumer.start()
        key = producer._outgoing(Message("T", b"x")).unique_key
        return f"{producer._instance.client_id} {consumer.client_id} {key[8:20]}"

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
