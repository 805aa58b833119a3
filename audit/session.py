"""Starts Spark for an audit: quiet, without leftover files, and bound to loopback unless it is a
cluster's.

A session costs 6 to 8 s and its first job 2 to 4 s, so a process has a single session.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import raftmq

from .find_java import find_java_home
from .read.spark_sources import register

SPARK_ERRORS = (PySparkException, Py4JJavaError)  # all errors of a query
_CLASSIFIED = re.compile(r"(\[[A-Z_.]+\] .*)")  # Spark's classified message
_OURS = re.compile(r"^raftmq\.[\w.]+: (.*)", re.MULTILINE)  # an exception of a task
_CAUSE = "Caused by: "
CORES = 2
DRIVER_MEMORY = "2g"  # in local mode, all memory for sorts and joins
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
"""
# Spark puts its archive of pyspark first on the path of its workers. The archive has only sources:
# each worker would compile them, in 1.4 CPU seconds instead of 0.6.
SITECUSTOMIZE = """\
import sys

sys.path.sort(key=lambda path: path.endswith(".zip"))
"""


@contextmanager
def session(
    cores: int = CORES, master: str = "", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield a Spark session with the project's data sources registered. `master` is a Spark cluster
    to use instead of `cores` of this machine; `settings` override ours.

    A session that is already running is used and left running. Raises JavaNotFound.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        yield running
        return
    with tempfile.TemporaryDirectory(prefix="mqaudit-spark-") as scratch:
        spark = start(cores, Path(scratch), master, settings)
        try:
            yield spark
        finally:
            spark.stop()


def start(
    cores: int, scratch: Path, master: str = "", more: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark with all its files below `scratch`. Raises JavaNotFound."""
    # The JVM and its Python workers inherit these from this process.
    os.environ["JAVA_HOME"] = find_java_home(os.environ)
    if is_local(master):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _set_workers_path(scratch / "workers")
    log4j = scratch / "log4j2.properties"
    log4j.write_text(LOG4J)
    java_options = (
        f"-Dlog4j2.configurationFile={log4j.as_uri()} -Djava.io.tmpdir={scratch} "
        f"-Dderby.system.home={scratch} -XX:+UseParallelGC -XX:-UsePerfData"
    )
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings = (loopback if is_local(master) else {}) | {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": java_options,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        # Adaptive plans launch a job per shuffle; the tables here are small and even.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.files.maxPartitionBytes": "16m",  # so that a history file uses every core
        "spark.sql.parquet.compression.codec": "lz4",  # staged once, read a few times
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    builder = SparkSession.builder.master(master or f"local[{cores}]").appName("mqaudit")
    for key, value in (settings | dict(more or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def is_local(master: str) -> bool:
    """Return whether all of Spark runs in a process of this machine."""
    return not master or re.fullmatch(r"local(\[.*)?", master) is not None


def cause(error: Exception) -> str:
    """Return one of SPARK_ERRORS as a line, without Java's stack."""
    text = str(error)
    deepest = [line for line in text.splitlines() if line.startswith(_CAUSE)][-1:]
    causes = _OURS.findall(text)[:1] or _CLASSIFIED.findall(text)[:1]
    causes = causes or [line.removeprefix(_CAUSE) for line in deepest]
    return str((causes or [type(error).__name__])[0])


def _set_workers_path(customized: Path) -> None:
    """Put the directory of `raftmq` on the workers' path, for a bare checkout, after a directory
    with SITECUSTOMIZE."""
    customized.mkdir()
    (customized / "sitecustomize.py").write_text(SITECUSTOMIZE)
    root = str(Path(raftmq.__path__[0]).resolve().parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [path for path in paths if path not in ("", root)]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(customized), root, *rest])
