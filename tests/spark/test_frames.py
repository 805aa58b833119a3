"""DataFrames of topics: dead letters of all groups, their resending, and profiles."""

import asyncio

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.client import (
    ConsumeFrom,
    ConsumerConfig,
    FailurePolicy,
    Later,
    MessageExt,
    PushConsumer,
)
from raftmq.spark.frames import dead_letters, profile
from tests.spark.test_source import bodies, fill
from tests.waiting import until


async def fail(namesrv: str, group: str, topic: str, count: int) -> None:
    """Consume a topic without success until all of its messages are dead."""
    dead: list[MessageExt] = []

    async def failing(messages: list[MessageExt]) -> Later:
        return Later(delay_level=1)

    async def bury(messages: list[MessageExt]) -> None:
        dead.extend(messages)

    once = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET, failure=FailurePolicy(max_reconsume_times=1)
    )
    consumer = PushConsumer(group, namesrv, failing, config=once)
    consumer.subscribe(topic)
    undertaker = PushConsumer(f"{group}_undertaker", namesrv, bury, config=once)
    undertaker.subscribe(f"%DLQ%{group}")
    async with consumer, undertaker:
        await until(lambda: len(dead) == count)


def test_dead_letters_of_all_groups_are_a_table_and_can_be_sent_again(
    spark: SparkSession, cluster: Cluster
) -> None:
    namesrv = cluster.state().namesrv
    for topic, group in (("DeadA", "undertaken_a"), ("DeadB", "undertaken_b")):
        fill(cluster, topic, bodies(0, 3))
        asyncio.run(fail(namesrv, group, topic, 3))
    letters = dead_letters(spark, namesrv=namesrv).cache()
    found = letters.groupBy("consumer_group", "origin_topic").count().collect()
    assert {tuple(row) for row in found} == {
        ("undertaken_a", "DeadA", 3),
        ("undertaken_b", "DeadB", 3),
    }
    for row in letters.collect():
        assert row["tries"] == 2 and row["dead_since"] >= row["born_time"]
        assert row["keys"].startswith("k")
    chosen = letters.where("keys = 'k1'")
    for row in chosen.select("origin_topic").distinct().collect():
        letters_of = chosen.where(F.col("origin_topic") == row["origin_topic"])
        sink = letters_of.select("body", "tags", "keys", "properties").write.format("raftmq")
        sink.options(namesrv=namesrv, topic=row["origin_topic"]).mode("append").save()
    letters.unpersist()
    for topic in ("DeadA", "DeadB"):
        again = spark.read.format("raftmq").options(namesrv=namesrv, topic=topic).load()
        assert again.where("keys = 'k1'").count() == 2 and again.count() == 4


def test_profile_has_sizes_keys_tags_skew_and_gaps_of_each_queue(
    spark: SparkSession, cluster: Cluster
) -> None:
    rows = [
        ("T", "a", queue, offset, f"k{offset % 3}" if queue else None, "t", 10 * offset, second)
        for queue, count in ((0, 3), (1, 9))
        for offset in range(count)
        for second in [offset + (50 if offset > 1 else 0)]
    ]
    columns = "topic string, broker string, queue_id int, queue_offset long, keys string"
    frame = spark.createDataFrame(rows, f"{columns}, tags string, size int, second int")
    frame = frame.withColumn("body", F.repeat(F.lit("x"), F.col("size")).cast("binary"))
    frame = frame.withColumn("store_time", F.timestamp_seconds("second"))
    small, large = profile(frame).orderBy("queue_id").collect()
    assert (small["messages"], small["skew"], small["body_bytes"]) == (3, 0.5, 30)
    assert (large["messages"], large["skew"], large["size_max"]) == (9, 1.5, 80)
    assert (large["size_median"], large["size_p99"]) == (40, 80)
    assert (small["keys"], small["without_key"], large["keys"]) == (0, 3, 3)
    assert (large["tags"], large["top_tag"]) == (1, "t")
    assert large["longest_gap_s"] == pytest.approx(51)
    assert large["gap_since"].timestamp() == 1
