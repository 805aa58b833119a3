from pathlib import Path

from store.checkpoint import AbortFile, Checkpoint, CheckpointFields
from store.disk import OsDisk


def test_fields_and_layout(tmp_path: Path) -> None:
    disk = OsDisk(str(tmp_path))
    checkpoint = Checkpoint(disk, "checkpoint")
    checkpoint.open()
    assert checkpoint.fields == CheckpointFields()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    checkpoint.raise_durable(77)
    checkpoint.note(physic_timestamp_ms=1, logics_timestamp_ms=2, confirm_offset=55)
    checkpoint.sync()
    checkpoint.close()
    data = (tmp_path / "checkpoint").read_bytes()
    assert [int.from_bytes(data[n : n + 8], "big") for n in range(0, 48, 8)] == [1, 2, 0, 77, 55, 0]
    checkpoint.open()
    assert checkpoint.fields == CheckpointFields(1, 2, 0, 77, 55)
    checkpoint.lower_durable(5)
    assert checkpoint.durable_offset == 5
    checkpoint.raise_durable(9)
    checkpoint.close()
    checkpoint.open()
    assert checkpoint.fields.durable_offset == 9


def test_a_short_file_is_completed(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes((7).to_bytes(8, "big"))
    checkpoint = Checkpoint(OsDisk(str(tmp_path)), "checkpoint")
    checkpoint.open()
    assert checkpoint.fields == CheckpointFields(7)


def test_the_index_time_of_another_broker_is_kept(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(bytes(16) + (3).to_bytes(8, "big"))
    checkpoint = Checkpoint(OsDisk(str(tmp_path)), "checkpoint")
    checkpoint.open()
    checkpoint.note(physic_timestamp_ms=1, logics_timestamp_ms=2, confirm_offset=0)
    checkpoint.close()
    assert (tmp_path / "checkpoint").read_bytes()[16:24] == (3).to_bytes(8, "big")


def test_abort(tmp_path: Path) -> None:
    abort = AbortFile(OsDisk(str(tmp_path)), "abort")
    assert not abort.found()
    abort.create()
    assert abort.found()
    assert (tmp_path / "abort").read_bytes() == b""
    abort.remove()
    assert not abort.found()
