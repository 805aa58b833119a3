"""An older store of another replica takes a replica's place: nobody elects without the replica that
has what was acknowledged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raftmq.dledger.raft.messages import Role
from raftmq.dledger.storage.log_flusher import FlushMode
from tests.dledger.members import Group, TroubledDisk
from tests.dledger.node.test_node import send_and_wait


def moved(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target)


def moved_without_votes(source: Path, target: Path) -> None:
    moved(source, target)
    (target / "raft" / "hardstate").unlink()


def votes_copied(source: Path, target: Path) -> None:
    """Into the file that is there, as by an editor."""
    data = (source / "raft" / "hardstate").read_bytes()
    (target / "raft" / "hardstate").write_bytes(data)


@pytest.mark.parametrize("way", [moved, moved_without_votes, votes_copied])
async def test_replica_with_the_store_of_another_replica_cannot_elect(
    tmp_path: Path, way: Callable[[Path, Path], None]
) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        victim, away = group.others(leader)
        await send_and_wait(group, leader, b"before")
        await group.all_applied()
        await away.stop()
        for number in range(5):
            await send_and_wait(group, leader, b"acknowledged %d" % number)
        await victim.stop()
        await leader.stop()
        await asyncio.to_thread(way, Path(away.disk.root), Path(victim.disk.root))
        victim.disk = TroubledDisk(victim.disk.root)
        await away.start()
        await victim.start()
        assert not victim.member.core.recovered
        await asyncio.sleep(1.5)  # twice the longest election time-out
        assert all(node.member.core.role is not Role.LEADER for node in (victim, away))
        await leader.start()
        await group.leader()
        await group.all_applied()
        assert {len(node.app.payloads) for node in group.nodes} == {6}
        await group.until(lambda: victim.member.core.recovered)
