"""Committed offsets are compared with queue ends, and store times with earlier ones."""

from types import SimpleNamespace
from typing import cast

import pytest

from raftmq.audit.checks.ranges import offsets_check, times_check
from raftmq.audit.read.range_digests import LogDigest
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


def digest(
    stores: str, start: int, times: tuple[int, int], fall: tuple[int, int] = (0, 0)
) -> LogDigest:
    ends = (start, start + 9, True, start + 9, 1, 1, False)
    return LogDigest(tuple(stores), *ends, {}, {}, times=times, fall=fall)


@pytest.mark.parametrize(
    ("digests", "found"),
    [
        ([digest("ab", 0, (5, 900_000)), digest("ab", 9, (850_000, 950_000))], []),
        (
            [digest("ab", 0, (5, 900_000)), digest("ab", 9, (800_000, 950_000))],
            [("a", 9, 100), ("b", 9, 100)],
        ),
        ([digest("b", 0, (5, 900_000), (4, 61_000)), digest("a", 0, (5, 9))], [("b", 4, 61)]),
        (
            [digest("a", 0, (5, 900_000)), digest("a", 9, (5, 6), (12, 70_000))],
            [("a", 12, 899)],  # the record, not the start of its range
        ),
        ([digest("a", 18, (5, 6)), digest("b", 0, (900_000, 900_000))], []),  # not the same store
    ],
)
def test_falling_store_times_are_named(
    digests: list[LogDigest], found: list[tuple[str, int, int]]
) -> None:
    logs = SimpleNamespace(digests=digests)
    tables = cast(Tables, SimpleNamespace(stores={"a": None, "b": None}, staged_log=logs))
    check = times_check(tables, clocks_steady=True)
    assert [(row["store"], row["position"], row["fall_s"]) for row in check.offenders] == found
    assert check.ok is not bool(found)
    allowed = times_check(tables, clocks_steady=False)
    assert allowed.ok and allowed.count == len(found)
