"""Format `raftmq` on a running group: every message once, batch and streaming."""

import asyncio
import json
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.client import Admin, Message, Producer, SendConfig
from raftmq.client.compression import Compression
from raftmq.client.errors import NoRoute
from raftmq.spark import offset_ranges as positions
from raftmq.spark import source
from raftmq.spark.errors import DataLost
from raftmq.spark.offset_ranges import Queue
from raftmq.spark.options import read_options
from raftmq.spark.source import StreamReader
from tests.waiting import wait_until

COUNT = 900
PACKED = b"much of the same " * 400  # beyond the size from which our producer compresses


async def _fill(namesrv: str, topic: str, bodies: list[bytes]) -> None:
    async with Producer("fill", namesrv) as producer:
        for number, body in enumerate(bodies):
            await producer.send(
                Message(
                    topic,
                    body,
                    tags="AB"[number % 2],
                    keys=f"k{number}",
                    properties={"n": f"{number}"},
                )
            )


def fill(cluster: Cluster, topic: str, bodies: list[bytes]) -> None:
    asyncio.run(_fill(cluster.state().namesrv, topic, bodies))


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> str:
    fill(cluster, "Orders", [*bodies(0, COUNT), PACKED])
    return "Orders"


@pytest.fixture
def reader(spark: SparkSession, cluster: Cluster) -> Any:
    return spark.read.format("raftmq").option("namesrv", cluster.state().namesrv)


def found(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row["body"]) for row in frame.select("body").collect())


def test_source_reads_a_topic_as_a_table(reader: Any, orders: str) -> None:
    frame = reader.option("topic", orders).option("includeProperties", "true").load()
    rows = frame.collect()
    assert sorted(bytes(row["body"]) for row in rows) == sorted([*bodies(0, COUNT), PACKED])
    assert {(row["topic"], row["broker"], row["flag"]) for row in rows} == {(orders, "broker-a", 0)}
    for row in rows:
        number = int(row["properties"]["n"])
        assert (row["keys"], row["tags"]) == (f"k{number}", "AB"[number % 2])
        assert row["properties"]["UNIQ_KEY"] == row["msg_id"]
        assert 0 <= (row["store_time"] - row["born_time"]).total_seconds() < 60
    locations = {(row["queue_id"], row["queue_offset"]) for row in rows}
    assert len(locations) == COUNT + 1 and {queue for queue, _ in locations} == {0, 1, 2}


def test_source_reads_the_same_rows_with_more_partitions_and_fewer_columns(
    reader: Any, orders: str
) -> None:
    frame = reader.option("topic", orders).option("columns", "body").option("minPartitions", 10)
    frame = frame.load()
    assert frame.columns == ["body"]
    assert frame.rdd.getNumPartitions() >= 10
    assert found(frame) == sorted([*bodies(0, COUNT), PACKED])


def test_source_reads_between_starting_and_ending_offsets(reader: Any, orders: str) -> None:
    start = {orders: {"broker-a": {"0": 10, "1": -1}}}
    end = {orders: {"broker-a": {"0": 25, "2": 5}}}
    frame = reader.option("topic", orders).option("startingOffsets", json.dumps(start))
    rows = frame.option("endingOffsets", json.dumps(end)).load().collect()
    locations = sorted((row["queue_id"], row["queue_offset"]) for row in rows)
    assert locations == [*((0, n) for n in range(10, 25)), *((2, n) for n in range(5))]


def test_source_reads_from_a_starting_time(reader: Any, cluster: Cluster) -> None:
    fill(cluster, "Times", bodies(0, 30))
    time.sleep(0.05)
    between_ms = int(time.time() * 1000)
    time.sleep(0.05)
    fill(cluster, "Times", bodies(30, 30))
    times = reader.option("topic", "Times")
    assert found(times.option("startingTimestamp", between_ms).load()) == sorted(bodies(30, 30))


def test_from_times_of_queues(reader: Any, orders: str) -> None:
    later_ms = int(time.time() * 1000) + 60_000
    times = {orders: {"broker-a": {"0": 0, "1": later_ms}}}
    some = reader.option("assign", json.dumps({orders: {"broker-a": [0, 1]}}))
    some = some.option("startingTimestamp", json.dumps(times))
    assert {row["queue_id"] for row in some.load().collect()} == {0}
    strict = some.option("startingOffsetsByTimestampStrategy", "error").load()
    with pytest.raises(PySparkException, match=r"queue 1 of topic Orders .* no message stored"):
        strict.count()
    absent = reader.option("assign", json.dumps({orders: {"broker-a": [7]}})).load()
    with pytest.raises(PySparkException, match="assign has queue 7 of topic Orders"):
        absent.count()


