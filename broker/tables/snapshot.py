"""Snapshots of the replicated tables under config/, in Apache's JSON shape.

    config/topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json
           sentOnce.json plainAcl.json groupId.json writers.json pops.json (ours) each with .bak

Each file has `raftAppliedIndex` (the Raft index of its table), `raftFiles` (the names of all files,
so that a missing file is noticed) and `raftChecksum`. Snapshots shorten the replay and let
retention delete segments. Everything in them can be rebuilt from the log's frames.

A file is replaced atomically. The new version is written and synced beside it, the old version
renamed to .bak, the new version renamed into place, the directory synced. The .bak is used if the
file is missing or damaged; its older index only means a longer replay, for which retention keeps
the log. If the .bak is also unreadable, the new version beside it is used. `put_right` then
protects the version that was read from being replaced by a damaged file.

`capture` runs on the loop and copies; `write` may run in a thread.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from google_crc32c import extend
from google_crc32c import value as crc32c

from raftmq.remoting.errors import BodyError
from raftmq.remoting.fast_json import loads_object
from raftmq.store.disk import Disk

from ..errors import StateError
from .delay_offsets import DelayOffsets
from .offsets import OffsetTable
from .state import BrokerState, Table
from .versioned import VersionedTable

T = TypeVar("T", bound=Table)
DIRECTORY = "config"
INDEX_KEY = "raftAppliedIndex"
FILES_KEY = "raftFiles"
CHECKSUM_KEY = "raftChecksum"
COPY, NEXT = ".bak", ".tmp"  # the previous version; the next version until it is complete
FOREIGN = (VersionedTable, OffsetTable, DelayOffsets)  # also written by Apache's brokers
log = logging.getLogger("raftmq.broker.snapshot")
GROUP_ID, WRITERS, POPS = "groupId.json", "writers.json", "pops.json"
_SORTED = orjson.OPT_SORT_KEYS
FILES = (
    POPS,  # before the offsets, so that classic mode loses no message in flight
    WRITERS,
    GROUP_ID,
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "sentOnce.json",
    "plainAcl.json",
)
# Classic accounts have their own file (broker.accountbook); classic groups have no id and no
# writers.
RAFT_ONLY = ("plainAcl.json", GROUP_ID, WRITERS)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Consistent copies of the tables."""

    tables: tuple[tuple[str, Table], ...]

    @property
    def applied_index(self) -> int:
        return min(table.applied_index for _, table in self.tables)

    def to_json(self) -> dict[str, Any]:
        return {
            name: {**table.to_json(), INDEX_KEY: table.applied_index} for name, table in self.tables
        }


def from_json(value: dict[str, Any]) -> Snapshot:
    """Read `to_json`. Raises StateError, KeyError, TypeError, ValueError."""
    state = BrokerState()
    tables = _files(state)
    for name, table in tables:
        table.load(value[name], int(value[name][INDEX_KEY]))
    return Snapshot(tables)


def _files(state: BrokerState) -> tuple[tuple[str, Table], ...]:
    return tuple(zip(FILES, state.tables, strict=True))


def capture(state: BrokerState) -> Snapshot:
    """Copy the tables. Only the per-queue offsets are mutable and need a copy."""
    return Snapshot(tuple((name, twin_of(table)) for name, table in _files(state)))


def twin_of(table: T) -> T:
    twin = copy.copy(table)
    twin.own()
    return twin


# For each large table, the version and the JSON entries of the last write.
Encoded = dict[str, tuple[dict[str, int], list[bytes]]]


def write(disk: Disk, snapshot: Snapshot, encoded: Encoded | None = None) -> int:
    """Write all files; return the durably covered index. Raises OSError.

    The JSON of a table is reused if its version is in `encoded`; new JSON is put there. The work is
    done in pieces that release the interpreter's lock, since 100,000 topics would hold it for a
    tenth of a second."""
    disk.makedirs(DIRECTORY)
    encoded = {} if encoded is None else encoded
    for name, table in snapshot.tables:
        replace(disk, f"{DIRECTORY}/{name}", _file_of(name, table, encoded))
    return snapshot.applied_index


def _file_of(name: str, table: Table, encoded: Encoded) -> Iterator[bytes]:
    """Yield a table's file in pieces: JSON with sorted keys, then its checksum."""
    if not isinstance(table, VersionedTable):
        complete = {**table.to_json(), INDEX_KEY: table.applied_index, FILES_KEY: FILES}
        pieces = iter([orjson.dumps(complete, option=_SORTED)])
    else:
        pieces = _pieces_of(name, table, encoded)
    checksum, last = 0, b""
    for piece in pieces:
        if last:
            yield last
        checksum, last = extend(checksum, piece), piece
    yield b'%b,"%b":%d}' % (last[:-1], CHECKSUM_KEY.encode(), checksum)


