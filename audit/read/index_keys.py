"""The index keys of many records at once, to check IndexFiles with.

A message is indexed by `topic#key`, for its UNIQ_KEY and for each word of its KEYS, unless its
transaction was rolled back. The hash is the absolute value of Java's String.hashCode, and 0 where
Java's abs stays negative. This implementation is independent of the store's code, which it checks.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raftmq.spark.filesystem import opened
from raftmq.spark.layout import SYSFLAG_TRANSACTION, ItemKind, java_hash

from .store_files import STORES_SEPARATOR

ROLLED_BACK = 12  # transaction bits
KEY_FIELDS: list[tuple[str, Any]] = [
    ("id_hash", pa.int64()),  # of the message's own id
    ("key_hashes", pa.list_(pa.int64())),  # and its KEYS
]
_BASE = np.uint32(31)
_SEPARATOR = np.uint32(ord("#"))
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class StagedRange:
    """A file with the items of log positions [start, end)."""

    start: int
    end: int
    path: str


@dataclass(frozen=True, slots=True)
class ExpectedKeys:
    """Keys of the records at some positions. `rows` has the indexes of the positions with a
    record, `store_ms` their store times. `owners`, `hashes` and `of_id` have for each key the index
    of its position, its hash, and whether it is the message's own id."""

    rows: Array
    store_ms: Array
    owners: Array
    hashes: Array
    of_id: Array


