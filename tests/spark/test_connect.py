"""Format `raftmq` through Spark Connect: a client process without Java, and a server of its own."""

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from raftmq.audit.find_java import find_java_home
from raftmq.chaos.cluster.cluster import Cluster
from tests.smallspark import JVM
from tests.spark.test_source import bodies, fill
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SUBMIT = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}
COUNT = 400
PRELUDE = """
import sys
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F

remote, namesrv, directory = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()

def options(topic):
    return {"namesrv": namesrv, "topic": topic}

def show(what, frame):
    print(what, *frame.agg(F.count("*"), F.count_distinct("body")).collect()[0])

def read(topic):
    return spark.read.format("raftmq").options(**options(topic)).load()

def refused(what, work):
    try:
        print(what, "is not refused:", work())
    except PySparkException as error:
        print(what, str(error).replace(chr(10), " "))
"""
INSTALLED = """
show("read", read("Remote"))
read("Remote").select("body").write.format("raftmq").options(**options("RemoteBatch")).save(
    mode="append"
)
show("written", read("RemoteBatch"))

stream = spark.readStream.format("raftmq").options(**options("Remote"))
stream = stream.option("startingOffsets", "earliest").load()
files = stream.writeStream.format("parquet").option("path", directory + "/out")
copies = stream.select("body").writeStream.format("raftmq").options(**options("RemoteStream"))
queries = [
    writer.option("checkpointLocation", directory + f"/{number}").trigger(availableNow=True).start()
    for number, writer in enumerate((files, copies))
]
for query in queries:
    assert query.awaitTermination(120)
    assert query.exception() is None, query.exception()
    print("progress", sum(each.numInputRows for each in query.recentProgress))
show("files", spark.read.parquet(directory + "/out"))
show("copies", read("RemoteStream"))
refused("topic", lambda: read("NoSuchTopic").count())
refused("rdd", lambda: read("Remote").rdd)
refused("context", lambda: spark.sparkContext)
"""
SHIPPED = """
from raftmq.spark.shipping import ship

refused("before", lambda: read("Remote").count())
ship(spark)
show("read", read("Remote"))
read("Remote").select("body").write.format("raftmq").options(**options("RemoteShip")).save(
    mode="append"
)
show("written", read("RemoteShip"))

def streamed():
    stream = spark.readStream.format("raftmq").options(**options("Remote")).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", directory + "/noop")
    query.trigger(availableNow=True).start().awaitTermination(120)

refused("stream", streamed)
"""


class Remote:
    """A Spark Connect server; `run` runs a client's code and returns what that prints."""

    def __init__(self, directory: Path, ended: ExitStack, python: str, **environment: str) -> None:
        """Start it, in a directory that is made for it."""
        directory.mkdir()
        self._directory, self._log = directory, directory / "log"
        settings = [f"--conf={key}={value}" for key, value in SETTINGS.items()]
        hidden = {"PYTHONPATH", "PYSPARK_PYTHON", "SPARK_REMOTE"}
        with open(self._log, "wb") as file:
            self._process = subprocess.Popen(
                [SUBMIT, "--class", SERVER, "--master", "local[2]", *settings],
                cwd=directory,
                env={k: v for k, v in os.environ.items() if k not in hidden}
                | {"JAVA_HOME": find_java_home(os.environ), "PYSPARK_PYTHON": python}
                | JVM
                | {"SPARK_LOCAL_IP": "127.0.0.1"}
                | environment,
                stdout=file,
                stderr=file,
            )
        ended.callback(self._process.wait)
        ended.callback(self._process.kill)

    def run(self, code: str, namesrv: str) -> dict[str, str]:
        """Return what stands behind the first word of each line; warnings are errors."""
        (address,) = wait_until(self._addresses)
        reported = (f"sc://{address}", namesrv, str(self._directory))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PRELUDE + code, *reported],
            env={k: v for k, v in os.environ.items() if k != "JAVA_HOME"}
            | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(line.split(" ", 1) for line in done.stdout.splitlines())

    def _addresses(self) -> list[str]:
        text = self._log.read_text(errors="replace")
        assert self._process.poll() is None, text
        return re.findall(r"Spark Connect server started at: (127\S+:\d+)\s", text)


def python_without_the_package(directory: Path) -> str:
    """Make a Python that has what a server needs, and not our package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return str(directory / "bin" / "python")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Remote, Remote]]:
    """One that has our package, and one that has not; they start at the same time."""
    directory = tmp_path_factory.mktemp("connect")
    with ExitStack() as ended:
        bare = python_without_the_package(directory / "env")
        yield (
            Remote(directory / "ours", ended, sys.executable, PYTHONPATH=str(ROOT)),
            Remote(directory / "bare", ended, bare),
        )


@pytest.fixture(scope="module")
def namesrv(servers: tuple[Remote, Remote], cluster: Cluster) -> str:
    fill(cluster, "Remote", bodies(0, COUNT))
    for topic in ("RemoteBatch", "RemoteStream", "RemoteShip"):
        fill(cluster, topic, [b"first"])
    return cluster.state().namesrv


@pytest.mark.long
def test_connect_server_with_the_package_reads_and_writes(
    servers: tuple[Remote, Remote], namesrv: str
) -> None:
    reported = servers[0].run(INSTALLED, namesrv)
    assert reported.pop("read") == reported.pop("files") == f"{COUNT} {COUNT}"
    assert reported.pop("written") == reported.pop("copies") == f"{COUNT + 1} {COUNT + 1}"
    assert reported.pop("progress") == f"{COUNT}"
    assert "NoSuchTopic" in reported.pop("topic")
    assert reported.pop("rdd") == "[NOT_IMPLEMENTED] rdd is not implemented."
    assert "JVM_ATTRIBUTE_NOT_SUPPORTED" in reported.pop("context")
    assert not reported


@pytest.mark.long
def test_connect_server_with_the_shipped_package_reads_and_writes(
    servers: tuple[Remote, Remote], namesrv: str
) -> None:
    reported = servers[1].run(SHIPPED, namesrv)
    assert "DATA_SOURCE_NOT_FOUND" in reported.pop("before")
    assert reported.pop("read") == f"{COUNT} {COUNT}"
    assert reported.pop("written") == f"{COUNT + 1} {COUNT + 1}"
    assert "No module named 'raftmq'" in reported.pop("stream")
    assert not reported
