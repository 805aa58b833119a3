"""Files of a store: units from any position on, holes, and bytes compared word by word."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from raftmq.audit.read.files import File
from raftmq.audit.read.store_files import QueueFile, same_bytes, units
from tests.audit.stores import UNIT

SIZE = 64


def queue_file(tmp_path: Path, data: bytes) -> QueueFile:
    path = tmp_path / f"{0:020d}"
    path.write_bytes(data)
    return QueueFile(File(str(tmp_path), path.name, len(data)), "T", 0, 100)


def unit(position: int) -> bytes:
    return UNIT.pack(position, 90, 7)


@pytest.mark.parametrize("size_bytes", [0, 1, 19])
def test_queue_file_without_a_complete_entry_has_none(tmp_path: Path, size_bytes: int) -> None:
    offsets, content = units(queue_file(tmp_path, bytes(size_bytes)), 5)
    assert len(offsets) == len(content) == 0


@pytest.mark.parametrize("begin", [0, 1, 500, 501, 1_000, 1_900, 1_901, 5_000])
def test_queue_entries_from_a_position(tmp_path: Path, begin: int) -> None:
    filler = UNIT.pack(0, 0x7FFFFFFF, 0)
    positions = range(100, 2_000, 100)
    data = filler * 3 + b"".join(map(unit, positions)) + bytes(UNIT.size * 9)
    offsets, content = units(queue_file(tmp_path, data), begin)
    expected = [(100 + 3 + n, at) for n, at in enumerate(positions) if at >= begin]
    assert [*zip(offsets.tolist(), content["position"].tolist(), strict=True)] == expected


def test_queue_entries_that_point_back_before_the_position_are_omitted(tmp_path: Path) -> None:
    data = b"".join(map(unit, (100, 600, 700, 200)))
    offsets, content = units(queue_file(tmp_path, data), 500)
    assert [*zip(offsets.tolist(), content["position"].tolist(), strict=True)] == [
        (101, 600),
        (102, 700),
    ]


def test_written_bytes_of_a_sparse_file(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    with path.open("wb") as file:
        file.write(b"x" * 5_000)
        file.truncate(4 << 20)
    written = File(str(tmp_path), path.name, 4 << 20).written_bytes()
    assert 5_000 <= written <= 4 << 20
    assert not any(path.read_bytes()[written:])
    path.write_bytes(b"x" * 5_000)
    assert File(str(tmp_path), path.name, 4 << 20).written_bytes() >= 5_000


@pytest.mark.parametrize("seed", range(30))
def test_bytes_are_compared_up_to_the_last_one(seed: int) -> None:
    rng = random.Random(seed)
    left = np.frombuffer(rng.randbytes(SIZE), np.uint8)
    right = left.copy()
    start, end = sorted(rng.sample(range(SIZE + 1), 2))
    right[rng.randrange(SIZE)] ^= 1
    same = left[start:end].tolist() == right[start:end].tolist()
    assert same_bytes(left, right, start, end) is same
    assert same_bytes(left, left, start, end)
