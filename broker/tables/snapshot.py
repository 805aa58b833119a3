"""Snapshots of the replicated tables under config/, in Apache's JSON shape.

    config/topics.json  subscriptionGroup.json  consumerOffset.json  delayOffset.json
           sentOnce.json plainAcl.json groupId.json writers.json pops.json (ours) each with .bak

Each file carries `raftAppliedIndex`, the Raft index its table reflects, `raftFiles`, the names of
all, so that a missing one is not taken for one that there never was, and `raftChecksum`. They
shorten the replay and let retention delete old segments. They hold nothing that is not in the log:
without them the tables are rebuilt from the frames that the log still holds. A file is replaced
atomically: the new one is written beside it and synced, the old one renamed to .bak, the new one
renamed into place, the directory synced. The .bak is read when the file is missing (killed between
the two renames) or damaged; its older index only means a longer replay, which retention leaves
possible. If the .bak cannot be read either, the new one beside it is whole if the kill was between
the renames. `put_right` then sees to it that what was read is not written over by damage.

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
COPY, BESIDE = ".bak", ".tmp"  # the version before; the next, until it is whole
FOREIGN = (VersionedTable, OffsetTable, DelayOffsets)  # Apache's brokers write these, too
log = logging.getLogger("raftmq.broker.snapshot")
GROUP_ID, WRITERS, POPS = "groupId.json", "writers.json", "pops.json"
_SORTED = orjson.OPT_SORT_KEYS
FILES = (
    POPS,  # before the offsets: in classic mode, what was popped is in flight, or comes again
    WRITERS,
    GROUP_ID,
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "sentOnce.json",
    "plainAcl.json",
)
NEWER = (POPS, WRITERS, GROUP_ID)  # there are snapshots of older programs without these files
# Classic accounts have a file of their own (broker.accountbook); classic groups have no id and no
# writers.
RAFT_ONLY = ("plainAcl.json", GROUP_ID, WRITERS)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of the tables as of one moment."""

    tables: tuple[tuple[str, Table], ...]

    @property
    def applied_index(self) -> int:
        return min(table.applied_index for _, table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Return the content of each file by its name."""
        return {
            name: {**table.to_json(), INDEX_KEY: table.applied_index} for name, table in self.tables
        }


def from_json(value: dict[str, Any]) -> Snapshot:
    """Read `to_json`. Raises StateError, KeyError, TypeError, ValueError."""
    state = BrokerState()
    tables = _files(state)
    lacking = [name for name in NEWER if name not in value]
    for name, table in tables:
        if name not in lacking:
            table.load(value[name], int(value[name][INDEX_KEY]))
    _lacks(state, lacking)
    return Snapshot(tables)


def _lacks(state: BrokerState, names: Sequence[str]) -> None:
    """Set the index that missing tables reflect. A snapshot without such a file was written by a
    program that did not know the table and would have stopped at a command for it, so no frame that
    it applied had one. With this index an upgrade replays no more than any other start. (This
    program writes these files before all others, so a snapshot that lacks one is older than this
    program.)"""
    there = [table for name, table in _files(state) if name not in names]
    for name, table in _files(state):
        if name in names:
            table.applied_index = min(other.applied_index for other in there)


def _files(state: BrokerState) -> tuple[tuple[str, Table], ...]:
    return tuple(zip(FILES, state.tables, strict=True))


def capture(state: BrokerState) -> Snapshot:
    """Copy the tables. Their values are immutable except the per-queue offsets, which are copied,
    too."""
    return Snapshot(tuple((name, twin_of(table)) for name, table in _files(state)))


def twin_of(table: T) -> T:
    """Return a copy that does not change with the table; a thread may read it."""
    twin = copy.copy(table)
    twin.own()
    return twin


# Of each large table, its version and the JSON of its entries, as they were written last.
Encoded = dict[str, tuple[dict[str, int], list[bytes]]]


def write(disk: Disk, snapshot: Snapshot, encoded: Encoded | None = None) -> int:
    """Write all files; return the index that is durably covered now. Raises OSError.

    A table that has the version it has in `encoded` is not turned into JSON again; the others'
    JSON is put there. All is done in pieces, and the interpreter's lock given back between them:
    with 100,000 topics it would be held for a tenth of a second."""
    disk.makedirs(DIRECTORY)
    encoded = {} if encoded is None else encoded
    for name, table in snapshot.tables:
        replace(disk, f"{DIRECTORY}/{name}", _file_of(name, table, encoded))
    return snapshot.applied_index


def _file_of(name: str, table: Table, encoded: Encoded) -> Iterator[bytes]:
    """Yield a table's file in pieces: JSON with sorted keys, and the checksum of that behind it."""
    if not isinstance(table, VersionedTable):
        whole = {**table.to_json(), INDEX_KEY: table.applied_index, FILES_KEY: FILES}
        pieces = iter([orjson.dumps(whole, option=_SORTED)])
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
            for number, part in enumerate(parts):
                yield (b"," if number else b"{") + part
            yield b"}" if parts else b"{}"
        else:
            yield orjson.dumps(head[key], option=_SORTED)
    yield b"}"


def write_changed(
    disk: Disk, snapshot: Snapshot, written: dict[str, bytes], names: Sequence[str]
) -> None:
    """Write those of classic mode's files `names`, without an index, that differ from what was
    `written` last. Raises OSError."""
    disk.makedirs(DIRECTORY)
    for name, table in snapshot.tables:
        if name not in names or name in RAFT_ONLY:
            continue
        data = orjson.dumps(table.to_json())
        if written.get(name) != data:
            replace(disk, f"{DIRECTORY}/{name}", [data])
            written[name] = data


def load(disk: Disk, state: BrokerState, *, indexed: bool = True) -> int:
    """Fill the tables from config/; return the index from which on frames must be applied again.
    Classic mode's files, which an Apache broker may have written, have no index (0).

    A missing or damaged file falls back to its .bak, a damaged .bak to what stands beside it, and
    without that its table stays empty at index 0; damage is logged, and noted in `state.damaged`.
    An entry of Apache's that cannot be read is left out, and noted in `state.refused`.
    The caller must check that the log still holds every frame above the returned index.
    """
    there: set[str] = set()
    noted: set[str] = set()  # some file says that there were these
    for name, table in _files(state):
        for suffix in ("", COPY, BESIDE):
            path = f"{DIRECTORY}/{name}{suffix}"
            if not disk.exists(path) or (suffix == BESIDE and name not in there):
                continue  # alone, it was not finished
            there.add(name)
            refused: dict[str, str] = {}
            files = _load_table(disk, path, table, None if indexed else refused)
            if files is not None:
                if refused:
                    state.refused[path] = refused
                if name not in NEWER:  # these are written first, and prove nothing
                    noted.update(files)
                break
            state.damaged.append(path.rpartition("/")[2])
    if indexed:
        for name in sorted(noted - there):
            log.warning("snapshot_missing path=%s/%s", DIRECTORY, name)
        _lacks(state, [name for name in NEWER if name not in there | noted])
    return state.applied_index


def put_right(disk: Disk, state: BrokerState) -> None:
    """After `load`: take damaged files away where another was read in their place, so that the next
    version does not push them over it; and let one that stood beside them be the file, because the
    next version begins with its removal. Raises OSError."""
    damaged = {f"{DIRECTORY}/{name}" for name in state.damaged}
    for name in FILES:
        path = f"{DIRECTORY}/{name}"
        if path in damaged and path + COPY not in damaged and disk.exists(path + COPY):
            disk.remove(path)
        elif damaged & {path, path + COPY}:
            if path + BESIDE not in damaged and disk.exists(path + BESIDE):
                disk.rename(path + BESIDE, path)
    if damaged:
        disk.sync_directory(DIRECTORY)


def behind(state: BrokerState, index: int) -> list[str]:
    """Return the files whose tables do not reflect the Raft index."""
    return [name for name, table in _files(state) if table.applied_index < index]


def _load_table(
    disk: Disk, path: str, table: Table, refused: dict[str, str] | None
) -> Sequence[str] | None:
    """Fill a table; return which files there were, as far as this one says. None: it is damaged.
    `refused`, of classic mode: gets the entries that are left out."""
    file = disk.open(path)
    try:
        data = file.pread(0, file.size_bytes)
    finally:
        file.close()
    try:
        value = orjson.loads(data) if refused is None else loads_object(data)
        if refused is not None and isinstance(table, FOREIGN):
            table.load(value, 0, refused)
        elif refused is not None:
            table.load(value, 0)
        else:
            if value.pop(CHECKSUM_KEY, None) not in (None, _checksum(value)):
                raise ValueError("the checksum does not match")
            table.load(value, int(value[INDEX_KEY]))
    except (KeyError, TypeError, ValueError, AttributeError, StateError, BodyError) as error:
        log.warning("snapshot_damaged path=%s error=%r", path, error)
        return None
    return tuple(value.get(FILES_KEY, ()))


def _checksum(value: dict[str, Any]) -> int:
    """Return the CRC-32C of the table as JSON with sorted keys: JSON with a flipped bit may still
    parse."""
    return int(crc32c(orjson.dumps(value, option=_SORTED)))


def replace(disk: Disk, path: str, pieces: Iterable[bytes]) -> None:
    """Replace the file's content, keeping the version before as .bak; durable on return. Raises
    OSError."""
    beside = path + BESIDE
    if disk.exists(beside):
        disk.remove(beside)  # left by a crash
    file = disk.open(beside)
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
    disk.rename(beside, path)
    disk.sync_directory(DIRECTORY)
