"""What the driver of an audit on Spark receives does not grow with the logs."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession

from raftmq.audit.api import run_audit
from raftmq.audit.engine import spark_engine
from raftmq.audit.engine.frames import Engine
from raftmq.audit.engine.spark_engine import SparkEngine
from raftmq.audit.read import incremental, log_facts, range_sums, spark_sources
from raftmq.audit.read.spark_sources import LogReader
from raftmq.audit.read.staging import staged_log
from raftmq.audit.read.store_files import Store
from tests.audit.run import NAMES, Run

pytestmark = pytest.mark.timeout(900)
MESSAGES = 120
TIMES = 8
GROWTH_MAX = 2  # numbers have more digits, and a short log has few offenders


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small windows, and few results and ranges."""
    monkeypatch.setattr(spark_sources, "SPLIT_BYTES", spark_sources.SPLIT_BYTES_MIN)
    monkeypatch.setattr(incremental, "RANGE_BYTES", 4096)
    monkeypatch.setattr(range_sums, "RANGE_BYTES_MIN", 4096)
    monkeypatch.setattr(range_sums, "RANGES_MAX", 4)
    monkeypatch.setattr(spark_engine, "RESULTS_MAX", 4)
    monkeypatch.setattr(log_facts, "INTERVALS_MAX", 2)


@contextmanager
def received() -> Iterator[list[int]]:
    """Yield the sizes of all that the driver collects."""
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        for kind in (RDD, DataFrame):

            def collect(self: Any, original: Any = kind.collect) -> list[Any]:
                rows: list[Any] = original(self)
                sizes.append(len(pickle.dumps(rows)))
                return rows

            patched.setattr(kind, "collect", collect)
        yield sizes


def planned(root: Path, count: int, *, damaged: bool = False) -> Run:
    run = Run.plan(root, count).store()
    for at, size in run.log.frames if damaged else ():
        run.logs["n1"].flip(at + size - 20)
    return run.write()


def windows(run: Run) -> int:
    return len(reader_of(run).partitions())


def reader_of(run: Run) -> LogReader:
    return LogReader({"shared": "true"}, [Store(*each) for each in run.stores.items()])


@pytest.mark.parametrize("has_files", [True, False])
def test_facts_of_a_longer_log_are_not_larger(
    spark: SparkSession, engine: Engine, tmp_path: Path, has_files: bool
) -> None:
    totals = []
    for count in (MESSAGES, MESSAGES * TIMES):
        run = planned(tmp_path / f"{count}", count, damaged=True)
        of_spark = SparkEngine(spark, has_files)
        with received() as sizes:
            logs = staged_log(of_spark, reader_of(run), NAMES, str(tmp_path / f"spark{count}"))
        local = staged_log(engine, reader_of(run), NAMES, str(tmp_path / f"local{count}"))
        assert logs.facts == local.facts
        assert logs.items.count() == local.items.count()
        assert logs.runs.count() == local.runs.count()
        totals.append(sum(sizes))
    assert totals[1] < totals[0] * GROWTH_MAX, totals


@pytest.mark.parametrize("damaged", [False, True])
def test_audit_of_a_longer_log_collects_no_more(
    spark: SparkSession, tmp_path: Path, damaged: bool
) -> None:
    totals, counts = [], []
    for count in (MESSAGES, MESSAGES * TIMES):
        run = planned(tmp_path / f"{count}", count, damaged=damaged)
        with received() as sizes:
            report = run_audit(run.stores, results=tmp_path / f"results{count}", spark=spark)
        assert report.ok is not damaged
        totals.append(sum(sizes))
        counts.append((windows(run), report.count("damage"), report.count("replicas")))
    assert all(more >= few * TIMES / 2 for few, more in zip(*counts, strict=True)), counts
    assert totals[1] < totals[0] * GROWTH_MAX, totals
