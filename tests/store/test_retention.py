import pytest

from store.retention import HOUR_MS, RetentionPolicy, SegmentAge, expired_before

NOW = 1000 * HOUR_MS
POLICY = RetentionPolicy(reserved_hours=72, segments_at_once_max=3)


def segments(*ages_hours: float) -> list[SegmentAge]:
    return [
        SegmentAge(100 * (n + 5), 100 * (n + 6), int(NOW - age * HOUR_MS))
        for n, age in enumerate(ages_hours)
    ]


def decide(ages: list[SegmentAge], hour: int = 4, ratio: float = 0.5, limit: int = 10**9) -> int:
    return expired_before(ages, POLICY, now_ms=NOW, hour=hour, disk_used_ratio=ratio, limit=limit)


@pytest.mark.parametrize(
    ("ages", "hour", "ratio", "limit", "expected"),
    [
        ((100, 90, 10, 1), 4, 0.5, 10**9, 700),  # two are old
        ((100, 90, 10, 1), 5, 0.5, 10**9, 500),  # not the hour
        ((100, 90, 10, 1), 5, 0.75, 10**9, 700),  # filling up: any hour, but only the old
        ((100, 90, 10, 1), 5, 0.85, 10**9, 800),  # nearly full: any age
        ((1, 1, 1, 1), 5, 0.849, 10**9, 500),
        ((100, 90, 80, 70), 4, 0.5, 10**9, 800),  # never the last
        ((100,), 4, 0.99, 10**9, 500),
        ((72, 1), 4, 0.5, 10**9, 500),  # not older than 72 hours
        ((72.01, 1), 4, 0.5, 10**9, 600),
        ((100, 10, 100, 1), 4, 0.5, 10**9, 600),  # stops at the first young one
        ((100, 90, 80, 1), 4, 0.5, 699, 600),  # reaches beyond the limit
        ((100, 90, 80, 1), 4, 0.9, 700, 700),
        ((90,) * 9, 4, 0.5, 10**9, 800),  # three at once
    ],
)
def test_table(ages: tuple[float, ...], hour: int, ratio: float, limit: int, expected: int) -> None:
    assert decide(segments(*ages), hour, ratio, limit) == expected


def test_an_empty_log() -> None:
    assert decide([]) == 0
