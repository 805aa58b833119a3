"""Audits the topics of a classic or Apache broker by pulling all messages.

The messages of every topic are pulled from the master, from the first offset to the end. Every
offset in between must have a message, and its body must match its CRC. Slaves and files are not
checked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence

import orjson
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from raftmq.client.errors import BrokerRefused, NoRoute
from raftmq.remoting.codes import ResponseCode
from raftmq.spark.cluster import Cluster
from raftmq.spark.offset_ranges import LATEST, Queue, to_json
from raftmq.spark.options import Connection, options_of

from .read.cluster_info import CLASSIC
from .report.report import AuditReport, CheckResult, Offender

UNSEEN = (
    "messages before the first of each queue: retention or something else removed them",
    "losses, messages never sent, order and duplicates: there is no history of the sends",
    "slaves and files: this broker is no replica of a Raft group, so its master was pulled from",
)


def pulled_report(
    spark: SparkSession, connection: Connection, group: str, topics: Iterable[str]
) -> AuditReport:
    """Pull all messages of a group's topics. Raises ClientError."""
    start_s = time.monotonic()
    everywhere: list[Queue] = []
    unseen = list(UNSEEN)
    first: dict[Queue, int] = {}
    end: dict[Queue, int] = {}
    with Cluster(connection) as cluster:
        for topic in sorted(topics):
            try:
                queues_of_topic = cluster.queues([topic])
                own = [queue for queue in queues_of_topic if queue.broker == group]
                first |= cluster.earliest(own)
                end |= cluster.latest(own)
                everywhere += queues_of_topic
            except NoRoute:
                unseen.append(f"topic {topic}: no name server has a route to it")
            except BrokerRefused as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise
    queues = [queue for queue in everywhere if queue.broker == group]
    pending = [queue for queue in queues if end[queue] > first[queue]]
    # Queues of other broker groups are not read.
    first = {queue: first.get(queue, LATEST) for queue in everywhere}
    end = {queue: end.get(queue, LATEST) for queue in everywhere}
    counts: dict[Queue, tuple[int, int]] = {}
    damaged: list[Offender] = []
    for topic in sorted({queue.topic for queue in pending}):
        own = [queue for queue in pending if queue.topic == topic]
        parts = ({q: to[q] for q in everywhere if q.topic == topic} for to in (first, end))
        try:
            counts |= _counted(spark, connection, own, *parts)
        except PySparkException as error:
            damaged.append({"topic": topic, "what": _reason(str(error))})
    holes: list[Offender] = [
        {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "from": first[queue],
            "to": end[queue],
            "messages": count,
        }
        for queue, (count, distinct) in sorted(counts.items())
        if not count == distinct == end[queue] - first[queue]
    ]
    checks = [
        CheckResult.of_faults(name, title, offenders)
        for name, title, offenders in (
            ("unreadable", "topics that cannot be read, or have damaged messages", damaged),
            ("offset_holes", "queues that lack a message between their first and last", holes),
        )
    ]
    figures = {
        "stored": sum(count for count, _ in counts.values()),
        "topics": len({queue.topic for queue in counts}),
    }
    return AuditReport(
        topic="",
        stores=(),
        figures=figures,
        checks=tuple(checks),
        seconds=time.monotonic() - start_s,
        mode=CLASSIC,
        group=group,
        not_judged=tuple(unseen),
    )


def _counted(
    spark: SparkSession,
    connection: Connection,
    queues: Sequence[Queue],
    first: Mapping[Queue, int],
    end: Mapping[Queue, int],
) -> dict[Queue, tuple[int, int]]:
    """Pull a topic's queues; return the number of messages and of distinct offsets of each."""
    rows = (
        spark.read.format("raftmq")
        .options(**options_of(connection))
        .option("topic", queues[0].topic)
        .option("startingOffsets", orjson.dumps(to_json(first)).decode())
        .option("endingOffsets", orjson.dumps(to_json(end)).decode())
        .option("columns", "topic,broker,queue_id,queue_offset")
        .load()
        .groupBy("topic", "broker", "queue_id")
        .agg(F.count("*").alias("count"), F.count_distinct("queue_offset").alias("distinct"))
    )
    got = {
        Queue(row["topic"], row["broker"], row["queue_id"]): (row["count"], row["distinct"])
        for row in rows.collect()
    }
    return {queue: got.get(queue, (0, 0)) for queue in queues}


def _reason(text: str) -> str:
    """Return the line of a Spark error that names its cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = re.findall(r"\braftmq\.[\w.]+: .*", text)
    return (named or lines or ["no reason is told"])[-1][:300]
