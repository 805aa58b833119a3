"""Definitions of other broker groups: pages, and the choice of those to adopt."""

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from raftmq.broker.cluster.definitions import (
    PAGE_ENTRIES,
    Definitions,
    Entries,
    Merged,
    adoption,
    joined,
    page_of,
    read_page,
)
from raftmq.broker.cluster.sharing import (
    GROUPS_PER_ROUND,
    READS_AT_ONCE,
    DefinitionSharing,
    next_groups,
)
from raftmq.broker.config import BrokerConfig
from raftmq.broker.tables import versioned
from raftmq.broker.tables.groups import GroupTable, SubscriptionGroup
from raftmq.broker.tables.state import BrokerState, delete_topic, put_topic
from raftmq.broker.tables.topics import TopicConfig, TopicTable
from raftmq.remoting.errors import BodyError

OWN = frozenset({"broker-b", "DefaultCluster"})
NAMES = ["orders", "payments", "audit", "refunds"]


def read_of(source, table, *, since=None):
    """Return a table's definitions as another group reads them, page by page."""
    entries = Entries()
    after: str | None = ""
    while after is not None:
        changed = None if since is None else table.changed_since(*since)
        page = orjson.loads(orjson.dumps(page_of(table, changed, after)))
        after = read_page(entries, "topicName", page)
    return Definitions(source, entries)


def chosen(read, topics):
    return adoption(Merged(*read), topics, GroupTable(), OWN)


def names(result):
    return [topic.name for topic, _ in result.topics]


def test_definition_table_of_several_pages_is_read_completely():
    table = TopicTable()
    count = 2 * PAGE_ENTRIES + 3
    for number in range(count):
        table.put(TopicConfig(f"t{number}"), number)
    table.delete("t7", count)
    read = read_of("broker-a", table)
    assert read.topics.beans.keys() == table.entries.keys()
    assert read.topics.deleted == {"t7": count}
    assert read.topics.version == (table.counter, table.timestamp_ms)


def test_only_changed_definitions_are_read_again():
    table = TopicTable()
    table.put(TopicConfig("orders"), 1)
    version = (table.counter, table.timestamp_ms)
    table.put(TopicConfig("payments"), 2)
    table.delete("orders", 3)
    read = read_of("broker-a", table, since=version)
    assert (list(read.topics.beans), read.topics.deleted) == (["payments"], {"orders": 3})


def test_definition_with_most_queues_wins_and_differences_are_reported():
    few, many = TopicTable(), TopicTable()
    few.put(TopicConfig("orders", 4, 4), 5)
    many.put(TopicConfig("orders", 8, 8), 9)
    result = chosen([read_of("broker-a", few), read_of("broker-c", many)], TopicTable())
    assert result.topics == [(TopicConfig("orders", 8, 8), 9)]
    assert result.differences == ["topic orders of broker-c differs"]


def test_equal_definitions_of_many_groups_are_kept_once():
    merged = Merged()
    for number in range(100):
        table = TopicTable()
        table.put(TopicConfig("orders"), number)
        merged.add(read_of(f"broker-{number:03}", table))
    ((source, _, created_ms),) = merged.topics["orders"]
    assert (source, created_ms, len(merged.versions)) == ("broker-000", 99, 100)
    result = adoption(merged, TopicTable(), GroupTable(), OWN)
    assert (result.topics, result.differences) == ([(TopicConfig("orders"), 99)], [])


def test_all_groups_of_a_large_cluster_are_read_in_turn():
    """A small cluster's in each round."""
    cluster = [f"broker-{number}" for number in range(3 * GROUPS_PER_ROUND + 1)]
    asked, after = [], "broker-7"
    for _ in range(4):
        after = (at_once := next_groups(cluster, after))[-1]
        assert len(at_once) == GROUPS_PER_ROUND
        asked += at_once
    assert set(asked) == set(cluster)
    few = cluster[:GROUPS_PER_ROUND]
    assert sorted(next_groups(few, "broker-7")) == sorted(few)
    assert next_groups([], "broker-7") == []


async def test_few_groups_are_read_at_once():
    """A new group reads a hundred others, and one of them does not answer."""
    reading = most = 0

    async def definitions(name, *_, **__):
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        reading -= 1
        if name == "broker-9":
            raise BodyError("none")
        return Definitions(name)

    others: Any = SimpleNamespace(definitions=definitions)
    context: Any = SimpleNamespace(config=BrokerConfig(), state=BrokerState())
    sharing = DefinitionSharing(context, others, others, others)
    read = Merged()
    leaders = {f"broker-{number}": "" for number in range(100)}
    await sharing._read(leaders, {}, read.add)
    assert read.versions.keys() == leaders.keys() - {"broker-9"}
    assert 1 < most <= READS_AT_ONCE


