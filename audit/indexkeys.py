"""The keys by which messages have to be found, for many records at once. Pure but for the maps of
segments.

A message is indexed by `topic#key`, for its UNIQ_KEY and for each word of its KEYS; the record of a
transaction that was rolled back is not. The hash is the absolute value of Java's String.hashCode,
and 0 where Java's abs stays negative. Written anew from the format, for whole arrays, so that the
store's own code is not what it is judged by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raftmq.audit.files import Segment, map_file
from raftmq.spark.columns import PROPERTY_NAMES, records_at
from raftmq.spark.layout import (
    BODY_AT,
    HOST_IPV6_SIZE_BYTES,
    HOST_SIZE_BYTES,
    RECORD_HEAD,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    RECORD_SIZE_BYTES_MIN,
    SYSFLAG_BORN_IPV6,
    SYSFLAG_STORE_IPV6,
    SYSFLAG_TRANSACTION,
    java_hash,
)

ROLLED_BACK = 12  # transaction bits
_BASE = np.uint32(31)
_SEPARATOR = np.uint32(ord("#"))
_IPV6 = (SYSFLAG_BORN_IPV6, SYSFLAG_STORE_IPV6)
_NAMES = {name: PROPERTY_NAMES[name] for name in ("uniq_key", "keys")}
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ExpectedKeys:
    """Keys of the records at some positions. `found`: the numbers of the positions at which there
    is a record, `store_ms` its store time. `owners`, `hashes`, `of_id`: of each key the number of
    its position, its hash, and whether it is the message's own id."""

    found: Array
    store_ms: Array
    owners: Array
    hashes: Array
    of_id: Array


def expected_keys(log: Sequence[Segment], positions: Array) -> ExpectedKeys:
    """Return the keys of the records at these log positions, which rise. Raises OSError."""
    parts = []
    for segment in log:
        low, high = np.searchsorted(positions, (segment.base, segment.end))
        if low < high:
            parts.append(_of_segment(segment, positions[low:high] - segment.base, int(low)))
    none = np.empty(0, np.int64)
    columns = zip(*parts, strict=True) if parts else [[none]] * 4 + [[np.empty(0, bool)]]
    return ExpectedKeys(*map(np.concatenate, columns))


def _of_segment(segment: Segment, at: Array, number: int) -> tuple[Array, ...]:
    """Return the fields of ExpectedKeys; `number`: of the first position."""
    data = map_file(segment.path)
    sound = _records_among(data, segment.base, at)
    records = records_at(data, at[sound].tolist())
    named = records.pairs().named(_NAMES)
    prefixes = hashes_of(records.topics()) * _BASE + _SEPARATOR
    indexed = records.sysflag & SYSFLAG_TRANSACTION != ROLLED_BACK
    owners, hashes, of_id = [], [], []
    ids = np.flatnonzero(indexed & named["uniq_key"].is_valid().to_numpy(False))
    owners.append(ids)
    hashes.append(_joined(prefixes[ids], named["uniq_key"].take(pa.array(ids))))
    of_id.append(np.ones(len(ids), bool))
    keyed = np.flatnonzero(indexed & named["keys"].is_valid().to_numpy(False))
    words = pc.split_pattern(named["keys"].take(pa.array(keyed)), " ")
    whose = keyed[pc.list_parent_indices(words).to_numpy()]
    flat = pc.list_flatten(words)
    said = np.flatnonzero(pc.greater(pc.binary_length(flat), 0).to_numpy(False))
    owners.append(whose[said])
    hashes.append(_joined(prefixes[whose[said]], flat.take(pa.array(said))))
    of_id.append(np.zeros(len(said), bool))
    return (
        number + sound,
        records.store_timestamp,
        number + sound[np.concatenate(owners)],
        np.concatenate(hashes),
        np.concatenate(of_id),
    )


