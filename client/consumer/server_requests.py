"""Handlers for requests from brokers and administrators to a consumer, with its running info."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Protocol

from raftmq.remoting.admin_headers import ResetOffsetHeader
from raftmq.remoting.codes import MQ_VERSION, RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.fast_json import dumps, loads_object
from raftmq.store.record import RecordError

from ..decode import decode_messages
from ..message import MessageQueue
from .consume_service import GuardedListener
from .membership import Membership

logger = logging.getLogger(__name__)


class ResettableConsumer(Protocol):
    """A consumer with offsets that can be reset."""

    @property
    def offsets(self) -> dict[MessageQueue, int]: ...

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Move held queues to `offsets`, after an administrator's reset."""


class ServerRequestHandlers:
    """The request handlers of a consumer. Without `listener` it does not serve 309."""

    def __init__(
        self,
        membership: Membership,
        consumer: ResettableConsumer,
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
        """Handle 220, continue held queues at the offsets in the body."""
        header = ResetOffsetHeader.parse(request.ext)
        held = {}
        if header.group == self._membership.group:
            table, workers = reset_table(request.body), self._membership.workers
            held = {queue: offset for queue, offset in table.items() if queue in workers}
            await self._consumer.reset_offsets(held)
        logger.warning("offsets_reset topic=%s queues=%d", header.topic, len(held))
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def _status(self, _connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Handle 221, return this consumer's offset in every held queue of the topic."""
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
        """Handle 309: pass the body's message to the listener now, whatever is held."""
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
    """Parse the offsets of a 220 body in either form (a list or a map by queue)."""
    table = loads_object(body).get("offsetTable") or {}
    if isinstance(table, list):
        return {MessageQueue.from_fields(i): int(i["offset"]) for i in table}
    return {key: int(offset) for key, offset in table.items() if isinstance(key, MessageQueue)}


def running_info(
    membership: Membership, offsets: Mapping[MessageQueue, int], orderly: bool
) -> bytes:
    """Return the body of 307 in the form for Java readers (queue objects as map keys). `offsets`
    have been or will be committed."""
    now_ms = time.time() * 1000
    queues = {}
    locks = membership.locks
    for queue, worker in membership.workers.items():
        cached = worker.process_queue
        lock_age_ms = None if locks is None else locks.age_ms(queue)
        queues[queue] = {
            "cachedMsgCount": cached.cached_count,
            "cachedMsgMinOffset": cached.committable,
            "cachedMsgMaxOffset": cached.next_pull,
            "cachedMsgSizeInMiB": cached.cached_bytes >> 20,
            "commitOffset": offsets.get(queue, -1),
            "droped": False,
            "lastConsumeTimestamp": round(worker.last_consumed_ms),
            "lastLockTimestamp": 0 if lock_age_ms is None else round(now_ms - lock_age_ms),
            "lastPullTimestamp": round(now_ms - worker.since_last_pull_ms),
            "locked": locks is not None and locks.valid(queue),
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }
    return dumps(
        {
            "mqTable": queues,
            "properties": {
                "PROP_NAMESERVER_ADDR": ";".join(membership.instance.name_servers.addresses),
                "PROP_CONSUME_TYPE": membership.consume_type,
                "PROP_CLIENT_VERSION": str(MQ_VERSION),
                "PROP_CONSUMER_START_TIMESTAMP": str(membership.started_ms),
                "PROP_CONSUMEORDERLY": "true" if orderly else "false",
            },
            "statusTable": {},
            "subscriptionSet": [s.to_json() for s in membership.subscriptions.values()],
            "userConsumerInfo": {},
        }
    )
