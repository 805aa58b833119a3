"""The topics and consumer groups of a broker group, as other groups of its cluster read them.

GET_DEFINITIONS (30009, ours) returns a page of them. Request and response are JSON objects:

    {"topics":{"since":[counter,ms]|null,"after":name},"groups":{the same},"accounts":bool,
     "byFollower":bool}
    {"broker":name,
     "topics":{"version":[counter,ms],"entries":[[bean,created_ms],…],"deleted":{name:ms},
               "more":name|null},
     "groups":{the same},"readers":{topic:[group,…],…},"modes":[[topic,group,mode,share],…],
     "accounts":config|null,"removed":{group id:name,…}}

`since` is the version of the last read. The response has only later changes if the broker still
records them, else the full table. `more` is the `after` of the next page, null on the last page. It
is "" for a table's first page. A kind that the request omits is not in the response. `readers` are
the consumer groups that have read the topics of the page. They start at the first message of an
adopted topic, whatever their clients ask for, since messages may be stored here before they come.
The first page of a full read of the topics also has the modes. The beans are Apache's.

A name has a time of creation, and a deleted name the time of its deletion. A definition is adopted
where the name does not exist and was not deleted after its creation. So a broker group that returns
does not restore a topic that was deleted meanwhile. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from raftmq.remoting.errors import BodyError
from raftmq.remoting.names import is_brokers_own
from raftmq.remoting.topic_attributes import is_ordered_topic

from ..errors import StateError
from ..tables.broker_group import Versions
from ..tables.groups import SubscriptionGroup, group_from_json
from ..tables.topics import TopicConfig, topic_from_json
from ..tables.versioned import VersionedTable

PAGE_ENTRIES = 500  # of each kind; about 5 ms of the processor
DELETED_ENTRIES = 5_000  # per command
Version = tuple[int, int]


class Mode(NamedTuple):
    """The pull or pop mode of a consumer group for a topic."""

    topic: str
    group: str
    mode: str
    share: int


@dataclass(slots=True)
class Entries:
    """Definitions of one kind, as read from another group."""

    version: Version = (0, 0)
    beans: dict[str, tuple[Mapping[str, Any], int]] = field(default_factory=dict)  # with created_ms
    deleted: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Definitions:
    """All definitions of the broker group `source`, or the changes since the last read."""

    source: str
    topics: Entries = field(default_factory=Entries)
    groups: Entries = field(default_factory=Entries)
    readers: dict[str, list[str]] = field(default_factory=dict)  # consumer groups, by topic
    modes: list[Mode] = field(default_factory=list)
    accounts: Mapping[str, Any] | None = None
    is_apaches: bool = False
    removed: dict[str, str] = field(default_factory=dict)  # broker groups, by id in hex

    @property
    def versions(self) -> Versions:
        return *self.topics.version, *self.groups.version


class Variant(NamedTuple):
    """A definition, equal in all broker groups that have it: the first of them by name, and its
    latest creation."""

    source: str
    bean: Mapping[str, Any]
    created_ms: int


class Merged:
    """The definitions of several broker groups. Equal definitions are kept once, because the groups
    of a cluster have mostly the same."""

    def __init__(self, *read: Definitions) -> None:
        self.versions: dict[str, Versions] = {}  # by broker group
        self.topics: dict[str, list[Variant]] = {}
        self.groups: dict[str, list[Variant]] = {}
        self.deleted_topics: dict[str, int] = {}
        self.deleted_groups: dict[str, int] = {}
        self.readers: dict[str, set[str]] = {}
        self.modes: dict[tuple[str, str], Mode] = {}
        self.accounts: dict[str, Mapping[str, Any]] = {}  # by broker group
        for one in read:
            self.add(one)

    def add(self, read: Definitions) -> None:
        self.versions[read.source] = read.versions
        for entries, variants, deleted in (
            (read.topics, self.topics, self.deleted_topics),
            (read.groups, self.groups, self.deleted_groups),
        ):
            for name, (bean, created_ms) in entries.beans.items():
                _add(variants.setdefault(name, []), Variant(read.source, bean, created_ms))
            for name, at_ms in entries.deleted.items():
                deleted[name] = max(at_ms, deleted.get(name, 0))
        for topic, groups in read.readers.items():
            self.readers.setdefault(topic, set()).update(groups)
        for mode in read.modes:
            self.modes.setdefault((mode.topic, mode.group), mode)
        if read.accounts is not None:
            self.accounts[read.source] = read.accounts


def _add(variants: list[Variant], new: Variant) -> None:
    for number, one in enumerate(variants):
        if one.bean == new.bean:
            first, created_ms = min(one.source, new.source), max(one.created_ms, new.created_ms)
            variants[number] = Variant(first, one.bean, created_ms)
            return
    variants.append(new)


def page_of(
    table: VersionedTable[Any], changed: Collection[str] | None, after: str
) -> dict[str, Any]:
    """Return a page of the names after `after` for the response: those `changed`, or all if it is
    None."""
    names: Iterable[str] = table.entries if changed is None else changed
    selected = nsmallest(PAGE_ENTRIES + 1, (name for name in names if name > after))
    more = len(selected) > PAGE_ENTRIES
    entries = [
        [table.entries[name].to_json(), table.created.get(name, 0)]
        for name in selected[:PAGE_ENTRIES]
        if name in table.entries
    ]
    deleted = table.deleted
    if changed is not None:
        deleted = {name: deleted[name] for name in changed if name in deleted}
    return {
        "version": [table.counter, table.timestamp_ms],
        "entries": entries,
        "deleted": {} if after else deleted,
        "more": selected[PAGE_ENTRIES - 1] if more else None,
    }


def read_page(entries: Entries, name_key: str, page: Any) -> str | None:
    """Add a page to `entries`; return the `after` of the next page, or None. The version is that of
    the first page, since later pages may have later changes. Raises BodyError."""
    try:
        if entries.version == (0, 0):
            counter, at_ms = map(int, page["version"])
            entries.version = counter, at_ms
        for bean, created_ms in page["entries"]:
            entries.beans[str(bean[name_key])] = bean, int(created_ms)
        for name, at_ms in page["deleted"].items():
            entries.deleted[str(name)] = int(at_ms)
        more = page["more"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BodyError(f"no page of definitions: {error!r}") from error
    return None if more is None else str(more)


@dataclass(slots=True)
class Adoption:
    """The definitions to adopt, and findings about the rest."""

    topics: list[tuple[TopicConfig, int]] = field(default_factory=list)  # with created_ms
    groups: list[tuple[SubscriptionGroup, int]] = field(default_factory=list)
    readers: dict[str, list[str]] = field(default_factory=dict)  # of adopted topics
    deleted_topics: dict[str, int] = field(default_factory=dict)
    deleted_groups: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # name → reason
    differences: list[str] = field(default_factory=list)

    def commands(self, versions: Mapping[str, Versions], *, joins: bool) -> list[bytes]:
        """Return the commands to propose (broker.tables.state). The last records the `versions`,
        unless the group joins; then `joined` does when the rest is adopted, too."""
        readers = [
            (one.name, one.read_queue_count, self.readers[one.name])
            for one, _ in self.topics
            if one.name in self.readers
        ]
        columns: Iterable[Sequence[Any]] = zip_longest(
            _pieces([(one.to_json(), ms) for one, ms in self.topics], PAGE_ENTRIES),
            _pieces(readers, PAGE_ENTRIES),
            _pieces([(one.to_json(), ms) for one, ms in self.groups], PAGE_ENTRIES),
            _pieces(list(self.deleted_topics.items()), DELETED_ENTRIES),
            _pieces(list(self.deleted_groups.items()), DELETED_ENTRIES),
            fillvalue=[],
        )
        commands = [_command(*pieces, more=joins) for pieces in columns]
        if commands and not joins:
            commands[-1]["versions"] = versions
        return [orjson.dumps(command) for command in commands]


def joined(versions: Mapping[str, Versions]) -> bytes:
    """Return the command after which a new group has all definitions of its cluster."""
    command = _command([], [], [], [], [], more=False)
    return orjson.dumps(command | {"versions": versions})


def _command(
    topics: Sequence[Any],
    readers: Sequence[Any],
    groups: Sequence[Any],
    deleted_topics: Sequence[Any],
    deleted_groups: Sequence[Any],
    *,
    more: bool,
) -> dict[str, Any]:
    return {
        "op": "adopt",
        "topics": topics,
        "readers": readers,
        "groups": groups,
        "deletedTopics": dict(deleted_topics),
        "deletedGroups": dict(deleted_groups),
        "versions": {},
        "more": more,
    }


def _pieces(entries: list[Any], size: int) -> list[list[Any]]:
    return [entries[at : at + size] for at in range(0, len(entries), size)]


def adoption(
    read: Merged,
    topics: VersionedTable[TopicConfig],
    groups: VersionedTable[SubscriptionGroup],
    own_names: frozenset[str],
) -> Adoption:
    """Choose the definitions to adopt. `own_names` has the names of this group and its cluster.

    Of several definitions of a topic the one with most queues is adopted, of a consumer group that
    of the first broker group by name. Ordered topics are refused, because the queue of a key would
    change; a name with another `message.type` than here is also refused."""
    result = Adoption()
    for table, deletions, deleted in (
        (topics, read.deleted_topics, result.deleted_topics),
        (groups, read.deleted_groups, result.deleted_groups),
    ):
        for name, at_ms in deletions.items():
            if name not in table.entries and table.deleted.get(name, -1) < at_ms:
                deleted[name] = at_ms
    _choose_topics(read, topics, own_names, result)
    _choose_groups(read, groups, result)
    existing = groups.entries.keys() | {group.name for group, _ in result.groups}
    for adopted, _ in result.topics:
        if readers := read.readers.get(adopted.name, set()) & existing:
            result.readers[adopted.name] = sorted(readers)
    return result


def _choose_topics(
    read: Merged,
    topics: VersionedTable[TopicConfig],
    own_names: frozenset[str],
    result: Adoption,
) -> None:
    for name, variants in sorted(read.topics.items()):
        if is_brokers_own(name) or name in own_names:
            continue
        chosen: tuple[TopicConfig, int] | None = None
        known = topics.get(name)
        deleted_ms = max(topics.deleted.get(name, -1), result.deleted_topics.get(name, -1))
        for source, bean, created_ms in sorted(variants, key=_source):
            try:
                topic = topic_from_json(bean)
            except StateError as error:
                result.refused[name] = f"{source}: {error}"
                continue
            if known is not None:
                if known.message_type != topic.message_type:
                    result.refused[name] = _types(source, topic, known)
            elif created_ms <= deleted_ms:
                continue  # deleted since
            elif is_ordered_topic(topic.order, topic.message_type):
                result.refused[name] = f"{source}: the topic is ordered"
            elif chosen is None:
                chosen = topic, created_ms
            elif chosen[0].message_type != topic.message_type:
                result.refused[name] = _types(source, topic, chosen[0])
            elif chosen[0] != topic:
                result.differences.append(f"topic {name} of {source} differs")
                larger = max(chosen[0], topic, key=lambda t: (t.write_queue_count, t.queue_count))
                chosen = larger, max(chosen[1], created_ms)
        if chosen is not None:
            result.topics.append(chosen)


def _choose_groups(
    read: Merged, groups: VersionedTable[SubscriptionGroup], result: Adoption
) -> None:
    for name, variants in sorted(read.groups.items()):
        if name in groups.entries or is_brokers_own(name):
            continue
        chosen: tuple[SubscriptionGroup, int] | None = None
        deleted_ms = max(groups.deleted.get(name, -1), result.deleted_groups.get(name, -1))
        for source, bean, created_ms in sorted(variants, key=_source):
            if created_ms <= deleted_ms:
                continue
            try:
                group = group_from_json(bean)
            except StateError as error:
                result.refused[name] = f"{source}: {error}"
                continue
            if chosen is None:
                chosen = group, created_ms
            elif chosen[0] != group:
                result.differences.append(f"consumer group {name} of {source} differs")
        if chosen is not None:
            result.groups.append(chosen)


_source = itemgetter(0)


def _types(source: str, topic: TopicConfig, known: TopicConfig) -> str:
    return f"{source}: message.type is {topic.message_type}, not {known.message_type}"