def _pieces_of(name: str, table: VersionedTable[Any], encoded: Encoded) -> Iterator[bytes]:
    head, entries_key, entries = table.json_parts()
    version = table.data_version()
    known, parts = encoded.get(name, (None, []))
    if known != version:
        parts = [orjson.dumps(piece, option=_SORTED)[1:-1] for piece in entries]
        encoded[name] = version, parts
    separator = b"{"
    head = {**head, INDEX_KEY: table.applied_index, FILES_KEY: FILES}
    for key in sorted([*head, entries_key]):
        yield b'%b"%b":' % (separator, key.encode())
        separator = b","
        if key == entries_key:
            for number, content in enumerate(parts):
                yield (b"," if number else b"{") + content
            yield b"}" if parts else b"{}"
        else:
            yield orjson.dumps(head[key], option=_SORTED)
    yield b"}"


def write_changed(
    disk: Disk, snapshot: Snapshot, written: dict[str, bytes], names: Sequence[str]
) -> None:
    """Write the changed classic files of `names`, without an index. Raises OSError."""
    disk.makedirs(DIRECTORY)
    for name, table in snapshot.tables:
        if name not in names or name in RAFT_ONLY:
            continue
        data = orjson.dumps(table.to_json())
        if written.get(name) != data:
            replace(disk, f"{DIRECTORY}/{name}", [data])
            written[name] = data


def load(disk: Disk, state: BrokerState, *, indexed: bool = True) -> int:
    """Fill the tables from config/; return the index from which frames must be applied again.
    Classic files have no index (0).

    A missing or damaged file falls back to its .bak, then to the new version beside it. Without
    any, the table stays empty at index 0. Damage is logged and recorded in `state.damaged`, an
    unreadable entry of Apache's in `state.refused`. The caller must check that the log has every
    frame above the returned index."""
    there: set[str] = set()
    noted: set[str] = set()  # files named in another file
    for name, table in _files(state):
        for suffix in ("", COPY, NEXT):
            path = f"{DIRECTORY}/{name}{suffix}"
            if not disk.exists(path) or (suffix == NEXT and name not in there):
                continue  # alone, it is incomplete
            there.add(name)
            refused: dict[str, str] = {}
            files = _load_table(disk, path, table, refused, indexed=indexed)
            if files is not None:
                if refused:
                    state.refused[path] = refused
                noted.update(files)
                break
            state.damaged.append(path.rpartition("/")[2])
    if indexed:
        for name in sorted(noted - there):
            log.warning("snapshot_missing path=%s/%s", DIRECTORY, name)
    return state.applied_index


def put_right(disk: Disk, state: BrokerState) -> None:
    """Prepare the files after `load` for the next write. Remove damaged files that would replace a
    good .bak, and move a version read from beside them into place. Raises OSError."""
    damaged = {f"{DIRECTORY}/{name}" for name in state.damaged}
    for name in FILES:
        path = f"{DIRECTORY}/{name}"
        if path in damaged and path + COPY not in damaged and disk.exists(path + COPY):
            disk.remove(path)
        elif damaged & {path, path + COPY}:
            if path + NEXT not in damaged and disk.exists(path + NEXT):
                disk.rename(path + NEXT, path)
    if damaged:
        disk.sync_directory(DIRECTORY)


def behind(state: BrokerState, index: int) -> list[str]:
    """Return the files of tables older than the Raft index."""
    return [name for name, table in _files(state) if table.applied_index < index]


def _load_table(
    disk: Disk, path: str, table: Table, refused: dict[str, str], *, indexed: bool
) -> Sequence[str] | None:
    """Fill a table. Return the names of all files of the snapshot, or None if this file is damaged.
    Without `indexed` (classic mode) an unreadable entry is put into `refused`."""
    file = disk.open(path)
    try:
        data = file.pread(0, file.size_bytes)
    finally:
        file.close()
    try:
        if indexed:
            value = orjson.loads(data)
            if value.pop(CHECKSUM_KEY) != _checksum(value):
                raise ValueError("the checksum does not match")
            table.load(value, int(value[INDEX_KEY]))
        else:
            value = loads_object(data)
            if isinstance(table, FOREIGN):
                table.load(value, 0, refused)
            else:
                table.load(value, 0)
    except (KeyError, TypeError, ValueError, AttributeError, StateError, BodyError) as error:
        log.warning("snapshot_damaged path=%s error=%r", path, error)
        return None
    return tuple(value.get(FILES_KEY, ()))


def _checksum(value: dict[str, Any]) -> int:
    """Return the CRC-32C of the table as sorted JSON; JSON with a flipped bit may parse."""
    return int(crc32c(orjson.dumps(value, option=_SORTED)))


def replace(disk: Disk, path: str, pieces: Iterable[bytes]) -> None:
    """Replace the file's content durably, keeping the previous version as .bak. Raises OSError."""
    temporary = path + NEXT
    if disk.exists(temporary):
        disk.remove(temporary)  # left by a crash
    file = disk.open(temporary)
    try:
        end = 0
        for piece in pieces:
            file.pwrite(end, piece)
            end += len(piece)
        file.sync()
    finally:
        file.close()
    if disk.exists(path):
        disk.rename(path, path + COPY)
    disk.rename(temporary, path)
    disk.sync_directory(DIRECTORY)
