"""The replicated table with the group's id (dledger.transport.group_id).

    {"op":"group_id","id":hex of 16 bytes,"if_absent":bool}

The leader of a group without an id proposes one. The first proposal applied takes effect. A command
without `if_absent` comes from a restore, which made the log a different group's. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from raftmq.dledger.transport.peer_info_message import GROUP_ID_SIZE_BYTES


class GroupIdTable:
    """The group id; `value` is empty without one."""

    def __init__(self) -> None:
        self.value = b""
        self.applied_index = 0

    def apply(self, command: Mapping[str, Any]) -> None:
        """Apply a command. Raises KeyError, TypeError, ValueError."""
        value = _value(command["id"])
        if not self.value or not command["if_absent"]:
            self.value = value

    def own(self) -> None:
        """Do nothing, because the id is immutable."""

    def to_json(self) -> dict[str, Any]:
        return {"groupId": self.value.hex()}

    def load(self, value: Mapping[str, Any], applied_index: int) -> None:
        """Load a snapshot, all or nothing."""
        said = value["groupId"]
        self.value = _value(said) if said else b""
        self.applied_index = applied_index


def _value(said: str) -> bytes:
    value = bytes.fromhex(said)
    if len(value) != GROUP_ID_SIZE_BYTES:
        raise ValueError(f"a group id of {len(value)} bytes")
    return value


def group_id(value: bytes, *, if_absent: bool = True) -> bytes:
    assert len(value) == GROUP_ID_SIZE_BYTES, value
    return orjson.dumps({"op": "group_id", "id": value.hex(), "if_absent": if_absent})
