"""The replicated state beside the log, changed by command frames.

A command frame's payload is one JSON object. A message frame may begin with such a command, too;
then it is applied when the frame's records become visible. `op` says which command it is:

    {"op":"group_id",…}, drain, move, …      see broker.tables.broker_group
    {"op":"adopt","topics":[[TopicConfig,created_ms],…],"groups":[[config,created_ms],…],
     "readers":[[topic,queue count,[group,…]],…],"deletedTopics":{name:ms},
     "deletedGroups":{name:ms},"versions":{…},"more":bool}
                                                       definitions of other broker groups (broker.
                                                       cluster), each only where it does not exist
                                                       and was not deleted after its creation;
                                                       readers without an offset get offset 0
    {"op":"put_topic","topic":TopicConfig,"if_absent":bool,"keep_messages":bool}
                                                       `keep_messages`, which may be absent: show
                                                       those of a topic that was deleted, too
    {"op":"delete_topic","topic":name}                 also forgets the topic's consumer offsets,
                                                       and hides its messages
    {"op":"put_group","group":SubscriptionGroupConfig,"if_absent":bool}
    {"op":"delete_group","group":name,"offsets":bool}  `offsets`: forget the group's offsets too
    {"op":"commit_offsets","commits":[[topic,group,queue_id,offset],…]}
    {"op":"reset_offsets","resets":[[topic,group,queue_id,offset],…]}   see broker.tables.offsets
    {"op":"reset_taken","reset":[topic,group,queue_id,offset]}
    {"op":"lock_queues","changes":[{"group":g,"client":id|null,"queues":{topic:[queue_id,…]}},…],
     "renewals":{"term":n,"fresh":bool,"ages":[[ms,group,{topic:[queue_id,…]}],…]}}
                                                       see broker.consume.queue_locks; renewals may
                                                       be absent
    {"op":"announce","node":id,"address":host:port,"http":host:port}
                                                       a new leader says where clients reach it, and
                                                       its HTTP API (may be absent or ""); in no
                                                       snapshot, every leader says it again
    {"op":"forget_offsets","topic":name}, {…,"group":name}
    {"op":"delay_progress","level":n,"offset":o}       the level's messages before o are delivered
    {"op":"timer_progress","due_ms":t,"offset":o,"end":e,"floor":f}
                                                       see broker.tables.timer_wheel.Progress
    {"op":"sent_once",…}                               see broker.tables.idempotent_sends
    {"op":"open_writer",…}, wrote, delete_writer       see broker.tables.writers
    {"op":"pop","steps":[…]}                           see broker.tables.pops
    {"op":"acl_…",…}                                   see broker.tables.acl
    {"op":"several","commands":[command,…]}            one after the other, at one index

put_topic, delete_topic, put_group and delete_group may carry "if": {"versions":[…],"absent":bool},
an ops.versions.Condition: it is compared where the command is applied, with the entry as all the
frames before have left it, so nobody's change is lost between reading and writing. If it is not met
the command changes nothing, and `unmet` says so. A conditional delete leaves the offsets alone
(their table may be ahead or behind when frames are replayed): forget_offsets follows it.

`BrokerState.apply` is a pure function of the frames before: every replica that applied up to the
same index holds the same tables. Each table knows the last index it reflects and ignores frames at
or below it, so snapshots of them may be of different ages and replay starts at the oldest. A
command that cannot be understood raises StateError, which stops the replica: going on would make it
differ from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from raftmq.ops.versions import Condition, version_of
from raftmq.remoting.codes import ResponseCode

from ..errors import Refused, StateError
from .acl import COMMANDS as ACL_COMMANDS
from .acl import AclTable
from .broker_group import COMMANDS as GROUP_COMMANDS
from .broker_group import BrokerGroupTable
from .delay_offsets import DelayOffsets
from .groups import GroupTable, SubscriptionGroup, group_problem
from .idempotent_sends import SentOnce
from .offsets import Commit, OffsetTable
from .pops import COMMAND as POP
from .pops import PopTable
from .queue_locks import OwnerChange, Renewals
from .timer_wheel import Progress, progress_from_json
from .topics import TopicConfig, TopicTable, topic_problem
from .versioned import Entry, VersionedTable
from .writers import COMMANDS as WRITER_COMMANDS
from .writers import WriterTable

Table = (
    BrokerGroupTable
    | TopicTable
    | GroupTable
    | OffsetTable
    | DelayOffsets
    | SentOnce
    | AclTable
    | WriterTable
    | PopTable
)
AnyTable = VersionedTable[Any]
# Commands that change only the table of offsets.
OFFSET_COMMANDS = (
    "commit_offsets", "reset_offsets", "reset_taken", "lock_queues", "forget_offsets",
)  # fmt: skip
COMMANDS = frozenset(
    (
        *("put_topic", "delete_topic", "put_group", "delete_group", "adopt", "announce"),
        *("delay_progress", "timer_progress", "sent_once", "several", POP),
        *(*OFFSET_COMMANDS, *GROUP_COMMANDS, *WRITER_COMMANDS, *ACL_COMMANDS),
    )
)
UNMET_MAX = 1_000  # a proposer asks right after its command was applied


@dataclass(frozen=True, slots=True)
class Change:
    """The names changed by an applied command."""

    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


NOTHING = Change()


class BrokerState:
    """The tables, changed only by `apply`."""

    def __init__(self) -> None:
        self.group = BrokerGroupTable()
        self.topics = TopicTable()
        self.groups = GroupTable()
        self.offsets = OffsetTable()
        self.delays = DelayOffsets()
        self.once = SentOnce()
        self.acl = AclTable()
        self.writers = WriterTable()
        self.pops = PopTable()
        self.damaged: list[str] = []  # unreadable files of a snapshot
        # Classic mode's files → omitted entries with reasons.
        self.refused: dict[str, dict[str, str]] = {}
        self.addresses: dict[str, str] = {}  # node id → client address; limited by the voters
        self.http_addresses: dict[str, str] = {}  # node id → HTTP API, or ""
        # Index of a command with a failed condition → the version found.
        self.unmet: dict[int, str | None] = {}

    @property
    def applied_index(self) -> int:
        """The lowest index of all tables."""
        return min([table.applied_index for table in self.tables])

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, in the order of broker.tables.snapshot's files."""
        return (
            self.pops,
            self.writers,
            self.group,
            self.topics,
            self.groups,
            self.offsets,
            self.delays,
            self.once,
            self.acl,
        )

    def position(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the group's offset in a queue, where also a pop starts, or None.

        A pending reset decides. Otherwise it is the later of the last commit and the last pop. A
        group that pops in order has the first unacknowledged message."""
        offset = self.offsets.get(topic, group, queue_id)
        queue = self.pops.get((topic, group, queue_id))
        if queue is None or queue.is_orderly:
            return offset
        if self.offsets.reset_of(topic, group, queue_id) is not None:
            return offset
        return max(queue.next, offset or 0)

    def progress(self, topic: str, group: str, queue_id: int) -> tuple[int | None, int]:
        """Return a group's offset in a queue, or None, and the number of pops before it."""
        position = self.position(topic, group, queue_id)
        queue = self.pops.get((topic, group, queue_id))
        if queue is None:
            return position, 0
        if queue.is_orderly:
            position = max(queue.next, position or 0)
        return position, queue.in_flight

    def has_room_for_topics(self, count: int, topics_max: int) -> bool:
        """Return whether `count` more topics are permitted, besides a topic for each group."""
        return len(self.topics.entries) - len(self.groups.entries) + count <= topics_max

    def clear(self) -> None:
        empty = BrokerState()
        for table, new in zip(self.tables, empty.tables, strict=True):
            table.load(new.to_json(), 0)

    def take_back(self, index: int) -> None:
        """Record that the log lost the frames behind `index`, with an engine that breaks Raft's
        promise. Their indexes are reused, but their changes stay."""
        for table in self.tables:
            table.applied_index = min(table.applied_index, index)
        self.unmet = {at: version for at, version in self.unmet.items() if at <= index}

    def apply(
        self, index: int, timestamp_ms: int, payload: bytes | memoryview, records_at: int = 0
    ) -> Change:
        """Apply frame `index`, whose records start at `records_at`. Raises StateError."""
        command = decode_command_payload(payload)
        commands = command["commands"] if command.get("op") == "several" else [command]
        topics: list[str] = []
        groups: list[str] = []
        try:
            for command in commands:
                if command["op"] == "sent_once":
                    if index > self.once.applied_index:
                        self.once.take(command, timestamp_ms, records_at)
                    continue
                change = self._apply(command, index, timestamp_ms, records_at)
                topics += change.topics
                groups += change.groups
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"command at index {index}: {command!r}: {error!r}") from error
        self.advance(index)
        return Change(tuple(topics), tuple(groups))

    def advance(self, index: int) -> None:
        """Record that every frame up to `index` was applied."""
        for table in self.tables:
            if table.applied_index < index:
                table.applied_index = index

    def _apply(self, command: dict[str, Any], index: int, now_ms: int, records_at: int) -> Change:
        op = command["op"]
        if op not in COMMANDS:
            raise StateError(f"command at index {index}: unknown op {op!r}")
        if op in ("put_topic", "delete_topic"):
            changed = self._change("topic", self.topics, command, index, now_ms)
            if op == "delete_topic" and changed:
                self.topics.restart_at(changed[0], records_at)
            elif command.get("keep_messages") and index > self.topics.applied_index:
                name = str(command["topic"]["topicName"])
                self.topics.starts.pop(name, None)
                changed = (name,)
            return Change(topics=changed)
        if op in ("put_group", "delete_group"):
            return Change(groups=self._change("group", self.groups, command, index, now_ms))
        if op == "adopt":
            topics = self._adopt(self.topics, command, "topics", "deletedTopics", index, now_ms)
            groups = self._adopt(self.groups, command, "groups", "deletedGroups", index, now_ms)
            if index > self.offsets.applied_index:
                self.offsets.start_readers(command["readers"])
            if index > self.group.applied_index:
                self.group.apply(command, now_ms)
            return Change(topics, groups)
        if op == "announce":
            node = str(command["node"])
            self.addresses[node] = str(command["address"])
            self.http_addresses[node] = str(command.get("http") or "")
        elif op in OFFSET_COMMANDS:
            if index > self.offsets.applied_index:
                self._apply_to_offsets(command)
            if index > self.pops.applied_index:
                self._apply_to_pops(command)
        elif op == POP:
            if index > self.offsets.applied_index:
                self.offsets.popped(command["steps"])
            if index > self.pops.applied_index:
                self.pops.apply(command)
        elif op in ("delay_progress", "timer_progress"):
            if index > self.delays.applied_index:
                self._apply_to_delays(command)
        elif op in GROUP_COMMANDS:
            if index > self.group.applied_index:
                self.group.apply(command, now_ms)
        elif op in WRITER_COMMANDS:
            if index > self.writers.applied_index:
                self.writers.apply(command, now_ms)
        elif op in ACL_COMMANDS:
            if index > self.acl.applied_index:
                self.acl.apply(command, now_ms)
        return NOTHING

    def _apply_to_offsets(self, command: dict[str, Any]) -> None:
        op, offsets = command["op"], self.offsets
        if op == "commit_offsets":
            offsets.commit((t, g, int(q), int(o)) for t, g, q, o in command["commits"])
        elif op == "reset_offsets":
            offsets.reset((t, g, int(q), int(o)) for t, g, q, o in command["resets"])
        elif op == "reset_taken":
            topic, group, queue_id, offset = command["reset"]
            offsets.reset_taken(topic, group, int(queue_id), int(offset))
        elif op == "lock_queues":
            offsets.locks.apply(command)
        elif "topic" in command:  # forget_offsets
            offsets.delete_topic(str(command["topic"]))
        else:
            offsets.delete_group(str(command["group"]))

    def _apply_to_pops(self, command: dict[str, Any]) -> None:
        if command["op"] == "reset_offsets":
            self.pops.reset(command["resets"])
        elif command["op"] == "forget_offsets":
            self.pops.delete(topic=command.get("topic", ""), group=command.get("group", ""))

    def _apply_to_delays(self, command: dict[str, Any]) -> None:
        if command["op"] == "delay_progress":
            self.delays.advance(int(command["level"]), int(command["offset"]))
        else:
            self.delays.advance_timer(progress_from_json(command))

    def _change(
        self, kind: str, table: AnyTable, command: dict[str, Any], index: int, now_ms: int
    ) -> tuple[str, ...]:
        """Put or delete a topic or group; return its name if the table changed."""
        due = index > table.applied_index
        if command["op"].startswith("put"):
            entry, if_absent = table.entry_from_json(command[kind]), bool(command["if_absent"])
            name = entry.name
            met = due and self._met(command, index, table.get(name))
            done = met and table.put(entry, now_ms, if_absent=if_absent)
        else:
            name = str(command[kind])
            if "if" not in command:
                if index > self.offsets.applied_index:
                    if kind == "topic":
                        self.offsets.delete_topic(name)
                    elif command["offsets"]:
                        self.offsets.delete_group(name)
                if index > self.pops.applied_index:
                    if kind == "topic":
                        self.pops.delete(topic=name)
                    elif command["offsets"]:
                        self.pops.delete(group=name)
            met = due and self._met(command, index, table.get(name))
            done = met and table.delete(name, now_ms)
        return (name,) if done else ()

    def _adopt(
        self,
        table: AnyTable,
        command: dict[str, Any],
        entries_key: str,
        deleted_key: str,
        index: int,
        now_ms: int,
    ) -> tuple[str, ...]:
        """Adopt another broker group's entries and deletions; return the created names."""
        if index <= table.applied_index:
            return ()
        for name, at_ms in command[deleted_key].items():
            table.record_deletion(str(name), int(at_ms))
        entries = ((table.entry_from_json(bean), int(ms)) for bean, ms in command[entries_key])
        return tuple(one.name for one, ms in entries if table.adopt(one, ms, now_ms))

    def _met(self, command: dict[str, Any], index: int, entry: Entry | None) -> bool:
        """Return whether the command's condition is met by the existing entry."""
        expected = command.get("if")
        if expected is None:
            return True
        version = None if entry is None else entry_version(entry)
        condition = Condition(tuple(map(str, expected["versions"])), bool(expected["absent"]))
        if condition.met_by(version):
            return True
        self.unmet[index] = version
        while len(self.unmet) > UNMET_MAX:
            del self.unmet[next(iter(self.unmet))]
        return False


