"""The table of waiting requests: its bound, its opaques, its deadlines."""

import pytest

from raftmq.remoting.errors import TooManyRequests
from raftmq.remoting.pending import OPAQUE_MAX, PendingRequests

WAITER = object()


def test_opaques_wrap_around_and_skip_those_in_use() -> None:
    pending: PendingRequests[object] = PendingRequests(10, first_opaque=OPAQUE_MAX - 1)
    pending.add(0, WAITER, 1.0)
    pending.add(1, WAITER, 1.0)
    assert [pending.next_opaque() for _ in range(4)] == [OPAQUE_MAX - 1, OPAQUE_MAX, 2, 3]


def test_pending_requests_are_limited() -> None:
    pending: PendingRequests[object] = PendingRequests(2)
    pending.add(1, WAITER, 1.0)
    pending.add(2, WAITER, 1.0)
    with pytest.raises(TooManyRequests):
        pending.add(3, WAITER, 1.0)
    assert pending.take(1) is WAITER
    assert pending.take(1) is None
    pending.add(3, WAITER, 1.0)
    assert len(pending) == 2


def test_opaque_in_use_is_rejected() -> None:
    pending: PendingRequests[object] = PendingRequests(2)
    pending.add(1, WAITER, 1.0)
    with pytest.raises(ValueError, match="in use"):
        pending.add(1, WAITER, 1.0)


def test_pending_deadlines_and_sent_marks() -> None:
    pending: PendingRequests[object] = PendingRequests(10)
    pending.add(1, WAITER, 30.0)
    pending.add(2, WAITER, 10.0)
    pending.all_sent()
    pending.add(3, WAITER, 20.0)
    assert pending.next_deadline == 10.0
    assert pending.expire(9.9) == []
    assert pending.expire(20.0) == [(WAITER, True), (WAITER, False)]
    assert pending.next_deadline == 30.0
    assert pending.expire(30.0) == [(WAITER, True)]
    assert pending.next_deadline == float("inf")


def test_drain_returns_which_requests_were_sent() -> None:
    pending: PendingRequests[object] = PendingRequests(10)
    pending.add(1, WAITER, 1.0)
    pending.all_sent()
    pending.add(2, WAITER, 1.0)
    assert pending.drain() == [(WAITER, True), (WAITER, False)]
    assert len(pending) == 0
