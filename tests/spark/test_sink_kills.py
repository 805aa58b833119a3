"""A topic into another topic, on a Spark cluster, while drivers, executors and leaders are killed:
every message is there once, and the audit of the running cluster says so, too."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from raftmq.audit.live import audit_cluster
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.client import Admin, Message, Producer, SendConfig
from raftmq.spark.options import connection_of
from tests.spark.test_sink import kill_leader
from tests.spark.test_standalone import ROOT, Standalone
from tests.spark.test_standalone import standalone as standalone

KILLS = 20
PAUSE_S = (1.0, 6.0)  # before each kill, once a driver has begun
SOURCE, TARGET = "KillsFrom", "KillsTo"
WAIT_S = 300.0
DRIVER = """
import sys
from pyspark.sql import SparkSession
from raftmq.spark.shipping import ship

master, namesrv, checkpoint, last = sys.argv[1:]
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
if last == "last":
    sink.trigger(availableNow=True).start().awaitTermination()
else:
    query = sink.start()
    while not query.recentProgress:
        query.awaitTermination(0.2)
    print("BEGUN", flush=True)
    query.awaitTermination()
"""


class Feed:
    """Sends numbered messages, each stored once, for as long as it is open."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.count = 0
        self._wanted = True

    async def run(self) -> None:
        async with Producer("feed", self._namesrv, config=SendConfig(idempotent=True)) as producer:
            while self._wanted:
                body = b"%d" % self.count
                message = Message(SOURCE, body, keys=f"k{self.count}")
                await producer.send(message, timeout_ms=60_000)
                self.count += 1
                await asyncio.sleep(0.002)

    def end(self) -> None:
        self._wanted = False


class Drivers:
    """The one driver that runs the query, started again when it was killed."""

    def __init__(self, standalone: Standalone, namesrv: str, checkpoint: Path) -> None:
        self._standalone = standalone
        self._arguments = [standalone.address, namesrv, str(checkpoint)]
        self._log = checkpoint.parent / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, how: str = "") -> None:
        environment = self._standalone.environment | {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(self._standalone.python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, *self._arguments, how],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_begun(self) -> None:
        """Return when a micro-batch is done, or the driver has ended by itself."""
        deadline = time.monotonic() + WAIT_S
        while b"BEGUN" not in self._log.read_bytes() and self.runs:
            assert time.monotonic() < deadline, self._log.read_text(errors="replace")[-4000:]
            time.sleep(0.1)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self) -> None:
        """Run what is there to its end."""
        self.start("last")
        assert self._process is not None
        assert self._process.wait(WAIT_S) == 0, self._log.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        if self.runs:
            self.kill()


def kill_executor(work: Path) -> None:
    """Kill one of the executors that run below a directory, once there is one."""
    deadline = time.monotonic() + WAIT_S
    while not (result := list(executors(work))):
        assert time.monotonic() < deadline, "no executor"
        time.sleep(0.2)
    os.kill(random.choice(result), signal.SIGKILL)


def executors(work: Path) -> Iterator[int]:
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes()
            if b"ExecutorBackend" in command and work in (process / "cwd").resolve().parents:
                yield int(process.name)
        except OSError:
            pass  # it has ended, or is no process


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_sink_on_a_cluster_copies_every_message_once_through_kills(
    spark: SparkSession, standalone: Standalone, cluster: Cluster, tmp_path: Path
) -> None:
    namesrv = cluster.state().namesrv
    asyncio.run(create(namesrv))
    feed = Feed(namesrv)
    drivers = Drivers(standalone, namesrv, tmp_path / "checkpoint")
    killed: Counter[str] = Counter()
    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(asyncio.run, feed.run())
        try:
            for kind, _ in zip(cycle(("driver", "executor", "leader")), range(KILLS), strict=False):
                if not drivers.runs:
                    drivers.start()
                    drivers.wait_begun()
                time.sleep(random.uniform(*PAUSE_S))
                if kind == "driver":
                    drivers.kill()
                elif kind == "executor":
                    kill_executor(tmp_path)
                else:
                    asyncio.run(kill_leader(cluster))
                killed[kind] += 1
        finally:
            drivers.close()
            feed.end()
        feeding.result()
    drivers.finish()

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
