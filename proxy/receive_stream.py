"""Answers to receives on their way to clients: the bytes that they hold, and their writing.

A client that does not read holds what is written to it: gRPC takes one message after the other, and
each only when there is room at the client. So no client may hold more than a part of the room,
however many receives it makes, except that anybody may have one answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from .protocol.messaging_pb2 import Code, Message, ReceiveMessageResponse
from .status_codes import status_of

CLIENT_PARTS = 4  # of the room; one client may hold one of them

T = TypeVar("T")
Who = tuple[str, str]  # an account's access key, and a client's id
Write = Callable[[ReceiveMessageResponse], Awaitable[None]]


class Unread(Exception):
    """The client did not read its answer in time."""


class Room:
    """The bytes of messages on their way, of all clients and of each."""

    def __init__(self, bytes_max: int) -> None:
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._held: dict[Who, int] = {}

    def has(self, who: Who, size: int = 1) -> bool:
        """Return whether there is room for an answer of this size to this client."""
        own = self._held.get(who, 0)
        if self.held_bytes and self.held_bytes + size > self._bytes_max:
            return False
        return not own or own + size <= self._bytes_max // CLIENT_PARTS

    def take(self, who: Who, size: int) -> bool:
        """Take `size` bytes; return False if there is no room, with nothing taken."""
        if not self.has(who, size):
            return False
        self.held_bytes += size
        self._held[who] = self._held.get(who, 0) + size
        return True

    def give_back(self, who: Who, size: int) -> None:
        """Give back `size` bytes that were taken."""
        left = self._held.pop(who, 0) - size
        assert left >= 0, left
        self.held_bytes -= size
        if left:
            self._held[who] = left


class Telling(Generic[T]):
    """Writes one answer. `told` makes a message of what was popped; None: it cannot be told, and is
    left out. `written`: messages."""

    def __init__(
        self, found: Sequence[T], told: Callable[[T], Message | None], write: Write
    ) -> None:
        self.written = 0
        self._found = found
        self._told = told
        self._write = write
        self._passed = 0  # were written or left out
        self._ended = False

    @property
    def left(self) -> Sequence[T]:
        """The messages that have not been written yet; the first may be on its way."""
        return self._found[self._passed :]

    def end(self) -> None:
        """Begin to write nothing more."""
        self._ended = True

    async def run(self) -> None:
        """Write all. Raises Unread if it was ended before."""
        await self._write(ReceiveMessageResponse(status=status_of(Code.OK)))
        for one in self._found:
            if self._ended:
                raise Unread("the client did not read its messages in time")
            message = self._told(one)
            if message is not None:
                await self._write(ReceiveMessageResponse(message=message))
                self.written += 1
            self._passed += 1
        last = ReceiveMessageResponse()
        last.delivery_timestamp.GetCurrentTime()
        await self._write(last)
