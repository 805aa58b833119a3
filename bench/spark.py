"""`python -m bench.spark`: cost of Spark's readers and sink, and references of the same run.

A Raft group is filled with messages, read by raw pulls and by format `raftmq`, audited while it
runs, and stopped; then its three stores are audited by both engines, each with CPU time and memory
of all its processes. A single core scans and decodes a store's log, as an audit does with the
replicas' common bytes, and for comparison only computes the CRC of the same records.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from bench.group import RaftGroup, cpu_us, raft_group
from bench.peers.remoting import QUEUES, TOPIC, pull_all
from bench.wire import run_load
from raftmq.audit.api import Engines
from raftmq.audit.engine.choice import LOCAL, SPARK
from raftmq.audit.live import audit_cluster
from raftmq.audit.read.log_scanner import walk_range
from raftmq.audit.read.store_files import Store
from raftmq.audit.run import AuditOptions
from raftmq.audit.session import session
from raftmq.client import Admin, Message, Producer
from raftmq.spark.columns import record_columns
from raftmq.spark.options import Connection, connection_of

MESSAGES = 1_000_000
BATCH = 100
IN_FLIGHT = 16  # batches
BODY = b"x" * 128
ENGINES = (LOCAL, SPARK)
SAMPLE_S = 0.05  # between looks at an audit's processes
BATCHES = 6  # micro-batches of a size
BATCH_SIZES = (1_600, 50_000)
BATCH_QUEUES = (4, 64, 512)
CHUNK = 65_536  # records decoded at once, as by the audit
Row = tuple[str, float, str, str]  # label, figure, unit, comparison with the reference


async def measure(count: int, spark: SparkSession | None) -> list[Row]:
    """Without `spark`, measure only the audits of the stores."""
    async with raft_group() as group:
        await fill(group.address, count // BATCH)
        await group.wait_recovered()
        rows = [] if spark is None else await measure_running(group, spark, count)
        stores = {node.name: group.cluster.store_of(node) for node in group.cluster.state().brokers}
        await group.cluster.end(group.cluster.state().brokers, 60.0)
        for engine in ENGINES:
            rows.append(await asyncio.to_thread(audit_cost, stores, engine))
        return [*rows, *one_core(next(iter(stores.values())))]


async def measure_running(group: RaftGroup, spark: SparkSession, count: int) -> list[Row]:
    raw = await pull_all(group.address)
    rows: list[Row] = [("raw pulls by a bare client", raw.rate, "messages/s", "")]
    for columns in ("", "queue_id,queue_offset,body"):
        took_s = await asyncio.to_thread(read, spark, group.namesrv, columns)
        rate = count / took_s
        what = f"format raftmq, {columns or 'all columns'}"
        rows.append((what, rate, "messages/s", f"{rate / raw.rate:.0%} of raw pulls (goal 50)"))
    connection = connection_of({"namesrv": group.namesrv})
    with tempfile.TemporaryDirectory() as kept:
        full_s = await audited_s(spark, connection, Path(kept), incremental=False)
        rows.append(("audit of the running group", full_s, "s", ""))
        more = count // BATCH // 100
        await fill(group.address, more)
        added_s = await audited_s(spark, connection, Path(kept), incremental=True)
        note = f"{added_s / full_s:.0%} of that (goal 10, of 5 million)"
        rows.append(("incrementally, after 1 % more", added_s, "s", note))
    return rows


async def measure_batches(spark: SparkSession) -> list[Row]:
    """Measure micro-batches of few and of many rows, from topics of few and of many queues."""
    rows: list[Row] = []
    async with raft_group() as group:
        for queues in BATCH_QUEUES:
            async with Admin(group.namesrv) as admin:
                await admin.topic.create(f"Queues{queues}", queues)
            async with Producer("bench", group.namesrv) as producer:
                for _ in range(BATCHES * max(BATCH_SIZES) // BATCH):
                    sent = [Message(f"Queues{queues}", BODY) for _ in range(BATCH)]
                    await producer.send_batch(sent, 30_000)
            for size in BATCH_SIZES:
                took_s = await asyncio.to_thread(batch_s, spark, group.namesrv, queues, size)
                rows.append((f"micro-batch of {size:,} rows, {queues} queues", took_s, "s", ""))
    return rows


def batch_s(spark: SparkSession, namesrv: str, queues: int, size: int) -> float:
    """Return the median seconds of micro-batches of so many rows, without the first."""
    stream = spark.readStream.format("raftmq").options(namesrv=namesrv, topic=f"Queues{queues}")
    stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=size)
    query = stream.load().writeStream.format("noop").start()
    try:
        while len([*query.recentProgress]) < BATCHES:
            time.sleep(SAMPLE_S)
        took_ms = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
        return float(statistics.median(took_ms[1:BATCHES])) / 1000
    finally:
        query.stop()


def audit_cost(stores: Mapping[str, Path], engine: str) -> Row:
    """Measure `mqaudit` and all processes that it starts."""
    command = [sys.executable, "-m", "raftmq.audit", "--engine", engine]
    for name, store in stores.items():
        command += ["--store", f"{name}={store}"]
    started = time.perf_counter()
    cpu_s: dict[int, float] = {}
    peak_kib = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            found = {pid: process_cost(pid) for pid in tree(process.pid)}
            cpu_s |= {pid: own_s for pid, (own_s, _) in found.items() if own_s}
            peak_kib = max(peak_kib, sum(kib for _, kib in found.values()))
            time.sleep(SAMPLE_S)
    assert process.returncode == 0, command
    note = f"{time.perf_counter() - started:.0f} s, {peak_kib / 1024:,.0f} MiB"
    return f"mqaudit --engine {engine}, {len(stores)} stores", sum(cpu_s.values()), "CPU s", note


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    try:
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
        children = {int(c) for each in threads for c in (each / "children").read_text().split()}
    except OSError:
        return  # it has ended
    for child in children:
        yield from tree(child)


def process_cost(pid: int) -> tuple[float, int]:
    """Return the CPU seconds of a process and its own memory in KiB, without mapped files."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return cpu_us(pid) / 1e6, int(status.partition("RssAnon:")[2].split()[0])
    except (OSError, IndexError):
        return 0.0, 0  # it has ended


