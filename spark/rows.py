"""Pulled messages as Arrow rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from .columns import Records, records_at, unpack_body
from .errors import FormatError
from .layout import RECORD_SIZE_BYTES_MIN, SYSFLAG_COMPRESSED
from .offset_ranges import Queue

TIME = pa.timestamp("us", tz="UTC")
# With RocketMQ's names. `msg_id` is the producer's UNIQ_KEY. Compressed bodies are decompressed.
MESSAGE_FIELDS: list[tuple[str, Any]] = [
    ("topic", pa.string()),
    ("broker", pa.string()),
    ("queue_id", pa.int32()),
    ("queue_offset", pa.int64()),
    ("msg_id", pa.string()),
    ("tags", pa.string()),
    ("keys", pa.string()),
    ("body", pa.binary()),
    ("flag", pa.int32()),
    ("reconsume_times", pa.int32()),
    ("born_time", TIME),
    ("store_time", TIME),
]
PROPERTIES = "properties"
PROPERTIES_TYPE = pa.map_(pa.string(), pa.string())
DAMAGE = "damage"
TYPES = dict([*MESSAGE_FIELDS, (PROPERTIES, PROPERTIES_TYPE), (DAMAGE, pa.string())])
_NAMES = {"msg_id": b"UNIQ_KEY", "tags": b"TAGS", "keys": b"KEYS"}
_SIZE = struct.Struct(">i")
INNER_BATCH = 0x80  # a sysflag for a body with several messages
# The first and the last millisecond of the years 1 to 9999, the limits of Spark and Python.
TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999


class DamagedMessages(FormatError):
    """A broker's answer contains invalid or damaged messages."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in columns])


def rows(
    data: memoryview,
    broker: str,
    start: int,
    end: int,
    columns: Sequence[str],
    *,
    with_bodies: bool = True,
) -> pa.RecordBatch:
    """Decode the consecutive records in `data` into `columns`, with queue offsets in [start, end)
    only. Raises DamagedMessages, without `with_bodies` only for what is around the bodies."""
    try:
        records = records_at(data, _positions(data))
        offsets = records.head["queue_offset"]
        inside = np.flatnonzero((offsets >= start) & (offsets < end))
        if len(inside) < len(records):
            records = records_at(data, records.at[inside].tolist())
    except IndexError:
        raise DamagedMessages("a record ends before its fields do") from None
    _check(records, with_bodies)
    return _batch(records, broker, columns)


def damaged_row(
    data: bytes, queue: Queue, offset: int, columns: Sequence[str], damage: str
) -> pa.RecordBatch:
    """Return a damaged message as a row with `damage`, and with null for unreadable columns."""
    others = [name for name in columns if name not in ("body", DAMAGE)]
    values: dict[str, Any] = {}
    try:
        view = memoryview(data)
        decoded = rows(view, queue.broker, offset, offset + 1, others, with_bodies=False)
        values = dict(zip(others, decoded.columns, strict=True)) if len(decoded) == 1 else {}
    except DamagedMessages:
        pass  # only its place is known
    known = {**queue._asdict(), "queue_offset": offset, DAMAGE: damage}
    values |= {name: pa.array([value], TYPES[name]) for name, value in known.items()}
    arrays = [values.get(name, pa.nulls(1, TYPES[name])) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _positions(data: memoryview) -> list[int]:
    positions, at, end = [], 0, len(data)
    size_at = _SIZE.unpack_from
    try:
        while at < end:
            positions.append(at)
            (size,) = size_at(data, at)
            if size < RECORD_SIZE_BYTES_MIN:
                raise DamagedMessages(f"a record of {size} bytes")
            at += size
    except struct.error:
        at = end + 1
    if at > end:
        raise DamagedMessages("the last record is cut short")
    return positions


def _check(records: Records, with_bodies: bool) -> None:
    """Raise DamagedMessages for a record with a body that does not match its CRC."""
    bounds = records.bounds
    wrong = (bounds.body_end > bounds.topic) | (bounds.topic_end + 2 > bounds.properties_end)
    wrong |= bounds.body > bounds.body_end
    if with_bodies and not wrong.any():
        wrong = records.body_crcs() != (records.head["body_crc"] & 0x7FFFFFFF)
    batches = (records.sysflag & INNER_BATCH) != 0
    for bad, what in ((wrong, "is damaged"), (batches, "holds a batch, which is not supported")):
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            queue_id, offset = (int(records.head[k][first]) for k in ("queue_id", "queue_offset"))
            raise DamagedMessages(f"message {offset} of queue {queue_id} {what}")


def _batch(records: Records, broker: str, columns: Sequence[str]) -> pa.RecordBatch:
    requested = set(columns)
    head, count = records.head, len(records)
    makers: dict[str, Callable[[], Any]] = {
        "topic": records.topics,
        "broker": lambda: pa.repeat(pa.scalar(broker), count),
        "queue_id": lambda: head["queue_id"].astype(np.int32),
        "queue_offset": lambda: head["queue_offset"].astype(np.int64),
        "body": lambda: _bodies(records),
        DAMAGE: lambda: pa.nulls(count, pa.string()),
        "flag": lambda: head["flag"].astype(np.int32),
        "reconsume_times": lambda: records.tail["reconsume_times"].astype(np.int32),
        "born_time": lambda: _times(head["born_timestamp"].astype(np.int64)),
        "store_time": lambda: _times(records.store_timestamp),
    }
    by_name = {name: make() for name, make in makers.items() if name in requested}
    if requested & {*_NAMES, PROPERTIES}:
        pairs = records.pairs()
        by_name |= pairs.named({name: key for name, key in _NAMES.items() if name in requested})
        if PROPERTIES in requested:
            by_name[PROPERTIES] = pairs.maps()
    arrays = [
        column.cast(TYPES[name])
        if isinstance(column, pa.Array)
        else pa.array(column).cast(TYPES[name])
        for name, column in ((name, by_name[name]) for name in columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _times(ms: np.ndarray[Any, Any]) -> pa.Array:
    """Return times; null for invalid times, since a producer may send any number."""
    return pa.array(ms * 1000, mask=(ms < TIME_MS_MIN) | (ms > TIME_MS_MAX))


def _bodies(records: Records) -> pa.Array:
    packed = records.sysflag & SYSFLAG_COMPRESSED
    if not packed.any():
        return records.bodies()
    bodies = records.bodies().to_pylist()
    for number in np.flatnonzero(packed).tolist():
        body = unpack_body(bodies[number], int(records.sysflag[number]))
        if body is None:
            offset = int(records.head["queue_offset"][number])
            raise DamagedMessages(f"the body of message {offset} cannot be unpacked")
        bodies[number] = body
    return pa.array(bodies, pa.binary())
