"""What a client's heartbeats renew stays in flight while they arrive, in order or not."""

import asyncio
import time
from typing import Any

import pytest

from raftmq.broker.pop import leader_state, revive
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.fast_json import dumps
from tests.broker.cluster import Group
from tests.broker.pop.consumer import Popper
from tests.broker.pop.test_service import filled
from tests.waiting import until

LONG_S = 1.5  # several renewals


@pytest.fixture
async def one(tmp_path, monkeypatch):
    # So long before its time is over a batch is renewed, whatever else the machine does.
    monkeypatch.setattr(revive, "RENEWED_MS", 3_000)
    monkeypatch.setattr(revive, "RENEW_BEFORE_MS", 2_500)
    monkeypatch.setattr(revive, "ABSENT_CHECK_MS", 20)
    async with Group(tmp_path, 1) as group:
        yield group, await group.leading(), Popper(group)


async def beat(group, broker, client="c1"):
    consumer = {"groupName": "cg", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}
    body = {"clientID": client, "producerDataSet": [], "consumerDataSet": [consumer]}
    assert (await group.ask(broker, RequestCode.HEART_BEAT, None, dumps(body))).code == 0


async def leave(group, broker, client="c1"):
    ext = {"clientID": client, "consumerGroup": "cg"}
    assert (await group.ask(broker, RequestCode.UNREGISTER_CLIENT, ext)).code == 0


def ending(broker):
    """When the time of the one batch in flight is over."""
    (batch,) = broker.state.pops.get(("T", "cg", 0)).batches.values()
    return batch.ends_ms


@pytest.mark.parametrize("order", [False, True])
async def test_renewed_message_is_redelivered_only_after_its_client_is_gone(one, order):
    group, broker, popper = one
    await filled(group, broker, 1, queues=1)
    await beat(group, broker)
    (first,) = await popper.pop(broker, order=order, renewed_by="c1", invisible_ms=600)
    began_s = time.monotonic()
    while time.monotonic() < began_s + LONG_S:
        assert await popper.pop(broker, order=order) == []
        await asyncio.sleep(0.05)
    await leave(group, broker)
    result: list[Any] = []

    async def comes_again():
        result[:] = await popper.pop(broker, order=order)
        return result

    await until(comes_again)
    assert result[0].body == first.body


async def test_client_that_reconnects_in_time_keeps_its_popped_messages(one):
    group, broker, popper = one
    await filled(group, broker, 1, queues=1)
    (first,) = await popper.pop(broker, renewed_by="c1", invisible_ms=2_000)
    ends_ms = ending(broker)
    await asyncio.sleep(0.3)  # its proxy was killed: nobody renews when it is time to
    assert ending(broker) == ends_ms
    await beat(group, broker)
    await until(lambda: ending(broker) > ends_ms)
    assert await popper.pop(broker) == []
    assert await popper.ack(broker, first) == 0


@pytest.mark.parametrize("order", [False, True])
async def test_message_undelivered_by_a_dead_proxy_is_redelivered_in_time(one, order, monkeypatch):
    """Its client goes on through another proxy, and never heard of it."""
    group, broker, popper = one
    await filled(group, broker, 1, queues=1)
    proxy = RemotingClient()
    with monkeypatch.context() as patched:
        patched.setattr(group, "client", proxy)
        await popper.pop(broker, order=order, renewed_by="c1", invisible_ms=600)
    await proxy.close()

    async def comes_again():
        await beat(group, broker)
        return await popper.pop(broker, order=order)

    await until(comes_again)


async def test_message_delivered_long_before_a_proxy_died_is_renewed(one, monkeypatch):
    monkeypatch.setattr(leader_state, "CONFIRM_S", 0.1)
    group, broker, popper = one
    await filled(group, broker, 1, queues=1)
    proxy = RemotingClient()
    with monkeypatch.context() as patched:
        patched.setattr(group, "client", proxy)
        (first,) = await popper.pop(broker, renewed_by="c1", invisible_ms=600)
        await asyncio.sleep(0.2)
        await beat(group, broker)  # through it: it lives
    await proxy.close()
    began_s = time.monotonic()
    while time.monotonic() < began_s + LONG_S:
        await beat(group, broker)
        assert await popper.pop(broker) == []
        await asyncio.sleep(0.05)
    assert await popper.ack(broker, first) == 0
