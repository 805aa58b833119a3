"""Checks IndexFiles (audit.read.index_files), which find messages by key, against the log.

Every entry must point to a message with such a key, and must be reachable from its slot. Every
message with a key must have an entry, from the first file to the last entry. An entry is wrong if
it fits no store's log. If it fits a different replica's log, its own log is damaged, which other
checks report.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.frames import mapped
from ..read.index_files import IndexFile, Open, Unfit
from ..read.index_keys import StagedRange, expected_keys, indexed_positions
from ..read.range_sums import Ranges, StoreSums, Sums, added, by_store, sums, total
from ..read.tables import Tables
from ..report.report import CheckResult, Faults, Offender

ENTRIES_AT_ONCE = 500_000
MARGIN = 50_000  # entries that are loaded before and behind a task's; a message has fewer keys
FAULTS_MAX = 1_000  # per task
SECONDS_MAX = 0x7FFFFFFF
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Entries:
    """A task for entries [first, last) of a file that several stores may have alike."""

    copies: tuple[IndexFile, ...]
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Chains:
    """A task for the chains of a file's entries."""

    file: IndexFile


@dataclass(frozen=True, slots=True)
class Verdict:
    """The faults, and by store and range the number of messages with an entry for their own id and
    the sum of their positions."""

    faults: Faults = field(default_factory=Faults)
    reached: StoreSums = field(default_factory=dict)

    def merge(self, other: Verdict) -> Verdict:
        return Verdict(self.faults.merge(other.faults), added(self.reached, other.reached))


def index_check(tables: Tables) -> tuple[CheckResult, list[str]]:
    """Check the IndexFiles of all stores; also return gaps. Raises OSError."""
    offenders: list[Offender] = []
    gaps: list[str] = []
    files = _files(tables, offenders, gaps)
    faults = Faults(tuple(offenders), len(offenders))
    if files:
        log = tables.staged_log.windows
        judge = _Judge(
            tuple(tables.stores),
            log,
            tables.staged_log.ranges,
            {one.store: (one.start, one.limit) for one in tables.limits.stores},
            {name: own[0].start for name, own in files.items()},
            frozenset(name for name, store in tables.stores.items() if store.closed),
        )
        verdict = tables.engine.map_reduce(judge, _tasks(files), Verdict.merge, Verdict())
        suspects = _suspects(tables, files, by_store(verdict.reached))
        missing = _Missing(log, files)
        absent = tables.engine.map_reduce(missing, suspects, Faults.merge, Faults())
        faults = faults.merge(verdict.faults).merge(absent)
    title = "IndexFiles that lead to no message with the key, or lack a message"
    return faults.result("index", title), gaps


def _files(
    tables: Tables, offenders: list[Offender], gaps: list[str]
) -> dict[str, list[IndexFile]]:
    """Return the sound IndexFiles by store. Raises OSError."""
    named = [(name, file) for name, store in tables.stores.items() for file in store.index_files()]
    files: dict[str, list[IndexFile]] = {}
    for each in mapped(tables.engine, Open(tables.limits.read_from), named):
        if isinstance(each, IndexFile) and each.count > 1:
            files.setdefault(each.store, []).append(each)
        elif isinstance(each, Unfit) and each.fault:
            offenders.append({"store": each.store, "file": each.name, "what": each.what})
        elif isinstance(each, Unfit):
            gaps.append(f"IndexFiles: {each.store}/{each.name} {each.what}")
    gaps += [f"IndexFiles: store {name} has none" for name in tables.stores if name not in files]
    return files


def _tasks(files: Mapping[str, Sequence[IndexFile]]) -> list[_Entries | _Chains]:
    """Return the tasks. Files with the same start are judged together up to their common length,
    because replicas flush at different times."""
    alike: dict[tuple[int, int, int], list[IndexFile]] = {}
    for own in files.values():
        for file in own:
            if file.low < file.count:
                alike.setdefault((file.start_ms, file.start, file.slots), []).append(file)
    tasks: list[_Entries | _Chains] = []
    for copies in alike.values():
        tasks += map(_Chains, copies)
        low = copies[0].low
        counts = {file.count for file in copies}
        edges = sorted({low, *range(low, max(counts), ENTRIES_AT_ONCE), *counts})
        for first, last in itertools.pairwise(edge for edge in edges if edge >= low):
            there = tuple(file for file in copies if file.count >= last)
            tasks.append(_Entries(there, first, last))
    return tasks


