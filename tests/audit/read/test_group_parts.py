"""The ranges that the group holds without a comparison, and those whose records are compared."""

from __future__ import annotations

from functools import reduce

import pytest

from raftmq.audit.read.cluster_info import CLASSIC, RAFT
from raftmq.audit.read.committed_range import Limits, StoreLimits
from raftmq.audit.read.group_parts import group_parts
from raftmq.audit.read.index_keys import StagedRange
from raftmq.audit.read.log_facts import Holders, LogFacts
from raftmq.audit.read.voters import Members

AGREED_END = 30
WIDTH = 10  # of a window


def limits(mode: str) -> Limits:
    stores = tuple(StoreLimits(name, 0, 0, 0, AGREED_END, 0, 0) for name in "abc")
    members = Members(frozenset("abc"), frozenset(), "")
    return Limits(stores, members, tuple("abc"), (), mode)


def window(number: int, contents: str) -> LogFacts:
    """Return the facts about a window with these parts and different contents, each of some
    stores."""
    start, end = number * WIDTH, (number + 1) * WIDTH
    edges = [start, *range(start + WIDTH // 2, end, WIDTH)][: len(contents.split(","))]
    parts = zip(edges, [*edges[1:], end], contents.split(","), strict=True)

    def facts(of: str, positions: tuple[int, int]) -> LogFacts:
        holders: Holders = ((*of,),)
        ends = dict.fromkeys(of, (end, 1, 1))
        return LogFacts(ends=ends, held={(holders, True): (positions,)})

    return LogFacts.of_window(
        [facts(of, (low, high)) for of in contents.split("|")] for low, high, contents in parts
    )


@pytest.mark.parametrize(
    ("mode", "windows", "holders", "open_ranges", "complete"),
    [
        (RAFT, "abc abc abc", {"abc"}, [], True),
        (RAFT, "abc abc ab", {"abc", "ab"}, [], True),  # c lags
        (RAFT, "abc ab|c ab", {"abc", "ab"}, [], True),  # and ends in a window
        (RAFT, "abc abc,ab ab", {"abc", "ab"}, [], True),
        (RAFT, "abc abc,a|b|c ab", {"abc", "ab"}, [(15, 20)], False),
        (RAFT, "abc abc ab a", {"abc", "ab"}, [], False),  # a has more
        (RAFT, "abc a|b|c ab", {"abc", "ab"}, [(10, 20)], False),
        (RAFT, "a|b a|b ab", {"ab"}, [(0, 20)], False),
        (CLASSIC, "ab ab a", {"ab", "a"}, [], True),  # the slave lags
        (CLASSIC, "ab ab,a a", {"ab", "a"}, [], True),
        (CLASSIC, "ab ab,a|b a", {"ab", "a", "b"}, [(15, 20)], False),
    ],
)
def test_ranges_without_enough_equal_copies_are_open(
    mode: str, windows: str, holders: set[str], open_ranges: list[tuple[int, int]], complete: bool
) -> None:
    each = [window(number, contents) for number, contents in enumerate(windows.split())]
    places = [StagedRange(n * WIDTH, (n + 1) * WIDTH, "") for n in range(len(each))]
    parts = group_parts(reduce(LogFacts.merge, each), places, limits(mode))
    assert {"".join(stores) for stores in parts.holders} == holders
    assert (parts.open, parts.complete) == (open_ranges, complete)


def test_windows_of_unlike_segments_are_open_in_classic_mode() -> None:
    facts = window(0, "a").merge(window(1, "b"))
    places = [StagedRange(0, 20, ""), StagedRange(10, 20, "")]
    assert group_parts(facts, places, limits(CLASSIC)).open == [(0, 20), (10, 20)]
