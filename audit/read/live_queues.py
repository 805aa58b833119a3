"""Compares the ConsumeQueues of running replicas with the log, a window at a time.

A task that has decoded a window knows the units of its messages. It asks each replica with the same
log for the SHA-256 of these units, and for the units themselves only if it differs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftmq.broker.backup.protocol import RUNS_MAX, UNITS_MAX, UnitRun
from raftmq.spark.layout import TAGS_CODE_EXTENDED_MAX, UNIT, UNIT_FILLER_SIZE

from .replica import Replica, connected

Array = npt.NDArray[Any]
WRONG_KEPT_MAX = 20  # of a replica in a window; the count is complete
ABSENT = "record without unit"


@dataclass(frozen=True, slots=True)
class WrongUnit:
    """The unit of a store for the message at log position `position`."""

    store: str
    position: int
    what: str
    topic: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class WrongUnits:
    """The first wrong units, and the numbers of absent and of other wrong units."""

    first: tuple[WrongUnit, ...] = ()
    absent: int = 0
    other: int = 0

    def merge(self, behind: WrongUnits) -> WrongUnits:
        """Return both, with the first of each store and kind."""
        first: list[WrongUnit] = []
        kept: Counter[tuple[str, bool]] = Counter()
        for unit in sorted((*self.first, *behind.first), key=lambda unit: unit.position):
            kind = unit.store, unit.what == ABSENT
            kept[kind] += 1
            first += [unit] if kept[kind] <= WRONG_KEPT_MAX else []
        return WrongUnits(tuple(first), self.absent + behind.absent, self.other + behind.other)


class ExpectedUnits:
    """The units of a window's messages."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._parts: list[tuple[Array, Array, Array, Array]] = []

    def add(
        self, topics: pa.DictionaryArray, queue_ids: Array, queue_offsets: Array, units: Array
    ) -> None:
        names = topics.dictionary.to_pylist()
        numbers = np.array([self._topics.setdefault(n, len(self._topics)) for n in names], np.int64)
        numbers = numbers[topics.indices.to_numpy()]
        self._parts.append((numbers, queue_ids, queue_offsets, units))

    def chunks(self) -> Iterator[tuple[list[UnitRun], Array]]:
        """Yield runs of units of a queue, as many as a request may have, with the units."""
        if not self._parts:
            return
        topics, queue_ids, offsets, units = map(np.concatenate, zip(*self._parts, strict=True))
        order = np.lexsort((offsets, queue_ids, topics))
        topics, queue_ids, offsets = topics[order], queue_ids[order], offsets[order]
        units, names = units.astype(UNIT)[order], list(self._topics)  # big-endian again
        new = np.ones(len(units), bool)
        new[1:] = (
            (topics[1:] != topics[:-1])
            | (queue_ids[1:] != queue_ids[:-1])
            | (offsets[1:] != offsets[:-1] + 1)
        )
        edges = [*np.flatnonzero(new).tolist(), len(units)]
        first = 0
        while first < len(units):
            runs: list[UnitRun] = []
            at = first
            while len(runs) < RUNS_MAX and at < min(first + UNITS_MAX, len(units)):
                behind = min(edges[np.searchsorted(edges, at, "right")], first + UNITS_MAX)
                queue = names[topics[at]], int(queue_ids[at])
                runs.append(UnitRun(*queue, int(offsets[at]), behind - at))
                at = behind
            yield runs, units[first:at]
            first = at

    def compared(self, replicas: Sequence[Replica]) -> WrongUnits:
        """Compare the units of these replicas. Raises ReplicaLost, BackupError."""
        return asyncio.run(self._compared(replicas))

    async def _compared(self, replicas: Sequence[Replica]) -> WrongUnits:
        wrong: dict[str, list[WrongUnit]] = {}
        async with connected(replicas[0].connection) as client:
            for runs, units in self.chunks():
                expected = hashlib.sha256(units.tobytes()).digest()
                answers = (each.units_by(client, runs, content=False) for each in replicas)
                digests = await asyncio.gather(*answers)
                for replica, digest in zip(replicas, digests, strict=True):
                    if digest != expected:
                        data = await replica.units_by(client, runs, content=True)
                        actual = np.frombuffer(data, UNIT)
                        wrong.setdefault(replica.name, []).extend(
                            wrong_units(replica.name, runs, units, actual)
                        )
        every = [unit for of_replica in wrong.values() for unit in of_replica]
        absent = sum(unit.what == ABSENT for unit in every)
        first = (unit for units in wrong.values() for unit in units[:WRONG_KEPT_MAX])
        return WrongUnits(tuple(first), absent, len(every) - absent)


def wrong_units(
    store: str, runs: Sequence[UnitRun], expected: Array, actual: Array
) -> Iterator[WrongUnit]:
    """Yield the units of a store that are not the `expected` units of the runs."""
    absent = ((actual["size"] == 0) & (actual["position"] == 0)) | (
        actual["size"] == UNIT_FILLER_SIZE
    )
    hashed = actual["tags_code"] > TAGS_CODE_EXTENDED_MAX
    what = np.select(
        [
            absent,
            actual["position"] != expected["position"],
            actual["size"] != expected["size"],
            hashed & (actual["tags_code"] != expected["tags_code"]),
        ],
        [ABSENT, "points elsewhere", "wrong size", "wrong tags code"],
        "",
    )
    ends = np.cumsum([run.count for run in runs])
    for at in np.flatnonzero(what != "").tolist():
        run_number = int(np.searchsorted(ends, at, "right"))
        run = runs[run_number]
        offset = run.first + at - (int(ends[run_number]) - run.count)
        position = int(expected["position"][at])
        yield WrongUnit(store, position, str(what[at]), run.topic, run.queue_id, offset)
