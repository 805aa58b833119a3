"""A group whose histories differ reports that nobody will lead, and which replica holds more."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from raftmq.dledger.node import rollback_detection as oldstore
from raftmq.dledger.node import standstill
from raftmq.dledger.storage.log_flusher import FlushMode
from tests.dledger.members import Group, Node, TroubledDisk
from tests.dledger.node.test_node import send_and_wait
from tests.notes import notes_in


def noted(node: Node, of: Node) -> int:
    """Return the index up to which another replica held the log, by the notes on a node's disk."""
    file = Path(node.disk.root, "raft/notes")
    notes = notes_in(file.read_bytes()) if file.exists() else {}
    return notes[of.node_id].index if of.node_id in notes else 0


@pytest.mark.parametrize("ahead", [True, False])
async def test_standstill_after_two_of_three_rollbacks_is_reported(
    tmp_path: Path,
    ahead: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The third, with all frames, comes when the two have gone on, with fewer frames than it has
    (then nobody leads), or with more (then it is shut out)."""
    monkeypatch.setattr(oldstore, "NOTE_INTERVAL_MS", 20)
    monkeypatch.setattr(standstill, "STANDSTILL_MS", 2_000)
    monkeypatch.setattr(standstill, "STEADY_MS", 1_500)
    caplog.set_level(logging.ERROR, "raftmq.dledger")
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"before")
        await group.all_applied()
        back = group.others(leader)
        for node in back:
            await asyncio.to_thread(
                shutil.copytree, node.disk.root, tmp_path / f"of-{node.node_id}"
            )
        for number in range(8):
            await send_and_wait(group, leader, b"acknowledged %d" % number)
        await group.all_applied()
        held = leader.member.core.last_index
        await group.until(lambda: all(noted(leader, node) >= held for node in back))
        for node in group.nodes:
            await node.kill()
        for node in back:
            shutil.rmtree(node.disk.root)
            shutil.copytree(tmp_path / f"of-{node.node_id}", node.disk.root)
            node.disk = TroubledDisk(node.disk.root)
            await node.start()
        second = await group.leader()
        for number in range(12 if ahead else 1):
            await send_and_wait(group, second, b"forked %d" % number)
        await leader.start()
        await group.until(lambda: bool(leader.member.status()["standstill"]))
        reach = f"{leader.node_id} holds frames up to {held} of term 1"
        assert reach in str(leader.member.status()["standstill"])
        assert leader.member.core.last_index == held
        assert "other_history" in caplog.text
        assert "compare them with mqbroker rescue" in caplog.text
        if ahead:
            await group.until(lambda: any(node.member.status()["parted"] for node in back))
            assert (await group.leader()) in back
        else:
            assert not any(node.member.core.leader_ready for node in group.nodes)