def test_ordered_or_differing_or_internal_topics_are_not_adopted():
    there, here = TopicTable(), TopicTable()
    fifo = (("message.type", "FIFO"),)
    delay = (("message.type", "DELAY"),)
    for topic in (
        TopicConfig("ordered", order=True),
        TopicConfig("fifo", attributes=fifo),
        TopicConfig("orders", attributes=delay),
        TopicConfig("%RETRY%group"),
        TopicConfig("RMQ_SYS_TRACE_TOPIC"),
        TopicConfig("DefaultCluster"),
    ):
        there.put(topic, 1)
    here.put(TopicConfig("orders"), 1)
    result = chosen([read_of("broker-a", there)], here)
    assert not result.topics
    assert set(result.refused) == {"ordered", "fifo", "orders"}
    assert "message.type is DELAY, not NORMAL" in result.refused["orders"]


def test_deletion_recorded_before_adoption_takes_effect():
    """It is deleted in all groups, but this group had not adopted it yet."""
    here = TopicTable()
    assert not here.delete("orders", 8)
    there = TopicTable()
    there.adopt(TopicConfig("orders"), 5, 5)
    assert not chosen([read_of("broker-a", there)], here).topics
    there.delete("orders", 9)
    there.put(TopicConfig("orders"), 10)
    assert [one.name for one, _ in chosen([read_of("broker-a", there)], here).topics] == ["orders"]


def test_returning_group_does_not_restore_a_deleted_topic():
    """broker-c was down while the topic was deleted. A new group learns of the deletion from
    broker-a, and keeps it for what it reads from broker-c later."""
    deleted, away = TopicTable(), TopicTable()
    for table in (deleted, away):
        table.adopt(TopicConfig("orders"), 5, 5)
    deleted.delete("orders", 8)
    result = chosen([read_of("broker-a", deleted), read_of("broker-c", away)], TopicTable())
    assert (result.topics, result.deleted_topics) == ([], {"orders": 8})
    here = BrokerState()
    for index, command in enumerate(result.commands({}, joins=True), 1):
        here.apply(index, 9, command)
        assert here.group.joining  # modes and accounts follow
    here.apply(index + 1, 9, joined({"broker-a": (1, 2, 3, 4)}))
    assert (here.group.joining, here.group.versions) == (False, {"broker-a": (1, 2, 3, 4)})
    assert not chosen([read_of("broker-c", away)], here.topics).topics
    away.put(TopicConfig("orders"), 9)  # exists already
    assert not chosen([read_of("broker-c", away)], here.topics).topics
    away.delete("orders", 10)
    away.put(TopicConfig("orders"), 11)
    assert names(chosen([read_of("broker-c", away)], here.topics)) == ["orders"]


def test_remembered_deletions_are_limited(monkeypatch):
    monkeypatch.setattr(versioned, "DELETED_MAX", 3)
    table = TopicTable()
    for number in range(5):
        table.put(TopicConfig(f"t{number}"), number)
        table.delete(f"t{number}", number)
    assert list(table.deleted) == ["t2", "t3", "t4"]


def test_consumer_group_is_adopted_with_its_settings():
    there = GroupTable()
    there.put(SubscriptionGroup("billing", retry_times_max=3), 1)
    there.put(SubscriptionGroup("CID_RMQ_SYS_TRANS"), 1)
    page = page_of(there, None, "")
    read = Definitions("broker-a")
    read_page(read.groups, "groupName", orjson.loads(orjson.dumps(page)))
    result = adoption(Merged(read), TopicTable(), GroupTable(), OWN)
    assert result.groups == [(SubscriptionGroup("billing", retry_times_max=3), 1)]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["put", "delete", "read"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from(NAMES),
    ),
    max_size=40,
)


@given(CHANGES)
def test_definitions_converge_except_for_local_deletions(changes):
    """Whatever the order of creations, deletions and reads: afterwards a topic is in every group,
    or a group without it has recorded a deletion after its creation."""
    groups = [BrokerState() for _ in range(3)]
    index = 0

    def read(reader, source):
        nonlocal index
        result = chosen([read_of(f"broker-{source}", groups[source].topics)], groups[reader].topics)
        for command in result.commands({}, joins=False):
            index += 1
            groups[reader].apply(index, index, command)

    for what, one, other, name in changes:
        index += 1
        if what == "put":
            groups[one].apply(index, index, put_topic(TopicConfig(name)))
        elif what == "delete":
            groups[one].apply(index, index, delete_topic(name))
        elif one != other:
            read(one, other)
    for _ in range(3):
        for one in range(3):
            for other in range(3):
                if one != other:
                    read(one, other)
    for name in NAMES:
        holders = [group.topics for group in groups if name in group.topics.entries]
        for table in (group.topics for group in groups if holders):
            created = max(holder.created[name] for holder in holders)
            assert name in table.entries or table.deleted[name] >= created
    for group in groups:  # a snapshot holds all of it
        copy = TopicTable()
        copy.load(orjson.loads(orjson.dumps(group.topics.to_json())), 1)
        assert (copy.entries, copy.created, copy.deleted) == (
            group.topics.entries,
            group.topics.created,
            group.topics.deleted,
        )
