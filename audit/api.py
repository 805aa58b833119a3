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

from raftmq.audit.files import confirmed_position
from raftmq.audit.job import run
from raftmq.audit.report import AuditReport, CheckResult, StoreReport
from raftmq.audit.session import session
from raftmq.audit.subject import MODES, subject_of


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
    progress: Callable[[str], None] = lambda what: None,
) -> AuditReport:
    """Audit the stores of one broker group against the history of what was sent, to all topics or
    to `topic` alone; or against a table of what was `acknowledged` (audit.acknowledged); or,
    without either, what can be said of any store.

    Give every replica, stopped or at least idle. A majority is counted among the voters that the
    logs name (audit.voters); a voter whose store is missing is a finding, and holds nothing.
    `mode` ("raft", "classic") and `group` (brokerName, if the history covers several) are read from
    the cluster.json beside the stores if there is one; otherwise the logs tell the mode. Without
    `spark` a session is started and stopped again (6 to 8 s). `scratch`: where there is room for
    what is decoded, and where executors on other machines find it; `progress(what)` is told what is
    done next. Raises ValueError without stores,
    StoreError, HistoryUnfit, JavaNotFound, OSError.
    """
    if not stores:
        raise ValueError("an audit needs at least one store")
    if spark is None:
        with session() as own:
            return run_audit(
                *(own, stores, history, topic),
                mode=mode,
                group=group,
                acknowledged=acknowledged,
                scratch=scratch,
                progress=progress,
            )
    if mode is not None and mode not in MODES:
        raise ValueError(f"a mode is one of {', '.join(MODES)}, not {mode}")
    directories = {name: str(path) for name, path in stores.items()}
    subject = subject_of(directories, mode, group)
    with tempfile.TemporaryDirectory(prefix="mqaudit-", dir=scratch) as staging:
        told, acks = (None if each is None else str(each) for each in (history, acknowledged))
        return run(spark, directories, told, topic, Path(staging), subject, acks, progress)


def topic_frame(
    spark: SparkSession, store: str | Path, topic: str, *, until: int | None = None
) -> DataFrame:
    """Return a topic's messages in one store as a DataFrame (audit.parse.RECORD_BODY_SCHEMA).

    Reads committed messages: up to `until`, by default the store's own commit position, or all of
    the log if the store has none (classic mode). The commit position of a store that was killed is
    that of its last flush; an audit's report knows better (`agreed_end`). A client's retry may be
    in the topic twice: make rows distinct by `uniq_key` if that matters. Every action reads the log
    again.
    """
    commit = confirmed_position(str(store)) if until is None else until
    reader = spark.read.format("rocketmq").option("topic", topic)
    if commit > 0:
        reader = reader.option("until", str(commit))
    return reader.load(str(store))


__all__ = [
    "AuditReport",
    "CheckResult",
    "StoreReport",
    "run_audit",
    "session",
    "topic_frame",
]
