"""The audit decodes once what is equal in several stores, and for each store what is not."""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from raftmq.audit.read import log_reader
from raftmq.audit.read.blocks import DifferentBlocks
from raftmq.audit.read.files import File, View
from raftmq.audit.read.log_reader import LOG_SCHEMA, Content, Copy, shared_items
from raftmq.audit.read.spark_sources import LogReader
from raftmq.audit.read.store_files import STORES_SEPARATOR
from tests.audit.stores import Log, Message

Rows = set[tuple[object, ...]]
BASE, SIZE = 0, 8192


def segment(seed: int = 1) -> bytearray:
    """Frames of some records each, and zeros."""
    rng, log = random.Random(seed), Log(SIZE)
    for number in range(10):
        log.frame(
            3,
            [
                Message(f"{number:016X}{at:016X}", rng.randbytes(rng.randrange(1, 200)))
                for at in range(rng.randrange(1, 4))
            ],
        )
    assert len(log.segments) == 1
    return bytearray(log.segments[0])


def rows(batches: list[pa.RecordBatch]) -> Rows:
    """All rows, one for each store."""
    result: Rows = set()
    for batch in batches:
        for row in batch.to_pylist():
            for store in row.pop("store").split(STORES_SEPARATOR):
                result.add((store, *map(str, row.values())))
    return result


def mapped(data: bytearray) -> View:
    return View(memoryview(bytes(data)))


def one_by_one(copies: list[tuple[str, bytearray]], start: int, end: int) -> Rows:
    return rows(
        [
            batch
            for store, data in copies
            if start < len(data)
            for batch in shared([(store, data)], start, min(end, len(data)))
        ]
    )


def shared(
    copies: list[tuple[str, bytearray]],
    start: int,
    end: int,
    view_of: Callable[[bytearray], View] = mapped,
) -> list[pa.RecordBatch]:
    views = [Copy(store, view_of(data)) for store, data in copies if start < len(data)]
    parts = shared_items(views, BASE, start, end)
    return [batch for part in parts for batch in part.batches]


def test_equal_copies_are_decoded_once() -> None:
    copies = [(name, segment()) for name in ("n0", "n1", "n2")]
    batches = shared(copies, 0, SIZE)
    assert {name for b in batches for name in b["store"].to_pylist()} == {"n0\nn1\nn2"}
    assert sum(map(len, batches)) * 3 == len(one_by_one(copies, 0, SIZE))


@pytest.mark.parametrize("seed", range(40))
def test_differing_copies_have_their_own_rows(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that are damaged, cut short, or end elsewhere, in ranges from any byte to any other:
    the rows are those of each store read by itself, mapped or loaded by ranges."""
    monkeypatch.setattr(log_reader, "BEHIND_BYTES", 64)
    monkeypatch.setattr(log_reader, "BEHIND_FACTOR", 2)
    monkeypatch.setattr(log_reader, "LONGEST", 2_000)

    def loaded(data: bytearray) -> View:
        name = f"{len([*tmp_path.iterdir()])}"
        (tmp_path / name).write_bytes(data)
        return File(tmp_path.as_uri(), name, len(data)).view()

    rng = random.Random(seed)
    copies = [(name, segment()) for name in ("n0", "n1", "n2", "n3")]
    for _, data in rng.sample(copies, rng.randrange(3)):
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(SIZE)] ^= 1 << rng.randrange(8)
    if rng.random() < 0.3:
        del copies[0][1][rng.randrange(1, SIZE) :]
    if rng.random() < 0.3:
        at = rng.randrange(SIZE)
        copies[1][1][at:] = bytes(SIZE - at)
    for _ in range(4):
        start, end = sorted(rng.sample(range(SIZE + 1), 2))
        assert rows(shared(copies, start, end)) == one_by_one(copies, start, end)
        assert rows(shared(copies, start, end, loaded)) == one_by_one(copies, start, end)


def test_batches_have_the_schema_declared_to_spark() -> None:
    batches = list(shared([("a", segment()), ("b", segment(2))], 0, SIZE))
    assert batches and all(batch.schema == LOG_SCHEMA for batch in batches)


def blocks(*copies: tuple[bytes, int]) -> list[str]:
    limits = {f"n{number}": limit for number, (_, limit) in enumerate(copies)}
    compared = DifferentBlocks(LogReader({"path": "/nowhere"}), limits, [*limits.values()])
    contents = [Content((f"n{number}",), 0, data) for number, (data, _) in enumerate(copies)]
    different = compared.compared(contents)
    return sorted(f"{start}:{store}" for start, block in different for store in block)


def test_differing_blocks_are_returned_for_every_copy() -> None:
    complete = random.Random(3).randbytes(1 << 21)
    size = len(complete)
    other = bytearray(complete)
    other[(1 << 20) + 5] ^= 1
    assert blocks((complete, size), (complete, size)) == []
    reported = blocks((complete, size), (bytes(other), size), (complete, size))
    assert reported == ["1048576:n0", "1048576:n1", "1048576:n2"]
    # Behind its limit a copy has no block.
    assert blocks((complete, size), (bytes(other), 1 << 20)) == []
    assert blocks((complete[:-1], size), (complete, size)) != []
