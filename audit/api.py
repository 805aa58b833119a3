"""The audit as a library, with Spark sessions and topics as tables.

with session() as spark:
    report = run_audit(spark, stores, "history.jsonl", "Flights")
    store = stores[report.fullest_store]
    flights = topic_frame(spark, store, "Flights", until=report.agreed_end)
"""

import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from .checks.acknowledged import read_acknowledged, refuse_unjudged
from .read.cluster_info import MODES, subject_of
from .read.identities import identified
from .read.remote_stores import fetched
from .read.staging import directory_for_tables
from .read.store_files import Store, refuse_running
from .report.report import AuditReport, CheckResult, StoreReport
from .run import AuditOptions, run
from .session import session


def run_audit(
    spark: SparkSession | None,
    stores: Mapping[str, str | Path],
    history: str | Path | None = None,
    topic: str = "",
    *,
    mode: str | None = None,
    group: str | None = None,
    **options: Any,
) -> AuditReport:
    """Audit the stores of a stopped broker group; `options` are those of AuditOptions.

    Give the directory or URI of every replica (audit.read.remote_stores copies URIs). A majority is
    counted among the voters that the logs name (audit.read.voters). A missing voter's store is a
    finding and holds nothing. cluster.json beside the stores supplies `mode` ("raft", "classic")
    and `group` (brokerName) if they are None. Without `spark`, a session is started and stopped (6
    to 8 s). Raises ValueError without stores, StoreError, HistoryUnfit, JavaNotFound, OSError.
    """
    for name in ("history", "acknowledged", "results"):
        value = history if name == "history" else options.get(name)
        if value is not None:
            options[name] = Path(value) if name == "results" else str(value)
    return audit_stores(spark, stores, AuditOptions(topic=topic, **options), mode, group)


def audit_stores(
    spark: SparkSession | None,
    stores: Mapping[str, str | Path],
    options: AuditOptions,
    mode: str | None,
    group: str | None,
) -> AuditReport:
    """Audit the stores of a stopped broker group (`run_audit`)."""
    if not stores:
        raise ValueError("an audit needs at least one store")
    options.check()
    if mode is not None and mode not in MODES:
        raise ValueError(f"a mode is one of {', '.join(MODES)}, not {mode}")
    named = {name: str(path) for name, path in stores.items()}
    refuse_running(named)
    acknowledged = options.acknowledged
    with (
        session() if spark is None else nullcontext(spark) as running,
        directory_for_tables(options.staging, options.scratch) as table_directory,
        tempfile.TemporaryDirectory(prefix="mqaudit-stores-", dir=options.scratch) as copies,
    ):
        directories, known = identified(fetched(named, Path(copies), options.progress))
        subject = subject_of(directories, mode, group)
        nodes = {**subject.nodes, **{name: name for name in known}}
        subject = replace(subject, nodes=nodes)
        if acknowledged is not None and subject.group is not None:
            rows = read_acknowledged(running, acknowledged)
            refuse_unjudged(rows, acknowledged, {subject.group}, every=False)
        return run(running, directories, subject, options, table_directory)


def topic_frame(
    spark: SparkSession, store: str | Path, topic: str, *, until: int | None = None
) -> DataFrame:
    """Return a topic's messages in a store as a DataFrame
    (audit.read.log_reader.RECORD_BODY_SCHEMA).

    Reads up to `until`, by default the store's own commit position, or all of a log in classic
    mode. A killed store's commit position dates from its last flush; an audit's `agreed_end` is
    newer. Retries may store a message twice; deduplicate by `uniq_key` if needed. Every action
    reads the log again.
    """
    commit = Store(str(store), str(store)).confirmed_position() if until is None else until
    reader = spark.read.format("rocketmq").option("topic", topic)
    if commit > 0:
        reader = reader.option("until", str(commit))
    return reader.load(str(store))


__all__ = ["AuditReport", "CheckResult", "StoreReport", "run_audit", "session", "topic_frame"]