def test_source_reads_until_an_ending_time(reader: Any, cluster: Cluster) -> None:
    fill(cluster, "Until", bodies(0, 30))
    time.sleep(0.05)
    between_ms = int(time.time() * 1000)
    time.sleep(0.05)
    fill(cluster, "Until", bodies(30, 30))
    until = reader.option("topic", "Until").option("endingTimestamp", between_ms)
    assert found(until.load()) == sorted(bodies(0, 30))
    later_ms = int(time.time() * 1000) + 60_000
    assert found(until.option("endingTimestamp", later_ms).load()) == sorted(bodies(0, 60))
    from_later = reader.option("topic", "Until").option("startingTimestamp", later_ms)
    assert from_later.load().count() == 0


def test_source_pattern_matches_only_user_topics(
    reader: Any, cluster: Cluster, orders: str
) -> None:
    fill(cluster, "Others", bodies(0, 1))
    topics = {row["topic"] for row in reader.option("topicPattern", ".*").load().collect()}
    assert {"Orders", "Others"} <= topics
    assert not any(topic.startswith(("%", "RMQ_SYS", "TBW102")) for topic in topics)


def test_source_reads_a_limited_number_of_rows(reader: Any, orders: str) -> None:
    assert len(reader.option("topic", orders).load().limit(3).collect()) == 3


def test_source_pushdown_narrows_partitions_and_rows(
    spark: SparkSession, reader: Any, orders: str
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = reader.option("topic", orders).option("pushdown", "true").load()
        narrowed = frame.where("queue_id = 1 and queue_offset >= 20 and queue_offset < 30")
        assert narrowed.rdd.getNumPartitions() == 1
        assert sorted(r["queue_offset"] for r in narrowed.collect()) == list(range(20, 30))
        assert frame.where("tags = 'A'").count() == COUNT // 2 + 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": "NoSuchTopic"}, "NoSuchTopic"),
        ({"topics": "Orders"}, "there is no option topics"),
        ({"topic": "Orders", "endingOffsets": '{"Orders":{"broker-a":{"0":100000}}}'}, "ends at"),
        ({"topic": "Orders", "endingOffsets": '{"Orders":{"broker-z":{"0":1}}}'}, "broker-z"),
    ],
)
def test_source_error_names_the_cause(
    reader: Any, orders: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(PySparkException) as error:
        reader.options(**options).load().count()
    assert told in str(error.value).splitlines()[0]
    assert "Traceback" not in str(error.value)


def test_a_topic_is_a_temporary_view(spark: SparkSession, cluster: Cluster, orders: str) -> None:
    options = f"namesrv '{cluster.state().namesrv}', topic '{orders}', provider 'raftmq'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING raftmq OPTIONS ({options})")
    assert spark.sql("SELECT count(*) FROM orders WHERE tags = 'B'").collect()[0][0] == COUNT // 2


class Garbage(Compression):
    """Compresses bodies to what nobody can unpack."""

    def apply(self, body: bytes) -> tuple[bytes, int]:
        return b"garbage", 1


def test_a_body_that_nobody_can_unpack_is_passed(reader: Any, cluster: Cluster) -> None:
    fill(cluster, "Garbage", bodies(0, 20))

    async def send() -> None:
        config = SendConfig(compression=Garbage())
        async with Producer("fill", cluster.state().namesrv, config=config) as producer:
            await producer.send(Message("Garbage", PACKED, keys="bad"))

    asyncio.run(send())
    reader = reader.option("topic", "Garbage")
    with pytest.raises(PySparkException) as error:
        reader.load().count()
    told = r"queue \d of topic Garbage at broker-a, offset \d+: .* unpacked, and no other replica"
    assert re.search(told, str(error.value).splitlines()[1])  # the first is Spark's
    assert found(reader.option("onDamage", "skip").load()) == sorted(bodies(0, 20))
    (row,) = reader.option("onDamage", "null").load().where("damage is not null").collect()
    assert re.match(told, row["damage"]) and (row["body"], row["keys"]) == (None, "bad")


def test_source_reports_an_unreachable_name_server(spark: SparkSession) -> None:
    away = spark.read.format("raftmq").option("namesrv", "127.0.0.1:1").option("topic", "T")
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1"):
        away.load().count()


# -- streams -----------------------------------------------------------------------------------


