"""Progress of topics and groups (requests 202, 208, 300, 303, 317, 343, 345 and 321).

Any replica answers from its applied state. A leader answers behind a barrier
(broker.error_responses), so that a deposed leader shows no old figures. Only the leader answers for
the offsets of a group. Queues, topics and groups are read in pieces, so that messages are not
delayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection, Handler
from raftmq.remoting.fast_json import MessageQueue, dumps
from raftmq.remoting.fields import boolean_or, integer, integer_or, text, text_or
from raftmq.remoting.threads import in_thread_to_its_end
from raftmq.store.record import HEAD_SIZE_BYTES, store_timestamp_at

from ..clients import ClientTable
from ..context import Context
from ..errors import Refused
from ..tables.topics import RETRY_PREFIX
from .stats import GroupRates

if TYPE_CHECKING:
    from raftmq.store.message_store import MessageStore

STEPS_PER_TURN = 32  # queues, topics or groups per turn of the loop
ENTRIES_MAX = 1_000  # of one answer to 321
UNIT_BYTES = 20
JAVA_LONG_MAX = (1 << 63) - 1
HEAD_WITH_HOSTS_BYTES = HEAD_SIZE_BYTES + 24  # if both hosts are IPv6


@dataclass(frozen=True, slots=True)
class ProgressQueries:
    """The request handlers for progress."""

    context: Context
    clients: ClientTable
    rates: GroupRates

    def handlers(self) -> dict[int, Handler]:
        code = RequestCode
        return {
            int(code.GET_TOPIC_STATS_INFO): self.topic_stats,
            int(code.GET_CONSUME_STATS): self.consume_stats,
            int(code.QUERY_TOPIC_CONSUME_BY_WHO): self.groups_of_topic,
            int(code.QUERY_CONSUME_TIME_SPAN): self.time_span,
            int(code.GET_BROKER_CONSUME_STATS): self.broker_consume_stats,
            int(code.QUERY_TOPICS_BY_CONSUMER): self.topics_of_group,
            int(code.QUERY_SUBSCRIPTION_BY_CONSUMER): self.subscription,
            int(code.QUERY_CONSUME_QUEUE): self.queue_units,
        }

    async def topic_stats(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_TOPIC_STATS_INFO (202)."""
        name = text(request.ext, "topic")
        topic = self.context.state.topics.existing(name)
        table = {}
        steps = Steps()
        for queue_id in range(topic.queue_count):
            low, high = self._ends(name, queue_id)
            table[self._queue(name, queue_id)] = {
                "lastUpdateTimestamp": self._stored_ms(name, queue_id, high - 1),
                "maxOffset": high,
                "minOffset": low,
            }
            await steps.done()
        return RemotingCommand.response_to(request, body=await _written({"offsetTable": table}))

    def groups_of_topic(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer 300, the groups that subscribe to the topic or have offsets in it."""
        name = text(request.ext, "topic")
        groups = set(self.context.state.offsets.groups_of(name))
        groups |= {g for g, group in self.clients.consumers.items() if name in group.subscriptions}
        return RemotingCommand.response_to(request, body=dumps({"groupList": sorted(groups)}))

    async def time_span(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer QUERY_CONSUME_TIME_SPAN (303): the store times of each queue's ends and of the
        group's position, and the age of the next message."""
        name, group = text(request.ext, "topic"), text(request.ext, "group")
        topic = self.context.state.topics.existing(name)
        await self.context.log.barrier()
        spans = []
        steps = Steps()
        for queue_id in range(topic.queue_count):
            low, high = self._ends(name, queue_id)
            offset = self.context.state.position(name, group, queue_id) or 0
            waiting = self._stored_ms(name, queue_id, max(offset, low))
            spans.append(
                {
                    # The first message's while no existing message was consumed.
                    "consumeTimeStamp": self._stored_ms(name, queue_id, max(offset - 1, low)),
                    "delayTime": max(0, self.context.wall_ms() - waiting) if waiting else 0,
                    "maxTimeStamp": self._stored_ms(name, queue_id, high - 1),
                    "messageQueue": self._queue(name, queue_id).as_fields(),
                    "minTimeStamp": self._stored_ms(name, queue_id, low),
                }
            )
            await steps.done()
        body = await _written({"consumeTimeSpanSet": spans})
        return RemotingCommand.response_to(request, body=body)

    async def consume_stats(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_CONSUME_STATS (208) for a group in one topic, or all that it consumes."""
        group, name = text(request.ext, "consumerGroup"), text_or(request.ext, "topic")
        await self.context.log.barrier()
        names = [name] if name else self._topics_of(group)
        if not names and group not in self.context.state.groups.entries:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group[{group}] does not exist"
            )
        names = [name for name in names if not self.clients.has_left(group, name)]
        stats = await self._stats(group, names, Steps())
        return RemotingCommand.response_to(request, body=await _written(stats))

    async def broker_consume_stats(
        self, _: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer GET_BROKER_CONSUME_STATS (317) for all groups; `isOrder` selects order topics."""
        ordered = boolean_or(request.ext, "isOrder", False)
        await self.context.log.barrier()
        total = 0
        listed = []
        steps = Steps()
        committed: dict[str, set[str]] = {}
        for topic_name, group in list(self.context.state.offsets.offsets):
            committed.setdefault(group, set()).add(topic_name)
            await steps.done()
        for group in sorted({*self.context.state.groups.entries, *self.clients.consumers}):
            parts = []
            await steps.done()
            for name in self._more_topics(group, committed.get(group, set())):
                topic = self.context.state.topics.get(name)
                if topic is None or (ordered and not topic.order):
                    continue
                if self.clients.has_left(group, name):
                    continue
                stats = await self._stats(group, [name], steps)
                parts.append(stats)
                queues = stats["offsetTable"].values()
                total += sum(q["brokerOffset"] - q["consumerOffset"] for q in queues)
            if parts:
                listed.append({group: parts})
        total = max(-JAVA_LONG_MAX, min(total, JAVA_LONG_MAX))  # a group may commit any offset
        value = {"brokerAddr": self.context.address, "consumeStatsList": listed, "totalDiff": total}
        return RemotingCommand.response_to(request, body=await _written(value))

    async def _stats(self, group: str, names: Iterable[str], steps: Steps) -> dict[str, Any]:
        """Return Apache's ConsumeStats bean."""
        table = {}
        tps = 0.0
        for name in names:
            await steps.done()
            topic = self.context.state.topics.get(name)
            if topic is None:
                continue
            tps += self.rates.stats(name, group)["statsMinute"]["tps"]
            for queue_id in range(topic.read_queue_count):
                _, high = self._ends(name, queue_id)
                position, in_flight = self.context.state.progress(name, group, queue_id)
                read = position or 0
                consumed = read - in_flight
                table[self._queue(name, queue_id)] = {
                    "brokerOffset": high,
                    "consumerOffset": consumed,
                    "lastTimestamp": self._stored_ms(name, queue_id, read - 1),
                    # Unacknowledged pops are in between. For pulls, only the consumer has the
                    # number of fetched and uncommitted messages.
                    "pullOffset": read,
                }
                await steps.done()
        return {"consumeTps": tps, "offsetTable": table}

    def _topics_of(self, group: str) -> list[str]:
        """Return the topics with offsets or subscriptions; broadcasters keep theirs."""
        pairs = self.context.state.offsets.offsets
        return self._more_topics(group, {topic for topic, name in pairs if name == group})

    def _more_topics(self, group: str, committed: set[str]) -> list[str]:
        """Return the group's topics, given those with offsets."""
        topics = set(committed)
        online = self.clients.consumers.get(group)
        if online is not None and not online.is_broadcasting:
            topics |= set(online.subscriptions)
        retry = RETRY_PREFIX + group
        if topics and retry in self.context.state.topics.entries:
            topics.add(retry)
        return sorted(topics)

    def topics_of_group(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer QUERY_TOPICS_BY_CONSUMER (343)."""
        topics = self._topics_of(text(request.ext, "group"))
        value = {"brokerAddr": self.context.address, "topicList": topics}
        return RemotingCommand.response_to(request, body=dumps(value))

    def subscription(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer QUERY_SUBSCRIPTION_BY_CONSUMER (345), without data if no member is connected."""
        group, topic = text(request.ext, "group"), text(request.ext, "topic")
        subscription = self.clients.subscription(group, topic)
        value: dict[str, Any] = {"group": group, "topic": topic}
        if subscription is not None:
            value["subscriptionData"] = subscription.fields
        return RemotingCommand.response_to(request, body=dumps(value))

    def queue_units(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer 321 with entries of a ConsumeQueue, and whether a subscription matches."""
        topic, queue_id = text(request.ext, "topic"), integer(request.ext, "queueId")
        index, count = integer(request.ext, "index"), integer_or(request.ext, "count", 10)
        queue = self.context.store.queues.queue(topic, queue_id)
        if queue is None:
            reason = f"{queue_id}@{topic} is not exist!"
            raise Refused(ResponseCode.SYSTEM_ERROR, reason, absent=True)
        group = text_or(request.ext, "consumerGroup")
        subscription = self.clients.subscription(group, topic) if group else None
        value: dict[str, Any] = {
            "maxQueueIndex": queue.max_offset,
            "minQueueIndex": queue.min_offset,
            "queueData": [],
        }
        if subscription is not None:
            value["subscriptionData"] = subscription.fields
        if not queue.min_offset <= index < queue.max_offset:
            return RemotingCommand.response_to(request, body=dumps(value))
        entries = queue.entries(index, max(0, min(count, ENTRIES_MAX, queue.max_offset - index)))
        codes = None if subscription is None else subscription.codes
        for at in range(0, len(entries), UNIT_BYTES):
            tags_code = int.from_bytes(entries[at + 12 : at + 20], "big", signed=True)
            entry = {
                "physicOffset": int.from_bytes(entries[at : at + 8], "big", signed=True),
                "physicSize": int.from_bytes(entries[at + 8 : at + 12], "big", signed=True),
                "tagsCode": tags_code,
                "eval": codes is None or tags_code in codes,
            }
            value["queueData"].append(entry)
        return RemotingCommand.response_to(request, body=dumps(value))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self.context.config.broker_name, queue_id)

    def _ends(self, topic: str, queue_id: int) -> tuple[int, int]:
        return queue_ends(self.context.store, topic, queue_id)

    def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of the message at a queue offset, or 0."""
        return stored_ms(self.context.store, topic, queue_id, offset)


def queue_ends(store: MessageStore, topic: str, queue_id: int) -> tuple[int, int]:
    """Return the minimum and maximum offset of a queue, zeros without one."""
    queue = store.queues.queue(topic, queue_id)
    return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def stored_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """Return the store time of the message at a queue offset, or 0. Raises OSError."""
    queue, log = store.queues.queue(topic, queue_id), store.commitlog
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return 0
    position = queue.entry(offset)[0]
    if not log.min_offset <= position < log.max_offset:
        return 0  # deleted by retention
    return store_timestamp_at(log.read(position, HEAD_WITH_HOSTS_BYTES), 0)


class Steps:
    """The steps of a request. The loop runs after every STEPS_PER_TURN steps."""

    def __init__(self) -> None:
        self._count = 0

    async def done(self) -> None:
        self._count += 1
        if self._count % STEPS_PER_TURN == 0:
            await asyncio.sleep(0)


async def _written(value: dict[str, Any]) -> bytes:
    """Return the value as JSON, made in a thread, because many queues need half a second."""
    return await in_thread_to_its_end(dumps, value)