@dataclass(frozen=True)
class _Judge:
    """Judges a task's entries in a task. `log` lists the files of the staged log. By
    store, `bounds` has start and limit of its log, and `firsts` the start of its index. `closed`
    has the stores that were closed in order."""

    stores: Sequence[str]
    log: Sequence[StagedRange]
    ranges: Ranges
    bounds: Mapping[str, tuple[int, int]]
    firsts: Mapping[str, int]
    closed: frozenset[str]

    def __call__(self, task: _Entries | _Chains) -> Verdict:
        if isinstance(task, _Chains):
            faults = _chain_faults(task.file, task.file.store in self.closed)
            reported = [*self._reported(task.file, list(faults))]
            return Verdict(Faults(tuple(reported), len(reported)))
        reported = []
        reached: dict[tuple[str, ...], Sums] = {}
        bounds = task.first - MARGIN, task.last + MARGIN
        left = [(file, file.entries(*bounds)) for file in task.copies]
        while left:
            entries = left[0][1]
            chunk = entries[task.first : task.last]
            same = [
                file for file, other in left if np.array_equal(other[task.first : task.last], chunk)
            ]
            left = [copy for copy in left if copy[0] not in same]
            wrong, positions = self._judged(same, entries, task)
            for file in same:
                reported += self._reported(file, wrong)
                counted = positions >= self.bounds[file.store][0]
                counted &= positions > self.firsts[file.store]
                inside = positions[counted]
                reached[(file.store,)] = sums(self.ranges.of_positions(inside), inside)
        return Verdict(Faults(tuple(reported), len(reported)), reached)

    def _reported(
        self, file: IndexFile, wrong: Sequence[tuple[int, int, str]]
    ) -> Iterator[Offender]:
        """Yield the faults of a file. Entries behind the log of a killed store are no fault,
        because the next start drops them."""
        start, limit = self.bounds[file.store]
        for number, at, what in wrong[:FAULTS_MAX]:
            if at >= start and (at < limit or file.store in self.closed):
                location: Offender = {"store": file.store, "file": file.file.name, "entry": number}
                yield {**location, "position": at, "what": what}

    def _judged(
        self, files: Sequence[IndexFile], entries: Array, task: _Entries
    ) -> tuple[list[tuple[int, int, str]], Array]:
        """Return the faults of the task's entries as (number, position, fault), and the positions
        of messages that have an entry for their own id."""
        first, last = _complete_messages(entries, task.first, task.last)
        chunk = entries[first:last]
        positions = chunk["position"].astype(np.int64)
        hashes = chunk["hash"].astype(np.int64)
        distinct, which = _distinct(positions)
        codes = which.astype(np.int64) << 32 | hashes
        fits = np.zeros(len(chunk), bool)
        timely = np.zeros(len(chunk), bool)
        own_id = np.zeros(len(distinct), bool)
        missing: dict[int, str] = {}
        start_ms, full = files[0].start_ms, files[0].full
        names = [file.store for file in files]
        for store in [*names[:1], *(name for name in self.stores if name not in names[:1])]:
            open_positions = np.zeros(len(distinct), bool)
            open_positions[which[~(fits & timely)]] = True
            doubtful = np.flatnonzero(open_positions)
            if not len(doubtful):
                break
            keys = expected_keys(self.log, store, distinct[doubtful])
            owners = doubtful[keys.owners]
            expected = owners << 32 | keys.hashes
            fits |= _among(codes, expected)
            seconds = np.full(len(distinct), -1)
            late_ms = np.clip(keys.store_ms - start_ms, 0, SECONDS_MAX * 1000)
            seconds[doubtful[keys.rows]] = late_ms // 1000
            timely |= seconds[which] == chunk["seconds"]
            there = _among(expected, codes)
            own_id[owners[there & keys.of_id]] = True
            if store == names[0]:
                inner = np.ones(len(distinct), bool)
                inner[:1] = own_id[:1]  # otherwise its first keys are in the previous file
                inner[-1:] &= not (
                    full and last == len(entries)
                )  # and its last keys in the next file
                for owner in owners[~there & inner[owners]].tolist():
                    missing[owner] = "a key of the message has no entry"
        wrong = [
            (first + int(at), int(positions[at]), "leads to no message with such a key")
            for at in np.flatnonzero(~fits)[:FAULTS_MAX]
        ]
        wrong += [
            (first + int(at), int(positions[at]), "has another store time than the message")
            for at in np.flatnonzero(fits & ~timely)[:FAULTS_MAX]
        ]
        # A message with a different key in the log than in its entries is reported once.
        unfit = {position for _, position, _ in wrong}
        wrong += [
            (0, int(distinct[owner]), what)
            for owner, what in missing.items()
            if int(distinct[owner]) not in unfit
        ]
        return wrong, distinct[own_id]


