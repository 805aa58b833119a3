"""A connection as the producer's hot path uses it: sends out, answers in, nothing in between.

It takes the answers to its own sends straight from the frames and hands every other frame on to
the connection's usual treatment. No future, task or timer per message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from remoting.codec import RawFrame, decode_command
from remoting.command import JSON, RESPONSE_FLAG
from remoting.connection import ClientConnection, Connection
from remoting.errors import RemotingProtocolError

if TYPE_CHECKING:
    from client.pending import Pending

# (channel, pending, response code, remark, extFields)
OnAnswer = Callable[["Channel", "Pending", int, str, dict[str, str]], None]
OnLost = Callable[["Channel", "list[Pending]"], None]
_NO_FIELDS: dict[str, str] = {}


class Channel:
    """Sends that are not answered yet, by opaque, oldest first."""

    __slots__ = ("_connection", "_on_answer", "_on_lost", "address", "outstanding")

    def __init__(
        self, address: str, connection: ClientConnection, on_answer: OnAnswer, on_lost: OnLost
    ) -> None:
        self.address = address
        self.outstanding: dict[int, Pending] = {}
        self._connection = connection
        self._on_answer = on_answer
        self._on_lost = on_lost
        connection.on_raw = self._receive
        connection.on_close(self._closed)

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    def next_opaque(self) -> int:
        return self._connection.next_opaque()

    def write(self, frame: bytes) -> bool:
        """Queue a frame; frames of one loop iteration leave together. False if closed."""
        return self._connection.write(frame)

    def abandon(self, pending: Pending) -> None:
        """The current attempt of `pending` is given up; its late answer is still recognised."""
        if pending.earlier is None:
            pending.earlier = []
        pending.earlier.append((self, pending.opaque))

    def forget(self, opaque: int) -> None:
        """No answer to `opaque` is of interest any more."""
        self.outstanding.pop(opaque, None)

    def _receive(self, connection: Connection, frames: list[RawFrame]) -> None:
        take = self.outstanding.pop
        on_answer = self._on_answer
        for frame in frames:
            try:
                code, opaque, flag, remark, ext = read_answer(frame)
            except (RemotingProtocolError, orjson.JSONDecodeError, KeyError, TypeError):
                connection.dispatch(frame)  # says what is wrong with it and closes
                continue
            if not flag & RESPONSE_FLAG:
                connection.dispatch(frame)
                continue
            pending = take(opaque, None)
            if pending is None:
                connection.dispatch(frame)
            else:
                on_answer(self, pending, code, remark or "", ext or _NO_FIELDS)

    def _closed(self, _connection: Connection, _reason: str) -> None:
        lost = list(self.outstanding.values())
        self.outstanding.clear()
        self._on_lost(self, lost)


def read_answer(frame: RawFrame) -> tuple[int, int, int, str | None, dict[str, Any] | None]:
    """(code, opaque, flag, remark, extFields) of a frame's header."""
    if frame[0] == JSON:
        header = orjson.loads(frame[1])
        get = header.get
        return header["code"], header["opaque"], header["flag"], get("remark"), get("extFields")
    command = decode_command(frame)
    return command.code, command.opaque, command.flag, command.remark, command.ext
