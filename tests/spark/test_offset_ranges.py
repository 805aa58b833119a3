"""Offsets of many queues, without Spark and without brokers."""

import pytest

from raftmq.spark import offset_ranges as positions
from raftmq.spark.offset_ranges import Queue, QueueRange

A, B, C = (Queue("T", "broker-a", number) for number in range(3))


def test_checkpoint_offsets_round_trip() -> None:
    offsets = {A: 1, B: 0, Queue("other", "broker-b", 11): 1 << 40}
    table = positions.to_json(offsets)
    assert table == {
        "T": {"broker-a": {"0": 1, "1": 0}},
        "other": {"broker-b": {"11": 1 << 40}},
    }
    assert positions.of_json(table) == offsets
    table = positions.to_json(offsets, 17)
    assert (positions.of_json(table), positions.checked_ms_of(table)) == (offsets, 17)


def test_a_queue_is_gone_if_its_topic_or_its_number_is() -> None:
    there = {A, B, Queue("U", "broker-b", 0)}
    away = Queue("T", "broker-c", 0)  # its broker may return
    deleted = Queue("V", "broker-a", 0)
    assert positions.gone([A, C, away, deleted], there) == [C, deleted]


def test_offset_ranges_span_start_to_end_of_each_queue() -> None:
    result = positions.ranges_between({A: 3, B: 5}, {A: 7, B: 5, C: 2})
    assert result == [QueueRange(A, 3, 7), QueueRange(C, 0, 2, strict=False)]  # C has come since


@pytest.mark.parametrize("rows_max", [1, 7, 1000])
@pytest.mark.parametrize("partitions_min", [1, 2, 3, 7, 100, 1000])
def test_split_offset_ranges_hold_every_offset_once(partitions_min: int, rows_max: int) -> None:
    ranges = [QueueRange(A, 3, 103), QueueRange(B, 0, 1), QueueRange(C, 7, 57, strict=False)]
    partitions = positions.split(ranges, partitions_min, rows_max)
    assert len(partitions) >= min(partitions_min, 151)
    assert all(sum(part.size for part in parts) <= rows_max for parts in partitions)
    parts = [part for parts in partitions for part in parts]
    assert all(part.size > 0 for part in parts)
    for complete in ranges:
        own = [part for part in parts if part.queue == complete.queue]
        assert [part.strict for part in own] == [complete.strict] * len(own)
        assert [n for part in own for n in range(part.start, part.end)] == list(
            range(complete.start, complete.end)
        )
    assert positions.split([], partitions_min) == []


@pytest.mark.parametrize(
    ("queues", "rows", "partitions"), [(4, 400, 1), (512, 3, 1), (64, 1_000, 7), (4, 50_000, 4)]
)
def test_partitions_follow_the_rows_and_not_the_queues(
    queues: int, rows: int, partitions: int
) -> None:
    ranges = [QueueRange(Queue("T", "broker-a", number), 0, rows) for number in range(queues)]
    assert len(positions.split(ranges, 1)) == partitions


@pytest.mark.parametrize("rows_max", [1, 2, 3, 10, 99, 110, 111, 1_000])
def test_micro_batch_is_limited_and_advances(rows_max: int) -> None:
    start, end = {A: 0, B: 50, C: 9}, {A: 100, B: 60, C: 10}
    rounds = 0
    while start != end:
        following = positions.at_most(start, end, rows_max)
        assert all(start[queue] <= following[queue] <= end[queue] for queue in end)
        taken = sum(following.values()) - sum(start.values())
        assert taken == min(rows_max, sum(end.values()) - sum(start.values()))
        start, rounds = following, rounds + 1
    assert rounds == -(-111 // rows_max)


def test_micro_batch_gives_each_queue_its_share() -> None:
    start = dict.fromkeys((A, B, C), 0)
    end = {A: 10, B: 1, C: 9}
    assert positions.at_most(start, end, 10) == {A: 5, B: 1, C: 4}
    assert positions.at_most(start, end, 1) == {A: 1, B: 0, C: 0}
    assert positions.at_most(start, end, 19) == {A: 9, B: 1, C: 9}


def test_queue_end_that_decreased_is_detected() -> None:
    assert list(positions.behind({A: 5, B: 4, C: 0}, {A: 5, B: 5})) == [B]
