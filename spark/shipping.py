"""Ships this package to Spark, for clusters and Connect servers that do not have it installed."""

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

ROOMS = ("client", "remoting", "spark", "store")  # what tasks import


def ship(spark: SparkSession) -> None:
    """Give all executors of a session the modules that tasks of format `raftmq` import, and tell
    the session of the format: a Spark Connect server that lacks this package cannot find it.

    What the modules import in turn must be installed there: google-crc32c, lz4, msgspec, numpy,
    orjson, pyarrow, tenacity and zstandard, which have parts that are not Python. Spark (4.3) gives
    the streams of a Connect session nothing that was shipped: their server needs this package.
    """
    directory = tempfile.mkdtemp(prefix="raftmq-")
    atexit.register(
        shutil.rmtree, directory, ignore_errors=True
    )  # executors fetch it when they come
    path = Path(directory) / "raftmq.zip"
    write_archive(path)
    spark.addArtifacts(str(path), pyfile=True)
    spark.dataSource.register(RaftMqSource)


def write_archive(path: Path) -> None:
    """Write the modules as a zip archive that Python can import from."""
    package = Path(raftmq.__path__[0])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.glob("*.py")):
            archive.write(file, f"raftmq/{file.name}")
        for room in ROOMS:
            root = (package / room).resolve()
            for file in sorted(root.rglob("*.py")):
                archive.write(file, f"raftmq/{room}/{file.relative_to(root)}")
