"""Conditional commands: compared where they are applied, the same on every replica."""

import pytest

from raftmq.broker.tables.groups import SubscriptionGroup
from raftmq.broker.tables.state import (
    UNMET_MAX,
    BrokerState,
    commit_offsets,
    delete_group,
    delete_topic,
    entry_version,
    forget_offsets,
    put_group,
    put_topic,
)
from raftmq.broker.tables.topics import TopicConfig
from raftmq.ops.versions import ANY, Condition

T4, T8 = TopicConfig("T", 4, 4), TopicConfig("T", 8, 8)
V4, V8 = entry_version(T4), entry_version(T8)
NEW = Condition(absent=True)


def applied(*commands):
    state = BrokerState()
    for index, command in enumerate(commands, start=1):
        state.apply(index, 1_000 + index, command)
    return state


def test_entry_version_depends_on_the_entry():
    assert entry_version(TopicConfig("T", 4, 4)) == V4 != V8


@pytest.mark.parametrize(
    ("commands", "queues", "unmet"),
    [
        ([put_topic(T4, condition=NEW)], 4, {}),
        ([put_topic(T4), put_topic(T8, condition=NEW)], 4, {2: V4}),
        ([put_topic(T4), put_topic(T8, condition=Condition((V4,)))], 8, {}),
        ([put_topic(T4), put_topic(T8, condition=Condition((V8,)))], 4, {2: V4}),
        ([put_topic(T4), put_topic(T8, condition=Condition((ANY,)))], 8, {}),
        ([put_topic(T4, condition=Condition((ANY,)))], None, {1: None}),
        ([put_topic(T4), delete_topic("T", condition=Condition((V8,)))], 4, {2: V4}),
        ([put_topic(T4), delete_topic("T", condition=Condition((V4,)))], None, {}),
    ],
)
def test_conditional_topic_commands(commands, queues, unmet):
    state = applied(*commands)
    result = state.topics.get("T")
    assert (result and result.read_queue_count) == queues
    assert state.unmet == unmet


def test_first_of_two_changes_of_one_version_wins():
    first = put_topic(T8, condition=Condition((V4,)))
    second = put_topic(TopicConfig("T", 16, 16), condition=Condition((V4,)))
    state = applied(put_topic(T4), first, second)
    assert state.topics.get("T") == T8
    assert state.unmet == {3: V8}


def test_unmet_condition_is_removed_with_its_command():
    state = applied(put_topic(T4), put_topic(T8, condition=NEW), put_topic(T8, condition=NEW))
    state.take_back(2)
    assert state.unmet == {2: V4}


def test_conditional_group_commands():
    group, paused = SubscriptionGroup("G"), SubscriptionGroup("G", consume_enable=False)
    right = Condition((entry_version(group),))
    state = applied(put_group(group), put_group(paused, condition=right))
    assert state.groups.get("G") == paused
    state.apply(3, 2_000, delete_group("G", offsets=True, condition=right))
    assert state.groups.get("G") == paused
    assert state.unmet == {3: entry_version(paused)}


def test_conditional_delete_leaves_offsets_to_a_separate_command():
    commits = commit_offsets([("T", "G", 0, 5), ("U", "G", 0, 6)])
    state = applied(put_topic(T4), commits, delete_topic("T", condition=Condition((V4,))))
    assert state.offsets.get("T", "G", 0) == 5
    state.apply(4, 2_000, forget_offsets(topic="T"))
    assert state.offsets.get("T", "G", 0) is None
    assert state.offsets.get("U", "G", 0) == 6
    state.apply(5, 2_001, forget_offsets(group="G"))
    assert state.offsets.get("U", "G", 0) is None


def test_table_ahead_of_a_command_does_not_check_its_condition_again():
    """Replay after a snapshot: the table has the frame already."""
    state = applied(put_topic(T4))
    state.apply(1, 1_001, put_topic(T4, condition=NEW))
    assert state.unmet == {}


def test_unmet_conditions_are_limited_in_number():
    state = applied(put_topic(T4))
    for index in range(2, UNMET_MAX + 10):
        state.apply(index, 1_000, put_topic(T8, condition=NEW))
    assert len(state.unmet) == UNMET_MAX
    assert max(state.unmet) == UNMET_MAX + 9
