"""A rolling upgrade, under load, from the last program that did not know a kind of peer message to
this one, and one replica back again: nothing that was acknowledged is lost, and no replica is told
what it does not know."""

import asyncio
import signal

import pytest

from tests.broker.replication.test_peer_upgrade import (
    BETWEEN,
    Acknowledged,
    all_there,
    caught_up,
    upgrade_each,
    upgrading,
)
from tests.broker.replication.test_refill_processes import NAMES

# The last commit without it.
BEFORE = [
    pytest.param("2e0a545", marks=pytest.mark.long, id="Landmark"),
    pytest.param("e08f33c1", id="Circumstances"),
]


@pytest.mark.parametrize("before", BEFORE)
async def test_a_group_says_such_messages_to_replicas_that_know_them(tmp_path, before):
    async with upgrading(tmp_path, before) as group:
        async with Acknowledged(group) as load:
            await upgrade_each(group, load)
            back = NAMES[1]
            await asyncio.to_thread(group.end, back, signal.SIGTERM)
            group.new.discard(back)
            await asyncio.to_thread(group.start, back)
            await group.until(caught_up)
            await load.more(BETWEEN)
            await asyncio.to_thread(group.end, back, signal.SIGKILL)
            group.new.add(back)
            await asyncio.to_thread(group.start, back)
            await group.until(caught_up)
            await load.more(BETWEEN)
        await all_there(group, load.bodies)
        told = "".join(group.log(name) for name in NAMES)
        assert "message kind" not in told and "other_history" not in told
