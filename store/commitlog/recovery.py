"""Recovery: finds the end of a CommitLog, in Raft mode and in classic mode.

Raft mode: `FrameWalk` goes from frame header to frame header. `FrameRecovery` checks the frames
from the first segment to the end, passes each to a callback (the Raft log builds its index in the
same pass), and settles the log behind the last good frame. In old segments it verifies only the
headers, 60 bytes per frame with their own CRC, and their continuity. From `verify_from` on it also
verifies the payload CRCs. `verify_from` is the earliest of three segments, the third last; that of
the durable hint, because a power cut tears nothing below; and that of the committed end, because
frames that only this replica has cannot be fetched from a peer.

A bad frame is one of two things:
- Damage, if it is below the durable hint, that is, once durable. Nothing is truncated.
  `FrameRecovery` stops, accepts the right frames (`patch`) and continues, until the log is
  recovered or its owner drops everything behind the good part (`truncate`).
- A torn tail, at or above the hint: written, never synced and never acknowledged. Pages reach the
  disk in any order, so good frames may follow the hole. All of the tail is truncated.

The hint is the CommitLog's durable mark, exact after a kill (store.checkpoint). If the mark itself
is damaged, everything bad counts as damage. The mark is raised durably before changes that a start
after a kill would mistake for a torn tail, that is, when a missing segment is restored as zeros,
and when a patch leaves in doubt whether the intact frame behind it belongs there. The start of that
frame is overwritten also, or the next walk would accept it.

Classic mode follows RocketMQ's recoverNormally and recoverAbnormally. After a clean stop the last
three segments are scanned. After an unclean stop the scan starts at the last segment with a first
record three seconds older than the checkpoint. The log is truncated at the first bad record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from errno import EIO

from google_crc32c import value as crc32c

from ..checkpoint import CheckpointFields
from ..frame import (
    FRAME_MAGIC,
    HEADER_SIZE_BYTES,
    PAYLOAD_SIZE_BYTES_MAX,
    Frame,
    FrameError,
    parse_header,
)
from ..record import (
    BLANK,
    BLANK_SIZE_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_BYTES_MAX,
    StopReason,
    store_timestamp_at,
    walk_records,
)
from .commitlog import CommitLog

RECOVERY_SEGMENTS = 3  # scanned whole, as Apache's brokers do
CLOCK_SLACK_MS = 3000  # records this much older than the checkpoint are durable
_WINDOW_BYTES = 1 << 18  # read-ahead for payloads
_HEADERS_WINDOW_BYTES = 1 << 14  # read-ahead for headers, some fifty small frames
_CLASSIC_WINDOW_BYTES = 1 << 22
_NO_FRAME = b"\xff" * BLANK_SIZE_BYTES  # neither a frame, nor a blank record, nor zeros


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fields of a frame's header (store.frame)."""

    index: int
    term: int
    position: int
    timestamp_ms: int
    payload_length: int
    record_count: int
    kind: int
    payload_crc: int

    @property
    def size_bytes(self) -> int:
        return HEADER_SIZE_BYTES + self.payload_length

    @property
    def end(self) -> int:
        return self.position + HEADER_SIZE_BYTES + self.payload_length


@dataclass(frozen=True, slots=True)
class FrameDamage:
    """The end of a Raft log's good part, although more was durable once. `position` is the start of
    the bad bytes. The frame behind `last` (None: the log's first frame) belongs at `end`, or at the
    next segment's start if a blank record belongs at `end`. `header` is the frame's header if only
    the payload is damaged."""

    position: int
    end: int
    reason: str
    last: FrameHeader | None
    header: FrameHeader | None


