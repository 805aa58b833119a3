"""The sink of format `raftmq`: each batch once, whatever fails and is repeated."""

import asyncio
import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.client import Admin
from raftmq.client.errors import ClientError
from raftmq.client.message import MessageQueue
from raftmq.client.producer.exactly_once_writer import NOWHERE, ExactlyOnceWriter, WritePosition
from raftmq.spark import sink
from raftmq.spark.options import write_options
from raftmq.spark.plan import PlanError
from raftmq.spark.sink import BatchWriter, NotWritten, StreamWriter, stage
from raftmq.spark.staging import Staging
from tests.spark.test_source import bodies, fill

Rows = Callable[[str], list[bytes]]


@pytest.fixture
def namesrv(cluster: Cluster) -> str:
    return cluster.state().namesrv


@pytest.fixture
def stored(spark: SparkSession, namesrv: str) -> Rows:
    """The bodies that a topic has, sorted."""

    def read(topic: str) -> list[bytes]:
        frame = spark.read.format("raftmq").option("namesrv", namesrv).option("topic", topic)
        return sorted(bytes(row["body"]) for row in frame.load().select("body").collect())

    return read


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of this test's own."""
    name = "Sink_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[-60:]
    fill(cluster, name, [b"first"])
    return name


def frame_of(spark: SparkSession, values: list[bytes], partitions: int = 3) -> DataFrame:
    rows = spark.createDataFrame([(value,) for value in values], "body binary")
    return rows.repartition(partitions)


def test_sink_writes_a_dataframe_to_a_topic(
    spark: SparkSession, namesrv: str, topic: str, stored: Rows
) -> None:
    rows = spark.range(3000).select(
        F.col("id").cast("string").alias("body"),
        F.when(F.col("id") % 2 == 0, "even").alias("tags"),
        F.concat(F.lit("k"), F.col("id")).alias("keys"),
        (F.col("id") % 7).cast("string").alias("sharding_key"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("properties"),
        F.col("id").cast("int").alias("flag"),
    )
    target = {"namesrv": namesrv, "topic": topic}
    rows.write.format("raftmq").options(**target).mode("append").save()
    assert stored(topic) == sorted([b"first", *bodies(0, 3000)])
    options = target | {"includeProperties": "true"}
    result = spark.read.format("raftmq").options(**options).load()
    row = result.where("keys = 'k42'").collect()[0]
    assert (row["tags"], row["flag"], row["properties"]["n"]) == ("even", 42, "42")
    assert result.where("keys = 'k43'").collect()[0]["tags"] is None
    spread = result.where("properties['n'] is not null").groupBy("properties.__SHARDINGKEY")
    assert {r[1] for r in spread.agg(F.count_distinct("queue_id")).collect()} == {1}
    assert result.select("msg_id").distinct().count() == 3001
    assert asyncio.run(writers(namesrv, topic)) == []  # nobody can come back to it


async def writers(namesrv: str, topic: str) -> list[dict[str, Any]]:
    async with Admin(namesrv) as admin:
        return await admin.topic.writers(topic)


def test_sink_writes_a_named_job_once_and_skips_its_repetition(
    spark: SparkSession, namesrv: str, topic: str, stored: Rows, tmp_path: Path
) -> None:
    def job(batch: int, values: list[bytes]) -> None:
        named = {"writer": topic, "stagingLocation": str(tmp_path), "batch": str(batch)}
        options = {"namesrv": namesrv, "topic": topic, **named}
        frame_of(spark, values).write.format("raftmq").options(**options).mode("append").save()

    job(1, bodies(0, 50))
    job(1, bodies(0, 50))
    job(2, bodies(50, 50))
    with pytest.raises(
        PySparkException, match="has written its batch 2 already: give this one a hi"
    ):
        job(1, bodies(50, 50))
    shutil.rmtree(tmp_path / "raftmq")
    with pytest.raises(PySparkException, match="knows nothing of its batch 2"):
        job(2, bodies(100, 50))
    assert stored(topic) == sorted([b"first", *bodies(0, 100)])


@pytest.mark.parametrize(
    ("changes", "select", "told"),
    [
        ({"topic": ""}, "body", "option topic is missing"),
        ({"delivery": "sometimes"}, "body", "exactly-once or at-least-once"),
        ({"batch": "1"}, "body", "needs option stagingLocation"),
        ({"colums": "x"}, "body", "there is no option colums"),
        ({}, "body, 1 as prize", "column prize"),
        ({}, "1 as flag", "column body is missing"),
        ({}, "cast(null as string) as body", "null or empty"),
        ({}, "body, 'a\\u0001b' as tags", "separator"),
        ({"topic": "Nowhere"}, "body", "(?s)no route.*create the topic first"),
    ],
)
def test_sink_rejects_rows_and_options_it_cannot_write(
    spark: SparkSession, namesrv: str, topic: str, changes: dict[str, str], select: str, told: str
) -> None:
    options = {"namesrv": namesrv, "topic": topic, "timeoutMs": "500"} | changes
    rows = frame_of(spark, [b"x"]).selectExpr(*select.split(", "))
    with pytest.raises(PySparkException, match=told):
        rows.write.format("raftmq").options(**options).mode("append").save()
    with pytest.raises(PySparkException, match="only appended to"):
        rows.selectExpr("'x' as body").write.format("raftmq").options(**options).mode(
            "overwrite"
        ).save()


class Batches:
    """A stream's sink as Spark's processes call it, batch by batch."""

    def __init__(self, namesrv: str, topic: str, location: Path, **more: str) -> None:
        given = {"namesrv": namesrv, "topic": topic, "checkpointLocation": str(location), **more}
        self.options = write_options(given, streaming=True)
        self.location = location

    def staged(self, *tasks: list[bytes]) -> list[Any]:
        schema = pa.schema([("body", pa.binary())])
        return [
            StreamWriter(self.options).write(iter([pa.record_batch([task], schema=schema)]))
            for task in tasks
        ]

    def commit(self, number: int, *tasks: list[bytes], query: str = "") -> None:
        messages = [replace(each, query=query) for each in self.staged(*tasks)]
        StreamWriter(self.options).commit(messages, number)

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.location / "raftmq").iterdir() if path.is_file())


