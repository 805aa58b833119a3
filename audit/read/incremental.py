"""The saved end of an audit, so that the next audit reads only the rest of the log.

    DIR/ended.parquet    a row per group with the end of the audit and the state there
        queues.parquet   the next offset of each queue
        ranges.parquet   digests of the ranges of the log that were right

The end is only saved if nothing was wrong. The next incremental audit starts there if the last
bytes before it are unchanged. A full audit digests the known ranges again, and finds later changes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from .store_files import Store, StoreError

TAIL_BYTES = 64 << 10  # before an end, saved as a digest
RANGE_BYTES = 64 << 20
_STAMP = pa.timestamp("ms", tz="UTC")
_GROUP = [("group", pa.string()), ("audited_at", _STAMP)]
ENDED = pa.schema(
    [
        *_GROUP,
        ("position", pa.int64()),
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("tail", pa.string()),
        ("configuration", pa.string()),
        ("tables", pa.string()),
    ]
)
QUEUES = pa.schema(
    [*_GROUP, ("topic", pa.string()), ("queue_id", pa.int32()), ("next_offset", pa.int64())]
)
RANGES = pa.schema([*_GROUP, ("start", pa.int64()), ("end", pa.int64()), ("sha256", pa.string())])


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the audit before, and the state there. `position` is in the log, `index` and
    `term` are of the last frame before it, `tail` is the SHA-256 of the bytes just before it.
    `queues` has the next offset by topic and queue. `configuration` is the newest (index, payload),
    `tables` those of config/ as JSON; both may be None. `start` is the start of the read log. If it
    is not 0, the ends of some queues may be unknown."""

    audited_at_ms: int
    position: int
    index: int
    term: int
    tail: str
    queues: Mapping[tuple[str, int], int]
    configuration: tuple[int, bytes] | None = None
    tables: Mapping[str, Any] | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """Log positions [begin, end) that an audit found right, and their SHA-256."""

    start: int
    end: int
    sha256: str
    audited_at_ms: int


class Kept:
    def __init__(self, directory: Path, group: str) -> None:
        self._directory = directory
        self._group = group

    def ended(self) -> Ended | None:
        """Return the end of the audit before; None without it. Raises StoreError, OSError."""
        rows = self._rows("ended", ENDED)
        if not rows:
            return None
        row = rows[-1]
        for name in ("queues", "ranges"):
            if not self._path(name).is_file():
                raise StoreError(
                    f"{self._path(name)} is not there, and {self._path('ended')} needs it: restore"
                    " it, or audit everything (without --incremental)"
                )
        try:
            configuration = orjson.loads(row["configuration"] or "null")
            configuration = configuration and (configuration[0], bytes.fromhex(configuration[1]))
            tables = orjson.loads(row["tables"] or "null")
        except (ValueError, TypeError, LookupError) as error:
            what = f"the end of the audit of {self._group or 'the group'}"
            raise StoreError(f"{self._path('ended')}: {what} cannot be read: {error}") from error
        of_any_end = self._rows("queues", QUEUES)
        queues = {
            (each["topic"], each["queue_id"]): each["next_offset"]
            for each in of_any_end
            if each["audited_at"] == row["audited_at"]
        }
        if of_any_end and not queues:
            return None  # the queues' offsets there are unknown
        return Ended(
            _ms(row["audited_at"]),
            row["position"],
            row["index"],
            row["term"],
            row["tail"],
            queues,
            configuration,
            tables,
            min((each.start for each in self.ranges()), default=row["position"]),
        )

    def ranges(self) -> list[Range]:
        """Return the ranges that were right, up to the saved end. Raises StoreError, OSError."""
        end = max((row["position"] for row in self._rows("ended", ENDED)), default=0)
        return [
            Range(row["start"], row["end"], row["sha256"], _ms(row["audited_at"]))
            for row in self._rows("ranges", RANGES)
            if row["end"] <= end
        ]

    def save(self, ended: Ended, ranges: Iterable[Range]) -> None:
        """Replace the saved end of the group. Raises StoreError, OSError."""
        configuration = ended.configuration
        encoded = configuration and [configuration[0], configuration[1].hex()]
        row = {
            "position": ended.position,
            "index": ended.index,
            "term": ended.term,
            "tail": ended.tail,
            "configuration": orjson.dumps(encoded).decode(),
            "tables": orjson.dumps(ended.tables).decode(),
        }
        queues = [
            {"topic": topic, "queue_id": queue_id, "next_offset": offset}
            for (topic, queue_id), offset in sorted(ended.queues.items())
        ]
        stamp = ended.audited_at_ms
        known = [
            {"start": each.start, "end": each.end, "sha256": each.sha256, "at": each.audited_at_ms}
            for each in ranges
        ]
        self._directory.mkdir(parents=True, exist_ok=True)
        # A kill at any point leaves an end with its own queues, because earlier queues are removed
        # last. Ranges beyond the end are ignored.
        before = [{**each, "at": each["audited_at"]} for each in self._rows("queues", QUEUES)]
        self._replace("ranges", RANGES, known, stamp)
        self._replace("queues", QUEUES, [*before, *queues], stamp)
        self._replace("ended", ENDED, [row], stamp)
        self._replace("queues", QUEUES, queues, stamp)

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.parquet"

    def _rows(self, name: str, schema: pa.Schema) -> list[dict[str, Any]]:
        return [row for row in self._all(name, schema) if row["group"] == self._group]

    def _all(self, name: str, schema: pa.Schema) -> list[dict[str, Any]]:
        path = self._path(name)
        if not path.is_file():
            return []
        try:
            table = pq.read_table(path)
        except pa.ArrowException as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        if table.schema != schema:
            raise StoreError(
                f"{path} is not of this program: remove it to audit from the beginning"
            )
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def _replace(
        self, name: str, schema: pa.Schema, rows: Sequence[dict[str, Any]], stamp_ms: int
    ) -> None:
        others = [row for row in self._all(name, schema) if row["group"] != self._group]
        own = [{**row, "group": self._group, "audited_at": row.get("at", stamp_ms)} for row in rows]
        columns = [
            pa.array([row[field.name] for row in (*others, *own)], field.type) for field in schema
        ]
        temporary = self._directory / f".{name}.parquet.tmp"
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), temporary)
        os.replace(temporary, self._path(name))


def _ms(stamp: Any) -> int:
    return int(stamp.timestamp() * 1000 + 0.5)


def tail_of(store: Store, position: int) -> str | None:
    """Return the digest of the last bytes before a log position; None if a store misses some of
    them. Raises StoreError, OSError."""
    start = max(0, position - TAIL_BYTES)
    data = store.read(start, position)
    return hashlib.sha256(data).hexdigest() if start + len(data) == position else None


def split(start: int, end: int) -> list[tuple[int, int]]:
    edges = [at for at in range(0, end, RANGE_BYTES) if start < at < end]
    return [*zip([start, *edges], [*edges, end], strict=True)] if start < end else []
