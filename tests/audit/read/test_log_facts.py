"""Facts about windows: merged in any groups of neighbours they are the same, and never large."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from functools import reduce

import pytest

from raftmq.audit.read.live_queues import ABSENT, WrongUnit, WrongUnits
from raftmq.audit.read.log_facts import (
    INTERVALS_MAX,
    Fall,
    FrameRun,
    Holders,
    Holdings,
    Interval,
    LogFacts,
    Prefix,
    Times,
)

NAMES = ("n0", "n1")
Run = tuple[int, int, int, int]  # first and last index, first and last term


def content(number: int, run: Run | None, stores: tuple[str, ...] = NAMES) -> LogFacts:
    prefix, holdings = Prefix(complete=False), Holdings(None)
    if run is not None:
        frames = FrameRun(*run, number + 1, ((number, 1, 2),))
        holdings = Holdings(((stores, frames),))
        if stores == NAMES:
            prefix = Prefix(frames, number + 1)
    held: dict[tuple[Holders, bool], tuple[Interval, ...]] = {}
    held[(stores,), True] = ((number, number + 1),)
    ends = dict.fromkeys(stores, (number + 1, 1, 1))
    return LogFacts(prefix, holdings, ends, held=held)


@pytest.mark.parametrize(
    ("runs", "ended", "alike"),
    [  # (index, term) before them
        ([(1, 3, 1, 2), (4, 6, 2, 2)], None, True),
        ([(1, 3, 1, 2), (5, 6, 2, 2)], None, False),
        ([(1, 3, 1, 2), (4, 6, 1, 2)], None, False),
        ([(4, 6, 2, 2)], (3, 2), True),
        ([(5, 6, 2, 2)], (3, 2), False),
        ([(4, 6, 1, 2)], (3, 2), False),
    ],
)
def test_frame_runs_join_if_index_and_term_continue(
    runs: list[Run], ended: tuple[int, int] | None, alike: bool
) -> None:
    merged = reduce(LogFacts.merge, (content(n, run) for n, run in enumerate(runs)))
    result = merged.alike(NAMES, ended)
    assert result.complete == alike
    if alike:
        assert result.frames is not None
        assert (result.frames.first, result.frames.last) == (runs[0][0], runs[-1][1])


def test_log_is_alike_but_for_its_last_windows_if_a_store_lacks_some() -> None:
    stores = [NAMES] * 5 + [("n0",), ("n1",), ("n0",)]
    windows = (content(n, (n, n, 1, 1), each) for n, each in enumerate(stores))
    merged = reduce(LogFacts.merge, windows)
    result = merged.alike(NAMES, None)
    assert result.frames is not None and not result.complete
    assert (result.end, result.frames.last, result.ended) == (4, 3, (3, 1))
    assert merged.ends == {"n0": (8, 7, 7), "n1": (7, 6, 6)}
    assert merged.held[(("n0",),), True] == ((5, 6), (7, 8))


@pytest.mark.parametrize(
    ("stores", "ended", "holders"),
    [  # the stores of each window; index and term before; the stores of consecutive frames
        ("ab ab a a", None, "ab a"),  # b lags
        ("a ab abc bc c", None, "a ab abc bc c"),  # and retention has removed its start
        ("ab a", (-1, 1), "ab a"),
        ("a ab", (-1, 1), ""),  # b had the frame before
        ("ab a ab", None, ""),  # b lacks a window
        ("ab b a", None, ""),
        ("ab a|b ab", None, ""),  # they differ
    ],
)
def test_log_without_differences_is_known_by_its_holders(
    stores: str, ended: tuple[int, int] | None, holders: str
) -> None:
    windows = [
        LogFacts.of_window([[content(n, (n, n, 1, 1), (*of,)) for of in each.split("|")]])
        for n, each in enumerate(stores.split())
    ]
    result = reduce(LogFacts.merge, windows).alike((*"abc",), ended)
    assert result.complete is bool(holders)
    assert " ".join("".join(of) for of, _ in result.runs) == holders
    if holders:
        assert result.frames is not None and result.frames.last == len(windows) - 1


def test_store_without_items_in_a_window_has_ended_there() -> None:
    common, more = content(3, (7, 8, 1, 1)), content(3, (9, 9, 1, 1), ("n0",))
    nothing = LogFacts(
        Prefix(complete=False),
        ends={"n1": (0, 0, 0)},
        held={((("n1",),), False): ((3, 4),)},
        ended={"n1": 3},
    )
    window = LogFacts.of_window([[common], [nothing, more]])
    assert window.held == {((NAMES,), True): ((3, 4),), ((("n0",),), True): ((3, 4),)}
    assert window.ended == {"n1": 3}
    assert [stores for stores, _ in window.alike(NAMES, None).runs] == [NAMES, ("n0",)]
    differing = LogFacts.of_window([[common], [more, content(3, (9, 9, 2, 2), ("n1",))]])
    assert differing.held[(("n0",), ("n1",)), False] == ((3, 4),)
    assert not differing.alike(NAMES, None).complete


def window(rng: random.Random, number: int) -> LogFacts:
    if rng.random() < 0.1:
        return LogFacts()
    run = rng.choice([None, (number, number, 1, 1), (number, number, 1, 1), (number, number, 0, 2)])
    chosen = [rng.choice([NAMES] * 6 + [("n0",), ("n1",)])]
    contents = []
    for stores in chosen if rng.random() < 0.9 else [("n0",), ("n1",)]:
        low, fall = rng.randrange(200_000), Fall(number, number, rng.randrange(90_000))
        times = Times.of(number, low, low + rng.randrange(90_000), fall)
        units = WrongUnits((WrongUnit(stores[0], number, ABSENT, "T", 0, number),), 1)
        facts = replace(
            content(number, run, stores),
            times=dict.fromkeys(stores if rng.random() < 0.7 else (), times),
            waits=rng.random() < 0.1,
            damage_at=dict.fromkeys(rng.choice([stores, ()]), number),
            wrong_units=units,
            units={stores: {number % 9: (1, low)}},
            ids={stores: {number % 5: (2, low)}},
        )
        contents.append(facts)
    return LogFacts.of_window([contents])


@pytest.mark.parametrize("seed", range(40))
def test_windows_may_be_merged_in_any_groups(seed: int) -> None:
    rng = random.Random(seed)
    each = [window(rng, n) for n in range(rng.randrange(1, 40))]
    expected = reduce(LogFacts.merge, each)
    while len(each) > 1:
        at = rng.randrange(len(each) - 1)
        each[at : at + 2] = [each[at].merge(each[at + 1])]
    assert each == [expected]


def test_facts_do_not_grow_with_the_windows() -> None:
    sizes = []
    for count in (4_000, 16_000):
        rng = random.Random(7)
        numbers = range(100_000, 100_000 + count)  # of equal size
        windows = (window(rng, n) for n in numbers)
        merged = reduce(LogFacts.merge, windows)
        assert all(len(each) <= INTERVALS_MAX for each in merged.held.values())
        sizes.append(len(pickle.dumps(merged)))
    assert sizes[1] < sizes[0] * 1.1, sizes
