"""The units that a window's messages must have, and those that are not so."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raftmq.audit.read import live_queues
from raftmq.audit.read.live_queues import ExpectedUnits
from raftmq.broker.backup.protocol import UnitRun
from raftmq.spark.layout import UNIT
from raftmq.store.dispatch import QUEUE_ENTRY


def expected(*messages: tuple[str, int, int]) -> ExpectedUnits:
    """Expect the units of messages (topic, queue id, queue offset), 100 bytes each."""
    units = ExpectedUnits()
    for at in range(0, len(messages), 3):  # batches
        topics, queue_ids, offsets = zip(*messages[at : at + 3], strict=True)
        batch = np.zeros(len(topics), UNIT)
        batch["position"] = np.arange(at, at + len(topics)) * 100 + 100
        batch["size"], batch["tags_code"] = 100, 7
        units.add(
            pa.array(topics).dictionary_encode(), np.array(queue_ids), np.array(offsets), batch
        )
    return units


MESSAGES = [("B", 0, 4), ("A", 1, 7), ("B", 0, 5), ("A", 0, 0), ("A", 1, 8), ("A", 1, 10)]


def runs_of(units: ExpectedUnits) -> list[list[tuple[str, int, int, int]]]:
    return [[(r.topic, r.queue_id, r.first, r.count) for r in runs] for runs, _ in units.chunks()]


def test_runs_are_of_following_offsets_of_a_queue() -> None:
    units = expected(*MESSAGES)
    assert runs_of(units) == [[("B", 0, 4, 2), ("A", 0, 0, 1), ("A", 1, 7, 2), ("A", 1, 10, 1)]]
    ((_, content),) = units.chunks()
    assert content["position"].tolist() == [100, 300, 400, 200, 500, 600]
    assert runs_of(ExpectedUnits()) == []


@pytest.mark.parametrize(
    ("limit", "value", "sizes"),
    [("RUNS_MAX", 2, [[2, 1], [2, 1]]), ("UNITS_MAX", 3, [[2, 1], [2, 1]]),
     ("UNITS_MAX", 1, [[1]] * 6)],
)  # fmt: skip
def test_requests_are_within_limits(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int, sizes: list[list[int]]
) -> None:
    monkeypatch.setattr(live_queues, limit, value)
    units = expected(*MESSAGES)
    assert [[run[3] for run in runs] for runs in runs_of(units)] == sizes
    assert sum(len(content) for _, content in units.chunks()) == 6


@dataclass
class Running:
    """A replica with these units, by (topic, queue id, offset), and the bytes that it sends."""

    name: str
    units: dict[tuple[str, int, int], bytes]
    connection: None = None
    sent: list[int] = field(default_factory=list)

    async def units_by(self, _: Any, runs: list[UnitRun], *, content: bool) -> bytes:
        data = b"".join(
            self.units.get((run.topic, run.queue_id, offset), bytes(20))
            for run in runs
            for offset in range(run.first, run.first + run.count)
        )
        answer = data if content else hashlib.sha256(data).digest()
        self.sent.append(len(answer))
        return answer


def replica(name: str, units: ExpectedUnits) -> Any:
    held = {}
    for runs, content in units.chunks():
        left = iter(content)
        for run in runs:
            for offset in range(run.first, run.first + run.count):
                held[run.topic, run.queue_id, offset] = QUEUE_ENTRY.pack(*next(left).tolist())
    return Running(name, held)


def test_only_different_units_are_read_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def connected(_: Any) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace()

    monkeypatch.setattr(live_queues, "connected", connected)
    monkeypatch.setattr(live_queues, "WRONG_KEPT_MAX", 2)
    units = expected(*MESSAGES)
    sound, damaged = (replica(name, units) for name in ("n0", "n1"))
    del damaged.units["A", 1, 8]
    damaged.units["B", 0, 5] = damaged.units["B", 0, 4]
    damaged.units["A", 1, 10] = QUEUE_ENTRY.pack(600, 100, 9)
    wrong = units.compared([sound, damaged])
    assert (sound.sent, damaged.sent) == ([32], [32, 120])
    assert (wrong.absent, wrong.other) == (1, 2)
    shown = [(u.store, u.position, u.what, u.topic, u.queue_offset) for u in wrong.first]
    assert shown == [
        ("n1", 300, "points elsewhere", "B", 5),
        ("n1", 500, "record without unit", "A", 8),
    ]
