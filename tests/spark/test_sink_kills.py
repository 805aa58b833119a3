"""A topic into another topic, on a Spark cluster, while drivers, executors and leaders are killed:
every message is there once, and the audit of the running cluster says so, too."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from raftmq.audit.live import audit_cluster
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.client import Admin
from raftmq.spark.options import connection_of
from tests.spark.kills import Drivers, Feed, kill_by_turns
from tests.spark.test_standalone import ROOT, Standalone
from tests.spark.test_standalone import standalone as standalone

KILLS = 20
SOURCE, TARGET = "KillsFrom", "KillsTo"
DRIVER = """
import sys
from pyspark.sql import SparkSession
from raftmq.spark.shipping import ship

master, namesrv, checkpoint, *last = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
}
builder = SparkSession.builder.master(master)
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
ship(spark)
read = {"namesrv": namesrv, "topic": "KillsFrom", "columns": "body,keys,properties"}
read |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "400", "minPartitions": "4"}
write = {"namesrv": namesrv, "topic": "KillsTo", "checkpointLocation": checkpoint}
rows = spark.readStream.format("raftmq").options(**read).load()
sink = rows.writeStream.format("raftmq").options(**write)
if last:
    sink.trigger(availableNow=True)
sink.start().awaitTermination()
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_sink_on_a_cluster_copies_every_message_once_through_kills(
    spark: SparkSession, standalone: Standalone, cluster: Cluster, tmp_path: Path
) -> None:
    namesrv = cluster.state().namesrv
    asyncio.run(create(namesrv))
    environment = standalone.environment | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(standalone.python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, "-c", DRIVER, standalone.address, namesrv, str(checkpoint)]
    drivers = Drivers(command, environment, checkpoint)
    feed = Feed(namesrv, SOURCE)
    killed = kill_by_turns(drivers, feed, cluster, tmp_path, KILLS)
    drivers.finish("last")

    def bodies(topic: str) -> Counter[bytes]:
        options = {"namesrv": namesrv, "topic": topic, "columns": "body"}
        rows = spark.read.format("raftmq").options(**options).load().collect()
        return Counter(bytes(row["body"]) for row in rows)

    source, target = bodies(SOURCE), bodies(TARGET)
    assert source == Counter(b"%d" % n for n in range(feed.count))
    assert target == source
    reports = audit_cluster(connection_of({"namesrv": namesrv}))
    assert all(report.ok for report in reports), reports
    print(f"{dict(killed)} killed, {feed.count} messages copied once")


async def create(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        for topic in (SOURCE, TARGET):
            await admin.topic.create(topic, 4)
