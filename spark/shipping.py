"""Ships this package to Spark clusters and Connect servers that do not have it installed."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

import raftmq

from .source import RaftMqSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOMS = ("client", "ops", "remoting", "spark", "store")  # imported by tasks


def register(spark: SparkSession) -> SparkSession:
    """Register the format with a session whose `python3` on PATH lacks this package, as where a
    script runs by the path of its environment's Python. Return the session.

    Local sessions run this interpreter from now on. On a cluster, driver and executors run the
    Python of PYSPARK_PYTHON, which must be set before the session starts.
    """
    if not is_remote() and spark.sparkContext.master.startswith("local"):
        spark.sparkContext.pythonExec = sys.executable
    spark.dataSource.register(RaftMqSource)
    return spark


def ship(spark: SparkSession) -> None:
    """Send the modules that tasks of format `raftmq` import to all executors of a session, and
    register the format, which a Spark Connect server without this package cannot find.

    The modules' dependencies must be installed there (google-crc32c, lz4, msgspec, numpy, orjson,
    pyarrow, tenacity and zstandard), because they have native code. Spark (4.3) ships nothing to
    the streams of a Connect session, so their server needs this package.
    """
    directory = tempfile.mkdtemp(prefix="raftmq-")
    atexit.register(
        shutil.rmtree, directory, ignore_errors=True
    )  # new executors fetch it at their start
    path = Path(directory) / "raftmq.zip"
    write_archive(path)
    spark.addArtifacts(str(path), pyfile=True)
    register(spark)


def write_archive(path: Path) -> None:
    package = Path(raftmq.__path__[0])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.glob("*.py")):
            archive.write(file, f"raftmq/{file.name}")
        for room in ROOMS:
            root = (package / room).resolve()
            for file in sorted(root.rglob("*.py")):
                archive.write(file, f"raftmq/{room}/{file.relative_to(root)}")
