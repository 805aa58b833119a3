"""Who consumes a queue in order: the owner of each (topic, group, queue). Pure.

Part of the replicated tables in Raft mode (it is kept with the offsets), in classic mode the
memory of one broker. It says who owns, not since when: that is broker.locks' business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SEPARATOR = "@"  # between topic and group, as in consumerOffset.json

Key = tuple[str, str, int]  # topic, group, queue id


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """These queues belong to `client` from now on; None: to nobody."""

    group: str
    client: str | None
    queues: Mapping[str, Sequence[int]]  # topic → queue ids

    def to_json(self) -> dict[str, Any]:
        queues = {topic: list(ids) for topic, ids in self.queues.items()}
        return {"group": self.group, "client": self.client, "queues": queues}


def change_from_json(value: Mapping[str, Any]) -> OwnerChange:
    """Raises KeyError, TypeError, ValueError."""
    client = value["client"]
    queues = {str(topic): [int(q) for q in ids] for topic, ids in value["queues"].items()}
    return OwnerChange(str(value["group"]), None if client is None else str(client), queues)


@dataclass(slots=True)
class LockTable:
    """(topic, group) → queue id → client id."""

    owners: dict[tuple[str, str], dict[int, str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.owners.values()))

    def owner(self, key: Key) -> str | None:
        queues = self.owners.get((key[0], key[1]))
        return None if queues is None else queues.get(key[2])

    def keys(self) -> list[Key]:
        return [(t, g, q) for (t, g), queues in self.owners.items() for q in queues]

    def change(self, changes: Sequence[OwnerChange]) -> None:
        """In their order."""
        for change in changes:
            for topic, ids in change.queues.items():
                place = (topic, change.group)
                if change.client is not None:
                    self.owners.setdefault(place, {}).update(dict.fromkeys(ids, change.client))
                    continue
                queues = self.owners.get(place)
                if queues is None:
                    continue
                for queue_id in ids:
                    queues.pop(queue_id, None)
                if not queues:
                    del self.owners[place]

    def copy(self) -> LockTable:
        return LockTable({place: dict(queues) for place, queues in self.owners.items()})

    def to_json(self) -> dict[str, Any]:
        return {
            topic + SEPARATOR + group: {str(q): client for q, client in sorted(queues.items())}
            for (topic, group), queues in sorted(self.owners.items())
        }


def table_from_json(value: Mapping[str, Any]) -> LockTable:
    """Back from `to_json`. Raises ValueError, AttributeError."""
    owners: dict[tuple[str, str], dict[int, str]] = {}
    for name, queues in value.items():
        topic, _, group = name.partition(SEPARATOR)
        owners[topic, group] = {int(q): str(client) for q, client in queues.items()}
    return LockTable(owners)