async def fill(address: str, batches: int) -> None:
    await run_load(
        address, TOPIC, queues=QUEUES, body=BODY, count=batches, in_flight=4, batch=BATCH
    )


async def audited_s(
    spark: SparkSession, connection: Connection, kept: Path, *, incremental: bool
) -> float:
    """Audit the running group as fast as it can be read; return the seconds."""
    started = time.perf_counter()
    with Engines(running=spark) as engines:
        (report,) = await asyncio.to_thread(
            audit_cluster,
            *(connection, AuditOptions(results=kept, incremental=incremental)),
            engines=engines,
            bytes_per_s=1 << 40,
        )
    assert report.ok, report
    return time.perf_counter() - started


async def measure_sink(spark: SparkSession, count: int) -> list[Row]:
    """Write to a new group by our Producer's batches, and by the sink."""
    async with raft_group() as group:
        async with Admin(group.namesrv) as admin:
            await admin.topic.create(TOPIC, QUEUES)
        reference = count / await produce(group.namesrv, count)
        rows: list[Row] = [(f"Producer, batches of {BATCH}", reference, "messages/s", "")]
        times = []
        for _ in range(2):
            started = time.perf_counter()
            write(
                spark, group.namesrv, count
            )  # Spark finds the format in its session's thread only
            times.append(time.perf_counter() - started)
        note = f"{count / min(times) / reference:.0%} of the Producer (goal 50)"
        rows.append(("format raftmq, written", count / min(times), "messages/s", note))
    return rows


async def produce(namesrv: str, count: int) -> float:
    """Send batches, IN_FLIGHT at a time; return the seconds."""
    async with Producer("bench", namesrv) as producer:
        waiting = iter(range(count // BATCH))

        async def sending() -> None:
            for _ in waiting:
                await producer.send_batch([Message(TOPIC, BODY) for _ in range(BATCH)], 30_000)

        started = time.perf_counter()
        await asyncio.gather(*(sending() for _ in range(IN_FLIGHT)))
        return time.perf_counter() - started


def write(spark: SparkSession, namesrv: str, count: int) -> None:
    frame = spark.range(count).select(F.lit(BODY).alias("body"))
    options = {"namesrv": namesrv, "topic": TOPIC}
    frame.write.format("raftmq").options(**options).mode("append").save()


def read(spark: SparkSession, namesrv: str, columns: str) -> float:
    """Read the topic and drop the rows; return the seconds of the better of two times."""
    options = {"namesrv": namesrv, "topic": TOPIC} | ({"columns": columns} if columns else {})
    times = []
    for _ in range(2):
        started = time.perf_counter()
        frame = spark.read.format("raftmq").options(**options).load()
        frame.write.format("noop").mode("overwrite").save()
        times.append(time.perf_counter() - started)
    return min(times)


def one_core(store: Path) -> Iterator[Row]:
    """Measure on a core the CRCs of a store's records, its scan, and all columns."""
    walks, crcs, columns = 0.0, 0.0, 0.0
    count = 0
    for segment in Store(store.name, str(store)).segments:
        view = segment.file.view().data
        started = time.process_time()
        walk = walk_range(view, segment.base, 0, len(view))
        walked = time.process_time()
        sizes = [int.from_bytes(view[at : at + 4], "big") for at in walk.records]
        prepared = time.process_time()
        for at, size in zip(walk.records, sizes, strict=True):
            zlib.crc32(view[at : at + size])
        checked = time.process_time()
        for first in range(0, len(walk.records), CHUNK):
            record_columns(view, walk.records[first : first + CHUNK], body=False, rest=False)
        ended = time.process_time()
        count += len(walk.records)
        walks += walked - started
        crcs += checked - prepared
        columns += ended - checked
    reference = count / crcs
    yield ("CRC of the same records, one core", reference, "records/s", "the reference")
    yield ("walk, one core", count / walks, "records/s", f"{count / walks / reference:.0%}")
    rate = count / columns
    yield ("columns with CRCs, one core", rate, "records/s", f"{rate / reference:.0%} (goal 25)")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", default=MESSAGES, show_default=True, type=click.IntRange(1_000))
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write all figures.")
@click.option("--only", type=click.Choice(["sink", "audit", "batches"]), help="Measure only this.")
def main(messages: int, json_path: str | None, only: str | None) -> None:
    """Measure Spark's readers and sink, audits, and references beside them."""
    rows: list[Row] = []
    if only == "audit":
        rows = uvloop.run(measure(messages, None))
    else:
        with session() as spark:
            if only is None:
                rows = uvloop.run(measure(messages, spark))
            if only in (None, "sink"):
                rows += uvloop.run(measure_sink(spark, messages))
            if only in (None, "batches"):
                rows += uvloop.run(measure_batches(spark))
    table = Table("what", "figure", "", "beside")
    for what, figure, unit, note in rows:
        table.add_row(
            what, f"{figure:,.1f}" if unit in ("s", "CPU s") else f"{figure:,.0f}", unit, note
        )
    Console().print(table)
    if json_path:
        result: list[Any] = [list(row) for row in rows]
        Path(json_path).write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
