"""Sends without a route, by their deadlines."""

from __future__ import annotations

from raftmq.client.errors import CODE_NO_ROUTE
from raftmq.client.message import MessageQueue
from raftmq.client.producer.pending_send import Pending, UnroutedSends
from raftmq.client.producer.send_frame import SEND_MESSAGE_V2, OutgoingSend


def a_send(deadline: float, topic: str = "T") -> Pending:
    item = OutgoingSend(SEND_MESSAGE_V2, b"x", "key", b"", 0, 0, 1)
    return Pending(item, MessageQueue(topic, "", -1), False, deadline, lambda result, error: None)


def test_overdue_unrouted_sends_are_returned_with_the_reason() -> None:
    unrouted = UnroutedSends()
    early, late, other = a_send(1.0), a_send(3.0), a_send(2.0, "U")
    for pending in (late, early, other):
        unrouted.add(pending.queue.topic, pending)
    assert unrouted.latest("T") == 3.0
    unrouted.note("T", "no route")
    assert unrouted.overdue(0.9) == []
    assert unrouted.overdue(2.0) == [early, other]
    assert early.error().code == other.error().code == CODE_NO_ROUTE
    assert early.reason == "topic 'T': no route"
    assert other.reason == "topic 'U': no name server answered in time"
    assert unrouted.latest("U") is None
    assert unrouted.take("T") == [late]
    assert unrouted.take("T") == unrouted.take_all() == []


def test_unrouted_sends_are_taken_in_order_up_to_a_deadline() -> None:
    unrouted = UnroutedSends()
    sends = [a_send(deadline) for deadline in (2.0, 5.0, 1.0)]
    for pending in sends:
        unrouted.add("T", pending)
    assert unrouted.take("T", 2.0) == [sends[0], sends[2]]
    assert unrouted.take_all() == [sends[1]]


def test_reason_of_unrouted_sends_is_dropped_with_the_last_send() -> None:
    unrouted = UnroutedSends()
    unrouted.note("T", "nobody waits")
    unrouted.add("T", a_send(1.0))
    unrouted.note("T", "no route")
    unrouted.take("T")
    unrouted.add("T", again := a_send(1.0))
    assert unrouted.overdue(1.0) == [again]
    assert again.reason == "topic 'T': no name server answered in time"
