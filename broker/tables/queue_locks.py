"""The owner of each (topic, group, queue) in ordered consumption.

The table is replicated with the offsets in Raft mode, and kept in memory in classic mode.
Replicated are the owners, `aged` and `term`. `aged` is a lower bound of the age of an owner's last
grant or renewal when a leader last logged it. `term` is that of the last leader that logs renewals.
Each replica has its own `renewed`: the latest possible moment of that renewal on its own clock.
broker.consume.queue_locks uses them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .versioned import entries_of

SEPARATOR = "@"  # as in consumerOffset.json

T = TypeVar("T")
Key = tuple[str, str, int]  # topic, group, queue id


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """A new owner of queues; `client` None releases them."""

    group: str
    client: str | None
    queues: Mapping[str, Sequence[int]]  # topic → queue ids

    def to_json(self) -> dict[str, Any]:
        queues = {topic: list(ids) for topic, ids in self.queues.items()}
        return {"group": self.group, "client": self.client, "queues": queues}


def change_from_json(value: Mapping[str, Any]) -> OwnerChange:
    """Read an OwnerChange. Raises KeyError, TypeError, ValueError."""
    client = value["client"]
    queues = {str(topic): [int(q) for q in ids] for topic, ids in value["queues"].items()}
    return OwnerChange(str(value["group"]), None if client is None else str(client), queues)


@dataclass(frozen=True, slots=True)
class Renewals:
    """The renewals in a command. `fresh` means that the leader does not have the renewals' ages, so
    they count from here. `ages` are (milliseconds, group, topic → queue ids)."""

    term: int
    fresh: bool = False
    ages: Sequence[tuple[int, str, Mapping[str, Sequence[int]]]] = ()

    def to_json(self) -> dict[str, Any]:
        return {"term": self.term, "fresh": self.fresh, "ages": list(self.ages)}


@dataclass(slots=True)
class LockTable:
    """The owners by (topic, group) → queue id → client id."""

    owners: dict[tuple[str, str], dict[int, str]] = field(default_factory=dict)
    aged: dict[Key, int] = field(default_factory=dict)  # milliseconds, without zeros
    term: int = 0
    renewed: dict[Key, int] = field(default_factory=dict, compare=False)
    clock_ms: Callable[[], int] = field(default=lambda: 0, compare=False)

    def __len__(self) -> int:
        return sum(map(len, self.owners.values()))

    def owner(self, key: Key) -> str | None:
        queues = self.owners.get((key[0], key[1]))
        return None if queues is None else queues.get(key[2])

    def keys(self) -> list[Key]:
        return [(t, g, q) for (t, g), queues in self.owners.items() for q in queues]

    def keys_of(self, group: str) -> Iterator[Key]:
        for (topic, name), queues in self.owners.items():
            if name == group:
                for queue_id in queues:
                    yield topic, group, queue_id

    def use_clock(self, clock_ms: Callable[[], int]) -> None:
        """Set this replica's monotonic clock; renewals are as old as the log states."""
        self.clock_ms = clock_ms
        now_ms = clock_ms()
        self.renewed = {key: now_ms - self.aged.get(key, 0) for key in self.keys()}

    def apply(self, command: Mapping[str, Any]) -> None:
        """Apply a lock_queues command. Raises KeyError, TypeError, ValueError."""
        renewals = command.get("renewals")
        if renewals is not None:
            ages = [(int(ms), str(group), queues) for ms, group, queues in renewals["ages"]]
            self._tell(Renewals(int(renewals["term"]), bool(renewals["fresh"]), ages))
        self.change([change_from_json(change) for change in command["changes"]])

    def _tell(self, renewals: Renewals) -> None:
        self.term = renewals.term
        now_ms = self.clock_ms()
        if renewals.fresh:
            self.aged.clear()
            self.renewed = dict.fromkeys(self.keys(), now_ms)
        for age_ms, group, queues in renewals.ages:
            for topic, ids in queues.items():
                for queue_id in ids:
                    key = (topic, group, int(queue_id))
                    if self.owner(key) is not None:
                        self.aged[key] = max(age_ms, self.aged.get(key, 0))
                        self.renewed[key] = min(now_ms - age_ms, self.renewed.get(key, now_ms))

    def change(self, changes: Sequence[OwnerChange]) -> None:
        """Apply owner changes in order. An unchanged owner is a renewal."""
        now_ms = self.clock_ms()
        for change in changes:
            for topic, ids in change.queues.items():
                key_ = (topic, change.group)
                for queue_id in ids:
                    key = (*key_, queue_id)
                    self.aged.pop(key, None)
                    if change.client is None:
                        self.renewed.pop(key, None)
                    else:
                        self.renewed[key] = now_ms
                if change.client is not None:
                    self.owners.setdefault(key_, {}).update(dict.fromkeys(ids, change.client))
                    continue
                queues = self.owners.get(key_)
                if queues is None:
                    continue
                for queue_id in ids:
                    queues.pop(queue_id, None)
                if not queues:
                    del self.owners[key_]

    def copy(self) -> LockTable:
        owners = {key: dict(queues) for key, queues in self.owners.items()}
        return LockTable(owners, dict(self.aged), self.term)

    def renewals_json(self) -> dict[str, Any]:
        """Return the renewals, stored next to `to_json`."""
        aged: dict[str, dict[str, int]] = {}
        for (topic, group, queue_id), age_ms in sorted(self.aged.items()):
            aged.setdefault(topic + SEPARATOR + group, {})[str(queue_id)] = age_ms
        return {"term": self.term, "aged": aged}

    def to_json(self) -> dict[str, Any]:
        return by_name(self.owners)


def table_from_json(value: Mapping[str, Any], renewals: Mapping[str, Any]) -> LockTable:
    """Read `to_json` and `renewals_json`; the table then needs a clock. Raises KeyError,
    ValueError, AttributeError."""
    table = LockTable(by_pair(value, str), term=int(renewals["term"]))
    for (topic, group), ages in by_pair(renewals["aged"], int).items():
        table.aged.update({(topic, group, queue_id): ms for queue_id, ms in ages.items()})
    return table


def by_name(table: Mapping[tuple[str, str], Mapping[int, T]]) -> dict[str, dict[str, T]]:
    """Return a table of (topic, group) → queue id → value as JSON."""
    return {
        topic + SEPARATOR + group: {str(q): value for q, value in sorted(queues.items())}
        for (topic, group), queues in sorted(table.items())
    }


def by_pair(
    value: Mapping[str, Mapping[str, Any]],
    convert: Callable[[Any], T],
    refused: dict[str, str] | None = None,
) -> dict[tuple[str, str], dict[int, T]]:
    """Read `by_name`. Raises StateError, ValueError, TypeError, AttributeError. `refused` is as in
    `entries_of`."""

    def by_queue(_: str, queues: Mapping[str, Any]) -> dict[int, T]:
        return {int(q): convert(one) for q, one in queues.items()}

    table: dict[tuple[str, str], dict[int, T]] = {}
    for name, queues in entries_of(value, by_queue, refused).items():
        topic, _, group = name.partition(SEPARATOR)
        table[topic, group] = queues
    return table
