"""The sink of format `raftmq`, which writes each batch of rows to a topic exactly once.

    df.write.format("raftmq").option("namesrv", …).option("topic", …).mode("append").save()
    stream.writeStream.format("raftmq")….option("checkpointLocation", …).start()

Tasks send nothing, but each stages its rows in a file. Then the driver writes the batch's plan
(spark.plan), and sends the requests of the plan as an exactly-once writer
(client.producer.exactly_once_writer). After any failure, the next attempt finds the plan and makes
the same requests, and the brokers store those that they do not have. So no repeated task, different
rows of a second attempt, or different number of partitions can store a row twice or omit it.

`commit` opens the writer before it reads the plan. That fences any process that still works on the
same batch; if it sent requests, its plan exists.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from raftmq.client.errors import ClientError
from raftmq.client.message import MessageQueue
from raftmq.client.producer.exactly_once_writer import ExactlyOnceWriter, Opening, WritePosition

from .cluster import instance_config
from .errors import FormatError, plain_errors
from .options import WriteOptions
from .plan import STAGED, Plan, Requests, new_plan, plan_of
from .sink_rows import staged
from .staging import Staging

log = logging.getLogger("raftmq.spark")

WAITING_MAX = 2  # unsent requests per queue
QUERY_ID = "sql.streaming.queryId"  # Spark's property for a task's query id


class NotWritten(FormatError):
    """A batch cannot be written without breaking a promise."""


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """Reports a task's staged file, its number of rows and its stream's query to the driver."""

    file: str
    rows: int
    query: str = ""


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]  # as above
    """Writes a job's rows once; with option `batch` also over repetitions of the job."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.generated = f"spark-{uuid.uuid4().hex}"
        self.own = "" if options.staging else str(Path(tempfile.gettempdir()) / self.generated)

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self._staging, iterator)

    @plain_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staging = self._staging
        once = not (self.options.writer or self.options.is_numbered)
        writer = self.generated if once else writer_of(self.options, staging)
        if not is_due(self.options, staging, writer, _query(messages)):
            _abort(staging, self.options.batch, messages)
            return
        _commit(staging, self.options, writer, self.options.batch, messages, once=once)
        self._forget()

    @plain_errors()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._staging, self.options.batch, messages)
        self._forget()

    def _forget(self) -> None:
        """Remove files that no attempt can need."""
        if self.own:
            shutil.rmtree(self.own, ignore_errors=True)

    @property
    def _staging(self) -> Staging:
        return Staging(self.options.staging or self.own)


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # as above
    """Writes each batch of a stream once, with the writer of its checkpoint."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(Staging(self.options.staging), iterator)

    @plain_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        staging = Staging(self.options.staging)
        writer = writer_of(self.options, staging)
        _check_location(staging, self.options.topic, writer, _query(messages))
        if staging.is_done(batchId):  # Spark ended before it recorded this
            _abort(staging, batchId, messages)
            return
        last = staging.last_done()
        if batchId < last and self.options.exactly_once:
            raise NotWritten(_written(writer, batchId, last, _query(messages)))
        _commit(staging, self.options, writer, batchId, messages)

    @plain_errors()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _abort(Staging(self.options.staging), batchId, messages)


def writer_of(options: WriteOptions, staging: Staging) -> str:
    return options.writer or staging.writer()


def is_due(options: WriteOptions, staging: Staging, writer: str, query: str) -> bool:
    """Return False if a job's batch is stored already. Raises NotWritten, PlanError."""
    batch = options.batch
    _check_location(staging, options.topic, writer, query)
    if options.is_numbered and staging.is_done(batch):
        log.info("batch_skipped topic=%s writer=%s batch=%d", options.topic, writer, batch)
        return False
    last = staging.last_done()
    if batch <= last:
        raise NotWritten(_written(writer, batch, last, query))
    planned = staging.planned()
    started = [each for each in planned if each > last]
    if started and batch not in planned:
        raise NotWritten(
            f"batch {started[0]} of writer {writer} is begun and not done: repeat it"
            f" before batch {batch}"
        )
    return True


def _check_location(staging: Staging, topic: str, writer: str, query: str) -> None:
    """Raise PlanError if this location has batches of a different sink, because their numbers and
    completion marks would be mistaken for ours."""
    for batch in staging.planned():
        plan_of(staging.plan(batch) or b"", topic, writer, query)


