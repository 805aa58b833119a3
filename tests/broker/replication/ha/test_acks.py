"""Watermarks and time-outs by tables; nobody waits for somebody else's condition."""

import pytest

from raftmq.broker.replication.ha.acks import (
    FLUSH_DISK_TIMEOUT,
    FLUSH_SLAVE_TIMEOUT,
    OK,
    SLAVE_NOT_AVAILABLE,
    AckBook,
    SlaveWish,
)

NOTHING, WAIT, GONE = SlaveWish.NOTHING, SlaveWish.WAIT, SlaveWish.UNAVAILABLE


def book():
    return AckBook(flush_timeout_ms=50, slave_timeout_ms=30)


# (flush, slave), what happens in order, the answer and behind which step it comes
@pytest.mark.parametrize(
    ("wants", "steps", "answer"),
    [
        ((False, NOTHING), [], (OK, 0)),
        ((False, GONE), [], (SLAVE_NOT_AVAILABLE, 0)),
        ((True, NOTHING), [("flushed", 9), ("flushed", 10)], (OK, 2)),
        ((True, GONE), [("replicated", 10), ("flushed", 10)], (SLAVE_NOT_AVAILABLE, 2)),
        ((False, WAIT), [("replicated", 9), ("replicated", 12)], (OK, 2)),
        ((True, WAIT), [("flushed", 10), ("replicated", 10)], (OK, 2)),
        ((True, WAIT), [("replicated", 10), ("flushed", 10)], (OK, 2)),
        ((True, NOTHING), [("expire", 49), ("expire", 50)], (FLUSH_DISK_TIMEOUT, 2)),
        ((False, WAIT), [("expire", 29), ("expire", 30)], (FLUSH_SLAVE_TIMEOUT, 2)),
        ((True, WAIT), [("expire", 30), ("flushed", 10)], (FLUSH_SLAVE_TIMEOUT, 2)),
        ((True, WAIT), [("replicated", 10), ("expire", 50)], (FLUSH_DISK_TIMEOUT, 2)),
        ((True, WAIT), [("expire", 50)], (FLUSH_SLAVE_TIMEOUT, 1)),
        ((True, WAIT), [("flushed", 10), ("give_up", None)], (FLUSH_SLAVE_TIMEOUT, 2)),
        ((True, GONE), [("give_up", None)], (SLAVE_NOT_AVAILABLE, 1)),
        ((True, NOTHING), [("give_up", None)], (FLUSH_DISK_TIMEOUT, 1)),
    ],
)
def test_ack_status_for_each_flush_and_slave_condition(wants, steps, answer):
    acks = book()
    result = [acks.add("b", 10, flush=wants[0], slave=wants[1], now_ms=0)]
    for name, value in steps:
        method = getattr(acks, name)
        result.append(method() if value is None else method(value))
    code, behind = answer
    assert [batch for step in result for batch in step] == [("b", code)]
    assert result[behind] == [("b", code)]
    assert len(acks) == 0


def test_ack_watermarks_answer_in_log_order():
    acks = book()
    for n in range(1, 6):
        assert acks.add(n, n * 10, flush=True, slave=WAIT, now_ms=n) == []
    assert acks.replicated(30) == []
    assert acks.flushed(20) == [(1, OK), (2, OK)]
    assert acks.flushed(50) == [(3, OK)]
    assert acks.replicated(50) == [(4, OK), (5, OK)]


def test_batch_that_waits_for_a_slave_does_not_delay_others():
    acks = book()
    assert acks.add("waits", 10, flush=False, slave=WAIT, now_ms=0) == []
    assert acks.add("does not", 20, flush=False, slave=NOTHING, now_ms=0) == [("does not", OK)]
    assert acks.add("flush only", 30, flush=True, slave=NOTHING, now_ms=0) == []
    assert acks.flushed(30) == [("flush only", OK)]
    assert acks.add("no slave", 40, flush=False, slave=GONE, now_ms=1) == [
        ("no slave", SLAVE_NOT_AVAILABLE)
    ]
    assert acks.replicated(10) == [("waits", OK)]


def test_batch_below_the_watermark_is_answered_at_once():
    acks = book()
    acks.replicated(100)
    acks.flushed(100)
    assert acks.add("b", 90, flush=True, slave=WAIT, now_ms=0) == [("b", OK)]
    with pytest.raises(AssertionError):  # the log only grows
        acks.add("b", 90, flush=True, slave=WAIT, now_ms=0)


def test_late_acknowledgement_after_a_time_out_changes_nothing():
    acks = book()
    acks.add("b", 10, flush=True, slave=WAIT, now_ms=0)
    assert acks.expire(1000) == [("b", FLUSH_SLAVE_TIMEOUT)]
    assert acks.flushed(10) == []
    assert acks.replicated(10) == []
    assert acks.give_up() == []
