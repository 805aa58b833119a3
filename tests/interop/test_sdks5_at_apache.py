"""What test_sdks5.py asks of a proxy of ours, asked of Apache's own before Apache's broker."""

import pytest

from tests.interop.apache_proxy import ApacheWorld
from tests.interop.python5.sdk import Sdk
from tests.interop.sdk_stories import push_consumers, simple_consumer
from tests.interop.test_sdks5 import CLIENTS
from tests.interop.toolchain import node5

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
async def world(tmp_path):
    async with ApacheWorld(tmp_path / "apache") as world:
        yield world


@pytest.mark.parametrize("launch", CLIENTS)
async def test_sdk5_simple_consumer_works_the_same_at_apaches_proxy(world, tmp_path, launch):
    async with Sdk(tmp_path / "sdk", world.proxies[0], launch=launch) as sdk:
        await simple_consumer(world, sdk)


@pytest.mark.parametrize("launch", CLIENTS)
async def test_sdk5_push_consumers_work_the_same_at_apaches_proxy(world, tmp_path, launch):
    async with Sdk(tmp_path / "sdk", world.proxies[0], launch=launch) as sdk:
        await push_consumers(world, sdk, recalls=launch is node5, asked_once=False)
