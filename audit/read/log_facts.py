"""Facts about decoded windows of a log, merged from window to window.

A task makes the facts of its window (audit.read.summaries). Facts of neighbouring windows are
merged in tasks, so the driver never has those of all windows. Their size depends on the number of
stores and not on the log: ranges of the log are intervals of positions, and only the first findings
of each store are kept. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import TypeVar

from .live_queues import WrongUnits
from .range_sums import StoreSums, added

FALL_MS = 60_000  # clocks of replicas differ by less
FALLS_MAX = 20  # of a store; the count is complete
INTERVALS_MAX = 50  # that the same stores hold
Interval = tuple[int, int]  # log positions [start, end)
Holders = tuple[tuple[str, ...], ...]  # the stores with equal items, for each different content
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Frames [first, last] with consecutive indexes and rising terms, all intact and with complete
    records. `end` is the end of the last payload. `configurations` has index, start and end of each
    payload."""

    first: int
    last: int
    first_term: int
    last_term: int
    end: int
    configurations: tuple[tuple[int, int, int], ...]

    @property
    def ended(self) -> tuple[int, int]:
        """Return index and term of the last frame."""
        return self.last, self.last_term

    def follows(self, ended: tuple[int, int]) -> bool:
        """Return whether the first frame may stand behind a frame of this index and term."""
        return self.first == ended[0] + 1 and self.first_term >= ended[1]

    def with_next(self, run: FrameRun) -> FrameRun | None:
        """Return both as one run; None if the second does not follow."""
        if not run.follows(self.ended):
            return None
        configurations = self.configurations + run.configurations
        terms = self.first_term, run.last_term
        return FrameRun(self.first, run.last, *terms, run.end, configurations)


@dataclass(frozen=True, slots=True)
class Alike:
    """The log up to position `end`, without differences: its frames are consecutive, and stores
    that have a position have the same items there. `runs` has the frames, each with the stores that
    have them. It is `complete` if no store has more. `ended` is index and term of the last frame
    before `end`, if known."""

    runs: Sequence[tuple[tuple[str, ...], FrameRun]]
    end: int
    complete: bool
    ended: tuple[int, int] | None = None

    @property
    def frames(self) -> FrameRun | None:
        """The frames of all stores as one run."""
        frames: FrameRun | None = None
        for _, run in self.runs:
            frames = _joined(frames, run)
        return frames


