"""A damaged message costs itself at most, and the rows around it nothing."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from raftmq.spark.cluster import Block, Cluster
from raftmq.spark.damage import SEARCHES_MAX, Repair
from raftmq.spark.offset_ranges import Queue, QueueRange
from raftmq.spark.options import read_options
from raftmq.spark.rows import DamagedMessages
from tests.spark.test_rows import record

COUNT = 9
QUEUE = Queue("Orders", "broker-a", 3)
KINDS = {
    "a flipped bit": record(4).replace(b"body", b"bodx"),
    "a body that cannot be unpacked": record(4, b"not packed", sys_flag=1),
    "a size of nothing": bytes(100),
    "an end that is cut off": record(4)[:-1],
}


class Replicas:
    """Brokers that have these records, the leader first."""

    def __init__(self, *copies: dict[int, bytes]) -> None:
        self._copies = copies
        self.asked = 0

    def block(self, start: int, end: int) -> Block:
        records = b"".join(self._copies[0][number] for number in range(start, end))
        return Block(QUEUE, start, end, records, True)

    def blocks(self, ranges: Sequence[QueueRange], fail: bool) -> Iterator[Block]:
        return (self.block(each.start, each.end) for each in ranges)

    def copies(self, queue: Queue, offset: int) -> Iterator[bytes]:
        self.asked += 1
        return (copy[offset] for copy in self._copies)


WHOLE = {number: record(number) for number in range(COUNT)}


def read(replicas: Replicas, on_damage: str, count: int = COUNT) -> list[dict[str, Any]]:
    given = {"namesrv": "h:1", "topic": "Orders", "onDamage": on_damage}
    repair = Repair(cast(Cluster, replicas), read_options(given, streaming=False))
    batches = repair.batches(replicas.block(0, count))
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("damaged", KINDS.values(), ids=KINDS)
def test_a_replica_that_has_it_whole_is_read(damaged: bytes) -> None:
    rows = read(Replicas(WHOLE | {4: damaged}, WHOLE | {4: damaged}, WHOLE), "fail")
    assert [row["queue_offset"] for row in rows] == list(range(COUNT))
    assert {row["body"] for row in rows} == {b"body"}


@pytest.mark.parametrize("damaged", KINDS.values(), ids=KINDS)
def test_damage_that_all_replicas_have_is_as_wanted(damaged: bytes) -> None:
    replicas = Replicas(*[WHOLE | {4: damaged}] * 3)
    where = "queue 3 of topic Orders at broker-a, offset 4: .*no other replica has it whole"
    with pytest.raises(DamagedMessages, match=f"{where}; onDamage=null or onDamage=skip"):
        read(replicas, "fail")
    rows = read(replicas, "skip")
    assert [row["queue_offset"] for row in rows] == [0, 1, 2, 3, 5, 6, 7, 8]
    rows = read(replicas, "null")
    assert [row["queue_offset"] for row in rows] == list(range(COUNT))
    assert [row["body"] for row in rows] == [b"body"] * 4 + [None] + [b"body"] * 4
    assert [row["damage"] is None for row in rows] == [number != 4 for number in range(COUNT)]
    row = rows[4]
    assert (row["topic"], row["broker"], row["queue_id"]) == QUEUE
    framed = damaged in (KINDS["a flipped bit"], KINDS["a body that cannot be unpacked"])
    assert row["msg_id"] == ("id4" if framed else None)


def test_a_topic_of_damage_alone_is_not_asked_for_everywhere() -> None:
    count = SEARCHES_MAX + 5
    replicas = Replicas({n: record(n, b"not packed", sys_flag=1) for n in range(count)})
    assert len(read(replicas, "null", count)) == count
    assert replicas.asked == SEARCHES_MAX
