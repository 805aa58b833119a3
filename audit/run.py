"""Runs an audit: stages the tables, evaluates every check, assembles the report.

Everything is parsed once (tables.stage), then the checks run as queries, then the replicas are
compared. Spark's fixed cost per query dominates a small audit, so all checks on a table share a
query, and only checks with offenders need a second query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from .checks.acknowledged import acknowledged_checks, acknowledged_frame, compared, lost
from .checks.checks import Check, sent_checks, stored_checks
from .checks.consume_checks import consumption_checks, event_kinds
from .checks.coverage import unjudged
from .checks.frames import group_frames
from .checks.history_checks import judged_history
from .checks.index_and_config_checks import check_store_files
from .checks.internal_topic_checks import waiting_checks
from .checks.last_copies import NONE, LastCopies, last_copies, with_holders
from .checks.ranges import (
    ended_at,
    ends_check,
    live_queue_checks,
    offsets_check,
    queue_ends,
    ranges_check,
    timeline,
    times_check,
)
from .checks.replicas import (
    absent_check,
    behind_check,
    commit_check,
    earlier_check,
    replica_check,
    retention_check,
    segment_check,
)
from .engine import columns as F
from .engine.columns import Window
from .engine.frames import Engine, Frame, Row
from .read.cluster_info import RAFT, Subject
from .read.history import WEAK, HistoryUnfit, refuse_interrupted
from .read.incremental import Kept, Range
from .read.removed import HOURS
from .read.store_files import Store
from .read.tables import Tables, size_bytes_of, stage
from .report.report import OFFENDERS_MAX, AuditReport, CheckResult, StoreReport

QUERIES_AT_ONCE = 2  # planning overlaps with execution


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The reference that stores are compared with, and directories for files.

    The reference is a `history` file (its sends to `topic`, or to every topic if "") or a table of
    `acknowledged` messages. Without either, only the stores are judged. `scratch` is a directory
    with room for decoded data, `staging` a path or URI for it instead, which all executors reach.
    `results` is a directory for this audit's end. An `incremental` audit starts at the saved end of
    the audit before. Retention may have removed messages after `retention_hours` (None: the default
    of brokers is assumed, and listed as such). `progress(step)` is called before each step.
    """

    history: str | None = None
    topic: str = ""
    acknowledged: str | None = None
    scratch: Path | None = None
    staging: str | None = None
    results: Path | None = None
    incremental: bool = False
    retention_hours: int | None = None
    progress: Callable[[str], None] = lambda step: None

    def check(self) -> None:
        """Raise ValueError if the options contradict each other."""
        if self.incremental and (self.results is None or self.history is not None):
            raise ValueError("an incremental audit needs the results before, and has no history")

    def kept(self, group: str) -> Kept | None:
        return None if self.results is None else Kept(self.results, group)


