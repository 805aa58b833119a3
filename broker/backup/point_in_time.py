"""The last frame of a log at a given time. Pure.

A frame has a time stamp of its leader's clock, never below an earlier stamp. If a clock was ahead,
its stamp stays on all frames until that time arrives; if it was behind, the last right stamp stays.
A time in between cannot be resolved by the stamps. Evidence against stamps are frames stamped later
than the backup, tables older than their stamp, and the producers' clocks (`_Producers`), by frames
behind the point that are older, or up to it that are newer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import median_low

from raftmq.store.frame import Frame
from raftmq.store.record import born_host_at, born_timestamp_at, walk_records

from .manifest import BackupError, Manifest, iso

APART_MS = 60_000  # smaller differences of clocks are ignored
DOUBTED_MIN = 2  # frames; a single frame may come from a producer with an adjusted clock
SURE_MIN = 2  # successive good frames, after which the rest is trusted
RECORDS_MAX = 4  # examined per frame
PORT_SIZE_BYTES = 4  # of a born host
SKEW_MS = 20_000  # resolution of producers' clocks
SKEW_MIN = 3  # messages needed to determine a machine's skew
SKEWS_MAX = 100  # per machine
NAMED_MAX = 10_000  # connections and machines


@dataclass(frozen=True, slots=True)
class Moment:
    """The last frame, and the next frame's stamp or None."""

    index: int
    next_ms: int | None


def last_by(frames: Iterable[Frame], manifest: Manifest, time_ms: int) -> Moment:
    """Return the last frame stamped at or before `time_ms`, given all `frames` of the backup.
    Raises BackupError if the stamps around it are unreliable."""
    index, next_ms = manifest.first_index - 1, None
    by_producers = index  # the last before the frames made later
    late, early, sure = _Late(), 0, 0
    producers = _Producers()
    for frame in frames:
        made_ms = producers.made_ms(frame)
        apart = made_ms is not None and abs(made_ms - frame.timestamp_ms) > APART_MS
        later = made_ms is not None and made_ms > time_ms
        if next_ms is None and frame.timestamp_ms <= time_ms:
            index = by_producers = frame.index
            if made_ms is not None:
                late.see(frame.index, apart and later)
            continue
        next_ms = next_ms or frame.timestamp_ms
        if later:
            sure += 1
        elif made_ms is not None:
            sure = 0
        if sure >= SURE_MIN:
            break
        if not sure:
            by_producers = frame.index
            early += apart
    if late.count >= DOUBTED_MIN:
        raise BackupError(
            f"which frame was the last one at {iso(time_ms)} is not known: the frames from"
            f" {late.first} to {index} are stamped as if they were older, by a clock that was"
            f" behind; --to-index {late.first - 1} restores to the last one before messages that"
            f" are newer by their producers' clocks, --to-index {index} to the last one that was"
            " stamped by then"
        )
    if next_ms is not None:
        there = max(
            (s.index for s in manifest.states if s.time_ms + APART_MS <= time_ms), default=0
        )
        is_future = by_producers > index and next_ms > manifest.taken_ms + APART_MS
        if there > index or early >= DOUBTED_MIN or is_future:
            raise BackupError(
                f"which frame was the last one at {iso(time_ms)} is not known: the one behind frame"
                f" {index} is stamped {iso(next_ms)}, and so are later ones, by a clock that was"
                f" ahead; --to-index {index} restores to the last one that was stamped by then,"
                f" --to-index {by_producers} to the last one before messages that are newer by"
                " their producers' clocks"
            )
    return Moment(index, next_ms)


@dataclass(slots=True)
class _Late:
    """The last frames, while they were made too late."""

    first: int = 0  # index of the first
    count: int = 0
    _sure: int = 0

    def see(self, index: int, late: bool) -> None:
        if late:
            self.first, self._sure = self.first or index, 0
            self.count += 1
        else:
            self._sure += 1
            if self._sure >= SURE_MIN:
                self.first = self.count = 0


class _Producers:
    """Frames' creation times by the clocks of their producers.

    A message's birth counts only if it is the latest of its connection; the rest were delayed,
    retried or copied. A machine's skew is the most frequent difference of its births from the
    stamps. Only moving stamps are compared."""

    def __init__(self) -> None:
        self._latest: dict[bytes, int] = {}  # last birth by born host
        self._skews: dict[bytes, Counter[int]] = {}  # frequencies of skews by address
        self._stamp_ms = 0

    def made_ms(self, frame: Frame) -> int | None:
        """Return the creation time of the frame, or None. Call it in order of frames."""
        moves, self._stamp_ms = frame.timestamp_ms > self._stamp_ms, frame.timestamp_ms
        times = []
        for born_host, born_ms in self._fresh(frame):
            address = born_host[:-PORT_SIZE_BYTES]
            times.append(born_ms - self._skew_ms(address))
            if moves:
                self._note(address, born_ms - frame.timestamp_ms)
        return median_low(times) if times else None

    def _fresh(self, frame: Frame) -> Iterator[tuple[bytes, int]]:
        """Yield born host and birth of messages that are the latest of their connections."""
        data = frame.data
        for at, _ in islice(walk_records(data, check_body=False), RECORDS_MAX):
            born_host, born_ms = born_host_at(data, at), born_timestamp_at(data, at)
            latest = self._latest.get(born_host)
            if latest is None and len(self._latest) >= NAMED_MAX:
                self._latest.clear()
            if latest is None or born_ms > latest:
                self._latest[born_host] = born_ms
                if latest is not None:  # a connection's first message may be a copy
                    yield born_host, born_ms

    def _note(self, address: bytes, skew_ms: int) -> None:
        if len(self._skews) >= NAMED_MAX and address not in self._skews:
            self._skews.clear()
        skews = self._skews.setdefault(address, Counter())
        if len(skews) >= SKEWS_MAX:
            skews.clear()
        skews[round(skew_ms / SKEW_MS)] += 1

    def _skew_ms(self, address: bytes) -> int:
        skews = self._skews.get(address)
        if skews is None or skews.total() < SKEW_MIN:
            return 0  # most clocks are right
        return max(skews, key=skews.__getitem__) * SKEW_MS
