"""The cluster API's read operations, merged over all groups.

Items have their `group`, and `errors` lists groups that did not answer. The list of topics is this
name server's own route table; details of a topic are requested from the leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import Any
from urllib.parse import quote

from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS
from raftmq.web.operation import Call, Operation, Reply
from raftmq.web.paging import (
    PageQuery,
    decode_cursor,
    encode_cursor,
    page,
    page_of_sorted,
)
from raftmq.web.problem import ApiProblem, invalid, not_found, unavailable
from raftmq.web.resources.node import MemberProgressView, PreferredView
from raftmq.web.schema import Listing, Page

from . import merging, tracing
from .broker_fanout import Leaders
from .broker_http import NodeSilent
from .cluster import ClusterView, Item
from .inputs import (
    CONSUMERS,
    MESSAGES,
    PREFERRED,
    PREFERRED_PATH,
    QUEUE_MESSAGES,
    QUEUES,
    SUBSCRIPTION,
    TOPIC,
    FailoversQuery,
    MessagesQuery,
    OfGroup,
    OfMessage,
    OfName,
    OfQueue,
    OfTopic,
    OneGroup,
    QueueMessagesQuery,
    SearchPage,
    TopicsQuery,
    filled,
    items_of,
    query_of,
)
from .message_pages import marks_of, merged_oldest, pages_of
from .seen import Connections, ConsumerSeen, Items, Messages
from .views import (
    BrokerGroupView,
    ClusterReport,
    ConnectionsOfGroups,
    ConsumersItem,
    ConsumersView,
    FailoverView,
    GroupsListing,
    GroupsPage,
    MessageOfGroup,
    QueueMessagesOfGroup,
    QueueOfGroup,
    SubscriptionInGroups,
    SubscriptionItem,
    TopicInGroups,
    TopicItem,
    TraceView,
)


class Reads:
    """The handlers of the read operations; `operations()` lists them."""

    def __init__(self, cluster: ClusterView, leaders: Leaders) -> None:
        self._cluster = cluster
        self._leaders = leaders
        self._topics: list[str] = []  # sorted, of version
        self._topics_version = -1

    def operations(self) -> list[Operation]:
        def get(path: str, name: str, summary: str, handler: Any, **more: Any) -> Operation:
            return Operation("GET", f"/api/v1{path}", name, summary, handler, **more)

        by = {"parameters": OfName}
        return [
            get("/cluster", "getCluster", "Every replica's own view, side by side.", self.cluster,
                answer=ClusterReport),
            get("/groups", "listGroups", "The broker groups.", self.groups, query=PageQuery,
                answer=Page[BrokerGroupView]),
            get("/groups/{group}", "getGroup", "One broker group.", self.group, parameters=OfGroup,
                answer=BrokerGroupView),
            get("/groups/{group}/members", "listMembers", "The members, as the leader has them.",
                self.members, parameters=OfGroup, problems=(503,),
                answer=Listing[MemberProgressView]),
            get(PREFERRED, "getPreferredLeader", "Who should lead when it can.", self.preferred,
                parameters=OfGroup, problems=(503,),
                answer=PreferredView),
            get("/failovers", "listFailovers", "Failovers, the latest first, moment by moment.",
                self.failovers, query=FailoversQuery,
                answer=Listing[FailoverView]),
            get("/topics", "listTopics", "The topics that clients find.", self.topics,
                query=TopicsQuery,
                answer=Page[TopicItem]),
            get("/topics/{topic}", "getTopic", "One topic, as each group has it.", self.topic,
                parameters=OfTopic, problems=(404, 503),
                answer=TopicInGroups),
            get("/topics/{topic}/queues", "listQueues", "A topic's queues in all groups.",
                self.queues, parameters=OfTopic, query=OneGroup, problems=(404, 503),
                answer=GroupsListing[QueueOfGroup]),
            get("/topics/{topic}/queues/{queueId}/messages", "listQueueMessages",
                "Messages of one queue of one group, from an offset or a time on.",
                self.queue_messages, parameters=OfQueue, query=QueueMessagesQuery,
                problems=(404, 503),
                answer=QueueMessagesOfGroup),
            get("/subscription-groups", "listSubscriptionGroups", "Subscription groups.",
                self.subscription_groups, query=SearchPage,
                answer=GroupsPage[SubscriptionItem]),
            get("/subscription-groups/{name}", "getSubscriptionGroup", "One of them.",
                self.subscription_group, problems=(404, 503), **by,
                answer=SubscriptionInGroups),
            get("/consumer-groups", "listConsumerGroups", "Consumer groups and their lag.",
                self.consumer_groups, query=SearchPage,
                answer=GroupsPage[ConsumersItem]),
            get("/consumer-groups/{name}", "getConsumerGroup", "Clients, offsets, lag.",
                self.consumer_group, problems=(404, 503), **by,
                answer=ConsumersView),
            get("/messages", "findMessages", "Messages by key or unique key, or of a time.",
                self.messages, query=MessagesQuery,
                answer=GroupsPage[MessageOfGroup]),
            get("/messages/{messageId}", "getMessage", "A message by its offset id.",
                self.message, parameters=OfMessage, problems=(404, 503),
                answer=MessageOfGroup),
            get("/messages/{messageId}/trace", "traceMessage",
                "Where a message is: on which replicas, and which consumer groups had it.",
                self.trace, parameters=OfMessage, problems=(404, 503),
                answer=TraceView),
            get("/connections", "listConnections", "Producers and consumers that are connected.",
                self.connections, query=OneGroup,
                answer=ConnectionsOfGroups),
        ]  # fmt: skip

    # --- cluster

    async def cluster(self, _: Call) -> Item:
        return await self._cluster.refresh()

    async def groups(self, call: Call) -> Item:
        seen = await self._cluster.refresh()
        return page(seen["groups"], lambda group: str(group["name"]), dict, call.query)

    async def group(self, call: Call) -> Item:
        name = call.parameters.group
        for group in (await self._cluster.refresh())["groups"]:
            if group["name"] == name:
                return dict(group)
        raise not_found(f"no group {name!r} is known to this name server")

    async def members(self, call: Call) -> Reply:
        value, _ = await self._leaders.relay(call.parameters.group, "GET", "/api/v1/members")
        return Reply(value)

    async def preferred(self, call: Call) -> Reply:
        value, version = await self._leaders.relay(
            call.parameters.group, "GET", filled(PREFERRED_PATH, call)
        )
        return Reply(value, version=version or None)

    async def failovers(self, call: Call) -> Item:
        names = [call.query.group] if call.query.group else list(self._cluster.leaders())
        result = [item.as_fields() for name in names for item in self._cluster.failovers(name)]
        result.sort(key=lambda item: item["startedAt"], reverse=True)
        return {"items": result[: call.query.limit], "next": None}

    # --- topics

    async def topics(self, call: Call) -> Item:
        table, query = self._cluster.table, call.query
        if query.group:
            self._leaders.check_group(query.group)
        requested, reserved = query.q.lower(), self._reserved()

        def fits(topic: str) -> bool:
            if requested not in topic.lower():
                return False
            if query.kind and kind_of(topic, reserved) != query.kind:
                return False
            return not query.group or query.group in (table.queues(topic) or ())

        if self._topics_version != table.topics_version:
            self._topics, self._topics_version = sorted(table.topics()), table.topics_version
        return page_of_sorted(
            self._topics, fits, lambda topic: self._topic_item(topic, reserved), query
        )

    def _reserved(self) -> set[str]:
        """Return the topics that brokers register for themselves and their clusters."""
        known = self._cluster.known()
        return {item.group for item in known} | {item.cluster for item in known}

    def _topic_item(self, topic: str, reserved: Set[str]) -> Item:
        by_group = self._cluster.table.queues(topic) or {}
        groups = [
            {
                "group": name,
                "readQueueNums": data.read_queue_count,
                "writeQueueNums": data.write_queue_count,
                "perm": data.perm,
                "messageType": data.message_type or None,
            }
            for name, data in sorted(by_group.items())
        ]
        return {"topic": topic, "kind": kind_of(topic, reserved), "groups": groups}

    async def topic(self, call: Call) -> Reply:
        return await self._resource("topic", filled(TOPIC, call))

    async def queues(self, call: Call) -> Item:
        result, errors = await self._leaders.views(
            filled(QUEUES, call), only=call.query.group, kind=Items
        )
        if not result and not errors:
            raise not_found(f"no group has topic {call.parameters.topic!r}")
        items = [
            item
            for group in sorted(result)
            for item in merging.with_group(group, items_of(result[group]))
        ]
        return {"items": items, "next": None, "errors": errors}

    async def queue_messages(self, call: Call) -> Item:
        query = call.query
        group = query.group or self._only_group_of(call.parameters.topic)
        requested = query_of(limit=query.limit, offset=query.offset, timeMs=query.time_ms)
        path = filled(QUEUE_MESSAGES, call)
        value, _ = await self._leaders.relay(group, "GET", path, Items, query=requested)
        return {**value, "items": merging.with_group(group, items_of(value))}

    def _only_group_of(self, topic: str) -> str:
        names = sorted(self._cluster.table.queues(topic) or ())
        if not names:
            raise not_found(f"no group has topic {topic!r}")
        if len(names) > 1:
            raise invalid([("group", f"several groups have {topic!r}: {', '.join(names)}")])
        return names[0]

    # --- consumer groups

    async def subscription_groups(self, call: Call) -> Item:
        return await self._named("/api/v1/subscription-groups", call.query)

    async def subscription_group(self, call: Call) -> Reply:
        return await self._resource("group", filled(SUBSCRIPTION, call))

    async def consumer_groups(self, call: Call) -> Item:
        return await self._named("/api/v1/consumer-groups", call.query)

    async def consumer_group(self, call: Call) -> Item:
        result, errors = await self._leaders.views(filled(CONSUMERS, call), kind=ConsumerSeen)
        if not result:
            raise none_has("consumer group", errors)
        return tracing.merged_consumers(call.parameters.name, result) | {"errors": errors}

    async def _named(self, path: str, query: Any) -> Item:
        """Return the named items of all groups as a list, which may repeat names."""
        selected, after = query.q.lower(), decode_cursor(query.cursor) if query.cursor else ""
        while True:
            requested = query_of(limit=query.limit, cursor=encode_cursor(after))
            result, errors = await self._leaders.views(path, requested, query.group, Items)
            rows, behind = merging.page_of(result, tracing.name_of, query.limit)
            items = [
                {"name": name, "groups": [{"group": group, **item} for group, item in each]}
                for name, each in rows
                if selected in name.lower()
            ]
            if items or behind is None:
                following = encode_cursor(behind) if behind else None
                return {"items": items, "next": following, "errors": errors}
            after = behind  # without a match on this page, continue within the time limit

    async def _resource(self, subject: str, path: str) -> Reply:
        result, errors = await self._leaders.answers(path)
        if not result:
            raise none_has(subject, errors)
        versions = {group: version for group, (_, version) in result.items()}
        value = {
            "groups": [{"group": group, **result[group][0]} for group in sorted(result)],
            "errors": errors,
        }
        return Reply(value, version=merging.joined_version(versions))

    # --- messages

    async def messages(self, call: Call) -> Item:
        query = call.query
        requested = query_of(
            topic=query.topic,
            limit=query.limit,
            key=query.key,
            uniqueKey=query.unique_key,
            startMs=query.start_ms,
            endMs=query.end_ms,
        )
        if query.key or query.unique_key:
            result, errors = await self._leaders.views(MESSAGES, requested, query.group, Messages)
            items = [
                m
                for group, value in result.items()
                for m in merging.with_group(group, items_of(value))
            ]
            items.sort(key=lambda m: m.get("storeTimestamp") or 0, reverse=True)
            items, following = items[: query.limit], None
        else:
            marks = marks_of(query.cursor, "cursor")
            groups = self._leaders.names(query.group)
            result, errors = await pages_of(
                self._leaders, groups, MESSAGES, requested, marks, "cursor"
            )
            items, following = merged_oldest(result, marks, query.limit, errors)
        if not result and errors:
            raise none_has("message", errors)
        return {"items": items, "next": following, "errors": errors}

    async def message(self, call: Call) -> Item:
        group, message = await self._message(call.parameters.message_id)
        return {"group": group, **message}

    async def _message(self, message_id: str) -> tuple[str, Item]:
        address = tracing.store_host(message_id)
        group = self._cluster.group_of(address)
        if not group:
            raise not_found(f"no group has a broker at {address}, where the message was stored")
        message, _ = await self._leaders.relay(group, "GET", f"/api/v1/messages/{message_id}")
        return group, message

    async def trace(self, call: Call) -> Item:
        group, message = await self._message(call.parameters.message_id)
        replicas, consumers = await asyncio.gather(
            self._replicas_of(group, message), self._consumers_of(group, message)
        )
        return {"group": group, "message": message, "replicas": replicas, **consumers}

    async def _replicas_of(self, group: str, message: Item) -> list[Item]:
        end = tracing.end_offset(message)
        for result in (await self._cluster.refresh())["groups"]:
            if result["name"] == group:
                return [tracing.on_replica(broker, end) for broker in result["brokers"]]
        return []

    async def _consumers_of(self, group: str, message: Item) -> Item:
        try:
            answer = await self._leaders.ask(
                group, "GET", "/api/v1/consumer-groups", query={"limit": "1000"}
            )
            names = [tracing.name_of(item) for item in items_of(answer.json(Items))]
        except (NodeSilent, ApiProblem) as error:
            return {"consumers": [], "consumersError": str(error)}
        requested = names[: tracing.CONSUMER_GROUPS_MAX]

        async def one(name: str) -> Item | None:
            try:
                view = await self._leaders.ask(
                    group, "GET", f"/api/v1/consumer-groups/{quote(name, '')}"
                )
                return (
                    tracing.progress_of(name, view.json(ConsumerSeen), message) if view.ok else None
                )
            except (NodeSilent, ApiProblem) as error:
                return {"name": name, "state": "unknown", "error": str(error)}

        result = await asyncio.gather(*(one(name) for name in requested))
        return {
            "consumers": [item for item in result if item is not None],
            "consumersLeftOut": len(names) - len(requested),
        }

    # --- clients

    async def connections(self, call: Call) -> Item:
        result, errors = await self._leaders.views(
            "/api/v1/connections", only=call.query.group, kind=Connections
        )
        merged: Item = {"producers": [], "consumers": [], "errors": errors}
        for group, value in result.items():
            for kind in ("producers", "consumers"):
                merged[kind] += merging.with_group(group, value.get(kind) or [])
        return merged


def none_has(subject: str, errors: list[dict[str, str]]) -> ApiProblem:
    if errors:
        reported = "; ".join(f"{error['group']}: {error['error']}" for error in errors)
        problem = unavailable(f"no group could answer. {reported}")
        problem.more["errors"] = errors
        return problem
    return not_found(f"no group has this {subject}")


def kind_of(topic: str, reserved: Set[str] = frozenset()) -> str:
    """Return a topic's kind. `reserved` names brokers and clusters, topics at Apache's."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dead"
    is_system = topic in SYSTEM_TOPICS or topic in reserved
    if is_system or topic.endswith("_REPLY_TOPIC") or topic.lower().startswith("rmq_sys_"):
        return "system"
    return "own"
