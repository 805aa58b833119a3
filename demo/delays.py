"""Delays per carrier and month, computed by Spark from a replica's CommitLog."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from demo.flights_data import Delays, DelayTable
from raftmq.audit.api import topic_frame

FLIGHT_SCHEMA = "carrier string, month int, dep_delay bigint"


def delays_in_topic(spark: SparkSession, store: Path, topic: str) -> DelayTable:
    """Return departures and delay per carrier and month of the flights in the topic. Messages that
    a client's retry stored twice count once."""
    flight = F.from_json(F.col("body").cast("string"), FLIGHT_SCHEMA)
    flights = (
        topic_frame(spark, store, topic)
        .select("uniq_key", flight.alias("flight"))
        .dropDuplicates(["uniq_key"])
        .select("flight.*")
    )
    rows = (
        flights.groupBy("carrier", "month")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count("dep_delay").alias("departures"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_sum_min"),
        )
        .collect()
    )
    return {
        (row.carrier, row.month): Delays(row.flights, row.departures, row.delay_sum_min)
        for row in rows
    }


def differences(expected: DelayTable, result: DelayTable) -> list[str]:
    """Describe every carrier and month with different figures."""
    text = []
    for key in sorted(expected.keys() | result.keys(), key=str):
        if expected.get(key) != result.get(key):
            carrier, month = key
            text.append(
                f"{carrier} month {month}: expected {expected.get(key)}, topic {result.get(key)}"
            )
    return text
