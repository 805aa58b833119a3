"""Digests of decoded ranges: sums that agree only if the rows do, runs of queue offsets, and
whether stores are alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest

from raftmq.audit.read.files import View
from raftmq.audit.read.log_facts import LogFacts
from raftmq.audit.read.log_reader import Copy, SharedItems, shared_items
from raftmq.audit.read.range_sums import (
    RANGE_BYTES_MIN,
    RANGES_MAX,
    Ranges,
    StoreSums,
    Sums,
    added,
    by_store,
    sums,
    total,
    unlike,
)
from raftmq.audit.read.spark_sources import LogReader, QueueReader
from raftmq.audit.read.summaries import LogSummary, UnitSummary
from tests.audit.run import NAMES, Run
from tests.audit.stores import UNIT, Log, Message

SIZE = 8192
RANGES = Ranges.of(0, 1 << 30)


def options(run: Run) -> dict[str, str]:
    return {"stores": orjson.dumps(run.stores).decode(), "shared": "true", "splitBytes": "4096"}


def facts_of(part: SharedItems, summary: LogSummary) -> LogFacts:
    return summary.facts((0, SIZE), part.stores, part.stores, alike=part.alike)


def of_logs(run: Run) -> dict[str, dict[int, tuple[int, int]]]:
    reader = LogReader(options(run))
    result: StoreSums = {}
    for partition in reader.partitions():
        for part in reader.parts(partition):
            summary = LogSummary(RANGES)
            for batch in part.batches:
                summary.add(batch)
            result = added(result, facts_of(part, summary).units)
    return by_store(result)


def of_queues(run: Run) -> dict[str, dict[int, tuple[int, int]]]:
    reader = QueueReader(options(run))
    summary = UnitSummary(RANGES)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            summary.add(batch)
    return by_store(summary.sums())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.plan(tmp_path).store()


def test_equal_queue_entries_and_records_have_equal_sums(run: Run) -> None:
    run.write()
    records, units = of_logs(run), of_queues(run)
    assert set(records) == set(NAMES)
    assert sum(count for count, _ in records["n0"].values()) == len(run.log.placed)
    assert records == units


@pytest.mark.parametrize("field", range(3))
def test_queue_entry_that_differs_in_one_field_changes_its_sum(run: Run, field: int) -> None:
    queue = ("Flights", 1)
    values = list(UNIT.unpack_from(run.units["n1"][queue], 3 * UNIT.size))
    values[field] += 1
    changed = bytearray(run.units["n1"][queue])
    UNIT.pack_into(changed, 3 * UNIT.size, *values)
    run.units["n1"][queue] = bytes(changed)
    run.write()
    records, units = of_logs(run), of_queues(run)
    assert {name: [*unlike(units[name], records[name])] for name in NAMES} == {
        "n0": [],
        "n1": [0],
        "n2": [],
    }


def test_exchanged_queues_have_different_sums(run: Run) -> None:
    of_store = run.units["n1"]
    first, second = ("Flights", 0), ("Flights", 1)
    of_store[first], of_store[second] = of_store[second], of_store[first]
    run.write()
    assert [*unlike(of_queues(run)["n1"], of_logs(run)["n1"])] == [0]


def test_range_sums_do_not_depend_on_the_order() -> None:
    far = RANGE_BYTES_MIN + 5

    positions = np.array([far, 3, far + 1, 4], np.int64)
    parts = RANGES.of_positions(positions)
    assert sums(parts, positions) == {0: (2, 7), 1: (2, 2 * far + 1)}
    high = np.array([(1 << 63) - 1] * 4, np.int64)
    one: Sums = sums(parts, high)
    assert total([one, one])[0] == (4, (4 * ((1 << 63) - 1)) % (1 << 64))


@pytest.mark.parametrize("size", [1, 1 << 30, 1 << 34, (1 << 34) + 1, 1 << 40, 10**15])
@pytest.mark.parametrize("start", [0, 5 << 40])
def test_log_of_any_size_has_few_ranges(start: int, size: int) -> None:
    ranges = Ranges.of(start, start + size)
    assert ranges.last - ranges.first <= RANGES_MAX
    assert size < 1 << 34 or ranges.last - ranges.first >= RANGES_MAX // 2 - 1
    at = np.array([0, start, start + size - 1, start + size * 3, -(1 << 63), (1 << 63) - 1])
    numbers = ranges.of_positions(at).tolist()
    assert numbers[1:3] == [ranges.first, ranges.last]
    assert min(numbers) >= ranges.first - 1 and max(numbers) == ranges.last + 1


def runs_of(messages: Sequence[Message]) -> list[tuple[object, ...]]:
    log = Log(SIZE)
    log.frame(1, list(messages))
    data = memoryview(bytes(log.segments[0]))
    (part,) = shared_items([Copy("n0", View(data))], 0, 0, SIZE)
    summary = LogSummary(RANGES)
    result: list[dict[str, object]] = []
    for batch in part.batches:
        runs = summary.add(batch)
        result += [] if runs is None else runs.to_pylist()
    names = ("topic", "queue_id", "first_offset", "last_offset")
    return [tuple(row[name] for name in names) for row in result]


def message(queue: int, offset: int | None = None, topic: str = "T") -> Message:
    return Message(f"{random.random()}", b"body", topic=topic, queue=queue, queue_offset=offset)


def test_runs_are_consecutive_offsets_of_each_queue() -> None:
    assert runs_of([message(q) for q in (0, 1, 0, 1, 0)]) == [("T", 0, 0, 2), ("T", 1, 0, 1)]
    hole = [message(0, offset) for offset in (0, 1, 3, 4)]
    assert runs_of(hole) == [("T", 0, 0, 1), ("T", 0, 3, 4)]
    again = [message(0, offset) for offset in (0, 1, 1, 2)]
    assert runs_of(again) == [("T", 0, 0, 1), ("T", 0, 1, 2)]
    assert runs_of([message(0), message(0, topic="U")]) == [("T", 0, 0, 0), ("U", 0, 0, 0)]


def facts_and_log(*messages: Message) -> tuple[LogFacts, Log]:
    log = Log(SIZE)
    log.frame(1, list(messages))
    (part,) = shared_items([Copy("n0", View(memoryview(bytes(log.segments[0]))))], 0, 0, SIZE)
    summary = LogSummary(RANGES)
    for batch in part.batches:
        assert isinstance(batch, pa.RecordBatch)
        summary.add(batch)
    return facts_of(part, summary), log


def test_facts_mark_delayed_and_half_messages() -> None:
    assert not facts_and_log(message(0))[0].waits
    assert facts_and_log(message(0, topic="SCHEDULE_TOPIC_XXXX"))[0].waits
    assert facts_and_log(message(0, topic="RMQ_SYS_TRANS_HALF_TOPIC"))[0].waits
    assert facts_and_log(Message("A" * 32, b"x", sys_flag=8))[0].waits


def test_counts_and_ends_are_those_of_the_log() -> None:
    facts, log = facts_and_log(message(0), message(1))
    assert facts.ends == {"n0": (log.end, 2, 1)}
    assert facts.held == {((("n0",),), True): ((0, SIZE),)}


@pytest.mark.parametrize("seed", range(40))
def test_stores_are_alike_only_where_all_their_bytes_are(seed: int) -> None:
    rng = random.Random(seed)
    log = Log(SIZE)
    for number in range(6):
        log.frame(1, [Message(f"{number:032X}", rng.randbytes(90))])
    copies = [bytearray(log.segments[0]) for _ in range(3)]
    if rng.random() < 0.7:
        copies[rng.randrange(3)][rng.randrange(SIZE)] ^= 1
    if rng.random() < 0.3:
        copies[1] = copies[1][: rng.randrange(1, SIZE)]
    start, end = sorted(rng.sample(range(SIZE + 1), 2))
    there = {f"n{n}": bytes(copy) for n, copy in enumerate(copies) if len(copy) > start}
    views = [Copy(name, View(memoryview(data))) for name, data in there.items()]
    parts = [*shared_items(views, 0, start, end)]
    for part in filter(lambda part: part.alike, parts):
        assert len({there[name][part.start : part.end] for name in part.stores}) == 1
    if len({*there.values()}) == 1:
        assert [(part.stores, part.alike) for part in parts] == [(tuple(there), True)]
