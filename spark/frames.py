"""DataFrames that are made from topics: all dead letters, and the profile of a topic."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from raftmq.remoting.names import DLQ_PREFIX

QUEUE = ("topic", "broker", "queue_id")


def dead_letters(spark: SparkSession, **options: object) -> DataFrame:
    """Return the dead letters of all consumer groups, with the options of format `raftmq`, at least
    `namesrv`. Columns besides the format's: `consumer_group`, `origin_topic`, `origin_id` (of the
    first delivery, null if unknown), `tries` and `dead_since`."""
    given = {"topicPattern": f"{DLQ_PREFIX}.*"} | options
    read = spark.read.format("raftmq").options(includeProperties=True, **given).load()
    properties = F.col("properties")
    origin = F.coalesce(properties["DLQ_ORIGIN_TOPIC"], properties["RETRY_TOPIC"])
    return read.select(
        F.substring(F.col("topic"), len(DLQ_PREFIX) + 1, 255).alias("consumer_group"),
        origin.alias("origin_topic"),
        properties["ORIGIN_MESSAGE_ID"].alias("origin_id"),
        F.col("reconsume_times").alias("tries"),
        F.col("store_time").alias("dead_since"),
        "*",
    )


def profile(frame: DataFrame) -> DataFrame:
    """Return a row for each queue in a DataFrame of format `raftmq`.

    `skew` is the queue's number of messages as a multiple of the average of the topic's queues.
    `keys` is the approximate number of different keys; `longest_gap_s` is the longest time between
    the store times of two messages in a row, the first of which is at `gap_since`.
    """
    stored = F.col("store_time")
    before = F.lag("store_time").over(Window.partitionBy(*QUEUE).orderBy("queue_offset"))
    gap_s = F.unix_micros(stored) / 1e6 - F.unix_micros(before) / 1e6
    size = F.length("body")
    rows = frame.withColumns({"size": size, "before": before}).withColumn("gap_s", gap_s)
    queues = rows.groupBy(*QUEUE).agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("body_bytes"),
        F.percentile_approx("size", [0.5, 0.99]).alias("sizes"),
        F.max("size").alias("size_max"),
        F.approx_count_distinct("keys").alias("keys"),
        F.count_if(F.col("keys").isNull()).alias("without_key"),
        F.count_distinct("tags").alias("tags"),
        F.mode("tags").alias("top_tag"),
        F.min("store_time").alias("first"),
        F.max("store_time").alias("last"),
        F.max("gap_s").alias("longest_gap_s"),
        F.max_by("before", "gap_s").alias("gap_since"),
    )
    average = F.avg("messages").over(Window.partitionBy("topic"))
    return queues.select(
        *QUEUE,
        "messages",
        (F.col("messages") / average).alias("skew"),
        "body_bytes",
        F.col("sizes")[0].alias("size_median"),
        F.col("sizes")[1].alias("size_p99"),
        *("size_max", "keys", "without_key", "tags", "top_tag"),
        *("first", "last", "longest_gap_s", "gap_since"),
    )
