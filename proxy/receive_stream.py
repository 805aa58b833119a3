"""Writes the answers to receives, within a limit of bytes.

gRPC accepts the next message only when the client has capacity, so a slow client holds the bytes of
its answers. Each client may use only a fraction of the limit, however many receives it makes, but
always at least an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from .protocol.messaging_pb2 import Code, Message, ReceiveMessageResponse
from .status_codes import status_of

CLIENT_PARTS = 4  # of the limit; a client may use one of them

T = TypeVar("T")
ClientKey = tuple[str, str]  # an account's access key and a client id
Write = Callable[[ReceiveMessageResponse], Awaitable[None]]


class Unread(Exception):
    """The client did not read its answer in time."""


class ByteLimit:
    """Counts the bytes of messages on their way, in total and per client."""

    def __init__(self, bytes_max: int) -> None:
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._held: dict[ClientKey, int] = {}

    def has(self, key: ClientKey, size: int = 1) -> bool:
        """Return whether there is capacity for an answer of this size."""
        own = self._held.get(key, 0)
        if self.held_bytes and self.held_bytes + size > self._bytes_max:
            return False
        return not own or own + size <= self._bytes_max // CLIENT_PARTS

    def take(self, key: ClientKey, size: int) -> bool:
        """Reserve `size` bytes; return False, without a reservation, at the limit."""
        if not self.has(key, size):
            return False
        self.held_bytes += size
        self._held[key] = self._held.get(key, 0) + size
        return True

    def release(self, key: ClientKey, size: int) -> None:
        """Release `size` reserved bytes."""
        left = self._held.pop(key, 0) - size
        assert left >= 0, left
        self.held_bytes -= size
        if left:
            self._held[key] = left


class ResponseWriter(Generic[T]):
    """Writes an answer. `convert` converts a message, or skips it (None)."""

    def __init__(
        self, result: Sequence[T], convert: Callable[[T], Message | None], write: Write
    ) -> None:
        self.written = 0
        self._result = result
        self._convert = convert
        self._write = write
        self._passed = 0  # were written or skipped
        self._ended = False

    @property
    def left(self) -> Sequence[T]:
        """Return the unwritten messages; the first may be in progress."""
        return self._result[self._passed :]

    def end(self) -> None:
        self._ended = True

    async def run(self) -> None:
        """Write all messages. Raises Unread after `end`."""
        await self._write(ReceiveMessageResponse(status=status_of(Code.OK)))
        for item in self._result:
            if self._ended:
                raise Unread("the client did not read its messages in time")
            message = self._convert(item)
            if message is not None:
                await self._write(ReceiveMessageResponse(message=message))
                self.written += 1
            self._passed += 1
        last = ReceiveMessageResponse()
        last.delivery_timestamp.GetCurrentTime()
        await self._write(last)
