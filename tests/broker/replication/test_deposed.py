"""A leader that was deposed and does not know it yet: what it cannot know it does not say."""

import asyncio

import pytest

from raftmq.remoting.admin_headers import ResetOffsetHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from tests.broker.cluster import Group
from tests.broker.replication.frozen import SOON, frozen, successor


@pytest.fixture
async def group(tmp_path):
    async with Group(tmp_path, count=3, **SOON) as three:
        await three.create_topic(await three.leading(), "T", 1)
        yield three


async def served(group, broker):
    """Wait until the broker has taken what was asked of it before."""
    assert (await group.ask(broker, RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0


async def test_a_deposed_leader_moves_no_consumer(group):
    """Its queue ends before the consumer's offset: answered 21, the consumer went back and got
    messages a second time."""
    old = await group.leading()
    await group.send(old, "T")
    with frozen(old):
        new = await successor(group, old)
        for _ in range(3):
            assert (await group.send(new, "T")).code == 0
        found = await group.pull(old, "T", 0)  # committed, whoever leads: answered at once
        assert found.code == ResponseCode.SUCCESS
        pulls = [
            asyncio.ensure_future(group.pull(old, "T", 4, flags=flags)) for flags in (0x4, 0x6)
        ]
        await served(group, old)
    for pulled in await asyncio.gather(*pulls):
        assert (pulled.code, pulled.remark[:12]) == (14, "[NOT_LEADER]")
        assert (pulled.ext or {}).get("leaderAddr") in (None, new.address)
    assert (await group.pull(new, "T", 4)).code == ResponseCode.PULL_NOT_FOUND
    assert (await group.pull(new, "T", 7)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_a_deposed_leader_tells_nobody_of_a_reset_that_was_taken(group):
    old = await group.leading()
    for _ in range(6):
        await group.send(old, "T")
    assert (await group.commit(old, "T", 0, 5)).code == 0
    reset = ResetOffsetHeader("T", "cg", 0).to_ext()
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    assert (await group.ask(old, code, reset)).code == 0
    with frozen(old):
        new = await successor(group, old)
        assert (await group.pull(new, "T", 5)).remark == "OFFSET_RESET"
        assert (await group.pull(new, "T", 0)).code == ResponseCode.SUCCESS
        pulled = asyncio.ensure_future(group.pull(old, "T", 5))
        await served(group, old)
    assert (await pulled).remark.startswith("[NOT_LEADER]")
