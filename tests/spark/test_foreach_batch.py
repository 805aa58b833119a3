"""Sinks inside `foreachBatch`: each row once in each topic, wherever the driver dies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.spark.options import write_options
from raftmq.spark.sink import BatchWriter, Staged
from tests.spark.test_sink import Rows
from tests.spark.test_sink import job as job
from tests.spark.test_sink import namesrv as namesrv
from tests.spark.test_sink import sent as sent
from tests.spark.test_sink import stored as stored
from tests.spark.test_sink import topic as topic
from tests.spark.test_source import bodies, fill

ROOT = Path(__file__).parents[2]

# Each attempt is a process of its own, which dies before its Nth step. The next attempt of the
# batch has the same rows in another order. It prints the number of kills.
DRIVER = """
import os, sys
import pyarrow as pa
from raftmq.client.producer.exactly_once_writer import ExactlyOnceWriter
from raftmq.spark.options import write_options
from raftmq.spark.sink import BatchWriter
from raftmq.spark.staging import Staging

namesrv, directory, *topics = sys.argv[1:]
left = 0

def counted(owner, name):
    real = getattr(owner, name)
    def step(*given, **more):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return real(*given, **more)
    setattr(owner, name, step)

for owner, names in {
    Staging: ("writer", "planned", "save_plan", "clean", "done"),
    ExactlyOnceWriter: ("start", "open_at", "write_encoded", "stop"),
}.items():
    for name in names:
        counted(owner, name)

def attempt(batch, kill_at, rows):
    global left
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = kill_at
    for topic in topics:
        given = {"namesrv": namesrv, "topic": topic, "batch": str(batch)}
        given["stagingLocation"] = f"{directory}/{topic}"
        writer = BatchWriter(write_options(given, streaming=False))
        writer.commit([writer.write(iter([pa.record_batch([rows], names=["body"])]))])
    os._exit(0)

batch = 0
while True:
    batch += 1
    rows = [b"%d-%d" % (batch, number) for number in range(3)]
    killed = attempt(batch, batch, rows)
    if killed not in (0, 9) or attempt(batch, 0, rows[::-1]) != 0:
        sys.exit(f"batch {batch} did not recover")
    if not killed:
        print(batch - 1)
        break
"""


@pytest.mark.long  # 13 CPU seconds
def test_two_sinks_have_each_row_once_wherever_the_driver_is_killed(
    cluster: Cluster, namesrv: str, topic: str, stored: Rows, tmp_path: Path
) -> None:
    topics = [topic, f"{topic}_2"]
    fill(cluster, topics[1], [b"first"])
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, namesrv, str(tmp_path), *topics],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    kills = int(run.stdout)
    assert kills > 20  # the steps of two sinks
    rows = [b"%d-%d" % (batch, row) for batch in range(1, kills + 2) for row in range(3)]
    for each in topics:
        assert stored(each) == sorted([b"first", *rows])


def test_a_query_that_died_between_two_sinks_goes_on(
    spark: SparkSession, cluster: Cluster, namesrv: str, topic: str, stored: Rows, tmp_path: Path
) -> None:
    source, second = f"{topic}_from", f"{topic}_2"
    fill(cluster, source, bodies(0, 20))
    fill(cluster, second, [b"first"])

    def run(name: str, dies: bool) -> None:
        def write(frame: DataFrame, number: int) -> None:
            for target in (topic, second):
                options = {"namesrv": namesrv, "topic": target, "batch": str(number)}
                options["stagingLocation"] = str(tmp_path / target)
                frame.select("body").write.format("raftmq").options(**options).mode("append").save()
                if dies:
                    raise RuntimeError("the driver dies here")

        read = {"namesrv": namesrv, "topic": source, "startingOffsets": "earliest"}
        rows = spark.readStream.format("raftmq").options(**read).load()
        checkpoint = str(tmp_path / name)
        sink = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        sink.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(PySparkException, match="the driver dies here"):
        run("checkpoint", dies=True)
    run("checkpoint", dies=False)
    for each in (topic, second):
        assert stored(each) == sorted([b"first", *bodies(0, 20)])
    with pytest.raises(PySparkException, match="one sink, one location"):
        run("a new checkpoint", dies=False)  # its batch 0 has rows that were not stored


def test_a_checkpoint_that_was_set_back_is_told_so(sent: list[object], tmp_path: Path) -> None:
    given = {"namesrv": "h:1", "topic": "T", "stagingLocation": str(tmp_path)}
    for number in (0, 1, 2):
        job(tmp_path, number)
    writer = BatchWriter(write_options(given | {"writer": "etl", "batch": "1"}, streaming=False))
    told = "the checkpoint was set back: the query begins batch 1, .* batches up to 2"
    with pytest.raises(Exception, match=told):
        writer.commit([Staged("rows/none", 0, "a query")])
    assert len(sent) == 3
