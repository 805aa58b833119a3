"""Sends a DataFrame's messages again, with their born times and at their pace.

    replay(frame, namesrv="127.0.0.1:9876", topic="Copies", name="tuesday", speed=10)

Rows are those of the sink (spark.sink_rows), with `born_time`, and optionally `delay_ms` and the
message's origin as format `raftmq` has it. RocketMQ's batches have neither born times nor delays,
so each row is a send of its own, and no exactly-once writer is used. Sends are idempotent, under
ids made of the replay's name and the row's origin: a task that runs again stores nothing twice
while the brokers remember its sends (`idempotentWindowMs`).

Each origin queue is sent by a single task, in the order of born times, to a single queue.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from raftmq.client.errors import ClientError
from raftmq.client.message import Message, MessageQueue, SendResult
from raftmq.client.producer.producer import Producer
from raftmq.client.producer.sender import SendConfig
from raftmq.store.properties import ADDED_PROPERTIES, KEYS, TAGS

from .cluster import instance_config
from .errors import plain_errors
from .options import Connection, OptionError, write_options

PRODUCER_GROUP = "raftmq-replay"
IN_FLIGHT_MAX = 256  # of a task
START_S = 2.0  # until all tasks run; a late task catches up
_ORIGIN = ("topic", "broker", "queue_id")
_IDENTITY = (*_ORIGIN, "queue_offset", "msg_id")
COLUMNS = ("body", "flag", "properties", "tags", "keys", "born_time", "delay_ms", *_IDENTITY)
_NOT_OWN = ADDED_PROPERTIES | {KEYS, TAGS}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Plan:
    connection: Connection
    topic: str
    name: str
    speed: float
    first_ms: int  # the earliest born time
    start_s: float  # Unix time at which it is sent


def replay(frame: DataFrame, *, name: str, speed: float = 1.0, **options: object) -> int:
    """Send the rows to option `topic` and return their number, with `speed` times the pace of their
    born times; 0 sends as fast as possible. `delay_ms` is added to a message's delivery. `name`
    identifies the replay: the same rows under another name are sent again. Raises OptionError, and
    Spark's errors from tasks."""
    checked = write_options({key: str(value) for key, value in options.items()}, streaming=False)
    if missing := {"body", "born_time"} - set(frame.columns):
        raise OptionError(f"a replay needs column {min(missing)}")
    if speed < 0:
        raise OptionError(f"speed is a factor of at least 0, not {speed}")
    rows = frame.select(*(column for column in COLUMNS if column in frame.columns))
    first = rows.agg(F.min(F.unix_millis("born_time"))).collect()[0][0]
    if first is None:
        return 0
    count = rows.sparkSession.sparkContext.defaultParallelism
    origin = [column for column in _ORIGIN if column in rows.columns]
    spread = rows.repartition(count, *origin) if origin else rows.coalesce(1)
    start_s = time.time() + START_S
    plan = _Plan(checked.connection, checked.topic, name, speed, first, start_s)
    ordered = spread.sortWithinPartitions("born_time", *origin)
    return sum(row["sent"] for row in ordered.mapInArrow(_task(plan), "sent long").collect())


def _task(plan: _Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        with plain_errors():
            yield pa.RecordBatch.from_pydict({"sent": [asyncio.run(_Sends(plan).run(rows))]})

    return task


class _Sends:
    """The sends of a task."""

    def __init__(self, plan: _Plan) -> None:
        connection = plan.connection
        self._plan = plan
        self._producer = Producer(
            PRODUCER_GROUP,
            connection.namesrv,
            config=SendConfig(idempotent=True),
            instance_config=instance_config(connection),
        )
        self._in_flight = 0
        self._settled = asyncio.Event()
        self._failure: ClientError | None = None

    async def run(self, rows: Iterable[Row]) -> int:
        """Send the rows; return their number. Raises ClientError for the first that failed."""
        count = 0
        async with self._producer as producer:
            queues = sorted(await producer.queues(self._plan.topic))
            for row in rows:
                await asyncio.sleep(self._due_s(row) - time.time())
                await self._wait(IN_FLIGHT_MAX - 1)
                message, queue = self._message(row), _queue(row, queues)
                timeout_ms = self._plan.connection.timeout_ms
                producer.send_nowait(message, self._settle, timeout_ms, queue)
                self._in_flight += 1
                count += 1
            await self._wait(0)
        return count

    async def _wait(self, in_flight_max: int) -> None:
        while self._in_flight > in_flight_max and self._failure is None:
            self._settled.clear()
            await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def _settle(self, result: SendResult | None, error: ClientError | None) -> None:
        self._in_flight -= 1
        self._failure = self._failure or error
        self._settled.set()

    def _due_s(self, row: Row) -> float:
        plan, born = self._plan, row["born_time"]
        if not plan.speed or born is None:
            return 0.0
        after_s: float = born.timestamp() - plan.first_ms / 1000
        return plan.start_s + after_s / plan.speed

    def _message(self, row: Row) -> Message:
        given = dict(row.get("properties") or ())
        born, delay_ms = row["born_time"], row.get("delay_ms")
        identity = [str(row[name]) for name in _IDENTITY if name in row]
        name = "\0".join([self._plan.name, *identity])
        key = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest().upper()
        body = row["body"]
        return Message(
            self._plan.topic,
            body.encode() if isinstance(body, str) else body,
            tags=row.get("tags") or given.get(TAGS),
            keys=row.get("keys") or given.get(KEYS),
            properties={k: v for k, v in given.items() if v and k not in _NOT_OWN},
            flag=row.get("flag") or 0,
            unique_key=key if identity else None,
            delay_time=timedelta(milliseconds=delay_ms) if delay_ms else None,
            born_timestamp_ms=None if born is None else round(born.timestamp() * 1000),
        )


def _queue(row: Row, queues: Sequence[MessageQueue]) -> MessageQueue | None:
    """Return a queue for the row's origin queue; None for any, if the origin is unknown."""
    queue_id: int | None = row.get("queue_id")
    if queue_id is None:
        return None
    origin = f"{row.get('topic')} {row.get('broker')}".encode()
    return queues[(zlib.crc32(origin) + queue_id) % len(queues)]
