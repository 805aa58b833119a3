"""Outcomes of messages that the broker stores itself.

These are delayed messages, retries, ends of transactions, and recalls.

`SendPath.store` calls its `done` with a response code and a remark, both as a client would get
them. They mean one of three things: stored, not stored, or unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from raftmq.broker.errors import UNKNOWN_PREFIX, OutcomeUnknown, Refused
from raftmq.broker.sending.sendrequest import Outgoing
from raftmq.remoting.codes import ResponseCode

# The message is stored; the last three name what classic mode's sender waited for in vain.
STORED_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)

Done = Callable[[int, str], None]


class Sends(Protocol):
    """The part of the send path used by those that store messages of the broker's own."""

    def store(self, messages: Sequence[Outgoing], command: bytes, done: Done) -> None: ...

    def wake(self, at_once: bool = False) -> None: ...


def is_stored(code: int) -> bool:
    return code in STORED_CODES


def is_unknown(remark: str) -> bool:
    """Return whether the message may be stored now or later; assume neither."""
    return remark.startswith(UNKNOWN_PREFIX)


def proposal_told(done: Done) -> Callable[[Exception | None], None]:
    """Return a callback for a proposed command that reports its end as a store's."""

    def told(error: Exception | None) -> None:
        if error is None:
            done(ResponseCode.SUCCESS, "")
        elif getattr(error, "outcome_unknown", False) and not is_unknown(str(error)):
            done(ResponseCode.SYSTEM_ERROR, f"{UNKNOWN_PREFIX} {error}")
        else:
            done(ResponseCode.SYSTEM_ERROR, str(error))

    return told


class Ended:
    """A `done` that can be awaited."""

    def __init__(self) -> None:
        self._told: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    def __call__(self, code: int, remark: str) -> None:
        if not self._told.done():  # else the waiter is gone
            self._told.set_result((code, remark))

    async def stored(self) -> None:
        """Return once it is stored. Raises OutcomeUnknown, Refused."""
        code, remark = await self._told
        if is_stored(code):
            return
        if is_unknown(remark):
            raise OutcomeUnknown(remark.removeprefix(UNKNOWN_PREFIX).lstrip())
        raise Refused(code, remark, retriable=True)
