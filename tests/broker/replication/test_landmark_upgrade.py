"""A rolling upgrade, under load, from the last program that compared frames by index and term alone
to this one, and one replica back again: nothing that was acknowledged is lost, and no replica is
told what it does not know."""

import asyncio
import signal

from tests.broker.replication.test_peer_upgrade import (
    BETWEEN,
    Acknowledged,
    all_there,
    caught_up,
    upgrading,
)
from tests.broker.replication.test_refill_processes import NAMES

BEFORE = "2e0a545"  # the last commit without landmarks


async def test_a_group_says_landmarks_to_replicas_that_know_them(tmp_path):
    async with upgrading(tmp_path, BEFORE) as group:
        async with Acknowledged(group) as load:
            for name in NAMES:
                await load.more(BETWEEN)
                await asyncio.to_thread(group.upgrade, name)
                await group.until(caught_up)
            await load.more(BETWEEN)
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
