"""Decodes records at given positions into Arrow columns, all records at once.

Fixed fields are gathered with numpy, from all overlapping windows of their size. For ragged fields
a BinaryArray over the segment alternates fields (even elements) and the gaps between them (odd);
taking the even elements lets Arrow copy them at memory speed. Properties are split for all records
together, by the positions of the separators 0x01 and 0x02. Pure.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raftmq.store.properties import ADDED_PROPERTIES, FIELDS_SUM_MAX

from .layout import (
    HOST_IPV6_SIZE_BYTES,
    HOST_SIZE_BYTES,
    RECORD_HEAD,
    RECORD_MAGIC_V2,
    RECORD_TAIL,
    SYSFLAG_BORN_IPV6,
    SYSFLAG_COMPRESSED,
    SYSFLAG_COMPRESSION,
    SYSFLAG_STORE_IPV6,
    java_hash,
)

Array = npt.NDArray[Any]

CONTENT_SIZE_BYTES_MAX = 64 * 1024 * 1024  # of a decompressed body; a larger body has no CRC
_MULTIPLIER_COUNT = 8_192  # multipliers of hashes; a longer record reuses them
_HEAD_LONGS_MAX = 16  # the fixed fields have 88 bytes, or 112 with IPv6
_MULTIPLIERS = np.random.Generator(np.random.PCG64(1)).integers(
    0, 1 << 63, _MULTIPLIER_COUNT, np.uint64
) * np.uint64(2) + np.uint64(1)
_HEAD_FIELDS = (
    *("size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset"),
)
_ADDED = frozenset(name.encode() for name in ADDED_PROPERTIES)
PROPERTY_NAMES = {
    "uniq_key": b"UNIQ_KEY",
    "keys": b"KEYS",
    "tags": b"TAGS",
    "sharding_key": b"__SHARDINGKEY",
}

RECORD_FIELDS: list[tuple[str, Any]] = [
    ("magic", pa.int32()),
    ("body_crc", pa.int32()),
    ("queue_id", pa.int32()),
    ("flag", pa.int32()),
    ("queue_offset", pa.int64()),
    ("physical_offset", pa.int64()),
    ("sysflag", pa.int32()),
    ("born_timestamp", pa.int64()),
    ("store_timestamp", pa.int64()),
    ("reconsume_times", pa.int32()),
    ("body_size", pa.int32()),
    ("topic", pa.string()),
    ("uniq_key", pa.string()),
    ("keys", pa.string()),
    ("tags", pa.string()),
    ("sharding_key", pa.string()),
    ("tags_code", pa.int64()),
    ("intact", pa.bool_()),  # the body's CRC matches the record's
    ("content_crc", pa.int64()),  # CRC of the body as the producer gave it (unpacked), 31 bits
    ("fields_sum", pa.int64()),  # store.properties.fields_sum of the producer's fields
    ("rest_hash", pa.int64()),  # of all bytes of the record but its body, or perhaps a few of those
]


@dataclass(frozen=True, slots=True)
class _FieldBounds:
    """The positions of each record's ragged fields, as int64 arrays relative to the segment."""

    body: Array
    body_end: Array
    topic: Array
    topic_end: Array
    properties: Array
    properties_end: Array


