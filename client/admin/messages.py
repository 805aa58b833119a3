"""Stored messages by id, by key and by offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raftmq.remoting.address import format_address
from raftmq.remoting.admin_headers import QueryMessageHeader
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, PullResponseHeader
from raftmq.store.record import decode_offset_message_id

from ..decode import decode_messages
from ..errors import BrokerRefused
from ..instance import ClientInstance, successful
from ..message import MessageExt, MessageQueue
from ..retry import CONTROL
from .requests import Requests

BYTES_MAX = 256 << 10  # of an answer with messages
ANSWER_MS = 3_000
ANSWER_GRACE_MS = 8_000  # Apache's broker answers a held pull up to 5 s late
TIME_MS_MAX = (1 << 63) - 1  # a query without an end time
NOTHING = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class MessageAdmin:
    """Stored messages. Offsets are never committed here."""

    def __init__(self, instance: ClientInstance, requests: Requests) -> None:
        self._instance = instance
        self._requests = requests

    async def view(self, offset_msg_id: str, broker_name: str = "") -> MessageExt:
        """Return the message with that offset message id, from its broker (33)."""
        try:
            (host, port), position = decode_offset_message_id(offset_msg_id)
        except ValueError as error:
            raise BrokerRefused(ResponseCode.INVALID_PARAMETER, str(error), "") from error
        return await self.view_at(format_address(host, port), position, broker_name)

    async def view_at(
        self, address: str, commit_log_offset: int, broker_name: str = ""
    ) -> MessageExt:
        """Return the message record at a CommitLog offset, from a replica (33)."""
        ext = {"offset": str(commit_log_offset)}
        response = await self._requests.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, ext)
        messages = decode_messages(response.body, broker_name)
        if len(messages) != 1:
            raise BrokerRefused(response.code, f"{len(messages)} records in the answer", address)
        return messages[0]

    async def query(
        self,
        topic: str,
        key: str,
        max_num: int = 32,
        start_ms: int = 0,
        end_ms: int = TIME_MS_MAX,
        *,
        unique_key: bool = False,
    ) -> list[MessageExt]:
        """Find messages by UNIQ_KEY or by any of their KEYS, stored between two times (12), in
        every broker group of the topic. Returns the newest `max_num`, oldest first. With
        `unique_key` the key is a UNIQ_KEY, for which brokers have a separate limit. Raises if a
        group cannot be asked, because its messages would be missing."""
        ext = QueryMessageHeader(topic, key, max_num, start_ms, end_ms, unique_key).to_ext()
        route = await self._instance.directory.route(topic)
        messages: list[MessageExt] = []
        for name in sorted(broker.broker_name for broker in route.brokers):
            response = await self._instance.invoke_leader(
                name, lambda: RemotingCommand.request(RequestCode.QUERY_MESSAGE, dict(ext))
            )
            if response.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            body = successful(response, name).body
            # Apache's brokers compare only the key's hash.
            messages += [m for m in decode_messages(body, name) if _has_key(m, topic, key)]
        messages.sort(key=lambda m: (m.store_timestamp_ms, m.broker_name, m.commit_log_offset))
        return messages[-max_num:] if max_num > 0 else []

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count: int = 32,
        expression: str = "*",
        expression_type: str = "TAG",
        wait_ms: int = 0,
    ) -> tuple[list[MessageExt], int]:
        """Return messages of a queue from `offset` on (11), and the offset to continue at,
        unchanged if there are none. The broker waits up to `wait_ms` for messages. No group is
        created or joined. Brokers compare only the hashes of tags."""
        command = _pull(queue, offset, count, expression, expression_type, wait_ms)
        await self._instance.directory.route(queue.topic)
        response = await self._instance.invoke_leader(
            queue.broker_name,
            command,
            wait_ms + ANSWER_GRACE_MS if wait_ms else ANSWER_MS,
            policy=replace(CONTROL, time_ms_max=wait_ms + (CONTROL.time_ms_max or 0)),
        )
        return _pulled(response, queue, queue.broker_name)

    async def pull_at(
        self, address: str, queue: MessageQueue, offset: int, count: int = 32
    ) -> tuple[list[MessageExt], int]:
        """Do as `pull` at a replica, which need not be in a route."""
        command = _pull(queue, offset, count)()
        ask, ext = self._requests.invoke, command.ext or {}
        return _pulled(await ask(address, command.code, ext, b"", ANSWER_GRACE_MS), queue, address)

    async def consume_queue(
        self, address: str, topic: str, queue_id: int, index: int, count: int, group: str = ""
    ) -> dict[str, Any]:
        """Return entries of a ConsumeQueue as Apache's QueryConsumeQueueResponseBody (321)."""
        numbers = {"queueId": str(queue_id), "index": str(index), "count": str(count)}
        ext = {"topic": topic, **numbers} | ({"consumerGroup": group} if group else {})
        return await self._requests.json(address, RequestCode.QUERY_CONSUME_QUEUE, ext)


def _has_key(message: MessageExt, topic: str, key: str) -> bool:
    return message.topic == topic and (
        message.msg_id == key or key in (message.keys or "").split(" ")
    )


def _pull(
    queue: MessageQueue,
    offset: int,
    count: int,
    expression: str = "*",
    expression_type: str = "TAG",
    wait_ms: int = 0,
) -> Callable[[], RemotingCommand]:
    flags = PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0)
    header = PullHeader(
        "TOOLS_CONSUMER", queue.topic, queue.queue_id, offset, count, flags,
        0, wait_ms, expression, 0, expression_type, BYTES_MAX, queue.broker_name,
    )  # fmt: skip
    return lambda: RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())


def _pulled(
    response: RemotingCommand, queue: MessageQueue, source: str
) -> tuple[list[MessageExt], int]:
    messages = []
    if response.code not in NOTHING:
        messages = decode_messages(successful(response, source).body, queue.broker_name)
    return messages, PullResponseHeader.parse(response.ext).next_offset
