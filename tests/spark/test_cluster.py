"""What pulls do with answers that are not the usual ones."""

import pytest

from raftmq.client.errors import BrokerRefused
from raftmq.client.instance import ClientInstance
from raftmq.client.retry import CONTROL
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullResponseHeader
from raftmq.spark.cluster import DataLost, _Pulls
from raftmq.spark.options import connection_of
from raftmq.spark.positions import Queue, QueueRange

CONNECTION = connection_of({"namesrv": "h:1"})


def pulls(start: int, end: int, *, strict: bool = True, fail: bool = True) -> _Pulls:
    wanted = QueueRange(Queue("T", "broker-a", 3), start, end, strict)
    return _Pulls(ClientInstance("h:1"), CONNECTION, wanted, CONTROL, fail)


def answer(code: int, following: int, low: int = 0, high: int = 100) -> RemotingCommand:
    ext = PullResponseHeader(0, following, low, high).to_ext()
    return RemotingCommand(code, 1, 1, ext=ext, body=b"records")


def test_records_move_it_on() -> None:
    some = pulls(5, 50)
    assert some._take(answer(ResponseCode.SUCCESS, 9)) == b"records"
    assert some._take(answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 12)) == b""  # a gap
    assert some._offset == 12


def test_an_answer_that_does_not_move_on_is_refused() -> None:
    with pytest.raises(BrokerRefused, match="the offset after 5 is said to be 5"):
        pulls(5, 50)._take(answer(ResponseCode.SUCCESS, 5))
    with pytest.raises(BrokerRefused):
        pulls(5, 50)._take(answer(ResponseCode.NO_PERMISSION, 6))


def test_what_retention_removed_is_lost_data() -> None:
    moved = answer(ResponseCode.PULL_OFFSET_MOVED, 20, low=20)
    with pytest.raises(DataLost, match="queue 3 of topic T at broker-a has 20 to 100, not 5"):
        pulls(5, 50)._take(moved)
    for lenient in (pulls(5, 50, fail=False), pulls(5, 50, strict=False)):
        assert lenient._take(moved) == b""
        assert lenient._offset == 20


def test_an_end_that_went_back_is_lost_data() -> None:
    moved = answer(ResponseCode.PULL_OFFSET_MOVED, 3, high=3)
    with pytest.raises(DataLost):
        pulls(5, 50)._take(moved)
    lenient = pulls(5, 50, fail=False)
    lenient._take(moved)
    assert lenient._offset == 50  # there is nothing to read


def test_a_queue_that_has_nothing_any_more() -> None:
    with pytest.raises(DataLost, match="has nothing at 5 any more"):
        pulls(5, 50)._ended()
    lenient = pulls(5, 50, fail=False)
    lenient._ended()
    assert lenient._offset == 50
