"""RocketMQ 5's own Python client, unmodified, at a proxy."""

import asyncio
import signal

import pytest

from raftmq.proxy.receive_message import Waits
from raftmq.remoting.acl.signature import credentials_of
from tests.interop.python5.sdk import Sdk, SdkError
from tests.proxy.test_server import ACCOUNTS, INNER
from tests.proxy.world import ProxyProcess, World
from tests.waiting import until


@pytest.fixture
async def world(tmp_path):
    async with World(tmp_path / "brokers", waits=Waits(0)) as world:
        yield world


@pytest.fixture
async def sdk(world, tmp_path):
    async with Sdk(tmp_path / "sdk", world.proxies[0]) as sdk:
        yield sdk


async def test_python5_simple_consumer_gets_normal_messages(world, sdk):
    await world.topic("T")
    await sdk.produce(topics=["T"])
    sent = [await sdk.send(topic="T", body=f"m{n}", tag="a", key="k") for n in range(10)]
    await sdk.send(topic="T", body="other", tag="b")
    await sdk.subscribe(group="cg", topic="T", tag="a")
    result = await sdk.received(10)
    assert sorted(one[1] for one in result) == [f"m{n}" for n in range(10)]
    assert {one[0] for one in result} == {one[0] for one in sent}
    assert all(one[2] == "a" and one[3] == {"from": "sdk"} for one in result)
    await sdk.hide(message_id=result[0][0], seconds=1)
    for one in result[1:]:
        await sdk.ack(message_id=one[0])
    (again,) = await sdk.received(1)
    assert again[1] == result[0][1]
    await sdk.ack(message_id=again[0])
    broker = await world.group.leading()
    assert broker.state.pops.in_flight("T", "cg") == 0
    with pytest.raises(SdkError, match="message type not match"):
        await sdk.send(topic="T", body="x", group="g")


async def test_python5_push_consumer_gets_fifo_and_delayed_messages(world, sdk, tmp_path):
    await world.topic("F", kind="FIFO")
    await world.topic("D", kind="DELAY")
    await world.consumer_group("orderly", consumeMessageOrderly=True)
    await sdk.produce(topics=["F", "D"])
    await sdk.listen(group="orderly", topic="F")
    async with Sdk(tmp_path / "second", world.proxies[0]) as second:
        await second.listen(group="cg", topic="D")
        _, _, recalled = await sdk.send(topic="D", body="recalled", delay_s=3)
        await sdk.recall(topic="D", handle=recalled)
        await sdk.send(topic="D", body="later", delay_s=2)
        for n in range(12):
            await sdk.send(topic="F", body=f"{n}", group=f"g{n % 2}")
        result = [one[0] for one in await sdk.heard_of(12)]
        assert [n for n in result if int(n) % 2] == [str(n) for n in range(1, 12, 2)]
        assert [n for n in result if not int(n) % 2] == [str(n) for n in range(0, 12, 2)]
        assert [one[0] for one in await second.heard_of(1)] == ["later"]


async def test_python5_push_consumer_gets_a_failed_message_again(world, sdk):
    await world.topic("T")
    await sdk.produce(topics=["T"])
    await sdk.listen(group="cg", topic="T")
    await sdk.send(topic="T", body="fail once")
    await sdk.send(topic="T", body="good")
    result = await sdk.heard_of(3)
    assert sorted(one[:2] for one in result) == [["fail once", 1], ["fail once", 2], ["good", 1]]
    await asyncio.sleep(0)
    broker = await world.group.leading()
    assert broker.clients.client_ids("cg")


async def test_python5_unknown_topic_is_an_error(world, sdk):
    await sdk.produce(topics=[])
    with pytest.raises(SdkError, match="route"):
        await sdk.send(topic="Nowhere", body="x")


async def test_python5_transactions_are_ended_or_checked(tmp_path):
    settings = {"transactionTimeOut": 300, "transactionCheckInterval": 300}
    async with World(tmp_path / "brokers", **settings) as world:
        await world.topic("X", kind="TRANSACTION")
        async with Sdk(tmp_path / "sdk", world.proxies[0]) as sdk:
            await sdk.produce(topics=["X"])
            await sdk.listen(group="cg", topic="X")
            await sdk.transact(topic="X", body="committed", end="commit")
            await sdk.transact(topic="X", body="rolled back", end="rollback")
            await sdk.transact(topic="X", body="orphan", end="")
            result = await sdk.heard_of(2)
            assert sorted(one[0] for one in result) == ["committed", "orphan"]
            assert "orphan" in await sdk.checked()
            assert "rolled back" not in await sdk.checked()


async def test_python5_load_loses_nothing_when_the_leader_is_killed(tmp_path):
    async with World(tmp_path / "brokers", 3) as world:
        await world.topic("T")
        async with Sdk(tmp_path / "sdk", world.proxies[0]) as sdk:
            await sdk.produce(topics=["T"])
            await sdk.listen(group="cg", topic="T")
            await sdk.begin_load(topic="T")
            await until(lambda: enough(sdk, 50))
            await world.group.kill(await world.group.leader())
            before = await sdk.load_size()
            await until(lambda: enough(sdk, before + 50))
            await all_are_heard(sdk)


async def test_python5_load_survives_the_kill_of_one_of_two_proxies(tmp_path):
    async with (
        World(tmp_path / "brokers") as world,
        ProxyProcess(world.namesrv) as first,
        ProxyProcess(world.namesrv) as second,
    ):
        await world.topic("T")
        async with Sdk(tmp_path / "sdk", first, second) as sdk:
            await sdk.produce(topics=["T"])
            await sdk.listen(group="cg", topic="T")
            await sdk.begin_load(topic="T")
            await until(lambda: enough(sdk, 50))
            await first.end(signal.SIGKILL)
            before = await sdk.load_size()
            await until(lambda: enough(sdk, before + 50))
            await all_are_heard(sdk)


async def test_python5_accounts_are_checked_by_the_proxy_and_known_to_brokers(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    acl = {"aclFile": str(path), "innerClientAuthenticationCredentials": INNER}
    proxy = {
        "acl_enable": True,
        "acl_file": str(path),
        "inner_client_authentication_credentials": INNER,
    }
    admin = credentials_of(INNER)
    async with World(
        tmp_path / "b", proxy=proxy, credentials=admin, aclEnable=True, **acl
    ) as world:
        await world.topic("Own")
        await world.topic("Secret")
        own = ("user-key", "user-secret")
        async with Sdk(tmp_path / "sdk", world.proxies[0], account=own) as sdk:
            await sdk.produce(topics=["Own"])
            await sdk.listen(group="own", topic="Own")
            await sdk.send(topic="Own", body="mine")
            assert [one[0] for one in await sdk.heard_of(1)] == ["mine"]
            with pytest.raises(SdkError, match="route"):
                await sdk.send(topic="Secret", body="x")
        async with Sdk(tmp_path / "w", world.proxies[0], account=("user-key", "wrong")) as wrong:
            with pytest.raises(SdkError):
                await wrong.produce(topics=["Own"])
                await wrong.send(topic="Own", body="x")


async def enough(sdk, count):
    return await sdk.load_size() >= count


async def all_are_heard(sdk):
    """End the load, and wait until the push consumer was given all that was acknowledged."""
    sent, _ = await sdk.end_load()
    result: set[int] = set()

    async def complete():
        result.update(int(one[0]) for one in await sdk.heard())
        return result.issuperset(sent)

    await until(complete, lambda: sorted(set(sent) - result), pause_s=0.05)