class _Window:
    """Reads bytes of the log through a read-ahead buffer."""

    def __init__(self, commitlog: CommitLog) -> None:
        self._commitlog = commitlog
        self._start = 0
        self._data = b""
        self.ahead_bytes = _WINDOW_BYTES

    def get(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer at the end of the segment or the log."""
        at = offset - self._start
        if at < 0 or at + size > len(self._data):
            self._start, at = offset, 0
            self._data = self._commitlog.read(offset, max(size, self.ahead_bytes))
        return self._data[at : at + size]


class FrameWalk:
    """Iterates once over the headers of the frames from `from_offset` to `to_offset`. After the
    iteration, `end` is behind the last good frame, `bad_position` is the start of anything else,
    and `reason` describes it (None: zeros, or `to_offset` is reached). A frame must have its own
    position, the next index and no smaller term."""

    def __init__(
        self,
        commitlog: CommitLog,
        from_offset: int,
        to_offset: int | None = None,
        verify_from: int | None = None,
        last: FrameHeader | None = None,
        first_index: int | None = None,
    ) -> None:
        """`last` is the frame before `from_offset`; else `first_index` is required (None: any)."""
        self._commitlog = commitlog
        self._to = commitlog.max_offset if to_offset is None else to_offset
        self._verify_from = verify_from  # payload CRCs from here on; None for no payload
        self._window = _Window(commitlog)
        self.end = from_offset
        self.bad_position = from_offset
        self.reason: str | None = None
        self.last = last
        self._first_index = first_index
        self.bad_header: FrameHeader | None = None  # at `bad_position`, if only its payload is bad

    def __iter__(self) -> Iterator[FrameHeader]:
        position = self.end
        while position < self._to:
            self.bad_position = position
            verify = self._verify_from is not None and position >= self._verify_from
            self._window.ahead_bytes = _WINDOW_BYTES if verify else _HEADERS_WINDOW_BYTES
            try:
                header = self._parse(position, verify)
            except FrameError as error:
                self.reason = error.reason
                return
            if header is None:
                following = self._next_segment(position)
                if following is None:
                    return
                position = following
                continue
            self.last = header
            self.end = self.bad_position = position = header.end
            yield header

    def _parse(self, position: int, verify: bool) -> FrameHeader | None:
        """Return the frame at `position`; None for a valid blank or zeros. Raises FrameError."""
        head = self._window.get(position, HEADER_SIZE_BYTES)
        if len(head) < HEADER_SIZE_BYTES or int.from_bytes(head[4:8], "big", signed=True) != (
            FRAME_MAGIC
        ):
            if len(head) >= 8 and BLANK.unpack_from(head)[1] == MAGIC_BLANK:
                return None
            if not any(head):
                return None
            raise FrameError("not a frame")
        fields = parse_header(head)
        _, _, index, term, stored_at, timestamp_ms, length, count, kind, payload_crc, _ = fields
        header = FrameHeader(index, term, stored_at, timestamp_ms, length, count, kind, payload_crc)
        if stored_at != position:
            raise FrameError(f"frame says it stands at {stored_at}")
        last = self.last
        if last is not None and (index != last.index + 1 or term < last.term):
            raise FrameError(f"frame {index}@{term} does not follow {last.index}@{last.term}")
        if last is None and self._first_index not in (None, index):
            raise FrameError(f"frame {index} where {self._first_index} is the first")
        if position + header.size_bytes > self._commitlog.segment_end(position):
            raise FrameError("frame goes beyond its segment")
        if verify:
            payload = self._window.get(position + HEADER_SIZE_BYTES, length)
            if len(payload) < length or crc32c(payload) != payload_crc:
                self.bad_header = header
                raise FrameError("frame payload CRC does not match")
        return header

    def _next_segment(self, position: int) -> int | None:
        """Return the position after a blank record or zeros; None if the log ends there."""
        head = self._window.get(position, 8)
        segment_end = self._commitlog.segment_end(position)
        if len(head) == 8 and BLANK.unpack(head)[1] == MAGIC_BLANK:
            if BLANK.unpack(head)[0] != segment_end - position:
                self.reason = "blank record of a wrong size"
                return None
            return segment_end
        # Zeros: nothing may follow them, neither here nor in the next segment.
        if segment_end < self._to and any(self._window.get(segment_end, HEADER_SIZE_BYTES)):
            self.reason = "zeros, and frames in the next segment"
        elif any(self._window.get(position, _WINDOW_BYTES)):
            self.reason = "zeros, and something behind them"
        return None


class FrameRecovery:
    """Finds the end of a Raft log and stops at each damaged position. Blocking; for a single
    caller. Call `run`, then `patch` while they return damage, or `truncate`. When a call returns
    None, the log is settled and ends at `end`. `on_frame` gets every good frame once, in order."""

    def __init__(
        self,
        commitlog: CommitLog,
        durable_hint: int = 0,
        on_frame: Callable[[FrameHeader], None] | None = None,
        first_index: int | None = None,
    ) -> None:
        self._log = commitlog
        self._on_frame = on_frame
        self._first_index = first_index
        # The durable mark is not synced, so a power cut may have set it back. A missing segment
        # before existing segments was also durable.
        self.hint = max(durable_hint, commitlog.durable_hint, commitlog.restored_end)
        self.end = commitlog.min_offset  # behind the last good frame
        self.last: FrameHeader | None = None
        self.damage: FrameDamage | None = None
        # the reason that something behind `end` was truncated; None for zeros only
        self.torn: str | None = None
        segments = commitlog.segments()
        verify_from = [s.start for s in segments[-RECOVERY_SEGMENTS:]]
        verify_from += [s.start for s in segments if s.end > self.hint]
        # Frames that only this replica may have; no peer could supply them while it leads.
        verify_from += [s.start for s in segments if s.end > commitlog.committed_hint]
        self._verify_from = min(verify_from, default=0)

    def run(self) -> FrameDamage | None:
        """Continue from the last good frame; return damage, or None. Raises OSError."""
        log = self._log
        walk = FrameWalk(log, self.end, None, self._verify_from, self.last, self._first_index)
        for header in walk:
            self._take(header)
        # A blank record ends no frame; if only it is between, `bad_position` is the next segment.
        short = walk.end < self.hint and walk.bad_position < self.hint
        reason = walk.reason
        if log.mark_lost and reason is None and self._anything_behind(walk.bad_position):
            reason = "zeros, and something far behind them"
        if short or (log.mark_lost and reason is not None):
            reason = reason or f"ends; durable up to {self.hint} once"
            self.damage = FrameDamage(
                walk.bad_position, self.end, reason, self.last, walk.bad_header
            )
            return self.damage
        self._settle(walk.reason)
        return None

    def _anything_behind(self, position: int) -> bool:
        """Return whether any nonzero byte follows `position`, for a log without a mark. Reads all
        of the rest, which is little and sparse."""
        log = self._log
        while position < log.max_offset:
            data = log.read(position, _CLASSIC_WINDOW_BYTES)
            if data.count(0) < len(data):
                return True
            position += len(data)
        return False

    def patch(
        self, frames: Sequence[Frame], proven: bool, last: bool = False
    ) -> FrameDamage | None:
        """Write the right frames at the damage, make them durable, read them back, and continue.
        With `proven`, the frames behind them are known to follow them; otherwise those count as
        damaged. With `last`, nothing follows them, and the rest is truncated. Raises OSError."""
        assert self.damage is not None
        if frames and frames[0].end + BLANK_SIZE_BYTES > self._log.max_offset:
            self._log.extend()
        # Frames beyond everything that was durable here are not written, because the leader will
        # send them.
        there = [f for f in frames if f.end + BLANK_SIZE_BYTES <= self._log.max_offset]
        if not proven:
            self._disown(there[-1] if there else None, last)
        self._write(there)
        self.damage = None
        if proven:
            return self.run()
        if not last and (self.end < self.hint or self._log.mark_lost):
            reason = "not proven to follow what was patched before it"
            self.damage = FrameDamage(self.end, self.end, reason, self.last, None)
            return self.damage
        self._settle("not proven to follow what was patched, and never known durable")
        return None

    def _disown(self, before: Frame | None, last: bool) -> None:
        """Overwrite the start of an intact frame behind `before`, the last patched frame. It may
        not follow that frame, but would seem to after a kill. A power cut may have set the durable
        mark back below this durable frame, so the mark is raised first."""
        position, index = (before.end, before.index) if before else (self.end, 0)
        header = self.neighbour(position)
        if before is None or header is None or header.index != index + 1:
            return
        if not last:
            durable = header.position + HEADER_SIZE_BYTES
            self._log.raise_hint(durable)
            self.hint = max(self.hint, durable)
        self._overwrite(position, _NO_FRAME)

    def _write(self, frames: Sequence[Frame]) -> None:
        log, position = self._log, self.end
        run_start, run = position, list[bytes]()  # adjacent frames share a write
        taken: list[FrameHeader] = []
        for frame in frames:
            if frame.position != position:
                segment_end = log.segment_end(position)
                assert frame.position == segment_end, (frame, position)
                run.append(BLANK.pack(segment_end - position, MAGIC_BLANK))
                self._overwrite(run_start, b"".join(run))
                run_start, run = segment_end, []
            run.append(frame.data)
            taken.append(FrameHeader(*parse_header(frame.data)[2:10]))
            position = frame.end
        if run:
            self._overwrite(run_start, b"".join(run))
        for header in taken:
            self._take(header)

    def truncate(self) -> None:
        """Truncate everything behind the last good frame. Raises OSError."""
        assert self.damage is not None
        reason, self.damage = self.damage.reason, None
        self._settle(reason)

    def neighbour(self, position: int) -> FrameHeader | None:
        """Return the intact header that follows the frame ending at `position`: there, or at the
        next segment's start, since the blank record may also be damaged; None if there is none."""
        log = self._log
        for at in (position, log.segment_end(position)):
            if at < log.max_offset:
                try:
                    fields = parse_header(log.read(at, HEADER_SIZE_BYTES))
                except FrameError:
                    continue
                header = FrameHeader(*fields[2:10])
                return header if header.position == at else None
        return None

    def _take(self, header: FrameHeader) -> None:
        self.last = header
        self.end = header.end
        if self._on_frame is not None:
            self._on_frame(header)

    def _overwrite(self, position: int, data: bytes) -> None:
        log = self._log
        ticket = log.patch(position, data)
        ticket.run()
        log.finish_sync(ticket)
        if log.read(position, len(data)) != data:
            raise OSError(EIO, f"{len(data)} bytes written at {position} read back differently")

    def _settle(self, torn: str | None) -> None:
        if not self._log.settled:
            self._log.settle(self.end)
        self.torn = torn


def recover_records(commitlog: CommitLog, checkpoint: CheckpointFields, *, clean: bool) -> int:
    """Find the end of a classic log, truncate it at the first bad record and settle it. Blocking.
    Return the offset from which records may have no ConsumeQueue entries. Raises OSError."""
    segments = commitlog.segments()
    if not segments:
        return commitlog.max_offset
    if clean:
        start = segments[-min(RECOVERY_SEGMENTS, len(segments))].start
    else:
        start = _durable_start(commitlog, checkpoint)
    end = _end_of_records(commitlog, start)
    # Even if the log was durable up to a later offset, since classic mode has no peer to ask.
    commitlog.settle(end)
    return end if clean else start


def _durable_start(commitlog: CommitLog, checkpoint: CheckpointFields) -> int:
    """Return the last segment whose first record is old enough to be durable, or the first."""
    newest = min(checkpoint.physic_timestamp_ms, checkpoint.logics_timestamp_ms) - CLOCK_SLACK_MS
    for segment in reversed(commitlog.segments()):
        head = commitlog.read(segment.start, 88)
        if len(head) < 88 or BLANK.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
            continue
        if 0 < store_timestamp_at(head, 0) <= newest:
            return segment.start
    return commitlog.min_offset


def _end_of_records(commitlog: CommitLog, start: int) -> int:
    position = end = start
    window = _CLASSIC_WINDOW_BYTES
    while position < commitlog.max_offset:
        data = commitlog.read(position, window)
        segment_end = commitlog.segment_end(position)
        walk = walk_records(data, position)
        count = sum(1 for _ in walk)
        position += walk.end
        if count:
            end = position
        if walk.stop is StopReason.BLANK:
            position = segment_end
        elif walk.stop is StopReason.END_OF_BUFFER and walk.end:
            window = _CLASSIC_WINDOW_BYTES
        elif walk.stop is StopReason.TRUNCATED and position - walk.end + len(data) < segment_end:
            if not walk.end and window > RECORD_SIZE_BYTES_MAX:
                return end
            window = RECORD_SIZE_BYTES_MAX + 1 if not walk.end else _CLASSIC_WINDOW_BYTES
        else:
            return end
    return end


assert PAYLOAD_SIZE_BYTES_MAX >= _WINDOW_BYTES
