"""Committed offsets are compared with queue ends, and store times with earlier ones."""

from functools import reduce
from types import SimpleNamespace
from typing import cast

import pytest

from raftmq.audit.checks.ranges import offsets_check, times_check
from raftmq.audit.read.log_facts import Fall, LogFacts, Times
from raftmq.audit.read.tables import Tables

ENDS = {("T", 0): 50, ("T", 1): 7}


def test_offsets_after_their_queue_are_named() -> None:
    committed = {"T@G": {"0": 50, "1": 9_999}, "T@H": {"0": 51}, "Never@G": {"0": 1}}
    check, gaps = offsets_check(committed, ENDS, complete=True)
    assert [(row["group"], row["topic"], row["offset"]) for row in check.offenders] == [
        ("G", "Never", 1),
        ("G", "T", 9_999),
        ("H", "T", 51),
    ]
    assert not check.ok and gaps == []


def test_queues_of_unknown_ends_are_listed() -> None:
    committed = {"T@G": {"0": 51}, "Removed@G": {"0": 1, "1": 0}}
    check, gaps = offsets_check(committed, ENDS, complete=False)
    assert [row["topic"] for row in check.offenders] == ["T"]
    assert [gap.split(" that ")[0] for gap in gaps] == ["committed offsets of 1 queues"]
    check, gaps = offsets_check({"%LMQ%lite@G": {"0": 5}}, ENDS, complete=True)
    assert check.ok and len(gaps) == 1


def timed(
    stores: str, start: int, times: tuple[int, int], fall: tuple[int, int] = (0, 0)
) -> LogFacts:
    of_each = Times.of(start, *times, Fall(start, *fall))
    return LogFacts(times=dict.fromkeys(stores, of_each))


@pytest.mark.parametrize(
    ("windows", "found"),
    [
        ([timed("ab", 0, (5, 900_000)), timed("ab", 9, (850_000, 950_000))], []),
        (
            [timed("ab", 0, (5, 900_000)), timed("ab", 9, (800_000, 950_000))],
            [("a", 9, 100), ("b", 9, 100)],
        ),
        ([timed("b", 0, (5, 900_000), (4, 61_000)), timed("a", 0, (5, 9))], [("b", 4, 61)]),
        (
            [timed("a", 0, (5, 900_000)), timed("a", 9, (5, 6), (12, 70_000))],
            [("a", 12, 899)],  # the record, not the start of its range
        ),
        ([timed("a", 0, (5, 6)), timed("b", 9, (900_000, 900_000))], []),  # not the same store
        (
            [timed("a", 0, (8, 200_000)), timed("a", 9, (9, 9)), timed("a", 18, (9, 10))],
            [("a", 9, 199)],  # where they fall, not as long as they are behind
        ),
        (
            [timed("a", 9 * n, (200_000 - 40_000 * n,) * 2) for n in range(4)],
            [("a", 27, 120)],  # in steps
        ),
    ],
)
def test_falling_store_times_are_named(
    windows: list[LogFacts], found: list[tuple[str, int, int]]
) -> None:
    logs = SimpleNamespace(facts=reduce(LogFacts.merge, windows))
    tables = cast(Tables, SimpleNamespace(stores={"a": None, "b": None}, staged_log=logs))
    check = times_check(tables, clocks_steady=True)
    assert [(row["store"], row["position"], row["fall_s"]) for row in check.offenders] == found
    assert check.ok is not bool(found)
    allowed = times_check(tables, clocks_steady=False)
    assert allowed.ok and allowed.count == len(found)
