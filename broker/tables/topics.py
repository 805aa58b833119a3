"""The configuration of topics, the rules for their names, and their replicated table.

Only applied command frames change it (broker.tables.state). The snapshot is Apache's topics.json
with its Raft index. The data version's time is the frame's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raftmq.remoting import names
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.topic_attributes import MESSAGE_TYPE, NORMAL

from ..errors import Refused, StateError
from .versioned import VersionedTable, entries_of

PERM_READ = 4
PERM_WRITE = 2
PERM_INHERIT = 1

DEFAULT_TOPIC = names.DEFAULT_TOPIC
RETRY_PREFIX = names.RETRY_PREFIX
DLQ_PREFIX = names.DLQ_PREFIX
DERIVED_TOPIC_LENGTH_MAX = names.DERIVED_TOPIC_LENGTH_MAX
topic_name_problem = names.topic_name_problem
QUEUE_COUNT_MAX = 65_536
STARTS_MAX = 10_000  # deleted topics; beyond the limit, a recreated topic shows its old messages
STARTS_KEY = "messagesBegin"

NO_SEND_TOPICS = names.NO_SEND_TOPICS
SYSTEM_TOPICS = names.SYSTEM_TOPICS


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic. The bits of perm are 4 read, 2 write, 1 inherit."""

    name: str
    read_queue_count: int = 16
    write_queue_count: int = 16
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: tuple[tuple[str, str], ...] = ()  # by name (remoting.topic_attributes)

    @property
    def message_type(self) -> str:
        return dict(self.attributes).get(MESSAGE_TYPE, NORMAL)

    @property
    def queue_count(self) -> int:
        return max(self.read_queue_count, self.write_queue_count)

    @property
    def readable(self) -> bool:
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def to_json(self) -> dict[str, Any]:
        """Return Apache's TopicConfig bean."""
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_count,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queue_count,
        }


def topic_from_json(value: Mapping[str, Any]) -> TopicConfig:
    """Read Apache's bean. Raises StateError for a missing or invalid field."""
    topic = _read(value)
    _refuse(topic_problem(topic))
    return topic


def stored_topic(value: Mapping[str, Any]) -> TopicConfig:
    """Read the bean of an existing topic. Topics named after the broker or cluster may have further
    characters, and Apache's tables may have topics without queues. Raises StateError."""
    topic = _read(value)
    _refuse(names.name_problem("topic name", topic.name) or _range_problem(topic))
    return topic


def _refuse(problem: str) -> None:
    if problem:
        raise StateError(problem)


def _read(value: Mapping[str, Any]) -> TopicConfig:
    try:
        return TopicConfig(
            name=str(value["topicName"]),
            read_queue_count=int(value["readQueueNums"]),
            write_queue_count=int(value["writeQueueNums"]),
            perm=int(value.get("perm", 6)),
            filter_type=str(value.get("topicFilterType") or "SINGLE_TAG"),
            sys_flag=int(value.get("topicSysFlag", 0)),
            order=bool(value.get("order", False)),
            attributes=attributes_of(value.get("attributes") or {}),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"not a topic configuration: {value!r}: {error!r}") from error


def attributes_of(value: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return attributes in a fixed order for TopicConfig, including unknown names."""
    return tuple(sorted((str(name), str(text)) for name, text in value.items()))


def topic_problem(topic: TopicConfig) -> str:
    """Return why this configuration is invalid, or ''."""
    if topic.queue_count == 0:
        return f"topic {topic.name}: has no queue"
    return topic_name_problem(topic.name) or _range_problem(topic)


def _range_problem(topic: TopicConfig) -> str:
    for count in (topic.read_queue_count, topic.write_queue_count):
        if not 0 <= count <= QUEUE_COUNT_MAX:
            return f"topic {topic.name}: queue count {count} is not in 0..{QUEUE_COUNT_MAX}"
    if not 0 <= topic.perm <= 15:
        return f"topic {topic.name}: perm {topic.perm} is not in 0..15"
    return ""


def auto_created(name: str, client_queue_count: int, default_queue_count: int) -> TopicConfig:
    """Return the topic created by a send to an unknown topic, by Apache's rule."""
    count = max(1, min(client_queue_count, default_queue_count))
    return TopicConfig(name, count, count, PERM_READ | PERM_WRITE)


def retry_topic(group: str, queue_count: int = 1) -> TopicConfig:
    return TopicConfig(RETRY_PREFIX + group, queue_count, queue_count, PERM_READ | PERM_WRITE)


class TopicTable(VersionedTable[TopicConfig]):
    """Name → TopicConfig, in JSON Apache's TopicConfigSerializeWrapper (topics.json and the answer
    to 21).

    `starts` has the CommitLog offset before which messages of a deleted topic are hidden, also
    after it was created again. The JSON has it only if it is not empty."""

    def __init__(self) -> None:
        super().__init__("topicConfigTable", topic_from_json, stored_from_json=stored_topic)
        # The broker's own topics, which follow from the configuration and are in no command or
        # snapshot.
        self.internal: dict[str, TopicConfig] = {}
        self.starts: dict[str, int] = {}

    def restart_at(self, name: str, position: int) -> None:
        """Hide messages before this CommitLog offset, because the topic was deleted. Above
        STARTS_MAX the oldest deletions are dropped."""
        self.starts.pop(name, None)
        self.starts[name] = position
        if len(self.starts) > STARTS_MAX + len(self.entries):
            del self.starts[next(one for one in self.starts if one not in self.entries)]

    def also(self) -> Mapping[str, Any]:
        starts = {STARTS_KEY: self.starts} if self.starts else {}
        return {**super().also(), **starts}

    def own(self) -> None:
        super().own()
        self.starts = dict(self.starts)

    def load(
        self,
        value: Mapping[str, Any],
        applied_index: int,
        refused: dict[str, str] | None = None,
    ) -> None:
        starts = entries_of(value.get(STARTS_KEY) or {}, lambda _, at: int(at), refused)
        super().load(value, applied_index, refused)
        self.starts.clear()  # the store has this mapping
        self.starts.update(starts)

    def get(self, name: str) -> TopicConfig | None:
        return self.internal.get(name) or self.entries.get(name)

    def existing(self, name: str) -> TopicConfig:
        """Return the topic. Raises Refused if there is none."""
        topic = self.internal.get(name) or self.entries.get(name)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic
