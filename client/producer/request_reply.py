"""Request and reply over topics.

The requester marks its message with a correlation id and its own client id. The consumer answers
with `Producer.reply`, through the broker group that stores the request, and that broker pushes the
answer (326) over the requester's connection. The broker needs the requester's heartbeat for that,
so a request is sent only after the leaders have answered a heartbeat. Every replica gets a
heartbeat, since any may lead at the time of the answer.

A request ends in the reply, in SendFailed (no consumer will see it), or in RequestTimedOut or
SendOutcomeUnknown (it may have been processed). At most `REQUESTS_MAX` requests wait at a time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace

from raftmq.remoting import fields
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import HeaderError
from raftmq.remoting.headers import SendHeader
from raftmq.store.record import SYS_COMPRESSED, RecordError

from ..compression import decompress
from ..errors import (
    InvalidMessage,
    RequestTimedOut,
    TooManyInFlight,
    UnsupportedCompression,
)
from ..message import Message, MessageExt

logger = logging.getLogger(__name__)

REQUESTS_MAX = 10_000
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
NO_HOST = bytes(8)


class WaitingRequests:
    """A client's requests that wait for their reply, by correlation id. `client_id()` is called at
    each request, because every start of the client changes it."""

    def __init__(self, client_id: Callable[[], str], requests_max: int = REQUESTS_MAX) -> None:
        self._client_id = client_id
        self._requests_max = requests_max
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def start(self, message: Message, timeout_ms: int) -> tuple[str, Message]:
        """Register a request; return (correlation id, message to send). Raises TooManyInFlight."""
        if len(self._waiting) >= self._requests_max:
            raise TooManyInFlight(f"{len(self._waiting)} requests wait for a reply")
        correlation_id = str(uuid.uuid4())
        self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        marks = {
            "CORRELATION_ID": correlation_id,
            "REPLY_TO_CLIENT": self._client_id(),
            "TTL": str(timeout_ms),
        }
        return correlation_id, replace(message, properties={**message.properties, **marks})

    async def reply(self, correlation_id: str, deadline: float) -> MessageExt:
        """Wait for the reply and return it. Raises RequestTimedOut at `deadline` (loop time)."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._waiting[correlation_id]
        except TimeoutError:
            raise RequestTimedOut(f"no reply to {correlation_id} in time") from None

    def end(self, correlation_id: str) -> None:
        del self._waiting[correlation_id]

    def pushed(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Handle 326, a reply pushed by a broker."""
        try:
            message = reply_of(request)
        except (HeaderError, RecordError, UnsupportedCompression) as error:
            logger.error("reply_broken error=%s", error)
            return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, str(error))
        correlation_id = message.properties.get("CORRELATION_ID", "")
        future = self._waiting.get(correlation_id)
        if future is None or future.done():
            logger.info("reply_too_late id=%s", correlation_id)
        else:
            future.set_result(message)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)


def reply_message(request: MessageExt, body: bytes) -> Message:
    """Build the answer to a consumed request. Raises InvalidMessage if it requests none."""
    marks = {name: request.properties.get(name) for name in ("CORRELATION_ID", "REPLY_TO_CLIENT")}
    cluster = request.properties.get("CLUSTER")
    if not cluster or not all(marks.values()):
        raise InvalidMessage("the message asks for no reply, or lacks its cluster's name")
    properties = {name: value for name, value in marks.items() if value}
    properties["TTL"] = request.properties.get("TTL") or "3000"
    return Message(
        cluster + REPLY_TOPIC_SUFFIX, body, properties={**properties, "MSG_TYPE": "reply"}
    )


def reply_of(request: RemotingCommand) -> MessageExt:
    """Decode a pushed reply. Raises HeaderError, RecordError, UnsupportedCompression."""
    header = SendHeader.parse(request.ext, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    body = request.body
    if header.sys_flag & SYS_COMPRESSED:
        body = decompress(body, header.sys_flag)
    return MessageExt(
        header.topic,
        body,
        header.properties.encode(),
        header.broker_name or "",
        header.queue_id,
        -1,  # the broker does not send its storage position, if any
        -1,
        header.sys_flag & ~SYS_COMPRESSED,
        header.flag,
        header.born_timestamp_ms,
        NO_HOST,
        fields.integer_or(request.ext, "storeTimestamp", 0),
        NO_HOST,
        header.reconsume_times,
        0,
        len(request.body),
    )
