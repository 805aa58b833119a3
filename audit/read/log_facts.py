"""Facts about decoded windows of a log, merged from window to window.

A task makes the facts of its window (audit.read.summaries). Facts of neighbouring windows are
merged in tasks, so the driver never has those of all windows. Their size depends on the number of
stores and not on the log: windows are intervals of numbers, and only the first findings of each
store are kept. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import TypeVar

from .live_queues import WrongUnits
from .range_sums import StoreSums, added

FALL_MS = 60_000  # clocks of replicas differ by less
FALLS_MAX = 20  # of a store; the count is complete
INTERVALS_MAX = 50  # of windows that the same stores hold
Interval = tuple[int, int]  # numbers of the first and the last window
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

    def with_next(self, run: FrameRun) -> FrameRun | None:
        """Return both as one run; None if the second does not follow."""
        if run.first != self.last + 1 or run.first_term < self.last_term:
            return None
        configurations = self.configurations + run.configurations
        terms = self.first_term, run.last_term
        return FrameRun(self.first, run.last, *terms, run.end, configurations)


@dataclass(frozen=True, slots=True)
class Alike:
    """The log up to position `end`, which all stores have alike, with consecutive `frames` (None
    for none). It is `complete` if no store has more. `ended` is index and term of the last frame
    before `end`, if known."""

    frames: FrameRun | None
    end: int
    complete: bool
    ended: tuple[int, int] | None = None


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
    `times` has the stores with intact records. `held` has the windows by their holders; True if all
    bytes are equal in all stores that have the window. With more than INTERVALS_MAX intervals,
    windows between the nearest are among them.
    """

    prefix: Prefix = Prefix()
    ends: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    times: Mapping[str, Times] = field(default_factory=dict)
    held: Mapping[tuple[Holders, bool], tuple[Interval, ...]] = field(default_factory=dict)
    waits: bool = False
    unpackable: bool = False
    damage_at: int | None = None
    wrong_units: WrongUnits = field(default_factory=WrongUnits)
    units: StoreSums = field(default_factory=dict)
    ids: StoreSums = field(default_factory=dict)

    @classmethod
    def of_contents(cls, contents: Sequence[LogFacts]) -> LogFacts:
        """Return the facts about a window with these different contents."""
        merged = reduce(cls.merge, contents, cls())
        if len(contents) < 2:
            return merged
        ((_, interval), *_) = merged.held.items()
        holders = tuple(same for each in contents for (stores, _) in each.held for same in stores)
        return replace(merged, prefix=Prefix(complete=False), held={(holders, False): interval})

    def merge(self, behind: LogFacts) -> LogFacts:
        """Return the facts about both."""
        damaged = [at for at in (self.damage_at, behind.damage_at) if at is not None]
        return LogFacts(
            self.prefix.merge(behind.prefix),
            _by_name(self.ends, behind.ends, _ends),
            _by_name(self.times, behind.times, Times.merge),
            _by_name(self.held, behind.held, _intervals),
            self.waits or behind.waits,
            self.unpackable or behind.unpackable,
            min(damaged, default=None),
            self.wrong_units.merge(behind.wrong_units),
            added(self.units, behind.units),
            added(self.ids, behind.ids),
        )

    def alike(self, ended: tuple[int, int] | None) -> Alike:
        """Return the start of the log in which all stores have equal items and consecutive frames.
        `ended` is index and term of the frame before it. The last of several windows is left to the
        rest of an incomplete log, because a frame is judged by its neighbours."""
        run = self.prefix.frames
        if run and ended and (run.first != ended[0] + 1 or run.first_term < ended[1]):
            return Alike(None, 0, False, ended)
        if self.prefix.complete:
            return Alike(run, self.prefix.end, True)
        run, end = self.prefix.shorter
        return Alike(run, end, False, (run.last, run.last_term) if run else ended)


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
        intervals[at - 1 : at + 1] = [(intervals[at - 1][0], intervals[at][1])]

    if left[-1][1] + 1 == right[0][0]:
        join(len(left))
    while len(intervals) > INTERVALS_MAX:
        gaps = [
            (after[0] - before[1], at) for at, (before, after) in enumerate(pairwise(intervals), 1)
        ]
        join(min(gaps)[1])
    return tuple(intervals)
