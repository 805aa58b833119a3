"""What pulls do with answers that are not the usual ones."""

import asyncio
from collections.abc import Iterator

import pytest

from raftmq.client.errors import BrokerRefused
from raftmq.client.instance import ClientInstance
from raftmq.client.retry import CONTROL
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullResponseHeader
from raftmq.spark import source
from raftmq.spark.cluster import Block, Cluster, DataLost, _Pulls
from raftmq.spark.offset_ranges import Queue, QueueRange
from raftmq.spark.options import connection_of, read_options
from tests.spark.test_rows import record

CONNECTION = connection_of({"namesrv": "h:1", "timeoutMs": "200"})


def pulls(start: int, end: int, *, strict: bool = True, fail: bool = True) -> _Pulls:
    expected = QueueRange(Queue("T", "broker-a", 3), start, end, strict)
    return _Pulls(ClientInstance("h:1"), CONNECTION, expected, CONTROL, fail)


def answer(
    code: int, following: int, low: int = 0, high: int = 100, body: bytes = b"records"
) -> RemotingCommand:
    ext = PullResponseHeader(0, following, low, high).to_ext()
    return RemotingCommand(code, 1, 1, ext=ext, body=body)


def test_records_move_it_on() -> None:
    some = pulls(5, 50)
    assert some._take(answer(ResponseCode.SUCCESS, 9)) == b"records"
    assert some._offset == 9
    lenient = pulls(5, 50, fail=False)
    assert lenient._take(answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 12)) == b""  # a gap
    assert lenient._offset == 12


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


class Answers:
    """What a broker answers to the pulls of a range, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: RemotingCommand) -> None:
        self._answers = list(answers)
        monkeypatch.setattr(_Pulls, "_pull", self._pull)

    async def _pull(self) -> RemotingCommand:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def found(*offsets: int, following: int) -> RemotingCommand:
    return answer(ResponseCode.SUCCESS, following, body=b"".join(map(record, offsets)))


def read(monkeypatch: pytest.MonkeyPatch, some: _Pulls) -> list[int]:
    """Read a range as a task does."""

    def blocks(self: Cluster, wanted: QueueRange, fail: bool) -> Iterator[Block]:
        while not some.ended:
            yield asyncio.run(some.block())

    monkeypatch.setattr(Cluster, "blocks", blocks)
    given = {"namesrv": "h:1", "topic": "Orders", "columns": "queue_offset"}
    options = read_options(given, streaming=False)
    batches = source._read(options, source.Partition(some._range))
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


REMOVING = answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 49)


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([found(5, 48, 49, following=50)], "has 3 messages from 5 to 50"),  # begins, then a hole
        ([found(*range(9, 50), following=50)], "has 41 messages from 5 to 50"),
        ([found(*range(5, 9), following=9), found(*range(20, 60), following=60)],
         "has 34 messages from 5 to 50"),
        ([REMOVING], "has nothing at 5 any more"),
        ([REMOVING, answer(ResponseCode.PULL_OFFSET_MOVED, 49, low=49)], "has 49 to 100, not 5"),
    ],
)  # fmt: skip
def test_a_hole_that_retention_has_just_made_is_lost_data(
    monkeypatch: pytest.MonkeyPatch, answers: list[RemotingCommand], told: str
) -> None:
    Answers(monkeypatch, *answers)
    with pytest.raises(DataLost, match=told):
        read(monkeypatch, pulls(5, 50))


def test_what_is_around_a_hole_is_read_if_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for lenient in (pulls(5, 50, fail=False), pulls(5, 50, strict=False)):
        Answers(monkeypatch, found(5, 6, following=7), REMOVING, found(49, following=50))
        assert read(monkeypatch, lenient) == [5, 6, 49]
        Answers(monkeypatch, answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 50))
        assert read(monkeypatch, pulls(5, 50, fail=False)) == []


def test_a_broker_that_did_not_lead_for_a_moment_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Answers(monkeypatch, REMOVING, found(*range(5, 50), following=50))
    assert read(monkeypatch, pulls(5, 50)) == list(range(5, 50))