def entry_version(entry: Entry) -> str:
    """Return the version of a topic or group, a function of its content."""
    return version_of(entry.to_json())


def decode_command_payload(payload: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object of a command frame. Raises StateError."""
    try:
        command = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise StateError(f"a command frame is not JSON: {error}") from error
    if not isinstance(command, dict):
        raise StateError(f"a command frame is not an object: {command!r}")
    return command


def several(commands: Sequence[bytes]) -> bytes:
    """Combine commands into one; none may be a `several` itself."""
    if len(commands) == 1:
        return commands[0]
    return b'{"op":"several","commands":[' + b",".join(commands) + b"]}"


def put_topic(
    topic: TopicConfig,
    *,
    if_absent: bool = False,
    keep_messages: bool = False,
    condition: Condition | None = None,
) -> bytes:
    """Build the command. Raises Refused for a topic that `apply` would reject, because that would
    stop every replica."""
    _refuse(topic_problem(topic))
    command = {"op": "put_topic", "topic": topic.to_json(), "if_absent": if_absent}
    kept = {"keep_messages": True} if keep_messages else {}
    return orjson.dumps(command | kept | _if(condition))


def _refuse(problem: str) -> None:
    if problem:
        raise Refused(ResponseCode.SYSTEM_ERROR, problem)


def delete_topic(name: str, *, condition: Condition | None = None) -> bytes:
    return orjson.dumps({"op": "delete_topic", "topic": name} | _if(condition))


def put_group(
    group: SubscriptionGroup, *, if_absent: bool = False, condition: Condition | None = None
) -> bytes:
    """Build the command. Raises Refused for a group that `apply` would reject."""
    _refuse(group_problem(group))
    command = {"op": "put_group", "group": group.to_json(), "if_absent": if_absent}
    return orjson.dumps(command | _if(condition))


def delete_group(name: str, *, offsets: bool, condition: Condition | None = None) -> bytes:
    command = {"op": "delete_group", "group": name, "offsets": offsets}
    return orjson.dumps(command | _if(condition))


def forget_offsets(*, topic: str = "", group: str = "") -> bytes:
    assert bool(topic) != bool(group), (topic, group)
    return orjson.dumps(
        {"op": "forget_offsets"} | ({"topic": topic} if topic else {"group": group})
    )


def announce(node: str, address: str, http: str = "") -> bytes:
    return orjson.dumps({"op": "announce", "node": node, "address": address, "http": http})


def reset_offsets(resets: list[Commit]) -> bytes:
    return orjson.dumps({"op": "reset_offsets", "resets": resets})


def reset_taken(reset: Commit) -> bytes:
    return orjson.dumps({"op": "reset_taken", "reset": reset})


def lock_queues(changes: Sequence[OwnerChange], renewals: Renewals | None = None) -> bytes:
    command: dict[str, Any] = {"op": "lock_queues", "changes": [c.to_json() for c in changes]}
    return orjson.dumps(command if renewals is None else command | {"renewals": renewals.to_json()})


def commit_offsets(commits: list[Commit]) -> bytes:
    return orjson.dumps({"op": "commit_offsets", "commits": commits})


def delay_progress(level: int, offset: int) -> bytes:
    return orjson.dumps({"op": "delay_progress", "level": level, "offset": offset})


def timer_progress(progress: Progress) -> bytes:
    return orjson.dumps({"op": "timer_progress", **progress._asdict()})


def _if(condition: Condition | None) -> dict[str, Any]:
    if condition is None:
        return {}
    return {"if": {"versions": list(condition.versions), "absent": condition.absent}}
