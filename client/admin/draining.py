"""Options of the draining of a broker group, and waiting for its end (docs/scaling.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..errors import ClientError
from .admin import Admin

POLL_S = 1.0


def drain_options(
    *,
    move_timers: bool = False,
    move_dead_letters: bool = False,
    to: str = "",
    given_up: Sequence[str] = (),
) -> dict[str, str]:
    """Return the options of a start of draining, for `admin.broker.drain`. Waiting timer and
    delayed messages, and dead letters, move to the broker group `to`, by default to the group
    with the fewest timer messages. Messages of the consumer groups `given_up` may be lost."""
    options = {
        "moveTimers": "true" if move_timers else "",
        "moveDeadLetters": "true" if move_dead_letters else "",
        "to": to,
        "givenUp": ",".join(given_up),
    }
    return {name: value for name, value in options.items() if value}


async def until_empty(
    admin: Admin,
    leader: Callable[[], Awaitable[str | None]],
    timeout_s: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return the status of a draining broker group once it is empty, or its last status after
    `timeout_s`.

    `leader` returns the address of the group's leader. `say` gets each change of the remainder,
    with an estimate of the time left if there is one, and each error, after which the
    group is asked again. Raises the error of the last attempt.
    """
    deadline = time.monotonic() + timeout_s
    said = ""
    while True:
        estimate = ""
        is_last = time.monotonic() >= deadline
        try:
            address = await leader()
            status = await admin.broker.drain(address, "status") if address else None
            text = status["remainder"] if status else "the broker group has no leader at the moment"
            if status and (is_last or status["isEmpty"]):
                return status
            if status and status["emptyAtMs"]:
                left_s = status["emptyAtMs"] / 1000 - time.time()
                estimate = f"; empty in about {max(1, round(left_s / 60))} min"
        except ClientError as error:
            if is_last:
                raise
            text = error.message
        if text != said:
            said = text
            say(text + estimate)
        await asyncio.sleep(POLL_S)
