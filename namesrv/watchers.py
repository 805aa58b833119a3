"""Keeps the clients that want to be told when a route changes, and the changes to tell them. Pure.

A client opts in with `watchRoutes`=true when it asks for a route (105). From then on ROUTE_CHANGED
(30004, one-way) is sent over its connection when a topic that it asked for, known or not, was
added, removed or changed, or when the addresses of a broker group with such a topic have changed.
The message names what changed but not the new route, for which the client asks. Changes are
gathered for a moment (`take`), so a group that changes twice is told once. Apache's clients do not
opt in and are not sent this.

Bounds: CONNECTION_BYTES_MAX for the names of one connection, an allowance for those of all, given
back when connections end, and CHANGES_MAX changes gathered. Beyond, a connection is told that
anything may have changed (neither names nor topics); what it was not told it asks for by itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raftmq.remoting.fair_scheduling import Steps, finish
from raftmq.remoting.memory_limits import Allowance, Share

CONNECTION_BYTES_MAX = 3 << 20  # some 10,000 topics
NAME_BYTES = 200  # of one name in the sets and tables here, besides its characters
CHANGES_MAX = 1_000
NOTES_PER_STEP = 500

C = TypeVar("C", bound=Hashable)


@dataclass(slots=True)
class Changes:
    """The changes to tell one connection. `everything`: there are too many to name or to keep."""

    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    everything: bool = False


@dataclass(slots=True)
class _Watcher:
    kept: Share
    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)  # that its topics live on, when it asked
    more: bool = False  # it asked for more than is kept


class RouteWatchers(Generic[C]):
    """The watching connections, of any hashable type, and the changes pending for each."""

    def __init__(self, retained: Allowance) -> None:
        self._kept = retained
        self._watchers: dict[C, _Watcher] = {}
        self._by_topic: dict[str, dict[C, None]] = {}  # connections in the order they asked
        self._by_group: dict[str, dict[C, None]] = {}
        self._changed_topics: dict[str, None] = {}  # since the last `take`
        self._changed_groups: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def asked(self, connection: C, topic: str, groups: Iterable[str]) -> None:
        """Note that a connection was told a topic's route, on `groups` (none: unknown)."""
        watcher = self._watchers.get(connection)
        if watcher is None:
            watcher = _Watcher(Share(self._kept, CONNECTION_BYTES_MAX))
            self._watchers[connection] = watcher
        self._keep(connection, watcher, topic, watcher.topics, self._by_topic)
        for group in groups:
            self._keep(connection, watcher, group, watcher.groups, self._by_group)

    def _keep(
        self,
        connection: C,
        watcher: _Watcher,
        name: str,
        names: set[str],
        table: dict[str, dict[C, None]],
    ) -> None:
        """Keep a name for a connection if there is room."""
        if name in names:
            return
        if not watcher.kept.take(len(name) + NAME_BYTES):
            watcher.more = True
            return
        names.add(name)
        table.setdefault(name, {})[connection] = None

    def closed(self, connection: C) -> None:
        """Forget a connection that ended."""
        watcher = self._watchers.pop(connection, None)
        if watcher is None:
            return
        watcher.kept.end()
        for names, table in ((watcher.topics, self._by_topic), (watcher.groups, self._by_group)):
            for name in names:
                table[name].pop(connection, None)
                if not table[name]:
                    del table[name]

    def group_changed(self, name: str) -> bool:
        """Note that a group's addresses changed. Return True if a connection must be told."""
        if name not in self._by_group:
            return False
        self._changed_groups[name] = None
        return True

    def topic_changed(self, topic: str) -> bool:
        """Note that a topic came, went or changed. Return True if somebody must be told."""
        if topic not in self._by_topic:
            return False
        self._changed_topics[topic] = None
        return True

    def take(self) -> list[tuple[C, Changes]]:
        """Return and clear the changes gathered since the last call, by connection."""
        return finish(self.taking())

    def taking(self) -> Steps[list[tuple[C, Changes]]]:
        """Do as `take`, in steps: many connections may watch many topics."""
        groups, self._changed_groups = self._changed_groups, {}
        topics, self._changed_topics = self._changed_topics, {}
        pending: dict[C, Changes] = {}
        count = 0
        for names, table, is_group in (
            (groups, self._by_group, True),
            (topics, self._by_topic, False),
        ):
            for name in names:
                for connection in list(table.get(name, ())):
                    changes = pending.setdefault(connection, Changes())
                    _note(changes, name, is_group=is_group)
                    count += 1
                    if count % NOTES_PER_STEP == 0:
                        yield
        for connection, changes in pending.items():
            watcher = self._watchers.get(connection)
            if watcher is not None and watcher.more and changes.groups:
                changes.everything = True  # one of its topics, not kept here, may live there
        return [item for item in pending.items() if item[0] in self._watchers]


def _note(changes: Changes, name: str, *, is_group: bool) -> None:
    if len(changes.topics) + len(changes.groups) >= CHANGES_MAX:
        changes.everything = True
        changes.groups.clear()
        changes.topics.clear()
    (changes.groups if is_group else changes.topics).add(name)
