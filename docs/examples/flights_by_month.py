"""Write the flights of a topic into Parquet, by month, until stopped.

The month is that of the flight in the message's body, not of the store time.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
DIRECTORY = sys.argv[1] if len(sys.argv) > 1 else "/data/flights"
FLIGHT = "year int, month int, day int, carrier string, flight int, origin string, dep_delay int"

spark = SparkSession.builder.getOrCreate()
messages = (
    spark.readStream.format("raftmq")
    .option("namesrv", NAMESRV)
    .option("topic", "Flights")
    .option("startingOffsets", "earliest")
    .option("columns", "keys,body")
    .load()
)
flight = F.from_json(F.decode("body", "utf-8"), FLIGHT).alias("flight")
query = (
    messages.select("keys", flight)
    .select("keys", "flight.*")
    .writeStream.format("parquet")
    .partitionBy("year", "month")
    .option("path", f"{DIRECTORY}/parquet")
    .option("checkpointLocation", f"{DIRECTORY}/checkpoint")
    .trigger(processingTime="1 second")
    .start()
)
try:
    query.awaitTermination()
except KeyboardInterrupt:
    query.stop()