def run(
    engine: Engine,
    stores: Mapping[str, Store],
    subject: Subject,
    options: AuditOptions,
    table_directory: str,
    queue_ends_seen: Mapping[tuple[str, int], int] | None = None,
    acknowledged_count: int = 0,
) -> AuditReport:
    """Audit opened stores, by name.

    `table_directory` is an empty directory for the staged tables, a path or URI. `queue_ends_seen`
    has the queue ends that consumers of a running group see, by topic and number.
    `acknowledged_count` is the number of rows in `options.acknowledged`, which was read before. The
    end of an audit without faults is saved in `options.results`. Raises StoreError, HistoryUnfit,
    OSError.
    """
    kept, progress = options.kept(subject.group or ""), options.progress
    since = kept.ended() if kept is not None and options.incremental else None
    with engine.sized_for(size_bytes_of(stores)):
        started_ms, phases = time.time_ns() // 1_000_000, _Phases()
        progress(f"reading the logs of {', '.join(stores)}")
        if options.history is not None:
            refuse_interrupted(options.history)
        tables = stage(
            *(engine, stores, options.history, options.topic, table_directory, subject, since),
            retention_hours=options.retention_hours,
            audited_at_ms=started_ms,
            progress=progress,
        )
        phases.end("stage")
        progress(f"checking {sum(store.records for store in tables.limits.stores):,} records")
        sends = _sends(tables, options, acknowledged_count)
        results = [*sends.results, *_evaluated(stored_checks(tables))]
        phases.end("checks")
        progress("judging indexes and tables by the log")
        held = group_frames(tables) if tables.limits.mode == RAFT else None
        files = check_store_files(tables, held)
        results += files.results
        results += _evaluated(waiting_checks(tables, files.delivered, sends.clocks_steady))
        phases.end("files")
        progress("comparing the replicas' bytes")
        results += _replica_results(tables, sends)
        early, times_unknown = retention_check(tables)
        ends = {}
        if files.committed or queue_ends_seen is not None or kept is not None:
            ends = queue_ends(tables)
        complete = tables.limits.start == 0 or since is not None
        offsets, queues_unknown = offsets_check(files.committed, ends, complete=complete)
        results += early, offsets
        if queue_ends_seen is not None:
            results.append(ends_check(queue_ends_seen, ends))
        ranges: Iterable[Range] = ()
        if kept is not None:
            check, ranges = ranges_check(tables, [] if since else kept.ranges(), started_ms)
            results.append(check)
        phases.end("replicas")
        gaps = *_not_judged(tables, options), *sends.gaps, *times_unknown
        report = AuditReport(
            topic=options.topic,
            stores=tuple(
                StoreReport(s.store, s.start, s.data_end, s.commit, s.agreed, s.records, s.frames)
                for s in tables.limits.stores
            ),
            figures=sends.figures | _removed(tables, sends.gone_ms),
            checks=tuple(_with_locations(result, stores) for result in results),
            mode=tables.limits.mode,
            group=subject.group or "",
            engine=engine.name,
            voters=tuple(sorted(tables.limits.members.voters)),
            voters_source=tables.limits.members.source,
            seconds=sum(phases.seconds.values()),
            phases=phases.seconds,
            timeline=timeline(tables) if kept is not None else (),
            not_judged=(*gaps, *files.gaps, *queues_unknown),
        )
        if kept is not None and report.ok:
            earlier = kept.ranges() if since else []
            kept.save(ended_at(tables, held, files, ends, started_ms), chain(earlier, ranges))
        return report


