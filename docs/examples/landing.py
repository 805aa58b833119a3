"""Land the topic Orders in a table, each message once, until stopped.

`landing.py delta DIRECTORY` (or parquet) writes DIRECTORY/table, `landing.py iceberg DIRECTORY` the
table mq.orders of PyIceberg's catalog `lake`. The checkpoint is DIRECTORY/checkpoint.
"""

import os
import sys
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
FORMAT, DIRECTORY = sys.argv[1:]
BATCH = "raftmq.batch"  # in a snapshot's summary: the micro-batch that it has


def land(frame: DataFrame, number: int) -> None:
    """Add a micro-batch to the Iceberg table as a snapshot, unless it has one already."""
    snapshots = table.refresh().snapshots()
    if any(each.summary is not None and each.summary[BATCH] == f"{number}" for each in snapshots):
        return
    location = f"{table.location()}/data/{uuid4()}"
    frame.write.parquet(location)
    files = spark.read.parquet(location).inputFiles()
    table.add_files(files, snapshot_properties={BATCH: f"{number}"}, check_duplicate_files=False)


builder = SparkSession.builder
if FORMAT == "delta":
    builder.config("spark.jars.packages", "io.delta:delta-spark_4.2_2.13:4.4.0")
    builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    builder.config("spark.sql.catalog.spark_catalog", catalog)
elif FORMAT == "iceberg":
    builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # as Iceberg's
spark = builder.getOrCreate()
messages = (
    spark.readStream.format("raftmq")
    .option("namesrv", NAMESRV)
    .option("topic", "Orders")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 100_000)
    .load()
)
writer = messages.writeStream.option("checkpointLocation", f"{DIRECTORY}/checkpoint")
if FORMAT != "iceberg":
    query = writer.format(FORMAT).start(f"{DIRECTORY}/table")
else:
    from pyiceberg.catalog import load_catalog

    lake = load_catalog("lake")
    lake.create_namespace_if_not_exists("mq")
    table = lake.create_table_if_not_exists(
        "mq.orders",
        to_arrow_schema(messages.schema, timezone="UTC"),
        properties={"commit.retry.num-retries": "0"},  # a retry does not look for BATCH again
    )
    query = writer.foreachBatch(land).start()
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()
