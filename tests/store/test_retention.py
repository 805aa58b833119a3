import pytest

from raftmq.store.retention import (
    CLOCK_JUMP_MS,
    CLOCK_STEADY_MS,
    HOUR_MS,
    RetentionPolicy,
    SegmentAge,
    SteadyClock,
    expired_before,
)

NOW = 1000 * HOUR_MS
POLICY = RetentionPolicy(reserved_hours=72, segments_at_once_max=3)


def segments(*ages_hours: float) -> list[SegmentAge]:
    return [
        SegmentAge(100 * (n + 5), 100 * (n + 6), int(NOW - age * HOUR_MS))
        for n, age in enumerate(ages_hours)
    ]


def decide(
    ages: list[SegmentAge],
    hour: int = 4,
    ratio: float = 0.5,
    limit: int = 10**9,
    by_age: bool = True,
) -> int:
    return expired_before(
        ages,
        POLICY,
        now_ms=NOW,
        hour=hour,
        disk_used_ratio=ratio,
        limit=limit,
        by_age=by_age,
    )


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


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.5, 500),  # all are old, and it is the hour
        (0.849, 500),  # so full that old ones go at any hour: but which are old?
        (0.85, 800),  # forced: age does not matter
    ],
)
def test_no_age_is_judged_while_the_clock_is_not_to_be_trusted(ratio: float, expected: int) -> None:
    assert decide(segments(100, 90, 80, 70), ratio=ratio, by_age=False) == expected


S = 1000
MONTH = 30 * 24 * HOUR_MS
BOOT_WALL, BOOT_CLOCK = 1_700_000_000_000, 5_000


@pytest.mark.parametrize(
    "rounds",
    [
        # Each: monotonic ms since the start, by how much the wall clock is off (ms),
        #       the jump that is seen, for how long ages are not judged from then on.
        [(10 * S, 0, 0, 0), (MONTH, 0, 0, 0)],
        [(10 * S, CLOCK_JUMP_MS, 0, 0), (20 * S, -CLOCK_JUMP_MS, 0, 0)],  # within the bound
        [(10 * S, CLOCK_JUMP_MS + 1, CLOCK_JUMP_MS + 1, CLOCK_STEADY_MS)],
        [(10 * S, -CLOCK_JUMP_MS - 1, -CLOCK_JUMP_MS - 1, CLOCK_STEADY_MS)],
        [(0, MONTH, MONTH, CLOCK_STEADY_MS)],  # between the start and the first round
        [  # told once; steady for long enough
            (10 * S, MONTH, MONTH, CLOCK_STEADY_MS),
            (20 * S, MONTH, 0, CLOCK_STEADY_MS - 10 * S),
            (10 * S + CLOCK_STEADY_MS - 1, MONTH, 0, 1),
            (10 * S + CLOCK_STEADY_MS, MONTH, 0, 0),
            (10 * S + 2 * CLOCK_STEADY_MS, MONTH, 0, 0),
        ],
        [  # put right: a jump as well
            (10 * S, MONTH, MONTH, CLOCK_STEADY_MS),
            (60 * S, 0, -MONTH, CLOCK_STEADY_MS),
            (70 * S, 0, 0, CLOCK_STEADY_MS - 10 * S),
        ],
        [  # small steps add up
            (10 * S, 200 * S, 0, 0),
            (20 * S, 300 * S, 0, 0),
            (30 * S, 400 * S, 400 * S, CLOCK_STEADY_MS),
            (40 * S, 500 * S, 0, CLOCK_STEADY_MS - 10 * S),
        ],
    ],
)
def test_a_steady_clock(rounds: list[tuple[int, int, int, int]]) -> None:
    steady = SteadyClock(BOOT_WALL, BOOT_CLOCK)
    jumped = 0
    for elapsed, off, jump, held in rounds:
        clock = BOOT_CLOCK + elapsed
        assert steady.look(BOOT_WALL + elapsed + off, clock) == jump
        assert steady.held_ms(clock) == held
        jumped = jump or jumped
        assert steady.jump_ms == jumped
