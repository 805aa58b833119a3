"""HTTP operations on topics and subscription groups. Every replica lists its applied state. Changes
go through the log, where their If-Match is compared (broker.tables.state)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

from msgspec import UNSET

from raftmq.ops.versions import Condition
from raftmq.remoting.topic_attributes import MESSAGE_TYPE
from raftmq.store.record import store_timestamp_at
from raftmq.web.operation import Call, Operation, Reply, Role
from raftmq.web.paging import PageQuery, page
from raftmq.web.problem import invalid, not_found
from raftmq.web.resources.topics import (
    EmptiedView,
    GroupDeleteQuery,
    GroupPath,
    QueueView,
    SubscriptionGroupBody,
    SubscriptionGroupView,
    TopicBody,
    TopicChange,
    TopicPath,
    TopicView,
)
from raftmq.web.schema import Page

from ..admin.topics_and_groups import NO_CHANGES, Catalog
from ..context import Context
from ..tables.groups import SubscriptionGroup
from ..tables.state import entry_version
from ..tables.topics import SYSTEM_TOPICS, TopicConfig, topic_problem

RECORD_HEAD_BYTES = 128  # the head with the store time; every record is longer
SORTED_ON_LOOP_MAX = 2_000
QUEUES_PER_TURN = 64  # read from files per turn of the loop
_WRITE = (409, 503, 504)


T = TypeVar("T")


class TableOperations:
    def __init__(self, context: Context, catalog: Catalog) -> None:
        self._context = context
        self._catalog = catalog

    def operations(self) -> list[Operation]:
        topic, topics = "/api/v1/topics/{topic}", "/api/v1/topics"
        group, groups = "/api/v1/subscription-groups/{group}", "/api/v1/subscription-groups"
        admin = Role.ADMIN
        return [
            Operation("GET", topics, "listTopics", "All topics.", self.topics, query=PageQuery,
                      answer=Page[TopicView]),
            Operation("GET", topic, "getTopic", "A topic.", self.topic, parameters=TopicPath,
                      answer=TopicView, problems=(404,)),
            Operation("PUT", topic, "putTopic", "Create or change a topic.", self.put_topic,
                      role=admin, parameters=TopicPath, body=TopicChange, answer=TopicView,
                      conditional=True, problems=_WRITE),
            Operation("DELETE", topic, "deleteTopic", "Delete a topic and its offsets.",
                      self.delete_topic, role=admin, parameters=TopicPath, status=204,
                      conditional=True, problems=_WRITE),
            Operation("POST", f"{topic}/empty", "emptyTopic",
                      "Delete a topic's messages, with its groups' offsets.", self.empty_topic,
                      role=admin, parameters=TopicPath, answer=EmptiedView,
                      problems=(404, *_WRITE)),
            Operation("GET", f"{topic}/queues", "listQueues", "A topic's queues.", self.queues,
                      parameters=TopicPath, query=PageQuery, answer=Page[QueueView],
                      problems=(404,)),
            Operation("GET", groups, "listSubscriptionGroups", "All subscription groups.",
                      self.groups, query=PageQuery, answer=Page[SubscriptionGroupView]),
            Operation("GET", group, "getSubscriptionGroup", "A subscription group.", self.group,
                      parameters=GroupPath, answer=SubscriptionGroupView, problems=(404,)),
            Operation("PUT", group, "putSubscriptionGroup", "Create or change it.",
                      self.put_group, role=admin, parameters=GroupPath,
                      body=SubscriptionGroupBody, answer=SubscriptionGroupView,
                      conditional=True, problems=_WRITE),
            Operation("DELETE", group, "deleteSubscriptionGroup", "Delete it.",
                      self.delete_group, role=admin, parameters=GroupPath,
                      query=GroupDeleteQuery, status=204, conditional=True, problems=_WRITE),
        ]  # fmt: skip

    async def topics(self, call: Call) -> dict[str, Any]:
        table = self._context.state.topics.entries
        return await paged(table.values(), lambda t: t.name, topic_view, call.query)

    async def topic(self, call: Call) -> Reply:
        return _versioned(topic_named(self._context, call.parameters.topic), topic_view)

    async def put_topic(self, call: Call) -> Reply:
        topic = topic_of(call.parameters.topic, call.body)
        problem = topic_problem(topic)
        if problem:
            raise invalid([("", problem)])
        kind = call.body.message_type
        changes = NO_CHANGES if kind is UNSET else {f"+{MESSAGE_TYPE}": kind}
        put = await self._catalog.change_topic(
            topic, call.condition, changes, keep_messages=call.body.keep_messages
        )
        return _versioned(put, topic_view)

    async def delete_topic(self, call: Call) -> Reply:
        await self._catalog.remove_topic(call.parameters.topic, call.condition)
        return Reply(status=204)

    async def empty_topic(self, call: Call) -> EmptiedView:
        topic = topic_named(self._context, call.parameters.topic)
        emptied = await self._catalog.empty_topic(topic.name)
        return EmptiedView(messages=emptied.messages, groups=emptied.groups)

    async def queues(self, call: Call) -> dict[str, Any]:
        topic = topic_named(self._context, call.parameters.topic)
        page_of_ids = page(range(topic.queue_count), "{:05d}".format, int, call.query)
        views = [
            self._queue(topic.name, queue_id) async for queue_id in in_turns(page_of_ids["items"])
        ]
        return {**page_of_ids, "items": views}

    def _queue(self, topic: str, queue_id: int) -> QueueView:
        queue = self._context.store.queues.queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        return QueueView(
            queue_id=queue_id,
            min_offset=low,
            max_offset=high,
            last_store_time_ms=store_time_ms(self._context, topic, queue_id, high - 1),
        )

    async def groups(self, call: Call) -> dict[str, Any]:
        table = self._context.state.groups.entries
        return await paged(table.values(), lambda g: g.name, group_view, call.query)

    async def group(self, call: Call) -> Reply:
        return _versioned(group_named(self._context, call.parameters.group), group_view)

    async def put_group(self, call: Call) -> Reply:
        name = call.parameters.group
        before = self._context.state.groups.get(name)
        changed = group_of(name, call.body, before)
        await self._catalog.change_group(changed, _pinned(call.condition, before))
        return _versioned(changed, group_view)

    async def delete_group(self, call: Call) -> Reply:
        await self._catalog.remove_group(
            call.parameters.group, offsets=call.query.offsets, condition=call.condition
        )
        return Reply(status=204)


def topic_named(context: Context, name: str) -> TopicConfig:
    """Return the topic. Raises ApiProblem (404)."""
    topic = context.state.topics.get(name)
    if topic is None:
        raise not_found(f"there is no topic {name}")
    return topic


def group_named(context: Context, name: str) -> SubscriptionGroup:
    """Return the subscription group. Raises ApiProblem (404)."""
    group = context.state.groups.get(name)
    if group is None:
        raise not_found(f"there is no subscription group {name}")
    return group


async def paged(
    items: Iterable[T], key: Callable[[T], str], view: Callable[[T], Any], query: PageQuery
) -> dict[str, Any]:
    """Page many items in a thread, because sorting 200,000 names needs 100 ms."""
    copy = list(items)
    if len(copy) <= SORTED_ON_LOOP_MAX:
        return page(copy, key, view, query)
    return await asyncio.to_thread(page, copy, key, view, query)


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items; the loop runs after every QUEUES_PER_TURN of them."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % QUEUES_PER_TURN == 0:
            await asyncio.sleep(0)


def _pinned(condition: Condition, before: SubscriptionGroup | None) -> Condition:
    """Return the condition that the group is still `before`, if it has fields unknown here."""
    if before is None or not before.extra or not condition.met_by(entry_version(before)):
        return condition
    return Condition((entry_version(before),))


def _versioned(entry: Any, view: Any) -> Reply:
    return Reply(view(entry), version=entry_version(entry))


def store_time_ms(context: Context, topic: str, queue_id: int, offset: int) -> int | None:
    """Return the store time of the message at a queue offset, or None."""
    queue, log = context.store.queues.queue(topic, queue_id), context.store.commitlog
    if queue is None or not queue.min_offset <= offset < queue.max_offset:
        return None
    position = queue.entry(offset)[0]
    if not log.min_offset <= position < log.max_offset:
        return None  # deleted by retention
    return store_timestamp_at(log.read(position, RECORD_HEAD_BYTES), 0)


def topic_of(name: str, body: TopicBody) -> TopicConfig:
    return TopicConfig(
        name,
        body.read_queue_nums,
        body.write_queue_nums,
        body.perm,
        body.filter_type,
        body.sys_flag,
        body.order,
    )


def topic_view(topic: TopicConfig) -> TopicView:
    return TopicView(
        topic=topic.name,
        read_queue_nums=topic.read_queue_count,
        write_queue_nums=topic.write_queue_count,
        perm=topic.perm,
        order=topic.order,
        filter_type=topic.filter_type,
        sys_flag=topic.sys_flag,
        message_type=topic.message_type,
        attributes=dict(topic.attributes),
        system=topic.name in SYSTEM_TOPICS,
        version=entry_version(topic),
    )


def group_of(
    name: str, body: SubscriptionGroupBody, before: SubscriptionGroup | None
) -> SubscriptionGroup:
    return SubscriptionGroup(
        name,
        body.consume_enable,
        body.consume_from_min_enable,
        body.consume_broadcast_enable,
        body.consume_message_orderly,
        body.retry_queue_nums,
        body.retry_max_times,
        body.broker_id,
        body.which_broker_when_consume_slowly,
        body.notify_consumer_ids_changed_enable,
        {} if before is None else before.extra,
    )


def group_view(group: SubscriptionGroup) -> SubscriptionGroupView:
    return SubscriptionGroupView(
        name=group.name,
        consume_enable=group.consume_enable,
        consume_from_min_enable=group.consume_from_min_enable,
        consume_broadcast_enable=group.consume_broadcast_enable,
        consume_message_orderly=group.consume_message_orderly,
        retry_queue_nums=group.retry_queue_count,
        retry_max_times=group.retry_times_max,
        broker_id=group.broker_id,
        which_broker_when_consume_slowly=group.slow_broker_id,
        notify_consumer_ids_changed_enable=group.notify_enable,
        version=entry_version(group),
    )
