"""Which frame was a log's last one at some moment. Pure.

A frame is stamped by its leader's clock, and no stamp is below one before it. So while a clock was
ahead, be it for a second, its stamp is that of all frames until the time has come that it said; and
while a clock was behind, the last right stamp is that of all frames. A moment in between cannot be
told by the stamps. What speaks against them then: frames stamped later than the backup was taken,
tables that were there already, and messages of one stamp that producers had made before the moment,
though it is later, or after it, though it is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raftmq.broker.backup.manifest import BackupError, Manifest, iso
from raftmq.store.frame import Frame
from raftmq.store.record import born_timestamp_at, walk_records

APART_MS = 60_000  # clocks that differ by less count as one
DOUBTED_MIN = 2  # a single frame may be of messages that were delayed


@dataclass(frozen=True, slots=True)
class Moment:
    """The frame that was the last one, and the stamp of the next one (None: there is none)."""

    index: int
    next_ms: int | None


def last_by(frames: Iterable[Frame], manifest: Manifest, time_ms: int) -> Moment:
    """Return the last frame stamped at or before `time_ms`. `frames`: all of the backup's. Raises
    BackupError if the stamps behind it are no times."""
    index, next_ms = manifest.first_index - 1, None
    by_producers = index  # the last one before messages that were born later
    stamp_ms, same = 0, 0  # of the frame before, and how many of one stamp were born before
    doubted = 0  # the most of them
    newer = 0  # the first frame of the last stamp whose messages were all born later
    for frame in frames:
        again = frame.timestamp_ms == stamp_ms
        stamp_ms = frame.timestamp_ms
        if next_ms is None and stamp_ms <= time_ms:
            index = by_producers = frame.index
            if not again:
                newer = 0
            elif not newer and min(_births_ms(frame), default=0) > time_ms + APART_MS:
                newer = frame.index
            continue
        next_ms = next_ms or stamp_ms
        born_ms = max(_births_ms(frame), default=None)
        if born_ms is not None and born_ms > time_ms:
            break
        by_producers = frame.index
        same = (same if again else 0) + (born_ms is not None)
        doubted = max(doubted, same)
    if newer:
        raise BackupError(
            f"which frame was the last one at {iso(time_ms)} is not known: the frames from {newer}"
            f" to {index} are stamped as if they were older, by a clock that was behind;"
            f" --to-index {newer - 1} restores to the last one before messages that are newer by"
            f" their producers' clocks, --to-index {index} to the last one that was stamped by then"
        )
    if next_ms is not None:
        there = max(
            (s.index for s in manifest.states if s.time_ms + APART_MS <= time_ms), default=0
        )
        stands_still = doubted >= DOUBTED_MIN and next_ms > time_ms + APART_MS
        is_future = by_producers > index and next_ms > manifest.taken_ms + APART_MS
        if there > index or stands_still or is_future:
            raise BackupError(
                f"which frame was the last one at {iso(time_ms)} is not known: the one behind frame"
                f" {index} is stamped {iso(next_ms)}, and so are later ones, by a clock that was"
                f" ahead; --to-index {index} restores to the last one that was stamped by then,"
                f" --to-index {by_producers} to the last one before messages that are newer by"
                " their producers' clocks"
            )
    return Moment(index, next_ms)


def _births_ms(frame: Frame) -> list[int]:
    """Return when its messages were born."""
    data = frame.data
    return [born_timestamp_at(data, at) for at, _ in walk_records(data, check_body=False)]
