"""Held pulls: what is forbidden while they wait is refused when they go on."""

import asyncio

import pytest

from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.headers import PullHeader
from tests.broker.cluster import Group
from tests.broker.pop.consumer import Popper
from tests.waiting import until


async def pause(group, broker):
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    body = dumps({"groupName": "cg", "consumeEnable": False})
    assert (await group.ask(broker, code, {}, body)).code == 0


async def make_unreadable(group, broker):
    ext = TopicHeader("T", 1, 1, 2).to_ext()
    assert (await group.ask(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0


@pytest.mark.parametrize("forbid", [pause, make_unreadable])
async def test_messages_are_not_delivered_after_read_permission_is_revoked(tmp_path, forbid):
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 1)
        pull = asyncio.create_task(group.pull(broker, "T", 0, flags=0x6))
        pop = asyncio.create_task(Popper(group).answer(broker, poll_ms=30_000, init_mode=1))
        await until(lambda: broker.pulls.holds.count == broker.popping.pops.waiting.count == 1)
        await forbid(group, broker)
        assert (await group.send(broker, "T")).code == 0
        for held, fresh in (
            (await pull, await group.pull(broker, "T", 0)),
            (await pop, await Popper(group).answer(broker)),
        ):
            assert held.code == ResponseCode.NO_PERMISSION
            assert (held.remark, held.body) == (fresh.remark, b"")
        assert broker.state.pops.in_flight("T", "cg") == 0


async def test_pull_without_a_byte_limit_gets_as_many_messages_as_in_apache(tmp_path):
    """Clients before 5.0 say `maxMsgNums` only, and some count on 32 at most."""
    async with Group(tmp_path) as group:
        broker = await group.leading()
        await group.create_topic(broker, "T", 1)
        await asyncio.gather(*(group.send(broker, "T") for _ in range(60)))
        for bytes_max, count in ((None, 32), (1 << 20, 50)):
            header = PullHeader("cg", "T", 0, 0, 50, 0x4, 0, 0, "*", 0, bytes_max=bytes_max)
            answer = await group.ask(broker, RequestCode.PULL_MESSAGE, header.to_ext())
            assert int(answer.ext["nextBeginOffset"]) == count
