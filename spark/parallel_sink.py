"""Writes a DataFrame into a topic from the executors, each batch exactly once.

    stream.writeStream.foreachBatch(lambda frame, number: write(frame, batch=number, ...))

A sink of Spark's Python API is committed by a single process at the driver. Where the session is at
hand, as in `foreachBatch`, a second Spark job sends instead: the driver makes the same plan as for
the sink (spark.sink), opens the writer, and each task sends the requests of queues of its own. So a
queue has its requests in order, and a task that runs twice repeats the same numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame

from raftmq.client.producer.exactly_once_writer import Opening

from .options import OptionError, WriteOptions, write_options
from .plan import Plan
from .sink import Commit, Staged, is_due, stage, writer_of
from .sink_rows import check_columns
from .staging import Staging


def write(frame: DataFrame, **options: object) -> None:
    """Store a batch's rows once, with the options of format `raftmq`; `stagingLocation` and `batch`
    are required. Return at once if the batch is stored already. Raises OptionError, RowError,
    NotWritten, PlanError, ClientError, and Spark's errors from tasks."""
    given = {name: str(value) for name, value in options.items()}
    checked = write_options(given, streaming=False)
    if not checked.is_numbered:
        raise OptionError("give options stagingLocation and batch")
    check_columns(frame.columns)
    staging = Staging(checked.staging)
    writer = writer_of(checked, staging)
    if not is_due(checked, staging, writer, ""):
        return
    stored = frame.mapInArrow(_stager(checked), "file string, rows long, query string").collect()
    files = [Staged(row["file"], row["rows"], row["query"]) for row in stored]
    if not is_due(checked, staging, writer, next((each.query for each in files), "")):
        return
    commit = Commit(staging, checked, writer, checked.batch)
    plan, opening = asyncio.run(commit.ready(files))
    count = min(len(plan.queues), max(1, len(plan.files)))
    numbers = frame.sparkSession.range(0, count, 1, count)
    numbers.mapInArrow(_sender(checked, writer, plan, opening, count), "id long").collect()
    staging.done(checked.batch)


_Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _stager(options: WriteOptions) -> _Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        result = stage(Staging(options.staging), batches)
        columns = {"file": [result.file], "rows": [result.rows], "query": [result.query]}
        yield pa.RecordBatch.from_pydict(columns)

    return task


def _sender(options: WriteOptions, writer: str, plan: Plan, opening: Opening, count: int) -> _Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                commit = Commit(Staging(options.staging), options, writer, plan.batch, opening)
                queues = range(number, len(plan.queues), count)
                asyncio.run(commit.send_part(plan, queues))
            yield batch

    return task
