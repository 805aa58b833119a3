"""Retry policies: how long the pauses are, and that they end."""

from __future__ import annotations

import pytest

from raftmq.client.retry import RetryPolicy


async def no_pause(seconds: float) -> None:
    """Stand in for a sleep."""


async def pauses_ms(policy: RetryPolicy, attempts: int) -> list[float]:
    """The pauses before each attempt after the first."""
    result: list[float] = []
    async for attempt in policy.until_true().copy(sleep=no_pause):
        number = attempt.retry_state.attempt_number
        if number > 1:
            result.append(attempt.retry_state.idle_for * 1000 - sum(result))
        with attempt:
            pass
        attempt.retry_state.set_result(number > attempts)
    return result


async def test_retry_pauses_grow_to_the_maximum() -> None:
    assert await pauses_ms(RetryPolicy(10, 100, 2, 0), 5) == pytest.approx([10, 20, 40, 80, 100])


async def test_retry_jitter_is_added_below_the_maximum() -> None:
    result = await pauses_ms(RetryPolicy(10, 12, 1, 5), 50)
    assert len(result) == 50
    assert 10 <= min(result) and max(result) <= 12.000001


async def test_retry_of_many_attempts_does_not_overflow() -> None:
    result = await pauses_ms(RetryPolicy(10, 60, 1.5, 0), 3000)
    assert result[-1] == pytest.approx(60)
