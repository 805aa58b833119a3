"""A loop that stands still takes no time; one that runs takes what it takes."""

from __future__ import annotations

from tests.loopclock import STEP_MS_MAX, LoopClock


def test_loop_clock_counts_a_limited_step_between_readings() -> None:
    real_s = [100.0]
    clock = LoopClock(lambda: real_s[0])
    assert (clock.now_ms(), clock.whole_ms()) == (100_000, 100_000)
    for _ in range(8):
        real_s[0] += 1 / 128
        clock.now_ms()
    assert clock.now_ms() == 100_062.5
    real_s[0] += 3_600
    assert clock.now_ms() == 100_062.5 + STEP_MS_MAX
    assert clock.whole_ms() == 100_087, "an hour at once; the rest is not made up for"
