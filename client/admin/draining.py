"""Waiting for a broker group that is drained (docs/scaling.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import ClientError
from .admin import Admin

POLL_S = 1.0


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
