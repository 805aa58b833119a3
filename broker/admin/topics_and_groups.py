"""Changes of topics and subscription groups through the log, for wire and HTTP.

A change is answered once it is committed and applied, so it survives a failover.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from raftmq.ops.versions import Condition
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.names import RETRY_PREFIX, TRACE_TOPIC, pop_retry_topic
from raftmq.remoting.topic_attributes import MIXED, AttributesRefused, changed

from ..component import Service
from ..consume.offset_commits import CommitService
from ..context import Context
from ..errors import ConditionUnmet, Refused, busy, forbidden
from ..scheduler import IDLE_MS, Chore
from ..tables.groups import SubscriptionGroup
from ..tables.state import (
    delete_group,
    delete_topic,
    forget_offsets,
    put_group,
    put_topic,
    several,
)
from ..tables.topics import SYSTEM_TOPICS, TopicConfig, attributes_of, topic_problem
from .progress import Steps

log = logging.getLogger("raftmq.broker.catalog")

TOGETHER_MAX = 1_000  # topics or groups per request
TRACE_TOPIC_PERIOD_MS = 1_000  # between two attempts
NO_CHANGES: Mapping[str, str] = MappingProxyType({})


class Emptied(NamedTuple):
    """The messages of an emptied topic, and the groups with offsets in it."""

    messages: int
    groups: list[str]


class Catalog:
    """Creates, changes and deletes topics and groups. A `condition` requires a version of the
    resource. All methods raise Refused (ConditionUnmet for a failed condition) and RaftError.

    A topic keeps the attributes that a change does not name. Changes of topics are therefore
    serial, each based on the previous state. Offsets and pops decided before a deletion also
    precede it in the log."""

    def __init__(
        self,
        context: Context,
        commits: CommitService,
        pops_settled: Callable[[], Awaitable[None]],
        spread: Callable[[], Awaitable[None]],
    ) -> None:
        """`pops_settled()` returns once all pop changes decided before are applied. `spread()`
        returns once the name servers have the topics, or after a time limit."""
        self._config = context.config
        self._state = context.state
        self._queues = context.store.queues
        self._roles = context.roles
        self._log = context.log
        self._commits = commits
        self._pops_settled = pops_settled
        self._spread = spread
        self._one_at_a_time = asyncio.Lock()

    def service(self) -> Service:
        return Service(
            chores=[
                Chore(
                    "trace_topic",
                    TRACE_TOPIC_PERIOD_MS,
                    self._create_trace_topic,
                    lambda: 0 if self._trace_topic_is_missing() else IDLE_MS,
                )
            ]
        )

    def _trace_topic_is_missing(self) -> bool:
        roles = self._roles
        enabled = self._config.trace_topic_enable and roles.leading and not roles.joining
        return enabled and self._state.topics.get(TRACE_TOPIC) is None

    def _create_trace_topic(self) -> None:
        """Create the topic of traces: clients cannot, and send traces only if it exists."""
        if self._trace_topic_is_missing():
            topic = TopicConfig(TRACE_TOPIC, 1, 1)
            self._log.propose_then(put_topic(topic, if_absent=True), _trace_topic_created)

    async def change_topic(
        self,
        topic: TopicConfig,
        condition: Condition | None = None,
        changes: Mapping[str, str] = NO_CHANGES,
        *,
        keep_messages: bool = False,
    ) -> TopicConfig:
        """Create or change a topic; return it. `changes` are its attributes by signed name
        (remoting.topic_attributes); attributes in `topic` are ignored. `keep_messages` shows the
        messages of a deleted topic of this name again."""
        async with self._one_at_a_time:
            changed = self._changed(topic, changes, 1)
            await self._propose_if(
                put_topic(changed, keep_messages=keep_messages, condition=condition)
            )
        await self._spread()
        return changed

    async def change_topics(self, topics: Sequence[tuple[TopicConfig, Mapping[str, str]]]) -> None:
        """Create or change several topics and their attributes, all or none."""
        check_count(len(topics), "topics")
        if not topics:
            return
        async with self._one_at_a_time:
            changed = [self._changed(topic, changes, len(topics)) for topic, changes in topics]
            await self._log.propose(several([put_topic(topic) for topic in changed]))
        await self._spread()

    def _changed(self, topic: TopicConfig, changes: Mapping[str, str], count: int) -> TopicConfig:
        """Return the topic with changed attributes, if `count` may be created. Raises Refused."""
        problem = topic_problem(topic)
        if problem or topic.name in self._reserved():
            raise Refused(
                ResponseCode.SYSTEM_ERROR, problem or f"topic [{topic.name}] is the system's"
            )
        before = self._state.topics.get(topic.name)
        self._check_not_draining(before is None)
        if before is not None:
            self._check_consumed(before, topic.read_queue_count)
        topics_max = self._config.topics_max
        if before is None and not self._state.has_room_for_topics(count, topics_max):
            raise busy(f"there are {topics_max} topics")
        try:
            after = changed(None if before is None else dict(before.attributes), changes)
        except AttributesRefused as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        result = replace(topic, attributes=attributes_of(after))
        if changes and result.message_type == MIXED and not self._config.enable_mixed_message_type:
            raise Refused(ResponseCode.SYSTEM_ERROR, "MIXED message type is not supported.")
        return result

    def _check_consumed(self, topic: TopicConfig, read_queue_count: int) -> None:
        """Reject a reduction of the read queues while the removed queues have unconsumed messages,
        which consumers and lags would no longer include."""
        offsets = self._state.offsets
        groups = offsets.groups_of(topic.name)
        left: dict[int, list[str]] = {}
        for queue_id in range(read_queue_count, topic.read_queue_count):
            queue = self._queues.queue(topic.name, queue_id)
            if queue is None or queue.min_offset >= queue.max_offset:
                continue
            behind = [
                group
                for group in groups
                if (offsets.get(topic.name, group, queue_id) or 0) < queue.max_offset
            ]
            if behind or not groups:
                left[queue_id] = behind
        if left:
            names = sorted({group for behind in left.values() for group in behind})
            whom = f"groups {', '.join(names)} have" if names else "no group has"
            what = "not consumed" if names else "consumed"
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"queues {', '.join(map(str, left))} of topic [{topic.name}] have messages that"
                f" {whom} {what}: lower writeQueueNums now, and readQueueNums when they are"
                " consumed",
                tag="NOT_CONSUMED",
            )

    async def remove_topic(self, name: str, condition: Condition | None = None) -> None:
        """Delete a topic, its offsets, and its pops' retry topics, as Apache's brokers do."""
        self._refuse_reserved(name)
        retries = self._retry_topics(name)
        async with self._nothing_behind(name, *retries):
            await self._propose_if(delete_topic(name, condition=condition))
            rest = [delete_topic(one) for one in retries]
            if condition is not None:
                rest.append(forget_offsets(topic=name))
            if rest:
                await self._log.propose(several(rest))

    async def empty_topic(self, name: str) -> Emptied:
        """Delete a topic and create it again unchanged; return the removed content."""
        self._refuse_reserved(name)
        retries = self._retry_topics(name)
        async with self._nothing_behind(name, *retries):
            topic = self._state.topics.existing(name)
            messages, steps = 0, Steps()
            for queue_id in range(topic.queue_count):
                queue = self._queues.queue(name, queue_id)
                messages += 0 if queue is None else queue.max_offset - queue.min_offset
                await steps.done()
            groups = self._state.offsets.groups_of(name)
            commands = [delete_topic(one) for one in (name, *retries)]
            await self._log.propose(several([*commands, put_topic(topic)]))
        return Emptied(messages, groups)

    def _refuse_reserved(self, name: str) -> None:
        if name in self._reserved():
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topic [{name}] is the system's")

    def _retry_topics(self, topic: str) -> list[str]:
        """Return the retry topics of the groups that pop the topic, except those shared with a
        different pair. Group `a` of topic `b_c` shares its name with `a_b` of `c`."""
        offsets, names = self._state.offsets, []
        for group in offsets.groups_of(topic):
            name = pop_retry_topic(topic, group)
            both = name.removeprefix(RETRY_PREFIX)
            pairs = ((both[n + 1 :], both[:n]) for n, one in enumerate(both) if one == "_")
            shared = any(pair in offsets.offsets and pair != (topic, group) for pair in pairs)
            if name in self._state.topics.entries and not shared:
                names.append(name)
        return names

    @asynccontextmanager
    async def _nothing_behind(self, *topics: str, group: str = "") -> AsyncIterator[None]:
        """Keep offsets and pops of these topics, or of this group, from following their deletion in
        the log, which the block proposes."""
        async with self._one_at_a_time:
            with ExitStack() as withheld:
                for topic in topics or ("",):
                    withheld.enter_context(self._commits.withheld(topic=topic, group=group))
                await self._pops_settled()
                yield

    async def change_group(
        self, group: SubscriptionGroup, condition: Condition | None = None
    ) -> None:
        self._check_room([group])
        await self._propose_if(put_group(group, condition=condition))

    async def change_groups(self, groups: Sequence[SubscriptionGroup]) -> None:
        check_count(len(groups), "groups")
        if groups:
            self._check_room(groups)
            await self._log.propose(several([put_group(group) for group in groups]))

    def _check_room(self, groups: Sequence[SubscriptionGroup]) -> None:
        """Reject groups above `groupsMax`."""
        known = self._state.groups.entries
        new = sum(group.name not in known for group in groups)
        self._check_not_draining(new > 0)
        if new and len(known) + new > self._config.groups_max:
            raise busy(f"there are {self._config.groups_max} consumer groups already")

    def _check_not_draining(self, is_new: bool) -> None:
        if is_new and self._state.group.draining_ms:
            raise forbidden("the broker group is draining: create topics and groups elsewhere")

    async def remove_group(
        self, name: str, *, offsets: bool, condition: Condition | None = None
    ) -> None:
        """Delete a group; `offsets` also deletes its offsets."""
        command = delete_group(name, offsets=offsets, condition=condition)
        if not offsets:
            await self._propose_if(command)
            return
        async with self._nothing_behind(group=name):
            await self._propose_if(command)
            if condition is not None:
                await self._log.propose(forget_offsets(group=name))

    async def _propose_if(self, command: bytes) -> None:
        """Propose a command. Raises ConditionUnmet if its condition failed at the apply."""
        index = await self._log.propose(command)
        if index in self._state.unmet:
            raise ConditionUnmet(self._state.unmet.pop(index))

    def system_topics(self) -> list[str]:
        """Return the names of the broker's own topics, which clients may not change."""
        return sorted(self._reserved() | set(self._state.topics.internal))

    def _reserved(self) -> frozenset[str]:
        return SYSTEM_TOPICS | {self._config.broker_cluster_name, self._config.broker_name}


def _trace_topic_created(error: Exception | None) -> None:
    if error is not None:  # the chore retries
        log.info("trace_topic_not_created: %s", error)


def check_count(count: int, what: str) -> None:
    """Raise Refused if a request has too many topics or groups."""
    if count > TOGETHER_MAX:
        reason = f"{count} {what} in one request: {TOGETHER_MAX} at most"
        raise Refused(ResponseCode.SYSTEM_ERROR, reason, tag="TOO_LARGE")
