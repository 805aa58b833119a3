"""HTTP operations on consumer groups (clients, lag, reset, pause, consume modes) and producers."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from msgspec import UNSET

from raftmq.ops.versions import Condition
from raftmq.remoting.codes import LanguageCode, version_name
from raftmq.remoting.consistency import Difference
from raftmq.web.operation import Call, Operation, Role
from raftmq.web.paging import PageQuery
from raftmq.web.problem import conflict, invalid, not_found
from raftmq.web.resources.consumers import (
    ClientView,
    ConnectionItem,
    ConnectionsView,
    ConsumerGroupItem,
    ConsumerGroupView,
    ConsumerQueueView,
    ModeBody,
    ModePath,
    ModeView,
    PausedView,
    ResetBody,
    ResetQueueView,
    ResetTo,
    ResetView,
    SubscriptionDifferenceView,
)
from raftmq.web.resources.topics import GroupPath
from raftmq.web.schema import Listing, Page

from ..admin.topics_and_groups import Catalog
from ..clients import ClientTable, Member
from ..consume.offset_resets import Resets
from ..context import Context
from ..errors import ConditionUnmet
from ..pop.assignment import Assignments
from ..tables.groups import SubscriptionGroup
from ..tables.state import entry_version
from .tables import group_named, in_turns, paged, store_time_ms, topic_named


class ModeOperations:
    def __init__(self, context: Context, assignments: Assignments) -> None:
        self._context = context
        self._assignments = assignments

    def operations(self) -> list[Operation]:
        modes = "/api/v1/consumer-groups/{group}/modes"
        return [
            Operation("GET", modes, "listConsumeModes",
                      "The topics whose consume mode was set for a group.", self.modes,
                      parameters=GroupPath, answer=Listing[ModeView]),
            Operation("PUT", f"{modes}/{{topic}}", "putConsumeMode",
                      "Let a group's clients of 5.x pull or pop a topic.", self.put,
                      role=Role.ADMIN, parameters=ModePath, body=ModeBody, answer=ModeView,
                      problems=(404, 409, 503, 504)),
        ]  # fmt: skip

    async def modes(self, call: Call) -> Listing[ModeView]:
        group: str = call.parameters.group
        table = self._context.state.pops.modes
        topics = sorted(topic for topic, name in table if name == group)
        return Listing(items=[self._view(topic, group) for topic in topics])

    async def put(self, call: Call) -> ModeView:
        body: ModeBody = call.body
        group: str = call.parameters.group
        topic = topic_named(self._context, call.parameters.topic).name
        await self._assignments.change_mode(topic, group, body.mode, body.pop_share_queue_num)
        return ModeView(
            group=group,
            topic=topic,
            mode=body.mode,
            pop_share_queue_num=body.pop_share_queue_num,
        )

    def _view(self, topic: str, group: str) -> ModeView:
        mode, share = self._assignments.mode_of(topic, group)
        return ModeView(group=group, topic=topic, mode=mode, pop_share_queue_num=share)


QUEUES_MAX = 4_096  # per group in an answer and in a reset
CONNECTION_GROUPS_MAX = 1_000  # per answer
CLIENTS_PER_GROUP_MAX = 1_000
DIFFERENCES_MAX = 10  # per client in an answer
NO_DIFFERENCES: Mapping[str, list[Difference]] = MappingProxyType({})
PAUSE_TRIES = 4  # against concurrent changes of the group


class ConsumerOperations:
    def __init__(
        self, context: Context, catalog: Catalog, clients: ClientTable, resets: Resets
    ) -> None:
        self._context = context
        self._catalog = catalog
        self._clients = clients
        self._resets = resets

    def operations(self) -> list[Operation]:
        base = "/api/v1/consumer-groups"
        one = f"{base}/{{group}}"
        write: dict[str, Any] = {
            "role": Role.OPERATOR, "parameters": GroupPath, "problems": (404, 409, 503, 504),
        }  # fmt: skip
        return [
            Operation("GET", base, "listConsumerGroups", "Groups that consume or have consumed.",
                      self.groups, query=PageQuery, answer=Page[ConsumerGroupItem]),
            Operation("GET", one, "getConsumerGroup", "Its clients, and how far it is behind.",
                      self.group, parameters=GroupPath, answer=ConsumerGroupView,
                      problems=(404,)),
            Operation("POST", f"{one}/reset", "resetOffsets",
                      "Set its offsets in a topic, by time, offset or position.", self.reset,
                      body=ResetBody, answer=ResetView, **write),
            Operation("POST", f"{one}/pause", "pauseConsumerGroup", "Refuse its pulls.",
                      self.pause, answer=PausedView, **write),
            Operation("POST", f"{one}/resume", "resumeConsumerGroup", "Serve its pulls again.",
                      self.resume, answer=PausedView, **write),
            Operation("GET", "/api/v1/connections", "listConnections",
                      "Producers and consumers that are connected, by group.",
                      self.connections, answer=ConnectionsView),
        ]  # fmt: skip

    async def groups(self, call: Call) -> dict[str, Any]:
        topics: dict[str, list[str]] = {}
        for topic, group in self._context.state.offsets.offsets:
            topics.setdefault(group, []).append(topic)
        names = {*topics, *self._clients.consumers, *self._context.state.groups.entries}
        page_of_names = await paged(names, str, str, call.query)
        items = [
            self._item(name, sorted(topics.get(name, ())))
            async for name in in_turns(page_of_names["items"])
        ]
        return {**page_of_names, "items": items}

    def _item(self, name: str, topics: list[str]) -> ConsumerGroupItem:
        context = self._context
        lag = 0
        for topic in topics:
            if self._clients.has_left(name, topic):
                continue
            queues = context.state.offsets.offsets.get((topic, name), {})  # may be deleted
            for queue_id in queues:
                position, in_flight = context.state.progress(topic, name, queue_id)
                end = context.store.queues.end_of(topic, queue_id)
                lag += in_flight + max(0, end - (position or 0))
        online = self._clients.consumers.get(name)
        return ConsumerGroupItem(
            name=name,
            client_count=len(online.members) if online else 0,
            consume_enable=_enabled(context.state.groups.get(name)),
            lag=lag,
            topics=topics,
        )

    async def group(self, call: Call) -> ConsumerGroupView:
        name: str = call.parameters.group
        context = self._context
        config = context.state.groups.get(name)
        online = self._clients.consumers.get(name)
        subscribed = {} if online is None else dict(online.subscriptions)
        members = [] if online is None else list(online.members.values())
        broadcasts = online is not None and online.is_broadcasting  # it keeps its offsets
        keys = self._queues(name, () if broadcasts else subscribed)
        if config is None and online is None and not keys:
            raise not_found(f"no consumer group {name} is known here")
        queues = [
            self._queue(name, topic, queue_id)
            async for topic, queue_id in in_turns(keys[:QUEUES_MAX])
        ]
        return ConsumerGroupView(
            name=name,
            consume_enable=_enabled(config),
            consume_type=None if online is None else online.consume_type,
            message_model=None if online is None else online.message_model,
            subscriptions={topic: s.expression for topic, s in subscribed.items()},
            expression_types={topic: s.expression_type for topic, s in subscribed.items()},
            clients=_clients(members, {} if online is None else online.differences()),
            queues=queues,
            queues_left_out=max(0, len(keys) - QUEUES_MAX),
            lag=sum(queue.lag for queue in queues),
            in_flight=sum(queue.in_flight for queue in queues),
        )

    def _queues(self, group: str, subscribed: Iterable[str]) -> list[tuple[str, int]]:
        """Return the queues with committed offsets of the group, and all of its subscribed
        topics."""
        state = self._context.state
        keys = {
            (topic, queue_id)
            for (topic, name), queues in state.offsets.offsets.items()
            if name == group
            for queue_id in queues
        }
        for name in subscribed:
            topic = state.topics.get(name)
            if topic is not None:
                keys |= {(name, queue_id) for queue_id in range(topic.read_queue_count)}
        return sorted(keys)

    def _queue(self, group: str, topic: str, queue_id: int) -> ConsumerQueueView:
        context = self._context
        queue = context.store.queues.queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        committed, in_flight = context.state.progress(topic, group, queue_id)
        through = -1 if committed is None else committed - 1
        lag = in_flight + max(0, high - (low if committed is None else committed))
        return ConsumerQueueView(
            topic=topic,
            queue_id=queue_id,
            consumer_offset=committed,
            broker_offset=high,
            lag=0 if self._clients.has_left(group, topic) else lag,
            in_flight=in_flight,
            last_time_ms=store_time_ms(context, topic, queue_id, through),
        )

    async def connections(self, _: Call) -> ConnectionsView:
        clients = self._clients
        producers = heapq.nsmallest(CONNECTION_GROUPS_MAX, clients.producers)
        consumers = heapq.nsmallest(CONNECTION_GROUPS_MAX, clients.consumers)
        shown = len(producers) + len(consumers)
        return ConnectionsView(
            producers=[_connected(name, clients.producers[name]) for name in producers],
            consumers=[_connected(name, clients.consumers[name].members) for name in consumers],
            left_out=len(clients.producers) + len(clients.consumers) - shown,
        )

    async def reset(self, call: Call) -> ResetView:
        """Reset offsets as INVOKE_BROKER_TO_RESET_OFFSET (222) does
        (broker.consume.offset_resets)."""
        body: ResetBody = call.body
        group: str = call.parameters.group
        target = _target(body.to)
        topic = topic_named(self._context, body.topic)
        if not self._is_known(group):
            raise not_found(f"no consumer group {group} is known here")
        online = self._clients.consumers.get(group)
        if online is not None and not body.force and not body.preview:
            raise conflict(
                f"{group} has consumers online, which will go on from there: say force",
                "CONSUMERS_ONLINE",
            )
        chosen = range(topic.read_queue_count) if body.queue_ids is None else body.queue_ids
        queue_ids = sorted(set(chosen))
        if len(queue_ids) > QUEUES_MAX:
            raise invalid([("queueIds", f"not more than {QUEUES_MAX} at once")])
        if queue_ids and queue_ids[-1] >= topic.queue_count:
            raise invalid([("queueIds", f"{body.topic} has {topic.queue_count} queues")])
        queues = [
            self._reset_queue(group, body.topic, queue_id, target)
            async for queue_id in in_turns(queue_ids)
        ]
        if not body.preview:
            targets = {one.queue_id: one.offset for one in queues}
            await self._resets.reset(group, body.topic, targets)
        return ResetView(
            topic=body.topic,
            queues=queues,
            done=not body.preview,
            online=0 if online is None else len(online.members),
        )

    def _reset_queue(
        self, group: str, topic: str, queue_id: int, target: Callable[[Context, str, int], int]
    ) -> ResetQueueView:
        context = self._context
        queue = context.store.queues.queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        return ResetQueueView(
            queue_id=queue_id,
            before=context.state.position(topic, group, queue_id),
            offset=target(context, topic, queue_id),
            min_offset=low,
            max_offset=high,
        )

    def _is_known(self, group: str) -> bool:
        state = self._context.state
        known = group in state.groups.entries or group in self._clients.consumers
        return known or any(name == group for _, name in state.offsets.offsets)

    async def pause(self, call: Call) -> PausedView:
        return await self._enable(call.parameters.group, False)

    async def resume(self, call: Call) -> PausedView:
        return await self._enable(call.parameters.group, True)

    async def _enable(self, name: str, enable: bool) -> PausedView:
        for left in reversed(range(PAUSE_TRIES)):
            config = group_named(self._context, name)
            changed = replace(config, consume_enable=enable)
            try:
                await self._catalog.change_group(changed, Condition((entry_version(config),)))
                break
            except ConditionUnmet:  # changed concurrently: read again
                if not left:
                    raise
        return PausedView(name=name, consume_enable=enable)


def _target(to: ResetTo) -> Callable[[Context, str, int], int]:
    """Return the function from a queue to its offset. Raises ApiProblem."""
    if sum(part is not UNSET for part in (to.time_ms, to.offset, to.position)) != 1:
        raise invalid([("to", "say one of timeMs, offset, position")])

    def of(context: Context, topic: str, queue_id: int) -> int:
        queue = context.store.queues.queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        if isinstance(to.offset, int):
            return min(max(to.offset, low), high)
        if isinstance(to.time_ms, int):
            return context.store.reads.offset_by_time(topic, queue_id, to.time_ms)
        return low if to.position == "earliest" else high

    return of


def _enabled(config: SubscriptionGroup | None) -> bool:
    return config is None or config.consume_enable


def _connected(name: str, members: dict[str, Member]) -> ConnectionItem:
    return ConnectionItem(name=name, clients=_clients(list(members.values())))


def _clients(
    members: list[Member], differences: Mapping[str, list[Difference]] = NO_DIFFERENCES
) -> list[ClientView]:
    return [
        ClientView(
            client_id=member.client_id,
            address=member.connection.peer_address,
            language=LanguageCode(member.language).name,
            version=member.version,
            version_name=version_name(member.version),
            differs=[
                SubscriptionDifferenceView(**one._asdict())
                for one in differences.get(member.client_id, ())[:DIFFERENCES_MAX]
            ],
        )
        for member in members[:CLIENTS_PER_GROUP_MAX]
    ]
