import pytest

from raftmq.store.disk import DiskMark, DiskUsage
from raftmq.store.log_clock import LogNow
from raftmq.store.retention import HOUR_MS, RetentionPolicy, SegmentAge, expired_before

NOW = 1000 * HOUR_MS
GIB = 1 << 30


def segments(*ages_hours: float) -> list[SegmentAge]:
    return [
        SegmentAge(100 * (n + 5), 100 * (n + 6), int(NOW - age * HOUR_MS))
        for n, age in enumerate(ages_hours)
    ]


def decide(
    ages: list[SegmentAge],
    hour: int = 4,
    percent: int = 50,
    limit: int = 10**9,
    *,
    forced: bool = False,
    usage: DiskUsage | None = None,
) -> int:
    return expired_before(
        ages,
        RetentionPolicy(72, segments_at_once_max=3, forced=forced),
        now=LogNow(NOW, NOW),
        hour=hour,
        usage=usage or DiskUsage(percent, 100 - percent),
        limit=limit,
    )


@pytest.mark.parametrize(
    ("ages", "hour", "percent", "limit", "expected"),
    [
        ((100, 90, 10, 1), 4, 50, 10**9, 700),  # two are old
        ((100, 90, 10, 1), 5, 50, 10**9, 500),  # not the hour
        ((100, 90, 10, 1), 5, 75, 10**9, 700),  # filling up: any hour, but only the old
        ((100, 90, 10, 1), 5, 100, 10**9, 700),  # full: no other
        ((1, 1, 1, 1), 4, 100, 10**9, 500),
        ((100, 90, 80, 70), 4, 50, 10**9, 800),  # never the last
        ((100,), 4, 99, 10**9, 500),
        ((72, 1), 4, 50, 10**9, 500),  # not older than 72 hours
        ((72.01, 1), 4, 50, 10**9, 600),
        ((100, 10, 100, 1), 4, 50, 10**9, 600),  # stops at the first young one
        ((100, 90, 80, 1), 4, 50, 699, 600),  # reaches beyond the limit
        ((100, 90, 80, 1), 4, 90, 700, 700),
        ((90,) * 9, 4, 50, 10**9, 800),  # three at once
    ],
)
def test_table(ages: tuple[float, ...], hour: int, percent: int, limit: int, expected: int) -> None:
    assert decide(segments(*ages), hour, percent, limit) == expected


def test_an_empty_log() -> None:
    assert decide([]) == 0


@pytest.mark.parametrize("percent", range(80, 101))
@pytest.mark.parametrize("forced", [False, True])
def test_what_has_not_expired_goes_only_if_that_is_forced(percent: int, forced: bool) -> None:
    young = segments(1, 1, 1, 1)
    expected = 800 if forced and percent >= 85 else 500
    assert decide(young, 5, percent, forced=forced) == expected


@pytest.mark.parametrize(
    ("size", "free", "percent", "floor", "reached"),
    [
        (1000, 140, 85, 24, False),  # 86 percent are used, but there is room
        (1000, 24, 85, 24, False),
        (1000, 23, 85, 24, True),
        (1000, 140, 85, 0, True),  # the percentage alone
        (100, 20, 85, 24, False),  # little is free, but the disk is small
        (100, 15, 85, 24, True),
    ],
)
def test_a_mark_is_reached_by_percentage_and_free_bytes(
    size: int, free: int, percent: int, floor: int, reached: bool
) -> None:
    usage = DiskUsage((size - free) * GIB, free * GIB)
    assert DiskMark(percent, floor * GIB).is_reached(usage) is reached


@pytest.mark.parametrize(
    ("free", "floor", "room"), [(30, 0, 20), (10, 0, 0), (5, 0, 0), (30, 4, 26), (30, 16, 20)]
)
def test_the_room_before_a_mark(free: int, floor: int, room: int) -> None:
    usage = DiskUsage((100 - free) * GIB, free * GIB)
    assert DiskMark(90, floor * GIB).room_bytes(usage) == room * GIB
    full = DiskUsage((100 - free + room) * GIB + 1, (free - room) * GIB - 1)
    assert DiskMark(90, floor * GIB).is_reached(full)
