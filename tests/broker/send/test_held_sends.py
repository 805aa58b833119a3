"""Sends that come while a leader is awaited: held for a moment, within bounds, never lost."""

from raftmq.broker.send.queue import HOLD_MS_MAX
from raftmq.remoting.codes import ResponseCode
from tests.broker.send.test_service import Bench


def handing_over(**config):
    bench = Bench(**config)
    bench.leader = ""
    bench.sends.leadership(1, False, awaited=True)
    return bench


def test_former_leader_rejects_held_sends_once_the_successor_is_known():
    bench = Bench()
    bench.send()  # admitted, not cut
    bench.leader = ""
    bench.sends.leadership(1, False, awaited=True)
    bench.send()
    assert not bench.connection.writes and bench.sends.held_bytes > 0
    bench.leader = "successor:1"
    bench.sends.leadership(2, False)
    answers = bench.connection.answers()
    assert [answer.opaque for answer in answers] == [1, 2]
    for answer in answers:
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark.startswith("[NOT_LEADER]")
        assert answer.ext == {"leaderAddr": "successor:1"}
    assert bench.sends.held_bytes == 0


def test_new_leader_stores_held_sends_when_it_is_ready():
    bench = Bench(leading=False)
    bench.log.term = 3
    bench.sends.leadership(3, False, awaited=True)
    bench.send()
    bench.send(one_way=True)
    assert bench.log.cuts_requested == 0
    bench.sends.leadership(3, True)
    assert bench.log.cuts_requested == 1
    frame = bench.log.cut(bench.sends)
    assert frame.record_count == 2 and frame.term == 3
    bench.answer(frame)
    assert [answer.code for answer in bench.connection.answers()] == [0]
    assert bench.sends.held_bytes == 0


def test_failed_transfer_rejects_admitted_sends_and_stores_held_ones():
    bench = Bench()
    bench.send()
    bench.sends.leadership(1, False, awaited=True)
    bench.send()
    bench.log.term = 2
    bench.sends.leadership(2, True)
    (refused,) = bench.connection.answers()
    assert (refused.opaque, refused.code) == (1, ResponseCode.SERVICE_NOT_AVAILABLE)
    assert bench.commit().record_count == 1


def test_sends_are_held_at_most_for_the_limit():
    bench = handing_over()
    bench.send()
    bench.clock_ms += HOLD_MS_MAX - 1
    bench.sends.release_overdue()
    assert not bench.connection.writes
    bench.sends.leadership(2, False, awaited=True)  # more news of the same does not prolong it
    bench.clock_ms += 1
    bench.sends.release_overdue()
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.send()
    assert len(bench.connection.answers()) == 1  # refused at once from here on


def test_held_sends_are_limited_in_bytes():
    bench = handing_over(waiting_bytes_max=16 * 1024)
    for _ in range(200):
        bench.send(body=bytes(512))
    assert bench.sends.held_bytes <= 16 * 1024
    answers = bench.connection.answers()
    assert len(answers) == 200 - 16
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}


def test_stopping_broker_rejects_held_sends():
    bench = handing_over()
    bench.send()
    bench.sends.close()
    (answer,) = bench.connection.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
