"""Faults of stock pysyncobj 0.3.17 that lose log entries; each schedule runs on both.

tests/chaos/pysyncobj/worlds.py defines the steps.
"""

from __future__ import annotations

import pytest

from tests.chaos.pysyncobj.conftest import MakeWorld, start

# The package leaves its meta file to the collector after reading it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

BIG = 7_000  # bytes, so ten entries fill a batch of 64 KiB
ORDERS = ["order-0", "order-1", "order-2"]


def test_a_matching_tail_is_truncated_in_order_on_fifo_links(make: MakeWorld) -> None:
    """Fault 1. An append with a matching prev truncates everything behind it, matching or not. Two
    refusals of one gap make the leader send the range twice; the first sending is acknowledged and
    committed, the first message of the second truncates it again, and then the leader dies."""
    w = start(make)
    values = [f"v{n}" for n in range(14)]
    w.write("a", values[0], BIG)
    w.step("a")
    w.drop("a", "b", "c")  # the connection breaks with the entry on it
    w.step("a")
    w.step("a")  # connected again; two heartbeats travel before the first answer is read
    w.drop("a", "c")
    w.deliver("a", "b")
    for value in values[1:]:
        w.write("a", value, BIG)
    w.deliver("b", "a", 1)  # the first refusal
    w.step("a")
    w.drop("a", "c")
    w.deliver("a", "b")  # b has everything, and answers
    w.deliver("b", "a", 1)  # the second refusal is older than the acknowledgements
    w.step("a")
    w.drop("a", "c")
    w.deliver("b", "a")
    w.tick("a")
    w.deliver("a", "b", 1)  # the first batch of the second sending; the rest dies with a
    w.crash("a")
    w.forget("a")
    assert w.elect("b", "c")
    w.beat("b", "c")
    w.restart("a")
    w.beat("b", "a", "c", times=12)
    if w.stock:
        assert w.acked == ["first", *values]
        assert w.lost("b") == values[10:]
        assert w.lost("a") == values[10:]  # its own journal had them; the new leader cut them off
    else:
        assert w.lost("b") == w.lost("a") == []
    assert w.goes_on("b")


def test_an_old_heartbeat_truncates_committed_entries(make: MakeWorld) -> None:
    """Fault 1 again, with a late empty append from before the writes."""
    w = start(make)
    w.step("a")
    late = w.take("a", "b")
    assert late
    w.drop("a", "c")  # c receives nothing from here on
    for value in ORDERS:
        w.write("a", value)
    for _ in range(3):
        w.step("a")
        w.drop("a", "c")
        w.exchange("a", "b")
    assert w.acked == ["first", *ORDERS]
    w.give("a", "b", late)
    w.crash("a")
    w.forget("a")
    leader = w.elect_one_of("c", "b")
    w.restart("a")
    w.beat(leader, *(n for n in "abc" if n != leader), times=6)
    assert w.lost(leader) == (ORDERS if w.stock else [])
    assert w.goes_on(leader)


def test_fifo_links_with_a_delay_truncate_applied_entries(make: MakeWorld) -> None:
    """Fault 1 under ordinary load. A connection breaks once; after that nothing is lost, repeated
    or reordered, messages only take longer than the period. The follower is truncated below its
    applied index."""
    w = start(make)
    for n in range(12):
        w.write("a", f"v{n}", BIG)
        w.beat("a", "b", times=1)
        w.drop("a", "c")
    assert len(w.acked) == 13
    truncate = 0
    on_the_way: list[list[tuple[str, str, object]]] = []
    for n in range(30):
        w.write("a", f"w{n}", BIG)
        w.step("a")
        links = [(s, t) for s in "abc" for t in "abc" if s != t]
        on_the_way.append([(s, t, m) for s, t in links for m in w.take(s, t)])
        if len(on_the_way) < 4:
            continue  # each period's messages arrive three periods later, in order
        for source, target, message in on_the_way.pop(0):
            applied = w.values(target)[: w.commit(target)]
            w.give(source, target, [message])
            truncate += len(w.values(target)) < len(applied)
        for name in "abc":
            w.tick(name)
    w.elect_one_of("a", "b", "c")
    assert w.lost("a") == []  # this time; but a follower's commit index went back
    assert (truncate > 0) is w.stock


