import pytest

from raftmq.store.log_clock import CLOCK_JUMP_MS, LogClock, LogNow
from raftmq.store.retention import HOUR_MS

S, HOUR, DAY = 1000, HOUR_MS, 24 * HOUR_MS
YEAR = 365 * DAY
ALIVE = 1_700_000_000_000  # noted when the store was last open
WALL = ALIVE + 60 * S  # the true time of the start
BOOT = 5_000


@pytest.mark.parametrize(
    "rounds",
    [
        # Each: ms since the start, by how much the wall clock is off then, its lead over the log.
        [(0, 0, 0), (YEAR, 0, 0)],
        [(0, CLOCK_JUMP_MS - 60 * S, 0), (10 * S, -CLOCK_JUMP_MS - 60 * S, 0)],  # in the bound
        [(0, YEAR, YEAR + 60 * S), (YEAR, YEAR, YEAR + 60 * S)],  # ahead at the start, for good
        [(0, -YEAR, 60 * S - YEAR), (YEAR, -YEAR, 60 * S - YEAR)],  # behind
        [(0, YEAR, YEAR + 60 * S), (HOUR, 0, 0), (DAY, 0, 0)],  # put right
        [(0, -YEAR, 60 * S - YEAR), (HOUR, 0, 0)],
        [(0, 0, 0), (HOUR, YEAR, YEAR + 60 * S), (2 * HOUR, 0, 0)],  # a jump while it runs
        [(0, 0, 0), (HOUR, -YEAR, 60 * S - YEAR), (2 * HOUR, 0, 0)],
        [  # small steps add up
            (0, 0, 0),
            (10 * S, 100 * S, 0),
            (20 * S, 200 * S, 0),
            (30 * S, 300 * S, 360 * S),
        ],
    ],
)
def test_the_wall_clock_against_the_log_s_own_time(rounds: list[tuple[int, int, int]]) -> None:
    clock = LogClock(BOOT, ALIVE)
    for elapsed, off, lead in rounds:
        now = clock.look(WALL + elapsed + off, BOOT + elapsed)
        assert now.lead_ms == lead
        assert now.age_ms(ALIVE) <= elapsed + CLOCK_JUMP_MS  # as old as it is, whatever the clock


def test_what_is_stored_under_a_doubted_clock_ages_by_it() -> None:
    clock = LogClock(BOOT, ALIVE)
    clock.look(WALL + YEAR, BOOT)
    now = clock.look(WALL + YEAR + HOUR, BOOT + HOUR)
    assert now.age_ms(WALL + YEAR) == HOUR
    assert now.age_ms(ALIVE - DAY) == HOUR + DAY


def test_the_doubt_outlasts_a_restart() -> None:
    clock = LogClock(BOOT, ALIVE)
    clock.look(WALL + YEAR, BOOT)
    noted = clock.look(WALL + YEAR + HOUR, BOOT + HOUR)
    again = LogClock(0, noted.own_ms, noted.since_ms)
    now = again.look(WALL + YEAR + 2 * HOUR, 0)
    assert now.age_ms(ALIVE) == HOUR  # the hour in which it was off is none
    assert now.age_ms(WALL + YEAR) == 2 * HOUR


@pytest.mark.parametrize("by", ["operator", "nothing is left from before"])
def test_the_doubt_ends(by: str) -> None:
    clock = LogClock(BOOT, ALIVE)
    wall = WALL + YEAR
    since = clock.look(wall, BOOT).since_ms
    if by == "operator":
        clock.trust(wall, BOOT)
    else:
        assert clock.look(wall, BOOT, since - 1).lead_ms
    assert clock.look(wall, BOOT, since) == LogNow(wall, wall)
    assert clock.look(wall + DAY, BOOT + DAY) == LogNow(wall + DAY, wall + DAY)
