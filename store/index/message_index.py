"""The index of messages by key, a sequence of IndexFiles that lags behind the CommitLog.

Dispatch only hands over the ConsumeQueue entries (`dispatched`), which locate the records. `step`
indexes the next slice of the dispatched log when its caller has time; a lookup first catches up.
Measured with 128-byte bodies, one key and 1,000 messages per step: 0.15 us per message (0.3 without
entries, after a restart), compared to 0.9 for dispatch. A step of a single message takes some 80
us, so steps are large. A separate thread took twice the time, because array operations release and
take the interpreter's lock every time.

After a restart the index ends where its last flush ended, or at the end of the durable part of the
log (`bound`) if that is earlier; entries above are dropped and indexed again. Each file but the
last is full, and each starts at the first key behind the previous file. A damaged or missing file
is dropped with all later files and indexed again, which only costs time.

The checkpoint's indexMsgTimestamp (`full_until_ms`) is the store time up to which full, durable
files reach. After an unclean stop Apache drops every later file. Here later files, and files that
are not full, are read through and their slots rebuilt.

At damage in the log the index stops before the last readable record, in order to continue in the
repaired log. If its caller stops waiting, it continues with the next record or frame with a right
stored offset.

Messages that the log has deleted are not indexed; files below its start are removed.

The first step imports numpy, unless `preload` has. A start without index files takes a seventh less
CPU time without it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..commitlog.commitlog import CommitLog
from ..disk import Disk
from ..errors import StoreDamaged
from ..frame import EntryBatch
from ..record import HEAD_SIZE_BYTES, RecordError, decode_record, store_timestamp_at
from .index_keys import find_sound, has_key, key_hash
from .index_limits import IndexLimits

if TYPE_CHECKING:
    from .index_file import FileFlush, IndexFile
    from .key_walker import Keys, KeyWalker, Walk

log = logging.getLogger("raftmq.store.index")

STEP_BYTES = 640 << 10  # of the log per step, some 2,000 small messages, half a millisecond
# batches of entries that wait for the index; further entries are found in the log
BATCHES_MAX = 16_384
# of the log, for these batches, some 4 MB of entries of small messages
BATCHES_BYTES_MAX = 64 << 20
QUERY_COUNT_MAX = 64
QUERY_BYTES_MAX = 8 << 20  # half of the largest remoting frame
CHAIN_ENTRIES_MAX = 20_000  # read per query; a key of every message is useless
UNMARKED_BYTES = 1 << 20  # of log without any key, walked again after a restart
NAME_DIGITS = 17


def preload() -> None:
    """Import numpy, which takes a tenth of a second. Blocking."""
    from . import index_file  # noqa: F401


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """The result of a lookup, records in log order, and the end of the index."""

    records: list[bytes]
    index_timestamp_ms: int
    index_offset: int


@dataclass(frozen=True, slots=True)
class IndexFlush:
    """A flush of index files: `run` it in the pool, then `MessageIndex.finish_flush`."""

    disk: Disk
    directory: str
    directory_dirty: bool
    files: list[FileFlush]

    def run(self) -> None:
        """Write and sync the files. Blocking. Raises OSError."""
        for file in self.files:
            file.run()
        if self.directory_dirty:
            self.disk.sync_directory(self.directory)


class DispatchedEntries:
    """The entries of the last dispatched records, which locate the records in the log."""

    def __init__(self) -> None:
        # (end in the log, entries)
        self._batches: deque[tuple[int, Sequence[EntryBatch]]] = deque()
        self._start = 0  # start of the first batch in the log

    def add(self, start: int, end: int, queue_entries: Sequence[EntryBatch]) -> None:
        """Add the entries of the log's part from `start` to `end`, just dispatched. It should
        follow the previous part."""
        batches = self._batches
        many = len(batches) >= BATCHES_MAX or end - self._start > BATCHES_BYTES_MAX
        if not batches or batches[-1][0] != start or many:
            batches.clear()
            self._start = start
        batches.append((end, queue_entries))

    def take(self, position: int, limit: int) -> tuple[int, bytes]:
        """Remove and return the end of the last batch between the two offsets, and the entries from
        `position` to there. If they are unknown, return `position` and no entries."""
        batches, end, parts = self._batches, position, []
        while batches and self._start <= end and batches[0][0] <= limit:
            self._start, queue_entries = batches.popleft()
            if self._start > position:
                end = self._start
                parts += [packed for _, _, _, packed in queue_entries]
        return end, b"".join(parts)

    def clear(self) -> None:
        self._batches.clear()

    def __len__(self) -> int:
        return len(self._batches)


class MessageIndex:
    """The index of a store's messages by key. For the loop only, except `IndexFlush.run`."""

    def __init__(
        self, disk: Disk, directory: str, commitlog: CommitLog, limits: IndexLimits | None = None
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.limits = limits or IndexLimits()
        self.files: list[IndexFile] = []
        self.position = 0  # end of the indexed part of the log
        self.full_until_ms = 0
        self._commitlog = commitlog
        self._walker: KeyWalker | None = None
        self._skip = 0  # already indexed keys of the record at `position`
        self._last_hash = 0  # of the last of these keys
        self.dispatched = DispatchedEntries()
        self._passed = -1  # position of damage that is no longer waited for
        self._last = -1, 0  # offset and store time of the last record walked
        self._directory_dirty = False
        self._flushing = False

    # -- life ---------------------------------------------------------------------------------

    def open(self, bound: int, *, clean: bool, full_until_ms: int) -> None:
        """Open the existing files and keep their valid part below CommitLog offset `bound`.
        Blocking. Raises OSError."""
        assert not self.files
        self.full_until_ms = full_until_ms
        self.disk.makedirs(self.directory)
        names = self.disk.listdir(self.directory)
        strangers = [n for n in names if len(n) != NAME_DIGITS or not n.isdecimal()]
        if strangers:
            log.warning("index_not_ours directory=%s names=%s", self.directory, strangers)
        ours = [name for name in names if name not in strangers]
        if ours:
            from .index_file import IndexFile, limits_of

        for name in ours[:1]:  # neither Apache's broker nor this store reads files of two sizes
            limits = limits_of(self.disk, f"{self.directory}/{name}", self.limits)
            if limits != self.limits:
                log.info(
                    "index_file_size_adopted slots=%d entries=%d", limits.slots, limits.entries
                )
            self.limits = limits
        row = True  # whether all files up to here are valid, so that the next may follow
        for name in ours:
            file = IndexFile(self.disk, f"{self.directory}/{name}", self.limits)
            if row and self._keep(file, bound, clean):
                self.files.append(file)
                row = file.full
            else:
                row = False
                self._remove(file)
        self.truncate(bound)

    def _keep(self, file: IndexFile, bound: int, clean: bool) -> bool:
        """Return whether a file continues the sequence, at start."""
        if not file.plausible or (file.count == 1 and not file.end_offset):
            return False
        expected = self._first_key_behind(bound)
        if expected is not None and file.start_offset > expected:
            return False
        if self.files and file.start_offset < self.files[-1].end_offset:
            return False
        trusted = clean or (file.full and file.end_ms <= self.full_until_ms)
        if not trusted and not file.drop_bad() and file.end_offset < bound:
            file.rebuild()  # otherwise `truncate` does it
        return file.count > 1 or file.end_offset > 0

    def _first_key_behind(self, bound: int) -> int | None:
        """Return the offset of the first message below `bound` with a key missing in the files
        kept; None if there is none, or if unknown."""
        self._resume()
        while self.position < bound:
            walk = self._read(min(bound, self.position + STEP_BYTES), bound)
            self.position = walk.end
            missing = self._missing(walk.keys)
            if len(missing.offsets):
                return int(missing.offsets[0])
            self._skip = 0
            if walk.error:
                return None
        return None

    def truncate(self, offset: int) -> None:
        """Drop entries that point at or above `offset`. Blocking; not during a flush."""
        assert not self._flushing
        self.dispatched.clear()
        while self.files and self.files[-1].end_offset >= offset:
            file = self.files[-1]
            # A full file is durable and trusted, so it is removed and indexed again as a whole.
            if not file.full and file.count > 1 and file.entry(1)[1] < offset:
                file.truncate(offset)
                if file.end_offset < offset:
                    break
            self.files.pop()
            self._remove(file)
        self._resume()

    def _resume(self) -> None:
        """Continue behind the last indexed message; its keys may be only partly in the files."""
        files = [file for file in self.files if file.end_offset or file.count > 1]
        self.position, self._skip = self._commitlog.min_offset, 0
        if not files or files[-1].end_offset < self.position:
            return
        self.position = files[-1].end_offset
        for file in reversed(files):
            trailing = file.trailing(self.position)
            if trailing and not self._skip:
                self._last_hash = file.entry(file.count - 1)[0]
            self._skip += trailing
            if trailing < file.count - 1:
                break

    def _missing(self, keys: Keys) -> Keys:
        """Return the keys, from `position` on, without those that the files have. A broker of 3.x
        indexes no UNIQ_KEY, so its last message has fewer entries than keys, and lacks none."""
        skip = self._skip
        if 0 < skip <= len(keys.hashes) and keys.hashes[skip - 1] != self._last_hash:
            skip = len(keys.before(int(keys.offsets[0]) + 1).hashes)
        return keys.since(skip)

    def close(self) -> None:
        """Close the files; unflushed entries are lost, as in a kill."""
        for file in self.files:
            file.close()
        self.files = []

    # -- following the log ----------------------------------------------------------------------

    def step(self, limit: int, budget_bytes: int = STEP_BYTES) -> int:
        """Index about `budget_bytes` more of the log up to `limit`, a record's or frame's end, or
        load some of the last file after a start. Return how many bytes are left. Raises
        StoreDamaged at damage in the log; call again after its repair, or `pass_damage`. Raises
        OSError; then call again."""
        if self.position < self._commitlog.min_offset:
            self.position, self._skip = self._commitlog.min_offset, 0
        if self.position >= limit:
            return 0
        if self.files and not self.files[-1].full and not self.files[-1].load():
            return limit - self.position
        start, skip = self.position, self._skip
        end, queue_entries = self.dispatched.take(start, min(limit, start + budget_bytes))
        if end == start:
            end = min(limit, start + max(HEAD_SIZE_BYTES, budget_bytes))
        walk = self._read(end, limit, queue_entries)
        keys, stop = walk.keys, min(walk.end, limit)
        if walk.error:
            stop = max(start, walk.last_offset)  # the stored size may be the damage
            if walk.end == self._passed:
                stop = self._passed = self._next_sound(stop + 1, limit, budget_bytes)
            elif stop == start:
                raise StoreDamaged(walk.end, walk.error)
            else:
                keys = keys.before(stop)
        elif walk.last_offset >= 0:
            self._last = walk.last_offset, walk.last_store_ms
        missing = self._missing(keys)
        self.position, self._skip = stop, 0
        try:
            self._append(missing)
        except OSError:  # written entries count, so continue behind them
            self._resume()
            if self.position < start:
                self.position, self._skip = start, skip
            raise
        self._mark()
        return max(0, limit - self.position)

    def pass_damage(self, position: int) -> None:
        """Let `step` continue after the damage that it found at `position`."""
        self._passed = position

    def _next_sound(self, start: int, limit: int, budget_bytes: int) -> int:
        """Return the start of the next record or frame from `start` on within `budget_bytes`;
        otherwise the end of the searched part."""
        end = min(self._commitlog.segment_end(start), limit)
        data = self._commitlog.read(start, min(end - start, budget_bytes + HEAD_SIZE_BYTES))
        at = find_sound(data, start)
        if at >= 0:
            return start + at
        return end if start + len(data) >= end else start + budget_bytes

    def _read(self, end: int, limit: int, queue_entries: bytes = b"") -> Walk:
        """Walk the log from `position` to `end`, or a larger record's end, within `limit`."""
        if self._walker is None:
            from .key_walker import KeyWalker

            self._walker = KeyWalker()
        position, commitlog = self.position, self._commitlog
        data = commitlog.read(position, end - position)
        walk = self._walker.walk(data, position, queue_entries)
        if walk.end == position and not walk.error:  # the record is larger than the slice
            size = int.from_bytes(data[:4], "big", signed=True)
            data = commitlog.read(position, min(max(size, 0), limit - position))
            walk = self._walker.walk(data, position)
            if walk.end == position and not walk.error:
                reason = "a record goes beyond the end of its segment or of the log"
                walk = replace(walk, error=reason)
        return walk

    def _append(self, keys: Keys) -> None:
        while len(keys.hashes):
            file = self.files[-1] if self.files else None
            if file is None or file.full:
                file = self._create(int(keys.store_ms[0]))
            keys = keys.since(file.append(keys))

    def _create(self, store_ms: int) -> IndexFile:
        """Create the next file. Its name is the store time of its first message in local time, as
        Apache's, or the last file's name plus one if the clock was set back."""
        from .index_file import IndexFile

        parts = time.localtime(store_ms // 1000)
        name = time.strftime("%Y%m%d%H%M%S", parts) + f"{store_ms % 1000:03d}"
        if self.files:
            last = self.files[-1].path.rpartition("/")[2]
            name = max(name, f"{int(last) + 1:0{NAME_DIGITS}d}")
        file = IndexFile(self.disk, f"{self.directory}/{name}", self.limits)
        self._directory_dirty = True
        self.files.append(file)
        return file

    def _mark(self) -> None:
        """Record the progress in a long part of the log without keys."""
        last, stamp = self._last
        done = self.files[-1].end_offset if self.files else self._commitlog.min_offset
        if last - done >= UNMARKED_BYTES:
            file = self.files[-1] if self.files else self._create(stamp)
            if not file.full:
                file.mark(last, stamp)

    # -- looking up ---------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        start_ms: int,
        end_ms: int,
        *,
        max_bytes: int = QUERY_BYTES_MAX,
    ) -> Generator[None, None, KeyQuery]:
        """Find the newest messages of `topic` that have `key` as UNIQ_KEY or among their KEYS,
        stored between the two times, an entry per step; the index may change in between. They are
        at most `max_count` and QUERY_COUNT_MAX, and `max_bytes` unless the first alone is larger.
        Raises StoreDamaged, OSError."""
        limit = min(max_count, QUERY_COUNT_MAX)
        hashed, scanned, size = key_hash(topic, key), 0, 0
        chosen: dict[int, bytes] = {}
        for file in self.files[::-1]:
            if file not in self.files:  # retention removed it
                continue
            if len(chosen) >= limit or file.end_ms < start_ms:
                break
            if file.start_ms > end_ms:
                continue
            for offset in file.select(hashed, start_ms, end_ms):
                yield
                scanned += 1
                if file not in self.files:
                    break
                if scanned > CHAIN_ENTRIES_MAX or len(chosen) >= limit:
                    break
                if offset is None or offset in chosen:
                    continue
                record = self._verified(offset, topic, key, start_ms, end_ms)
                if record is None:
                    continue
                size += len(record)
                if chosen and size > max_bytes:
                    limit = len(chosen)
                    break
                chosen[offset] = record
        last = self.files[-1] if self.files else None
        return KeyQuery(
            [chosen[offset] for offset in sorted(chosen)],
            last.end_ms if last else 0,
            last.end_offset if last else 0,
        )

    def _verified(
        self, offset: int, topic: str, key: str, start_ms: int, end_ms: int
    ) -> bytes | None:
        data = self._commitlog.served.record_at(offset)
        if data is None or not start_ms <= store_timestamp_at(data, 0) <= end_ms:
            return None
        try:
            record = decode_record(data, check_body=False)
        except RecordError:
            return None  # damaged and not verifiable
        return data if has_key(record, topic, key) else None

    # -- flushing and retention -----------------------------------------------------------------

    def start_flush(self) -> IndexFlush:
        """Return a flush that makes the index durable up to `position`. Not concurrent."""
        assert not self._flushing
        self._flushing = True
        files = [file.start_flush() for file in self.files if file.changed]
        flush = IndexFlush(self.disk, self.directory, self._directory_dirty, files)
        self._directory_dirty = False
        return flush

    def finish_flush(self, flush: IndexFlush, *, synced: bool) -> None:
        """Finish a flush after `run` returned (`synced`) or raised."""
        assert self._flushing
        self._flushing = False
        for file in flush.files:
            file.finish(synced=synced)
            if synced and file.full_until_ms is not None:
                self.full_until_ms = max(self.full_until_ms, file.full_until_ms)
        if not synced:
            self._directory_dirty |= flush.directory_dirty

    def delete_before(self, offset: int) -> int:
        """Remove files without an entry at or above CommitLog `offset`, but never the last; return
        how many. During a flush it does nothing; the next call does it. Raises OSError."""
        count = 0
        while not self._flushing and len(self.files) > 1 and self.files[0].end_offset < offset:
            self._remove(self.files.pop(0))
            count += 1
        return count

    def _remove(self, file: IndexFile) -> None:
        file.close()
        self.disk.remove(file.path)
        self._directory_dirty = True
