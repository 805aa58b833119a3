"""ConsumeQueues, sequences of 20-byte entries per (topic, queue) in queue order.

    consumequeue/<topic>/<queueId>/%020d   named by the byte position of its first entry
    entry: int64 CommitLog offset, int32 record size, int64 tags code

Entry n is at byte n * 20 of the sequence. Files hold `entries_per_file` (300,000) and are sparse. A
queue that starts at n > 0 is filled with entries (0, 0x7FFFFFFF, 0) from its file's start to n.

A queue is derived from the CommitLog and has no durability of its own. New entries stay in a tail
in memory until a flush in the pool has written them, or until a tail or all tails reach their
limit. Reads see file and tail alike. After a transient shortage (store.transient_errors) they stay
longer, and `write_full_tails` writes them later. After a restart, entries that point below the
checkpoint's confirmPhyOffset are trusted. Entries at or above it are dropped and dispatched again
from the log (`open(confirmed)`). Offsets only grow below it, so bisection finds the end of a queue.

An append below max_offset is skipped (a repeated dispatch after a restart). An append that would
leave a hole is an AssertionError, because wrong is worse than down. A queue without a message in
the log may continue at a later offset, as the messages between are deleted.

A deleted topic's queues continue if it is created again. After the next flush their extents are
kept compressed instead of the objects (store.consumequeue.archive), which are made when needed.

`open` with `lazy` (Raft mode) takes over many queues from the manifest as of its `confirmed`, with
no look at their files. Unlisted files are those of later entries, which are dispatched again. The
files are checked when they are first used. Missing entries are suspects (EntryDamaged), which
store.consumequeue.repair writes again.

With a manifest (store.consumequeue.queue_files), `open` does not load damaged queues, where listed
files or entries are missing or entries follow the end. First files may be missing if retention
removed them after the manifest was written. Damaged queues are listed in `damaged` and rebuilt from
the log (store.consumequeue.repair; classic mode: store.commitlog.classic_log). If all messages of a
queue are deleted from the log, only its files and the manifest have its end (`restore_lost`).
Single wrong entries are detected on read by their records, and `rewrite` corrects them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, pairwise
from types import MappingProxyType

from ..disk import Disk
from ..dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from ..errors import EntryDamaged
from ..file_cache import OPEN_FILES_MAX
from ..transient_errors import passes
from .archive import QueueArchive, unpacked
from .queue_files import (
    EntryKey,
    FlushFiles,
    ManifestHead,
    QueueExtent,
    QueueFiles,
    QueueKey,
    line_of,
    read_manifest,
    within_files,
    write_manifest,
)

ENTRIES_PER_FILE = 300_000
FILLER_SIZE = 0x7FFFFFFF
FILLER = QUEUE_ENTRY.pack(0, FILLER_SIZE, 0)
TAIL_ENTRIES_MAX = 2048  # 40 KiB of a queue; then it is written
TAILS_BYTES_MAX = 8 << 20  # of all queues; then the oldest tails are written
PROBED_ENTRIES = 410  # two pages behind the end, because entries follow a missing page
LOADED_QUEUES_MAX = 1_000  # at start; the files of 100,000 took 36 s to read from a cold disk
MANIFEST_QUEUES_MAX = 10_000  # with more queues, only every MANIFEST_FLUSHES-th flush lists them
MANIFEST_FLUSHES = 12


class QueueDamaged(Exception):
    """The files of a queue are not the files that were written, for `reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Tail:
    """Entries not yet in a file. Entries are only added; after a write the queue gets a new tail. A
    flush in the pool therefore always sees matching `first` and `entries`."""

    first: int  # queue offset of the first entry
    entries: bytearray


@dataclass(slots=True, eq=False)
class ConsumeQueue:
    """A queue. `max_offset` is the offset of the next message, `first_offset` that of the oldest
    message in the CommitLog."""

    _files: QueueFiles
    topic: str
    queue_id: int
    _first_shown: Mapping[str, int]  # of the store
    path: str = field(init=False)
    file_starts: list[int] = field(default_factory=list, init=False)  # first entry of each file
    last_position: int = field(default=0, init=False)  # CommitLog offset in the last entry, or 0
    first_offset: int = field(default=0, init=False)
    max_offset: int = field(default=0, init=False)
    _min_position: int = field(
        default=-1, init=False
    )  # of the entry at first_offset; -1 if unknown
    # of a queue taken over, until its files are checked; otherwise 0
    _listed_end: int = field(default=0, init=False)
    _listed_position: int = field(default=-1, init=False)  # of its last entry; -1: any
    has_more: bool = field(default=False, init=False)  # `load` found entries to drop
    # the CommitLog offset for which `_shown_offset` is valid
    _shown_from: int = field(default=0, init=False)
    _shown_offset: int = field(default=0, init=False)
    _tail: Tail = field(default_factory=lambda: Tail(0, bytearray()), init=False)

    def __post_init__(self) -> None:
        self.path = f"{self._files.directory}/{self.topic}/{self.queue_id}"

    @property
    def min_offset(self) -> int:
        """The offset of the oldest visible message. Messages of a topic's earlier life, below a
        CommitLog offset, are not visible."""
        first_shown = self._first_shown.get(self.topic, 0)
        if not first_shown:
            return self.first_offset
        if first_shown != self._shown_from:
            self._shown_from = first_shown
            self._shown_offset = self.first_at(lambda at, _: at >= first_shown, self.first_offset)
        return max(self.first_offset, self._shown_offset)

    @property
    def tail_bytes(self) -> int:
        """Bytes of entries not yet written to the file."""
        return len(self._tail.entries)

    def entries(self, offset: int, count: int) -> bytes:
        """Return up to `count` entries from `offset`; b"" outside [first, max)."""
        if not self.first_offset <= offset < self.max_offset or count <= 0:
            return b""
        tail = self._tail
        if offset >= tail.first:
            at = (offset - tail.first) * QUEUE_ENTRY_BYTES
            return bytes(tail.entries[at : at + count * QUEUE_ENTRY_BYTES])
        if self._listed_end:
            self._check_files()
        end = min(offset + count, self.max_offset)
        parts = []
        in_file_end = min(end, tail.first)
        while offset < in_file_end:
            take = min(in_file_end, self._file_end(offset)) - offset
            parts.append(self._files.read(self.path, offset, take))
            offset += take
        if offset < end:
            parts.append(bytes(tail.entries[: (end - offset) * QUEUE_ENTRY_BYTES]))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def stored(self, offset: int, count: int) -> bytes:
        """Return `count` entries, with zeros for absent entries. Files are opened again, so that
        their damage is seen. In the pool. Raises OSError."""
        tail, end = self._tail, offset + count
        parts = []
        while offset < min(end, tail.first):
            take = min(end, tail.first, self._file_end(offset)) - offset
            parts.append(self._files.read_again(self.path, offset, take))
            offset += take
        at, size = (offset - tail.first) * QUEUE_ENTRY_BYTES, (end - offset) * QUEUE_ENTRY_BYTES
        return b"".join((*parts, bytes(tail.entries[at : at + size]).ljust(size, b"\0")))

    def entry(self, offset: int) -> tuple[int, int, int]:
        """Return (CommitLog offset, size, tags code) of an existing entry."""
        return QUEUE_ENTRY.unpack(self.entries(offset, 1))

    def append(self, first: int, entries: bytes) -> int:
        """Append entries from queue offset `first` on; return their bytes. Existing entries are
        skipped."""
        assert len(entries) % QUEUE_ENTRY_BYTES == 0
        if first != self.max_offset:
            if first < self.max_offset:
                entries = entries[(self.max_offset - first) * QUEUE_ENTRY_BYTES :]
                if not entries:
                    return 0
            else:
                # Only an empty queue can have lost older messages to retention.
                assert self.max_offset == self.first_offset, (self.path, self.max_offset, first)
                assert not self.tail_bytes, self.path
                self._start_at(first)
        if self._tail.entries:
            self._tail.entries.extend(entries)
        else:
            if self.max_offset == self.first_offset:
                self._min_position = int.from_bytes(entries[:8], "big")
            self._tail = Tail(self.max_offset, bytearray(entries))
        if self.last_position < self._shown_from:
            self._shown_from = 0  # these entries may not be visible either
        # In this order: `extent` must not see a new end with an old position.
        self.last_position = int.from_bytes(entries[-QUEUE_ENTRY_BYTES:-12], "big")
        self.max_offset += len(entries) // QUEUE_ENTRY_BYTES
        return len(entries)

    def write_tail(self) -> None:
        """Write the tail to its files. Raises OSError; then the tail is kept."""
        per_file = self._files.entries_per_file
        for offset, entries in within_files(self._tail.first, bytes(self._tail.entries), per_file):
            self._write(offset, entries)
        self._tail = Tail(self.max_offset, bytearray())

    @property
    def tail(self) -> Tail:
        return self._tail

    def save_tail(self, tail: Tail, files: FlushFiles) -> range:
        """Write a tail in the pool, also if the loop has written it since, and return the offsets
        written; `drop_saved` removes them from memory. Blocking. Raises OSError."""
        entries = bytes(tail.entries)
        last_file = self.file_starts[-1] if self.file_starts else -1
        files.write(self.path, tail.first, entries, last_file)
        return range(tail.first, tail.first + len(entries) // QUEUE_ENTRY_BYTES)

    def drop_saved(self, saved: range) -> None:
        """Drop entries from the tail that `save_tail` has written."""
        self.file_starts += self._new_starts(saved)
        tail = self._tail
        if saved.stop > tail.first:
            rest = tail.entries[(saved.stop - tail.first) * QUEUE_ENTRY_BYTES :]
            self._tail = Tail(saved.stop, rest)

    def extent(self, saved: range) -> QueueExtent | None:
        """Return the manifest line once `saved` was written; None without a file. In the pool."""
        end, last_position = self.max_offset, self.last_position  # in this order
        first, position = self.first_offset, self._min_position
        if first >= end:  # no message, or none when `end` was read
            first, position = end, -1
        starts = [*self.file_starts, *self._new_starts(saved)]
        starts = [start for start in starts if start < end]  # the rest is to be dropped
        if not starts:
            return None
        numbers = starts[0], starts[-1], end, last_position, first, position, self.queue_id
        return QueueExtent(*numbers, self.topic)

    def _new_starts(self, saved: range) -> list[int]:
        """Return the starts of the files of `saved` that are missing in `file_starts`."""
        if not saved:
            return []
        files, last = self._files, self.file_starts[-1] if self.file_starts else -1
        starts = range(files.start_of(saved.start), saved.stop, files.entries_per_file)
        return [start for start in starts if start > last]

    def rewrite(self, offset: int, entry: bytes) -> bool:
        """Overwrite an entry that is different, whether its file is there or not; return False if
        it is equal or not in a file. Raises OSError."""
        if not self.first_offset <= offset < self._tail.first:
            return False
        self._files.restore(self.path, self._files.start_of(offset))
        if self._files.read(self.path, offset, 1) == entry:
            return False
        self._write(offset, memoryview(entry))
        return True

    def first_at(
        self, is_at: Callable[[int, int], bool], low: int | None = None, high: int | None = None
    ) -> int:
        """Return by bisection the first offset in [low or min, high or max] with `is_at` true for
        its entry (CommitLog offset, size). It must be true for all later entries."""
        low = self.min_offset if low is None else low
        high = self.max_offset if high is None else min(high, self.max_offset)
        while low < high:
            middle = (low + high) // 2
            position, size, _ = self.entry(middle)
            if is_at(position, size):
                high = middle
            else:
                low = middle + 1
        return low

    # -- used by the store -------------------------------------------------------------------

    def load(
        self,
        confirmed: int,
        recorded: QueueExtent | None,
        log_start: int,
        *,
        suspicious: bool,
    ) -> None:
        """Find the queue's end in its files, the first entry that is empty or points at or above
        `confirmed`. Entries behind it are to be dropped (`has_more`). With `suspicious`, the end is
        checked for plausibility. Raises QueueDamaged."""
        files = self._files
        self.file_starts = files.starts(self.path)
        for previous, start in pairwise(self.file_starts):
            if start - previous != files.entries_per_file:
                raise QueueDamaged(f"no file between those of entry {previous} and {start}")
        if recorded is not None and max(self.file_starts, default=-1) < recorded.last_file:
            raise QueueDamaged(f"there was a file of entry {recorded.last_file} once")
        if not self.file_starts:
            return
        for start in self.file_starts:
            files.fill_up(self.path, start)
        self.first_offset = first_offset = self.file_starts[0]
        self._end_at(self.file_starts[-1] + files.entries_per_file)
        if (
            recorded is not None
            and first_offset > recorded.first_file
            and self.entry(first_offset)[0] > log_start
        ):
            raise QueueDamaged(f"there was a file of entry {recorded.first_file} once")
        near = self.file_starts[-1] if recorded is None else recorded.end - 1
        end = self._find_end(confirmed, near)
        if suspicious:
            self._check_end(end, confirmed, recorded)
        # A file without an entry, or entries behind the end, as after a power cut; they must not
        # look valid once the hole is filled.
        self.has_more = end == self.first_offset or self._is_followed(end)
        self._end_at(end)
        self._set_last()

    def _is_followed(self, end: int) -> bool:
        """Return whether anything but a hole follows from `end` on."""
        entries = self.entries(end, PROBED_ENTRIES)
        behind = end + PROBED_ENTRIES
        return entries.count(0) < len(entries) or (
            behind < self.max_offset and self._files.may_have_entries(self.path, behind)
        )

    def take_over(self, recorded: QueueExtent) -> None:
        """Take over the recorded extent; the files are checked when they are first used."""
        per_file = self._files.entries_per_file
        self.file_starts = list(range(recorded.first_file, recorded.last_file + 1, per_file))
        self.first_offset, self._min_position = recorded.first_offset, recorded.first_position
        self.last_position = recorded.last_position
        self._end_at(recorded.end)
        self._listed_end, self._listed_position = recorded.end, recorded.last_position

    @property
    def is_checked(self) -> bool:
        """False if the files of a queue taken over have not been used yet, or lack entries."""
        return not self._listed_end

    def _check_files(self) -> None:
        """Check that the files have the first and the last listed entry. Raises EntryDamaged, until
        a repair has written them; OSError."""
        for start in self.file_starts:
            self._files.restore(self.path, start)
        end = self._listed_end
        listed = [(self.first_offset, self._min_position), (end - 1, self._listed_position)]
        for offset, position in listed:
            if position < 0 or offset >= end:
                continue
            entry = self._files.read(self.path, offset, 1)
            if QUEUE_ENTRY.unpack(entry)[0] != position:
                self._files.suspects[self.topic, self.queue_id, offset] = position
                raise EntryDamaged(self.topic, self.queue_id, offset, position)
        self._listed_end = 0

    def _find_end(self, confirmed: int, near: int) -> int:
        """Return the first offset without an entry below `confirmed`. A short queue is searched
        from `near` on, because every page that is read of a hole costs memory and time."""

        def is_at(position: int, size: int) -> bool:
            return size <= 0 or position >= confirmed

        low, high = self.first_offset, self.max_offset
        if near - low <= PROBED_ENTRIES:
            high, step = max(low, near), 1
            while high < self.max_offset and not is_at(*self.entry(high)[:2]):
                low, high, step = high + 1, high + step, 2 * step
        return self.first_at(is_at, low, high)

    def _check_end(self, end: int, confirmed: int, recorded: QueueExtent | None) -> None:
        """Check the end found by bisection, which trusts entries. Raises QueueDamaged."""
        if recorded is not None and end < recorded.end and recorded.last_position < confirmed:
            raise QueueDamaged(f"it ends at {end}, and had {recorded.end} entries once")
        probes = [(end, PROBED_ENTRIES)]
        at, distance = end + PROBED_ENTRIES, 1
        while at < self.max_offset and self._files.may_have_entries(self.path, at):
            probes.append((at, 1))
            at += distance
            distance *= 2
        for first, count in probes:
            for position, size, _ in QUEUE_ENTRY.iter_unpack(self.entries(first, count)):
                if 0 < size != FILLER_SIZE and 0 <= position < confirmed:
                    raise QueueDamaged(f"it ends at {end}, but entries stand behind {first}")

    def _set_last(self) -> None:
        empty = self.max_offset <= self.first_offset
        self.last_position = 0 if empty else self.entry(self.max_offset - 1)[0]

    def truncate(self, end: int) -> None:
        """Drop entries from `end` on, in file and memory. Not during a flush."""
        assert not self.tail_bytes
        while self.file_starts and self.file_starts[-1] >= end:
            self._files.remove(self.path, self.file_starts.pop())
        if self.file_starts:
            self._files.truncate(self.path, self.file_starts[-1], end)
        self._end_at(end)
        self.has_more = False
        self.first_offset = min(self.first_offset, end)
        self._shown_from = 0
        self._min_position = -1
        self._set_last()

    def correct_min(self, commitlog_min: int) -> None:
        """Move first_offset to the first entry still in the CommitLog; remove whole files."""
        if commitlog_min <= self._min_position:
            return
        self._min_position = -1
        if self._listed_position < commitlog_min:
            self._listed_position = -1  # no repair can write it again
        try:
            self.first_offset = self.first_at(
                lambda position, size: position >= commitlog_min and size != FILLER_SIZE,
                self.first_offset,
            )
        except EntryDamaged:
            return  # until it is repaired
        if self.first_offset < self.max_offset:
            self._min_position = self.entry(self.first_offset)[0]
        per_file = self._files.entries_per_file
        while len(self.file_starts) > 1 and self.file_starts[0] + per_file <= self.first_offset:
            self._files.remove(self.path, self.file_starts.pop(0))

    def start_at(self, first: int) -> None:
        """Let an empty queue's first entry have offset `first` > 0, also after a restart."""
        per_file = self._files.entries_per_file
        if first % per_file == 0:  # otherwise no file would show it
            self._write(first - per_file, memoryview(FILLER * per_file))
        self._start_at(first)

    def _start_at(self, first: int) -> None:
        files = self._files
        start = self.max_offset if self.file_starts else files.start_of(first)
        fillers = FILLER * (first - start)
        for offset, entries in within_files(start, fillers, files.entries_per_file):
            self._write(offset, entries)
        self.first_offset = first
        self._end_at(first)

    def _end_at(self, end: int) -> None:
        """Set the next entry's offset; all earlier entries are in files."""
        self.max_offset = end
        self._tail = Tail(end, bytearray())

    def _write(self, offset: int, data: memoryview) -> None:
        """Write entries within a file, created if missing."""
        start = self._files.start_of(offset)
        if not self.file_starts or start > self.file_starts[-1]:
            self._files.create(self.path, start, first=not self.file_starts)
            self.file_starts.append(start)
        elif self._listed_end:
            self._files.restore(self.path, start)
        self._files.write(self.path, offset, data)

    def _file_end(self, offset: int) -> int:
        """Return the end offset of the file that contains the entry at `offset`."""
        return self._files.start_of(offset) + self._files.entries_per_file


@dataclass(frozen=True, slots=True)
class FlushTicket:
    """A flush of ConsumeQueues: `run` it in the pool, then call `finish_flush`."""

    files: FlushFiles
    tails: list[tuple[ConsumeQueue, Tail]]  # at the start of the flush
    queues: list[ConsumeQueue]  # all in memory, if a manifest is kept
    archived: list[bytes]
    manifest: str | None
    head: ManifestHead
    due: bool  # write the manifest even if no file was created or removed
    listed: bool  # write it in any case
    deleted: list[str]  # topics whose queues may be archived after it
    saved: dict[ConsumeQueue, range] = field(default_factory=dict)

    def run(self) -> None:
        """Write tails, sync files. Blocking. Raises OSError: void then, and files stay dirty."""
        for queue, tail in self.tails:
            self.saved[queue] = queue.save_tail(tail, self.files)
        dirty = self.files.all_dirty()
        dirty.run()
        if self.manifest is None:
            return
        changed = dirty.directories or (self.due and dirty.paths)
        if changed or self.listed or not self.files.disk.exists(self.manifest):
            nothing = range(0)
            extents = (queue.extent(self.saved.get(queue, nothing)) for queue in self.queues)
            lines = unpacked(self.archived)
            write_manifest(self.files.disk, self.manifest, self.head, filter(None, extents), lines)


class ConsumeQueueStore:
    """All queues of a store. For the loop only, except `FlushTicket.run`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        entries_per_file: int = ENTRIES_PER_FILE,
        *,
        tail_entries_max: int = TAIL_ENTRIES_MAX,
        tails_bytes_max: int = TAILS_BYTES_MAX,
        open_files_max: int = OPEN_FILES_MAX,
        manifest: str | None = None,
        first_shown: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`manifest` is the manifest's path; without it damage is not detected. Messages of a topic
        below the CommitLog offset in `first_shown` are not visible."""
        self._disk = disk
        self._files = QueueFiles(disk, directory, entries_per_file, open_files_max)
        self.damaged: dict[tuple[str, int], str] = {}  # queues that `open` did not load, and why
        self.unknown = False  # `open` found neither a queue nor a manifest
        self.corrected_to = -1  # no valid entry of any queue points below this
        self.confirmed = 0  # `open` kept the entries below this CommitLog offset
        self._log_start = 0  # that the first messages follow, as listed or corrected
        self._manifest = manifest
        self._recorded: dict[QueueKey, QueueExtent] = {}  # as listed, until the log is known
        self._flushes = 0
        self._tail_bytes_max = tail_entries_max * QUEUE_ENTRY_BYTES
        self._tails_bytes_max = tails_bytes_max
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._with_tail: dict[tuple[str, int], ConsumeQueue] = {}
        self._overfull: dict[tuple[str, int], ConsumeQueue] = {}  # tails at tail_entries_max
        self.tails_bytes = 0  # above tails_bytes_max only during a shortage
        self._first_shown = first_shown
        self._deleted: dict[str, None] = {}  # topics whose queues are to be archived
        self._archive = QueueArchive()
        self._flushing = False

    def open(
        self,
        confirmed: int,
        *,
        clean: bool = False,
        log_start: int = 0,
        foreign: bool = False,
        lazy: bool = False,
    ) -> None:
        """Load every queue, keeping entries that point below CommitLog offset `confirmed`.

        `clean` means that the last stop was clean, so nothing follows the first empty entry. The
        CommitLog starts at `log_start`: first files may be missing if all their entries pointed
        below it. With `foreign`, whole queues may be missing, because a different program may have
        deleted their topics. With `lazy`, the entries from `self.confirmed` on, which may be less
        than `confirmed`, are dispatched again in any case.

        Raises OSError; ValueError for a directory that is no queue."""
        assert not self._queues
        self._disk.makedirs(self._files.directory)
        head, recorded = read_manifest(self._disk, self._manifest)
        self._recorded = dict(recorded)
        topics = self._disk.listdir(self._files.directory)
        queues: list[ConsumeQueue] = []
        if (
            lazy
            and max(len(recorded), len(topics)) > LOADED_QUEUES_MAX
            and head.entries_per_file
            and head.log_start <= log_start <= head.confirmed <= confirmed
        ):
            confirmed = head.confirmed
            self._files.adopt(head.entries_per_file)
            queues += self._taken_over(recorded, set(topics), confirmed)
            keys = [key for key in recorded if key[0] in set(topics)]  # they have later entries
        else:
            self._files.adopt_size(clean=clean or foreign)
            keys = [
                (topic, int(name))
                for topic in topics
                for name in self._disk.listdir(f"{self._files.directory}/{topic}")
            ]
        self.confirmed = confirmed
        shorter = False
        suspicious = self._manifest is not None
        for key in keys:
            queue = ConsumeQueue(self._files, *key, self._first_shown)
            extent = recorded.pop(key, None)
            try:
                queue.load(confirmed, extent, log_start, suspicious=suspicious)
            except QueueDamaged as damage:
                if not suspicious:
                    raise AssertionError(f"{queue.path}: {damage.reason}") from damage
                self.damaged[key] = damage.reason
                continue
            queues.append(queue)
            shorter |= extent is not None and queue.max_offset < extent.end
        if foreign and any(queue.file_starts for queue in queues):
            for key in recorded:
                del self._recorded[key]
        else:
            self.damaged |= dict.fromkeys(recorded, "its directory is gone")
        if shorter:
            self._record_shorter(queues)
        for queue in queues:
            if queue.has_more:
                queue.truncate(queue.max_offset)
            if queue.file_starts:
                self._queues[queue.topic, queue.queue_id] = queue
        kept = self._manifest is not None and self._disk.exists(self._manifest)
        self.unknown = not (kept or self._queues or self.damaged)

    def _taken_over(
        self, recorded: dict[QueueKey, QueueExtent], topics: Set[str], confirmed: int
    ) -> list[ConsumeQueue]:
        """Return the queues of `topics` without entries from `confirmed` on, and remove them from
        `recorded`."""
        queues = []
        for key, extent in self._recorded.items():
            if key[0] in topics and extent.last_position < confirmed:
                del recorded[key]
                queues.append(self._from_extent(extent))
        return queues

    def _record_shorter(self, queues: Sequence[ConsumeQueue]) -> None:
        """Rewrite the manifest with the shorter queues before entries are dropped that will be
        dispatched again. After a power cut before the next flush they are then not reported
        missing. Raises OSError, but not for a shortage."""
        assert self._manifest is not None
        extents = [queue.extent(range(0)) for queue in queues]
        extents += [self._recorded[key] for key in self.damaged if key in self._recorded]
        try:
            head = ManifestHead(self._files.entries_per_file, confirmed=-1)
            write_manifest(self._disk, self._manifest, head, filter(None, extents))
        except OSError as error:
            if not passes(error):
                raise

    def append(self, topic: str, queue_id: int, first_queue_offset: int, entries: bytes) -> None:
        """Append entries as ConsumeQueue.append does. Raises OSError if a write at a limit fails.
        During a shortage entries stay above the limit; call `write_full_tails` before the next
        append."""
        key = (topic, queue_id)
        queue = self._queues.get(key)
        if queue is None and self._restore(topic):
            self._deleted[topic] = None  # it has messages in flight that were sent before
            queue = self._queues.get(key)
        if queue is None:
            check_name(topic, queue_id)
            queue = self._queues[key] = ConsumeQueue(
                self._files, topic, queue_id, self._first_shown
            )
        self.tails_bytes += queue.append(first_queue_offset, entries)
        tail_bytes = queue.tail_bytes
        if tail_bytes:
            self._with_tail[key] = queue
        if tail_bytes >= self._tail_bytes_max:
            self._overfull[key] = queue
        elif self.tails_bytes < self._tails_bytes_max:
            return
        try:
            self.write_full_tails()
        except OSError as error:
            if not passes(error):
                raise

    def fill_up_to(self, topic: str, queue_id: int, first: int, gap: int) -> None:
        """Fill a queue that has messages up to `first`, because a part of the log from CommitLog
        offset `gap` on was lost. The filling entries point at `gap`, which no read accepts as a
        record. Raises OSError."""
        end = self.end_of(topic, queue_id)
        if first > end and self.has_messages(topic, queue_id):
            self.append(topic, queue_id, end, QUEUE_ENTRY.pack(gap, 1, 0) * (first - end))

    def write_full_tails(self) -> None:
        """Write the tails at their limit. Raises OSError; nothing is lost then."""
        while self._overfull:
            self._write_tail(*next(iter(self._overfull.items())))
        while self.tails_bytes >= self._tails_bytes_max:  # the oldest, not thousands at once
            self._write_tail(*next(iter(self._with_tail.items())))

    def start_at(self, topic: str, queue_id: int, first: int) -> None:
        """Create a queue with next queue offset `first` > 0, because its older messages are
        deleted. Raises OSError; ValueError for an invalid name."""
        key = (topic, queue_id)
        assert key not in self._queues, key
        check_name(topic, queue_id)
        queue = ConsumeQueue(self._files, topic, queue_id, self._first_shown)
        queue.start_at(first)
        self._queues[key] = queue

    def restore_lost(self, log_start: int, log_end: int = 0, gap: int = -1) -> None:
        """Restore the ends of lost queues that have no message in the log from `log_start` on, as
        listed in the manifest. With `gap`, also of queues with unreadable last messages, from that
        CommitLog offset to `log_end`. Call it after damaged queues are rebuilt. Raises OSError."""
        for (topic, queue_id), recorded in self._recorded.items():
            if gap >= 0 and recorded.last_position < log_end:
                self.fill_up_to(topic, queue_id, recorded.end, gap)
            is_lost = recorded.last_position < (log_end if gap >= 0 else log_start)
            if is_lost and not self.end_of(topic, queue_id) and recorded.end:
                self.discard(topic, queue_id)
                self.start_at(topic, queue_id, recorded.end)
        self._recorded.clear()

    @property
    def suspects(self) -> dict[EntryKey, int]:
        """Listed entries that no file has, found when files were first used, to be repaired."""
        return self._files.suspects

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if it never had a message. Use it in this turn of the loop only,
        because a deleted topic's queue is made for each call."""
        queue = self._queues.get((topic, queue_id))
        if queue is None and self._archive.size:
            for extent in self._archive.of_topic(topic):
                if extent.queue_id == queue_id:
                    return self._from_extent(extent)
        return queue

    def end_of(self, topic: str, queue_id: int) -> int:
        """Return the next message's queue offset; 0 for a queue without a file."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def has_messages(self, topic: str, queue_id: int) -> bool:
        """Return whether the CommitLog has a message of the queue."""
        queue = self.queue(topic, queue_id)
        return queue is not None and queue.first_offset < queue.max_offset

    def queues(self) -> Iterator[ConsumeQueue]:
        """Return all queues, those of deleted topics included."""
        return chain(self._queues.values(), map(self._from_extent, self._archive))

    def topics(self) -> dict[str, list[int]]:
        """Return the sorted queue ids by topic."""
        queue_ids: dict[str, list[int]] = {}
        for topic, queue_id in sorted(self._queues):
            queue_ids.setdefault(topic, []).append(queue_id)
        return queue_ids

    # -- queues of deleted topics --------------------------------------------------------------

    def topic_changed(self, topic: str, *, exists: bool) -> None:
        """Archive a deleted topic's queues after a later flush, or keep those of an existing topic
        in memory."""
        if exists:
            self._deleted.pop(topic, None)
            self._restore(topic)
        else:
            self._deleted[topic] = None

    def _restore(self, topic: str) -> bool:
        """Take the topic's queues back from the archive; return False if it has none."""
        extents = self._archive.take(topic)
        for extent in extents:
            self._queues[topic, extent.queue_id] = self._from_extent(extent)
        return bool(extents)

    def _archive_topic(self, topic: str) -> None:
        """Archive a topic's queues unless it was created again. A queue with a tail or with several
        files, which retention may remove, stays in memory."""
        if topic not in self._deleted:
            return
        del self._deleted[topic]
        for queue_id in map(int, self._disk.listdir(f"{self._files.directory}/{topic}")):
            queue = self._queues.get((topic, queue_id))
            if queue is None or queue.tail_bytes or len(queue.file_starts) > 1:
                continue
            extent = queue.extent(range(0))
            if extent is not None and line_of(extent):
                self._archive.add(extent)
                del self._queues[topic, queue_id]

    def _from_extent(self, extent: QueueExtent) -> ConsumeQueue:
        if extent.last_position < self.corrected_to:  # as retention has deleted its messages
            extent = extent._replace(first_offset=extent.end, first_position=-1)
        queue = ConsumeQueue(self._files, extent.topic, extent.queue_id, self._first_shown)
        queue.take_over(extent)
        return queue

    # -- flushing ----------------------------------------------------------------------------

    def write_tails(self) -> None:
        """Write every tail to its file (page cache). Raises OSError."""
        for key, queue in list(self._with_tail.items()):
            self._write_tail(key, queue)
        assert self.tails_bytes == 0

    def start_flush(self, confirmed: int = 0, *, listed: bool = False) -> FlushTicket:
        """Start a flush of all tails and files, the only one in flight. The pool does the writing,
        because creating a queue's file takes a third of a millisecond and thousands of queues may
        have a tail.

        All entries below CommitLog offset `confirmed` are appended. The manifest is written if it
        is to be `listed`, by the first flush and by every flush that syncs files. With many
        queues it is written only after files were created or removed, and by every
        MANIFEST_FLUSHES-th flush, because it is a lower bound."""
        assert not self._flushing
        self._flushing = True
        self._flushes += 1
        return FlushTicket(
            self._files.start_flush(),
            [(queue, queue.tail) for queue in self._with_tail.values()],
            [] if self._manifest is None else list(self._queues.values()),
            self._archive.packed(),
            self._manifest,
            ManifestHead(self._files.entries_per_file, self._log_start, confirmed),
            len(self._queues) <= MANIFEST_QUEUES_MAX or self._flushes % MANIFEST_FLUSHES == 0,
            listed,
            list(self._deleted),
        )

    def drop_saved(self, ticket: FlushTicket, count: int = 64) -> bool:
        """Drop saved entries of some tails and some queues of deleted topics from memory, after
        `run`; return whether there are more. `finish_flush` does the rest, which is slow for
        thousands of tails."""
        for _ in range(min(count, len(ticket.saved))):
            queue, saved = ticket.saved.popitem()
            before = queue.tail_bytes
            queue.drop_saved(saved)
            self.tails_bytes += queue.tail_bytes - before
            if not queue.tail_bytes:
                self._with_tail.pop((queue.topic, queue.queue_id), None)
        if not ticket.saved:
            for _ in range(min(count, len(ticket.deleted))):
                self._archive_topic(ticket.deleted.pop())
        return bool(ticket.saved or ticket.deleted)

    def finish_flush(self, ticket: FlushTicket, *, synced: bool) -> None:
        """Finish a flush after `run` returned (`synced`) or raised, with dirty files again."""
        assert self._flushing
        self._flushing = False
        if not synced:
            self._files.mark_dirty(ticket.files.all_dirty())
            return
        while self.drop_saved(ticket):
            pass

    def flush(self) -> None:
        """Do a whole flush, blocking. Raises OSError."""
        ticket = self.start_flush()
        synced = False
        try:
            ticket.run()
            synced = True
        finally:
            self.finish_flush(ticket, synced=synced)

    @property
    def flushing(self) -> bool:
        """True while a flush is in flight; nothing may be truncated then."""
        return self._flushing

    # -- following the CommitLog ---------------------------------------------------------------

    def discard(self, topic: str, queue_id: int) -> None:
        """Remove a queue and its files before it is rebuilt. Not during a flush. Raises OSError."""
        assert not self._flushing
        self._restore(topic)
        queue = self._queues.pop((topic, queue_id), None)
        if queue is not None:
            self.tails_bytes -= queue.tail_bytes
            self._with_tail.pop((topic, queue_id), None)
            self._overfull.pop((topic, queue_id), None)
        self.damaged.pop((topic, queue_id), None)
        path = f"{self._files.directory}/{topic}/{queue_id}"
        for start in self._files.starts(path):
            self._files.remove(path, start)

    def truncate_to_commitlog(self, max_offset: int) -> None:
        """Drop entries that point at or above `max_offset`. Blocking; not during a flush."""
        assert not self._flushing
        self.write_tails()
        for topic in {
            extent.topic for extent in self._archive if extent.last_position >= max_offset
        }:
            self._restore(topic)
        for queue in self._queues.values():
            if queue.last_position < max_offset:
                continue
            try:
                end = queue.first_at(lambda at, _: at >= max_offset, queue.first_offset)
            except EntryDamaged as damage:
                self.damaged[queue.topic, queue.queue_id] = damage.reason
                continue
            if end < queue.max_offset:
                queue.truncate(end)

    def correct_min_offset(self, commitlog_min: int) -> None:
        """Move every queue's first_offset up to the oldest message in the CommitLog, and remove
        whole files below. During a flush it does nothing; the next call does it. Raises OSError."""
        if self._flushing:
            return
        for queue in self._queues.values():
            queue.correct_min(commitlog_min)
        self.corrected_to = self._log_start = commitlog_min

    def close(self) -> None:
        """Close the files; unflushed tails are lost, as in a kill."""
        self._files.close()
        self._queues, self._with_tail, self._overfull, self.tails_bytes = {}, {}, {}, 0
        self._archive = QueueArchive()

    def _write_tail(self, key: tuple[str, int], queue: ConsumeQueue) -> None:
        size = queue.tail_bytes
        queue.write_tail()
        self.tails_bytes -= size
        self._with_tail.pop(key, None)
        self._overfull.pop(key, None)


def check_name(topic: str, queue_id: int) -> None:
    """Check that a topic is a directory name that leads nowhere else. Raises ValueError."""
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic or queue_id < 0:
        raise ValueError(f"not a queue: {topic!r}/{queue_id}")
