"""Where does the log end? Recovery of both flavours of CommitLog.

Raft flavour. `walk_frames` goes from frame header to frame header; `recover_frames` checks them
from the first segment to the end, hands each to a callback (the Raft log builds its index from
it: one pass does both), and settles the log behind the last good frame. Of old segments it
verifies the headers only, 60 bytes a frame with a CRC of their own, and that they continue each
other; from `verify_from` on also each payload's CRC. `verify_from` is the third last segment, or
the one that holds the durable hint if that is earlier, since a power cut tears nothing below.

A bad frame is one of two things:
- below the durable hint (bytes that once were durable): damage. StoreDamaged, nothing is cut.
- at or above it: a tail that was written, never synced and therefore never acknowledged. Pages
  reach the disk in any order, so good frames may stand behind the hole: all of it is cut.
The hint is the CommitLog's durable mark, exact after a kill; see store.checkpoint.

Classic flavour (protocol sheet, section 8). After a clean stop the last three segments are
scanned; after an unclean one everything from the last segment whose first record is three seconds
older than the checkpoint. The log is cut at the first bad record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google_crc32c import value as crc32c

from store.checkpoint import CheckpointFields
from store.commitlog import CommitLog
from store.errors import StoreDamaged
from store.frame import (
    FRAME_MAGIC,
    HEADER_SIZE_BYTES,
    PAYLOAD_SIZE_BYTES_MAX,
    FrameError,
    parse_header,
)
from store.record import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_BYTES_MAX,
    StopReason,
    store_timestamp_at,
    walk_records,
)

RECOVERY_SEGMENTS = 3  # scanned whole, as Apache's brokers do
CLOCK_SLACK_MS = 3000  # how much older than the checkpoint "surely durable" is
_WINDOW_BYTES = 1 << 18  # read ahead where payloads are verified
_HEADERS_WINDOW_BYTES = 1 << 14  # and where only headers are: some fifty small frames a read
_CLASSIC_WINDOW_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """A frame as its header tells it; field meanings in store.frame."""

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

    @property
    def payload_position(self) -> int:
        return self.position + HEADER_SIZE_BYTES


@dataclass(frozen=True, slots=True)
class RecoveredFrames:
    """`end_offset`: behind the last good frame, where the log was cut. `torn`: why something was
    cut there, None if only zeros stood behind. `last`: the last frame, None in an empty log."""

    end_offset: int
    torn: str | None
    first: FrameHeader | None
    last: FrameHeader | None


@dataclass(frozen=True, slots=True)
class RecoveredRecords:
    """`end_offset` as above; records from `dispatch_from` on may lack consume-queue units."""

    end_offset: int
    dispatch_from: int
    torn: str | None


class _Window:
    """Bytes of the log through one read-ahead buffer."""

    def __init__(self, commitlog: CommitLog) -> None:
        self._commitlog = commitlog
        self._start = 0
        self._data = b""
        self.ahead_bytes = _WINDOW_BYTES

    def get(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`, shorter where the segment or the log ends."""
        begin = offset - self._start
        if begin < 0 or begin + size > len(self._data):
            self._start, begin = offset, 0
            self._data = self._commitlog.read(offset, max(size, self.ahead_bytes))
        return self._data[begin : begin + size]


class FrameWalk:
    """Iterate once for a FrameHeader of every frame from `from_offset` to `to_offset`.

    After the iteration `end` is the offset behind the last good frame, `bad_position` where
    something else begins, and `reason` says what (None: zeros, or the end asked for).
    A frame must stand where it says, carry the next index and no smaller term.
    """

    def __init__(
        self,
        commitlog: CommitLog,
        from_offset: int,
        to_offset: int | None = None,
        verify_from: int | None = None,
    ) -> None:
        self._commitlog = commitlog
        self._to = commitlog.max_offset if to_offset is None else to_offset
        self._verify_from = verify_from  # payload CRCs from here on; None: none
        self._window = _Window(commitlog)
        self.end = from_offset
        self.bad_position = from_offset
        self.reason: str | None = None
        self.last: FrameHeader | None = None

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
        """The frame at `position`; None if there is none and that is nothing bad (blank, zeros).

        Raises FrameError."""
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
        _, _, index, term, told, timestamp_ms, length, count, kind, payload_crc, _ = fields
        header = FrameHeader(index, term, told, timestamp_ms, length, count, kind, payload_crc)
        if told != position:
            raise FrameError(f"frame says it stands at {told}")
        last = self.last
        if last is not None and (index != last.index + 1 or term < last.term):
            raise FrameError(f"frame {index}@{term} does not follow {last.index}@{last.term}")
        if position + header.size_bytes > self._commitlog.segment_end(position):
            raise FrameError("frame goes beyond its segment")
        if verify:
            payload = self._window.get(position + HEADER_SIZE_BYTES, length)
            if len(payload) < length or crc32c(payload) != payload_crc:
                raise FrameError("frame payload CRC does not match")
        return header

    def _next_segment(self, position: int) -> int | None:
        """Where to go on after a blank record or zeros: None if that is the end of the log."""
        head = self._window.get(position, 8)
        segment_end = self._commitlog.segment_end(position)
        if len(head) == 8 and BLANK.unpack(head)[1] == MAGIC_BLANK:
            if BLANK.unpack(head)[0] != segment_end - position:
                self.reason = "blank record of a wrong size"
                return None
            return segment_end
        # Zeros. Behind them there must be nothing, neither here nor in the next segment.
        if segment_end < self._to and any(self._window.get(segment_end, HEADER_SIZE_BYTES)):
            self.reason = "zeros, and frames in the next segment"
        elif any(self._window.get(position, _WINDOW_BYTES)):
            self.reason = "zeros, and something behind them"
        return None