@dataclass(frozen=True, slots=True)
class Pairs:
    """The name-value pairs of many properties strings, as arrays of start and end in `content`,
    length of the name, and owner among the `count` strings."""

    content: memoryview
    count: int
    starts: Array
    name_sizes: Array
    ends: Array
    owners: Array
    names: tuple[list[bytes], Array]  # the distinct names, and the index of each pair's name

    def hits(self, *names: bytes) -> Array:
        """Return the rising indexes of the pairs with one of these names."""
        known, numbers = self.names
        is_requested = np.array([name in names for name in known], bool)
        return np.flatnonzero(is_requested[numbers]) if len(known) else np.empty(0, np.int64)

    def named(self, names: dict[str, bytes]) -> dict[str, pa.Array]:
        """Pick named values; null if the name is missing. The last of repeated names counts."""
        result = {}
        for column, name in names.items():
            hits = self.hits(name)
            bounds = np.full(self.count, -1, np.int64)
            bounds[self.owners[hits]] = hits  # hits rise, so the last of repeated names remains
            present = bounds >= 0
            chosen = bounds[present]
            values_at = self.starts[chosen] + self.name_sizes[chosen] + 1
            values = _text(_ragged(self.content, values_at, self.ends[chosen]))
            ranks = np.where(present, np.cumsum(present) - 1, 0)
            result[column] = values.take(pa.array(ranks, mask=~present))
        return result

    def maps(self) -> pa.Array:
        """Return a map of names and values for each string. The last of repeated names counts."""
        known, numbers = self.names
        kept = _last_of_each(self.owners, numbers)
        values = _text(
            _ragged(self.content, (self.starts + self.name_sizes + 1)[kept], self.ends[kept])
        )
        ends = np.searchsorted(self.owners[kept], np.arange(self.count + 1)).astype(np.int32)
        names = _text(pa.array(known, pa.binary())).take(pa.array(numbers[kept]))
        return pa.MapArray.from_arrays(pa.array(ends), names, values)

    def sums(self) -> Array:
        """Return, for each string, the sum of the CRCs of its producer's pairs."""
        given = self.name_sizes > 0
        given[self.hits(*_ADDED)] = False
        bounds = zip(self.starts[given].tolist(), self.ends[given].tolist(), strict=True)
        crcs = [zlib.crc32(self.content[start:end]) for start, end in bounds]
        sums = np.bincount(self.owners[given], np.array(crcs, np.float64), self.count)
        return sums.astype(np.int64)  # exact, as a string has fewer than 2^21 pairs


@dataclass(frozen=True, slots=True)
class Records:
    """Many records with decoded fixed fields; ragged fields are decoded on demand."""

    data: memoryview
    at: Array
    head: Array  # of RECORD_HEAD
    sysflag: Array
    store_timestamp: Array
    tail: Array  # of RECORD_TAIL
    bounds: _FieldBounds

    def __len__(self) -> int:
        return len(self.at)

    def topics(self) -> pa.Array:
        return _text(_ragged(self.data, self.bounds.topic, self.bounds.topic_end))

    def pairs(self) -> Pairs:
        bounds = self.bounds
        return pairs_of(_ragged(self.data, bounds.properties, bounds.properties_end))

    def bodies(self) -> pa.Array:
        return _ragged(self.data, self.bounds.body, self.bounds.body_end)

    def body_crcs(self) -> Array:
        return _body_crcs(self.data, self.bounds.body, self.bounds.body_end)


def records_at(data: memoryview, positions: Sequence[int]) -> Records:
    """Read the records at `positions` (rising, relative to `data`, each of checked shape)."""
    raw = np.frombuffer(data, np.uint8)
    at = np.asarray(positions, np.int64)
    head = gathered(raw, at, RECORD_HEAD)
    sysflag = head["sysflag"].astype(np.int32)
    store_time_at = at + RECORD_HEAD.itemsize + _host_size(sysflag, SYSFLAG_BORN_IPV6)
    tail_at = store_time_at + 8 + _host_size(sysflag, SYSFLAG_STORE_IPV6)
    tail = gathered(raw, tail_at, RECORD_TAIL)
    bounds = _field_bounds(raw, at, head, tail_at + RECORD_TAIL.itemsize, tail["body_length"])
    stored = gathered(raw, store_time_at, np.dtype(">i8")).astype(np.int64)
    return Records(data, at, head, sysflag, stored, tail, bounds)


def record_columns(
    data: memoryview, positions: Sequence[int], body: bool, rest: bool = True
) -> dict[str, pa.Array]:
    """Decode the records at `positions` (rising, relative to `data`, each of checked shape).

    Returns `size`, the columns of RECORD_FIELDS (`rest_hash` null without `rest`), and `body` (as
    stored) if asked for.
    """
    records = records_at(data, positions)
    head, sysflag, tail, bounds = records.head, records.sysflag, records.tail, records.bounds
    columns: dict[str, Any] = {
        name: head[name].astype(head.dtype[name].newbyteorder("=")) for name in _HEAD_FIELDS
    }
    columns["sysflag"] = sysflag
    columns["born_timestamp"] = head["born_timestamp"].astype(np.int64)
    columns["store_timestamp"] = records.store_timestamp
    columns["reconsume_times"] = tail["reconsume_times"].astype(np.int32)
    columns["body_size"] = tail["body_length"].astype(np.int32)
    columns["topic"] = records.topics()
    pairs = records.pairs()
    columns.update(pairs.named(PROPERTY_NAMES))
    columns["fields_sum"] = pairs.sums() + columns["flag"] & FIELDS_SUM_MAX
    columns["tags_code"] = tags_codes(columns["tags"])
    crc = records.body_crcs()
    columns["intact"] = crc == columns["body_crc"]
    columns["content_crc"] = _content_crcs(data, bounds, sysflag, crc)
    columns["rest_hash"] = (
        _rest_hashes(data, records) if rest else pa.nulls(len(records), pa.int64())
    )
    if body:
        columns["body"] = records.bodies()
    return {name: _arrow(column) for name, column in columns.items()}


