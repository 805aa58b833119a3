"""Arrow batches of a range of a CommitLog segment.

`shared_items` has a row for every item (record, frame header, blank, hole, end of data) and is
staged by the audit. `record_batches` has only the records, for readers of a topic. Spark accepts
Arrow batches only if they match the schemas exactly.

Of a file at a URI the bytes of the range are loaded, and those behind it that its last item needs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google_crc32c import value as crc32c

from raftmq.spark.columns import RECORD_FIELDS, record_columns
from raftmq.spark.layout import BLANK_SIZE_BYTES, ITEM_SIZE_BYTES_MAX, SYSFLAG_TRANSACTION, ItemKind
from raftmq.store.frame import FrameKind

from .files import View
from .index_keys import KEY_FIELDS, key_hashes
from .log_scanner import FrameItem, Gap, Walk, walk_range
from .store_files import STORES_SEPARATOR, first_unlike, same_bytes

BATCH_RECORDS_MAX = 65_536
BATCH_BODY_BYTES_MAX = 16 * 1024 * 1024  # per batch with bodies, approximately
BEHIND_BYTES = 1 << 20  # loaded behind a range for its last item, which is seldom longer
BEHIND_FACTOR = 40  # if it was not enough: more than the longest item, and then all
LONGEST = ITEM_SIZE_BYTES_MAX + BLANK_SIZE_BYTES

# Fields that only readers of a topic need; every staged column costs time.
_NOT_STAGED = ("magic", "flag", "physical_offset", "body_size", "keys", "sharding_key")
_STAGED = [(name, kind) for name, kind in RECORD_FIELDS if name not in _NOT_STAGED]
_FRAME_FIELDS: list[tuple[str, Any]] = [
    ("frame_index", pa.int64()),
    ("frame_term", pa.int64()),
    ("frame_kind", pa.int32()),
    ("records_at", pa.int64()),  # behind the header and its command, if any
    ("record_count", pa.int32()),  # in the header
    ("records_found", pa.int32()),
    ("payload_length", pa.int32()),
    ("command", pa.binary()),  # the payload before the records, if any
    ("payload_crc", pa.int64()),
    ("header_crc", pa.int64()),
]
LOG_SCHEMA = pa.schema(
    [
        ("store", pa.string()),
        ("kind", pa.int32()),
        ("position", pa.int64()),
        ("size", pa.int32()),
        *_STAGED,
        *KEY_FIELDS,
        *_FRAME_FIELDS,
        ("reason", pa.string()),
    ]
)
RECORD_SCHEMA = pa.schema(
    [("store", pa.string()), ("position", pa.int64()), ("size", pa.int32()), *RECORD_FIELDS]
)
RECORD_BODY_SCHEMA = RECORD_SCHEMA.append(pa.field("body", pa.binary()))


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a segment. `store` has the names of all stores that are known to have it alike,
    with STORES_SEPARATOR."""

    store: str
    view: View

    def walk(self, base: int, start: int, end: int) -> Walk:
        """Walk the items of bytes [start, end), and load them if they are not there. Raises
        OSError."""
        data, behind = self.view.data, BEHIND_BYTES
        while True:
            self.view.load(min(start, max(0, len(data) - LONGEST)), end + behind)
            walk = walk_range(data, base, start, end, self.view.written)
            if not self.view.is_partial or _is_inside(walk, data, start, end, end + behind):
                return walk
            behind *= BEHIND_FACTOR

    def end(self, base: int, high: int) -> int:
        """Return the end of the segment's content, or `high` before it. The bytes behind a blank
        record are undefined. Raises OSError."""
        size = len(self.view.data)
        if high <= size - LONGEST:
            return high
        gaps = self.walk(base, max(0, size - LONGEST), size).gaps
        blanks = (gap.at for gap in gaps if gap.kind == ItemKind.BLANK)
        return min(high, next((at + BLANK_SIZE_BYTES for at in blanks), size))


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes from log position `start` on that some stores have alike."""

    names: tuple[str, ...]
    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SharedItems:
    """The items that `stores`, sorted, have alike in log positions [start, end). `alike` is True if
    they have all bytes there alike."""

    stores: tuple[str, ...]
    start: int
    end: int
    alike: bool
    batches: Iterator[pa.RecordBatch]


def shared_items(
    copies: Sequence[Copy], base: int, start: int, end: int, stores: int = 0
) -> Iterator[SharedItems]:
    """Yield every item that the copies' bytes [start, end) own, in batches of LOG_SCHEMA.

    Items that several copies have alike are decoded once, and `store` has all their names with
    STORES_SEPARATOR. Copies that are not alike still share the items before the first difference,
    for instance those before the end of a lagging copy. Items that all `stores` (their number)
    share need no `rest_hash`.

    `intact` means that the CRC of a record's body, or of a frame's payload, is right. A frame
    header with a wrong CRC counts as a hole. Raises OSError.
    """

    def items(group: _Group, low: int, high: int) -> SharedItems:
        store = STORES_SEPARATOR.join(group.names)
        rest = len(group.names) != stores
        batches = _item_batches(group.walk, group.view.data, base, store, rest=rest)
        return SharedItems(group.names, base + low, base + high, group.alike, batches)

    groups = [*_groups(copies, base, start, end)]
    while len(groups) > 1:
        cut = _first_difference(groups, start, end)
        before, behind = zip(*(group.split(cut) for group in groups), strict=True)
        if not before[0].has_items or any(each.walk != before[0].walk for each in before):
            break
        if cut == end and any(each.walk.gaps for each in behind):
            break  # the range owns a hole or the data's end behind its last item
        yield items(_joined(before), start, cut)
        if cut == end:
            return
        start = cut
        for ended in behind:
            if not ended.has_items:
                yield items(ended, start, end)
        groups = [group for group in behind if group.has_items]
    for group in groups:
        yield items(group, start, end)


@dataclass(frozen=True, slots=True)
class _Group:
    """Stores with the same items in a range of a segment, the `view` of a copy, and whether they
    have all bytes alike."""

    names: tuple[str, ...]
    view: View
    walk: Walk
    alike: bool

    @property
    def has_items(self) -> bool:
        return bool(self.walk.records or self.walk.frames)

    def split(self, at: int) -> tuple[_Group, _Group]:
        before, behind = self.walk.split(at)
        return replace(self, walk=before), replace(self, walk=behind)


def _joined(groups: Sequence[_Group]) -> _Group:
    names = tuple(sorted(name for group in groups for name in group.names))
    return replace(groups[0], names=names, alike=all(group.alike for group in groups))


def _groups(copies: Sequence[Copy], base: int, start: int, end: int) -> Iterator[_Group]:
    left = [copy for copy in copies if start < len(copy.view.data)]
    while left:
        first, *left = left
        data = first.view.data
        own_end = min(end, len(data))
        walk = first.walk(base, start, own_end)
        low, high, walked = _compared(walk, data, start, end)
        low, high = first.view.clipped(low, high)
        content = np.frombuffer(data, np.uint8)
        same, alike = [first.store], True
        for copy in left:
            raw = np.frombuffer(copy.view.data, np.uint8)
            copy.view.load(low, high)
            if len(raw) != len(content) or not same_bytes(raw, content, low, high):
                continue
            if not walked or copy.walk(base, start, own_end) == walk:
                same.append(copy.store)
                alike &= not walked or same_bytes(raw, content, start, own_end)
        left = [copy for copy in left if copy.store not in same]
        names = STORES_SEPARATOR.join(same).split(STORES_SEPARATOR)
        yield _Group(tuple(sorted(names)), first.view, walk, alike)


def _first_difference(groups: Sequence[_Group], start: int, end: int) -> int:
    """Return the position of the first item that not all groups have alike, or `end`."""
    contents = [group.view.data for group in groups]
    ends = (group.walk.end(group.view.data) for group in groups)
    high = min(max(end, *ends), *map(len, contents))
    for group in groups:
        group.view.load(start, high)
    first, *others = (np.frombuffer(data, np.uint8) for data in contents)
    unlike = min(first_unlike(first, other, start, high) for other in others)
    firsts = (group.walk.first_behind(group.view.data, unlike) for group in groups)
    return min(end, unlike, *(at for at in firsts if at is not None))


def _is_inside(walk: Walk, data: memoryview, start: int, end: int, loaded: int) -> bool:
    """Return whether a walk over [start, end) would be the same if more bytes were `loaded`. A
    search passes an item that ends behind them. So does a walk, and reports a gap."""
    firsts = [*walk.records[:1], *(frame.at for frame in walk.frames[:1])]
    firsts += [gap.at for gap in walk.gaps[:1]]
    searched = [gap.at + gap.size_bytes for gap in walk.gaps if gap.kind == ItemKind.HOLE]
    if firsts or np.frombuffer(data, np.uint8)[start:end].any():
        searched.append(min(firsts, default=end))
    needed = [at + LONGEST for at in searched]
    needed += [frame.payload_end for frame in walk.frames[-1:]]
    needed += [len(data) for gap in walk.gaps if gap.kind == ItemKind.END]
    return min(max(needed, default=0), len(data)) <= loaded


def _compared(walk: Walk, data: memoryview, start: int, end: int) -> tuple[int, int, bool]:
    """Return the bytes of a further copy of the same length that must be equal for a range to have
    the same items, and whether the range must be walked there as well.

    A walk reads the items of its range, invalid bytes that start in it, and near the segment's end
    the bytes before. It follows a hole or the end of the data to the segment's end; then both items
    and walks must be equal.
    """
    starts = [*walk.records[:1], *(frame.at for frame in walk.frames[:1])]
    last_end = walk.end(data)
    if any(gap.kind != ItemKind.BLANK for gap in walk.gaps):
        return min(starts, default=0), last_end, True
    low = min(start, max(0, len(data) - LONGEST))
    return low, min(len(data), max(end, last_end) + LONGEST), False


def _item_batches(
    walk: Walk, data: memoryview, base: int, store: str, rest: bool = True
) -> Iterator[pa.RecordBatch]:
    for chunk in _chunks(walk.records, BATCH_RECORDS_MAX):
        columns = record_columns(data, chunk, body=False, rest=rest)
        columns["position"] = pa.array(np.asarray(chunk, np.int64) + base)
        columns |= key_hashes(columns)
        yield _batch(LOG_SCHEMA, store, len(chunk), kind=ItemKind.RECORD, **columns)
    for frames in _chunks(walk.frames, BATCH_RECORDS_MAX):
        yield _frame_batch(data, base, store, frames, walk.records)
    for gaps in _chunks(walk.gaps, BATCH_RECORDS_MAX):
        yield _gap_batch(base, store, gaps)


def record_batches(
    copy: Copy,
    base: int,
    start: int,
    end: int,
    topic: str | None = None,
    body: bool = True,
    until: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records that bytes [start, end) own as RECORD_SCHEMA, or RECORD_BODY_SCHEMA with
    bodies. Raises OSError.

    `topic` selects only that topic's visible records, without prepared and rolled-back
    transactions. `until` selects only records that end at or below that log position.
    """
    schema = RECORD_BODY_SCHEMA if body else RECORD_SCHEMA
    for chunk in _bounded(copy.walk(base, start, end).records, body):
        columns = record_columns(copy.view.data, chunk, body)
        columns["position"] = pa.array(np.asarray(chunk, np.int64) + base)
        batch = _batch(schema, copy.store, len(chunk), **columns)
        if topic is not None:
            batch = batch.filter(pc.equal(batch["topic"], topic))
            bits = pc.bit_wise_and(batch["sysflag"], SYSFLAG_TRANSACTION)
            batch = batch.filter(pc.is_in(bits, pa.array([0, 8], bits.type)))
        if until is not None:
            last = pc.add(batch["position"], batch["size"].cast(pa.int64()))
            batch = batch.filter(pc.less_equal(last, until))
        if batch.num_rows:
            yield batch


