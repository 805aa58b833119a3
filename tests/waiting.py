"""Waiting for what comes by itself, on a loop (`until`) and on a thread (`wait_until`), and calling
again what fails for a while (`retrying`).

The first two ask again and again, return the first answer that is true, and fail if there is none
in time. The limit only bounds a failing test. What was waited for stands in the error: the source
line of the condition, and what `seen` returns then.
"""

import asyncio
import inspect
import linecache
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_fixed

PATIENCE_S = 180.0
PAUSE_S = 0.005
TRIES_MIN = 3

T = TypeVar("T")
Seen = Callable[[], object]


async def until(
    condition: Callable[..., Any],
    seen: Seen | None = None,
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = PAUSE_S,
) -> Any:
    """Return the first true answer of a function or coroutine function."""
    try:
        async with asyncio.timeout(patience_s) as limit:
            while True:
                answer = condition()
                result = await answer if isinstance(answer, Awaitable) else answer
                if result:
                    return result
                await asyncio.sleep(pause_s)
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(_never(condition, seen, patience_s)) from None


def wait_until(
    condition: Callable[[], T],
    seen: Seen | None = None,
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = PAUSE_S,
) -> T:
    """Return the first true answer; blocks the thread."""
    deadline = time.monotonic() + patience_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_never(condition, seen, patience_s))
        time.sleep(pause_s)
    return result


def retrying(
    transient: Callable[[BaseException], bool],
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = PAUSE_S,
) -> Retrying:
    """Return a function that calls a function until it raises nothing, or what is not `transient`.
    It gives up after `patience_s`, but never after a single try: a client's own limit may be as
    long, and runs on while the machine stands still."""
    return Retrying(
        retry=retry_if_exception(transient),
        stop=stop_after_delay(patience_s) & stop_after_attempt(TRIES_MIN),
        wait=wait_fixed(pause_s),
        reraise=True,
    )


def _never(condition: Callable[[], object], seen: Seen | None, patience_s: float) -> str:
    code = getattr(inspect.unwrap(condition), "__code__", None)
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip() if code else ""
    position = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    reported = f"; there was {seen()}" if seen else ""
    return f"not within {patience_s:g} s: {line or condition!r}{position}{reported}"