def _last_of_each(owners: Array, names: Array) -> Array:
    """Return the rising indexes of each owner's last pair per name."""
    order = np.lexsort((names, owners))  # stable, so that the last of equal pairs is last
    owner, name = owners[order], names[order]
    last = np.ones(len(order), bool)
    last[:-1] = (owner[1:] != owner[:-1]) | (name[1:] != name[:-1])
    return np.sort(order[last])


def properties_of(properties: pa.Array, names: dict[str, bytes]) -> dict[str, pa.Array]:
    """Pick named values from properties strings; null if the name is missing."""
    return pairs_of(properties).named(names)


def pairs_of(properties: pa.Array) -> Pairs:
    """Split an array of properties strings.

    As in Java's decoder, a pair ends at 0x02 or with the string, and its name at its first 0x01.
    The last of repeated names counts, and a pair with an empty value is absent.
    """
    count = len(properties)
    offsets = np.frombuffer(properties.buffers()[1], np.int32, count + 1, properties.offset * 4)
    content = properties.buffers()[2]
    raw = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    raw = raw[: offsets[-1]] if count else raw[:0]
    # A pair starts with its string and after each 0x02; it ends before the next pair or the end.
    breaks = np.flatnonzero(raw == 2)
    starts = _merged(offsets[:-1].astype(np.int64), breaks + 1)
    starts = starts[starts < len(raw)]
    owners = np.searchsorted(offsets, starts, side="right") - 1
    ends = np.append(starts, len(raw))[1:]
    ends -= raw[ends - 1] == 2
    names_end = _first_at_or_after(np.flatnonzero(raw == 1), starts, ends)
    complete = (names_end >= starts) & (names_end + 1 < ends)
    starts, ends, owners, names_end = (
        starts[complete],
        ends[complete],
        owners[complete],
        names_end[complete],
    )
    view = memoryview(content) if content is not None else memoryview(b"")
    encoded = _ragged(view, starts, names_end).dictionary_encode()
    names = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    return Pairs(view, count, starts, names_end - starts, ends, owners, names)


def _first_at_or_after(values: Array, starts: Array, ends: Array) -> Array:
    """Return for each rising range [start, end) the first of the rising `values` at or behind its
    start; -1 if there is none."""
    if len(values) == len(starts) and ((starts <= values) & (values < ends)).all():
        return values  # usually each range has one
    next_value = np.searchsorted(values, starts)
    result = np.full(len(starts), -1, np.int64)
    there = next_value < len(values)
    result[there] = values[next_value[there]]
    return result


def _merged(left: Array, right: Array) -> Array:
    """Return the sorted distinct values of two sorted arrays. numpy's union1d uses a hash table,
    which takes fifty times as long."""
    values = np.concatenate((left, right))
    values.sort(kind="stable")  # two runs are merged
    first = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def tags_codes(tags: pa.Array) -> pa.Array:
    """Return the ConsumeQueue's tags code of each TAGS string, its Java hash, or 0 without tags."""
    encoded = pc.dictionary_encode(tags)
    hashes = pa.array([java_hash(tag) for tag in encoded.dictionary.to_pylist()], pa.int64())
    return pc.fill_null(hashes.take(encoded.indices), 0)


def gathered(raw: Array, at: Array, dtype: np.dtype[Any]) -> Array:
    """Return the `dtype` values at byte positions `at`, which need no alignment."""
    if not len(at):
        return np.empty(0, dtype)
    width = dtype.itemsize
    windows = np.ndarray((max(0, len(raw) - width + 1),), f"V{width}", raw.data, strides=(1,))
    result: Array = windows[at].view(dtype)  # byte rows would be copied individually
    return result


