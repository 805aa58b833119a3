"""The Raft log, in the files of the CommitLog. A frame is an entry, at the position in its header.

Keeps a `LogIndex` in step with the file, and the latest frames in memory, so that replication and
apply read the file only for replicas that are far behind. Frames read from the file are verified
again (both checksums).

**Damage.** At start `recover` stops at each damaged place. `repair` writes the frames that belong
there; `cut_damaged` truncates the log there. A later read of a bad frame calls the function given
to `tell_damage` and raises FrameDamaged; `overwrite` writes the frame in its place again.

**Durability** is by ticket, as in the CommitLog: `start_sync` on the loop, `ticket.run()` in a
thread, `finish_sync` on the loop. A truncation in between invalidates the ticket, and the next sync
proves durability.

**Retention** removes the frames below a position. The first remaining index, the term before it and
the new start of the log are kept in a `SlotFile`, because no file of the log has them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from errno import EIO
from typing import NamedTuple

from raftmq.store.commitlog.commitlog import CommitLog
from raftmq.store.commitlog.log_sync import SyncTicket
from raftmq.store.commitlog.recovery import FrameHeader, FrameRecovery
from raftmq.store.errors import StoreDamaged
from raftmq.store.frame import (
    HEADER_SIZE_BYTES,
    Frame,
    FrameError,
    FrameKind,
    is_valid_frame,
    parse_frame,
)
from raftmq.store.record import BLANK, MAGIC_BLANK
from raftmq.store.transient_errors import passes

from ..raft.errors import FrameDamaged
from ..raft.log_index import LogIndex
from ..raft.repair import DamagedFrame
from .two_slot_file import SlotFile

CACHE_BYTES_MAX = 8 << 20  # what the core keeps in flight to a peer
READ_BYTES_MAX = 4 << 20  # per read of the file; a larger frame is read alone
_NO_CACHE = 1 << 62  # above every index, so that reads use the file until the log is open
_TRIM = struct.Struct(">qqq")  # first index, term before it, start of the log


def trim_note(first_index: int, previous_term: int, start: int) -> bytes:
    """Return the trim file's content for a log that starts at byte `start` with frame
    `first_index`, behind a frame of `previous_term`."""
    return _TRIM.pack(first_index, previous_term, start)


def read_trim_note(content: bytes) -> tuple[int, int, int]:
    """Return the arguments of `trim_note`: (first_index, previous_term, start)."""
    first_index, previous_term, start = _TRIM.unpack(content)
    return first_index, previous_term, start


class Trim(NamedTuple):
    """The part of a log that retention removes, which is frames before index `first`, segments
    before offset `start`. `note` is the trim file's content."""

    first: int
    start: int
    note: bytes


class LogSyncTicket:
    """A pending fdatasync of the log: `run` it in a thread, then pass it to `finish_sync`."""

    __slots__ = ("_ticket", "epoch", "last_index")

    def __init__(self, ticket: SyncTicket, last_index: int, epoch: int) -> None:
        self._ticket = ticket
        self.last_index = last_index
        self.epoch = epoch

    def run(self) -> None:
        """Run the fdatasync. Blocking. After an OSError its frames can never count as durable."""
        self._ticket.run()


