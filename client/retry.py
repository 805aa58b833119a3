"""Retry policies as data, and their tenacity loops.

Every loop is bounded, its pauses by `pause_ms_max`, its duration by `time_ms_max` or its owner.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from operator import not_

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_result,
    stop_after_delay,
    stop_never,
)
from tenacity.retry import retry_base

from .errors import ClientError

GROWTHS_MAX = 64  # growths to the longest pause; the power of a larger number overflows


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pauses of `pause_ms_first` * `growth`^n plus up to `jitter_ms`, at most `pause_ms_max`.
    `time_ms_max` bounds the loop's duration; None if its owner ends it."""

    pause_ms_first: float
    pause_ms_max: float
    growth: float
    jitter_ms: float
    time_ms_max: float | None = None

    def while_retriable(self) -> AsyncRetrying:
        """Repeat while a ClientError with `retriable` is raised; the caller gets the last."""
        return self._repeating(retry_if_exception(_is_retriable))

    def until_true(self) -> AsyncRetrying:
        """Repeat while the result is False; an exception ends the loop."""
        return self._repeating(retry_if_result(not_))

    def _repeating(self, retry: retry_base) -> AsyncRetrying:
        time_ms = self.time_ms_max
        stop = stop_never if time_ms is None else stop_after_delay(time_ms / 1000)
        return AsyncRetrying(wait=self._pause_s, stop=stop, retry=retry, reraise=True)

    def _pause_s(self, state: RetryCallState) -> float:
        """Return the pause after an attempt. tenacity's own functions have no arguments common to
        all supported versions."""
        growth = self.growth ** min(state.attempt_number - 1, GROWTHS_MAX)
        pause_ms = self.pause_ms_first * growth + random.uniform(0, self.jitter_ms)
        return min(pause_ms, self.pause_ms_max) / 1000


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, ClientError) and error.retriable


# A search round asks every replica once. A new leader appears after 150-400 ms; with a round every
# 10-60 ms it is found in the next round, at the cost of a few refusals.
LEADER_SEARCH = RetryPolicy(10, 60, 1.5, 10)
# Admin and offset requests, which must not surface a failover to the caller.
CONTROL = RetryPolicy(15, 250, 1.6, 20, time_ms_max=5000)
# A producer asks for a route until the send's own deadline.
ROUTE_SEARCH = RetryPolicy(15, 250, 1.6, 20)
