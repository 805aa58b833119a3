"""Changes topics and subscription groups, through the log.

A change is answered once it is committed and applied, so what was answered survives a failover
exactly. The handlers of the wire protocol and the HTTP operations both call this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from raftmq.broker.context import Context
from raftmq.broker.errors import ConditionUnmet, Refused, busy
from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.state import (
    delete_group,
    delete_topic,
    forget_offsets,
    put_group,
    put_topic,
)
from raftmq.broker.tables.topics import SYSTEM_TOPICS, TopicConfig, topic_problem
from raftmq.ops.versions import Condition
from raftmq.remoting.codes import ResponseCode


class Catalog:
    """Creates, changes and deletes topics and groups; one per broker. With a `condition`, a change
    is made only if the resource has the expected version. All methods raise Refused (if the
    condition is not met, ConditionUnmet) and RaftError."""

    def __init__(self, context: Context, spread: Callable[[], Awaitable[None]]) -> None:
        """`spread()` returns when the name servers know the topics, or after a while."""
        self._config = context.config
        self._state = context.state
        self._log = context.log
        self._spread = spread

    async def change_topic(self, topic: TopicConfig, condition: Condition | None = None) -> None:
        """Create or change a topic."""
        problem = topic_problem(topic)
        if problem or topic.name in self._reserved():
            raise Refused(
                ResponseCode.SYSTEM_ERROR, problem or f"topic [{topic.name}] is the system's"
            )
        if (
            self._state.topics.get(topic.name) is None
            and len(self._state.topics.entries) >= self._config.topics_max
        ):
            raise busy(f"there are {self._config.topics_max} topics")
        await self._propose_if(put_topic(topic, condition=condition))
        await self._spread()

    async def remove_topic(self, name: str, condition: Condition | None = None) -> None:
        """Delete a topic and the offsets committed for it."""
        if name in self._reserved():
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topic [{name}] is the system's")
        await self._propose_if(delete_topic(name, condition=condition))
        if condition is not None:
            await self._log.propose(forget_offsets(topic=name))

    async def change_group(
        self, group: SubscriptionGroup, condition: Condition | None = None
    ) -> None:
        """Create or change a group."""
        await self._propose_if(put_group(group, condition=condition))

    async def remove_group(
        self, name: str, *, offsets: bool, condition: Condition | None = None
    ) -> None:
        """Delete a group; with `offsets` its offsets, too."""
        await self._propose_if(delete_group(name, offsets=offsets, condition=condition))
        if condition is not None and offsets:
            await self._log.propose(forget_offsets(group=name))

    async def _propose_if(self, command: bytes) -> None:
        """Propose a command that may be conditional. Raises ConditionUnmet if its condition was
        not met where it was applied."""
        index = await self._log.propose(command)
        if index in self._state.unmet:
            raise ConditionUnmet(self._state.unmet.pop(index))

    def _reserved(self) -> frozenset[str]:
        return SYSTEM_TOPICS | {self._config.broker_cluster_name, self._config.broker_name}
