"""Outcomes of messages that the broker stores itself.

These are delayed messages, retries, ends of transactions, and recalls.

`SendPath.store` calls its `done` with None, or with the error that a client would be answered:
stored, not stored (`Refused`), or unknown (`OutcomeUnknown`), as a proposed command's does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from raftmq.broker.sending.sendrequest import Outgoing
from raftmq.remoting.codes import ResponseCode

# The message is stored; the last three name what classic mode's sender waited for in vain.
STORED_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)

Done = Callable[[Exception | None], None]


class Sends(Protocol):
    """The part of the send path used by those that store messages of the broker's own."""

    def store(self, messages: Sequence[Outgoing], command: bytes, done: Done) -> None: ...

    def wake(self, at_once: bool = False) -> None: ...


def is_unknown(error: Exception) -> bool:
    """Return whether the message may be stored now or later; assume neither."""
    return bool(getattr(error, "outcome_unknown", False))


class Ended:
    """A `done` that can be awaited."""

    def __init__(self) -> None:
        self._told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def __call__(self, error: Exception | None) -> None:
        if not self._told.done():  # else the waiter is gone
            self._told.set_result(error)

    async def stored(self) -> None:
        """Return once it is stored. Raises OutcomeUnknown, Refused."""
        error = await self._told
        if error is not None:
            raise error
