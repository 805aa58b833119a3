"""Leadership on request (30001), and the port that clients are told (advertisedPort)."""

import pytest

from raftmq.broker.config import build_config
from raftmq.ops.options import Setting
from raftmq.remoting.codes import RequestCode, ResponseCode
from tests.broker.cluster import Group
from tests.waiting import until


@pytest.fixture
async def group(tmp_path):
    async with Group(tmp_path, count=3) as three:
        yield three


async def test_leadership_transfer_to_a_named_target(group):
    old = await group.leader()
    target = next(name for name in group.names if name != old)
    answer = await group.transfer(group.brokers[old], target)
    assert (answer.code, answer.ext["target"]) == (0, target)
    await until(lambda: group.brokers[target].roles.leading)
    (third,) = set(group.names) - {old, target}
    refused = await group.ask(group.brokers[third], RequestCode.TRANSFER_LEADERSHIP)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refused.remark.startswith("[NOT_LEADER]")


async def test_leadership_transfer_picks_a_follower_and_rejects_a_non_member(group):
    old = await group.leader()
    answer = await group.ask(group.brokers[old], RequestCode.TRANSFER_LEADERSHIP, {"target": "n9"})
    assert answer.code == ResponseCode.SYSTEM_ERROR and "n9" in answer.remark
    answer = await group.transfer(group.brokers[old])
    assert answer.code == 0 and answer.ext["target"] != old
    await until(lambda: group.brokers[answer.ext["target"]].roles.leading)


async def test_clients_get_the_advertised_port(tmp_path):
    async with Group(tmp_path, advertisedPort=12345) as one:
        broker = await one.leading()
        assert broker.address == "127.0.0.1:12345"
        assert broker.port != 12345
        await until(lambda: one.brokers["n0"].state.addresses == {"n0": "127.0.0.1:12345"})


def test_address_of_a_configuration():
    settings = [Setting("listenPort", "10911", "test")]
    assert build_config(settings).address == "127.0.0.1:10911"
    settings.append(Setting("advertisedPort", "20911", "test"))
    assert build_config(settings).address == "127.0.0.1:20911"