class Stream:
    """A stream of a topic into Parquet, which is run until all that is there has been read."""

    def __init__(self, spark: SparkSession, cluster: Cluster, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self._namesrv = cluster.state().namesrv

    def started(self, *, now: bool = True, **options: Any) -> Any:
        source = self.spark.readStream.format("raftmq").option("namesrv", self._namesrv)
        frame = source.option("startingOffsets", "earliest").options(**options).load()
        writer = frame.writeStream.format("parquet").option("path", str(self.directory / "out"))
        writer = writer.option("checkpointLocation", str(self.directory / "checkpoint"))
        return (writer.trigger(availableNow=True) if now else writer).start()

    def run(self, **options: Any) -> list[int]:
        """Read what is there; return the micro-batches' sizes."""
        query = self.started(**options)
        assert query.awaitTermination(120)
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    def found(self) -> list[bytes]:
        return found(self.spark.read.parquet(str(self.directory / "out")))


@pytest.fixture
def stream(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Iterator[Stream]:
    yield Stream(spark, cluster, tmp_path)
    for query in spark.streams.active:
        query.stop()


def test_stream_resumes_at_its_checkpoint(cluster: Cluster, stream: Stream) -> None:
    fill(cluster, "Words", bodies(0, 100))
    assert stream.run(topic="Words", maxOffsetsPerTrigger=40) == [40, 40, 20]
    assert stream.run(topic="Words") == []
    fill(cluster, "Words", bodies(100, 50))
    seen = {"commitOffsets": "true", "consumerGroup": "SparkWords", "maxOffsetsPerTrigger": 30}
    assert stream.run(topic="Words", **seen) == [30, 20]
    assert asyncio.run(lag(cluster, "SparkWords", "Words")) == 20  # until a batch comes after it
    assert stream.found() == sorted(bodies(0, 150))


async def lag(cluster: Cluster, group: str, topic: str) -> int:
    async with Admin(cluster.state().namesrv) as admin:
        stats = await admin.group.stats(group, topic)
    return sum(each.behind for each in stats.queues.values())


def test_stream_reads_a_later_topic_from_its_first_offset(cluster: Cluster, stream: Stream) -> None:
    fill(cluster, "Late-1", bodies(0, 10))
    assert stream.run(topicPattern="Late-.*", startingOffsets="latest") == []
    fill(cluster, "Late-2", bodies(10, 20))
    assert stream.run(topicPattern="Late-.*", startingOffsets="latest") == [20]
    assert stream.found() == sorted(bodies(10, 20))


def test_stream_continues_after_the_leaders_death(cluster: Cluster, stream: Stream) -> None:
    namesrv = cluster.state().namesrv
    fill(cluster, "Long", bodies(0, 10))
    query = stream.started(now=False, topic="Long", maxOffsetsPerTrigger=50)

    async def send_and_kill() -> None:
        here = Cluster(cluster.directory)
        try:
            async with Producer("fill", namesrv, config=SendConfig(idempotent=True)) as producer:
                for number in range(10, 300):
                    await producer.send(Message("Long", b"%d" % number), timeout_ms=30_000)
                    if number == 150:
                        leader = await here.leader()
                        assert leader is not None
                        await here.wait_dead(here.signal(leader.name, signal.SIGKILL))
                        here.start(leader.name)
        finally:
            await here.close()

    asyncio.run(send_and_kill())

    def is_read() -> bool:
        assert query.exception() is None
        return bool(sum(each["numInputRows"] for each in query.recentProgress) >= 300)

    wait_until(is_read, pause_s=0.1)
    query.stop()
    assert stream.found() == sorted(bodies(0, 300))


# -- a stream's offsets, without brokers -----------------------------------------------------------

A, B = (Queue("T", broker, 0) for broker in ("broker-a", "broker-b"))


class Told:
    """A cluster of which is told where its queues begin and end."""

    low: ClassVar[dict[Queue, int]] = {}
    high: ClassVar[dict[Queue, int]] = {}
    since: ClassVar[dict[Queue, int]] = {}  # what was stored since the checkpoint

    def __init__(self, connection: object) -> None:
        pass

    def __enter__(self) -> "Told":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def queues(self, topics: Iterable[str], *, all_exist: bool = True) -> list[Queue]:
        return list(self.high)

    def at_time(self, queues: Sequence[Queue], timestamp_ms: int) -> dict[Queue, int]:
        return {queue: self.since.get(queue, self.high[queue]) for queue in queues}

    def earliest(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        return {queue: self.low[queue] for queue in queues}

    def latest(self, queues: Sequence[Queue]) -> dict[Queue, int]:
        return {queue: self.high[queue] for queue in queues}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    monkeypatch.setattr(source, "Cluster", Told)
    return Told


def stream_reader(**options: str) -> StreamReader:
    return StreamReader(read_options({"namesrv": "h:1", "topic": "T", **options}, streaming=True))


@pytest.mark.parametrize("now", [False, True])
def test_stream_reports_a_queue_end_below_its_checkpoint_as_lost_data(
    told: type[Told], now: bool
) -> None:
    told.high, told.since = {A: 50, B: 7}, {A: 40}
    start = positions.to_json({A: 100, B: 7}, 1_700_000_000_000)
    for fail in (True, False):
        reader = stream_reader(failOnDataLoss=str(fail))
        if now:
            reader.prepareForTriggerAvailableNow()
        if fail:
            with pytest.raises(DataLost, match="ends at 50, and 100 was read before"):
                reader.latestOffset(start, ReadAllAvailable())
        else:
            back = reader.latestOffset(start, ReadAllAvailable())
            assert positions.of_json(back) == {A: 40, B: 7}
            end = reader.latestOffset(back, ReadAllAvailable())
            (partition,) = reader.partitions(back, end)
            assert [(each.queue, each.start, each.end) for each in partition.ranges] == [
                (A, 40, 50)
            ]
            assert reader.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize("now", [False, True])
def test_a_queue_that_is_gone_is_lost_data(told: type[Told], now: bool) -> None:
    told.high, told.low = {A: 120}, {}
    other, fewer = Queue("Deleted", "broker-a", 0), Queue("T", "broker-a", 1)
    for gone, fail in ((other, True), (fewer, True), (other, False), (fewer, False), (B, True)):
        reader = stream_reader(failOnDataLoss=str(fail), timeoutMs="1", topic="T,Deleted")
        if now:
            reader.prepareForTriggerAvailableNow()
        start = positions.to_json(
            {A: 100, other: 3, gone: 3} if gone is other else {A: 100, gone: 3}
        )
        if gone is not other:
            reader = stream_reader(failOnDataLoss=str(fail), timeoutMs="1")
        if fail and gone is not B:  # whose broker may only be away
            with pytest.raises(DataLost, match=f"queue {gone.queue_id} of topic {gone.topic}"):
                reader.latestOffset(start, ReadAllAvailable())
        else:
            end = positions.of_json(reader.latestOffset(start, ReadAllAvailable()))
            assert end == {A: 120, gone: 3}


def test_a_topic_that_nobody_knows_is_told(told: type[Told]) -> None:
    told.high = {A: 1}
    reader = stream_reader(topic="T,Mispelt", failOnDataLoss="false")
    with pytest.raises(NoRoute, match="Mispelt"):
        reader.latestOffset(positions.to_json({A: 1}), ReadAllAvailable())


def test_a_micro_batch_waits_for_enough_messages(told: type[Told]) -> None:
    reader = stream_reader(minOffsetsPerTrigger="10", maxTriggerDelay="1h")

    def next_end(high: int) -> int:
        told.high = {A: high}
        end = reader.latestOffset(positions.to_json({A: read}), ReadAllAvailable())
        return positions.of_json(end)[A]

    read = 0
    assert next_end(5) == 5  # nobody knows when the last one was
    read = 5
    assert (next_end(14), next_end(15)) == (5, 15)
    reader = stream_reader(minOffsetsPerTrigger="10", maxTriggerDelay="0s")
    assert (next_end(6), next_end(7)) == (6, 7)


@pytest.mark.parametrize("rows_max", [1, 600, 10_000])
def test_stream_limits_a_new_queue_from_its_first_offset(told: type[Told], rows_max: int) -> None:
    """A range that is strict begins where the queue holds something."""
    told.low, told.high = {B: 3000}, {A: 1000, B: 5000}
    reader, position, read = stream_reader(), {A: 900}, 0
    while position != told.high and read < 10:
        following = reader.latestOffset(positions.to_json(position), ReadMaxRows(rows_max))
        partitions = reader.partitions(positions.to_json(position), following)
        parts = [part for partition in partitions for part in partition.ranges]
        assert all(part.start >= 3000 for part in parts if part.queue == B and part.strict)
        taken = sum(part.end - max(part.start, told.low.get(part.queue, 0)) for part in parts)
        assert taken == min(rows_max, 2100 - read * rows_max)
        position, read = positions.of_json(following), read + 1
