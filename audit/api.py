"""The audit as a library, with Spark sessions and topics as tables.

report = run_audit(stores, "history.jsonl", "Flights")
with session() as spark:
    store = stores[report.fullest_store]
    flights = topic_frame(spark, store, "Flights", until=report.agreed_end)
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from .checks.acknowledged import count_acknowledged, refuse_unjudged
from .engine.choice import EngineOptions, Engines
from .read.cluster_info import MODES, subject_of
from .read.identities import identified
from .read.staging import directory_for_tables
from .read.store_files import Store, refuse_running
from .read.tables import size_bytes_of
from .report.report import AuditReport, CheckResult, StoreReport
from .run import AuditOptions, run
from .session import session


def run_audit(
    stores: Mapping[str, str | Path],
    history: str | Path | None = None,
    topic: str = "",
    *,
    mode: str | None = None,
    group: str | None = None,
    spark: SparkSession | None = None,
    engine: str = "",
    **options: Any,
) -> AuditReport:
    """Audit the stores of a stopped broker group; `options` are those of AuditOptions.

    Give the directory or URI of every replica. A majority is counted among the voters that the logs
    name (audit.read.voters). A missing voter's store is a finding and holds nothing. cluster.json
    beside the stores supplies `mode` ("raft", "classic") and `group` (brokerName) if they are None.
    With `spark`, the queries run there; without it in this process, or in a new session of Spark if
    the logs are large (audit.engine.choice); `engine` ("local", "spark") decides otherwise. Raises
    ValueError without stores, StoreError, HistoryUnfit, JavaNotFound, EngineFailed, OSError.
    """
    for name in ("history", "acknowledged", "results"):
        value = history if name == "history" else options.get(name)
        if value is not None:
            options[name] = Path(value) if name == "results" else str(value)
    engine_options = EngineOptions(engine, scratch=options.get("scratch"))
    with Engines(engine_options, spark) as engines:
        return audit_stores(engines, stores, AuditOptions(topic=topic, **options), mode, group)


def audit_stores(
    engines: Engines,
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
    with directory_for_tables(options.staging, options.scratch) as table_directory:
        opened, known = identified(named)
        directories = {name: store.path for name, store in opened.items()}
        subject = subject_of(directories, mode, group)
        nodes = {**subject.nodes, **{name: name for name in known}}
        subject = replace(subject, nodes=nodes)
        engine = engines.of(size_bytes_of(opened), acknowledged, options.staging)
        counts = {} if acknowledged is None else count_acknowledged(engine, acknowledged)
        if acknowledged is not None and subject.group is not None:
            refuse_unjudged(counts, acknowledged, {subject.group}, every=False)
        count = sum(counts.values())
        return run(engine, opened, subject, options, table_directory, acknowledged_count=count)


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


__all__ = [
    "AuditReport",
    "CheckResult",
    "EngineOptions",
    "Engines",
    "StoreReport",
    "run_audit",
    "session",
    "topic_frame",
]
