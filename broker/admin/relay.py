"""Relay of an administrator's requests to consumers: 307, 309, and 223 by way of 221.

A client is reached over its own connection. Without its answer within TIMEOUT_MS, the administrator
gets an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raftmq.remoting.acl.signature import SIGNED_FIELDS
from raftmq.remoting.admin_headers import ConsumeDirectlyHeader, RunningInfoHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import dumps, loads_object
from raftmq.remoting.fields import text, text_or
from raftmq.store.record import decode_offset_message_id

from ..clients import ClientTable, Member
from ..context import Context
from ..errors import Refused

if TYPE_CHECKING:
    from ..access import Access

TIMEOUT_MS = 10_000  # as in Apache's broker


@dataclass(frozen=True, slots=True)
class Relay:
    """The request handlers."""

    context: Context
    clients: ClientTable
    access: Access

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            int(code.GET_CONSUMER_RUNNING_INFO): self.running_info,
            int(code.CONSUME_MESSAGE_DIRECTLY): self.consume_directly,
            int(code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS): self.consumer_status,
        }

    async def running_info(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Relay GET_CONSUMER_RUNNING_INFO (307)."""
        header = RunningInfoHeader.parse(request.ext)
        member = self._member(header.consumer_group, header.client_id)
        return await self._relay(member, request, request.body)

    async def consume_directly(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Relay CONSUME_MESSAGE_DIRECTLY (309) for a message of this broker and a client of this
        group. Raises Refused, AclError."""
        header = ConsumeDirectlyHeader.parse(request.ext)
        member = self._member(header.consumer_group, header.client_id or "")
        try:
            _host, position = decode_offset_message_id(header.message_id or "")
        except ValueError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from error
        record = self.context.store.reads.message_at(position)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no message {header.message_id} here")
        self.access.permit_record(connection, request, record)
        request.ext = {**(request.ext or {}), "brokerName": self.context.config.broker_name}
        return await self._relay(member, request, bytes(record))

    async def consumer_status(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) with the clients' offsets."""
        group, topic = text(request.ext, "group"), text(request.ext, "topic")
        requested = text_or(request.ext, "clientAddr")
        consumer_group = self.clients.consumers.get(group)
        if consumer_group is None:
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the group[{group}] not online")
        table: dict[str, Any] = {}
        for member in list(consumer_group.members.values()):
            if requested not in ("", member.client_id):
                continue
            ask = RemotingCommand.request(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group}
            )
            answer = await self._invoke(member, ask)
            if answer.code == ResponseCode.SUCCESS:
                body = loads_object(answer.body)
                table[member.client_id] = body.get("messageQueueTable") or {}
        return RemotingCommand.response_to(request, body=dumps({"consumerTable": table}))

    def _member(self, group: str, client_id: str) -> Member:
        """Return a connected member of a group. Raises Refused."""
        consumer_group = self.clients.consumers.get(group)
        member = None if consumer_group is None else consumer_group.members.get(client_id)
        if member is None:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE, f"The Consumer <{group}> <{client_id}> not online"
            )
        return member

    async def _relay(
        self, member: Member, request: RemotingCommand, body: bytes
    ) -> RemotingCommand:
        # Without the signature, with which the client could send the request again.
        ext = {k: v for k, v in (request.ext or {}).items() if k not in SIGNED_FIELDS}
        ask = RemotingCommand.request(request.code, ext, body)
        answer = await self._invoke(member, ask)
        return RemotingCommand.response_to(
            request, answer.code, answer.remark, answer.ext, answer.body
        )

    async def _invoke(self, member: Member, ask: RemotingCommand) -> RemotingCommand:
        """Send a request to a member. Raises Refused if it does not answer in time."""
        try:
            return await member.connection.invoke(ask, TIMEOUT_MS)
        except RemotingError as error:
            raise Refused(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"{member.client_id} did not answer: {error}"
            ) from error
