"""Sends that wait for a place in a frame, and for how long."""

from typing import Any

import pytest

from raftmq.broker.scheduler import IDLE_MS
from raftmq.broker.send.queue import AttendedTime, Backlog, Group
from raftmq.broker.send.service import REFUSED_AT_ONCE
from raftmq.remoting.codes import ResponseCode
from tests.broker.send.test_service import Bench

WAIT_MS = 1_000
TICK_MS = 25


def pass_time(bench, ms):
    for _ in range(ms // TICK_MS):
        bench.clock_ms += TICK_MS
        bench.sends.release_overdue()


def test_send_that_waits_too_long_for_the_disk_is_rejected_as_busy():
    bench = Bench()
    bench.send()
    bench.send(one_way=True)
    pass_time(bench, WAIT_MS)
    assert not bench.connection.writes
    pass_time(bench, TICK_MS)
    (refused,) = bench.connection.answers()
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.remark.startswith("[BUSY]")
    assert bench.sends.held_bytes == 0
    assert bench.log.cut(bench.sends) is None  # and certainly not stored
    bench.send()
    assert bench.commit().record_count == 1


def test_send_in_a_frame_is_not_rejected_by_the_wait_limit():
    bench = Bench()
    bench.send()
    pass_time(bench, WAIT_MS)
    frame = bench.log.cut(bench.sends)
    bench.send()
    pass_time(bench, WAIT_MS)
    bench.answer(frame)
    assert [answer.code for answer in bench.connection.answers()] == [0]


def test_only_sends_that_waited_too_long_are_rejected():
    bench = Bench(frame_size_max=4096)
    for _ in range(3):
        bench.send(bytes(3000))
        pass_time(bench, WAIT_MS // 2)
    refused = bench.connection.answers()
    assert [answer.opaque for answer in refused] == [1]
    assert bench.commit().record_count == 1
    assert [answer.opaque for answer in bench.connection.answers()] == [2]


def test_own_message_that_waited_too_long_is_rejected_as_busy():
    bench = Bench()
    reported: list[Any] = []
    bench.sends.store([], b"command", reported.append)
    pass_time(bench, WAIT_MS + TICK_MS)
    (error,) = reported
    assert (error.code, error.remark[:6]) == (ResponseCode.SYSTEM_BUSY, "[BUSY]")


def test_waiting_send_is_rejected_at_once_when_the_disk_is_full():
    bench = Bench()
    bench.send()
    cut = bench.log.cut(bench.sends)
    bench.send()
    bench.sends.disk_full = "no room"
    pass_time(bench, TICK_MS)
    (refused,) = bench.connection.answers()
    assert (refused.opaque, refused.code) == (2, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert refused.remark == "[DISK_FULL] no room"
    assert bench.log.cut(bench.sends) is None
    bench.answer(cut)
    assert [answer.code for answer in bench.connection.answers()] == [0]
    assert bench.sends.held_bytes == 0


def test_suspended_process_rejects_no_send_for_the_suspension():
    bench = Bench()
    bench.send()
    bench.clock_ms += 100 * WAIT_MS  # suspended
    bench.sends.release_overdue()
    assert not bench.connection.writes
    assert bench.commit().record_count == 1


@pytest.mark.parametrize(
    ("steps", "attended"),
    [([10, 25, 25], 60), ([50, 51], 100), ([100_000], 50), ([0, 0], 0)],
)
def test_attended_time_counts_bounded_steps(steps, attended):
    now = [1_000]
    time = AttendedTime(lambda: now[0])
    for step in steps:
        now[0] += step
        time.advance()
    assert time.now_ms == attended


def waiting(begun_ms, *sizes):
    groups = []
    for size in sizes:
        group = Group(begun_ms)
        group.held_bytes = size
        groups.append(group)
    return groups


BOUND = 64 << 20


def backlog(rate, until_ms):
    """After `until_ms` in which `rate` bytes a ms were cut."""
    made = Backlog(BOUND)
    for now_ms in range(0, until_ms + 1, TICK_MS):
        made.bytes_allowed([], 0, WAIT_MS, now_ms)
        made.proposed(rate * TICK_MS)
    return made


def test_backlog_allows_the_configured_bytes_while_waits_are_short():
    made = backlog(1_000, 2_000)
    assert made.bytes_allowed(waiting(1_900, 5 << 20), 6 << 20, WAIT_MS, 2_025) == BOUND
    assert (
        Backlog(BOUND).bytes_allowed(waiting(0, 1), 1, WAIT_MS, 0) == BOUND
    )  # nothing is known yet


def test_backlog_allows_what_is_stored_in_time_while_waits_are_long():
    made = backlog(1_000, 2_000)  # a megabyte a second
    under_way = 300_000
    bound = made.bytes_allowed(
        waiting(1_700, 200_000, 700_000), under_way + 900_000, WAIT_MS, 2_000
    )
    assert bound == pytest.approx(under_way + 500_000, rel=0.1)
    assert made.bytes_allowed([], under_way, WAIT_MS, 2_975) < BOUND  # nor as soon as nobody waits
    assert made.bytes_allowed([], under_way, WAIT_MS, 3_000) == BOUND


def test_backlog_allows_a_minimum_when_nothing_is_stored():
    made = backlog(0, 2_000)
    bound = made.bytes_allowed(waiting(1_000, 1_000), 1_000 + 5_000, WAIT_MS, 2_000)
    assert bound == 5_000 + Backlog.ALWAYS_BYTES


def test_backlog_keeps_a_configured_limit_below_the_minimum():
    made = Backlog(16 << 10)
    made.bytes_allowed([], 0, WAIT_MS, 0)
    assert made.bytes_allowed(waiting(0, 1_000), 1_000, WAIT_MS, 900) == 16 << 10


def test_overload_is_rejected_at_once_and_accepted_sends_are_stored():
    """Ten times of what the log takes, and it takes one frame every 100 ms."""
    bench = Bench(frame_size_max=32 << 10)
    taken = refused_late = refused_at_once = 0
    for step in range(400):
        for _ in range(70):
            bench.send(bytes(1024))
        at_once = len(bench.connection.answers())
        pass_time(bench, TICK_MS)
        late = len(bench.connection.answers())
        if step % 4 == 0 and (frame := bench.log.cut(bench.sends)) is not None:
            bench.answer(frame)
            stored = len(bench.connection.answers())
            taken += stored if step > 100 else 0
        refused_late += late if step > 100 else 0
        refused_at_once += at_once if step > 100 else 0
    offered = 299 * 70
    assert taken > 0.08 * offered
    assert refused_late < 0.02 * offered
    assert refused_at_once > 0.85 * offered


def test_long_send_queue_is_rejected_in_bounded_steps():
    bench = Bench(frame_size_max=16 << 10)
    for _ in range(1_500):
        bench.send(bytes(512))
    counts = []
    pass_time(bench, WAIT_MS)
    for _ in range(6):
        pass_time(bench, TICK_MS)
        counts.append(len(bench.connection.answers()))
    assert sum(counts) == 1_500
    assert max(counts) < 2 * REFUSED_AT_ONCE
    assert bench.sends.held_bytes == 0


def test_send_service_is_due_while_sends_wait_or_are_in_flight():
    bench = Bench()
    outcomes, held = bench.sends.service().chores
    assert (outcomes.rest_ms(), held.rest_ms()) == (IDLE_MS, IDLE_MS)
    bench.send()
    assert (outcomes.rest_ms(), held.rest_ms()) == (IDLE_MS, 0)
    frame = bench.log.cut(bench.sends)
    assert (outcomes.rest_ms(), held.rest_ms()) == (0, IDLE_MS)
    bench.answer(frame)
    assert (outcomes.rest_ms(), held.rest_ms()) == (IDLE_MS, IDLE_MS)


def test_send_after_an_idle_time_has_not_waited_for_it():
    bench = Bench()
    bench.clock_ms += 10_000  # nobody looked
    bench.send()
    bench.clock_ms += WAIT_MS // 4 - 1
    bench.sends.release_overdue()
    assert bench.sends.held_bytes_max == bench.config.waiting_bytes_max, "not scarce"
