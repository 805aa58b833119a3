"""The audit as a library: one session, an audit, a topic as a table.

with session() as spark:
    report = run_audit(spark, stores, "history.jsonl", "Flights")
    store = stores[report.fullest_store]
    flights = topic_frame(spark, store, "Flights", until=report.agreed_end)
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from .checks.acknowledged import read_acknowledged, refuse_unjudged
from .read.cluster_info import MODES, subject_of
from .read.incremental import Kept
from .read.remote_stores import fetched
from .read.staging import place_for_tables
from .read.store_files import Store, refuse_running
from .report.report import AuditReport, CheckResult, StoreReport
from .run import run
from .session import session


def run_audit(
    spark: SparkSession | None,
    stores: Mapping[str, str | Path],
    history: str | Path | None = None,
    topic: str = "",
    *,
    mode: str | None = None,
    group: str | None = None,
    acknowledged: str | Path | None = None,
    scratch: Path | None = None,
    staging: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
    results: str | Path | None = None,
    incremental: bool = False,
) -> AuditReport:
    """Audit the stores of one broker group against the history of what was sent, to all topics or
    to `topic` alone; or against a table of what was `acknowledged` (audit.checks.acknowledged); or,
    without either, what can be said of any store.

    Give every replica, stopped, as a directory or by URI (audit.read.remote_stores: those are
    copied first). A majority is counted among the voters that the logs name (audit.read.voters); a
    voter whose store is missing is a finding, and holds nothing. `mode` ("raft", "classic") and
    `group` (brokerName, if the history covers several) are read from the cluster.json beside the
    stores if there is one; otherwise the logs tell the mode. Without `spark` a session is started
    and stopped again (6 to 8 s). `scratch`: where there is room for what is decoded, and where
    executors on other machines find it, unless `staging` (a path or URI) says another place for
    that; `progress(what)` is told what is done next. `results`: a directory for what the next audit
    has to know of this one; `incremental`: begin where the audit before ended that noted that there
    (audit.read.incremental). Raises ValueError without stores, StoreError, HistoryUnfit,
    JavaNotFound, OSError.
    """
    if not stores:
        raise ValueError("an audit needs at least one store")
    if incremental and (results is None or history is not None):
        raise ValueError("an incremental audit needs the results before, and has no history")
    if mode is not None and mode not in MODES:
        raise ValueError(f"a mode is one of {', '.join(MODES)}, not {mode}")
    named = {name: str(path) for name, path in stores.items()}
    refuse_running(named)
    if spark is None:
        with session() as own:
            return run_audit(
                *(own, stores, history, topic),
                mode=mode,
                group=group,
                acknowledged=acknowledged,
                scratch=scratch,
                staging=staging,
                progress=progress,
                results=results,
                incremental=incremental,
            )
    with (
        place_for_tables(staging, scratch) as place,
        tempfile.TemporaryDirectory(prefix="mqaudit-stores-", dir=scratch) as copies,
    ):
        directories = fetched(named, Path(copies), progress)
        subject = subject_of(directories, mode, group)
        history_path, acks = (
            None if each is None else str(each) for each in (history, acknowledged)
        )
        if acks is not None and subject.group is not None:
            refuse_unjudged(read_acknowledged(spark, acks), acks, {subject.group}, every=False)
        kept = None if results is None else Kept(Path(results), subject.group or "")
        return run(
            *(spark, directories, history_path, topic, place, subject, acks, progress),
            *(kept, incremental),
        )


def topic_frame(
    spark: SparkSession, store: str | Path, topic: str, *, until: int | None = None
) -> DataFrame:
    """Return a topic's messages in one store as a DataFrame
    (audit.read.log_reader.RECORD_BODY_SCHEMA).

    Reads committed messages: up to `until`, by default the store's own commit position, or all of
    the log if the store has none (classic mode). The commit position of a store that was killed is
    that of its last flush; an audit's report knows better (`agreed_end`). A client's retry may be
    in the topic twice: make rows distinct by `uniq_key` if that matters. Every action reads the log
    again.
    """
    commit = Store(str(store), str(store)).confirmed_position() if until is None else until
    reader = spark.read.format("rocketmq").option("topic", topic)
    if commit > 0:
        reader = reader.option("until", str(commit))
    return reader.load(str(store))


__all__ = ["AuditReport", "CheckResult", "StoreReport", "run_audit", "session", "topic_frame"]
