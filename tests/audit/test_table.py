"""`mqaudit table`: a table agrees with its topic, or what does not is named; `mqaudit profile`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from raftmq.audit.cli import main
from raftmq.audit.table import TableUnfit, iceberg_files
from raftmq.chaos.cluster.topology import Shape
from raftmq.spark.shipping import register
from tests.audit.test_live import SETTINGS, down, up
from tests.spark.test_source import bodies, fill

COUNT = 60
TOPIC = "Landed"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = up(tmp_path_factory.mktemp("table") / "c", Shape(), SETTINGS)
    fill(made, TOPIC, bodies(0, COUNT))
    yield made.state().namesrv
    down(made)


@pytest.fixture(scope="module")
def written(spark: SparkSession, namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream's table and checkpoint."""
    directory = tmp_path_factory.mktemp("written")
    stream = register(spark).readStream.format("raftmq").option("startingOffsets", "earliest")
    stream = stream.options(namesrv=namesrv, topic=TOPIC).load()
    query = stream.writeStream.format("parquet").trigger(availableNow=True)
    paths = {"path": f"{directory}/table", "checkpointLocation": f"{directory}/checkpoint"}
    query.options(**paths).start().awaitTermination()
    return directory


def mqaudit(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def judged(table: Path, checkpoint: Path, namesrv: str, report: Path) -> dict[str, int]:
    """The figures, the counts of the checks, and the exit status of a comparison."""
    arguments = ("--namesrv", namesrv, "--json", report, "--from-start")
    ended = mqaudit("table", table, "--checkpoint", checkpoint, *arguments)
    assert report.exists(), ended.output
    content = json.loads(report.read_bytes())
    counts = {check["name"]: check["count"] for check in content["checks"]}
    return {**content["figures"], **counts, "status": ended.exit_code}


def rewritten(table: Path, change: str, path: Path) -> None:
    """Write the rows of a stream's table, changed, without Spark's own metadata."""
    rows = pa.concat_tables([pq.read_table(each) for each in table.glob("*.parquet")])
    first, names = rows.slice(0, 1), rows.schema.names
    if change == "altered":
        first = first.set_column(names.index("body"), "body", pa.array([b"another"], pa.binary()))
    elif change == "invented":
        far = pc.add(first["queue_offset"], 1_000_000)
        first = first.set_column(names.index("queue_offset"), "queue_offset", far)
    kept = {"lost": [], "twice": [first, first], "invented": [rows.slice(0, 1), first]}
    pq.write_table(pa.concat_tables([*kept.get(change, [first]), rows.slice(1)]), path)


def test_table_of_a_stream_agrees_with_its_topic(
    written: Path, namesrv: str, tmp_path: Path
) -> None:
    places = written / "table", written / "checkpoint"
    assert judged(*places, namesrv, tmp_path / "report.json") == {
        "landed": COUNT,
        "landed_and_stored": COUNT,
        "removed_from_topic": 0,
        **dict.fromkeys(("not_landed", "landed_twice", "landed_altered", "not_stored"), 0),
        "status": 0,
    }


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ("lost", "not_landed"),
        ("twice", "landed_twice"),
        ("altered", "landed_altered"),
        ("invented", "not_stored"),
    ],
)
def test_table_that_does_not_agree_is_wrong_in_one_check(
    written: Path, namesrv: str, tmp_path: Path, change: str, check: str
) -> None:
    changed = tmp_path / "rows.parquet"
    rewritten(written / "table", change, changed)
    result = judged(changed, written / "checkpoint", namesrv, tmp_path / "report.json")
    wrong = {name: result[name] for name in ("not_landed", "landed_twice", "landed_altered")}
    wrong["not_stored"] = result["not_stored"]
    assert {name: count for name, count in wrong.items() if count} == {check: 1}
    assert result["status"] == 1


def test_table_without_places_and_checkpoint_without_batches_are_unfit(
    spark: SparkSession, namesrv: str, written: Path, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"body": [b"x"]}), tmp_path / "rows.parquet")
    ended = mqaudit("table", tmp_path / "rows.parquet", "--namesrv", namesrv)
    assert (ended.exit_code, "has no column broker" in ended.output) == (2, True)
    ended = mqaudit("table", written / "table", "--namesrv", namesrv, "--checkpoint", tmp_path)
    assert ended.exit_code == 2


def test_iceberg_table_without_pyiceberg_is_unfit() -> None:
    with pytest.raises(TableUnfit, match="pip install pyiceberg"):
        iceberg_files("lake.mq.orders")


def test_profile_prints_each_queue(spark: SparkSession, namesrv: str) -> None:
    ended = mqaudit("profile", TOPIC, "--namesrv", namesrv, "--json")
    assert ended.exit_code == 0, ended.output
    rows = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    assert sum(row["messages"] for row in rows) == COUNT
    ended = mqaudit("profile", TOPIC, "--namesrv", namesrv)
    assert f"topic           {TOPIC}\nbroker          broker-a\nqueue_id        0\n" in ended.output