class _Phases:
    """The seconds that each phase of an audit took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start_s = time.monotonic()

    def end(self, name: str) -> None:
        """End the running phase and start the next."""
        now_s = time.monotonic()
        self.seconds[name], self._start_s = now_s - self._start_s, now_s


@dataclass(frozen=True, slots=True)
class _Sends:
    """The results of the checks of sends, and the `gaps` that they leave.

    `copies` has the last copies of lost messages. `clocks_steady` is True if a history shows that
    no fault moved a clock. `gone_ms` has the lowest and the highest known time of removed messages.
    """

    figures: dict[str, int]
    results: list[CheckResult]
    copies: LastCopies = NONE
    gaps: Sequence[str] = ()
    clocks_steady: bool = False
    gone_ms: tuple[int, int] | None = None


def _sends(tables: Tables, options: AuditOptions, acknowledged_count: int) -> _Sends:
    """Check the sends by the history or the list of acknowledged messages, if there is either.
    Raises HistoryUnfit."""
    if options.history is not None:
        return _sent_results(tables, options.history, options.topic)
    if options.acknowledged is not None:
        return _acknowledged_results(tables, options.acknowledged, acknowledged_count)
    return _Sends(_stored(tables), [])


def _sent_results(tables: Tables, history: str, topic: str) -> _Sends:
    """Run the checks of a history. Raises HistoryUnfit."""
    figures, kinds = _figures(tables), event_kinds(tables)
    with ThreadPoolExecutor(1) as pool:
        judging = pool.submit(judged_history, tables, history)
        results = _evaluated(sent_checks(tables))
        judge = judging.result()
    if topic and not figures["sent"] and not judge.has_deferred:
        raise HistoryUnfit(f"the history has no sends to topic {topic}")
    if not (figures["sent"] or kinds - {"end"} or judge.has_deferred):
        raise HistoryUnfit("the history has nothing that can be judged")
    results += _evaluated(consumption_checks(tables, kinds, judge.has_orderly_work))
    judged, gaps = judge.results()
    results += judged
    if figures["sent"] and not figures["acknowledged"]:
        gaps.append("losses: the history acknowledges no message of this group")
    differs = ((F.col("copies") == 0) & ~F.col("gone")) | (F.col("altered") > 0)
    lost = tables.ledger.where((F.col("outcome") == "ok") & differs).select("topic", "id_text")
    sent = tables.sends.select("topic", "id_text", "crc", "fields", "born")
    copies = _add_holders(tables, results, lost.join(sent, ["topic", "id_text"]))
    gone_ms = _gone_ms(tables, tables.ledger.where(F.col("outcome") == "ok"), "born")
    return _Sends(figures, results, copies, gaps, not judge.clocks_moved, gone_ms)


def _acknowledged_results(tables: Tables, path: str, count: int) -> _Sends:
    """Run the checks of a table of `count` acknowledged messages."""
    rows = compared(tables, acknowledged_frame(tables.engine, path))
    figures = _stored(tables) | {"acknowledged": rows.count()}
    others = count - figures["acknowledged"]
    gaps = [f"{others:,} messages that other broker groups acknowledged"] if others else []
    if not figures["acknowledged"]:
        gaps.append("losses: no acknowledged message is of this group")
    results = evaluate([*acknowledged_checks(tables, rows)])
    unknown = {name: F.lit(None).cast("long") for name in ("fields", "born")}
    sent = lost(rows).withColumnRenamed("body_crc", "crc").withColumns(unknown)
    copies = _add_holders(tables, results, sent)
    return _Sends(figures, results, copies, gaps, gone_ms=_gone_ms(tables, rows, "time_ms"))


def _gone_ms(tables: Tables, acknowledged: Frame, time: str) -> tuple[int, int] | None:
    """Return the lowest and the highest time of acknowledged messages that are gone, if known."""
    if not tables.limits.start:
        return None
    ends = F.min(time).alias("low"), F.max(time).alias("high")
    gone = acknowledged.where("gone").agg(*ends).collect()[0]
    return None if gone["low"] is None else (gone["low"], gone["high"])


def _removed(tables: Tables, gone_ms: tuple[int, int] | None) -> dict[str, int]:
    """Return the ages of the youngest and the oldest message that retention removed. Without their
    times, the youngest is at least as old as the first message of the log."""
    first_ms = tables.retention.first_ms
    starts_ms = [first_ms[store.store] for store in tables.limits.stores if store.store in first_ms]
    if not starts_ms:
        return {}
    age_s = tables.retention.age_s
    if gone_ms is None:
        return {"youngest_removed_age_s": age_s(max(starts_ms))}
    oldest_ms, youngest_ms = gone_ms
    return {"youngest_removed_age_s": age_s(youngest_ms), "oldest_removed_age_s": age_s(oldest_ms)}


def _add_holders(tables: Tables, results: list[CheckResult], lost: Frame) -> LastCopies:
    """Add to each missing or altered message the stores that hold it as it was sent."""
    about = [n for n, result in enumerate(results) if result.name in ("missing", "altered")]
    copies = last_copies(tables, [results[n] for n in about], lost)
    for n in about:
        results[n] = with_holders(results[n], copies)
    return copies


def _not_judged(tables: Tables, options: AuditOptions) -> Iterator[str]:
    if tables.since is not None:
        at = datetime.fromtimestamp(tables.since.audited_at_ms / 1000, UTC)
        yield (
            f"the log before {tables.since.position:,}: "
            f"the audit of {at:%Y-%m-%d %H:%M} UTC found nothing wrong with it"
        )
    if options.retention_hours is None and tables.retention.first_ms:
        yield (
            f"whether retention kept messages for longer than {HOURS} hours, a broker's default:"
            " name yours (--retention)"
        )
    if tables.limits.mode != RAFT and options.history is None:
        yield "flags, hosts and properties of messages: classic logs have no checksums of them"
    if options.acknowledged is not None:
        yield (
            "messages never sent, order, and keys, tags and properties: only what was acknowledged"
            " is known of the sends"
        )
    elif options.history is None:
        yield "losses, messages never sent, order and duplicates: there is no history of the sends"
    elif not tables.topics:
        yield "losses, messages never sent, order and duplicates: the history has no sends"
    elif options.topic:
        yield f"sends to other topics than {options.topic}, except messages to come later"
    yield from unjudged(tables.limits.mode == RAFT, options.history is not None)


def _replica_results(tables: Tables, sends: _Sends) -> Iterator[CheckResult]:
    """Compare the replicas, and the log with that of the audit before."""
    limits, is_running = tables.limits, not tables.subject.queues
    yield absent_check(limits, running=is_running)
    yield replica_check(tables, sends.copies)
    yield commit_check(limits)
    yield behind_check(limits)
    yield segment_check(tables.stores, limits)
    if tables.since is not None:
        yield earlier_check(tables, tables.since)
    yield times_check(tables, clocks_steady=sends.clocks_steady)
    if is_running:
        yield from live_queue_checks(tables)


def _evaluated(checks: Iterable[Check]) -> list[CheckResult]:
    """Evaluate checks, of several tables at once."""
    with ThreadPoolExecutor(QUERIES_AT_ONCE) as pool:
        return [*chain.from_iterable(pool.map(evaluate, _by_table(checks)))]


def evaluate(checks: list[Check]) -> list[CheckResult]:
    """Count the offenders of checks that share a table, and fetch the first of them."""
    table = checks[0].table
    if table is None:
        return [CheckResult(check.name, check.title, check.fault, 0, ()) for check in checks]
    counted = [F.count_if(check.wrong).alias(check.name) for check in checks]
    counts = table.agg(*counted).collect()[0]
    results = []
    for check in checks:
        count = counts[check.name]
        offenders = tuple(_first_of(check)) if count else ()
        results.append(CheckResult(check.name, check.title, check.fault, count, offenders))
    return results


def _first_of(check: Check) -> list[Row]:
    """Return the first offenders, with an equal share for each store."""
    offenders = check.offenders
    if "store" not in check.columns:
        return offenders.orderBy(*check.sorted_by).limit(OFFENDERS_MAX).collect()
    of_store = Window.partitionBy("store").orderBy(*check.sorted_by)
    ranked = offenders.withColumn("rank", F.row_number().over(of_store))
    first = ranked.orderBy("rank", "store").limit(OFFENDERS_MAX).drop("rank")
    return first.orderBy(*check.sorted_by).collect()


def _with_locations(result: CheckResult, stores: Mapping[str, Store]) -> CheckResult:
    """Add file and offset to the offenders that have a store and a log position."""
    offenders = tuple(
        {**offender, "location": stores[offender["store"]].file_at(offender["position"])}
        if offender.get("store") in stores and isinstance(offender.get("position"), int)
        else offender
        for offender in result.offenders
    )
    return replace(result, offenders=offenders)


def _by_table(checks: Iterable[Check]) -> list[list[Check]]:
    """Group the checks that share a table, in the order of their first."""
    groups: dict[int, list[Check]] = {}
    for check in checks:
        groups.setdefault(id(check.table), []).append(check)
    return list(groups.values())


def _stored(tables: Tables) -> dict[str, int]:
    """Count the messages that the group holds, and their topics."""
    rows, count = tables.group_runs, F.sum(F.col("last_offset") - F.col("first_offset") + 1)
    if rows is None:
        rows, count = tables.log.where("visible"), F.count("*")
    stored = F.coalesce(count, F.lit(0)).alias("stored")
    row = rows.agg(stored, F.count_distinct("topic").alias("topics")).collect()[0]
    return {name: int(value) for name, value in row.items()}


def _figures(tables: Tables) -> dict[str, int]:
    """Count messages of the topics: sends by outcome, copies stored, distinct messages stored."""
    sent = F.col("sent")
    outcome, copies = F.col("outcome"), F.col("copies")
    row = tables.ledger.agg(
        F.count(F.when(sent, 1)).alias("sent"),
        F.count(F.when(outcome == "ok", 1)).alias("acknowledged"),
        F.count(F.when(outcome == "unknown", 1)).alias("unknown"),
        F.count(F.when(outcome == "fail", 1)).alias("failed"),
        F.coalesce(F.sum("copies"), F.lit(0)).alias("stored"),
        F.count(F.when(copies > 0, 1)).alias("stored_messages"),
        F.count(F.when((outcome == "unknown") & (copies > 0), 1)).alias("unknown_stored"),
        F.count(F.when(outcome == WEAK, 1)).alias("weakly_acknowledged"),
    ).collect()[0]
    return {name: int(value) for name, value in row.items()}
