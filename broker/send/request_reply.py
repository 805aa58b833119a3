"""Request and reply, SEND_REPLY_MESSAGE (324, 325) and the push to the requester.

A reply names its requester by client id (REPLY_TO_CLIENT). The leader pushes it with
PUSH_REPLY_MESSAGE_TO_CLIENT (326) to a producer with that id, and responds SUCCESS once the
requester accepted it, else SYSTEM_ERROR. The push times out after TTL, or after PUSH_TIMEOUT_MS if
that is less. With storeReplyMessageEnable the reply is also stored in `<cluster>_REPLY_TOPIC`, as
in Apache's broker; a failure of that does not fail the reply.

Java's producers may send their first heartbeat 30 s after a leader change. So requesters are also
found by their requests (broker.clients), and a leader without the requester forwards the reply to
the former leaders with an address in the log. FORWARDED_FROM, with the replier's address, marks
forwarded replies, which are neither stored nor forwarded again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from raftmq.remoting.acl.needs import FORWARDED_FROM
from raftmq.remoting.admin_headers import ReplyPushHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.headers import REGION, SendHeader, SendResponseHeader
from raftmq.store.properties import decode_properties

from ..clients import ClientTable
from ..component import Service
from ..context import Context
from ..errors import OutcomeUnknown, Refused, illegal, not_leader
from ..messages.send_request import packed_address
from ..tables.topics import TopicConfig
from .internal_producer import send
from .service import SendPath

log = logging.getLogger("raftmq.broker.reply")

REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PUSH_TIMEOUT_MS = 10_000  # as Apache's broker
PUSHES_MAX = 10_000  # in flight


def reply_topic(cluster: str) -> TopicConfig:
    return TopicConfig(f"{cluster}_REPLY_TOPIC", 1, 1)


@dataclass(slots=True)
class ReplyService:
    """Pushes and stores replies. `peers` connects to other replicas."""

    context: Context
    clients: ClientTable
    sends: SendPath
    peers: RemotingClient
    _pushes: int = 0

    def service(self) -> Service:
        codes = (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
        return Service(handlers={int(code): self.reply for code in codes}, stop=self.peers.close)

    async def reply(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Handle SEND_REPLY_MESSAGE (324, 325). Raises Refused, HeaderError."""
        ext = request.ext or {}
        header = SendHeader.parse(ext, request.code)
        born_host = ext.get(FORWARDED_FROM)
        forwarded = born_host is not None
        if not forwarded and not self.context.roles.leading:
            raise not_leader()
        self._check(header, request.body)
        problem = await self._push(request, header, born_host or connection.peer_address, forwarded)
        answer = SendResponseHeader(
            "0",
            max(0, header.queue_id),
            0,
            trace_on=self.context.config.trace_on,
        )
        if self.context.config.store_reply_message_enable and not forwarded:
            answer = await self._store(connection, header, request.body, answer)
        if problem:
            log.info("reply_not_pushed reason=%s", problem)
            return RemotingCommand.response_to(
                request, ResponseCode.SYSTEM_ERROR, problem, answer.to_ext()
            )
        return RemotingCommand.response_to(request, ext=answer.to_ext())

    def _check(self, header: SendHeader, body: bytes) -> None:
        self.context.state.topics.existing(header.topic)
        size_max = self.context.config.max_message_size
        if len(body) > size_max:
            raise illegal(f"the body is {len(body)} bytes long, allowed are {size_max}")

    async def _push(
        self, request: RemotingCommand, header: SendHeader, born_host: str, forwarded: bool
    ) -> str:
        """Push the reply. Returns the error, or "" if the requester accepted it."""
        properties = decode_properties(header.properties)
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        if self._pushes >= PUSHES_MAX:
            return "[BUSY] too many replies are under way"
        ttl = properties.get(TTL, "")
        ttl_ms = int(ttl) if ttl.isascii() and ttl.isdigit() else PUSH_TIMEOUT_MS
        timeout_ms = max(1, min(ttl_ms, PUSH_TIMEOUT_MS))
        self._pushes += 1
        try:
            requester = self.clients.producer_connection(client_id)
            if requester is None:
                problem = f"push reply message fail, channel of <{client_id}> not found."
                if not forwarded and await self._forward(request, born_host, timeout_ms):
                    problem = ""
                return problem
            command = self._pushed(header, properties, born_host, request.body)
            answer = await requester.invoke(command, timeout_ms)
        except RemotingError as error:
            return f"push reply message to {client_id} fail: {error}"
        finally:
            self._pushes -= 1
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: {answer.remark}"
        return ""

    def _pushed(
        self, header: SendHeader, properties: dict[str, str], born_host: str, body: bytes
    ) -> RemotingCommand:
        now_ms = self.context.wall_ms()
        pushed_properties = {
            **properties,
            "MSG_REGION": REGION,
            "TRACE_ON": "true" if self.context.config.trace_on else "false",
            PUSH_REPLY_TIME: str(now_ms),
        }
        text = "".join(f"{name}\x01{value}\x02" for name, value in pushed_properties.items())
        push = ReplyPushHeader(
            header._replace(properties=text), born_host, self.context.address, now_ms
        )
        return RemotingCommand.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push.to_ext(), body
        )

    def _former_leaders(self) -> list[str]:
        """Return the client addresses of all other replicas that have led."""
        own = self.context.address
        return [a for a in self.context.state.addresses.values() if a not in ("", own)]

    async def _forward(self, request: RemotingCommand, born_host: str, timeout_ms: int) -> bool:
        """Forward the reply to former leaders. Returns True if a replica delivered it."""
        ext = {**(request.ext or {}), FORWARDED_FROM: born_host}
        requests = [
            self.peers.invoke(
                address, RemotingCommand.request(request.code, dict(ext), request.body), timeout_ms
            )
            for address in self._former_leaders()
        ]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        handed_over = False
        for answer in answers:
            if isinstance(answer, RemotingCommand):
                handed_over = handed_over or answer.code == ResponseCode.SUCCESS
            elif not isinstance(answer, RemotingError):
                raise answer
        return handed_over

    async def _store(
        self, connection: Connection, header: SendHeader, body: bytes, answer: SendResponseHeader
    ) -> SendResponseHeader:
        """Store the reply. Returns its location, or `answer` if it is not stored."""
        try:
            born_host = packed_address(connection.peer_address)
            _code, stored = await send(self.sends, header, body, born_host)
        except (Refused, OutcomeUnknown) as error:
            log.warning("reply_not_stored code=%d: %s", error.code, error.remark)
            return answer
        return stored._replace(transaction_id=None)
