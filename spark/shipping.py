"""Ships this package to Spark clusters and Connect servers that do not have it installed."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import raftmq

from .source import RaftMqSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOMS = ("client", "remoting", "spark", "store")  # imported by tasks


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
    spark.dataSource.register(RaftMqSource)


def write_archive(path: Path) -> None:
    package = Path(raftmq.__path__[0])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.glob("*.py")):
            archive.write(file, f"raftmq/{file.name}")
        for room in ROOMS:
            root = (package / room).resolve()
            for file in sorted(root.rglob("*.py")):
                archive.write(file, f"raftmq/{room}/{file.relative_to(root)}")
