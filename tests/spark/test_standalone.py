"""A standalone Spark cluster of two workers that have nothing of ours: `ship` brings it to them."""

import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from raftmq.audit.find_java import find_java_home
from raftmq.chaos.cluster.cluster import Cluster
from tests.smallspark import JVM
from tests.spark.test_source import bodies, fill

ROOT = Path(__file__).parents[2]
SPARK = Path(pyspark.__path__[0])
DEPLOY = "org.apache.spark.deploy"
COUNT = 400
DRIVER = """
import sys
from pyspark.sql import SparkSession, functions as F
from raftmq.spark.shipping import ship

master, namesrv, staging = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
}
builder = SparkSession.builder.master(master)
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
ship(spark)
frame = spark.read.format("raftmq").option("namesrv", namesrv).option("topic", "Shipped")
frame = frame.option("minPartitions", "4").load()
print("BODIES", frame.agg(F.count("*"), F.count_distinct("body")).collect()[0])

into = {"namesrv": namesrv, "topic": "ShippedTo", "stagingLocation": staging}
frame.select("body").write.format("raftmq").options(**into).mode("append").save()
written = spark.read.format("raftmq").options(namesrv=namesrv, topic="ShippedTo").load()
print("WRITTEN", written.agg(F.count("*"), F.count_distinct("body")).collect()[0])

def where(_):
    import os
    try:
        import bench  # stands beside our package, and was not shipped
    except ImportError:
        yield os.getcwd()

print("PLACES", spark.sparkContext.parallelize(range(8), 8).mapPartitions(where).collect())
spark.stop()
"""


class Standalone:
    """A master and two workers, each in a directory of its own."""

    def __init__(self, directory: Path, ended: ExitStack, spark: Path = SPARK) -> None:
        self._directory, self._ended = directory, ended
        self._spark_class = spark / "bin" / "spark-class"
        # A Python that has what executors need, and not our package.
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", directory / "env"], check=True
        )
        (site,) = (directory / "env").glob("lib/python*/site-packages")
        (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.python = directory / "env" / "bin" / "python"
        hidden = {"PYTHONPATH", "PYSPARK_PYTHON"}
        inherited = {k: v for k, v in os.environ.items() if k not in hidden}
        java = {"JAVA_HOME": find_java_home(os.environ), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.environment = inherited | JVM | java
        at = ("--host", "127.0.0.1", "--webui-port", "0")
        log = self._start("master", f"{DEPLOY}.master.Master", *at, "--port", "0")
        (self.address,) = self._told(log, r"Starting Spark master at (spark://\S+)")
        for name in "ab":
            work = directory / name
            room = ("--cores", "1", "--memory", "700m", "--work-dir", str(work))
            log = self._start(name, f"{DEPLOY}.worker.Worker", *at, *room, self.address)
            self._told(log, r"Successfully registered with master (\S+)")

    def _start(self, name: str, *arguments: str) -> Path:
        """Start a process; return its log."""
        directory = self._directory / name
        directory.mkdir()
        log = directory / "log"
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [self._spark_class, *arguments],
                cwd=directory,
                env=self.environment,
                stdout=file,
                stderr=file,
            )
        self._ended.callback(process.wait)
        self._ended.callback(process.kill)
        return log

    def _told(self, log: Path, pattern: str) -> tuple[str, ...]:
        for _ in range(1200):
            match = re.search(pattern, log.read_text(errors="replace"))
            if match is not None:
                return match.groups()
            time.sleep(0.1)
        raise AssertionError(log.read_text(errors="replace"))


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with ExitStack() as ended:
        yield Standalone(tmp_path, ended)


@pytest.mark.long
def test_standalone_workers_without_the_package_get_it_shipped(
    standalone: Standalone, cluster: Cluster, tmp_path: Path
) -> None:
    fill(cluster, "Shipped", bodies(0, COUNT))
    fill(cluster, "ShippedTo", [b"first"])
    staging = str(tmp_path / "staging")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, standalone.address, cluster.state().namesrv, staging],
        env=standalone.environment
        | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(standalone.python)}
        | {"PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert f"BODIES Row(count(1)={COUNT}, count(DISTINCT body)={COUNT})" in done.stdout, done.stderr
    assert f"WRITTEN Row(count(1)={COUNT + 1}, count(DISTINCT body)={COUNT + 1})" in done.stdout
    (positions,) = re.findall(r"PLACES \[(.*)\]", done.stdout)
    assert positions.count("/app-") == 8  # all tasks ran where our files are not
