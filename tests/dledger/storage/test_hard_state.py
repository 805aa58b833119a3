"""Slots and hard state: what a crash in the middle of a save may cost, and what it may not."""

import struct
from pathlib import Path
from random import Random

import pytest

from raftmq.dledger.raft.messages import TERM_MAX, HardState
from raftmq.dledger.storage.hard_state import HardStateDamaged, HardStateFile, Owner
from raftmq.dledger.storage.two_slot_file import (
    CONTENT_SIZE_BYTES_MAX,
    SLOT_SIZE_BYTES,
    SlotFile,
    SlotsDamaged,
)
from tests.simulator.disk import SimDisk
from tests.steadydisk import SteadyDisk

PATH = "raft/hardstate"
FILE_SIZE_BYTES = 2 * SLOT_SIZE_BYTES


def opened(root: Path) -> HardStateFile:
    return HardStateFile(SteadyDisk(str(root)), PATH)


def load(root: Path) -> HardState:
    file = opened(root)
    try:
        return file.load()
    finally:
        file.close()


def test_new_replica_has_no_hard_state_file_and_no_vote(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.load() == HardState(0, None, recovered=False)
    assert file.is_new
    assert not (tmp_path / PATH).exists()


@pytest.mark.parametrize("vote", [None, "n0", "ü" * 100])
def test_saved_hard_state_is_loaded(tmp_path: Path, vote: str | None) -> None:
    file = opened(tmp_path)
    file.load()
    for term in (1, 2, 3):
        file.save(HardState(term, vote))
    file.close()
    assert (tmp_path / PATH).stat().st_size == FILE_SIZE_BYTES
    again = opened(tmp_path)
    assert again.load() == HardState(3, vote)
    assert not again.is_new
    again.save(HardState(4, "n1", recovered=False))
    again.close()
    assert load(tmp_path) == HardState(4, "n1", recovered=False)


def saved(root: Path, *states: HardState) -> list[bytes]:
    """The file's bytes after each save."""
    file = opened(root)
    file.load()
    contents = []
    for state in states:
        file.save(state)
        contents.append((root / PATH).read_bytes())
    file.close()
    return contents


@pytest.mark.parametrize("torn_at", [0, 1, 7, 15, 16, 20, 26, SLOT_SIZE_BYTES - 1])
@pytest.mark.parametrize("slot", [0, 1])
def test_torn_save_leaves_the_previous_or_the_new_hard_state(
    tmp_path: Path, slot: int, torn_at: int
) -> None:
    before, after = saved(tmp_path, HardState(2, "n1"), HardState(3, "n2"))
    cut = slot * SLOT_SIZE_BYTES + torn_at  # what was written before the crash
    (tmp_path / PATH).write_bytes(after[:cut] + before[cut:])
    complete = slot == 1 or torn_at >= 60  # the record is shorter than that
    expected = HardState(3, "n2") if complete else HardState(2, "n1")
    assert load(tmp_path) == expected
    data = (tmp_path / PATH).read_bytes()
    assert data[:SLOT_SIZE_BYTES] == data[SLOT_SIZE_BYTES:]  # made good
    again = opened(tmp_path)
    again.load()
    again.save(HardState(5, None))
    again.close()
    assert load(tmp_path) == HardState(5, None)


@pytest.mark.parametrize("slot", [0, 1])
def test_corrupt_slot_never_restores_an_older_vote(tmp_path: Path, slot: int) -> None:
    """Whichever of the two rots, bit by bit, and however often the state was saved before."""
    states = [HardState(7, "n0"), HardState(8, "n1"), HardState(8, "n1", recovered=False)]
    for state, sound in zip(states, saved(tmp_path, *states), strict=True):
        for bit in range(8 * 36):  # header, content, checksum: 12 + 16 + 4 and some zeros
            rotten = bytearray(sound)
            rotten[slot * SLOT_SIZE_BYTES + bit // 8] ^= 1 << bit % 8
            (tmp_path / PATH).write_bytes(rotten)
            assert load(tmp_path) == state
            head = (tmp_path / PATH).read_bytes()[slot * SLOT_SIZE_BYTES :][:32]
            assert head == sound[slot * SLOT_SIZE_BYTES :][:32]  # rewritten


def test_two_damaged_slots_are_rejected_and_never_taken_for_a_new_file(tmp_path: Path) -> None:
    (data,) = saved(tmp_path, HardState(8, "n0"))
    rotten = bytearray(data)
    for slot in (0, 1):
        rotten[slot * SLOT_SIZE_BYTES + 20] ^= 0x40
    (tmp_path / PATH).write_bytes(rotten)
    with pytest.raises(HardStateDamaged, match=r"slot 0 .*slot 1"):
        load(tmp_path)
    # What it held is lost; the next promise is kept in a new file.
    file = opened(tmp_path)
    with pytest.raises(HardStateDamaged):
        file.load()
    file.save(HardState(9, None, recovered=False))
    file.close()
    assert load(tmp_path) == HardState(9, None, recovered=False)


@pytest.mark.parametrize("vote", [None, "n1"])
def test_hard_state_of_version_2_has_no_owner(tmp_path: Path, vote: str | None) -> None:
    """As programs before this one wrote it: version, flags, term, length, vote."""
    name = (vote or "").encode()
    length = (len(name) if vote else 0xFFFF).to_bytes(2, "big")
    slots = SlotFile(SteadyDisk(str(tmp_path)), PATH)
    slots.save(b"\x02\x00" + (77).to_bytes(8, "big") + length + name)
    slots.close()
    file = opened(tmp_path)
    assert file.load() == HardState(77, vote)
    assert file.owner == Owner()
    file.owner = Owner("n0", bytes(range(16)))
    file.save(HardState(78, vote))
    file.close()
    again = opened(tmp_path)
    assert again.load() == HardState(78, vote)
    assert again.owner == Owner("n0", bytes(range(16)))


@pytest.mark.parametrize(
    "content", [b"", b"\x02\x00", b"\x03" + bytes(11), b"\x04" + bytes(40), b"\x02\x04" + bytes(10)]
)
def test_record_with_another_layout_is_damage(tmp_path: Path, content: bytes) -> None:
    slots = SlotFile(SteadyDisk(str(tmp_path)), PATH)
    slots.save(content)
    slots.close()
    with pytest.raises(HardStateDamaged):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * FILE_SIZE_BYTES, b"x" * 100])
