"""The outbox: each effect is handed out once, and what is taken back is not handed out at all."""

from __future__ import annotations

from itertools import product

import pytest

from raftmq.dledger.raft.messages import HardState, Role, RoleEvent, TimeoutNow
from raftmq.dledger.raft.ready import Outbox
from tests.dledger.group import make_log

ORDER = TimeoutNow("a", "b", 1)
EVENT = RoleEvent(Role.FOLLOWER, 1, None, False, "test")


def test_outbox_without_effects_returns_no_ready() -> None:
    outbox = Outbox(0)
    assert outbox.take() is None
    outbox.dirty = True
    assert outbox.take() is None
    assert not outbox.dirty


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("truncate_from", 3),
        ("hard_state", HardState(1, None)),
        ("commit_index", 2),
        ("role", EVENT),
        ("configuration_changed", True),
    ],
)
def test_single_effect_is_in_one_ready(field: str, value: object) -> None:
    outbox = Outbox(0)
    setattr(outbox, field, value)
    ready = outbox.take()
    assert getattr(ready, field) == value
    assert outbox.take() is None


def test_listed_effects_are_in_one_ready_in_their_order() -> None:
    outbox = Outbox(0)
    frames = make_log([1, 1])
    outbox.append += frames
    outbox.send(ORDER)
    outbox.reads += [(1, 5), (2, 5)]
    outbox.failed_reads += [3]
    ready = outbox.take()
    assert ready is not None
    assert (ready.append, ready.messages) == (tuple(frames), (ORDER,))
    assert (ready.reads, ready.failed_reads) == (((1, 5), (2, 5)), (3,))
    assert outbox.handed_index == 2
    assert outbox.take() is None


def test_ready_has_only_the_last_role_change() -> None:
    outbox = Outbox(0)
    outbox.tell_role(RoleEvent(Role.CANDIDATE, 1, None, False, "first"))
    outbox.tell_role(EVENT)
    ready = outbox.take()
    assert ready is not None
    assert ready.role is EVENT


@pytest.mark.parametrize(
    ("handed", "waiting", "from_index"),
    [(h, w, i) for h, w in product(range(4), range(4)) for i in range(1, h + w + 1)],
)
def test_truncation_removes_pending_appends_from_the_outbox(
    handed: int, waiting: int, from_index: int
) -> None:
    frames = make_log([1] * (handed + waiting))
    outbox = Outbox(handed)
    outbox.append += frames[handed:]
    outbox.truncate(from_index)
    assert outbox.handed_index + len(outbox.append) == from_index - 1
    assert outbox.append == frames[handed : from_index - 1]
    assert outbox.truncate_from == (from_index if from_index <= handed else None)
