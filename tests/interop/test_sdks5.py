"""RocketMQ 5's own clients for Node and Go, unmodified, at a proxy."""

import signal

import pytest

from raftmq.proxy.receive_message import Waits
from tests.interop.python5.sdk import Sdk
from tests.interop.sdk_stories import push_consumers, simple_consumer
from tests.interop.test_python5 import all_are_heard, enough
from tests.interop.toolchain import go5, node5
from tests.proxy.world import ProxyProcess, World
from tests.waiting import until

CLIENTS = [pytest.param(node5, id="node"), pytest.param(go5, id="go")]
CHECKS = {"transactionTimeOut": 300, "transactionCheckInterval": 300}


@pytest.fixture
async def world(tmp_path):
    async with World(tmp_path / "brokers", waits=Waits(0), **CHECKS) as world:
        yield world


@pytest.mark.parametrize("launch", CLIENTS)
async def test_sdk5_simple_consumer_receives_hides_and_acknowledges(world, tmp_path, launch):
    async with Sdk(tmp_path / "sdk", world.proxies[0], launch=launch) as sdk:
        await simple_consumer(world, sdk)
        broker = await world.group.leading()
        assert broker.state.pops.in_flight("T", "cg") == 0


@pytest.mark.parametrize("launch", CLIENTS)
async def test_sdk5_push_consumers_get_every_kind_of_message(world, tmp_path, launch):
    async with Sdk(tmp_path / "sdk", world.proxies[0], launch=launch) as sdk:
        await push_consumers(world, sdk, recalls=launch is node5)


@pytest.mark.long
@pytest.mark.parametrize("launch", CLIENTS)
async def test_sdk5_load_loses_nothing_when_the_leader_is_killed(tmp_path, launch):
    async with World(tmp_path / "brokers", 3) as world:
        await world.topic("T")
        async with Sdk(tmp_path / "sdk", world.proxies[0], launch=launch) as sdk:
            await start_load(sdk)
            await world.group.kill(await world.group.leader())
            await go_on(sdk)


@pytest.mark.long
async def test_go5_load_survives_the_kill_of_one_of_two_proxies(tmp_path):
    async with (
        World(tmp_path / "brokers") as world,
        ProxyProcess(world.namesrv) as first,
        ProxyProcess(world.namesrv) as second,
    ):
        await world.topic("T")
        async with Sdk(tmp_path / "sdk", first, second, launch=go5) as sdk:
            await start_load(sdk)
            await first.end(signal.SIGKILL)
            await go_on(sdk)


@pytest.mark.long
async def test_node5_load_survives_kill_and_restart_of_the_proxy(tmp_path):
    """This client takes one address only: with two it asks for the name of both together."""
    async with World(tmp_path / "brokers") as world, ProxyProcess(world.namesrv) as first:
        await world.topic("T")
        async with Sdk(tmp_path / "sdk", first, launch=node5) as sdk:
            await start_load(sdk)
            await first.end(signal.SIGKILL)
            async with ProxyProcess(world.namesrv, first.port):
                await go_on(sdk)


async def start_load(sdk):
    await sdk.produce(topics=["T"])
    await sdk.listen(group="cg", topic="T")
    await sdk.begin_load(topic="T")
    await until(lambda: enough(sdk, 50))


async def go_on(sdk):
    """Wait until more is sent, and all of it is heard."""
    before = await sdk.load_size()
    await until(lambda: enough(sdk, before + 50))
    await all_are_heard(sdk)
