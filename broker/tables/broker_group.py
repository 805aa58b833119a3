"""The replicated table of this broker group, with its id and its place in the cluster.

    {"op":"group_id","id":hex of 16 bytes,"if_absent":bool}
    {"op":"adopt",…,"versions":{group:[counter,time,counter,time],…},"more":bool}
                                             see broker.tables.state
    {"op":"drain","on":bool,"move":{"to":name,"timers":bool,"deadLetters":bool},"givenUp":[g,…]}
                                             the group is drained, or no longer; the last two are
                                             optional
    {"op":"move","to":name,"topic":t,"queue":q,"start":offset,"end":offset,"progress":[…]}
                                             a window of messages is moved (broker.delayed.moves)
    {"op":"moved","number":n,"count":n}      the window `number` is moved, or returned with count 0
    {"op":"remove_group"}                    the drained group never registers again
    {"op":"forget_group","id":hex,"name":n}  another group was removed from the cluster

The leader of a group without an id (dledger.transport.group_id) proposes one. The first proposal
applied takes effect. A command without `if_absent` comes from a restore, which made the log a
different group's. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from raftmq.dledger.transport.peer_info_message import GROUP_ID_SIZE_BYTES
from raftmq.remoting.names import DLQ_PREFIX
from raftmq.remoting.registration import REMOVED_MAX

from .timer_wheel import NOTHING, Progress

COMMANDS = ("group_id", "drain", "move", "moved", "remove_group", "forget_group")
Versions = tuple[int, int, int, int]  # counter and time of the topics, then of the consumer groups


@dataclass(frozen=True, slots=True)
class Window:
    """The messages in a range of a queue that are being moved to the broker group `to`. Of the
    timer topic these are the messages that waited at `progress`."""

    number: int
    to: str
    topic: str
    queue_id: int
    start: int
    end: int
    progress: Progress = NOTHING


@dataclass(frozen=True, slots=True)
class Moving:
    """The move of messages to another broker group. `to` is empty without one. `number` is that of
    the last window, and `windows` are open. `targets` are all groups that got timer messages."""

    to: str = ""
    timers: bool = False
    dead_letters: bool = False
    number: int = 0
    windows: tuple[Window, ...] = ()
    targets: tuple[str, ...] = ()
    moved_timers: int = 0
    moved_dead_letters: int = 0

    def apply(self, command: Mapping[str, Any]) -> Moving:
        """Return the state after a command drain, move or moved. Raises KeyError, TypeError,
        ValueError."""
        if command["op"] == "drain":
            move = command.get("move")
            if move is not None and command["on"]:
                chosen = str(move["to"]), bool(move["timers"]), bool(move["deadLetters"])
                return replace(self, to=chosen[0], timers=chosen[1], dead_letters=chosen[2])
            return self if command["on"] else replace(self, to="", timers=False, dead_letters=False)
        if command["op"] == "move":
            window = _window(command, self.number + 1)
            targets = self.targets
            if not window.topic.startswith(DLQ_PREFIX) and window.to not in targets:
                targets = *targets, window.to
            return replace(
                self, number=window.number, windows=(*self.windows, window), targets=targets
            )
        number, count = int(command["number"]), int(command["count"])
        ended = next((one for one in self.windows if one.number == number), None)
        if ended is None:
            return self
        state = replace(self, windows=tuple(one for one in self.windows if one is not ended))
        if ended.topic.startswith(DLQ_PREFIX):
            return replace(state, moved_dead_letters=self.moved_dead_letters + count)
        return replace(state, moved_timers=self.moved_timers + count)

    def without(self, name: str) -> Moving:
        """Return the state after the removal of a group."""
        return replace(self, targets=tuple(one for one in self.targets if one != name))

    def to_json(self) -> dict[str, Any]:
        return {
            "to": self.to,
            "timers": self.timers,
            "deadLetters": self.dead_letters,
            "number": self.number,
            "windows": [{"number": one.number, **_window_json(one)} for one in self.windows],
            "targets": list(self.targets),
            "movedTimers": self.moved_timers,
            "movedDeadLetters": self.moved_dead_letters,
        }


class BrokerGroupTable:
    """`value` is the group id, empty without one. `versions` has the tables of other broker groups
    (by name) whose definitions are adopted here. `joining` is true while a new group has adopted
    only a part of its cluster's definitions. `draining_ms` is the time since when the group is
    drained (broker.admin.drain), or 0; `removed` is true once it left its cluster. `moving` is the
    move of its waiting messages (broker.delayed.moves). `given_up` are consumer groups whose
    messages do not keep it from being empty."""

    def __init__(self) -> None:
        self.value = b""
        self.versions: dict[str, Versions] = {}
        self.joining = False
        self.draining_ms = 0
        self.removed = False
        self.moving = Moving()
        self.given_up: tuple[str, ...] = ()
        self.removed_groups: dict[str, str] = {}  # other groups' ids, in hex → their names
        self.applied_index = 0

    def apply(self, command: Mapping[str, Any], now_ms: int) -> None:
        """Apply a command. Raises KeyError, TypeError, ValueError."""
        if command["op"] == "adopt":
            self.versions |= _versions(command["versions"])
            self.joining = bool(command["more"])
            return
        if command["op"] == "drain":
            self.draining_ms = (self.draining_ms or now_ms) if command["on"] else 0
            given_up = command.get("givenUp", self.given_up) if command["on"] else ()
            self.given_up = tuple(map(str, given_up))
        if command["op"] in ("drain", "move", "moved"):
            self.moving = self.moving.apply(command)
            return
        if command["op"] == "forget_group":
            self.removed_groups[_value(command["id"]).hex()] = str(command["name"])
            self.versions.pop(str(command["name"]), None)
            self.moving = self.moving.without(str(command["name"]))
            while len(self.removed_groups) > REMOVED_MAX:
                del self.removed_groups[next(iter(self.removed_groups))]
            return
        if command["op"] == "remove_group":
            self.removed = True
            return
        value = _value(command["id"])
        if not self.value or not command["if_absent"]:
            self.value = value

    def own(self) -> None:
        self.versions = dict(self.versions)
        self.removed_groups = dict(self.removed_groups)

    def to_json(self) -> dict[str, Any]:
        more: dict[str, Any] = {"joining": True} if self.joining else {}
        if self.draining_ms:
            more["drainingMs"] = self.draining_ms
        if self.removed:
            more["removed"] = True
        if self.given_up:
            more["givenUp"] = list(self.given_up)
        if self.moving != Moving():
            more["moving"] = self.moving.to_json()
        if self.removed_groups:
            more["removedGroups"] = self.removed_groups
        versions = {"adopted": self.versions} if self.versions else {}
        return {"groupId": self.value.hex(), **versions, **more}

    def load(self, value: Mapping[str, Any], applied_index: int) -> None:
        said = value["groupId"]
        versions = _versions(value.get("adopted") or {})
        moving = _moving(value.get("moving"))
        self.value = _value(said) if said else b""
        self.versions = versions
        self.joining = bool(value.get("joining"))
        self.draining_ms = int(value.get("drainingMs") or 0)
        self.removed = bool(value.get("removed"))
        self.moving = moving
        self.given_up = tuple(map(str, value.get("givenUp") or ()))
        groups = value.get("removedGroups") or {}
        self.removed_groups = {str(one): str(name) for one, name in groups.items()}
        self.applied_index = applied_index


def _versions(value: Mapping[str, Any]) -> dict[str, Versions]:
    versions: dict[str, Versions] = {}
    for name, numbers in value.items():
        topics, topics_ms, groups, groups_ms = map(int, numbers)
        versions[str(name)] = topics, topics_ms, groups, groups_ms
    return versions


def _moving(value: Mapping[str, Any] | None) -> Moving:
    if value is None:
        return Moving()
    return Moving(
        str(value["to"]),
        bool(value["timers"]),
        bool(value["deadLetters"]),
        int(value["number"]),
        tuple(_window(one, int(one["number"])) for one in value["windows"]),
        tuple(map(str, value["targets"])),
        int(value["movedTimers"]),
        int(value["movedDeadLetters"]),
    )


def _window(value: Mapping[str, Any], number: int) -> Window:
    return Window(
        number,
        str(value["to"]),
        str(value["topic"]),
        int(value["queue"]),
        int(value["start"]),
        int(value["end"]),
        Progress(*map(int, value["progress"])),
    )


def _window_json(window: Window) -> dict[str, Any]:
    return {
        "to": window.to,
        "topic": window.topic,
        "queue": window.queue_id,
        "start": window.start,
        "end": window.end,
        "progress": list(window.progress),
    }


def _value(said: str) -> bytes:
    value = bytes.fromhex(said)
    if len(value) != GROUP_ID_SIZE_BYTES:
        raise ValueError(f"a group id of {len(value)} bytes")
    return value


def drain(
    *, on: bool, move: Mapping[str, Any] | None = None, given_up: Sequence[str] | None = None
) -> bytes:
    """Build the command. `move` has to, timers, deadLetters; None leaves move or groups as they
    are."""
    command: dict[str, Any] = {"op": "drain", "on": on}
    command |= {} if move is None else {"move": move}
    return orjson.dumps(command | ({} if given_up is None else {"givenUp": given_up}))


def move(window: Window) -> bytes:
    """Build the command that opens a window, which gets the next number."""
    return orjson.dumps({"op": "move", **_window_json(window)})


def moved(number: int, count: int) -> bytes:
    return orjson.dumps({"op": "moved", "number": number, "count": count})


def remove_group() -> bytes:
    return orjson.dumps({"op": "remove_group"})


def forget_group(group_id: str, name: str) -> bytes:
    return orjson.dumps({"op": "forget_group", "id": group_id, "name": name})


def group_id(value: bytes, *, if_absent: bool = True) -> bytes:
    assert len(value) == GROUP_ID_SIZE_BYTES, value
    return orjson.dumps({"op": "group_id", "id": value.hex(), "if_absent": if_absent})
