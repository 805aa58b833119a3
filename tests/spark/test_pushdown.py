"""Predicates narrow what is read, and never leave out what they take."""

import datetime as dt

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from raftmq.spark.offset_ranges import Queue
from raftmq.spark.pushdown import Narrowing


def test_pushdown_narrows_queues() -> None:
    result = Narrowing.of([EqualTo(("broker",), "a"), In(("queue_id",), (1, 2))])
    taken = [(b, n) for b in "ab" for n in range(4) if result.takes(Queue("T", b, n))]
    assert taken == [("a", 1), ("a", 2)]
    both = Narrowing.of([In(("queue_id",), (1, 2)), EqualTo(("queue_id",), 3)])
    assert not any(both.takes(Queue("T", "a", n)) for n in range(4))


def test_pushdown_narrows_offsets() -> None:
    name = ("queue_offset",)
    assert Narrowing.of([GreaterThan(name, 4), LessThan(name, 9)]).offsets(0, 100) == (5, 9)
    assert Narrowing.of([GreaterThanOrEqual(name, 4), LessThanOrEqual(name, 9)]).offsets(0, 8) == (
        4,
        8,
    )
    assert Narrowing.of([EqualTo(name, 4)]).offsets(0, 100) == (4, 5)
    assert Narrowing.of([LessThan(name, 9), LessThan(name, 7)]).offsets(2, 100) == (2, 7)


def test_pushdown_narrows_times() -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    result = Narrowing.of([GreaterThan(("store_time",), at), LessThan(("store_time",), at)])
    assert result.from_ms == at.timestamp() * 1000


def test_pushdown_ignores_unsupported_predicates() -> None:
    others = [Not(EqualTo(("queue_id",), 1)), IsNotNull(("broker",)), EqualTo(("tags",), "A")]
    assert Narrowing.of(others) == Narrowing()
    assert Narrowing.of([EqualTo(("properties", "queue_id"), 1)]) == Narrowing()
