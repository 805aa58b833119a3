"""A rolling upgrade, under load, from the last program that noted nothing of others to this one:
nothing that was acknowledged is lost, and once all replicas know notes, one whose store is set back
to an earlier image is told, and recovers."""

import asyncio
import shutil
import signal

from raftmq.dledger.node.rollback_detection import NOTES_FILE
from tests.broker.replication.test_peer_upgrade import (
    BETWEEN,
    Acknowledged,
    all_there,
    caught_up,
    upgrade_each,
    upgrading,
)
from tests.broker.replication.test_refill_processes import NAMES
from tests.notes import notes_in

BEFORE = "b38fd1e"  # the last commit without notes


def noted(group, name):
    """The index up to which all the others know that this replica has held frames; 0 if one of
    them knows nothing."""
    found = []
    for other in set(NAMES) - {name}:
        path = group.root / other / "raft" / NOTES_FILE
        held = notes_in(path.read_bytes()).get(name) if path.exists() else None
        found.append(0 if held is None else held.index)
    return min(found)


async def test_a_group_remembers_once_its_replicas_know_how(tmp_path):
    async with upgrading(tmp_path, BEFORE) as group:
        async with Acknowledged(group) as load:
            await upgrade_each(group, load)
            await group.until(lambda infos: all(noted(group, name) for name in NAMES))
            victim = NAMES[0]
            store, image = tmp_path / victim, tmp_path / "image"
            await asyncio.to_thread(group.end, victim, signal.SIGTERM)
            await asyncio.to_thread(shutil.copytree, store, image)
            await asyncio.to_thread(group.start, victim)
            await group.until(caught_up)
            await load.more(BETWEEN)
            infos = await group.until(caught_up)
            held = max(int(info["raftCommitIndex"]) for info in infos.values())
            await group.until(lambda infos: noted(group, victim) >= held)
            await asyncio.to_thread(group.end, victim, signal.SIGKILL)
            await asyncio.to_thread(shutil.rmtree, store)
            await asyncio.to_thread(shutil.copytree, image, store)
            await asyncio.to_thread(group.start, victim)
            # Until it hears the others it believes what it has.
            await group.until(lambda infos: "promises_lost" in group.log(victim))
            await group.until(caught_up)
            await load.more(BETWEEN)
        assert group.log(victim).count("promises_lost") == 1
        assert "its store is older" in group.log(victim)
        assert not any("promises_lost" in group.log(name) for name in NAMES[1:])
        await all_there(group, load.bodies)