def test_empty_or_foreign_hard_state_file_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / PATH).write_bytes(content)
    with pytest.raises(HardStateDamaged):
        load(tmp_path)


def test_crash_during_creation_leaves_a_new_replica(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / (PATH + ".new")).write_bytes(b"half a slot")
    file = opened(tmp_path)
    assert file.load() == HardState(0, None, recovered=False)
    assert file.is_new
    file.save(HardState(1, "n2"))
    file.close()
    assert load(tmp_path) == HardState(1, "n2")


def test_slot_content_up_to_the_limit_is_stored(tmp_path: Path) -> None:
    disk = SteadyDisk(str(tmp_path))
    slots = SlotFile(disk, "raft/notes")
    slots.save(b"a" * CONTENT_SIZE_BYTES_MAX)
    slots.save(b"b" * CONTENT_SIZE_BYTES_MAX)
    with pytest.raises(AssertionError):
        slots.save(b"c" * (CONTENT_SIZE_BYTES_MAX + 1))
    slots.close()
    other = SlotFile(disk, "raft/notes")
    with pytest.raises(AssertionError, match="loaded"):
        other.save(b"would hide what is there")
    assert other.load() == b"b" * CONTENT_SIZE_BYTES_MAX
    other.close()


def test_slot_of_an_unknown_version_is_rejected_with_its_version(tmp_path: Path) -> None:
    slots = SlotFile(SteadyDisk(str(tmp_path)), "raft/notes")
    slots.save(b"one")
    slots.close()
    data = bytearray((tmp_path / "raft/notes").read_bytes())
    from google_crc32c import value

    for at in (0, SLOT_SIZE_BYTES):
        data[at + 5] = 9
        data[at + 19 : at + 23] = value(bytes(data[at : at + 19])).to_bytes(4, "big")
    (tmp_path / "raft/notes").write_bytes(data)
    with pytest.raises(SlotsDamaged, match="version 9"):
        SlotFile(SteadyDisk(str(tmp_path)), "raft/notes").load()


@pytest.mark.parametrize("term", [TERM_MAX + 1, 2**63 - 1, -1])
def test_term_above_the_limit_is_damage_and_is_not_saved(tmp_path: Path, term: int) -> None:
    with pytest.raises(AssertionError):
        opened(tmp_path).save(HardState(term, "n0"))
    slots = SlotFile(SteadyDisk(str(tmp_path)), PATH)
    slots.save(struct.pack(">BBqH", 2, 0, term, 0xFFFF))
    slots.close()
    with pytest.raises(HardStateDamaged, match=f"term {term}"):
        load(tmp_path)


def test_vote_with_a_failed_sync_is_durable_before_it_is_used() -> None:
    """The page cache shows it to the next process, but no sync of clean pages would write it."""
    disk = SimDisk(Random(1))
    file = HardStateFile(disk, PATH)
    file.load()
    file.save(HardState(1, "n0"))
    disk.fails_sync = True
    with pytest.raises(OSError, match="Input/output error"):
        file.save(HardState(2, "n1"))
    disk.kill_process()
    assert HardStateFile(disk, PATH).load() == HardState(2, "n1")
    disk.lose_power()
    assert HardStateFile(disk, PATH).load() == HardState(2, "n1")