def _host_size(sysflag: Array, flag: int) -> Array:
    return np.where(sysflag & flag, HOST_IPV6_SIZE_BYTES, HOST_SIZE_BYTES)


def _field_bounds(
    raw: Array, at: Array, head: Array, body: Array, body_length: Array
) -> _FieldBounds:
    body_end = body + body_length
    long_topic = head["magic"] == RECORD_MAGIC_V2
    # The length field has one byte in version 1, two in version 2; both have two readable bytes.
    two = gathered(raw, body_end, np.dtype(">u2")).astype(np.int64)
    topic_length = np.where(long_topic, two, two >> 8)
    topic = body_end + np.where(long_topic, 2, 1)
    topic_end = topic + topic_length
    return _FieldBounds(body, body_end, topic, topic_end, topic_end + 2, at + head["size"])


def _ragged(data: memoryview, starts: Array, ends: Array) -> pa.Array:
    """Return bytes [starts[i], ends[i]) of `data` as a binary array; fields rise without overlap.

    Positions fit int32 because a segment is at most 2 GiB - 1, as in Apache's broker.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    alternating = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return alternating.take(pa.array(np.arange(0, 2 * count, 2)))


def _text(values: pa.Array) -> pa.Array:
    """Cast binary to string. Invalid UTF-8 (damage) becomes U+FFFD rather than an error."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(texts, pa.string())


def _body_crcs(data: memoryview, starts: Array, ends: Array) -> Array:
    bodies = map(data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
    values = np.fromiter(map(zlib.crc32, bodies), np.int64, len(starts))
    return values & 0x7FFFFFFF


def _rest_hashes(data: memoryview, records: Records) -> Array:
    """Return a hash of each record without its body, over the fixed fields and the bytes behind the
    body. Different records have the same hash only by accident.

    The hash sums 8-byte words, each multiplied by an odd number for its position, so that all
    records need only a few passes. An incomplete last word starts earlier, even in the body.
    """
    if not len(records):
        return np.empty(0, np.int64)
    raw = np.frombuffer(data, np.uint8)
    bounds = records.bounds
    return _word_sums(raw, records.at, bounds.body, 0) + _word_sums(
        raw, bounds.body_end, bounds.properties_end, _HEAD_LONGS_MAX
    )


def _word_sums(raw: Array, starts: Array, ends: Array, salt: int) -> Array:
    """Return, for each range of bytes, the sum of its words times their multipliers."""
    counts = (ends - starts + 7) // 8
    firsts = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum())) - np.repeat(firsts, counts)
    at = np.minimum(np.repeat(starts, counts) + 8 * numbers, np.repeat(ends, counts) - 8)
    values = gathered(raw, at, np.dtype(np.uint64))
    sums: Array = np.add.reduceat(
        values * _MULTIPLIERS[(numbers + salt) % _MULTIPLIER_COUNT], firsts
    )
    return sums.view(np.int64)


def _content_crcs(data: memoryview, bounds: _FieldBounds, sysflag: Array, crc: Array) -> pa.Array:
    """Return the CRC of each body as its producer sent it, after decompression.

    Null if a compressed body cannot be decompressed.
    """
    values = crc.copy()
    unknown = np.zeros(len(crc), bool)
    for i in np.flatnonzero(sysflag & SYSFLAG_COMPRESSED).tolist():
        stored = data[int(bounds.body[i]) : int(bounds.body_end[i])]
        content = unpack_body(stored, int(sysflag[i]))
        unknown[i] = content is None
        values[i] = 0 if content is None else zlib.crc32(content) & 0x7FFFFFFF
    return pa.array(values, pa.int64(), mask=unknown)


def unpack_body(stored: bytes | memoryview, sysflag: int) -> bytes | None:
    """Decompress a body; None if it is damaged or larger than CONTENT_SIZE_BYTES_MAX."""
    codec = {0x100: "lz4", 0x200: "zstd"}.get(sysflag & SYSFLAG_COMPRESSION)
    try:
        if codec is None:
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(stored, CONTENT_SIZE_BYTES_MAX)
            return content if unpacker.eof else None
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(stored)), codec) as stream:
            unpacked: bytes = stream.read(CONTENT_SIZE_BYTES_MAX + 1)
            return unpacked if len(unpacked) <= CONTENT_SIZE_BYTES_MAX else None
    except (zlib.error, OSError):
        return None


def _arrow(column: Any) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column)
