"""docs/examples/flights_by_month.py: real flights into Parquet by month, through a leader kill."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from demo.flights_data import Flight, data_file, flight_id, read_flights
from raftmq.audit.find_java import find_java_home
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.client import Admin, Message, Producer, SendConfig
from tests.smallspark import PROGRAM
from tests.waiting import until, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "flights_by_month.py"
TOPIC = "Flights"
STEP = 84  # one of so many rows of the year: 4,010 flights
AT_ONCE = 50
WRITTEN = ("year", "month", "day", "carrier", "flight", "origin", "dep_delay")


@contextmanager
def running_example(namesrv: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(directory)],
        cwd=directory,
        env=os.environ
        | PROGRAM
        | {"JAVA_HOME": find_java_home(os.environ), "SPARK_LOCAL_IP": "127.0.0.1"}
        | {"NAMESRV_ADDR": namesrv, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def committed(directory: Path) -> list[Path]:
    """The Parquet files of micro-batches that are done."""
    paths = set()
    for log in (directory / "parquet" / "_spark_metadata").glob("[0-9]*"):
        paths |= {orjson.loads(line)["path"] for line in log.read_bytes().splitlines()[1:]}
    return [Path(path.removeprefix("file:")) for path in sorted(paths)]


def row_count(directory: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in committed(directory))


def rows(directory: Path) -> Iterator[tuple[object, ...]]:
    """The rows, with year and month as the directories are called."""
    for path in committed(directory):
        month, year = (int(each.name.split("=")[1]) for each in (path.parent, path.parent.parent))
        for row in pq.ParquetFile(path).read().to_pylist():
            row |= {"year": year, "month": month}
            yield (row["keys"], *(row[name] for name in WRITTEN))


async def send(producer: Producer, flights: list[Flight]) -> None:
    for first in range(0, len(flights), AT_ONCE):
        some = flights[first : first + AT_ONCE]
        messages = [Message(TOPIC, orjson.dumps(one), keys=flight_id(one)) for one in some]
        await asyncio.gather(*(producer.send(each, timeout_ms=60_000) for each in messages))


async def send_and_kill(cluster: Cluster, flights: list[Flight], directory: Path) -> None:
    """Send the first third; once some of it is written, the rest, and kill the leader in it."""
    third = len(flights) // 3
    here = Cluster(cluster.directory)
    namesrv = cluster.state().namesrv
    try:
        async with Producer("air", namesrv, config=SendConfig(idempotent=True)) as producer:
            await send(producer, flights[:third])
            await until(lambda: row_count(directory))
            leader = await here.leader()
            assert leader is not None
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send(producer, flights[third:]))
                await here.wait_dead(here.signal(leader.name, signal.SIGKILL))
                here.start(leader.name)
    finally:
        await here.close()


async def create_topic(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.topic.create(TOPIC, 4)


@pytest.mark.long
def test_flights_example_writes_parquet_by_month_despite_leader_kill(
    cluster: Cluster, tmp_path: Path
) -> None:
    flights = list(itertools.islice(read_flights(data_file()), 0, None, STEP))
    expected = [(flight_id(one), *(one[name] for name in WRITTEN)) for one in flights]
    namesrv = cluster.state().namesrv
    asyncio.run(create_topic(namesrv))
    with running_example(namesrv, tmp_path) as example:
        asyncio.run(send_and_kill(cluster, flights, tmp_path))
        wait_until(lambda: row_count(tmp_path) >= len(flights), lambda: row_count(tmp_path))
        example.send_signal(signal.SIGINT)
        out, _ = example.communicate(timeout=120)
    assert example.returncode == 0, out
    assert Counter(one["month"] for one in flights).keys() == set(range(1, 13))
    assert Counter(rows(tmp_path)) == Counter(expected)
    assert {path.parent.parent.name for path in committed(tmp_path)} == {"year=2013"}
