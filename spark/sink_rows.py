"""Rows of a DataFrame as staged messages.

Only the column `body` is required.

    body           binary or string; not null, not empty
    tags, keys     string
    sharding_key   string; rows with equal keys go to the same queue, as in RocketMQ's clients
    queue_id       int; rows with equal numbers go to the same queue, whatever their keys
    properties     map<string,string>, without properties that clients and brokers add, so that
                   rows of a topic can be written to a different topic
    flag           int"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from raftmq.store.properties import (
    ADDED_PROPERTIES,
    KEYS,
    PROPERTIES_SIZE_BYTES_MAX,
    TAGS,
    encode_properties,
    java_string_hash,
)

from .errors import FormatError
from .plan import KEY_BYTES, STAGED

BODY_BYTES_MAX = (4 << 20) - (64 << 10)  # a broker's limit for a batch, without properties
# Per record, without UNIQ_KEY and the properties that brokers add (WAIT, TRACE_ON, and names of
# region and cluster with 28 bytes by default, 80 reserved).
PROPERTIES_BYTES_MAX = PROPERTIES_SIZE_BYTES_MAX - KEY_BYTES - 128
SHARDING_KEY = "__SHARDINGKEY"
COLUMNS = ("body", "tags", "keys", "sharding_key", "queue_id", "properties", "flag")
_TEXTS = {"tags": TAGS, "keys": KEYS, "sharding_key": SHARDING_KEY}
_PROPERTIES = pa.map_(pa.string(), pa.string())


class RowError(FormatError, ValueError):
    """A row, or the DataFrame's columns, cannot be messages."""


def check_columns(names: Sequence[str]) -> None:
    """Raise RowError unless rows with these columns can be written."""
    strange = sorted(set(names).difference(COLUMNS))
    if strange:
        raise RowError(
            f"there is no place in a message for column {strange[0]}: select some of "
            f"{', '.join(COLUMNS)} (a value in a message's properties: column properties)"
        )
    if "body" not in names:
        raise RowError("column body is missing")


def staged(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in staged form. Raises RowError."""
    names = set(rows.schema.names)
    body = _cast(rows, "body", pa.binary())
    _check_bodies(body)
    columns = {name: _cast(rows, name, pa.string()) for name in _TEXTS.keys() & names}
    given = _cast(rows, "properties", _PROPERTIES) if "properties" in names else None
    flag = _cast(rows, "flag", pa.int32()) if "flag" in names else pa.nulls(len(rows), pa.int32())
    columns = {name: column for name, column in columns.items() if column.null_count < len(rows)}
    if given is None or given.null_count == len(rows):
        encoded, keys = _encoded_texts(columns, len(rows))
    else:
        encoded, keys = _encoded(columns, given)
    if "queue_id" in names:
        queues = _cast(rows, "queue_id", pa.int32())
        if (pc.min(queues).as_py() or 0) < 0:
            raise RowError("a row's queue_id is negative")
        keys = pc.coalesce(queues, keys)
    return pa.record_batch([body, encoded, flag, keys], schema=STAGED)


def _cast(rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    column = rows.column(name)
    try:
        return column if column.type == kind else column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RowError(f"column {name}: {error}") from None


def _check_bodies(body: pa.Array) -> None:
    sizes = pc.binary_length(body)
    if body.null_count or pc.min(sizes).as_py() == 0:
        raise RowError("a row's body is null or empty: a message has at least a byte")
    if (pc.max(sizes).as_py() or 0) > BODY_BYTES_MAX:
        raise RowError(f"a row's body has over {BODY_BYTES_MAX} bytes")


def _encoded_texts(columns: Mapping[str, pa.Array], count: int) -> tuple[pa.Array, pa.Array]:
    """Return the properties of rows with texts only, and the sharding keys' hashes."""
    if not columns:
        return pa.nulls(count, pa.binary()), pa.nulls(count, pa.int32())
    known: dict[tuple[str | None, ...], bytes] = {}
    names = [_TEXTS[name] for name in columns]
    encoded = []
    for values in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        text = known.get(values)
        if text is None:
            text = known[values] = _properties(dict(zip(names, values, strict=True)))
            if len(known) > 10_000:
                known.clear()
        encoded.append(text)
    key = columns.get("sharding_key")
    return pa.array(encoded, pa.binary()), _hashes(None if key is None else key.to_pylist(), count)


def _encoded(columns: Mapping[str, pa.Array], given: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return rows' properties and their sharding keys' hashes. A column overrides a property."""
    texts = {_TEXTS[name]: column.to_pylist() for name, column in columns.items()}
    encoded, keys = [], []
    for number, pairs in enumerate(given.to_pylist()):
        own = {name: value for name, value in pairs or () if name not in ADDED_PROPERTIES}
        for name, values in texts.items():
            if values[number] is not None:
                own[name] = values[number]
        encoded.append(_properties(own))
        keys.append(own.get(SHARDING_KEY))
    return pa.array(encoded, pa.binary()), _hashes(keys, len(encoded))


def _properties(given: Mapping[str, str | None]) -> bytes:
    """Return properties in wire format, without empty values. Raises RowError."""
    try:
        encoded = encode_properties({name: value for name, value in given.items() if value})
    except ValueError as error:
        raise RowError(f"a row's properties: {error}") from None
    if len(encoded) > PROPERTIES_BYTES_MAX:
        raise RowError(f"a row's properties have over {PROPERTIES_BYTES_MAX} bytes")
    return encoded


def _hashes(keys: Sequence[str | None] | None, count: int) -> pa.Array:
    if keys is None:
        return pa.nulls(count, pa.int32())
    known = {key: java_string_hash(key) for key in set(keys) if key}
    return pa.array([known.get(key) if key else None for key in keys], pa.int32())
