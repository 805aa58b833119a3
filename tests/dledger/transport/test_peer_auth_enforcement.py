"""The moment from which nobody comes without a proof: noted before it counts, and never undone."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.dledger.transport.peer_auth import Admissions
from raftmq.dledger.transport.peer_auth_enforcement import ENFORCED_FILE, Enforcement
from tests.dledger.members import TroubledDisk
from tests.dledger.transport.test_group_id import until

VOTERS = ("n0", "n1", "n2")


class World:
    """One replica's note, and whom its gate lets pass."""

    def __init__(self, root: Path, accept: bool = True) -> None:
        self.admissions = Admissions(accept)
        self.disk = TroubledDisk(str(root))
        self.disk.trouble_below = "raft/"
        self.failed: list[str] = []
        file = SlotFile(self.disk, f"raft/{ENFORCED_FILE}")
        self.note = Enforcement(file, self.admissions, lambda why, error: self.failed.append(why))
        self.pool = ThreadPoolExecutor(1)
        self.note.load()

    def look(self, voters: tuple[str, ...] = VOTERS) -> None:
        self.note.look(voters, "n0", self.pool)

    async def stop(self) -> None:
        await self.note.stop()
        self.pool.shutdown()


async def test_every_other_voter_has_to_have_proven_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    for proven in ((), ("n1",), ("n1", "stranger")):
        world.admissions.proven = set(proven)
        world.look()
        world.look(())  # a replica that knows of no group yet
        await world.note.stop()
        assert world.admissions.accepts_unproven
    world.admissions.proven = {"n1", "n2"}
    world.look()
    await until(lambda: not world.admissions.accepts_unproven)
    await world.stop()


async def test_it_outlives_a_restart_and_a_change_of_members(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.admissions.proven = {"n1", "n2"}
    world.look()
    await until(lambda: not world.admissions.accepts_unproven)
    await world.stop()
    again = World(tmp_path)
    assert not again.admissions.accepts_unproven
    again.look(("n0", "n3"))
    assert not again.admissions.accepts_unproven
    await again.stop()


async def test_a_damaged_note_enforces_still(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.admissions.proven = {"n1", "n2"}
    world.look()
    await until(lambda: not world.admissions.accepts_unproven)
    await world.stop()
    (tmp_path / "raft" / ENFORCED_FILE).write_bytes(bytes(8192))
    again = World(tmp_path)
    assert not again.admissions.accepts_unproven
    await again.stop()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_what_cannot_be_noted_is_not_in_force(tmp_path: Path, code: int) -> None:
    world = World(tmp_path)
    world.disk.fail_writes, world.disk.write_error = True, code
    world.admissions.proven = {"n1", "n2"}
    world.look()
    await until(lambda: world.note._saving is None)
    assert world.admissions.accepts_unproven
    assert bool(world.failed) == (code == errno.EIO)  # a full disk is waited for
    world.disk.fail_writes = False
    world.look()
    await until(lambda: not world.admissions.accepts_unproven)
    await world.stop()
