"""Who is told when a route changes, instead of asking every 30 seconds: pure.

A client that wishes it says `watchRoutes`=true when it asks for a route (105). From then on its
connection is sent ROUTE_CHANGED (30004, one-way) when a topic that it asked for, known or not,
came, went or changed, or when a broker group that such a topic lives on has other addresses. It
says what changed, not what it is now: the client asks. Changes are gathered for a moment (`take`),
a group that changes twice is told once. Clients of Apache's never ask for it and see nothing.

Bounds: TOPICS_MAX topics a connection, CHANGES_MAX gathered; beyond, a connection is told that
anything may have changed (neither names nor topics).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

TOPICS_MAX = 10_000
CHANGES_MAX = 1_000

C = TypeVar("C", bound=Hashable)


@dataclass(slots=True)
class Changes:
    """What one connection is told. `everything`: more than fits, or than was kept track of."""

    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    everything: bool = False


@dataclass(slots=True)
class _Watcher:
    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)  # that its topics live on, when it asked
    more: bool = False  # it asked for more topics than are kept


class RouteWatchers(Generic[C]):
    """By connection, whatever that is."""

    def __init__(self) -> None:
        self._watchers: dict[C, _Watcher] = {}
        self._by_topic: dict[str, set[C]] = {}
        self._by_group: dict[str, set[C]] = {}
        self._pending: dict[C, Changes] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def asked(self, connection: C, topic: str, groups: Iterable[str]) -> None:
        """It was answered the route of `topic`, which is on `groups`; on none: it is unknown."""
        watcher = self._watchers.setdefault(connection, _Watcher())
        if topic not in watcher.topics and len(watcher.topics) >= TOPICS_MAX:
            watcher.more = True
        else:
            watcher.topics.add(topic)
            self._by_topic.setdefault(topic, set()).add(connection)
        for group in groups:
            watcher.groups.add(group)
            self._by_group.setdefault(group, set()).add(connection)

    def closed(self, connection: C) -> None:
        """The connection ended."""
        self._pending.pop(connection, None)
        watcher = self._watchers.pop(connection, None)
        if watcher is None:
            return
        for names, table in ((watcher.topics, self._by_topic), (watcher.groups, self._by_group)):
            for name in names:
                table[name].discard(connection)
                if not table[name]:
                    del table[name]

    def group_changed(self, name: str) -> bool:
        """Its addresses did. True if somebody is to be told."""
        connections = self._by_group.get(name, ())
        for connection in connections:
            self._note(connection).groups.add(name)
        return bool(connections)

    def topic_changed(self, topic: str) -> bool:
        """It came, went, or has other queues. True if somebody is to be told."""
        connections = self._by_topic.get(topic, ())
        for connection in connections:
            self._note(connection).topics.add(topic)
        return bool(connections)

    def _note(self, connection: C) -> Changes:
        changes = self._pending.setdefault(connection, Changes())
        if len(changes.topics) + len(changes.groups) >= CHANGES_MAX:
            changes.everything = True
            changes.groups.clear()
            changes.topics.clear()
        return changes

    def take(self) -> list[tuple[C, Changes]]:
        """What has gathered since the last time, by connection."""
        pending, self._pending = self._pending, {}
        for connection, changes in pending.items():
            if self._watchers[connection].more and changes.groups:
                changes.everything = True  # some topic of its that is not known here lives there
        return list(pending.items())