class RaftLog:
    """The Raft log. For a single caller (the loop), except `LogSyncTicket.run`."""

    def __init__(
        self,
        commitlog: CommitLog,
        trim: SlotFile | None = None,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        """Without a `trim` file, retention cannot delete from the log."""
        self.commitlog = commitlog
        self.index = LogIndex()
        self.durable_index = 0
        self._trim = trim
        self._cache: dict[int, Frame] = {}  # contiguous: _cache_first .. last_index
        self._cache_first = 1
        self._cache_bytes = 0
        self._cache_bytes_max = cache_bytes_max
        self.epoch = 0  # number of truncations
        self.reads_from_file = 0  # stays as it is in the steady state
        self._on_damage: Callable[[FrameDamaged], None] | None = None
        self.configuration_indexes: list[int] = []  # frames of that kind, as `recover` found them
        self._recovery: FrameRecovery | None = None  # until the log is open
        self._first = 1  # start of the log, as retention noted it
        self._previous_term = 0
        self._noted = False  # the trim file exists

    # -- recovery -----------------------------------------------------------------------------

    def open(self) -> None:
        """Recover without repair. Raises StoreDamaged, and truncates nothing then."""
        damage = self.recover()
        if damage is not None:
            assert self._recovery is not None and self._recovery.damage is not None
            raise StoreDamaged(damage.position, self._recovery.damage.reason)

    def recover(self) -> DamagedFrame | None:
        """Build the index from the frames of an open CommitLog. Blocking. All frames are durable
        afterwards.

        A torn tail is truncated. Returns None if the log is open then, otherwise the first frame
        that is damaged although it was durable; continue with `repair` or `cut_damaged`. Raises
        OSError, SlotsDamaged."""
        log = self.commitlog
        assert log.settled or log.segments(), "the CommitLog is not open"
        start = 0
        noted = None if self._trim is None else self._trim.load()
        self._noted = noted is not None
        if noted is not None:
            self._first, self._previous_term, start = read_trim_note(noted)
            log.restore_front(start)
            log.delete_before(start)  # killed between note and removal
            if not log.segments() and start > log.min_offset:
                log.start_at(start)  # after a snapshot install (dledger.snapshot.marker)
        elif log.segments() or log.durable_hint:
            log.restore_front(start)
        self.index = LogIndex(self._first, self._previous_term, log.min_offset)
        self._cache_first = _NO_CACHE
        self._recovery = FrameRecovery(log, 0, self._add, self._first)
        self._recovery.run()
        return self._recovered()

    def repair(
        self, frames: Sequence[Frame], proven: bool, last: bool = False
    ) -> DamagedFrame | None:
        """Write these frames durably where the damage starts, and continue to recover, as `recover`
        does.

        With `proven` the intact frames behind them follow them, with `last` nothing follows.
        Blocking."""
        assert self._recovery is not None
        self._recovery.patch(frames, proven, last)
        return self._recovered()

    def cut_damaged(self) -> None:
        """Truncate the log at the damage, and open it. Blocking."""
        assert self._recovery is not None
        self._recovery.truncate()
        assert self._recovered() is None

    @property
    def is_open(self) -> bool:
        """True if the log is recovered to its end."""
        return self._recovery is None

    @property
    def may_lack_its_end(self) -> bool:
        """True if segments may be missing from the log's end without a trace, because the note of
        its durable end is lost."""
        return self.commitlog.mark_was_lost

    @property
    def damage_reason(self) -> str:
        """The reason why `recover` stopped; empty once the log is open."""
        recovery = self._recovery
        return recovery.damage.reason if recovery is not None and recovery.damage else ""

    def _add(self, header: FrameHeader) -> None:
        if header.index == self._first:
            self.index = LogIndex(self._first, self._previous_term, header.position)
        self.index.add(header.index, header.term, header.position, header.size_bytes)
        if header.kind == FrameKind.CONFIGURATION:
            self.configuration_indexes.append(header.index)

    def _recovered(self) -> DamagedFrame | None:
        recovery = self._recovery
        assert recovery is not None
        index, damage = self.index, recovery.damage
        if damage is not None:
            header = damage.header
            if header is not None:
                term, position, size_bytes = header.term, header.position, header.size_bytes
            else:
                term, position, size_bytes = 0, damage.end, 0
            return DamagedFrame(index.last_index + 1, index.last_term, term, position, size_bytes)
        self._recovery = None
        self._cache_first = index.last_index + 1
        ticket = self.commitlog.start_sync()
        if ticket is not None:
            ticket.run()
            self.commitlog.finish_sync(ticket)
        self.durable_index = index.last_index
        self._reserve_note()
        return None

    def _reserve_note(self) -> None:
        """Create the trim file early, since on a full disk it could not be created, and nothing
        could be deleted."""
        if self._trim is None or self._noted:
            return
        try:
            start = self.commitlog.min_offset
            self._trim.save(trim_note(self._first, self._previous_term, start))
        except OSError as error:
            if not passes(error):
                raise

    # DamagedLog, for dledger.raft.repair

    def segment_end(self, position: int) -> int:
        """Return the offset behind the segment of `position`."""
        return self.commitlog.segment_end(position)

    def following(self, position: int) -> tuple[int, int] | None:
        """Return (index, term) of the frame with an intact header behind a frame that ends at
        `position`, or None. Only until the log is open."""
        assert self._recovery is not None
        header = self._recovery.neighbour(position)
        return None if header is None else (header.index, header.term)

    # -- reading ------------------------------------------------------------------------------

    @property
    def last_index(self) -> int:
        """The last written frame; `first_index - 1` without frames."""
        return self.index.last_index

    def frames(self, first: int, last: int, bytes_max: int | None = None) -> tuple[Frame, ...]:
        """Return frames first..last, or none if first > last. The list ends early, after at least
        one frame, at `bytes_max` or before a damaged frame. Raises FrameDamaged for frame `first`.
        """
        if first > last:
            return ()
        if first == last and first >= self._cache_first:
            return (self._cache[first],)
        if bytes_max is not None:
            last = min(last, self.index.last_within(first, bytes_max))
        if first >= self._cache_first:
            cache = self._cache
            return tuple([cache[i] for i in range(first, last + 1)])
        frames: list[Frame] = []
        in_file = min(last, self._cache_first - 1)
        while first <= in_file:
            run, damage = self._read_run(first, in_file)
            frames += run
            first += len(run)
            if damage is not None:
                if frames:
                    return tuple(frames)
                raise damage
        frames += [self._cache[i] for i in range(first, last + 1)]
        return tuple(frames)

    def header_crc(self, index: int) -> int | None:
        """Return the checksum of frame `index`'s header; None if the frame is absent or damaged."""
        if not self.index.first_index <= index <= self.index.last_index:
            return None
        try:
            (frame,) = self.frames(index, index)
        except FrameDamaged:
            return None
        return frame.header_crc

    def _read_run(self, first: int, last: int) -> tuple[list[Frame], FrameDamaged | None]:
        """Read contiguous frames of a segment from `first` on. Return them, and the damage that
        ended the read or None."""
        index = self.index
        start = index.position_of(first)
        last = min(last, index.last_within(first, READ_BYTES_MAX))
        last = min(last, index.first_from(self.segment_end(start)) - 1)
        data = self._read(start, index.end_of(last) - start)
        self.reads_from_file += 1
        if not data:  # a bad sector fails the entire read
            last, data = first, self._read(start, index.size_of(first))
        frames: list[Frame] = []
        for at in range(first, last + 1):
            frame, reason = self._parse(at, data, index.position_of(at) - start)
            if frame is None:
                return frames, self.damaged(at, reason)
            frames.append(frame)
        return frames, None

    def tell_damage(self, mender: Callable[[FrameDamaged], None]) -> None:
        """Call `mender` for each damaged frame from now on, possibly repeatedly."""
        self._on_damage = mender

    @property
    def has_mender(self) -> bool:
        """True if `tell_damage` was called."""
        return self._on_damage is not None

    def check(self, index: int) -> FrameDamaged | None:
        """Read frame `index` from the file, past the cache; return its damage, or None."""
        log = self.index
        if not log.first_index <= index <= log.last_index:
            return None
        data = self._read(log.position_of(index), log.size_of(index))
        frame, reason = self._parse(index, data, 0)
        return self.damaged(index, reason) if frame is None else None

    def frame_is_damaged(self, position: int) -> bool:
        """Return whether the frame at this CommitLog offset is damaged, which starts its repair.
        False where nothing repairs frames, and before the log is open. Raises OSError."""
        if self._on_damage is None:
            return False
        return self.check(self.index.last_ending_by(position) + 1) is not None

    def checked(self, first: int, frames: Sequence[tuple[int, int, int]]) -> bytes:
        """Return the file's bytes of frames first.. of a segment. `frames` has the term, position
        and size of each (`LogIndex.spans`). Raises FrameDamaged if a checksum does not match,
        OSError."""
        start = frames[0][1]
        data = self.commitlog.read(start, frames[-1][1] + frames[-1][2] - start)
        for at, (term, position, size) in enumerate(frames, first):
            if not is_valid_frame(data, position - start, size, (at, term, position)):
                raise self.damaged(at, "its bytes do not fit its checksums")
        return data

    @property
    def memory_start(self) -> int:
        frame = self._cache.get(self._cache_first)
        return self.index.end_position if frame is None else frame.position

    def damaged(self, index: int, reason: str) -> FrameDamaged:
        """Return the error for a damaged frame, and report the damage."""
        damage = FrameDamaged(index, self.index.position_of(index), reason)
        if self._on_damage is not None:
            self._on_damage(damage)
        return damage

    def _parse(self, index: int, data: bytes, offset: int) -> tuple[Frame | None, str]:
        """Return frame `index`, parsed from bytes of the log, or None and the reason."""
        if not data:
            return None, "cannot be read"
        try:
            frame = parse_frame(data, offset)
        except FrameError as error:
            return None, error.reason
        log = self.index
        if (frame.index, frame.term, frame.position) != (
            index,
            log.term_at(index),
            log.position_of(index),
        ):
            return None, f"{frame!r} where frame {index} was written"
        return frame, ""

    def _read(self, position: int, size: int) -> bytes:
        """Read the file. Return b"" for an unreadable sector (EIO), which is damage, not a failing
        disk."""
        try:
            return self.commitlog.read(position, size)
        except OSError as error:
            if error.errno != EIO:
                raise
            return b""

    def damaged_frame(self, index: int) -> DamagedFrame:
        """Return the known properties of frame `index`, which must be present, for a request to the
        peers."""
        log = self.index
        return DamagedFrame(
            index,
            log.term_at(index - 1),
            log.term_at(index),
            log.position_of(index),
            log.size_of(index),
        )

    def overwrite(self, frame: Frame) -> SyncTicket:
        """Write a damaged frame in its place again. It is readable at once, and durable after the
        returned ticket has run and was passed to `commitlog.finish_sync`. Raises OSError."""
        index = self.index
        there = (index.term_at(frame.index), index.position_of(frame.index))
        assert (frame.term, frame.position) == there, (frame, there)
        assert frame.size_bytes == index.size_of(frame.index), (frame, index.size_of(frame.index))
        return self.commitlog.patch(frame.position, frame.data)

    def overwrite_blank(self, index: int) -> SyncTicket | None:
        """Write the blank record behind frame `index` in its place again, as `overwrite` does.
        Return None if no blank record belongs there."""
        log = self.index
        if not log.first_index <= index < log.last_index:
            return None
        end = log.end_of(index)
        remaining = log.position_of(index + 1) - end
        if not remaining:
            return None
        return self.commitlog.patch(end, BLANK.pack(remaining, MAGIC_BLANK))

    # -- writing ------------------------------------------------------------------------------

    def allocate(self, payload_length: int) -> int:
        """Return the position of the next frame with that payload size. Raises RecordTooLarge."""
        return self.commitlog.allocate(HEADER_SIZE_BYTES + payload_length)

    def append(self, frames: Sequence[Frame]) -> None:
        """Write frames at their positions, into the page cache. Contiguous frames need a single
        call, so a replica that is behind does not wait for a slow disk once per frame. After an
        OSError the state of the file is unknown, and the node must stop."""
        index, cache = self.index, self._cache
        for run in (frames,) if len(frames) == 1 else _runs(frames):
            self.commitlog.write_many(run[0].position, [frame.data for frame in run])
            for frame in run:
                index.append(frame)
                cache[frame.index] = frame
                self._cache_bytes += len(frame.data)
        while self._cache_bytes > self._cache_bytes_max and len(cache) > 1:
            self._cache_bytes -= len(cache.pop(self._cache_first).data)
            self._cache_first += 1

    def truncate(self, from_index: int) -> None:
        """Drop frame `from_index` and all behind it; durable on return. Raises OSError."""
        index = self.index
        assert index.first_index <= from_index <= index.last_index, (from_index, index)
        self.epoch += 1
        for at in range(max(from_index, self._cache_first), index.last_index + 1):
            self._cache_bytes -= len(self._cache.pop(at).data)
        self._cache_first = min(self._cache_first, from_index)
        index.truncate(from_index)
        self.durable_index = min(self.durable_index, from_index - 1)
        # The truncation includes a blank record behind the previous frame, because the new leader's
        # frame may fit into the segment that the truncated frame had closed.
        self.commitlog.truncate(index.end_position)

    @property
    def wants_next_segment(self) -> bool:
        """True if the last segment is more than half full."""
        log = self.commitlog
        return (log.max_offset - self.segment_start(log.max_offset)) * 2 > log.segment_size_bytes

    def segment_start(self, offset: int) -> int:
        """Return the first byte of the segment of `offset`."""
        log = self.commitlog
        return offset - (offset - log.min_offset) % log.segment_size_bytes

    # -- durability ---------------------------------------------------------------------------

    def start_sync(self) -> LogSyncTicket | None:
        """Return a ticket for all written frames; None if they are durable. Raises SyncFailed."""
        ticket = self.commitlog.start_sync()
        if ticket is None:
            return None
        return LogSyncTicket(ticket, self.index.last_index, self.epoch)

    def finish_sync(self, ticket: LogSyncTicket) -> int | None:
        """Handle a ticket that has run; return the last durable index, or None after a truncation
        since. Raises SyncFailed."""
        self.commitlog.finish_sync(ticket._ticket)
        if ticket.epoch != self.epoch:
            return None
        if ticket.last_index > self.durable_index:
            self.durable_index = ticket.last_index
        return self.durable_index

    # -- retention ----------------------------------------------------------------------------

    def plan_trim(self, position: int) -> Trim | None:
        """Return the plan to remove the segments that end at or below `position`, which must be
        committed; None without such segments. Pass it to `note_trim` and then to `trim`."""
        index = self.index
        keep_from = self.segment_start(min(position, self.commitlog.durable_offset))
        if keep_from <= self.commitlog.min_offset:
            return None
        first = min(index.first_from(keep_from), self.durable_index + 1)
        return Trim(first, keep_from, trim_note(first, index.term_at(first - 1), keep_from))

    def note_trim(self, trim: Trim) -> None:
        """Note durably which part is removed, so that the next start can complete the removal.
        Blocking, for a thread of the pool, never in parallel. Raises OSError."""
        assert self._trim is not None, "this log has no place to note what was cut"
        self._trim.save(trim.note)

    def trim(self, trim: Trim) -> None:
        """Remove the part that `note_trim` noted. After an OSError the frames are gone from the
        index, and the same trim may be planned again for their files."""
        self._forget_before(trim.first)
        self.commitlog.delete_before(trim.start)

    def _forget_before(self, first: int) -> None:
        self.index.trim(first)
        for at in range(self._cache_first, min(first, self.index.last_index + 1)):
            self._cache_bytes -= len(self._cache.pop(at).data)
        self._cache_first = max(self._cache_first, first)

    # -- life ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the files that this log opened; the CommitLog's owner closes the CommitLog."""
        if self._trim is not None:
            self._trim.close()


def _runs(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Yield the frames in contiguous groups; a new segment makes a gap."""
    run: list[Frame] = []
    for frame in frames:
        if run and frame.position != run[-1].end:
            yield run
            run = []
        run.append(frame)
    if run:
        yield run
