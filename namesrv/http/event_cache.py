"""Recent events of each group, the source of its failovers.

Limits are EVENTS_MAX events per group and `bytes_max` of JSON in total. Above `bytes_max` the
largest group loses its oldest events, so a stranger's brokers displace only their own events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import orjson

EVENTS_MAX = 400  # per group
BYTES_MAX = 16 * 1024 * 1024

Event = Mapping[str, Any]


@dataclass(slots=True)
class _Kept:
    events: deque[tuple[Event, int]] = field(default_factory=deque)  # with their sizes
    size_bytes: int = 0


class RememberedEvents:
    """The events by group."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._groups: dict[str, _Kept] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def of(self, group: str) -> Iterator[Event]:
        """Yield a group's events in order."""
        retained = self._groups.get(group)
        return iter(()) if retained is None else (event for event, _ in retained.events)

    def add(self, group: str, event: Event) -> None:
        """Store an event."""
        size = len(orjson.dumps(event))
        retained = self._groups.setdefault(group, _Kept())
        retained.events.append((event, size))
        retained.size_bytes += size
        self.size_bytes += size
        if len(retained.events) > EVENTS_MAX:
            self._drop_oldest(retained)
        while self.size_bytes > self._bytes_max:
            self._drop_oldest(max(self._groups.values(), key=lambda item: item.size_bytes))

    def keep_only(self, groups: Set[str]) -> None:
        """Drop the events of all further groups."""
        for name in self._groups.keys() - groups:
            self.size_bytes -= self._groups.pop(name).size_bytes

    def _drop_oldest(self, retained: _Kept) -> None:
        _, size = retained.events.popleft()
        retained.size_bytes -= size
        self.size_bytes -= size
