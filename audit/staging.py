"""Decodes stores into Parquet files, which Spark then reads.

The tasks write the files themselves: rows that pass from Python to Spark only to be written cost
more than their decoding. A task that is repeated replaces its file. Nothing is compressed: to Java
Snappy and Zstandard are native code, which cannot be loaded where /tmp executes nothing, and
Spark has once failed to read what Arrow had compressed by LZ4.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition

from raftmq.audit.sources import spark_schema


def decoded(
    spark: SparkSession, reader: DataSourceReader, schema: pa.Schema, directory: Path
) -> DataFrame:
    """Read what a data source's reader reads, in batches of `schema`, into files in `directory`."""
    directory.mkdir()
    parts = list(enumerate(reader.partitions()))
    if parts:
        write = _Write(reader, schema, str(directory))
        spark.sparkContext.parallelize(parts, len(parts)).foreach(write)
    return spark.read.schema(spark_schema(schema)).parquet(str(directory))


@dataclass(frozen=True)
class _Write:
    """Writes one partition's rows; runs in Spark's workers."""

    reader: DataSourceReader
    schema: pa.Schema
    directory: str

    def __call__(self, part: tuple[int, InputPartition]) -> None:
        number, partition = part
        path = f"{self.directory}/part-{number:06}.parquet"
        beside = f"{self.directory}/.{number:06}-{uuid.uuid4().hex}"
        with pq.ParquetWriter(beside, self.schema, compression="none") as out:
            for batch in self.reader.read(partition):
                out.write_batch(batch)
        os.replace(beside, path)
