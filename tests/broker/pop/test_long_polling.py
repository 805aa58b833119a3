"""Waiting pops: who is woken by what, and how many in one turn of the loop."""

from dataclasses import dataclass, field

from raftmq.broker.consume.filtered_reads import WORK_MAX
from raftmq.broker.consume.filters import Filter
from raftmq.broker.consume.long_polling import AT_ONCE_MAX
from raftmq.broker.pop.long_polling import ATTEMPT_WORK, Waiter, WaitingPops
from raftmq.remoting.memory_limits import Allowance
from raftmq.store.dispatch import QUEUE_ENTRY

HEAVY = WORK_MAX // 2
ONE = QUEUE_ENTRY.pack(0, 100, 0)


@dataclass
class Pops:
    """Waiting pops whose filters take `work`, and which of them have run."""

    work: int = 0
    ran: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting: WaitingPops[str] = WaitingPops(
            lambda: 1_000,
            Allowance(1 << 20),
            self.again,
            lambda waiter: self.over.append(waiter.pop),
        )

    def again(self, waiter: Waiter[str]) -> int:
        self.ran.append(waiter.pop)
        return self.work

    def wait(
        self,
        pop: str,
        group: str = "",
        deadline_ms: int = 1_000,
        owner: object = None,
        *,
        asks: bool = False,
    ) -> None:
        assert self.waiting.wait(
            Waiter("T", group or pop, -1, Filter(None), deadline_ms, pop, owner, asks=asks)
        )

    def turn(self, now_ms: int = 0) -> list[str]:
        before = len(self.ran)
        self.waiting.turn(now_ms)
        return self.ran[before:]


def test_waiting_pops_with_costly_filters_are_spread_over_turns() -> None:
    pops = Pops(HEAVY)
    for number in range(5):
        pops.wait(f"g{number}")
    pops.waiting.arrived("T", 0, ONE)
    assert pops.ran == ["g0", "g1"]
    assert pops.waiting.rest_ms(0) == 0
    assert pops.turn() == ["g2", "g3"]
    assert pops.turn() == ["g4"]
    assert pops.turn() == []
    assert (pops.waiting.count, pops.waiting.rest_ms(0)) == (0, float("inf"))


def test_waiting_pops_without_filters_are_spread_over_turns() -> None:
    pops, count = Pops(), 2 * WORK_MAX // ATTEMPT_WORK
    for number in range(count):
        pops.wait(f"g{number}")
    pops.waiting.arrived("T", 0, ONE)
    assert len(pops.ran) == WORK_MAX // ATTEMPT_WORK
    assert len(pops.turn()) == count - WORK_MAX // ATTEMPT_WORK


def test_later_arrivals_wake_further_pops_of_the_group() -> None:
    pops = Pops(WORK_MAX)
    for number in range(4):
        pops.wait(f"p{number}", "G")
    for _ in range(3):
        pops.waiting.arrived("T", 0, ONE)
    assert pops.ran == ["p0"]
    assert [pops.turn(), pops.turn(), pops.turn()] == [["p1"], ["p2"], []]
    assert pops.waiting.count == 1


def test_waiting_pop_that_times_out_or_disconnects_does_not_run() -> None:
    pops = Pops(WORK_MAX)
    pops.wait("first")
    pops.wait("gone", owner="connection")
    pops.wait("next")
    pops.wait("late", deadline_ms=10)
    pops.waiting.arrived("T", 0, ONE)
    pops.waiting.closed("connection")
    assert pops.turn(now_ms=10) == ["next"]
    assert (pops.over, pops.waiting.count) == (["late"], 0)
    assert pops.turn() == []


def test_waiting_notification_runs_once_more_at_its_time_out() -> None:
    pops = Pops(HEAVY)
    for number in range(3):
        pops.wait(f"q{number}", deadline_ms=10, asks=True)
    assert pops.turn(now_ms=10) == ["q0", "q1"]
    assert pops.waiting.rest_ms(10) == 0
    assert pops.turn(now_ms=10) == ["q2"]
    assert (pops.over, pops.waiting.count) == ([], 0)


def test_ended_notification_does_not_run() -> None:
    pops = Pops()
    for number in range(AT_ONCE_MAX + 1):
        pops.wait(f"q{number}", asks=True)
    pops.waiting.end_all()
    assert (pops.turn(), len(pops.over), pops.waiting.count) == ([], AT_ONCE_MAX + 1, 0)
