"""The topics that a broker registers with name servers, all or the changed.

Pure.
"""

from __future__ import annotations

from raftmq.remoting.registration import DataVersion
from raftmq.remoting.registration import TopicConfig as RegisteredTopic
from raftmq.remoting.topic_attributes import MESSAGE_TYPE

from .tables.broker_group import BrokerGroupTable
from .tables.topics import PERM_WRITE, TopicConfig, TopicTable

DRAINING = 1  # state version of a draining group's topics, which differ in their permission


class RegisteredTopics:
    """A view of the topic table, and of the template for created topics. The topics of a draining
    group are not writable."""

    def __init__(
        self, table: TopicTable, template: TopicConfig | None, group: BrokerGroupTable
    ) -> None:
        self._table = table
        self._template = template
        self._group = group

    @property
    def version(self) -> DataVersion:
        state = DRAINING if self._group.draining_ms else 0
        return DataVersion(self._table.counter, state, self._table.timestamp_ms)

    def all(self) -> list[RegisteredTopic]:
        table, template = self._table.entries, self._template
        topics = list((table | self._table.internal).values())
        if template is not None and template.name not in table:
            topics.append(template)
        return [self._registered(topic) for topic in topics]

    def since(self, base: DataVersion) -> list[RegisteredTopic] | None:
        """Return the topics changed since version `base`, deleted topics without queues. Return
        None if these changes are no longer recorded."""
        names = self._table.changed_since(base.counter, base.timestamp_ms)
        if names is None or base.state_version != self.version.state_version:
            return None
        return [self._one(name) for name in sorted(names)]

    def _one(self, name: str) -> RegisteredTopic:
        topic = self._table.get(name)
        template = self._template
        if topic is None and template is not None and template.name == name:
            topic = template
        return RegisteredTopic(name, 0, 0, 0) if topic is None else self._registered(topic)

    def _registered(self, topic: TopicConfig) -> RegisteredTopic:
        return RegisteredTopic(
            topic.name,
            topic.read_queue_count,
            topic.write_queue_count,
            topic.perm & ~PERM_WRITE if self._group.draining_ms else topic.perm,
            topic.sys_flag,
            topic.filter_type,
            topic.order,
            dict(topic.attributes).get(MESSAGE_TYPE, ""),
        )
