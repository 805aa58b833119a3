"""The Spark data sources: a store as tables, and a topic as a user reads it."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from raftmq.audit.api import topic_frame
from raftmq.audit.read.store_files import Store, StoreError, first_difference
from tests.audit.run import TOPIC, Run
from tests.audit.stores import Log, Message, write_store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.plan(tmp_path_factory.mktemp("sources"), count=90).store().write()


def test_topic_as_a_table(spark: SparkSession, run: Run) -> None:
    rows = topic_frame(spark, run.stores["n1"], TOPIC).orderBy("position").collect()
    stored = [p for p in run.log.placed if p.message.topic == TOPIC]
    assert [bytes(row["body"]) for row in rows] == [p.message.body for p in stored]
    assert [row["uniq_key"] for row in rows] == [p.message.id for p in stored]
    assert [row["queue_offset"] for row in rows] == [p.queue_offset for p in stored]


def test_topic_ends_at_the_commit_position(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    tenth = run.placed(9)
    end = tenth.position + tenth.size
    store = write_store(tmp_path / "store", run.log, commit=end)
    assert topic_frame(spark, store, TOPIC).count() == 10
    assert topic_frame(spark, store, TOPIC, until=end - 1).count() == 9
    (store / "checkpoint").unlink()
    assert topic_frame(spark, store, TOPIC).count() == 90


def test_topic_is_read_from_a_store_named_by_uri(spark: SparkSession, run: Run) -> None:
    rows = topic_frame(spark, Path(run.stores["n1"]).as_uri(), TOPIC)
    stored = {p.message.body for p in run.log.placed if p.message.topic == TOPIC}
    assert {bytes(row["body"]) for row in rows.select("body").collect()} == stored


def test_partition_size_does_not_change_the_rows(spark: SparkSession, run: Run) -> None:
    """Partitions of 4 KiB cut records and frames anywhere."""
    reader = spark.read.format("rocketmq").option("body", "false").option("splitBytes", "4096")
    frame = reader.load(run.stores["n0"])
    assert "body" not in frame.columns
    assert frame.rdd.getNumPartitions() > len(run.log.segments)
    row = frame.agg(F.count("*"), F.count_distinct("position"), F.sum("size")).collect()[0]
    count = len(run.log.placed)
    assert tuple(row) == (count, count, sum(p.size for p in run.log.placed))


def test_queue_entries_as_a_table(spark: SparkSession, run: Run) -> None:
    stores = json.dumps(run.stores)
    rows = spark.read.format("rocketmq_queue").option("stores", stores).load().collect()
    result = {
        (r["store"], r["topic"], r["queue_id"], r["queue_offset"], r["position"]) for r in rows
    }
    assert result == {
        (name, p.message.topic, p.message.queue, p.queue_offset, p.position)
        for name in run.stores
        for p in run.log.placed
    }
    assert len(rows) == 3 * len(run.log.placed)


def test_apache_store_as_tables(spark: SparkSession, apache_store: Path) -> None:
    records = spark.read.format("rocketmq").option("splitBytes", "10000").load(str(apache_store))
    row = records.agg(
        F.count("*").alias("count"),
        F.count_if("intact").alias("intact"),
        F.count_if(F.col("position") == F.col("physical_offset")).alias("in_place"),
    ).collect()[0]
    assert (row["count"], row["intact"], row["in_place"]) == (515, 515, 515)


def test_empty_store_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for name in ("rocketmq", "rocketmq_log", "rocketmq_queue"):
        assert spark.read.format(name).load(str(tmp_path)).count() == 0


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [("splitBytes", "1", "at least 4096"), ("body", "maybe", "true or false")],
)
def test_invalid_source_options_are_rejected(
    spark: SparkSession, run: Run, option: str, value: str, complaint: str
) -> None:
    with pytest.raises(PySparkException, match=complaint):
        spark.read.format("rocketmq").option(option, value).load(run.stores["n0"]).count()


def test_files_that_are_no_store_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no commitlog"):
        print(Store("n0", str(tmp_path)).segments)
    (tmp_path / "checkpoint").write_bytes(bytes(39))
    with pytest.raises(StoreError, match="cut short"):
        Store("n0", str(tmp_path)).confirmed_position()
    log = Log(4096)
    log.frame(1, [Message("A" * 32, b"a")])
    store = write_store(tmp_path / "store", log)
    (store / "commitlog" / f"{100:020d}").write_bytes(b"overlap")
    with pytest.raises(StoreError, match="begins inside"):
        print(Store("n0", str(store)).segments)


def test_first_difference_of_two_stores(run: Run, tmp_path: Path) -> None:
    other = run.log.copy()
    other.flip(20_000)
    store = Store("n1", str(write_store(tmp_path / "store", other)))
    sound, end = Store("n0", run.stores["n0"]), run.log.end
    assert first_difference(store, sound, 0, end) == 20_000
    assert first_difference(store, sound, 20_001, end) is None
    first, last = min(other.segments), max(other.segments)
    (Path(store.path) / "commitlog" / f"{last:020d}").unlink()
    assert first_difference(Store("n1", store.path), sound, first, end) == last
    gap = write_store(tmp_path / "gap", run.log)
    (gap / "commitlog" / f"{first:020d}").unlink()
    assert first_difference(Store("n2", str(gap)), sound, first, end) == first
