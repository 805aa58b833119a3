"""Sends from inside the broker, by the path of clients' sends: the answer is the command that a
client would get."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from raftmq.broker.errors import OutcomeUnknown
from raftmq.remoting.codec import FRAME_SIZE_BYTES_MAX, FrameReader, decode_command
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import JSON, RemotingCommand
from raftmq.remoting.headers import SendHeader

if TYPE_CHECKING:
    from raftmq.broker.sending.send import SendPath

SEND_CODE = int(RequestCode.SEND_MESSAGE_V2)


class Catcher:
    """The connection of one send; keeps the answer that is written to it."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> bool:
        reader = FrameReader(FRAME_SIZE_BYTES_MAX)
        reader.receive_data(data)
        frame = reader.next_frame()
        assert frame is not None, "an answer is written whole"
        if not self.answer.done():  # else the sender no longer waits
            self.answer.set_result(decode_command(frame))
        return True

    def write_many(self, frames: list[bytes]) -> bool:
        return self.write(b"".join(frames))

    def abort(self, reason: str) -> None:
        """Fail the send, whose answer could not be made."""
        if not self.answer.done():
            self.answer.set_exception(OutcomeUnknown(reason))


async def send(
    sends: SendPath, header: SendHeader, body: bytes, born_host: bytes
) -> RemotingCommand:
    """Store a message; return the answer, whatever it says."""
    catcher = Catcher()
    sender = (catcher, 0, 0, JSON)
    sends.receive(sender, header.to_ext(SEND_CODE), body, born_host, SEND_CODE)
    sends.wake()
    return await catcher.answer
