"""Stores in a bucket of S3 are judged like stores on a disk, and read where the tasks run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from raftmq.audit.api import run_audit
from raftmq.audit.cli import main
from raftmq.audit.read.store_files import Store, StoreError
from tests.audit import bucket
from tests.audit.planted import Kind
from tests.audit.run import Run
from tests.audit.test_engines import told
from tests.audit.test_planted import TOGETHER, planted
from tests.audit.test_planted import sound as sound

BY_NAME = {name: kinds for name, kinds, _ in TOGETHER}
DRIVER, TASKS = "driver", "tasks"  # access keys


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bucket.Bucket]:
    for name, value in bucket.environment(DRIVER).items():
        monkeypatch.setenv(name, value)
    with bucket.served(tmp_path) as served:
        yield served


@pytest.mark.parametrize("kinds", ["bytes", "tail", "beside two"])
def test_damage_in_a_bucket_is_found_as_on_a_disk(
    sound: Run, place: bucket.Bucket, kinds: str
) -> None:
    stores, history = planted(sound, place.root, BY_NAME[kinds], 1)
    uris = {name: place.uri(f"{name}/store") for name in stores}
    assert told(run_audit(uris, history)) == told(run_audit(stores, history))


def test_tasks_read_the_files_of_a_bucket_and_the_driver_only_its_state(
    spark: SparkSession, sound: Run, place: bucket.Bucket
) -> None:
    kinds: tuple[Kind, ...] = BY_NAME["beside one"]
    stores, history = planted(sound, place.root, kinds, 1)
    uris = {name: place.uri(f"{name}/store") for name in stores}
    by_tasks = run_audit(uris, history, spark=spark)
    assert told(by_tasks) == told(run_audit(stores, history))
    read = {
        access_key: {name for key, name in place.bytes_read if key == access_key}
        for access_key in (DRIVER, TASKS)
    }
    assert read[TASKS] == {"commitlog", "consumequeue", "index"}
    assert read[DRIVER] <= {"commitlog", "config", "raft", "identity", "checkpoint", ""}
    log = sum(path.stat().st_size for path in place.root.glob("*/store/commitlog/*"))
    assert place.bytes_read[TASKS, "commitlog"] >= log
    # Of the log the driver reads the group's configuration, a few hundred bytes.
    assert 0 < place.bytes_read[DRIVER, "commitlog"] < 500


def test_uri_without_a_store_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no commitlog directory"):
        print(Store("n0", tmp_path.as_uri()).segments)
    with pytest.raises(OSError, match="nowhere"):
        print(Store("n0", "nowhere://bucket/n0/store").segments)
    done = CliRunner().invoke(main, ["--store", "n0=nowhere://bucket/n0/store"])
    assert done.exit_code == 2
    assert "nowhere" in done.output
