"""Digests, queue ends and store times that an audit saves for the next audit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from ..engine import columns as F
from ..read.incremental import Ended, Range, split, tail_of
from ..read.live_queues import ABSENT
from ..read.log_facts import FALL_MS
from ..read.log_reader import Copy
from ..read.replica import Replica
from ..read.store_files import Segment
from ..read.system_topics import MULTI_QUEUE_PREFIX
from ..read.tables import Tables
from ..report.report import CheckResult, Faults, Offender, first_of_each_store
from .checks import UNIT_CHECKS
from .frames import GroupFrames
from .index_and_config_checks import StoreFiles

TIMELINE_PARTS = 200
_DIGESTS = pa.schema([("start", pa.int64()), ("end", pa.int64()), ("sha256", pa.string())])
CLOCKS_SET = " (clocks that are set cause this)"


def ranges_check(
    tables: Tables, known: Sequence[Range], audited_at_ms: int
) -> tuple[CheckResult, Iterator[Range]]:
    """Check that the known ranges have not changed, and that the log still reaches their end. Also
    yield the ranges that this audit has read, up to the agreed end. Raises OSError."""
    limits, engine = tables.limits, tables.engine
    reference = max(limits.stores, key=lambda store: store.agreed)
    there = [each for each in known if reference.start <= each.start < each.end]
    there = [each for each in there if each.end <= limits.agreed_end]
    start = max((each.end for each in there), default=reference.start)
    new = [Range(*bounds, "", 0) for bounds in split(start, limits.agreed_end)]
    store = tables.stores[reference.store]
    digest = _Digest(store.name, store.replica, store.segments)
    rows, changed = engine.read(digest, [*there, *new], _DIGESTS, Faults.merge, Faults())
    now = (
        Range(row["start"], row["end"], row["sha256"], audited_at_ms)
        for row in rows.orderBy("start").rows()
    )
    title = "ranges of the log that are not what an earlier audit found right"
    lost = _lost_end(tables, known)
    offenders = first_of_each_store([*lost, *changed.first])
    return CheckResult("ranges", title, True, len(lost) + changed.count, offenders), now


@dataclass(frozen=True)
class _Digest:
    """Digests ranges of a store's log in a task, without the bytes behind blank records. A running
    replica digests its own log."""

    store: str
    replica: Replica | None
    segments: Sequence[Segment]

    def __call__(self, known: Range) -> Iterator[pa.RecordBatch | Faults]:
        """Yield the digest (_DIGESTS), and whether it is another than the known digest."""
        bounds = known.start, known.end
        sha256 = self.replica.digest(*bounds).hex() if self.replica else self._digest(*bounds)
        row = dict(zip(_DIGESTS.names, (*bounds, sha256), strict=True))
        yield pa.RecordBatch.from_pylist([row], _DIGESTS)
        changed: Offender = {"store": self.store, "position": known.start, "end": known.end}
        yield Faults((changed,), 1) if known.sha256 not in ("", sha256) else Faults()

    def _digest(self, start: int, end: int) -> str:
        digest = hashlib.sha256()
        for segment in self.segments:
            low, high = max(start, segment.base), min(end, segment.end)
            if low < high:
                copy = Copy(self.store, segment.file.view())
                high = segment.base + copy.end(segment.base, high - segment.base)
                digest.update(segment.file.read(low - segment.base, max(low, high) - segment.base))
        return digest.hexdigest()


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
    times = tables.staged_log.facts.times.values()
    if not times:
        return ()
    start, end = min(each.low for each in times), max(each.high for each in times)
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
    count = 0
    for name, times in sorted(tables.staged_log.facts.times.items()):
        falls = times.falls
        if not falls and times.deepest.fall_ms > FALL_MS:  # in several steps
            falls = (times.deepest,)
        count += max(times.count, len(falls))
        offenders += [
            {"store": name, "position": fall.position, "fall_s": fall.fall_ms // 1000}
            for fall in falls
        ]
    title = "ranges of the log in which store times fall by more than a minute"
    check = CheckResult("times_fall", title, True, count, first_of_each_store(offenders))
    return check if clocks_steady else replace(check, fault=False, title=f"{title}{CLOCKS_SET}")


def live_queue_checks(tables: Tables) -> list[CheckResult]:
    """Return the results of the comparison of running replicas' ConsumeQueues."""
    wrong = tables.staged_log.facts.wrong_units
    units = sorted(wrong.first, key=lambda unit: (unit.store, unit.position))
    results = []
    for name, title in UNIT_CHECKS.items():
        absent = name == "not_indexed"
        count = wrong.absent if absent else wrong.other
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