def walk_frames(commitlog: CommitLog, from_offset: int, to_offset: int | None = None) -> FrameWalk:
    """Iterate over the frame headers from `from_offset`, which must be the first byte of a frame,
    of a segment or of a blank record. Payloads are not read. Never raises for what it finds:
    FrameWalk.reason tells it."""
    return FrameWalk(commitlog, from_offset, to_offset)


def recover_frames(
    commitlog: CommitLog,
    durable_hint: int | None = None,
    on_frame: Callable[[FrameHeader], None] | None = None,
) -> RecoveredFrames:
    """Find the end of a Raft log, cut what is torn, and settle the CommitLog there. Blocking.

    `on_frame` sees every good frame in order. The hint is the larger of `durable_hint` and the
    log's own mark. On a log already settled it only walks. Raises StoreDamaged, having cut
    nothing, or OSError.
    """
    hint = max(durable_hint or 0, commitlog.durable_hint)
    segments = commitlog.segments()
    if not segments:
        if hint > commitlog.max_offset:
            raise StoreDamaged(commitlog.max_offset, f"no segments; durable up to {hint} once")
        return RecoveredFrames(commitlog.max_offset, None, None, None)
    verify_from = segments[-min(RECOVERY_SEGMENTS, len(segments))].start
    verify_from = min([verify_from, *(s.start for s in segments if s.end > hint)])
    walk = FrameWalk(commitlog, commitlog.min_offset, None, verify_from)
    first = None
    for header in walk:
        first = first or header
        if on_frame is not None:
            on_frame(header)
    # A blank record ends no frame: with only it between, `bad_position` is the next segment.
    if walk.end < hint and walk.bad_position < hint:
        raise StoreDamaged(walk.bad_position, walk.reason or f"ends; durable up to {hint} once")
    if not commitlog.settled:
        commitlog.settle(walk.end)
    return RecoveredFrames(walk.end, walk.reason, first, walk.last)


def recover_records(
    commitlog: CommitLog, checkpoint: CheckpointFields, *, clean: bool
) -> RecoveredRecords:
    """Find the end of a classic log, cut it at the first bad record and settle it. Blocking.

    Raises OSError."""
    segments = commitlog.segments()
    if not segments:
        return RecoveredRecords(commitlog.max_offset, commitlog.max_offset, None)
    if clean:
        start = segments[-min(RECOVERY_SEGMENTS, len(segments))].start
    else:
        start = _surely_durable(commitlog, checkpoint)
    end, torn = _scan_records(commitlog, start)
    if torn is not None and end < commitlog.durable_hint:
        # Section 8 cuts here all the same; at least nobody shall take it for a torn tail.
        torn += f" (once durable up to {commitlog.durable_hint})"
    commitlog.settle(end)
    return RecoveredRecords(end, end if clean else start, torn)


def _surely_durable(commitlog: CommitLog, checkpoint: CheckpointFields) -> int:
    """Start of the last segment whose first record is old enough; else of the first segment."""
    newest = min(checkpoint.physic_timestamp_ms, checkpoint.logics_timestamp_ms) - CLOCK_SLACK_MS
    for segment in reversed(commitlog.segments()):
        head = commitlog.read(segment.start, 88)
        if len(head) < 88 or BLANK.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2):
            continue
        if 0 < store_timestamp_at(head, 0) <= newest:
            return segment.start
    return commitlog.min_offset


def _scan_records(commitlog: CommitLog, start: int) -> tuple[int, str | None]:
    """(offset behind the last good record, what is bad there or None for zeros)."""
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
        elif walk.stop is StopReason.ZEROS:
            return end, None
        elif walk.stop is StopReason.END_OF_BUFFER and walk.end:
            window = _CLASSIC_WINDOW_BYTES
        elif walk.stop is StopReason.CUT_SHORT and position - walk.end + len(data) < segment_end:
            if not walk.end and window > RECORD_SIZE_BYTES_MAX:
                return end, walk.detail
            window = RECORD_SIZE_BYTES_MAX + 1 if not walk.end else _CLASSIC_WINDOW_BYTES
        else:
            return end, walk.detail or walk.stop.value
    return end, None


assert PAYLOAD_SIZE_BYTES_MAX >= _WINDOW_BYTES
