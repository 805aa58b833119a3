"""The replicated table of consumer offsets.

Only applied command frames change it; broker.consume.offset_commits gathers commits for them. An
offset may be lowered, as in Apache's broker.

A *reset* (222) sets an offset and a mark. Until the group's consumer has moved there
(broker.consume.offset_resets), its commits precede the reset and are ignored. The mark is
replicated, so that a new leader has it. A queue has at most one mark.

The owners of queues consumed in order (broker.consume.queue_locks) are also kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from .queue_locks import LockTable, by_name, by_pair, table_from_json

Commit = tuple[str, str, int, int]  # topic, group, queue id, offset of the next message
# (topic, group, queue ids) → whether the offset table has capacity for them
HasRoom = Callable[[str, str, Collection[int]], bool]


class OffsetTable:
    """Consumer offsets: (topic, group) → queue id → offset of the next message."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self._groups: dict[str, tuple[str, ...]] = {}  # with an offset, by topic
        self.count = 0  # of offsets
        self.resets: dict[tuple[str, str], dict[int, int]] = {}  # marks
        self.locks = LockTable()
        self.applied_index = 0
        self.counter = 0  # of changes, which is the data version for Apache's slaves

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        queues = self.offsets.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def commit(self, commits: Iterable[Commit]) -> None:
        self.counter += 1
        for topic, group, queue_id, offset in commits:
            if self.resets and self.reset_of(topic, group, queue_id) is not None:
                continue
            self._set(topic, group, queue_id, offset)

    def start_readers(self, readers: Iterable[tuple[str, int, Iterable[str]]]) -> None:
        """Set the offset 0 for consumer groups without an offset. A reader is (topic, number of
        queues, groups)."""
        for topic, queue_count, groups in readers:
            for group in groups:
                for queue_id in range(int(queue_count)):
                    if self.get(topic, group, queue_id) is None:
                        self.counter += 1
                        self._set(topic, group, queue_id, 0)

    def reset(self, resets: Iterable[Commit]) -> None:
        self.counter += 1
        for topic, group, queue_id, offset in resets:
            self._set(topic, group, queue_id, offset)
            self.resets.setdefault((topic, group), {})[queue_id] = offset

    def _set(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        queues = self.offsets.get((topic, group))
        if queues is None:
            queues = self.offsets[topic, group] = {}
            self._groups[topic] = (*self._groups.get(topic, ()), group)
        if queue_id not in queues:
            self.count += 1
        queues[queue_id] = offset

    def room_within(self, count_max: int) -> Callable[[str, str, Collection[int]], bool]:
        """Return a function of a topic, a group and queue ids. It returns whether their offsets
        exist, or fit within `count_max`. Gathered commits have their own limit."""

        def has_room(topic: str, group: str, queue_ids: Collection[int]) -> bool:
            if self.count + len(queue_ids) <= count_max:
                return True
            queues = self.offsets.get((topic, group), {})
            new = sum(queue_id not in queues for queue_id in queue_ids)
            return not new or self.count + new <= count_max

        return has_room

    def reset_of(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the offset of a pending reset of the group in this queue, or None."""
        marks = self.resets.get((topic, group))
        return None if marks is None else marks.get(queue_id)

    def reset_taken(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Remove the mark because the group moved to `offset`, unless a later reset replaced it."""
        marks = self.resets.get((topic, group))
        if marks is not None and marks.get(queue_id) == offset:
            self.counter += 1
            del marks[queue_id]
            if not marks:
                del self.resets[topic, group]

    def popped(self, steps: Sequence[Sequence[Any]]) -> None:
        """Set offsets to the progress of pops (the `offset` steps of broker.tables.pops), unless a
        reset followed the pop."""
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
        self._delete([(topic, group) for group in self.groups_of(topic)])

    def delete_group(self, group: str) -> None:
        self._delete([key for key in self.offsets if key[1] == group])

    def _delete(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            del self.offsets[key]
            self.resets.pop(key, None)
        self._recount()

    def _recount(self) -> None:
        self.count = sum(map(len, self.offsets.values()))
        groups: dict[str, list[str]] = {}
        for topic, group in self.offsets:
            groups.setdefault(topic, []).append(group)
        self._groups = {topic: tuple(names) for topic, names in groups.items()}

    def own(self) -> None:
        """Copy the mutable parts shared with the original table."""
        self.offsets = {key: dict(queues) for key, queues in self.offsets.items()}
        self.resets = {key: dict(queues) for key, queues in self.resets.items()}
        self._groups = dict(self._groups)
        self.locks = self.locks.copy()

    def groups_of(self, topic: str) -> list[str]:
        return sorted(self._groups.get(topic, ()))

    def to_json(self) -> dict[str, Any]:
        """Return Apache's consumerOffset.json; queue ids are quoted, which fastjson also reads. Our
        own `resetTable`, `lockTable` and `lockRenewals` are present only if they are not empty."""
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
        """Load a snapshot, all or nothing. `refused` is as in `entries_of`."""
        loaded = by_pair(value["offsetTable"], int, refused)
        resets = by_pair(value.get("resetTable") or {}, int)
        owners = value.get("lockTable")
        locks = table_from_json(owners, value["lockRenewals"]) if owners else LockTable()
        locks.use_clock(self.locks.clock_ms)
        self.counter = int((value.get("dataVersion") or {}).get("counter", 0))
        self.offsets = loaded
        self.resets = resets
        self.locks = locks
        self.applied_index = applied_index
        self._recount()

    def merge(self, value: Mapping[str, Any], refused: dict[str, str] | None = None) -> None:
        """Merge a master's table; further entries stay. `refused` is as in `entries_of`."""
        merged = OffsetTable()
        merged.load(value, 0, refused)
        for key, queues in merged.offsets.items():
            self.offsets.setdefault(key, {}).update(queues)
        self._recount()
        self.resets = merged.resets
        self.counter = max(self.counter + 1, merged.counter)