def _complete_messages(entries: Array, first: int, last: int) -> tuple[int, int]:
    """Move both ends to where a new message's entries start."""
    positions = entries["position"]
    while 1 < first < len(entries) and positions[first] == positions[first - 1]:
        first += 1
    while last < len(entries) and positions[last] == positions[last - 1]:
        last += 1
    return first, max(first, last)


def _distinct(positions: Array) -> tuple[Array, Array]:
    """Return the distinct positions in rising order, and the index of each position among them."""
    if (positions[1:] < positions[:-1]).any():  # only after damage
        distinct, which = np.unique(positions, return_inverse=True)
        return distinct, which
    first = np.ones(len(positions), bool)
    np.not_equal(positions[1:], positions[:-1], out=first[1:])
    return positions[first], np.cumsum(first) - 1


def _among(values: Array, others: Array) -> Array:
    """Return for each value whether `others` contains it."""
    if not len(others):
        return np.zeros(len(values), bool)
    known = np.sort(others)
    distinct = np.minimum(np.searchsorted(known, values), len(known) - 1)
    result: Array = known[distinct] == values
    return result


def _chain_faults(file: IndexFile, closed: bool) -> Iterator[tuple[int, int, str]]:
    """Yield the entries that do not point to the previous entry of their slot and, if the store was
    closed in order, the newest entries that their slot does not point to."""
    entries = file.entries()
    numbers, which = _by_slot(entries, file.slots)
    before = np.zeros(len(numbers), np.int64)
    same = which[1:] == which[:-1]
    before[1:][same] = numbers[:-1][same]
    wrong = np.flatnonzero(entries["before"][numbers] != before)
    for number in np.sort(numbers[wrong])[:FAULTS_MAX].tolist():
        yield number, int(entries["position"][number]), "leads not to the entry before it"
    newest = np.append(~same, True)
    wrong = wrong[:0]
    if closed:
        wrong = np.flatnonzero(file.newest()[which[newest]] != numbers[newest])
    for number in np.sort(numbers[newest][wrong])[:FAULTS_MAX].tolist():
        yield number, int(entries["position"][number]), "is not reached from its slot"


def _by_slot(entries: Array, slots: int) -> tuple[Array, Array]:
    """Return the numbers of all entries sorted by slot, and the slot of each."""
    which = entries["hash"][1:].astype(np.int64) % slots
    order = np.argsort(which, kind="stable")
    return order + 1, which[order]


def _suspects(
    tables: Tables,
    files: Mapping[str, Sequence[IndexFile]],
    reached: Mapping[str, Sums],
) -> list[_Suspect]:
    """Return the ranges of each store that may have messages without an entry, between the first
    and the last message of its index. The first message's entry may be in a file that retention has
    removed. Ranges with equal counts and sums of positions are left out."""
    there, ranges = by_store(tables.staged_log.facts.ids), tables.staged_log.ranges
    suspects = []
    for store, own in files.items():
        start, end = max(own[0].start, tables.limits.read_from - 1), own[-1].end
        edges = start // ranges.size_bytes, end // ranges.size_bytes
        for range_ in range(edges[0], edges[1] + 1):
            sums_reached = reached.get(store, {}).get(range_, (0, 0))
            first = (1, start) if range_ == edges[0] else (0, 0)
            with_first = total([{range_: sums_reached}, {range_: first}])[range_]
            if there.get(store, {}).get(range_, (0, 0)) not in (sums_reached, with_first):
                low = max(range_ * ranges.size_bytes, start + 1)
                high = min((range_ + 1) * ranges.size_bytes, end + 1)
                suspects.append(_Suspect(store, low, high, sums_reached))
    return suspects


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Log positions [low, high) of a store, and the count and sum of those with an entry."""

    store: str
    low: int
    high: int
    reached: tuple[int, int]


@dataclass(frozen=True)
class _Missing:
    """Finds the messages without an entry in a task."""

    log: Sequence[StagedRange]
    files: Mapping[str, Sequence[IndexFile]]

    def __call__(self, each: _Suspect) -> Faults:
        expected = indexed_positions(self.log, each.store, each.low, each.high)
        if (len(expected), int(expected.sum()) % (1 << 64)) == each.reached:
            return Faults()
        there = _positions(self.files[each.store], each.low, each.high)
        missing = np.setdiff1d(expected, there).tolist()
        what = "no entry leads to the message"
        faults = [
            {"store": each.store, "position": at, "what": what} for at in missing[:FAULTS_MAX]
        ]
        return Faults(tuple(faults), len(missing))


def _positions(files: Sequence[IndexFile], low: int, high: int) -> Array:
    arrays = [
        file.entries(1)["position"][1:].astype(np.int64)
        for file in files
        if file.start < high and low <= file.end
    ]
    positions = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
    return positions[(positions >= low) & (positions < high)]