@dataclass(frozen=True, slots=True)
class Holdings:
    """The items of some windows if no stores differ, each `run` of them with the stores that have
    it, and with consecutive frames if any. A store may begin behind another, and end before it, but
    it has everything between. None if that is not so."""

    runs: tuple[tuple[tuple[str, ...], FrameRun | None], ...] | None = ()

    def merge(self, behind: Holdings) -> Holdings:
        if self.runs is None or behind.runs is None:
            return Holdings(None)
        if not self.runs or not behind.runs:
            return Holdings(self.runs or behind.runs)
        *before, (left, run) = self.runs
        (right, next_run), *rest = behind.runs
        known = {name for stores, _ in self.runs for name in stores}
        again = known.intersection(name for stores, _ in behind.runs for name in stores)
        if again != {*left} & {*right} or not self._joins(behind):
            return Holdings(None)
        if left == right:
            return Holdings((*before, (left, _joined(run, next_run)), *rest))
        return Holdings(self.runs + behind.runs)

    def _joins(self, behind: Holdings) -> bool:
        """Return whether the first frame behind follows the last."""
        last = [run for _, run in self.runs or () if run][-1:]
        first = [run for _, run in behind.runs or () if run][:1]
        return all(right.follows(left.ended) for left, right in zip(last, first, strict=False))


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first of some windows, up to position `end` (0 for none), in which all stores have equal
    items, and consecutive frames if any. It is `complete` if these are all windows. `shorter` has
    frames and end without the last window."""

    frames: FrameRun | None = None
    end: int = 0
    complete: bool = True
    shorter: tuple[FrameRun | None, int] = (None, 0)

    def merge(self, behind: Prefix) -> Prefix:
        if behind == Prefix():
            return self
        frames = _joined(self.frames, behind.frames)
        if not self.complete or not behind.end or (behind.frames and frames is None):
            return replace(self, complete=False)
        run, end = behind.shorter
        shorter = (_joined(self.frames, run), end) if end else (self.frames, self.end)
        return Prefix(frames, behind.end, behind.complete, shorter)


@dataclass(frozen=True, slots=True)
class Fall:
    """A store time that is `fall_ms` below an earlier time, at `position` in the window that has
    this `start`."""

    start: int
    position: int
    fall_ms: int


@dataclass(frozen=True, slots=True)
class Times:
    """Store times of a store's records in neighbouring windows, in ms: the lowest of the first
    window, which has this `start`, the highest of the last, and the lowest (in the window at
    `lowest_at`) and the highest of all. `falls` has the first of the `count` windows in which times
    fall by more than FALL_MS, inside or from the window before. `deepest` is the deepest fall below
    any earlier time."""

    start: int
    first_low: int
    last_high: int
    low: int
    lowest_at: int
    high: int
    falls: tuple[Fall, ...]
    count: int
    deepest: Fall

    @classmethod
    def of(cls, start: int, low: int, high: int, fall: Fall) -> Times:
        """Return the times of a window with its deepest fall."""
        falls = (fall,) if fall.fall_ms > FALL_MS else ()
        return cls(start, low, high, low, start, high, falls, len(falls), fall)

    def merge(self, behind: Times) -> Times:
        falls, count = behind.falls, behind.count
        fall_ms = self.last_high - behind.first_low
        if fall_ms > FALL_MS and falls and falls[0].start == behind.start:
            falls = replace(falls[0], fall_ms=max(falls[0].fall_ms, fall_ms)), *falls[1:]
        elif fall_ms > FALL_MS:
            falls, count = (Fall(behind.start, behind.start, fall_ms), *falls), count + 1
        lowest = min(self, behind, key=lambda each: each.low)
        across = Fall(behind.lowest_at, behind.lowest_at, self.high - behind.low)
        return Times(
            *(self.start, self.first_low, behind.last_high),
            *(lowest.low, lowest.lowest_at, max(self.high, behind.high)),
            (*self.falls, *falls)[:FALLS_MAX],
            self.count + count,
            max(self.deepest, across, behind.deepest, key=lambda fall: fall.fall_ms),
        )


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The facts about some neighbouring windows.

    `ends` has by store the end of its last item, and its numbers of intact records and frames.
    `times` has the stores with intact records. `held` has the ranges of the log by the stores that
    hold them; True if all bytes are equal in all of them. With more than INTERVALS_MAX intervals,
    the log between the nearest is among them. `ended` has the first position of each store from
    which on it has no items in a window, and others may have other bytes. `damage_at` has each
    store's first damaged position.
    """

    prefix: Prefix = Prefix()
    holdings: Holdings = Holdings()
    ends: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    times: Mapping[str, Times] = field(default_factory=dict)
    held: Mapping[tuple[Holders, bool], tuple[Interval, ...]] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    waits: bool = False
    unpackable: bool = False
    damage_at: Mapping[str, int] = field(default_factory=dict)
    wrong_units: WrongUnits = field(default_factory=WrongUnits)
    units: StoreSums = field(default_factory=dict)
    ids: StoreSums = field(default_factory=dict)

    @classmethod
    def of_window(cls, parts: Iterable[Sequence[LogFacts]]) -> LogFacts:
        """Return the facts about a window with these consecutive parts, each with its different
        contents."""
        return reduce(cls.merge, map(cls._of_contents, parts), cls())

    @classmethod
    def _of_contents(cls, contents: Sequence[LogFacts]) -> LogFacts:
        if len(contents) == 1:
            return replace(contents[0], ended={})
        merged = reduce(cls.merge, contents, cls())
        held = {key: each.held[key] for each in contents if not each.ended for key in each.held}
        if len(held) > 1:
            holders = tuple(same for stores, _ in held for same in stores)
            end = max(end for ((_, end),) in held.values())
            held = {(holders, False): ((next(iter(held.values()))[0][0], end),)}
            merged = replace(merged, holdings=Holdings(None))
        return replace(merged, prefix=Prefix(complete=False), held=held)

    def merge(self, behind: LogFacts) -> LogFacts:
        """Return the facts about both."""
        return LogFacts(
            self.prefix.merge(behind.prefix),
            self.holdings.merge(behind.holdings),
            _by_name(self.ends, behind.ends, _ends),
            _by_name(self.times, behind.times, Times.merge),
            _by_name(self.held, behind.held, _intervals),
            _by_name(self.ended, behind.ended, min),
            self.waits or behind.waits,
            self.unpackable or behind.unpackable,
            _by_name(self.damage_at, behind.damage_at, min),
            self.wrong_units.merge(behind.wrong_units),
            added(self.units, behind.units),
            added(self.ids, behind.ids),
        )

    def alike(self, names: tuple[str, ...], ended: tuple[int, int] | None) -> Alike:
        """Return the log if nothing in it differs, else the start that all stores of these names
        have. `ended` is index and term of the frame before it, which all stores with items have.
        The last of several windows is left to the rest of an incomplete log, because a frame is
        judged by its neighbours."""
        holdings = self.holdings.runs
        if holdings is not None:
            runs = [(stores, run) for stores, run in holdings if run]
            later = {name for stores, _ in holdings for name in stores}.difference(
                *(stores for stores, _ in holdings[:1])
            )
            if ended is None or not (later or any(not run.follows(ended) for _, run in runs[:1])):
                end = max((end for end, *_ in self.ends.values()), default=0)
                return Alike(runs, end, True)
        run, end = self.prefix.shorter
        if run is None or (ended and not run.follows(ended)):
            return Alike([], 0 if run else end, False, ended)
        return Alike([(names, run)], end, False, run.ended)


def _joined(left: FrameRun | None, right: FrameRun | None) -> FrameRun | None:
    return left.with_next(right) if left and right else left or right


def _by_name(
    left: Mapping[Key, Value], right: Mapping[Key, Value], merge: Callable[[Value, Value], Value]
) -> dict[Key, Value]:
    both = {**left, **right}
    for name in left.keys() & right.keys():
        both[name] = merge(left[name], right[name])
    return both


def _ends(left: tuple[int, int, int], right: tuple[int, int, int]) -> tuple[int, int, int]:
    return max(left[0], right[0]), left[1] + right[1], left[2] + right[2]


def _intervals(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> tuple[Interval, ...]:
    intervals = [*left, *right]

    def join(at: int) -> None:
        intervals[at - 1 : at + 1] = [
            (intervals[at - 1][0], max(intervals[at - 1][1], intervals[at][1]))
        ]

    if left[-1][1] == right[0][0]:
        join(len(left))
    while len(intervals) > INTERVALS_MAX:
        gaps = [
            (after[0] - before[1], at) for at, (before, after) in enumerate(pairwise(intervals), 1)
        ]
        join(min(gaps)[1])
    return tuple(intervals)
