"""Faults of stock pysyncobj 0.3.17 in elections; each schedule runs on both.

None of these loses an entry by itself; they cost availability, stale answers, or the promise of one
leader per term (which test_log.py turns into a loss).
"""

from __future__ import annotations

import pytest

from tests.chaos.pysyncobj.conftest import MakeWorld, start
from tests.chaos.pysyncobj.worlds import PERIOD_S, World

# The package leaves its meta file to the collector after reading it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

FALLBACK_S = 30  # leaderFallbackTimeout as shipped


def without_a_and_c(w: World) -> None:
    """A period in which the link between a and c is dead and the rest arrives."""
    w.step("a")
    for name in "cb":
        w.tick(name)
    w.drop("a", "c")
    w.drop("c", "a")
    for _ in range(3):
        for source, target in (("a", "b"), ("b", "a"), ("c", "b"), ("b", "c")):
            w.deliver(source, target)


def test_a_partitioned_node_deposes_the_leader(make: MakeWorld) -> None:
    """Fault 5, no PreVote. A node that was isolated for three seconds returns with a higher term,
    and the healthy leader steps down for it."""
    w = start(make)
    for _ in range(30):
        w.step("a")
        w.drop("a", "c")
        w.exchange("a", "b")
        for name in "bc":
            w.tick(name)
        w.drop("c", "a", "b")
    assert (w.term("c") > w.term("a")) is w.stock
    while not w.links["c", "a"]:  # its next request is not lost
        w.step("a")
        w.drop("a", "c")
        w.exchange("a", "b")
        w.tick("c")
    w.deliver("c", "a")
    assert w.leads("a") is not w.stock


def test_a_leader_without_a_majority_leads_on(make: MakeWorld) -> None:
    """Fault 6. An isolated leader takes 30 seconds to step down, and answers reads and status as
    the leader until then."""
    w = start(make)
    cut_s = w.now_s
    while w.leads("a"):
        assert w.now_s - cut_s < 60
        w.step("a")
        w.drop("a", "b", "c")
    seconds = w.now_s - cut_s
    if w.stock:
        assert FALLBACK_S - 1 < seconds < FALLBACK_S + 1
    else:
        assert seconds < 1.5  # the longest election time-out, and the age of the last answer


def test_one_dead_link_makes_two_leaders(make: MakeWorld) -> None:
    """Faults 5 and 6. Only the link between a and c is dead, b hears both. b votes for c although
    it has a leader, a is not informed, and both lead for 30 seconds. Commands sent to a have no
    answer."""
    w = start(make)
    w.disconnect("a", "c")
    w.disconnect("c", "a")
    both_s = 0.0
    for _ in range(int(40 / PERIOD_S)):
        without_a_and_c(w)
        if len(w.leaders()) == 2:
            if not both_s:
                w.write("a", "to the old one")
                w.write("c", "to the new one")
            both_s += PERIOD_S
    if w.stock:
        assert FALLBACK_S - 2 < both_s < FALLBACK_S + 1
        assert w.acked == ["first", "to the new one"]
    else:
        assert both_s == 0
        w.write("a", "to the only one")
        without_a_and_c(w)
        assert w.acked == ["first", "to the only one"]


def test_a_survivor_names_a_leader_that_is_dead(make: MakeWorld) -> None:
    """Issue 78. With both others killed, the last node still names the dead leader."""
    w = start(make)
    w.crash("a")
    w.crash("b")
    for _ in range(int(60 / PERIOD_S)):
        w.step("c")
    assert w.leader_of("c") == ("a" if w.stock else None)


def test_a_lost_answer_costs_the_vote(make: MakeWorld) -> None:
    """Fault 4, second half. A voter does not repeat its vote, not even to the same candidate, so a
    lost answer costs the candidacy."""
    w = make()
    w.now_s += 1.5
    w.tick("a")
    for _ in range(3):
        w.drop("a", "c")
        requests = w.take("a", "b")
        w.give("a", "b", requests)
        w.drop("b", "a")  # the answer is lost,
        w.give("a", "b", requests)  # and the question arrives once more
        w.deliver("b", "a")
    assert w.leads("a") is not w.stock
