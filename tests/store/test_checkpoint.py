from pathlib import Path

import pytest

from raftmq.store.checkpoint import AbortFile, Checkpoint, CheckpointFields
from raftmq.store.disk import OsDisk


def test_checkpoint_fields_and_layout(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    checkpoint = Checkpoint(disk, "checkpoint")
    checkpoint.open()
    assert checkpoint.fields == CheckpointFields()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    checkpoint.raise_durable(77)
    checkpoint.write(CheckpointFields(1, 2, confirm_offset=55))
    checkpoint.sync()
    checkpoint.close()
    data = (tmp_path / "checkpoint").read_bytes()
    assert [int.from_bytes(data[n : n + 8], "big") for n in range(0, 40, 8)] == [1, 2, 0, 77, 55]
    assert data[40:44] == b"RMQC"
    assert not any(data[48:])
    checkpoint.open()
    assert checkpoint.fields == CheckpointFields(1, 2, 0, 77, 55)
    checkpoint.lower_durable(5)
    assert checkpoint.durable_offset == 5
    checkpoint.raise_durable(9)
    checkpoint.close()
    checkpoint.open()
    assert checkpoint.fields.durable_offset == 9


def test_short_checkpoint_file_is_extended(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes((7).to_bytes(8, "big"))
    checkpoint = Checkpoint(OsDisk(str(tmp_path)), "checkpoint")
    checkpoint.open()
    assert checkpoint.fields == CheckpointFields(7)


def test_checkpoint_keeps_the_index_time_of_another_broker(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(16) + (3).to_bytes(8, "big"))
    checkpoint = Checkpoint(OsDisk(str(tmp_path)), "checkpoint")
    checkpoint.open()
    checkpoint.write(checkpoint.fields._replace(physic_timestamp_ms=1, logics_timestamp_ms=2))
    checkpoint.close()
    assert (tmp_path / "checkpoint").read_bytes()[16:24] == (3).to_bytes(8, "big")


def test_abort_file_is_created_and_removed(tmp_path: Path) -> None:
    abort = AbortFile(OsDisk(str(tmp_path)), "abort")
    assert not abort.exists()
    abort.create()
    assert abort.exists()
    assert (tmp_path / "abort").read_bytes() == b""
    abort.remove()
    assert not abort.exists()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("at", [*range(48), "zeroed", "gone"])
def test_damaged_checkpoint_is_detected_and_has_no_mark(
    tmp_path: Path, at: int | str, verify: bool
) -> None:
    disk = OsDisk(str(tmp_path))
    checkpoint = Checkpoint(disk, "checkpoint")
    checkpoint.open(verify=True)
    assert checkpoint.lost, "a new one knows nothing of a log that may be there"
    checkpoint.lower_durable(0)
    checkpoint.write(CheckpointFields(1, 2, confirm_offset=55))
    checkpoint.raise_durable(77)
    checkpoint.close()
    path = tmp_path / "checkpoint"
    data = bytearray(path.read_bytes())
    if at == "zeroed":
        data = bytearray(4096)
    elif isinstance(at, int):
        data[at] ^= 0x04
    path.write_bytes(data)
    checkpoint.open(verify=verify)
    damaged = verify and at != "gone"
    assert (checkpoint.damaged, checkpoint.lost) == (damaged, damaged)
    if damaged:
        assert checkpoint.fields == CheckpointFields()
        checkpoint.write(CheckpointFields(1, 2, confirm_offset=0))
        checkpoint.close()
        checkpoint.open(verify=True)
        assert checkpoint.lost, "a note does not know how far the log was durable"
        checkpoint.lower_durable(60)
        checkpoint.close()
        checkpoint.open(verify=True)
        assert not checkpoint.lost
        assert checkpoint.fields.durable_offset == 60


def test_checkpoint_without_checksum_is_read(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(24) + (9).to_bytes(8, "big") + bytes(4064))
    checkpoint = Checkpoint(OsDisk(str(tmp_path)), "checkpoint")
    checkpoint.open(verify=True)
    assert checkpoint.durable_offset == 9
    checkpoint.raise_durable(10)
    checkpoint.close()
    checkpoint.open(verify=True)
    assert checkpoint.durable_offset == 10
