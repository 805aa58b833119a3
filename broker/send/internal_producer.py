"""Sends from inside the broker (HTTP, replies), through the send path."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from raftmq.remoting.codec import FRAME_SIZE_BYTES_MAX, FrameReader, decode_command
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import JSON
from raftmq.remoting.headers import SendHeader, SendResponseHeader

from ..errors import OutcomeUnknown, Refused

SEND_CODE = int(RequestCode.SEND_MESSAGE_V2)


class SendReceiver(Protocol):
    """The part of the send path used here."""

    def receive(
        self, sender: Any, ext: Mapping[str, str], body: bytes, born_host: bytes, code: int
    ) -> None: ...

    def wake(self, at_once: bool = False) -> None: ...


class InternalSend:
    def __init__(self) -> None:
        self.stored: asyncio.Future[tuple[int, SendResponseHeader]] = (
            asyncio.get_running_loop().create_future()
        )

    def write(self, data: bytes) -> bool:
        reader = FrameReader(FRAME_SIZE_BYTES_MAX)
        reader.receive_data(data)
        frame = reader.next_frame()
        assert frame is not None, "an answer is written whole"
        if not self.stored.done():  # the sender may have stopped waiting
            answer = decode_command(frame)
            self.stored.set_result((answer.code, SendResponseHeader.parse(answer.ext)))
        return True

    def write_many(self, frames: list[bytes]) -> bool:
        return self.write(b"".join(frames))

    def refused(self, refusal: Refused | OutcomeUnknown) -> None:
        if not self.stored.done():
            self.stored.set_exception(refusal)

    def abort(self, reason: str) -> None:
        """Fail a send after an error in its response."""
        self.refused(OutcomeUnknown(reason))


async def send(
    sends: SendReceiver, header: SendHeader, body: bytes, born_host: bytes
) -> tuple[int, SendResponseHeader]:
    """Store it; return a code of STORED_CODES and the header. Raises Refused, OutcomeUnknown."""
    internal = InternalSend()
    sender = (internal, 0, 0, JSON)
    sends.receive(sender, header.to_ext(SEND_CODE), body, born_host, SEND_CODE)
    sends.wake()
    return await internal.stored