def _records_among(data: memoryview, base: int, at: Array) -> Array:
    """Return the numbers of the positions at which a record begins: the lengths add up."""
    raw = np.frombuffer(data, np.uint8)
    rows = np.flatnonzero(at + RECORD_SIZE_BYTES_MIN <= len(data))
    head = _gathered(raw, at[rows], RECORD_HEAD)
    end = at[rows] + head["size"]
    longer = HOST_IPV6_SIZE_BYTES - HOST_SIZE_BYTES
    hosts = sum((head["sysflag"] & flag != 0).astype(np.int64) for flag in _IPV6) * longer
    body_at = at[rows] + BODY_AT + hosts
    kept = np.isin(head["magic"], (RECORD_MAGIC_V1, RECORD_MAGIC_V2)) & (end <= len(data))
    kept &= (head["physical_offset"] == base + at[rows]) & (body_at + 3 <= end)
    rows, head, end, body_at = rows[kept], head[kept], end[kept], body_at[kept]
    body_size = _gathered(raw, body_at - 4, np.dtype(">i4")).astype(np.int64)
    topic_at = body_at + body_size
    kept = (body_size >= 0) & (topic_at + 3 <= end)
    rows, head, end, topic_at = rows[kept], head[kept], end[kept], topic_at[kept]
    two = _gathered(raw, topic_at, np.dtype(">u2")).astype(np.int64)
    long_topic = head["magic"] == RECORD_MAGIC_V2
    properties_at = topic_at + np.where(long_topic, 2 + two, 1 + (two >> 8))
    kept = properties_at + 2 <= end
    rows, end, properties_at = rows[kept], end[kept], properties_at[kept]
    size = _gathered(raw, properties_at, np.dtype(">i2"))
    found: Array = rows[(size >= 0) & (properties_at + 2 + size == end)]
    return found


def _gathered(raw: Array, at: Array, dtype: np.dtype[Any]) -> Array:
    """Return the values of `dtype` at these positions."""
    windows = np.ndarray(
        (max(0, len(raw) - dtype.itemsize + 1),), f"V{dtype.itemsize}", raw.data, strides=(1,)
    )
    found: Array = windows[at].view(dtype)
    return found


def _joined(prefixes: Array, keys: pa.Array) -> Array:
    """Return the hashes under which keys are indexed; `prefixes`: of `topic#`, before its last
    multiplication."""
    sizes = pc.utf8_length(keys).to_numpy(False).astype(np.int64)
    if not len(keys):
        return np.empty(0, np.int64)
    units = sizes + _astral(keys)
    values = prefixes * _powers(int(units.max()))[units] + hashes_of(keys)
    found = np.abs(values.view(np.int32).astype(np.int64))
    return np.where(found > 0x7FFFFFFF, 0, found)


def _astral(texts: pa.Array) -> Array:
    """Return how many characters of each text are two units in Java."""
    if pc.all(pc.string_is_ascii(texts)).as_py() in (True, None):
        return np.zeros(len(texts), np.int64)
    counts = [sum(c > "\uffff" for c in text) for text in texts.to_pylist()]
    return np.array(counts, np.int64)


def hashes_of(texts: pa.Array) -> Array:
    """Return Java's String.hashCode of each text, as uint32."""
    distinct = texts.dictionary_encode()
    if len(distinct.dictionary) * 4 < len(texts):
        of_distinct: Array = hashes_of(distinct.dictionary)[distinct.indices.to_numpy()]
        return of_distinct
    found = np.zeros(len(texts), np.uint32)
    ascii_only = pc.string_is_ascii(texts).to_numpy(False).astype(bool)
    for at in np.flatnonzero(~ascii_only).tolist():
        found[at] = java_hash(texts[at].as_py()) & 0xFFFFFFFF
    sizes = pc.binary_length(texts).to_numpy(False)
    for size in np.unique(sizes[ascii_only]).tolist():
        rows = np.flatnonzero(ascii_only & (sizes == size))
        if size:
            letters = b"".join(texts.take(pa.array(rows)).cast(pa.binary()).to_pylist())
            matrix = np.frombuffer(letters, np.uint8).reshape(-1, size).astype(np.uint32)
            found[rows] = matrix @ _powers(size)[size - 1 :: -1]
    return found


def _powers(highest: int) -> Array:
    """Return 31**0 up to 31**highest, modulo 2**32."""
    powers = np.full(highest + 1, _BASE, np.uint32)
    powers[0] = 1
    found: Array = np.cumprod(powers, dtype=np.uint32)
    return found
