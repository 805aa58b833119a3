"""The outcomes of messages that the broker stores itself: delayed messages that are due, retries,
ends of transactions, and recalls.

`SendPath.store` calls `done` once: with None if the messages are stored, with `Refused` if they
certainly are not, with `OutcomeUnknown` if they may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftmq.remoting.codes import ResponseCode

# With these the message is stored; the last three say for what classic mode waited in vain.
STORED_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)

Done = Callable[[Exception | None], None]


def is_unknown(error: Exception) -> bool:
    """Return whether this error leaves open whether the message is, or will be, stored."""
    return bool(getattr(error, "outcome_unknown", False))


class Ended:
    """A `done` that can be awaited."""

    def __init__(self) -> None:
        self._outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: Exception | None) -> None:
        if not self._outcome.done():  # else the waiter is gone
            self._outcome.set_result(error)

    async def stored(self) -> None:
        """Wait until the outcome is known; return if it is stored. Raises OutcomeUnknown,
        Refused."""
        error = await self._outcome
        if error is not None:
            raise error
