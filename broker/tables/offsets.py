"""Consumer offsets: the table that every replica keeps.

`OffsetTable` is changed only by applied command frames; broker.consume.offset_commits gathers
consumers' commits for one. Offsets may go back: Apache's broker accepts that.

A *reset* (222) sets an offset and leaves a mark: until the group's consumer has gone there
(broker.consume.offset_resets), its commits are from before the reset and change nothing. The mark
is part of the table, so a new leader knows it, too. A queue has at most one mark.

The owners of queues that are consumed in order (broker.consume.queue_locks) are kept here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from .queue_locks import LockTable, by_name, by_pair, table_from_json

Commit = tuple[str, str, int, int]  # topic, group, queue id, offset of the next message wanted


class OffsetTable:
    """Consumer offsets: (topic, group) → queue id → offset of the next message wanted."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.count = 0  # of offsets
        self.resets: dict[tuple[str, str], dict[int, int]] = {}  # marks
        self.locks = LockTable()
        self.applied_index = 0
        self.counter = 0  # of changes; the data version that Apache's slaves ask for

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        queues = self.offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def commit(self, commits: Iterable[Commit]) -> None:
        self.counter += 1
        for topic, group, queue_id, offset in commits:
            if self.resets and self.reset_of(topic, group, queue_id) is not None:
                continue
            self._set(topic, group, queue_id, offset)

    def reset(self, resets: Iterable[Commit]) -> None:
        """Set offsets, and mark them."""
        self.counter += 1
        for topic, group, queue_id, offset in resets:
            self._set(topic, group, queue_id, offset)
            self.resets.setdefault((topic, group), {})[queue_id] = offset

    def _set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        queues = self.offsets.setdefault((topic, group), {})
        if queue_id not in queues:
            self.count += 1
        queues[queue_id] = offset

    def room_within(self, count_max: int) -> Callable[[str, str, Collection[int]], bool]:
        """Return a function that tells for a topic, a group and queue ids whether their offsets
        exist already, or may be added without the table exceeding `count_max`. Gathered commits do
        not count: they have a bound of their own."""

        def has_room(topic: str, group: str, queue_ids: Collection[int]) -> bool:
            if self.count + len(queue_ids) <= count_max:
                return True
            queues = self.offsets.get((topic, group), {})
            new = sum(queue_id not in queues for queue_id in queue_ids)
            return not new or self.count + new <= count_max

        return has_room

    def reset_of(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the offset to which the group still has to go in this queue; None: none."""
        marks = self.resets.get((topic, group))
        return None if marks is None else marks.get(queue_id)

    def reset_taken(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Remove the mark because the group went to `offset`; another reset may have come since."""
        marks = self.resets.get((topic, group))
        if marks is not None and marks.get(queue_id) == offset:
            self.counter += 1
            del marks[queue_id]
            if not marks:
                del self.resets[topic, group]

    def popped(self, steps: Sequence[Sequence[Any]]) -> None:
        """Set offsets to where a group's pops are (the `offset` steps, see broker.tables.pops),
        unless a reset came that the pop did not know."""
        for kind, topic, group, *rest in steps:
            if kind != "offset":
                continue
            queue_id, offset, mark = rest
            if self.reset_of(topic, group, queue_id) != mark:
                continue
            if mark is not None:
                self.reset_taken(topic, group, queue_id, mark)
            self.counter += 1
            self._set(topic, group, int(queue_id), int(offset))

    def delete_topic(self, topic: str) -> None:
        for table in (self.offsets, self.resets):
            for key in [key for key in table if key[0] == topic]:
                del table[key]
        self._count_anew()

    def delete_group(self, group: str) -> None:
        for table in (self.offsets, self.resets):
            for key in [key for key in table if key[1] == group]:
                del table[key]
        self._count_anew()

    def _count_anew(self) -> None:
        self.count = sum(map(len, self.offsets.values()))

    def own(self) -> None:
        """Stop sharing anything with the table this one was copied from."""
        self.offsets = {key: dict(queues) for key, queues in self.offsets.items()}
        self.resets = {key: dict(queues) for key, queues in self.resets.items()}
        self.locks = self.locks.copy()

    def groups_of(self, topic: str) -> list[str]:
        return sorted(group for name, group in self.offsets if name == topic)

    def to_json(self) -> dict[str, Any]:
        """Return Apache's consumerOffset.json; queue ids are quoted, which fastjson reads too.
        `resetTable`, `lockTable`, `lockRenewals`, our own, only where there are marks or locks."""
        version = {"counter": self.counter, "stateVersion": 0, "timestamp": 0}
        value: dict[str, Any] = {"dataVersion": version, "offsetTable": by_name(self.offsets)}
        if self.resets:
            value["resetTable"] = by_name(self.resets)
        if len(self.locks):
            value["lockTable"] = self.locks.to_json()
            value["lockRenewals"] = self.locks.renewals_json()
        return value

    def load(
        self,
        value: Mapping[str, Any],
        applied_index: int,
        refused: dict[str, str] | None = None,
    ) -> None:
        """Load a snapshot; unchanged when that raises. `refused`: see `entries_of`."""
        loaded = by_pair(value["offsetTable"], int, refused)
        resets = by_pair(value.get("resetTable") or {}, int)
        locks = table_from_json(value.get("lockTable") or {}, value.get("lockRenewals") or {})
        locks.use_clock(self.locks.clock_ms)
        self.counter = int((value.get("dataVersion") or {}).get("counter", 0))
        self.offsets = loaded
        self.resets = resets
        self.locks = locks
        self.applied_index = applied_index
        self._count_anew()

    def merge(self, value: Mapping[str, Any], refused: dict[str, str] | None = None) -> None:
        """Take over a master's table; entries that it does not have stay. `refused`: see
        `entries_of`."""
        told = OffsetTable()
        told.load(value, 0, refused)
        for key, queues in told.offsets.items():
            self.offsets.setdefault(key, {}).update(queues)
        self._count_anew()
        self.resets = told.resets
        self.counter = max(self.counter + 1, told.counter)
