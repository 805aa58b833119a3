"""The pull consumer, which returns a queue's messages from an offset on request.

    async with PullConsumer("group", "127.0.0.1:9876") as consumer:
        for queue in await consumer.queues("orders"):
            await consumer.seek_to_committed(queue)
            result = await consumer.fetch(queue)

`pull` is stateless; `fetch` continues after the last `fetch` or `seek`. Every call finds the leader
through a failover. Messages may be from a follower if the brokers suggest it (cold data). Offsets,
and the answer that there are no messages, are accepted from the leader only. PushConsumer calls a
listener instead; LitePullConsumer is also polled, but shares a topic's queues with its group.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import HeaderError, RemotingError
from raftmq.remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, PullResponseHeader
from raftmq.store.record import RecordError

from ..decode import decode_messages
from ..errors import BrokerRefused, ClientError
from ..hosted import entered, left
from ..instance import ClientInstance, InstanceConfig
from ..message import MessageExt, MessageModel, MessageQueue
from ..route import LEADER_ID
from ..subscription import ALL, Subscription, consumer_heartbeat, subscribe
from .offsets import ConsumeFrom
from .remote_offset_store import OffsetStore, max_offset, min_offset, offset_for

logger = logging.getLogger(__name__)

ANSWER_GRACE_MS = 3000
FOLLOWER_MS = 1000  # it may be frozen, and the leader needs the rest of the time
SUBSCRIPTIONS_MAX = 10_000  # remembered expressions; further ones are rejected
BYTES_MAX = 4 * 1024 * 1024


class PullStatus(Enum):
    """The outcome of a pull. OFFSET_ILLEGAL is outside of the queue; `next_offset` is the nearest
    offset."""

    FOUND = 0
    NO_NEW_MESSAGE = 19
    NO_MATCHED_MESSAGE = 20
    OFFSET_ILLEGAL = 21


class PullResult(NamedTuple):
    """A pull's result. `next_offset` is the next pull's offset; the queue has messages in
    [min_offset, max_offset)."""

    status: PullStatus
    messages: list[MessageExt]
    next_offset: int
    min_offset: int
    max_offset: int


class PullConsumer:
    """A pull consumer. Methods raise NoRoute, BrokerUnreachable, BrokerRefused."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        *,
        instance_config: InstanceConfig | None = None,
    ) -> None:
        self.group = group
        self._instance = ClientInstance(namesrv, instance_config)
        self._offsets = OffsetStore(group, self._instance)
        self._positions: dict[MessageQueue, int] = {}
        self._subscriptions: dict[tuple[str, str, str], Subscription] = {}
        self._suggested: dict[MessageQueue, int] = {}  # brokerIds of followers for the next pull

    __aenter__, __aexit__ = entered, left

    async def start(self) -> None:
        """Start, without waiting for a server. Raises TlsError."""
        await self._instance.start(self._heartbeat)

    async def stop(self) -> None:
        """Unregister at the brokers and close every connection."""
        await self._instance.leave(None, self.group)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues in the topic's current route."""
        return (await self._instance.directory.refresh(topic)).read_queues(topic)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int = 32,
        expression: str = ALL,
        expression_type: str = "TAG",
        wait_ms: int = 0,
    ) -> PullResult:
        """Return matching messages from `offset` on; wait up to `wait_ms` for messages. Raises
        BrokerUnreachable without an answer 3 s after that."""
        deadline_s = asyncio.get_running_loop().time() + (wait_ms + ANSWER_GRACE_MS) / 1000
        subscription = self._subscription(queue.topic, expression, expression_type)
        await self._know(queue)
        header = PullHeader(
            self.group,
            queue.topic,
            queue.queue_id,
            offset,
            count_max,
            PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
            0,
            wait_ms,
            subscription.expression,
            subscription.version,
            subscription.expression_type,
            BYTES_MAX,
            queue.broker_name,
        )
        response = await self._ask_follower(queue, header)
        if response is None:
            response = await self._ask(queue, header, deadline_s)
        try:
            answer = PullResponseHeader.parse(response.ext)
            self._suggested[queue] = answer.suggested_broker_id
            status = PullStatus(response.code)
            messages: list[MessageExt] = []
            if status is PullStatus.FOUND:
                requested = subscription.subscribed_tags()
                messages = decode_messages(response.body, queue.broker_name, requested)
                messages = [message for message in messages if message.queue_offset >= offset]
        except (ValueError, HeaderError, RecordError) as error:
            remark = response.remark or f"not understood: {error}"
            raise BrokerRefused(response.code, remark, queue.broker_name) from error
        if status is PullStatus.FOUND and not messages:
            status = PullStatus.NO_MATCHED_MESSAGE
        following = answer.next_offset
        return PullResult(status, messages, following, answer.offset_min, answer.offset_max)

    async def fetch(
        self,
        queue: MessageQueue,
        count_max: int = 32,
        expression: str = ALL,
        expression_type: str = "TAG",
        wait_ms: int = 0,
    ) -> list[MessageExt]:
        """Return messages from the queue's position on, and move it past them. It starts at the
        committed offset, or at the first offset. A position deleted by retention moves forward; a
        position beyond the end stays, because a lagging replica may report that."""
        if queue not in self._positions:
            await self.seek_to_committed(queue)
        offset = self._positions[queue]
        result = await self.pull(queue, offset, count_max, expression, expression_type, wait_ms)
        illegal = result.status is PullStatus.OFFSET_ILLEGAL
        if (not illegal or result.next_offset > offset) and self._positions.get(queue) == offset:
            self._positions[queue] = max(offset, result.next_offset)
        return result.messages

    def restore(self, messages: Sequence[MessageExt]) -> None:
        """Return the messages of the latest `fetch` of a queue again at the next."""
        if messages:
            self.seek(messages[0].queue, messages[0].queue_offset)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the position of `fetch`; None before the first."""
        return self._positions.get(queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Let `fetch` continue at `offset`."""
        self._positions[queue] = offset

    async def seek_to_committed(self, queue: MessageQueue) -> int:
        """Seek to the group's committed offset, or to the first offset without it; return it."""
        offset = await self.committed(queue)
        self._positions[queue] = await self.min_offset(queue) if offset is None else offset
        return self._positions[queue]

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, or None."""
        await self._know(queue)
        return await self._offsets.committed(queue)

    async def commit(self, queue: MessageQueue, offset: int | None = None) -> None:
        """Commit `offset`, or the position, confirmed by the broker."""
        chosen = self._positions.get(queue) if offset is None else offset
        if chosen is None:
            raise ClientError(-1, f"nothing was fetched of {queue}")
        await self._know(queue)
        await self._offsets.write(queue, chosen)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the queue's first offset."""
        await self._know(queue)
        return await min_offset(self._instance, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset behind the last message."""
        await self._know(queue)
        return await max_offset(self._instance, queue)

    async def offset_for(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after that time, or the end."""
        await self._know(queue)
        return await offset_for(self._instance, queue, timestamp_ms)

    async def _know(self, queue: MessageQueue) -> None:
        """Refresh the route if the queue's group is unknown."""
        if not self._instance.directory.group(queue.broker_name).addresses:
            await self._instance.directory.refresh(queue.topic)

    async def _ask_follower(
        self, queue: MessageQueue, header: PullHeader
    ) -> RemotingCommand | None:
        """Pull from a suggested follower; None without a suggestion or messages."""
        group = self._instance.directory.group(queue.broker_name)
        address = group.replica(self._suggested.pop(queue, LEADER_ID))
        if address is None or address in (group.leader, group.route_leader):
            return None
        flag = header.sys_flag & ~PULL_SUSPEND
        now = header._replace(sys_flag=flag, suspend_timeout_ms=0)
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, now.to_ext())
        try:
            response = await self._instance.remoting.invoke(address, command, FOLLOWER_MS)
        except RemotingError as error:
            logger.info("follower_pull_failed queue=%s address=%s %s", queue, address, error)
            return None
        return response if response.code == ResponseCode.SUCCESS else None

    async def _ask(
        self, queue: MessageQueue, header: PullHeader, deadline_s: float
    ) -> RemotingCommand:
        """Ask the leader. A repeated pull waits only for the rest of the time."""
        now = asyncio.get_running_loop().time

        def command() -> RemotingCommand:
            left_ms = max(0, round((deadline_s - now()) * 1000) - ANSWER_GRACE_MS)
            flag = header.sys_flag if left_ms else header.sys_flag & ~PULL_SUSPEND
            left = header._replace(sys_flag=flag, suspend_timeout_ms=left_ms)
            return RemotingCommand.request(RequestCode.PULL_MESSAGE, left.to_ext())

        for again in (True, False):
            response = await self._instance.invoke_leader(
                queue.broker_name,
                command,
                header.suspend_timeout_ms + ANSWER_GRACE_MS,
                deadline_s=deadline_s,
            )
            if response.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST or not again:
                break
            await self._instance.heartbeat_all(deadline_s - now())  # creates the group, if allowed
        return response

    def _subscription(self, topic: str, expression: str, kind: str) -> Subscription:
        key = (topic, expression, kind)
        subscription = self._subscriptions.get(key)
        if subscription is None:
            if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
                raise ClientError(-1, f"{SUBSCRIPTIONS_MAX} expressions are in use already")
            subscription = subscribe(topic, expression, int(time.time() * 1000), kind)
            self._subscriptions[key] = subscription
        return subscription

    def _heartbeat(self) -> Mapping[str, Any]:
        topics = {subscription.topic: subscription for subscription in self._subscriptions.values()}
        model, consume_from = MessageModel.CLUSTERING.value, ConsumeFrom.LAST_OFFSET.value
        return consumer_heartbeat(
            self.group, "CONSUME_ACTIVELY", model, consume_from, topics.values()
        )
