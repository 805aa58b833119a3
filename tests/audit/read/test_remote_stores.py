"""Stores that a URI names, through pyarrow.fs; here file://, which goes the way of all others."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from raftmq.audit.api import run_audit, topic_frame
from raftmq.audit.cli import main
from raftmq.audit.read.store_files import Store, StoreError
from tests.audit.run import TOPIC, Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.plan(tmp_path_factory.mktemp("places")).store().write()


def uris(run: Run) -> dict[str, str]:
    return {name: Path(store).as_uri() for name, store in run.stores.items()}


def test_audit_copies_stores_named_by_uri(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    reported: list[str] = []
    report = run_audit(
        spark, uris(run), run.history_path, scratch=tmp_path, progress=reported.append
    )
    assert report.ok
    assert report.figures["stored"] == 60
    assert f"copying {uris(run)['n0']}" in reported
    assert not [*tmp_path.iterdir()]


@pytest.mark.long
def test_decoded_rows_are_staged_at_the_named_uri(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    seen: list[str] = []

    def look(_: str) -> None:
        seen.extend(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))

    staging = (tmp_path / "shared").as_uri()
    report = run_audit(spark, run.stores, run.history_path, staging=staging, progress=look)
    assert report.ok and report.figures["stored"] == 60
    staged = {path.split("/")[0] + "/" + path.split("/")[2] for path in seen}
    assert {"shared/decoded", "shared/units", "shared/ledger"} <= staged
    assert not [*(tmp_path / "shared").iterdir()]  # nothing is left there


def test_topic_is_read_from_a_store_named_by_uri(spark: SparkSession, run: Run) -> None:
    rows = topic_frame(spark, uris(run)["n1"], TOPIC)
    assert rows.count() == 60
    assert {bytes(row["body"]) for row in rows.select("body").collect()} == {
        message.body for message in run.messages
    }


def test_uri_without_a_store_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no commitlog directory"):
        print(Store("n0", tmp_path.as_uri()).segments)
    with pytest.raises(OSError, match="nowhere"):
        print(Store("n0", "nowhere://bucket/n0/store").segments)
    done = CliRunner().invoke(main, ["--store", "n0=nowhere://bucket/n0/store"])
    assert done.exit_code == 2
    assert "nowhere" in done.output
