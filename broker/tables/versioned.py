"""A table of named entries with the data version of Apache's tools.

Topics and subscription groups are such tables. Only applied command frames change them, and the
version's time is the frame's. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from ..errors import StateError


class Entry(Protocol):
    @property
    def name(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


E = TypeVar("E", bound=Entry)
T = TypeVar("T")
ENTRY_ERRORS = (
    StateError, LookupError, TypeError, ValueError, AttributeError, OverflowError,
)  # fmt: skip

CHANGES_MAX = 10_000  # for peers with an earlier version
DELETED_MAX = 10_000  # deleted names, so that no other group's older definition returns
CREATED_KEY, DELETED_KEY = "createdMs", "deletedMs"
PIECE_ENTRIES = 500  # of a table's JSON; they hold the interpreter's lock for a millisecond


def entries_of(
    table: Mapping[str, Any], read: Callable[[str, Any], T], refused: dict[str, str] | None
) -> dict[str, T]:
    """Read a table's entries. `refused` gets unreadable entries with reasons; without it the first
    raises. A table without a readable entry also raises StateError."""
    entries: dict[str, T] = {}
    for name, value in table.items():
        try:
            entries[name] = read(str(name), value)
        except ENTRY_ERRORS as error:
            if refused is None:
                raise
            refused[str(name)] = str(error)
    if table and not entries:
        raise StateError(f"no entry can be read: {next(iter((refused or {}).items()), '')}")
    return entries


class VersionedTable(Generic[E]):
    """Name → entry. `applied_index` is the index of the last frame reflected."""

    def __init__(
        self,
        json_key: str,
        entry_from_json: Callable[[Mapping[str, Any]], E],
        also: Mapping[str, Any] = MappingProxyType({}),
        stored_from_json: Callable[[Mapping[str, Any]], E] | None = None,
    ) -> None:
        """`json_key` is the key of the entries in Apache's JSON; `also` has its constant rest.
        `stored_from_json` also accepts entries that only an existing table may have."""
        self.entries: dict[str, E] = {}
        self.created: dict[str, int] = {}  # name → time of its creation, in any broker group
        self.deleted: dict[str, int] = {}  # name without an entry → time of its deletion
        self.applied_index = 0
        self.counter = 0
        self.timestamp_ms = 0
        # Changed names, each with the table's previous version (counter, time).
        self._changes: deque[tuple[int, int, str]] = deque(maxlen=CHANGES_MAX)
        self._json_key = json_key
        self._also = also
        self.entry_from_json = entry_from_json
        self._stored_from_json = stored_from_json or entry_from_json

    def get(self, name: str) -> E | None:
        return self.entries.get(name)

    def put(self, entry: E, now_ms: int, *, if_absent: bool = False) -> bool:
        """Create or replace; with `if_absent` only create. Return True after a change."""
        before = self.entries.get(entry.name)
        if before == entry or (if_absent and before is not None):
            return False
        if before is None:
            self.created[entry.name] = max(now_ms, self.deleted.pop(entry.name, 0) + 1)
        self.entries[entry.name] = entry
        self._touch(entry.name, now_ms)
        return True

    def adopt(self, entry: E, created_ms: int, now_ms: int) -> bool:
        """Create an entry of another broker group, unless it exists or was deleted since. Return
        True after a change."""
        name = entry.name
        if name in self.entries or self.deleted.get(name, -1) >= created_ms:
            return False
        self.deleted.pop(name, None)
        self.entries[name] = entry
        self.created[name] = created_ms
        self._touch(name, now_ms)
        return True

    def delete(self, name: str, now_ms: int) -> bool:
        """Delete an entry; return False if it does not exist. Another broker group may have it
        still, so its deletion is recorded all the same."""
        if self.entries.pop(name, None) is None:
            self.record_deletion(name, now_ms)
            return False
        self.record_deletion(name, max(now_ms, self.created.pop(name, 0) + 1))
        self._touch(name, now_ms)
        return True

    def record_deletion(self, name: str, at_ms: int) -> None:
        """Record a deletion here or in another broker group. It has no effect on an entry. Above
        DELETED_MAX the oldest are dropped."""
        if name in self.entries:
            return
        self.deleted[name] = max(at_ms, self.deleted.pop(name, 0))
        while len(self.deleted) > DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]

    def changed_since(self, counter: int, timestamp_ms: int) -> set[str] | None:
        """Return the names changed since this version, or None if that is no longer recorded."""
        if (counter, timestamp_ms) == (self.counter, self.timestamp_ms):
            return set()
        names: set[str] = set()
        for before, at_ms, name in reversed(self._changes):
            names.add(name)
            if (before, at_ms) == (counter, timestamp_ms):
                return names
        return None

    def own(self) -> None:
        """Copy the entries shared with the original table."""
        self.entries = dict(self.entries)
        self.created = dict(self.created)
        self.deleted = dict(self.deleted)

    def _touch(self, name: str, now_ms: int) -> None:
        self._changes.append((self.counter, self.timestamp_ms, name))
        self.counter += 1
        self.timestamp_ms = now_ms

    def data_version(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": 0, "timestamp": self.timestamp_ms}

    def to_json(self) -> dict[str, Any]:
        return {
            "dataVersion": self.data_version(),
            self._json_key: {name: e.to_json() for name, e in sorted(self.entries.items())},
            **self.also(),
        }

    def also(self) -> Mapping[str, Any]:
        created = {CREATED_KEY: self.created} if self.created else {}
        deleted = {DELETED_KEY: self.deleted} if self.deleted else {}
        return {**self._also, **created, **deleted}

    def json_parts(self) -> tuple[dict[str, Any], str, Iterator[dict[str, Any]]]:
        """Return `to_json` without entries, their key, and the entries, PIECE_ENTRIES per piece."""
        names = sorted(self.entries)
        pieces = (names[at : at + PIECE_ENTRIES] for at in range(0, len(names), PIECE_ENTRIES))
        entries = ({name: self.entries[name].to_json() for name in piece} for piece in pieces)
        return {"dataVersion": self.data_version(), **self.also()}, self._json_key, entries

    def load(
        self,
        value: Mapping[str, Any],
        applied_index: int,
        refused: dict[str, str] | None = None,
    ) -> None:
        """Load a snapshot, all or nothing. `refused` is as in `entries_of`."""
        read = self._stored_from_json
        loaded = entries_of(value[self._json_key], lambda _, entry: read(entry), refused)
        version = value["dataVersion"]
        counter = int(version["counter"])
        created, deleted = (
            {str(name): int(at_ms) for name, at_ms in (value.get(key) or {}).items()}
            for key in (CREATED_KEY, DELETED_KEY)
        )
        # Apache's brokers of 3.x used the second spelling.
        self.timestamp_ms = int(version.get("timestamp", version.get("timestatmp", 0)))
        self.counter = counter
        self.entries, self.created, self.deleted = loaded, created, deleted
        self._changes.clear()
        self.applied_index = applied_index
