"""Audits the topics of a classic or Apache broker by pulling all messages.

The messages of every topic are pulled from the master, from the first offset to the end. Every
offset in between must have a message, and its body must match its CRC. Slaves and files are not
checked.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from raftmq.client.errors import BrokerRefused, ClientError, NoRoute
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.errors import RemotingError
from raftmq.spark.cluster import Cluster
from raftmq.spark.errors import FormatError
from raftmq.spark.offset_ranges import LATEST, Queue, to_json
from raftmq.spark.options import Connection, options_of, read_options
from raftmq.spark.source import BatchReader, Partition

from .engine.frames import Engine
from .read.cluster_info import CLASSIC
from .report.report import AuditReport, CheckResult, Offender

# By queue, the number of messages and of distinct offsets; and the problem, or "".
_Counts = tuple[dict[int, tuple[int, int]], str]
UNSEEN = (
    "messages before the first of each queue: retention or something else removed them",
    "losses, messages never sent, order and duplicates: there is no history of the sends",
    "slaves and files: this broker is no replica of a Raft group, so its master was pulled from",
)


def pulled_report(
    engine: Engine, connection: Connection, group: str, topics: Iterable[str]
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
        counted, problem = _counted(engine, connection, own, *parts)
        counts |= counted
        if problem:
            damaged.append({"topic": topic, "what": problem})
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
        engine=engine.name,
        not_judged=tuple(unseen),
    )


def _counted(
    engine: Engine,
    connection: Connection,
    queues: Sequence[Queue],
    first: Mapping[Queue, int],
    end: Mapping[Queue, int],
) -> tuple[dict[Queue, tuple[int, int]], str]:
    """Pull a topic's queues; return the number of messages and of distinct offsets of each, and why
    the topic cannot be read, or ""."""
    options = {
        **options_of(connection),
        "topic": queues[0].topic,
        "startingOffsets": orjson.dumps(to_json(first)).decode(),
        "endingOffsets": orjson.dumps(to_json(end)).decode(),
        "columns": "queue_id,queue_offset",
    }
    reader = BatchReader(read_options(options, streaming=False))
    none: _Counts = {}, ""
    counts, problem = engine.map_reduce(_Count(reader), reader.partitions(), _added, none)
    return {} if problem else {
        queue: counts.get(queue.queue_id, (0, 0)) for queue in queues
    }, problem


def _added(left: _Counts, right: _Counts) -> _Counts:
    """Return the counts of both, and the first problem."""
    counts = dict(left[0])
    for queue_id, (count, distinct) in right[0].items():
        before = counts.get(queue_id, (0, 0))
        counts[queue_id] = before[0] + count, before[1] + distinct
    return counts, left[1] or right[1]


@dataclass(frozen=True)
class _Count:
    """Pulls ranges of a broker's queues in a task."""

    reader: BatchReader

    def __call__(self, partition: Partition) -> _Counts:
        """Return by queue the number of messages and of distinct offsets, and the problem."""
        offsets: dict[int, list[int]] = {}
        try:
            for batch in self.reader.read(partition):
                numbers = batch["queue_id"].to_pylist()
                for number, offset in zip(numbers, batch["queue_offset"].to_pylist(), strict=True):
                    offsets.setdefault(number, []).append(offset)
        except (FormatError, ClientError, RemotingError) as error:
            return {}, str(error)
        return {number: (len(each), len({*each})) for number, each in offsets.items()}, ""