def _frame_batch(
    data: memoryview, base: int, store: str, frames: Sequence[FrameItem], records: Sequence[int]
) -> pa.RecordBatch:
    """Build a batch of frames; the last frame's `records` may be in the next range."""
    intact, record_counts = [], []
    for frame in frames:
        start, end = frame.at + frame.header_size, frame.payload_end
        intact.append(crc32c(bytes(data[start:end])) == frame.payload_crc)
        if frame.kind != FrameKind.MESSAGES:
            record_counts.append(0)
        elif records and records[-1] >= end:
            record_counts.append(bisect_left(records, end) - bisect_left(records, start))
        else:
            record_counts.append(len(walk_range(data, base, frame.at + frame.size, end).records))
    return _batch(
        LOG_SCHEMA,
        store,
        len(frames),
        kind=ItemKind.FRAME,
        position=[base + frame.at for frame in frames],
        size=[frame.header_size for frame in frames],
        store_timestamp=[frame.timestamp_ms for frame in frames],
        intact=intact,
        frame_index=[frame.index for frame in frames],
        frame_term=[frame.term for frame in frames],
        frame_kind=[frame.kind for frame in frames],
        records_at=[base + frame.at + frame.size for frame in frames],
        record_count=[frame.record_count for frame in frames],
        records_found=record_counts,
        payload_length=[frame.payload_length for frame in frames],
        command=[
            bytes(data[frame.at + frame.header_size : frame.at + frame.size]) or None
            for frame in frames
        ],
        payload_crc=[frame.payload_crc for frame in frames],
        header_crc=[frame.header_crc for frame in frames],
    )


