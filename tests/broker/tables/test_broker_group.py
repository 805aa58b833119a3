"""The table of the broker group: draining, and moves of its messages."""

from typing import Any

import orjson

from raftmq.broker.tables import snapshot
from raftmq.broker.tables.broker_group import (
    BrokerGroupTable,
    Moving,
    Window,
    drain,
    forget_group,
    move,
    moved,
)
from raftmq.broker.tables.timer_wheel import Progress
from raftmq.store.dispatch import TIMER_TOPIC
from tests.broker.tables.test_writers import applied

TO_A = {"to": "a", "timers": True, "deadLetters": False}
TIMERS = Window(0, "a", TIMER_TOPIC, 0, 3, 9, Progress(5, 2, 7, 3))
DEAD = Window(0, "a", "%DLQ%cg", 1, 0, 4)


def test_move_window_is_open_until_moved_and_its_number_is_unique():
    state = applied(drain(on=True, move=TO_A), move(TIMERS))
    moving = state.group.moving
    assert [one.number for one in moving.windows] == [1]
    assert moving.windows[0].progress == TIMERS.progress
    applied(moved(1, 5), moved(1, 5), move(DEAD), moved(2, 4), move(TIMERS), state=state)
    moving = state.group.moving
    assert (moving.moved_timers, moving.moved_dead_letters) == (5, 4)
    assert [one.number for one in moving.windows] == [3]
    applied(drain(on=False), state=state)  # the window stays, since it may be stored
    assert state.group.moving.to == "" and state.group.moving.windows == moving.windows
    assert state.group.moving.targets == ("a",)
    applied(moved(3, 0), forget_group("0a" * 16, "a"), state=state)
    assert not state.group.moving.windows and not state.group.moving.targets


def test_repeated_drain_start_keeps_unnamed_settings():
    state = applied(drain(on=True, move=TO_A, given_up=["cg"]), drain(on=True))
    assert state.group.moving.to == "a" and state.group.given_up == ("cg",)
    assert state.group.draining_ms == 1_000
    applied(drain(on=True, move={**TO_A, "to": "c"}, given_up=[]), state=state)
    assert state.group.moving.to == "c" and state.group.given_up == ()
    applied(drain(on=False), state=state)
    assert state.group.moving == Moving() and not state.group.draining_ms


def test_snapshot_has_the_move_of_a_drained_group():
    start = drain(on=True, move=TO_A, given_up=["cg"])
    state = applied(start, move(TIMERS), move(DEAD), moved(1, 5))
    twin: Any = dict(snapshot.capture(state).tables)[snapshot.GROUP_ID]
    applied(moved(2, 4), drain(on=False), state=state)
    again = BrokerGroupTable()
    again.load(orjson.loads(orjson.dumps(twin.to_json())), 4)
    assert again.moving == twin.moving and again.given_up == ("cg",)
    assert [one.topic for one in again.moving.windows] == ["%DLQ%cg"]
