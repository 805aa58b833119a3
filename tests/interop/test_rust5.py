"""RocketMQ 5's own Rust client, unmodified, at a proxy; it has no push consumer, so the driver
listens by a loop over its simple consumer, and knows what it acknowledged."""

import signal

import pytest

from raftmq.proxy.receive_message import Waits
from tests.interop.python5.sdk import Sdk, SdkError
from tests.interop.test_sdks5 import CHECKS, go_on, start_load
from tests.interop.toolchain import rust5
from tests.proxy.world import ProxyProcess, World

pytestmark = pytest.mark.long  # building the client takes minutes


@pytest.fixture
async def world(tmp_path):
    async with World(tmp_path / "brokers", waits=Waits(0), **CHECKS) as world:
        yield world


@pytest.fixture
async def sdk(world, tmp_path):
    async with Sdk(tmp_path / "sdk", world.proxies[0], launch=rust5) as sdk:
        yield sdk


async def test_rust5_simple_consumer_receives_and_acknowledges(world, sdk):
    await world.topic("T")
    await sdk.produce(topics=["T"])
    await sdk.subscribe(group="cg", topic="T", tag="a")
    sent = [await sdk.send(topic="T", body=f"m{n}", tag="a", key="k") for n in range(10)]
    await sdk.send(topic="T", body="other", tag="b")
    result = await sdk.received(10)
    assert sorted(one[1] for one in result) == [f"m{n}" for n in range(10)]
    assert {one[0] for one in result} == {one[0] for one in sent}
    assert all(one[2:] == ["a", {"from": "sdk"}] for one in result)
    for one in result[1:]:
        await sdk.ack(message_id=one[0])
    (again,) = await sdk.received(1)
    assert again[1] == result[0][1]
    await sdk.ack(message_id=again[0])
    broker = await world.group.leading()
    assert broker.state.pops.in_flight("T", "cg") == 0
    with pytest.raises(SdkError, match="TOPIC_NOT_FOUND"):
        await sdk.send(topic="Nowhere", body="x")


async def test_rust5_consumer_gets_every_kind_of_message(world, sdk):
    kinds = ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]
    for kind in kinds:
        await world.topic(kind, kind=kind)
        await world.consumer_group(kind, consumeMessageOrderly=kind == "FIFO")
    await sdk.produce(topics=kinds)
    for kind in kinds:
        await sdk.listen(group=kind, topic=kind)
    for body, end in (("committed", "commit"), ("gone", "rollback"), ("orphan", "")):
        await sdk.transact(topic="TRANSACTION", body=body, end=end)
    await sdk.send(topic="DELAY", body="later", delay_s=2)
    for n in range(12):
        await sdk.send(topic="FIFO", body=f"{n}", group=f"g{n % 2}")
    await sdk.send(topic="NORMAL", body="fail once")
    await sdk.send(topic="NORMAL", body="good")

    result = [one[0] for one in await sdk.heard_of(18)]
    in_order = [int(body) for body in result if body.isdigit()]
    assert [n for n in in_order if n % 2] == list(range(1, 12, 2))
    assert [n for n in in_order if not n % 2] == list(range(0, 12, 2))
    others = sorted(body for body in result if not body.isdigit())
    assert others == ["committed", "fail once", "fail once", "good", "later", "orphan"]
    requested = await sdk.checked()
    assert "orphan" in requested and "gone" not in requested


async def test_rust5_load_loses_nothing_when_the_leader_is_killed(tmp_path):
    # What is sent twice would be heard twice, for the proxy repeats a send whose leader has died.
    async with World(tmp_path / "brokers", 3, proxy={"idempotent_sends": True}) as world:
        await world.topic("T")
        async with Sdk(tmp_path / "sdk", world.proxies[0], launch=rust5) as sdk:
            await start_load(sdk)
            await world.group.kill(await world.group.leader())
            await go_on(sdk)
            assert await sdk.again() == []


async def test_rust5_load_survives_the_kill_of_one_of_two_proxies(tmp_path):
    async with (
        World(tmp_path / "brokers") as world,
        ProxyProcess(world.namesrv) as first,
        ProxyProcess(world.namesrv) as second,
    ):
        await world.topic("T")
        async with Sdk(tmp_path / "sdk", first, second, launch=rust5) as sdk:
            await start_load(sdk)
            await first.end(signal.SIGKILL)
            await go_on(sdk)
            assert await sdk.again() == []


async def test_rust5_load_survives_kill_and_restart_of_the_proxy(tmp_path):
    async with World(tmp_path / "brokers") as world, ProxyProcess(world.namesrv) as first:
        await world.topic("T")
        async with Sdk(tmp_path / "sdk", first, launch=rust5) as sdk:
            await start_load(sdk)
            await first.end(signal.SIGKILL)
            async with ProxyProcess(world.namesrv, first.port):
                await go_on(sdk)
                assert await sdk.again() == []