def test_sink_stores_a_repeated_batch_once_even_if_its_rows_differ(
    namesrv: str, topic: str, stored: Rows, tmp_path: Path
) -> None:
    """As after a driver that died behind its sink's commit and before its own note of it."""
    sink = Batches(namesrv, topic, tmp_path)
    sink.commit(0, bodies(0, 10), bodies(10, 10))
    sink.commit(0, bodies(5, 10))
    sink.commit(1, bodies(20, 10))
    (tmp_path / "raftmq" / "1.done").unlink()  # it died a moment earlier
    sink.commit(1, bodies(25, 3), bodies(20, 3), bodies(1000, 3))
    assert stored(topic) == sorted([b"first", *bodies(0, 30)])
    assert [name for name in sink.files if not name.startswith("writer")] == ["1.2.json", "1.done"]


def test_sink_resumes_an_interrupted_batch(
    namesrv: str, topic: str, stored: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Batches(namesrv, topic, tmp_path)
    values = bodies(0, 25_000)
    count = 0
    write = ExactlyOnceWriter.write_encoded

    async def breaking(self: ExactlyOnceWriter, *given: Any) -> bool:
        nonlocal count
        count += 1
        if count % 5 == 0:
            await write(self, *given)  # it is stored, and nobody hears that
            raise ClientError(1, "broken off")
        return await write(self, *given)

    with monkeypatch.context() as broken:
        broken.setattr(ExactlyOnceWriter, "write_encoded", breaking)
        messages = sink.staged(values)
        with pytest.raises(ClientError, match="broken off"):
            StreamWriter(sink.options).commit(messages, 7)
        StreamWriter(sink.options).abort(messages, 7)  # as Spark does then
        for _ in range(3):
            with pytest.raises(ClientError, match="broken off"):
                sink.commit(7, values[:10])
    sink.commit(7)
    assert stored(topic) == sorted([b"first", *values])


@pytest.mark.parametrize(
    ("step", "winner"),
    [
        ("plan", b"new"),  # before it looks for a plan
        ("save_plan", b"new"),  # it found none, and has not written its own
        ("clean", b"old"),  # it wrote its own, and has not sent anything
    ],
)
def test_sink_ignores_writes_of_a_replaced_driver(
    namesrv: str,
    topic: str,
    stored: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    winner: bytes,
) -> None:
    """The old driver stands still at a step, while a new one writes the batch."""
    sink = Batches(namesrv, topic, tmp_path)
    real = getattr(Staging, step)
    mine, its = sink.staged([b"old"] * 30), sink.staged([b"new"] * 30)
    still = True

    def standing_still(self: Staging, *given: Any) -> Any:
        nonlocal still
        if still:
            still = False
            with ThreadPoolExecutor(1) as pool:  # a loop of its own
                pool.submit(StreamWriter(sink.options).commit, its, 0).result()
        return real(self, *given)

    monkeypatch.setattr(Staging, step, standing_still)
    with pytest.raises((ClientError, OSError)):
        StreamWriter(sink.options).commit(mine, 0)
    assert Counter(stored(topic)) == {b"first": 1, winner: 30}
    sink.commit(1, [b"next"])
    assert Counter(stored(topic)) == {b"first": 1, b"next": 1, winner: 30}


def test_sink_rejects_staged_rows_missing_at_the_driver_before_sending(
    namesrv: str, topic: str, stored: Rows, tmp_path: Path
) -> None:
    sink = Batches(namesrv, topic, tmp_path)
    messages = sink.staged(bodies(0, 3), bodies(3, 3))
    (tmp_path / "raftmq" / messages[1].file).unlink()
    with pytest.raises(Exception, match="stagingLocation"):
        StreamWriter(sink.options).commit(messages, 0)
    assert stored(topic) == [b"first"]


class Away:
    """An ExactlyOnceWriter of brokers that nobody sees: what it is given counts as stored."""

    sent: ClassVar[list[tuple[str, str, int]]] = []  # writer, topic, batch
    epoch = 1

    def __init__(self, name: str, topic: str, *given: Any, **more: Any) -> None:
        self.name, self.topic = name, topic
        self.queues = (MessageQueue(topic, "broker-a", 0),)

    async def __aenter__(self) -> "Away":
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def open_at(self, queues: Any) -> None:
        pass

    def last(self, queue: MessageQueue) -> WritePosition:
        return NOWHERE

    def unique_key_start(self, queue: MessageQueue, batch: int) -> str:
        return "A" * 24

    async def write_encoded(self, queue: MessageQueue, place: WritePosition, body: bytes) -> bool:
        self.sent.append((self.name, self.topic, place.batch))
        return True


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    monkeypatch.setattr(sink, "ExactlyOnceWriter", Away)
    monkeypatch.setattr(Away, "sent", [])
    return Away.sent


@pytest.mark.parametrize(
    ("topic", "more", "query"),
    [
        ("T", {"writer": "second"}, ""),  # a checkpoint that begins anew, as the sink advises
        ("Other", {"writer": "first"}, ""),
        ("T", {"writer": "first"}, "another query"),
        ("Other", {"writer": "first", "delivery": "at-least-once"}, ""),
    ],
)
def test_sink_does_not_skip_a_batch_number_done_by_another_sink(
    sent: list[Any], tmp_path: Path, topic: str, more: dict[str, str], query: str
) -> None:
    first = Batches("h:1", "T", tmp_path, writer="first")
    for number in range(3):
        first.commit(number, [b"x"], query="this query")
    second = Batches("h:1", topic, tmp_path, **more)
    for number in range(4):
        with pytest.raises(PlanError, match="one sink, one location"):
            second.commit(number, [b"x"], query=query)
    first.commit(2, [b"x"], query="this query")
    first.commit(3, [b"x"], query="this query")
    assert sent == [("first", "T", number) for number in range(4)]


def test_sink_ignores_a_done_file_without_a_plan(sent: list[Any], tmp_path: Path) -> None:
    Staging(str(tmp_path)).done(7)
    Batches("h:1", "T", tmp_path, writer="w").commit(7, [b"x"])
    assert sent == [("w", "T", 7)]


def test_sink_rejects_two_streams_of_one_location_without_writer_names(
    sent: list[Any], tmp_path: Path
) -> None:
    sink = Batches("h:1", "T", tmp_path)
    sink.commit(0, [b"x"], query="one")
    with pytest.raises(PlanError, match="one sink, one location"):
        sink.commit(0, [b"y"], query="two")


def test_sink_finishes_a_plan_of_version_1(sent: list[Any], tmp_path: Path) -> None:
    sink = Batches("h:1", "T", tmp_path, writer="w")
    sink.commit(0, [b"x"])
    (tmp_path / "raftmq" / "0.done").unlink()
    plan = tmp_path / "raftmq" / "0.1.json"
    old = json.loads(plan.read_text()) | {"version": 1}
    del old["query"]
    plan.write_text(json.dumps(old))
    sink.commit(0, [b"x"], query="this query")
    assert sent == [("w", "T", 0)] * 2
    assert sink.files == ["0.1.json", "0.done"]


def job(location: Path, number: int) -> None:
    """Write a batch job's data as Spark does."""
    given = {"namesrv": "h:1", "topic": "T", "writer": "etl", "stagingLocation": str(location)}
    writer = BatchWriter(write_options(given | {"batch": str(number)}, streaming=False))
    messages = [writer.write(iter([pa.record_batch([[b"x"]], names=["body"])]))]
    try:
        writer.commit(messages)
    except Exception:
        writer.abort(messages)
        raise


@pytest.mark.parametrize("other", [5, 3])
def test_sink_finishes_an_interrupted_job_before_the_next(
    sent: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int
) -> None:
    async def breaking(self: Away, *given: Any) -> bool:
        raise ClientError(1, "broken off")

    job(tmp_path, 2)
    with monkeypatch.context() as broken:
        broken.setattr(Away, "write_encoded", breaking)
        with pytest.raises(ClientError, match="broken off"):
            job(tmp_path, 4)
    with pytest.raises(NotWritten, match=f"batch 4 of writer etl is begun.*before batch {other}"):
        job(tmp_path, other)
    job(tmp_path, 4)
    job(tmp_path, 5)
    assert sent == [("etl", "T", number) for number in (2, 4, 5)]


def test_sink_finishes_a_job_interrupted_during_cleanup(sent: list[Any], tmp_path: Path) -> None:
    """The done file of the batch before is gone, and its plan is not."""
    job(tmp_path, 4)
    before = (tmp_path / "raftmq" / "4.1.json").read_bytes()
    job(tmp_path, 5)
    (tmp_path / "raftmq" / "5.done").unlink()
    (tmp_path / "raftmq" / "4.1.json").write_bytes(before)
    job(tmp_path, 5)
    job(tmp_path, 6)
    assert [number for _, _, number in sent] == [4, 5, 5, 6]


def test_sink_writes_batch_numbers_again_after_checkpoint_is_set_back(
    sent: list[Any], tmp_path: Path
) -> None:
    sink = Batches("h:1", "T", tmp_path, writer="w", delivery="at-least-once")
    for number in (0, 1, 2, 3, 1, 2, 3, 4):
        sink.commit(number, [b"x"], query="this query")
    assert [batch for _, _, batch in sent] == [0, 1, 2, 3, 1, 2, 3, 4]


def test_sink_location_is_rejected_for_a_second_sink(
    namesrv: str, topic: str, tmp_path: Path
) -> None:
    Batches(namesrv, topic, tmp_path, writer="one").commit(0, [b"x"])
    (tmp_path / "raftmq" / "0.done").unlink()
    with pytest.raises(Exception, match="one sink, one location"):
        Batches(namesrv, topic, tmp_path, writer="two").commit(0, [b"x"])


def test_sink_copies_a_topic_while_leaders_and_queries_are_killed(
    spark: SparkSession, cluster: Cluster, namesrv: str, topic: str, stored: Rows, tmp_path: Path
) -> None:
    """Rows flow through a stream that is stopped and begun again while leaders are killed."""
    source = topic + "_from"
    fill(cluster, source, bodies(0, 600))
    target = {"namesrv": namesrv, "topic": topic, "checkpointLocation": str(tmp_path / "c")}

    def begun() -> Any:
        options = {"namesrv": namesrv, "topic": source, "includeProperties": "true"}
        options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
        rows = spark.readStream.format("raftmq").options(**options).load()
        return (
            rows.select("body", "tags", "keys", "properties")
            .writeStream.format("raftmq")
            .options(**target)
            .start()
        )

    for round_ in range(2):
        query = begun()
        while not query.recentProgress and query.isActive:
            time.sleep(0.1)
        asyncio.run(kill_leader(cluster))
        fill(cluster, source, bodies(600 + round_ * 100, 100))
        query.stop()
    query = begun()
    query.processAllAvailable()
    query.stop()
    assert stored(topic) == sorted([b"first", *bodies(0, 800)])
    options = {"namesrv": namesrv, "topic": topic, "includeProperties": "true"}
    rows = spark.read.format("raftmq").options(**options).load()
    row = rows.where("keys = 'k7' and body <> 'first'").collect()[0]
    assert (row["tags"], row["properties"]["n"]) == ("B", "7")
    plan = next((tmp_path / "c" / "raftmq").glob("*.json"))
    reported = json.loads(plan.read_text())
    assert (reported["topic"], reported["query"]) == (topic, query.id)


async def kill_leader(cluster: Cluster) -> None:
    here = Cluster(cluster.directory)
    try:
        leader = await here.leader()
        assert leader is not None
        await here.wait_dead(here.signal(leader.name, signal.SIGKILL))
        here.start(leader.name)
        await wait_recovered(here, 120.0)
    finally:
        await here.close()


def test_sink_stages_no_file_for_a_task_without_rows(tmp_path: Path) -> None:
    result = stage(Staging(str(tmp_path)), iter([]))
    assert result.rows == 0 and Staging(str(tmp_path)).missing([result.file]) == []
