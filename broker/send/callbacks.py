"""Outcomes of messages that the broker stores itself.

These are due delayed messages, retries, ends of transactions, and recalls. `SendPath.store` calls
`done` once, with None if the messages are stored, with `Refused` if they are not, or with
`OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raftmq.remoting.codes import ResponseCode

# The message is stored. With the last three, classic mode timed out waiting for a disk or a slave.
STORED_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)

Done = Callable[[Exception | None], None]


def is_unknown(error: Exception) -> bool:
    """Return True if the message may still be stored."""
    return bool(getattr(error, "outcome_unknown", False))


class Completion:
    """A `done` that can be awaited."""

    def __init__(self) -> None:
        self._outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: Exception | None) -> None:
        if not self._outcome.done():  # the waiter may be cancelled
            self._outcome.set_result(error)

    async def stored(self) -> None:
        """Return once the message is stored. Raises OutcomeUnknown, Refused."""
        error = await self._outcome
        if error is not None:
            raise error