def key_hashes(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return KEY_FIELDS of records, null without a key, from topic, uniq_key, keys and sysflag."""
    indexed = pc.not_equal(
        pc.bit_wise_and(columns["sysflag"], SYSFLAG_TRANSACTION), ROLLED_BACK
    ).to_numpy(False)
    prefixes = hashes_of(columns["topic"]) * _BASE + _SEPARATOR
    named = {
        name: np.flatnonzero(indexed & columns[name].is_valid().to_numpy(False))
        for name in ("uniq_key", "keys")
    }
    ids, keyed = named["uniq_key"], named["keys"]
    own = np.zeros(len(prefixes), np.int64)
    own[ids] = _joined(prefixes[ids], columns["uniq_key"].take(pa.array(ids)))
    without = np.ones(len(prefixes), bool)
    without[ids] = False
    key_lists = pc.split_pattern(columns["keys"].take(pa.array(keyed)), " ")
    whose = keyed[pc.list_parent_indices(key_lists).to_numpy()]
    flat = pc.list_flatten(key_lists)
    nonempty = np.flatnonzero(pc.greater(pc.binary_length(flat), 0).to_numpy(False))
    ends = np.searchsorted(whose[nonempty], np.arange(len(prefixes) + 1)).astype(np.int32)
    hashes = _joined(prefixes[whose[nonempty]], flat.take(pa.array(nonempty)))
    return {
        "id_hash": pa.array(own, mask=without),
        "key_hashes": pa.ListArray.from_arrays(pa.array(ends), pa.array(hashes)),
    }


def expected_keys(parts: Sequence[StagedRange], store: str, positions: Array) -> ExpectedKeys:
    """Return the keys of a store's records at these rising log positions. Raises OSError."""
    columns_ = []
    for staged in parts:
        low, high = np.searchsorted(positions, (staged.start, staged.end))
        if low < high:
            columns_.append(_of_range(staged, store, positions[low:high], int(low)))
    none = np.empty(0, np.int64)
    columns = zip(*columns_, strict=True) if columns_ else [[none]] * 4 + [[np.empty(0, bool)]]
    return ExpectedKeys(*map(np.concatenate, columns))


def indexed_positions(parts: Sequence[StagedRange], store: str, low: int, high: int) -> Array:
    """Return the rising positions in [low, high) of a store's records that are indexed by their own
    id. Raises OSError."""
    arrays = [np.empty(0, np.int64)]
    for staged in parts:
        if staged.start < high and low < staged.end:
            rows = _records_of(staged.path, store, ["position", "id_hash"])
            at = rows["position"].to_numpy()[rows["id_hash"].is_valid().to_numpy()]
            arrays.append(at[(at >= low) & (at < high)])
    return np.sort(np.concatenate(arrays))


def _records_of(path: str, store: str, names: Sequence[str]) -> pa.Table:
    is_record = pc.field("kind") == int(ItemKind.RECORD)
    system, file = opened(path)
    columns = ["store", *names]
    rows = pq.read_table(
        file, columns=columns, filesystem=system, filters=is_record, use_threads=False
    )
    stores = rows["store"].combine_chunks().dictionary_encode()
    own = [store in each.split(STORES_SEPARATOR) for each in stores.dictionary.to_pylist()]
    if not all(own):
        rows = rows.filter(pa.array(np.array(own, bool)[stores.indices.to_numpy()]))
    return rows


def _of_range(staged: StagedRange, store: str, positions: Array, number: int) -> tuple[Array, ...]:
    """Return the fields of ExpectedKeys. `number` is the index of the first position."""
    names = ["position", "store_timestamp", "id_hash", "key_hashes"]
    rows = _records_of(staged.path, store, names)
    if not len(rows):
        none = np.empty(0, np.int64)
        return none, none, none, none, np.empty(0, bool)
    at = rows["position"].to_numpy()
    row_at = np.minimum(np.searchsorted(at, positions), len(at) - 1)
    sound = np.flatnonzero(at[row_at] == positions)
    rows = rows.take(pa.array(row_at[sound])).combine_chunks()
    ids = rows["id_hash"].combine_chunks()
    with_id = np.flatnonzero(ids.is_valid().to_numpy(False))
    keys = rows["key_hashes"].combine_chunks()
    whose = pc.list_parent_indices(keys).to_numpy()
    hashes = pc.list_flatten(keys).to_numpy()
    return (
        number + sound,
        rows["store_timestamp"].to_numpy(),
        number + sound[np.concatenate((with_id, whose))],
        np.concatenate((ids.take(pa.array(with_id)).to_numpy(), hashes)),
        np.repeat((True, False), (len(with_id), len(hashes))),
    )


def _joined(prefixes: Array, keys: pa.Array) -> Array:
    """Return hashes of index keys. `prefixes` hash `topic#`, before the last multiplication."""
    sizes = pc.utf8_length(keys).to_numpy(False).astype(np.int64)
    if not len(keys):
        return np.empty(0, np.int64)
    units = sizes + _astral(keys)
    values = prefixes * _powers(int(units.max()))[units] + hashes_of(keys)
    hashes = np.abs(values.view(np.int32).astype(np.int64))
    return np.where(hashes > 0x7FFFFFFF, 0, hashes)


def _astral(texts: pa.Array) -> Array:
    """Return how many characters of each text are two UTF-16 units in Java."""
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
    hashes = np.zeros(len(texts), np.uint32)
    ascii_only = pc.string_is_ascii(texts).to_numpy(False).astype(bool)
    for at in np.flatnonzero(~ascii_only).tolist():
        hashes[at] = java_hash(texts[at].as_py()) & 0xFFFFFFFF
    sizes = pc.binary_length(texts).to_numpy(False)
    for size in np.unique(sizes[ascii_only]).tolist():
        rows = np.flatnonzero(ascii_only & (sizes == size))
        if size:
            letters = b"".join(texts.take(pa.array(rows)).cast(pa.binary()).to_pylist())
            matrix = np.frombuffer(letters, np.uint8).reshape(-1, size).astype(np.uint32)
            hashes[rows] = matrix @ _powers(size)[size - 1 :: -1]
    return hashes


def _powers(highest: int) -> Array:
    """Return 31**0 up to 31**highest, modulo 2**32."""
    powers = np.full(highest + 1, _BASE, np.uint32)
    powers[0] = 1
    result: Array = np.cumprod(powers, dtype=np.uint32)
    return result
