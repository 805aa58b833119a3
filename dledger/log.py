"""RaftLog: the CommitLog as the Raft log. One frame is one entry, at the position it names.

Keeps a `LogIndex` in step with what is written, and the latest frames in memory, so that
replication and apply read the file only for whoever is far behind. What is read from the file is
verified again (both checksums), and damage found so raises StoreDamaged.

Durability is by ticket, as in the CommitLog: `begin_sync` on the loop, `ticket.run()` in a thread,
`finish_sync` on the loop. A truncation in between bumps the epoch: the sync then counts for
nothing here, and the next one proves what it would have.

Retention removes the frames below a position; that there were some, and the term of the last of
them, stands in a `SlotFile`, because no file of the log says it any more.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence

from dledger.index import LogIndex
from dledger.slots import SlotFile
from store.commitlog import CommitLog, SyncTicket
from store.errors import StoreDamaged
from store.frame import HEADER_SIZE_BYTES, Frame, FrameError, parse_frame
from store.recovery import FrameHeader, recover_frames

CACHE_BYTES_MAX = 64 << 20
READ_BYTES_MAX = 4 << 20  # one read of the file; a larger single frame is read alone
_TRIM = struct.Struct(">qq")  # first index, term of the frame before it


class LogSyncTicket:
    """One fdatasync of the log to be done: `run` it in a thread, then hand it to `finish_sync`."""

    __slots__ = ("_ticket", "epoch", "last_index")

    def __init__(self, ticket: SyncTicket, last_index: int, epoch: int) -> None:
        self._ticket = ticket
        self.last_index = last_index
        self.epoch = epoch

    def run(self) -> None:
        """Blocking. Raises OSError: then nothing it was to prove will ever be true."""
        self._ticket.run()


class RaftLog:
    """See the module. One caller (the loop), except `LogSyncTicket.run`."""

    def __init__(
        self,
        commitlog: CommitLog,
        trim: SlotFile | None = None,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        """Without `trim` the log can be used, but retention cannot cut it."""
        self.commitlog = commitlog
        self.index = LogIndex()
        self.durable_index = 0
        self._trim = trim
        self._cache: dict[int, Frame] = {}  # contiguous: _cache_first .. last_index
        self._cache_first = 1
        self._cache_bytes = 0
        self._cache_bytes_max = cache_bytes_max
        self._epoch = 0
        self.reads_from_file = 0  # stays as it is in the steady state

    # -- recovery -----------------------------------------------------------------------------

    def open(self) -> None:
        """Build the index from the frames of the CommitLog, which its owner has opened; find its
        end if that was not done yet. Blocking. All frames are durable afterwards.

        A torn tail is cut. Raises StoreDamaged if frames that were once durable are not whole, or
        if the log's beginning is not the one that retention left; nothing is cut then."""
        log = self.commitlog
        assert log.settled or log.segments(), "the CommitLog is not open"
        was_settled = log.settled
        first, previous_term = 1, 0
        noted = None if self._trim is None else self._trim.load()
        if noted is not None:
            first, previous_term = _TRIM.unpack(noted)
        indexed: LogIndex | None = None

        def add(header: FrameHeader) -> None:
            nonlocal indexed
            if indexed is None:
                before = previous_term if header.index == first else 0
                indexed = LogIndex(header.index, before, header.position)
            indexed.add(header.index, header.term, header.position, header.size_bytes)

        recovered = recover_frames(log, on_frame=add)
        if was_settled and recovered.torn is not None:
            raise StoreDamaged(recovered.end_offset, recovered.torn)
        self.index = self._begin_at(indexed, first, previous_term)
        self._cache_first = self.index.last_index + 1
        ticket = log.begin_sync()
        if ticket is not None:
            ticket.run()
            log.finish_sync(ticket)
        self.durable_index = self.index.last_index

    def _begin_at(self, indexed: LogIndex | None, first: int, previous_term: int) -> LogIndex:
        """Check the recovered beginning against what retention noted, and finish its work."""
        log = self.commitlog
        if indexed is None:
            if first != 1:
                raise StoreDamaged(log.min_offset, f"no frames, where {first} should be the first")
            return LogIndex(1, 0, log.max_offset)
        if indexed.first_index > first or indexed.last_index < first - 1:
            raise StoreDamaged(
                log.min_offset,
                f"frames {indexed.first_index}..{indexed.last_index}, where {first} should be "
                "the first",
            )
        if indexed.first_index < first:  # killed between noting and removing
            indexed.trim(first)
            at_end = indexed.last_index < first
            log.delete_before(indexed.end_position if at_end else indexed.position_of(first))
        return indexed

    # -- reading ------------------------------------------------------------------------------

    @property
    def last_index(self) -> int:
        """The last frame written; `first_index - 1` if there is none."""
        return self.index.last_index

    def frames(self, first: int, last: int, bytes_max: int | None = None) -> tuple[Frame, ...]:
        """Frames first..last, fewer if they exceed `bytes_max` together, but at least one.

        Raises StoreDamaged."""
        if first > last:
            return ()
        if first == last and first >= self._cache_first:
            return (self._cache[first],)
        if bytes_max is not None:
            last = min(last, self.index.last_within(first, bytes_max))
        if first >= self._cache_first:
            cache = self._cache
            return tuple([cache[i] for i in range(first, last + 1)])
        found: list[Frame] = []
        in_file = min(last, self._cache_first - 1)
        while first <= in_file:
            run = self._read_run(first, in_file)
            found += run
            first += len(run)
        found += [self._cache[i] for i in range(first, last + 1)]
        return tuple(found)

    def _read_run(self, first: int, last: int) -> list[Frame]:
        """Read frames that lie one behind the other in one segment, at least `first`."""
        index = self.index
        start = index.position_of(first)
        last = min(last, index.last_within(first, READ_BYTES_MAX))
        segment_end = self._segment_start(start) + self.commitlog.segment_size_bytes
        within = bisect_left(range(first, last + 1), segment_end, key=index.position_of)
        last = first + within - 1
        data = self.commitlog.read(start, index.end_of(last) - start)
        self.reads_from_file += 1
        frames = []
        for at in range(first, last + 1):
            position = index.position_of(at)
            try:
                frame = parse_frame(data, position - start)
            except FrameError as error:
                raise StoreDamaged(position, error.reason) from error
            if (frame.index, frame.term) != (at, index.term_at(at)):
                raise StoreDamaged(position, f"{frame!r} where frame {at} was written")
            frames.append(frame)
        return frames

    # -- writing ------------------------------------------------------------------------------

    def place(self, payload_length: int) -> int:
        """The position of the next frame with that much payload. Raises RecordTooLarge."""
        return self.commitlog.place(HEADER_SIZE_BYTES + payload_length)

    def append(self, frames: Sequence[Frame]) -> None:
        """Write frames at their positions, into the page cache. Raises OSError: then the state
        of the file is not known, and the node must stop."""
        index, cache, write = self.index, self._cache, self.commitlog.write
        for frame in frames:
            write(frame.position, frame.data)
            index.append(frame)
            cache[frame.index] = frame
            self._cache_bytes += len(frame.data)
        while self._cache_bytes > self._cache_bytes_max and len(cache) > 1:
            self._cache_bytes -= len(cache.pop(self._cache_first).data)
            self._cache_first += 1

    def truncate(self, from_index: int) -> None:
        """Drop frame `from_index` and all behind it; durable when it returns. Raises OSError."""
        index = self.index
        assert index.first_index <= from_index <= index.last_index, (from_index, index)
        self._epoch += 1
        for at in range(max(from_index, self._cache_first), index.last_index + 1):
            self._cache_bytes -= len(self._cache.pop(at).data)
        self._cache_first = min(self._cache_first, from_index)
        index.truncate(from_index)
        self.durable_index = min(self.durable_index, from_index - 1)
        # To the end of the frame before, which takes a blank record behind it away, too: the new
        # leader's frame may be small enough for the segment that the cut one had closed.
        self.commitlog.truncate(index.end_position)

    @property
    def wants_next_segment(self) -> bool:
        """Whether the last segment is more than half full."""
        log = self.commitlog
        return (log.max_offset - self._segment_start(log.max_offset)) * 2 > log.segment_size_bytes

    def _segment_start(self, offset: int) -> int:
        log = self.commitlog
        return offset - (offset - log.min_offset) % log.segment_size_bytes

    # -- durability ---------------------------------------------------------------------------

    def begin_sync(self) -> LogSyncTicket | None:
        """A ticket for all frames written so far; None if they are durable. Raises SyncFailed."""
        ticket = self.commitlog.begin_sync()
        if ticket is None:
            return None
        return LogSyncTicket(ticket, self.index.last_index, self._epoch)

    def finish_sync(self, ticket: LogSyncTicket) -> int | None:
        """Take a ticket that has run: the last durable index, or None if frames were truncated
        meanwhile. Raises SyncFailed."""
        self.commitlog.finish_sync(ticket._ticket)
        if ticket.epoch != self._epoch:
            return None
        if ticket.last_index > self.durable_index:
            self.durable_index = ticket.last_index
        return self.durable_index

    # -- retention ----------------------------------------------------------------------------

    def trim(self, position: int) -> int:
        """Remove whole segments that end at or below `position`; returns the first index left.

        Raises OSError."""
        assert self._trim is not None, "this log has no place to note what was cut"
        index = self.index
        keep_from = self._segment_start(min(position, self.commitlog.durable_offset))
        if keep_from <= self.commitlog.min_offset:
            return index.first_index
        durable = range(index.first_index, self.durable_index + 1)
        first = index.first_index + bisect_left(durable, keep_from, key=index.position_of)
        # Noted first: killed in between, the segments are removed at the next start.
        self._trim.save(_TRIM.pack(first, index.term_at(first - 1)))
        self._forget_before(first)
        self.commitlog.delete_before(keep_from)
        return first

    def _forget_before(self, first: int) -> None:
        self.index.trim(first)
        for at in range(self._cache_first, min(first, self.index.last_index + 1)):
            self._cache_bytes -= len(self._cache.pop(at).data)
        self._cache_first = max(self._cache_first, first)

    # -- life ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close what this log opened itself; the CommitLog is its owner's, before and after."""
        if self._trim is not None:
            self._trim.close()
