"""Clients that watch routes, and the changes to push to them.

A client subscribes with `watchRoutes`=true in its request for a route (105). Its connection then
gets ROUTE_CHANGED (30004, one-way) after each change of such a topic, known or not, and of the
addresses of its broker groups. The message has the changed groups with their addresses and the
names of changed topics, whose routes the client requests. Changes are collected for a short time
(`take`), so a group that changes twice is pushed once. With many clients they are collected for
longer (`Pace`), because otherwise thousands of clients would request their routes once per group
when all groups return after an outage. Apache's clients do not subscribe.

The limits are CONNECTION_BYTES_MAX for a connection's names, and an allowance for all connections.
Topics above the limits are polled. Above CHANGES_MAX collected changes a message without names
means that any route may have changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raftmq.remoting.fair_scheduling import Steps, finish
from raftmq.remoting.memory_limits import Allowance, Share

CONNECTION_BYTES_MAX = 3 << 20  # about 10,000 topics
NAME_BYTES = 200  # per name in the sets and tables here, besides its characters
CHANGES_MAX = 1_000
NOTES_PER_STEP = 500
REQUEST_S = 0.0002  # for a message of a push, or a request after it; twice its processor time
PAUSE_S_MAX = 5.0  # our client requests its routes as often
GOES_ON = 10  # times longer is the pause while topics continue to change

C = TypeVar("C", bound=Hashable)


@dataclass(slots=True)
class Changes:
    """The changes for a connection. `everything` replaces names that exceed the limits."""

    groups: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    everything: bool = False


@dataclass(slots=True)
class _Watcher:
    kept: Share
    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)  # the groups of its topics, at its last request
    more: bool = False  # it requested topics above the limit


class RouteWatchers(Generic[C]):
    """The watching connections, of any hashable type, with their pending changes."""

    def __init__(self, retained: Allowance) -> None:
        self._kept = retained
        self._watchers: dict[C, _Watcher] = {}
        self._by_topic: dict[str, dict[C, None]] = {}  # connections in the order of their requests
        self._by_group: dict[str, dict[C, None]] = {}
        self._changed_topics: dict[str, None] = {}  # since the last `take`
        self._changed_groups: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def requested(self, connection: C, topic: str, groups: Iterable[str]) -> None:
        """Record that a connection got a topic's route, on `groups` (none if unknown)."""
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
        """Store a name for a connection within the limits."""
        if name in names:
            return
        if not watcher.kept.take(len(name) + NAME_BYTES):
            watcher.more = True
            return
        names.add(name)
        table.setdefault(name, {})[connection] = None

    def closed(self, connection: C) -> None:
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
        """Record a change of a group's addresses. Return True if a connection watches it."""
        if name not in self._by_group:
            return False
        self._changed_groups[name] = None
        return True

    def topic_changed(self, topic: str) -> bool:
        """Record a change of a topic. Return True if a connection watches it."""
        if topic not in self._by_topic:
            return False
        self._changed_topics[topic] = None
        return True

    def take(self) -> list[tuple[C, Changes]]:
        """Return and clear the pending changes by connection."""
        return finish(self.taking())

    def taking(self, *, with_topics: bool = True) -> Steps[list[tuple[C, Changes]]]:
        """As `take`, in steps, because many connections may watch many topics. Changed topics stay
        pending unless `with_topics`."""
        groups, self._changed_groups = self._changed_groups, {}
        topics: dict[str, None] = {}
        if with_topics:
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
                changes.everything = True  # a topic above its limit may be on this group
        return [item for item in pending.items() if item[0] in self._watchers]


class Pace:
    """The times at which changes may be pushed, in seconds of any clock. A pause follows each push,
    as long as the messages and the requests that they cause take, and `goes_on` times longer while
    changes continue."""

    def __init__(self, goes_on: int = 1) -> None:
        self._goes_on = goes_on
        self.due_s = 0.0
        self._pause_s = 0.0

    def pushed(self, now_s: float, request_count: int) -> None:
        goes_on = now_s < self.due_s + self._pause_s
        pause_s = request_count * REQUEST_S * (self._goes_on if goes_on else 1)
        self._pause_s = min(PAUSE_S_MAX, pause_s)
        self.due_s = now_s + self._pause_s


def _note(changes: Changes, name: str, *, is_group: bool) -> None:
    if len(changes.topics) + len(changes.groups) >= CHANGES_MAX:
        changes.everything = True
        changes.groups.clear()
        changes.topics.clear()
    (changes.groups if is_group else changes.topics).add(name)
