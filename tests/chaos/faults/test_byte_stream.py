"""Flows, with order, times, limits, and changes of rules on bytes in flight."""

from __future__ import annotations

import random

import pytest

from raftmq.chaos.faults.byte_stream import (
    HELD_BYTES_MAX,
    PIECE_BYTES_MIN,
    QUEUE_BYTES_MIN,
    Flow,
    Item,
    Mark,
    Pace,
)
from raftmq.chaos.faults.rules import Way


def flow(way: Way | None = None, pace: Pace | None = None) -> Flow:
    return Flow(way or Way(), pace or Pace(), random.Random(3).random)


def joined(items: list[Item]) -> bytes:
    return b"".join(item for item in items if not isinstance(item, Mark))


def test_flow_without_rules_passes_all_bytes() -> None:
    one = flow()
    assert one.passes
    one.push(b"a", 1.0)
    assert not one.passes  # later bytes must not overtake it
    assert one.take(1.0) == [b"a"]
    assert one.passes and one.held_bytes == 0 and one.next_due_s() is None


def test_flow_cut_holds_bytes_and_the_heal_delivers_them_in_order() -> None:
    one = flow(Way(cut=True))
    one.push(b"a", 1.0)
    one.push(b"b", 2.0)
    one.push(Mark.END, 3.0)
    assert (one.take(99.0), one.next_due_s(), one.held_bytes) == ([], None, 2)
    one.change(Way(), 100.0)
    assert one.take(100.0) == [b"a", b"b", Mark.END]


def test_flow_delay_keeps_the_order_under_jitter() -> None:
    one = flow(Way(delay_s=0.1, jitter_s=0.5))
    for number in range(100):
        one.push(bytes([number]), number * 0.001)
    dues = []
    result: list[Item] = []
    while (due_s := one.next_due_s()) is not None:
        dues.append(due_s)
        result += one.take(due_s)
    assert joined(result) == bytes(range(100))
    assert dues == sorted(dues)
    assert dues[0] >= 0.1 and dues[-1] <= 0.099 + 0.6
    assert dues[-1] - dues[0] > 0.2  # it was drawn, not fixed


def test_lifted_flow_delay_delivers_everything_at_once() -> None:
    one = flow(Way(delay_s=10))
    one.push(b"late", 1.0)
    assert one.take(10.9) == []
    one.change(Way(), 2.0)
    assert one.take(2.0) == [b"late"]


def test_flow_delay_continues_after_a_cut() -> None:
    one = flow(Way(delay_s=1))
    one.push(b"x", 0.0)
    one.change(Way(cut=True, delay_s=1), 0.5)
    assert one.take(5.0) == []
    one.change(Way(delay_s=1), 0.6)
    assert one.next_due_s() == 1.0  # it kept its time during the cut
    assert one.take(1.0) == [b"x"]


def test_flow_rate_spreads_bytes_over_time_in_pieces() -> None:
    one = flow(Way(rate=100_000))
    one.push(b"x" * 50_000, 0.0)
    halfway = joined(one.take(0.25))
    assert len(halfway) == pytest.approx(25_000, abs=2_000)
    assert one.take(0.25) == []
    rest = joined(one.take(0.5001))
    assert len(halfway) + len(rest) == 50_000


def test_flow_rate_is_shared_by_the_connections_of_a_link() -> None:
    pace = Pace()
    one, other = flow(Way(rate=1_000), pace), flow(Way(rate=1_000), pace)
    one.push(b"x" * PIECE_BYTES_MIN, 0.0)
    other.push(b"y" * PIECE_BYTES_MIN, 0.0)
    assert other.next_due_s() == pytest.approx(2 * PIECE_BYTES_MIN / 1_000)
    pace.reset()
    one.push(b"z" * PIECE_BYTES_MIN, 10.0)
    assert one.take(10.0 + PIECE_BYTES_MIN / 1_000) == [b"x" * PIECE_BYTES_MIN, b"z" * 512]


def test_flow_reports_when_it_is_full() -> None:
    delayed, slow = flow(Way(delay_s=60)), flow(Way(rate=10))
    delayed.push(b"x" * (HELD_BYTES_MAX - 1), 0.0)
    assert not delayed.full
    delayed.push(b"x", 0.0)
    assert delayed.full and delayed.held_bytes == HELD_BYTES_MAX
    slow.push(b"x" * (QUEUE_BYTES_MIN - 1), 0.0)
    assert not slow.full
    slow.push(b"x", 0.0)
    assert slow.full
    slow.change(Way(), 0.0)
    assert not slow.full
    assert len(joined(slow.take(0.0))) == QUEUE_BYTES_MIN
    fast = flow(Way(rate=1e9))
    fast.push(b"x" * (HELD_BYTES_MAX - 1), 0.0)
    assert not fast.full


def test_flow_reset_arrives_after_earlier_bytes() -> None:
    one = flow(Way(delay_s=1))
    one.push(b"last words", 0.0)
    one.push(Mark.RESET, 0.1)
    assert one.take(1.0) == [b"last words"]
    assert one.take(1.1) == [Mark.RESET]
    one.push(b"x", 2.0)
    one.clear()
    assert one.held_bytes == 0 and one.next_due_s() is None


@pytest.mark.parametrize("seed", range(30))
def test_flow_bytes_arrive_completely_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    ways = [Way(), Way(cut=True), Way(delay_s=0.2, jitter_s=0.3), Way(rate=5_000)]
    one = Flow(Way(), Pace(), rng.random)
    sent, got = b"", b""
    now_s = 0.0
    for _ in range(200):
        now_s += rng.random() * 0.05
        word = rng.randrange(3)
        if word == 0:
            data = rng.randbytes(rng.randrange(1, 700))
            sent += data
            one.push(data, now_s)
        elif word == 1:
            got += joined(one.take(now_s))
        else:
            one.change(rng.choice(ways), now_s)
        assert sent.startswith(got)
        assert one.held_bytes == len(sent) - len(got)
    one.change(Way(), now_s)
    assert got + joined(one.take(now_s)) == sent
