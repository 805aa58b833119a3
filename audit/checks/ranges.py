"""Digests, queue ends and store times that an audit saves for the next audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from ..engine import columns as F
from ..read.incremental import Digest, Ended, Range, split, tail_of
from ..read.live_queues import ABSENT
from ..read.system_topics import MULTI_QUEUE_PREFIX
from ..read.tables import Tables
from ..report.report import CheckResult, Offender, first_of_each_store
from .checks import UNIT_CHECKS
from .frames import GroupFrames
from .index_and_config_checks import StoreFiles
from .replicas import garbage

TIMELINE_PARTS = 200
FALL_MS = 60_000
CLOCKS_SET = " (clocks that are set cause this)"


def ranges_check(
    tables: Tables, known: Sequence[Range], audited_at_ms: int
) -> tuple[CheckResult, list[Range]]:
    """Check that the known ranges have not changed, and that the log still reaches their end. Also
    return the ranges that this audit has read, up to the agreed end. Raises OSError."""
    limits = tables.limits
    reference = max(limits.stores, key=lambda store: store.agreed)
    there = [each for each in known if reference.start <= each.start < each.end]
    there = [each for each in there if each.end <= limits.agreed_end]
    edges = sorted({edge for each in there for edge in (each.start, each.end)})
    start = edges[-1] if edges else reference.start
    new = split(start, limits.agreed_end)
    parts = [*((each.start, each.end) for each in there), *new]
    store, skipped = tables.stores[reference.store], garbage(tables).get(reference.store, [])
    digest = Digest(store.replica, store.segments, skipped)
    digests = tables.engine.map(digest, parts)
    now = [
        Range(*bounds, sha256, audited_at_ms) for bounds, sha256 in zip(parts, digests, strict=True)
    ]
    offenders = _lost_end(tables, known)
    offenders += [
        {"store": reference.store, "position": before.start, "end": before.end}
        for before, after in zip(there, now, strict=False)
        if before.sha256 != after.sha256
    ]
    title = "ranges of the log that are not what an earlier audit found right"
    return CheckResult.of_faults("ranges", title, offenders), now


def _lost_end(tables: Tables, known: Sequence[Range]) -> list[Offender]:
    """Return the missing end of the known ranges, with the stores that still reach it. Retention
    may have removed the start."""
    limits = tables.limits
    end = max((each.end for each in known), default=0)
    if end <= limits.agreed_end:
        return []
    held_by = [store.store for store in limits.stores if store.data_end >= end]
    what = "the log ends before what was right"
    return [{"position": limits.agreed_end, "end": end, "what": what, "held_by": held_by}]


def timeline(tables: Tables) -> tuple[tuple[int, int, int], ...]:
    """Return (start in ms, count, first log position) of the group's messages in at most
    TIMELINE_PARTS intervals of store time."""
    log = tables.log.where("visible")
    times = [digest.times for digest in tables.staged_log.digests if digest.times is not None]
    if not times:
        return ()
    start, end = min(first for first, _ in times), max(last for _, last in times)
    ms = F.col("store_timestamp")
    bucket_ms = (end - start) // TIMELINE_PARTS + 1
    bucket = F.floor((ms - start) / bucket_ms).alias("part")
    counted = log.groupBy(bucket).agg(F.count("*").alias("count"), F.min("position").alias("at"))
    return tuple(
        (start + row["part"] * bucket_ms, row["count"], row["at"])
        for row in counted.orderBy("part").collect()
    )


def ended_at(
    tables: Tables,
    held: GroupFrames | None,
    files: StoreFiles,
    ends: Mapping[tuple[str, int], int],
    audited_at_ms: int,
) -> Ended:
    """Return the end of this audit, for the next incremental audit; `ends` has those of queues."""
    since, position = tables.since, tables.limits.agreed_end
    reference = max(tables.limits.stores, key=lambda store: store.agreed).store
    configurations = files.configurations or {}
    configuration = since.configuration if since else None
    if configurations:
        configuration = max(configurations), configurations[max(configurations)]
    return Ended(
        audited_at_ms,
        position,
        held.last if held else 0,
        held.term if held else 0,
        tail_of(tables.stores[reference], position) or "",
        ends,
        configuration,
        files.tables,
    )


def offsets_check(
    committed: Mapping[str, Mapping[str, int]],
    ends: Mapping[tuple[str, int], int],
    *,
    complete: bool,
) -> tuple[CheckResult, list[str]]:
    """Check that no group has committed an offset behind its queue's end. `committed` is the
    offsetTable of consumerOffset.json. Unless the log is `complete`, queues without messages may
    have had some, like those of MULTI_QUEUE_PREFIX; also return that gap."""
    offenders: list[Offender] = []
    unknown = 0
    for name, offsets in sorted(committed.items()):
        topic, _, group = name.partition("@")
        known = complete and not topic.startswith(MULTI_QUEUE_PREFIX)
        for number, offset in offsets.items():
            end = ends.get((topic, int(number)), 0 if known else None)
            if end is None:
                unknown += offset > 0
            elif offset > end:
                queue = {"group": group, "topic": topic, "queue_id": int(number)}
                offenders.append({**queue, "offset": offset, "end": end})
    title = "offsets that groups have committed behind their queue's end"
    gap = f"committed offsets of {unknown:,} queues that have no message of their own in the log"
    check = CheckResult.of_faults("group_offsets", title, offenders)
    return check, [gap] if unknown else []


def times_check(tables: Tables, *, clocks_steady: bool) -> CheckResult:
    """Check that store times do not fall along a log by more than clocks of replicas differ. A fall
    is a fault if `clocks_steady`."""
    offenders: list[Offender] = []
    for name in tables.stores:
        peak_ms = 0
        digests = (each for each in tables.staged_log.digests if name in each.stores)
        for digest in sorted(digests, key=lambda digest: digest.start):
            if digest.times is None:
                continue
            position, inner_ms = digest.fall
            fall_ms = max(inner_ms, peak_ms - digest.times[0])
            if fall_ms > FALL_MS:
                position = position if inner_ms > FALL_MS else digest.start
                fall: Offender = {"store": name, "position": position, "fall_s": fall_ms // 1000}
                offenders.append(fall)
            peak_ms = max(peak_ms, digest.times[1])
    title = "ranges of the log in which store times fall by more than a minute"
    check = CheckResult.of_faults("times_fall", title, offenders)
    return check if clocks_steady else replace(check, fault=False, title=f"{title}{CLOCKS_SET}")


def live_queue_checks(tables: Tables) -> list[CheckResult]:
    """Return the results of the comparison of running replicas' ConsumeQueues."""
    of_windows = [each.wrong_units for each in tables.staged_log.digests if each.wrong_units]
    units = [unit for wrong in of_windows for unit in wrong.first]
    units.sort(key=lambda unit: (unit.store, unit.position))
    results = []
    for name, title in UNIT_CHECKS.items():
        absent = name == "not_indexed"
        count = sum(wrong.absent if absent else wrong.other for wrong in of_windows)
        rows = [asdict(unit) for unit in units if (unit.what == ABSENT) == absent]
        results.append(CheckResult(name, title, True, count, first_of_each_store(rows)))
    return results


def ends_check(
    shown: Mapping[tuple[str, int], int], held: Mapping[tuple[str, int], int]
) -> CheckResult:
    """Check that consumers see no queue end behind the log's, by topic and number."""
    offenders: list[Offender] = [
        {"topic": topic, "queue_id": number, "shown_until": end, "log_until": held_end}
        for (topic, number), end in sorted(shown.items())
        if end > (held_end := held.get((topic, number), 0))
    ]
    title = "queues that end behind the last message that the log has of them"
    return CheckResult.of_faults("queue_ends", title, offenders)


def queue_ends(tables: Tables) -> dict[tuple[str, int], int]:
    """Return the ends of the queues in the group's log, by topic and number."""
    ends = dict(tables.since.queues) if tables.since else {}
    runs, last = tables.group_runs, "last_offset"
    if runs is None:
        runs, last = tables.log.where("visible"), "queue_offset"
    ended = runs.groupBy("topic", "queue_id").agg((F.max(last) + 1).alias("end"))
    for row in ended.collect():
        ends[row["topic"], row["queue_id"]] = row["end"]
    return ends
