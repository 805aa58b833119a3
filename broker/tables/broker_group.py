"""The replicated table of this broker group, with its id and its place in the cluster.

    {"op":"group_id","id":hex of 16 bytes,"if_absent":bool}
    {"op":"adopt",…,"versions":{group:[counter,time,counter,time],…},"more":bool}
                                             see broker.tables.state
    {"op":"drain","on":bool}                 the group is drained, or no longer
    {"op":"remove_group"}                    the drained group never registers again
    {"op":"forget_group","id":hex,"name":n}  another group was removed from the cluster

The leader of a group without an id (dledger.transport.group_id) proposes one. The first proposal
applied takes effect. A command without `if_absent` comes from a restore, which made the log a
different group's. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from raftmq.dledger.transport.peer_info_message import GROUP_ID_SIZE_BYTES
from raftmq.remoting.registration import REMOVED_MAX

Versions = tuple[int, int, int, int]  # counter and time of the topics, then of the consumer groups


class BrokerGroupTable:
    """`value` is the group id, empty without one. `versions` has the tables of other broker groups
    (by name) whose definitions are adopted here. `joining` is true while a new group has adopted
    only a part of its cluster's definitions. `draining_ms` is the time since when the group is
    drained (broker.admin.drain), or 0; `removed` is true once it left its cluster."""

    def __init__(self) -> None:
        self.value = b""
        self.versions: dict[str, Versions] = {}
        self.joining = False
        self.draining_ms = 0
        self.removed = False
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
            return
        if command["op"] == "forget_group":
            self.removed_groups[_value(command["id"]).hex()] = str(command["name"])
            self.versions.pop(str(command["name"]), None)
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
        if self.removed_groups:
            more["removedGroups"] = self.removed_groups
        versions = {"adopted": self.versions} if self.versions else {}
        return {"groupId": self.value.hex(), **versions, **more}

    def load(self, value: Mapping[str, Any], applied_index: int) -> None:
        said = value["groupId"]
        versions = _versions(value.get("adopted") or {})
        self.value = _value(said) if said else b""
        self.versions = versions
        self.joining = bool(value.get("joining"))
        self.draining_ms = int(value.get("drainingMs") or 0)
        self.removed = bool(value.get("removed"))
        groups = value.get("removedGroups") or {}
        self.removed_groups = {str(one): str(name) for one, name in groups.items()}
        self.applied_index = applied_index


def _versions(value: Mapping[str, Any]) -> dict[str, Versions]:
    versions: dict[str, Versions] = {}
    for name, numbers in value.items():
        topics, topics_ms, groups, groups_ms = map(int, numbers)
        versions[str(name)] = topics, topics_ms, groups, groups_ms
    return versions


def _value(said: str) -> bytes:
    value = bytes.fromhex(said)
    if len(value) != GROUP_ID_SIZE_BYTES:
        raise ValueError(f"a group id of {len(value)} bytes")
    return value


def drain(*, on: bool) -> bytes:
    return orjson.dumps({"op": "drain", "on": on})


def remove_group() -> bytes:
    return orjson.dumps({"op": "remove_group"})


def forget_group(group_id: str, name: str) -> bytes:
    return orjson.dumps({"op": "forget_group", "id": group_id, "name": name})


def group_id(value: bytes, *, if_absent: bool = True) -> bytes:
    assert len(value) == GROUP_ID_SIZE_BYTES, value
    return orjson.dumps({"op": "group_id", "id": value.hex(), "if_absent": if_absent})
