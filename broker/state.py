"""The replicated state beside the log: topics, groups and offsets as command frames.

A command frame's payload is one JSON object; `op` says which:

    {"op":"put_topic","topic":TopicConfig,"if_absent":bool}
    {"op":"delete_topic","topic":name}                 also forgets the topic's consumer offsets
    {"op":"put_group","group":SubscriptionGroupConfig,"if_absent":bool}
    {"op":"delete_group","group":name,"offsets":bool}  `offsets`: forget the group's offsets too
    {"op":"commit_offsets","commits":[[topic,group,queue_id,offset],…]}
    {"op":"announce","node":id,"address":host:port}    a new leader says where clients reach it;
                                                       in no snapshot, every leader says it again

`BrokerState.apply` is a pure function of the frames before: every replica that applied up to the
same index holds the same tables. Each table knows the last index it reflects and ignores frames at
or below it, so snapshots of the three may be of different ages and replay starts at the oldest.
A command that cannot be understood raises StateError, which stops the replica: going on would
make it differ from the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from broker.errors import StateError
from broker.groups import GroupTable, SubscriptionGroup, group_from_json
from broker.offsets import Commit, OffsetTable
from broker.topics import TopicConfig, TopicTable, topic_from_json


@dataclass(frozen=True, slots=True)
class Change:
    """What an applied command changed, for whoever has to tell others about it."""

    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


NOTHING = Change()


class BrokerState:
    """The three tables and the one way to change them."""

    def __init__(self) -> None:
        self.topics = TopicTable()
        self.groups = GroupTable()
        self.offsets = OffsetTable()
        self.damaged: list[str] = []  # files of a snapshot that could not be read
        self.addresses: dict[str, str] = {}  # node id → client address; bounded by the voters

    @property
    def applied_index(self) -> int:
        """Every table reflects at least this index."""
        return min(self.topics.applied_index, self.groups.applied_index, self.offsets.applied_index)

    def clear(self) -> None:
        """As at the very beginning."""
        empty = BrokerState()
        for table, new in (
            (self.topics, empty.topics),
            (self.groups, empty.groups),
            (self.offsets, empty.offsets),
        ):
            table.load(new.to_json(), 0)

    def apply(self, index: int, timestamp_ms: int, payload: bytes | memoryview) -> Change:
        """Apply the command frame `index`. Raises StateError."""
        command = decode_command_payload(payload)
        change = NOTHING
        try:
            change = self._apply(command, index, timestamp_ms)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"command at index {index}: {command!r}: {error!r}") from error
        self.advance(index)
        return change

    def advance(self, index: int) -> None:
        """Every frame up to `index` was applied; those that are no commands change nothing."""
        for table in (self.topics, self.groups, self.offsets):
            if table.applied_index < index:
                table.applied_index = index

    def _apply(self, command: dict[str, Any], index: int, now_ms: int) -> Change:
        op = command["op"]
        topics_due = index > self.topics.applied_index
        groups_due = index > self.groups.applied_index
        offsets_due = index > self.offsets.applied_index
        if op == "commit_offsets":
            if offsets_due:
                self.offsets.commit((t, g, int(q), int(o)) for t, g, q, o in command["commits"])
            return NOTHING
        if op == "announce":
            self.addresses[str(command["node"])] = str(command["address"])
            return NOTHING
        if op == "put_topic":
            topic = topic_from_json(command["topic"])
            absent = bool(command["if_absent"])
            done = topics_due and self.topics.put(topic, now_ms, if_absent=absent)
            return Change(topics=(topic.name,)) if done else NOTHING
        if op == "delete_topic":
            name = str(command["topic"])
            if offsets_due:
                self.offsets.delete_topic(name)
            done = topics_due and self.topics.delete(name, now_ms)
            return Change(topics=(name,)) if done else NOTHING
        if op == "put_group":
            group = group_from_json(command["group"])
            absent = bool(command["if_absent"])
            done = groups_due and self.groups.put(group, now_ms, if_absent=absent)
            return Change(groups=(group.name,)) if done else NOTHING
        if op == "delete_group":
            name = str(command["group"])
            if offsets_due and command["offsets"]:
                self.offsets.delete_group(name)
            done = groups_due and self.groups.delete(name, now_ms)
            return Change(groups=(name,)) if done else NOTHING
        raise StateError(f"command at index {index}: unknown op {op!r}")


def decode_command_payload(payload: bytes | memoryview) -> dict[str, Any]:
    """The JSON object of a command frame. Raises StateError."""
    try:
        command = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise StateError(f"a command frame is not JSON: {error}") from error
    if not isinstance(command, dict):
        raise StateError(f"a command frame is not an object: {command!r}")
    return command


def put_topic(topic: TopicConfig, *, if_absent: bool = False) -> bytes:
    return orjson.dumps({"op": "put_topic", "topic": topic.to_json(), "if_absent": if_absent})


def delete_topic(name: str) -> bytes:
    return orjson.dumps({"op": "delete_topic", "topic": name})


def put_group(group: SubscriptionGroup, *, if_absent: bool = False) -> bytes:
    return orjson.dumps({"op": "put_group", "group": group.to_json(), "if_absent": if_absent})


def delete_group(name: str, *, offsets: bool) -> bytes:
    return orjson.dumps({"op": "delete_group", "group": name, "offsets": offsets})


def announce(node: str, address: str) -> bytes:
    return orjson.dumps({"op": "announce", "node": node, "address": address})


def commit_offsets(commits: list[Commit]) -> bytes:
    return orjson.dumps({"op": "commit_offsets", "commits": commits})
