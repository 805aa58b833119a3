"""docs/examples/landing.py on a Spark cluster, while drivers, executors and leaders are killed:
every message is in the table once, and `mqaudit table` says so, and what does not agree."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from raftmq.audit.table import CHECKS, checkpoint_offsets
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.topology import Shape
from raftmq.client import Admin
from tests.audit.test_live import down, up
from tests.interop.toolchain import spark_tables
from tests.spark.conftest import SETTINGS
from tests.spark.kills import Drivers, Feed, kill_by_turns
from tests.spark.test_standalone import ROOT, SPARK, Standalone

EXAMPLE = ROOT / "docs" / "examples" / "landing.py"
KILLS = 9
TOPIC = "Orders"
SMALL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "640m",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}
DELTA = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# A row is lost, one is there twice, one has another body, and one was never sent.
PLANT = {
    "delta": """
import sys
from pyspark.sql import SparkSession

table = f"delta.`{sys.argv[1]}`"
spark = SparkSession.builder.getOrCreate()
rows = spark.table(table).limit(4).collect()
lost, twice, altered, invented = (
    f"queue_id = {row['queue_id']} AND queue_offset = {row['queue_offset']}" for row in rows
)
spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE {twice}")
spark.sql(f"UPDATE {table} SET body = CAST('another' AS BINARY) WHERE {altered}")
far = "* EXCEPT (queue_offset), queue_offset + 1000000 AS queue_offset"
spark.sql(f"INSERT INTO {table} BY NAME SELECT {far} FROM {table} WHERE {invented}")
spark.sql(f"DELETE FROM {table} WHERE {lost}")
""",
    "iceberg": """
import sys
import pyarrow as pa
from pyiceberg.catalog import load_catalog

catalog, _, name = sys.argv[1].partition(".")
table = load_catalog(catalog).load_table(name)
rows = table.scan(limit=4).to_arrow()
lost, twice, altered, invented = (rows.slice(n, 1) for n in range(4))

def place(row):
    row = row.to_pylist()[0]
    return f"queue_id = {row['queue_id']} AND queue_offset = {row['queue_offset']}"

def changed(row, name, value):
    at = row.schema.get_field_index(name)
    return row.set_column(at, row.field(at), pa.array([value], row.field(at).type))

table.append(twice)
table.overwrite(changed(altered, "body", b"another"), place(altered))
far = invented["queue_offset"][0].as_py() + 1_000_000
table.append(changed(invented, "queue_offset", far))
table.delete(place(lost))
""",
}


class Landing:
    """A format, its Spark, and the environment of programs that use it."""

    def __init__(self, name: str, directory: Path, ended: ExitStack, namesrv: str) -> None:
        self.name, self.checkpoint = name, directory / "checkpoint"
        self.table = "lake.mq.orders" if name == "iceberg" else str(directory / "table")
        packages = [] if name == "parquet" else [spark_tables()]
        spark = packages[0] / "pyspark" if packages else SPARK
        cluster = Standalone(directory, ended, spark)
        self.settings = SMALL | (DELTA if name == "delta" else {})
        path = ":".join(map(str, [*packages, ROOT]))
        submitted = {"spark.executorEnv.PYTHONPATH": path, **self.settings}
        arguments = " ".join(f"--conf {key}={value}" for key, value in submitted.items())
        self.environment: Mapping[str, str] = cluster.environment | {
            "NAMESRV_ADDR": namesrv,
            "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{directory}/catalog.db",
            "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{directory}/warehouse",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--master {cluster.address} {arguments} pyspark-shell",
            "PYTHONPATH": path,
        }
        self._report = directory / "report.json"

    def audited(self) -> dict[str, Any]:
        """What `mqaudit table` finds: its exit status, figures, and the counts of its checks."""
        command = [sys.executable, "-m", "raftmq.audit", "table", self.table]
        command += ["--format", self.name, "--checkpoint", str(self.checkpoint), "--from-start"]
        command += ["--namesrv", self.environment["NAMESRV_ADDR"], "--json", str(self._report)]
        for key, value in self.settings.items():
            command += ["--conf", f"{key}={value}"]
        environment = {k: v for k, v in self.environment.items() if k != "PYSPARK_SUBMIT_ARGS"}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ended.returncode in (0, 1), ended.stderr
        report = json.loads(self._report.read_bytes())
        counts = {check["name"]: check["count"] for check in report["checks"]}
        return {"status": ended.returncode, **report["figures"], **counts}

    def plant(self) -> None:
        command = [sys.executable, "-c", PLANT[self.name], self.table]
        ended = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Cluster]:
    made = up(tmp_path / "c", Shape(), SETTINGS)
    yield made
    down(made)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["parquet", "delta", "iceberg"])
def test_landing_has_each_message_once_through_kills(
    name: str, group: Cluster, tmp_path: Path
) -> None:
    namesrv = group.state().namesrv
    asyncio.run(create(namesrv))
    with ExitStack() as ended:
        lands_through_kills(Landing(name, tmp_path, ended, namesrv), group, tmp_path)


def lands_through_kills(made: Landing, group: Cluster, directory: Path) -> None:
    command = [sys.executable, str(EXAMPLE), made.name, str(directory)]
    drivers = Drivers(command, made.environment, made.checkpoint)
    feed = Feed(made.environment["NAMESRV_ADDR"], TOPIC)
    killed = kill_by_turns(drivers, feed, group, directory, KILLS)
    try:
        drivers.start_and_wait()
        drivers.wait(lambda: sum(checkpoint_offsets(str(made.checkpoint)).values()) == feed.count)
    finally:
        drivers.close()
    found = made.audited()
    print(f"{made.name}: {dict(killed)} killed, {found}")
    right = {"landed": feed.count, "landed_and_stored": feed.count, "removed_from_topic": 0}
    assert found == {"status": 0, **right, **dict.fromkeys(CHECKS, 0)}
    if made.name in PLANT:
        made.plant()
        found = made.audited()
        assert {check: found[check] for check in CHECKS} == dict.fromkeys(CHECKS, 1)
        assert found["status"] == 1


async def create(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        await admin.topic.create(TOPIC, 4)