def test_an_acknowledgement_of_an_older_term_commits(make: MakeWorld) -> None:
    """Fault 2. An acknowledgement names no term. An acknowledgement of term 3 arrives in a later
    leadership of the same node, at an index with a different entry by now, and commits that on one
    replica."""
    w = start(make)
    for n in range(10):  # term 1: entries that reach nobody
        w.write("a", f"old{n}", BIG)
    w.step("a")
    w.drop("a", "b", "c")
    assert w.elect("c", "b")  # term 2, without any receiver
    w.drop("c", "a", "b")
    w.drop("b", "c")
    w.now_s += 31  # both give up a leadership that nobody confirms by then
    w.tick("a")
    assert not w.leads("a")
    w.now_s += 2
    w.tick("a")  # a candidacy with lost requests
    w.drop("a", "b", "c")
    for _ in range(3):
        if w.elect("a", "b"):  # term 3, with b's vote
            break
    assert w.leads("a")
    w.deliver("a", "c", 1)  # c learns of the term only
    w.drop("a", "c")
    w.drop("c", "a")
    for _ in range(20):  # a finds b's end and sends its old tail, of which one message arrives
        w.step("a")
        w.drop("a", "c")
        held = len(w.values("b"))
        while w.links["a", "b"] and len(w.values("b")) == held:
            w.deliver("a", "b", 1)
        if len(w.values("b")) > held:
            break
        w.deliver("b", "a")
    w.drop("a", "b")  # the rest is lost with the connection
    late = w.take("b", "a")  # b's acknowledgement is on its way for long
    assert late
    for _ in range(5):  # c's last term is newer than b's, so b votes for it
        w.drop("c", "a")
        if w.elect("c", "b"):
            break
    for _ in range(30):  # it overwrites a, unnoticed by b
        w.drop("c", "b")
        w.exchange("c", "a", rounds=1)
        w.step("c")
    w.exchange("c", "a", rounds=1)
    w.drop("c", "a", "b")
    w.drop("a", "b", "c")
    w.elect("a", "c")
    w.drop("a", "b", "c")
    w.write("a", "payment")
    w.step("a")
    w.drop("a", "b", "c")  # "payment" does not leave a
    w.give("b", "a", late)
    w.tick("a")
    w.drop("a", "b", "c")
    w.crash("a")
    leader = w.elect_one_of("c", "b")
    assert w.acked[0] == "first"
    assert w.lost(leader) == (["payment"] if w.stock else [])
    assert w.goes_on(leader)


def test_a_vote_that_arrives_twice_counts_twice(make: MakeWorld) -> None:
    """Fault 4. Votes are counted, not identified. Of five nodes one leads with the vote of one
    peer, a second is elected properly in the same term, and its entries replace those of the first.
    """
    w = make("abcde")
    w.now_s += 1.5
    w.tick("a")
    w.tick("c")
    for _ in range(3):
        for voter, candidate in (("b", "a"), ("d", "c"), ("e", "c")):
            w.deliver(candidate, voter)
        if w.links["b", "a"]:
            w.repeat("b", "a")
        w.deliver("b", "a")
        w.deliver("d", "c")
        w.deliver("e", "c")
    assert w.leads("c")
    for name in "ab":
        for other in "cde":
            w.drop(name, other)
            w.drop(other, name)
    w.beat("c", "d", "e")
    w.write("c", "order")
    w.beat("c", "d", "e")
    assert w.acked == ["order"]
    assert w.leads("a") is w.stock
    assert bool(w.terms_led_twice()) is w.stock
    w.forget("c")
    for other in "bde":
        w.disconnect("a", other)
        w.connect("a", other)
    for _ in range(6):
        w.step("a")
        w.drop("a", "c")
        w.exchange("a", "b", "d", "e", rounds=2)
    w.crash("c")
    leader = w.elect_one_of("d", "e", "b", "a")
    assert w.lost(leader) == (["order"] if w.stock else [])
    assert w.goes_on(leader)


def test_an_entry_above_the_batch_ends_before_its_last_piece(make: MakeWorld) -> None:
    """Fault 7. An entry of more than 64 KiB is pickled and sent in pieces; its length before
    pickling decides the end. For bytes that a pickle doubles the end is too early, and the
    receiver's handler raises over half a pickle, once per remaining piece."""
    w = start(make)
    body = "\xff" * 70_000
    w.write("a", body)
    raised = 0
    for _ in range(6):
        w.step("a")
        for target in "bc":
            for message in w.take("a", target):
                try:
                    w.give("a", target, [message])
                except Exception:  # whatever half a pickle raises
                    raised += 1
            w.deliver(target, "a")
    assert (raised > 0) is w.stock
    # nothing is lost, because it is reassembled
    assert w.values("b") == w.values("c") == ["first", body]
