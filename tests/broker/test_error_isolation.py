"""Work done for clients while frames are applied cannot fail the apply."""

import struct

import pytest

from raftmq.broker.error_isolation import Contained
from raftmq.broker.errors import Refused
from raftmq.broker.messages.send_request import INT32_MAX, Outgoing
from tests.broker.doubles import FakeConnection
from tests.broker.send.test_frame_builder import fields
from tests.broker.send.test_service import Bench

HOST = b"\x0a\x00\x00\x09\x00\x00\x0f\xa0"
ODD = ["7", None, [], {}, 1.5, 1 << 70, object()]


class Peer(FakeConnection):
    """A connection that can be ended, or whose writes fail."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error
        self.aborted = ""

    def write_many(self, frames):
        if self.error is not None:
            raise self.error
        return super().write_many(frames)

    def abort(self, reason):
        self.aborted = reason
        self.is_open = False


def test_contained_error_is_counted_and_ends_its_connection():
    contained, peer = Contained(), Peer()
    contained.run("fine", lambda: None)
    contained.run("cut", lambda: 1 // 0)
    contained.failed("cut", ValueError("x"), peer)
    assert contained.counts["cut"] == sum(contained.counts.values()) == 2
    assert peer.aborted


@pytest.mark.parametrize("opaque", ODD)
@pytest.mark.parametrize("codec", [0, 1])
def test_failed_answer_ends_only_its_connection(opaque, codec):
    """Even if every check before it had let such an opaque through."""
    bench = Bench()
    odd, other = Peer(), Peer()
    bench.sends.receive((odd, opaque, 0, codec), fields(), b"first", HOST, 310)
    bench.sends.receive((other, 5, 0, 0), fields(), b"second", HOST, 310)
    frame = bench.commit()
    assert frame.record_count == 2
    assert [(a.opaque, a.code) for a in other.answers()] == [(5, 0)]
    assert bool(odd.aborted) != bool(odd.writes)
    assert bench.sends.held_bytes == 0


@pytest.mark.parametrize("error", [AssertionError("a"), RuntimeError("b"), struct.error("c")])
def test_failed_connection_write_ends_only_that_connection(error):
    bench = Bench()
    broken, other = Peer(error), Peer()
    for connection in (broken, other):
        bench.sends.receive((connection, 1, 0, 0), fields(), b"body", HOST, 310)
    bench.commit()
    assert broken.aborted and not other.aborted
    assert [a.code for a in other.answers()] == [0]
    bench.sends.receive((broken, 2, 0, 0), fields(b="No such topic!"), b"body", HOST, 310)
    assert bench.sends.held_bytes == 0


def test_unpackable_record_is_rejected_and_queue_offsets_stay():
    """The net behind the checks of sends: the frame is not built, the next one is."""
    bench = Bench()
    bad, good = Peer(), Peer()
    bench.sends.receive((good, 1, 0, 0), fields(), b"before", HOST, 310)
    bench.sends.receive((bad, 2, 0, 0), fields(), b"bad", HOST, 310)
    (group,) = bench.sends._groups
    record = group.records[1]
    group.records[1] = (*record[:8], 1 << 40, *record[9:])  # reconsumeTimes
    assert bench.log.cut(bench.sends) is None
    assert {a.code for a in [*bad.answers(), *good.answers()]} == {13}
    assert bench.sends.held_bytes == 0
    bench.sends.receive((good, 3, 0, 0), fields(), b"after", HOST, 310)
    bench.commit()
    (answer,) = good.answers()
    assert (answer.code, answer.ext["queueOffset"]) == (0, "0")


def test_own_message_with_too_many_retries_is_rejected():
    bench = Bench()
    message = Outgoing("T", 0, b"body", b"", 1, HOST, reconsume=INT32_MAX + 1)
    with pytest.raises(Refused):
        bench.sends.store([message], b"", lambda error: None)
    assert bench.sends.held_bytes == 0
