"""Logs of running replicas: what is read of which, and that it decodes as a file does."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from raftmq.audit.read import live_log
from raftmq.audit.read.blocks import DifferentBlocks
from raftmq.audit.read.live_log import LiveLog
from raftmq.audit.read.spark_sources import LogReader
from raftmq.audit.read.store_files import STORES_SEPARATOR
from raftmq.spark.layout import ItemKind
from tests.audit.run import NAMES, Run
from tests.audit.stores import BLANK, SEGMENT_SIZE_BYTES, Log


@dataclass(eq=False)
class Running:
    """A replica that answers from a log in memory, and counts what is read of it."""

    name: str
    log: Log
    start: int = 0
    end: int = 0
    segment_size_bytes: int = SEGMENT_SIZE_BYTES
    connection: None = None
    bytes_read: int = field(default=0, init=False)

    def bytes_of(self, start: int, end: int) -> bytes:
        base = start - start % SEGMENT_SIZE_BYTES
        return bytes(self.log.segments[base][start - base : end - base])

    async def frames_by(self, _: Any, start: int, end: int) -> tuple[int, int]:
        there = [(at, at + size) for at, size in self.log.frames if start <= at < end]
        if not there:
            return start, start
        behind = there[-1][1]
        blank = self.bytes_of(behind, behind + BLANK.size)[4:] == BLANK.pack(0, 0xCBD43194)[4:]
        return there[0][0], behind + BLANK.size * (blank and behind < self.end)

    async def read_by(self, _: Any, start: int, end: int) -> bytes:
        assert self.start <= start < end <= self.end
        self.bytes_read += end - start
        return self.bytes_of(start, end)

    async def digest_by(self, _: Any, start: int, end: int) -> bytes:
        assert self.start <= start < end <= self.end
        return hashlib.sha256(self.bytes_of(start, end)).digest()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    @asynccontextmanager
    async def connected(_: Any) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace()

    monkeypatch.setattr(live_log, "connected", connected)
    return Run.plan(tmp_path, 400).store()


def running(run: Run) -> list[Any]:
    return [Running(name, run.logs[name], end=run.log.end) for name in NAMES]


def rows(reader: LiveLog | LogReader) -> list[dict[str, Any]]:
    """Return a row of each item for each store, but for what follows the log."""
    found = []
    for partition in reader.partitions():
        for part in reader.parts(partition):  # type: ignore[arg-type]
            for batch in part.batches:
                for row in batch.to_pylist():
                    row["rest_hash"] = None  # only where stores differ
                    if row["kind"] != ItemKind.END:
                        names = row["store"].split(STORES_SEPARATOR)
                        found += [{**row, "store": name} for name in names]
    return sorted(found, key=lambda row: (row["store"], row["position"], row["kind"]))


def of_files(run: Run) -> list[dict[str, Any]]:
    run.write()
    return rows(LogReader({"stores": orjson.dumps(run.stores).decode(), "shared": "true"}))


def test_equal_logs_are_read_once_from_all_replicas_in_turn(run: Run) -> None:
    replicas = running(run)
    assert rows(LiveLog(replicas, 0)) == of_files(run)
    read = [each.bytes_read for each in replicas]
    framed = sum(size for _, size in run.log.frames)
    assert framed <= sum(read) <= framed + BLANK.size * len(run.log.segments)
    log = LiveLog(replicas, 0)
    assert all(part.alike for window in log.partitions() for part in log.parts(window))


@pytest.mark.parametrize("where", ["record", "frame", "blank"])
def test_damaged_window_is_read_of_two_replicas(run: Run, where: str) -> None:
    at, size = run.log.frames[20]
    blank = max(run.log.frames, key=lambda frame: (frame[0] < SEGMENT_SIZE_BYTES, frame[0]))
    positions = {"record": at + size - 20, "frame": at + 30, "blank": sum(blank) + 1}
    run.logs["n1"].flip(positions[where])
    replicas = running(run)
    found = rows(LiveLog(replicas, 0))
    if where != "blank":  # the garbage behind it is not read
        assert found == of_files(run)
    read = sum(each.bytes_read for each in replicas)
    framed = sum(size for _, size in run.log.frames)
    assert framed < read <= framed + SEGMENT_SIZE_BYTES + BLANK.size * len(run.log.segments)
    limits = dict.fromkeys(NAMES, run.log.end)
    log = LiveLog(replicas, 0)
    compared = DifferentBlocks(log, limits, [])
    (blocks,) = filter(None, map(compared.blocks, log.partitions()))
    ((_, copies),) = blocks
    assert copies["n0"] == copies["n2"] != copies["n1"]


def test_lagging_replica_is_read_no_further_than_it_is(run: Run) -> None:
    replicas = running(run)
    at, size = run.log.frames[-9]
    replicas[2].end = at + size
    found = rows(LiveLog(replicas, 0))
    expected = of_files(run)
    assert found == [
        row for row in expected if row["store"] != "n2" or row["position"] < replicas[2].end
    ]
    framed = sum(size for _, size in run.log.frames)
    assert sum(each.bytes_read for each in replicas) <= framed + BLANK.size * len(run.log.segments)


def test_replica_without_the_first_segments_is_read_from_its_own(run: Run) -> None:
    replicas = running(run)
    replicas[0].start = SEGMENT_SIZE_BYTES
    assert rows(LiveLog(replicas, 0)) == [
        row
        for row in of_files(run)
        if row["store"] != "n0" or row["position"] >= SEGMENT_SIZE_BYTES
    ]


def test_windows_begin_where_an_earlier_audit_ended(run: Run) -> None:
    start = run.log.frames[30][0]
    found = rows(LiveLog(running(run), start))
    assert found == [row for row in of_files(run) if row["position"] >= start]