def _gap_batch(base: int, store: str, gaps: Sequence[Gap]) -> pa.RecordBatch:
    return _batch(
        LOG_SCHEMA,
        store,
        len(gaps),
        kind=[int(gap.kind) for gap in gaps],
        position=[base + gap.at for gap in gaps],
        size=[gap.size_bytes for gap in gaps],
        reason=[gap.reason for gap in gaps],
    )


def _batch(schema: pa.Schema, store: str, count: int, **columns: Any) -> pa.RecordBatch:
    """Build a batch of `schema`. Missing columns are null, and a number fills all rows."""
    arrays = []
    for field in schema:
        column = store if field.name == "store" else columns.get(field.name)
        if column is None:
            arrays.append(pa.nulls(count, field.type))
        elif isinstance(column, str | int):
            arrays.append(pa.repeat(pa.scalar(column, field.type), count))
        elif isinstance(column, pa.Array):
            arrays.append(column.cast(field.type))
        else:
            arrays.append(pa.array(column, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _bounded(positions: Sequence[int], body: bool) -> Iterator[Sequence[int]]:
    """Yield chunks of at most BATCH_RECORDS_MAX records and, with bodies, about
    BATCH_BODY_BYTES_MAX bytes of log."""
    first = 0
    for i in range(1, len(positions) + 1):
        full = i - first >= BATCH_RECORDS_MAX
        if body and i < len(positions):
            full = full or positions[i] - positions[first] >= BATCH_BODY_BYTES_MAX
        if full or i == len(positions):
            yield positions[first:i]
            first = i
