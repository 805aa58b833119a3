"""Executors send a batch: each row once, and each queue in order."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from raftmq.spark.options import OptionError
from raftmq.spark.parallel_sink import write
from tests.spark.test_sink import Rows
from tests.spark.test_sink import namesrv as namesrv
from tests.spark.test_sink import stored as stored
from tests.spark.test_sink import topic as topic
from tests.spark.test_source import bodies


def test_executors_send_a_batch_once_in_the_order_of_each_queue(
    spark: SparkSession, namesrv: str, topic: str, stored: Rows, tmp_path: Path
) -> None:
    options = {"namesrv": namesrv, "topic": topic, "stagingLocation": str(tmp_path), "batch": 1}
    numbers = spark.range(0, 3000, 1, 3).selectExpr("cast(id as string) body")
    ordered = numbers.selectExpr("body", "cast(body % 5 as string) sharding_key")
    with pytest.raises(OptionError, match="give options stagingLocation and batch"):
        write(ordered, namesrv=namesrv, topic=topic)
    write(ordered, **options)
    write(ordered, **options)
    (tmp_path / "raftmq" / "1.done").unlink()  # the driver died before its note
    write(ordered.limit(5), **options)
    assert stored(topic) == sorted([b"first", *bodies(0, 3000)])
    read = spark.read.format("raftmq").options(namesrv=namesrv, topic=topic)
    rows = read.load().where("body <> 'first'").orderBy("queue_id", "queue_offset").collect()
    for key in range(5):
        own = [row for row in rows if int(row["body"]) % 5 == key]
        assert [int(row["body"]) for row in own] == list(range(key, 3000, 5))
        assert len({row["queue_id"] for row in own}) == 1
