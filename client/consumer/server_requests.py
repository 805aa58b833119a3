"""Handlers for requests that brokers and administrators send to a consumer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Protocol

from raftmq.remoting.admin_headers import ResetOffsetHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.fast_json import dumps, loads_object
from raftmq.store.record import RecordError

from ..decode import decode_messages
from ..message import MessageQueue
from .consume_service import GuardedListener
from .membership import Membership
from .running_info import running_info

logger = logging.getLogger(__name__)


class Movable(Protocol):
    """A consumer that can be moved."""

    @property
    def offsets(self) -> dict[MessageQueue, int]: ...

    async def go_on_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Move queues, which are held, to `offsets`: an administrator resets the group."""
        ...


class Asked:
    """The request handlers of one consumer. `listener` None: a consumer without one, which
    does not serve 309."""

    def __init__(
        self,
        membership: Membership,
        consumer: Movable,
        listener: GuardedListener | None = None,
        orderly: bool = False,
    ) -> None:
        self._membership = membership
        self._consumer = consumer
        self._listener = listener
        self._orderly = orderly

    def handlers(self) -> Mapping[int, Handler]:
        known: dict[int, Handler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._ids_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
        }
        if self._listener is not None:
            known[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume_directly
        return known

    def _ids_changed(self, _connection: Connection, request: RemotingCommand) -> None:
        self._membership.rebalancer.ids_changed(request)

    async def _reset(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Handle 220: continue held queues at the offsets in the body."""
        header = ResetOffsetHeader.parse(request.ext)
        held = {}
        if header.group == self._membership.group:
            table, workers = reset_table(request.body), self._membership.workers
            held = {queue: offset for queue, offset in table.items() if queue in workers}
            await self._consumer.go_on_at(held)
        logger.warning("offsets_reset topic=%s queues=%d", header.topic, len(held))
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def _status(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Handle 221: answer with this consumer's offset in every held queue of the topic."""
        ext = request.ext or {}
        if ext.get("group") != self._membership.group:
            remark = f"no consumer of group {ext.get('group')} here"
            return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark)
        table = {
            queue: offset
            for queue, offset in self._consumer.offsets.items()
            if queue.topic == ext.get("topic")
        }
        body = dumps({"messageQueueTable": table})
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {}, body)

    def _running_info(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        body = running_info(self._membership, self._consumer.offsets, self._orderly)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {}, body)

    async def _consume_directly(
        self, _connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Handle 309: give the listener the message in the body now, whatever queues are held."""
        started_s = time.monotonic()
        try:
            name = (request.ext or {}).get("brokerName", "")
            messages = decode_messages(request.body, name)
        except RecordError as error:
            return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, str(error))
        if not messages:
            remark = "no message in the body"
            return RemotingCommand.response_to(request, ResponseCode.SYSTEM_ERROR, remark)
        assert self._listener is not None
        done = await self._listener.call(messages) is None
        result = {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS" if done else "CR_LATER",
            "order": self._orderly,
            "spentTimeMills": round((time.monotonic() - started_s) * 1000),
        }
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, None, {}, dumps(result))


def reset_table(body: bytes) -> dict[MessageQueue, int]:
    """Parse the offsets of a 220 body, in either of its two forms (a list or a map by queue)."""
    table = loads_object(body).get("offsetTable") or {}
    if isinstance(table, list):
        return {MessageQueue.from_fields(i): int(i["offset"]) for i in table}
    return {key: int(offset) for key, offset in table.items() if isinstance(key, MessageQueue)}
