"""Slots and hard state: what a crash in the middle of a save may cost, and what it may not."""

from pathlib import Path

import pytest

from dledger.hardstate import HardStateDamaged, HardStateFile
from dledger.messages import HardState
from dledger.slots import (
    CONTENT_SIZE_BYTES_MAX,
    FILE_SIZE_BYTES,
    SLOT_SIZE_BYTES,
    SlotFile,
    SlotsDamaged,
)
from store.disk import OsDisk

PATH = "raft/hardstate"


def opened(root: Path) -> HardStateFile:
    return HardStateFile(OsDisk(str(root)), PATH)


def load(root: Path) -> HardState:
    file = opened(root)
    try:
        return file.load()
    finally:
        file.close()


def test_a_new_replica_has_no_file_and_no_vote(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.load() == HardState(0, None)
    assert file.is_new
    assert not (tmp_path / PATH).exists()


@pytest.mark.parametrize("vote", [None, "n0", "ü" * 100])
def test_what_was_saved_is_loaded(tmp_path: Path, vote: str | None) -> None:
    file = opened(tmp_path)
    file.load()
    for term in (1, 2, 3):
        file.save(HardState(term, vote))
    file.close()
    assert (tmp_path / PATH).stat().st_size == FILE_SIZE_BYTES
    again = opened(tmp_path)
    assert again.load() == HardState(3, vote)
    assert not again.is_new
    again.save(HardState(4, "n1"))
    again.close()
    assert load(tmp_path) == HardState(4, "n1")


@pytest.mark.parametrize("torn_at", [0, 1, 7, 15, 16, 20, 26])
def test_a_torn_save_leaves_the_state_before_it(tmp_path: Path, torn_at: int) -> None:
    file = opened(tmp_path)
    file.load()
    file.save(HardState(1, "n0"))
    file.save(HardState(2, "n1"))
    before = (tmp_path / PATH).read_bytes()
    file.save(HardState(3, "n2"))
    file.close()
    after = (tmp_path / PATH).read_bytes()
    # The third save went to slot 0; only its first bytes came down before the crash.
    torn = after[:torn_at] + before[torn_at:]
    (tmp_path / PATH).write_bytes(torn)
    assert load(tmp_path) == HardState(2, "n1")
    again = opened(tmp_path)
    again.load()
    again.save(HardState(5, None))
    again.close()
    assert load(tmp_path) == HardState(5, None)


def test_two_damaged_slots_are_refused_and_never_new(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.load()
    file.save(HardState(7, "n0"))
    file.save(HardState(8, "n0"))
    file.close()
    data = bytearray((tmp_path / PATH).read_bytes())
    for slot in (0, 1):
        data[slot * SLOT_SIZE_BYTES + 20] ^= 0x40
    (tmp_path / PATH).write_bytes(data)
    with pytest.raises(HardStateDamaged, match=r"slot 0 .*slot 1"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * FILE_SIZE_BYTES, b"x" * 100])
def test_an_empty_or_foreign_file_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / PATH).write_bytes(content)
    with pytest.raises(HardStateDamaged):
        load(tmp_path)


def test_a_crashed_creation_leaves_a_new_replica(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / (PATH + ".new")).write_bytes(b"half a slot")
    file = opened(tmp_path)
    assert file.load() == HardState(0, None)
    assert file.is_new
    file.save(HardState(1, "n2"))
    file.close()
    assert load(tmp_path) == HardState(1, "n2")


def test_slots_take_content_up_to_their_limit(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    slots = SlotFile(disk, "raft/x")
    slots.save(b"a" * CONTENT_SIZE_BYTES_MAX)
    slots.save(b"b" * CONTENT_SIZE_BYTES_MAX)
    with pytest.raises(AssertionError):
        slots.save(b"c" * (CONTENT_SIZE_BYTES_MAX + 1))
    slots.close()
    other = SlotFile(disk, "raft/x")
    with pytest.raises(AssertionError, match="loaded"):
        other.save(b"would hide what is there")
    assert other.load() == b"b" * CONTENT_SIZE_BYTES_MAX
    other.close()


def test_a_slot_of_another_version_is_named(tmp_path: Path) -> None:
    slots = SlotFile(OsDisk(str(tmp_path)), "raft/x")
    slots.save(b"one")
    slots.close()
    data = bytearray((tmp_path / "raft/x").read_bytes())
    from google_crc32c import value

    data[5] = 9
    data[19:23] = value(bytes(data[:19])).to_bytes(4, "big")
    (tmp_path / "raft/x").write_bytes(data)
    with pytest.raises(SlotsDamaged, match="version 9"):
        SlotFile(OsDisk(str(tmp_path)), "raft/x").load()
