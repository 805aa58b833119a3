"""What pulls do with answers that are not the usual ones."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from raftmq.client.errors import BrokerRefused
from raftmq.client.instance import ClientInstance
from raftmq.client.retry import CONTROL
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.headers import PullResponseHeader
from raftmq.spark import source
from raftmq.spark.cluster import Block, Cluster, RangePulls
from raftmq.spark.errors import DataLost
from raftmq.spark.offset_ranges import Queue, QueueRange
from raftmq.spark.options import connection_of, read_options
from tests.spark.test_rows import record

CONNECTION = connection_of({"namesrv": "h:1", "timeoutMs": "200"})


class Leader:
    """Gives a range's pulls these answers, one after the other, and the last again and again."""

    def __init__(self, *answers: RemotingCommand) -> None:
        self._answers = list(answers)

    async def invoke_leader(self, *_: object, **__: object) -> RemotingCommand:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def range_of(start: int, end: int, *, strict: bool = True) -> QueueRange:
    return QueueRange(Queue("T", "broker-a", 3), start, end, strict)


def pulls(expected: QueueRange, *answers: RemotingCommand, fail: bool = True) -> RangePulls:
    return RangePulls(cast(ClientInstance, Leader(*answers)), CONNECTION, expected, CONTROL, fail)


def block(some: RangePulls) -> tuple[int, bytes]:
    """Where the first block of a range ends, and its records."""
    result = asyncio.run(some.block())
    return result.end, result.records


def answer(
    code: int, following: int, low: int = 0, high: int = 100, body: bytes = b"records"
) -> RemotingCommand:
    ext = PullResponseHeader(0, following, low, high).to_ext()
    return RemotingCommand(code, 1, 1, ext=ext, body=body)


def test_pull_answer_with_records_advances_the_offset() -> None:
    assert block(pulls(range_of(5, 9), answer(ResponseCode.SUCCESS, 9))) == (9, b"records")
    gap = answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 12)
    assert block(pulls(range_of(5, 12), gap, fail=False)) == (12, b"")


def test_pull_answer_that_does_not_advance_is_rejected() -> None:
    with pytest.raises(BrokerRefused, match="the offset after 5 is said to be 5"):
        block(pulls(range_of(5, 50), answer(ResponseCode.SUCCESS, 5)))
    with pytest.raises(BrokerRefused):
        block(pulls(range_of(5, 50), answer(ResponseCode.NO_PERMISSION, 6)))


def test_pull_below_queue_start_is_lost_data() -> None:
    moved, rest = answer(ResponseCode.PULL_OFFSET_MOVED, 20, low=20), answer(0, 50)
    with pytest.raises(DataLost, match="queue 3 of topic T at broker-a has 20 to 100, not 5"):
        block(pulls(range_of(5, 50), moved, rest))
    for expected, fail in ((range_of(5, 20), False), (range_of(5, 20, strict=False), True)):
        assert block(pulls(expected, moved, rest, fail=fail)) == (20, b"")
    assert block(pulls(range_of(5, 50), moved, rest, fail=False)) == (50, b"records")


def test_pull_beyond_a_decreased_queue_end_is_lost_data() -> None:
    moved = answer(ResponseCode.PULL_OFFSET_MOVED, 3, high=3)
    with pytest.raises(DataLost):
        block(pulls(range_of(5, 50), moved))
    assert block(pulls(range_of(5, 50), moved, fail=False)) == (50, b"")  # nothing to read


def test_pull_from_an_emptied_queue_is_lost_data() -> None:
    nothing = answer(ResponseCode.PULL_NOT_FOUND, 5)
    with pytest.raises(DataLost, match="has nothing at 5 any more"):
        block(pulls(range_of(5, 50), nothing))
    assert block(pulls(range_of(5, 50), nothing, fail=False)) == (50, b"")


def found(*offsets: int, following: int) -> RemotingCommand:
    return answer(ResponseCode.SUCCESS, following, body=b"".join(map(record, offsets)))


def read(
    monkeypatch: pytest.MonkeyPatch,
    expected: QueueRange,
    *answers: RemotingCommand,
    fail: bool = True,
) -> list[int]:
    """Read a range as a task does."""
    some = pulls(expected, *answers, fail=fail)

    def blocks(self: Cluster, ranges: Sequence[QueueRange], fail: bool) -> Iterator[Block]:
        while not some.ended:
            yield asyncio.run(some.block())

    monkeypatch.setattr(Cluster, "blocks", blocks)
    given = {"namesrv": "h:1", "topic": "Orders", "columns": "queue_offset"}
    options = read_options(given, streaming=False)
    batches = source._read(options, source.Partition((expected,)))
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
def test_pull_of_a_gap_just_made_by_retention_is_lost_data(
    monkeypatch: pytest.MonkeyPatch, answers: list[RemotingCommand], told: str
) -> None:
    with pytest.raises(DataLost, match=told):
        read(monkeypatch, range_of(5, 50), *answers)


def test_pull_reads_around_a_gap_without_fail_on_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = found(5, 6, following=7), REMOVING, found(49, following=50)
    for expected, fail in ((range_of(5, 50), False), (range_of(5, 50, strict=False), True)):
        assert read(monkeypatch, expected, *parts, fail=fail) == [5, 6, 49]
    none = answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 50)
    assert read(monkeypatch, range_of(5, 50), none, fail=False) == []


def test_pull_is_retried_at_a_broker_that_briefly_did_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = REMOVING, found(*range(5, 50), following=50)
    assert read(monkeypatch, range_of(5, 50), *answers) == list(range(5, 50))
