"""A replay keeps born times, order, pace and delays, and a task that runs again changes nothing."""

import time
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.spark.options import OptionError
from raftmq.spark.replay import replay
from tests.spark.test_source import bodies, fill
from tests.waiting import wait_until

COUNT = 30


@pytest.fixture
def namesrv(cluster: Cluster) -> str:
    return cluster.state().namesrv


def topic_of(spark: SparkSession, namesrv: str, topic: str) -> DataFrame:
    read = spark.read.format("raftmq").option("includeProperties", "true")
    return read.options(namesrv=namesrv, topic=topic).load()


def test_replay_keeps_messages_order_and_born_times_once(
    spark: SparkSession, cluster: Cluster, namesrv: str
) -> None:
    fill(cluster, "Replayed", bodies(0, COUNT))
    fill(cluster, "Replays", [])
    before = topic_of(spark, namesrv, "Replayed")
    given: dict[str, Any] = {"namesrv": namesrv, "topic": "Replays", "speed": 0}
    assert replay(before, name="first", **given) == COUNT
    assert replay(before, name="first", **given) == COUNT
    after = topic_of(spark, namesrv, "Replays")
    columns = ["body", "tags", "keys", "born_time", "flag"]
    rows = [tuple(row) for row in before.select(columns).collect()]
    assert sorted(tuple(row) for row in after.select(columns).collect()) == sorted(rows)

    def orders(frame: DataFrame) -> list[list[str]]:
        """The keys of each queue, in order."""
        ordered = frame.orderBy("queue_offset").groupBy("queue_id")
        return sorted(row[1] for row in ordered.agg(F.collect_list("keys")).collect())

    assert orders(after) == orders(before)
    assert replay(before, name="second", **given) == COUNT
    assert topic_of(spark, namesrv, "Replays").count() == 2 * COUNT


def test_replay_sends_at_the_pace_of_born_times_and_adds_delays(
    spark: SparkSession, cluster: Cluster, namesrv: str
) -> None:
    fill(cluster, "Paced", [])
    frame = spark.range(3).select(
        F.col("id").cast("string").alias("body"),
        F.timestamp_seconds(F.col("id") * 20).alias("born_time"),
        F.when(F.col("id") == 1, 1_000).alias("delay_ms"),
    )
    start_s = time.monotonic()
    assert replay(frame, name="paced", speed=40, namesrv=namesrv, topic="Paced") == 3
    assert time.monotonic() - start_s >= 1.0  # 40 seconds, 40 times as fast
    wait_until(lambda: topic_of(spark, namesrv, "Paced").count() == 3)
    rows = topic_of(spark, namesrv, "Paced").collect()
    stored = {bytes(row["body"]): row["store_time"] for row in rows}
    assert (stored[b"1"] - stored[b"0"]).total_seconds() >= 0.9
    assert {row["born_time"].timestamp() for row in rows} == {0, 20, 40}


def test_replay_refuses_what_it_cannot_send(spark: SparkSession, namesrv: str) -> None:
    frame = spark.range(1).select(F.lit("x").alias("body"))
    with pytest.raises(OptionError, match="needs column born_time"):
        replay(frame, name="n", namesrv=namesrv, topic="Paced")
    with pytest.raises(OptionError, match="option topic is missing"):
        replay(frame, name="n", namesrv=namesrv)