def _query(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Return the id of the query that staged a batch; "" if unknown."""
    return next((each.query for each in messages if isinstance(each, Staged)), "")


def _written(writer: str, batch: int, last: int, query: str) -> str:
    """Return why a batch before the last one is not written."""
    if not query:
        return (
            f"writer {writer} has written its batch {last} already: give this one a higher number "
            "(option batch), or another writer"
        )
    return (
        f"the checkpoint was set back: the query begins batch {batch}, and the topic has its "
        f"batches up to {last}. Nothing was written. To go on, restore the checkpoint's files "
        f"(offsets, commits, sources) of batch {last}. A new checkpoint and location would store "
        f"the rows of batches {batch} to {last} a second time"
    )


def stage(staging: Staging, batches: Iterator[pa.RecordBatch]) -> Staged:
    """Stage a task's rows. Raises RowError, OSError."""
    task, count = TaskContext.get(), 0
    query = (task and task.getLocalProperty(QUERY_ID)) or ""
    with staging.new_rows(STAGED) as (name, out):
        for batch in batches:
            if len(batch):
                out.write_batch(staged(batch))
                count += len(batch)
    return Staged(name, count, query)


def _abort(staging: Staging, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Remove staged files, except planned files, which the next attempt sends."""
    plan = staging.plan(batch) or b""
    for message in messages:
        if isinstance(message, Staged) and message.file.encode() not in plan:
            staging.remove_rows(message.file)


def _commit(
    staging: Staging,
    options: WriteOptions,
    writer: str,
    batch: int,
    messages: Sequence[WriterCommitMessage | None],
    *,
    once: bool = False,
) -> None:
    files = [message for message in messages if isinstance(message, Staged)]
    if len(files) < len(messages):
        raise NotWritten(f"batch {batch}: a task did not say what it staged")
    asyncio.run(Commit(staging, options, writer, batch).run(files, once=once))


class Commit:
    """Writes a batch of staged rows."""

    def __init__(
        self,
        staging: Staging,
        options: WriteOptions,
        writer: str,
        batch: int,
        opening: Opening | None = None,
    ) -> None:
        self._staging = staging
        self._batch = batch
        connection = options.connection
        self._writer = ExactlyOnceWriter(
            writer,
            options.topic,
            connection.namesrv,
            exactly_once=options.exactly_once,
            patience_ms=connection.timeout_ms,
            instance_config=instance_config(connection),
            opening=opening,
        )

    async def run(self, files: Sequence[Staged], *, once: bool) -> None:
        """Write the batch, with `once` the only one. Raises NotWritten, PlanError, ClientError."""
        async with self._writer:
            await self._send(await self._ready(files))
            self._staging.done(self._batch)
            if once:
                await self._writer.delete()

    async def ready(self, files: Sequence[Staged]) -> tuple[Plan, Opening]:
        """Return the batch's plan, and the writer for `send_part` in further processes."""
        async with self._writer:
            return await self._ready(files), self._writer.opening

    async def send_part(self, plan: Plan, queues: Collection[int]) -> None:
        """Send the requests of some of the plan's queues, by index, with the writer's opening."""
        async with self._writer:
            await self._send(plan, queues)

    async def _ready(self, files: Sequence[Staged]) -> Plan:
        plan = self._plan(files)
        await self._writer.open_at(plan.message_queues)
        self._staging.clean(self._batch, set(plan.files))
        return plan

    def _plan(self, files: Sequence[Staged]) -> Plan:
        writer, batch = self._writer, self._batch
        saved = self._staging.plan(batch)
        if saved is not None:
            return plan_of(saved, writer.topic, writer.name, _query(files))
        beyond = [queue for queue in writer.queues if writer.last(queue).batch >= batch]
        if beyond:
            last = self._staging.last_done()
            where = f"this location's last batch is {last}" if last >= 0 else "this location is new"
            raise NotWritten(
                f"{beyond[0].broker_name} has batch {writer.last(beyond[0]).batch} of writer "
                f"{writer.name}, and {where}: the location knows nothing of its batch {batch}. "
                "Either the location was set back (restore its later files), or the writer belongs "
                "to another location (give another writer)"
            )
        names, rows = [each.file for each in files if each.rows], sum(each.rows for each in files)
        if lost := self._staging.missing(names):
            raise NotWritten(
                f"{lost[0]}, which a task has staged, is not to be seen from the driver: give "
                "option stagingLocation, a place that the driver and all executors reach"
            )
        queues = list(writer.queues)
        plan = new_plan(writer.topic, writer.name, batch, queues, names, rows, _query(files))
        self._staging.save_plan(batch, writer.epoch, plan.to_json())
        return plan

    async def _send(self, plan: Plan, only: Collection[int] | None = None) -> None:
        """Send the requests that the brokers do not have, one at a time for each queue."""
        requests = Requests(plan, self._writer.unique_key_start, only)
        send_queues = {queue: asyncio.Queue[_Made](WAITING_MAX) for queue in plan.message_queues}
        try:
            async with asyncio.TaskGroup() as tasks:
                for queue, send_queue in send_queues.items():
                    tasks.create_task(self._send_batches(queue, send_queue))
                count = 0
                for name in plan.files:
                    with self._staging.rows(name) as batches:
                        for batch in batches:
                            count += len(batch)
                            for queue, position, body in requests.add(batch):
                                await send_queues[queue].put((position, body))
                if count != plan.rows:
                    raise NotWritten(
                        f"{count} rows are staged, and {plan.rows} were: files changed"
                    )
                for queue, position, body in requests.rest():
                    await send_queues[queue].put((position, body))
                for send_queue in send_queues.values():
                    await send_queue.put(None)
        except BaseExceptionGroup as errors:
            expected, others = errors.split((ClientError, NotWritten, OSError))
            if expected is None or others is not None:
                raise
            raise expected.exceptions[0] from None

    async def _send_batches(self, queue: MessageQueue, send_queue: asyncio.Queue[_Made]) -> None:
        while (made := await send_queue.get()) is not None:
            await self._writer.write_encoded(queue, *made)


_Made = tuple[WritePosition, bytes] | None
