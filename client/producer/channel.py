"""A thin layer on a connection for the producer's hot path.

It decodes the answers to its own sends directly from the frames and passes all remaining frames to
the connection's usual dispatch. There is no future, task or timer per message. Of a successful
answer, the usual case, it decodes only the fields it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from msgspec import MsgspecError, Struct, field
from msgspec.json import Decoder

from raftmq.remoting.codec import RawFrame, decode_command
from raftmq.remoting.command import JSON, RESPONSE_FLAG
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingProtocolError

from .pending_send import Pending

# (channel, pending, response code, remark, extFields)
OnAnswer = Callable[["Channel", Pending, int, str, dict[str, str]], None]
# (channel, pending, answer) → False if the fast path does not apply; nothing is changed then.
OnStored = Callable[["Channel", Pending, "StoredAnswer"], bool]
OnLost = Callable[["Channel", "list[Pending]"], None]
_NO_FIELDS: dict[str, str] = {}
# Sends are numbered from here. The connection numbers its other requests from 0, so they meet only
# after 2^30 requests.
FIRST_OPAQUE = 1 << 30
LAST_OPAQUE = (1 << 31) - 1


OK_START = b'{"code":0,'  # how brokers start such an answer


class StoredPosition(Struct, gc=False):
    """The extFields that the producer reads; numbers are strings on the wire."""

    message_id: str = field(name="msgId")
    queue_id: int = field(name="queueId")
    queue_offset: int = field(name="queueOffset")
    recall_handle: str = field(name="recallHandle", default="")


class StoredAnswer(Struct, gc=False):
    """The answer to a send that the broker stored."""

    code: int
    flag: int
    opaque: int
    position: StoredPosition = field(name="extFields")


# Raises msgspec.MsgspecError for anything else. Not strict, because numbers may be strings.
decode_stored = Decoder(StoredAnswer, strict=False).decode


class Channel:
    """A connection and its unanswered sends, by opaque, oldest first. `write(frame)` queues a
    frame; frames of a loop iteration are sent together. It returns False if the connection is
    closed."""

    __slots__ = (
        "_connection",
        "_on_answer",
        "_on_lost",
        "_on_stored",
        "_opaque",
        "address",
        "outstanding",
        "write",
    )

    def __init__(
        self,
        address: str,
        connection: Connection,
        on_answer: OnAnswer,
        on_lost: OnLost,
        on_stored: OnStored,
    ) -> None:
        self.address = address
        self.outstanding: dict[int, Pending] = {}
        self.write = connection.write
        self._opaque = FIRST_OPAQUE
        self._connection = connection
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._on_stored = on_stored
        connection.hand_to(self._receive)
        connection.on_close(self._closed)

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    def next_opaque(self) -> int:
        """Return the next send's opaque. It repeats after 2^30 sends, long after the time-out."""
        opaque = self._opaque
        self._opaque = opaque + 1 if opaque < LAST_OPAQUE else FIRST_OPAQUE
        return opaque

    def abandon(self, pending: Pending) -> None:
        """Abandon the current attempt of `pending`; a late answer is still recognised."""
        if pending.earlier is None:
            pending.earlier = []
        pending.earlier.append((self, pending.opaque))

    def forget(self, opaque: int) -> None:
        self.outstanding.pop(opaque, None)

    def _receive(self, connection: Connection, frames: list[RawFrame]) -> None:
        take = self.outstanding.pop
        find = self.outstanding.get
        on_answer, on_stored = self._on_answer, self._on_stored
        loads = orjson.loads
        for frame in frames:
            if frame[1].startswith(OK_START):
                try:
                    answer = decode_stored(frame[1])
                except MsgspecError:
                    answer = None  # the general path reports its error, if any
                if answer is not None and answer.flag & RESPONSE_FLAG and not answer.code:
                    pending = find(answer.opaque)
                    if pending is not None and on_stored(self, pending, answer):
                        continue
            try:
                header = loads(frame[1]) if frame[0] == JSON else _binary_header(frame)
                is_response = header["flag"] & RESPONSE_FLAG
                pending = take(header["opaque"], None) if is_response else None
                code = header["code"]
            except (RemotingProtocolError, orjson.JSONDecodeError, KeyError, TypeError):
                pending = None  # dispatch reports its error and closes
            if pending is None:
                connection.dispatch(frame)
                continue
            get = header.get
            on_answer(self, pending, code, get("remark") or "", get("extFields") or _NO_FIELDS)

    def _closed(self, _connection: Connection, _reason: str) -> None:
        lost = list(self.outstanding.values())
        self.outstanding.clear()
        self._on_lost(self, lost)


def _binary_header(frame: RawFrame) -> dict[str, Any]:
    """Return a binary header's fields under their JSON names."""
    command = decode_command(frame)
    return {
        "code": command.code,
        "opaque": command.opaque,
        "flag": command.flag,
        "remark": command.remark,
        "extFields": command.ext,
    }
