"""Checks the tables under config/ by replaying the log's commands.

Every replica saves its tables with the index of the last frame that they reflect. The broker's own
code applies the group's commands once, and each table must equal each file at the file's index. So
a damaged or stale table is detected, with the first difference. A bug of the broker's code that all
replicas share is not.

If retention has removed the log's start, a table starts from its oldest usable file, which is not
checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from google_crc32c import value as crc32c

from raftmq.broker.errors import StateError
from raftmq.broker.tables.snapshot import (
    CHECKSUM_KEY,
    DIRECTORY,
    FILES,
    FILES_KEY,
    INDEX_KEY,
    capture,
)
from raftmq.broker.tables.state import BrokerState

from ..read.incremental import Ended
from ..read.store_files import Store
from ..read.tables import Tables
from ..report.report import CheckResult, Offender
from .frames import GroupFrames

TITLE = "tables under config/ that are not what the log makes of them"
BACKUP = ".bak"
_SORTED = orjson.OPT_SORT_KEYS


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table in a store's file; `number` is its index in FILES, `index` its last frame."""

    store: str
    path: str
    number: int
    index: int
    content: dict[str, Any]


@dataclass(slots=True)
class Replayed:
    """The outcome of a replay, with the `gaps` that could not be judged. `group_id` is in hex, or
    "" if the log does not contain it."""

    offenders: list[Offender] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    group_id: str = ""
    tables: dict[str, Any] | None = None  # all tables after the last command

    @property
    def check(self) -> CheckResult:
        return CheckResult.of_faults("tables", TITLE, self.offenders)


def replay(tables: Tables, held: GroupFrames) -> Replayed:
    outcome = Replayed()
    read = {name: _read_all(store) for name, store in tables.stores.items()}
    if not any(INDEX_KEY in each.value for files in read.values() for each in files.values()):
        outcome.gaps.append("config/: no store has tables there that say which frame they reflect")
        return outcome
    judged = _judgeable(_files(tables, read, outcome), held, outcome)
    if not held.complete:
        outcome.gaps.append("config/: frames are missing, and tables cannot be made without them")
        return outcome
    state = BrokerState()
    _start(state, judged, held, outcome, tables.since)
    waiting = sorted(judged, key=lambda file: (file.index, file.store, file.path), reverse=True)
    for row in held.commands.rows():
        index, command = row["frame_index"], bytes(row["command"])
        while waiting and waiting[-1].index < index:
            _compare(waiting.pop(), state, outcome)
        try:
            state.apply(index, row["store_timestamp"], command, row["records_at"])
        except StateError as error:
            outcome.gaps.append(f"config/: tables cannot be made again: {error}")
            return outcome
    for file in reversed(waiting):
        _compare(file, state, outcome)
    outcome.group_id = state.group.value.hex()
    if not outcome.gaps:
        state.advance(held.last)
        outcome.tables = capture(state).to_json()
    return outcome


@dataclass(frozen=True, slots=True)
class _Read:
    """A file as JSON without its checksum, or the problem with it."""

    value: dict[str, Any]
    problem: str = ""


def _read_all(store: Store) -> dict[str, _Read]:
    """Return the files under config/ by name. Raises OSError."""
    names = [f"{name}{end}" for name in FILES for end in ("", BACKUP)]
    contents = {name: store.content(f"{DIRECTORY}/{name}") for name in names}
    return {name: _read(data) for name, data in contents.items() if data is not None}


def _read(data: bytes) -> _Read:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return _Read({}, f"cannot be read: {error}")
    if not isinstance(value, dict):
        return _Read({}, "is no table")
    checksum = value.pop(CHECKSUM_KEY, None)
    if checksum is not None and checksum != crc32c(orjson.dumps(value, option=_SORTED)):
        return _Read(value, "the checksum is wrong")
    return _Read(value, "" if isinstance(value.get(INDEX_KEY), int) else "it has no index")


def _files(
    tables: Tables, read: Mapping[str, Mapping[str, _Read]], outcome: Replayed
) -> Iterator[TableFile]:
    """Yield the files that can be judged, and report the others."""
    starts = {each.store: each.start for each in tables.limits.stores}
    for store, files in read.items():
        if not files and starts[store] > 0:
            what = "there are no tables, and the log's beginning has been removed"
            _wrong(outcome, store, DIRECTORY, what)
        closed = tables.stores[store].closed
        for number, name in enumerate(FILES):
            if files and closed and name not in files:
                _wrong(outcome, store, f"{DIRECTORY}/{name}", "is not there")
            for path in (name, f"{name}{BACKUP}"):
                if path in files and files[path].problem:
                    _wrong(outcome, store, f"{DIRECTORY}/{path}", files[path].problem)
                elif path in files:
                    content = dict(files[path].value)
                    index = content.pop(INDEX_KEY)
                    content.pop(FILES_KEY, None)
                    yield TableFile(store, f"{DIRECTORY}/{path}", number, index, content)


def _judgeable(files: Iterable[TableFile], held: GroupFrames, outcome: Replayed) -> list[TableFile]:
    result = []
    for file in files:
        if file.index > held.last:
            what = f"reflects frame {file.index}, and the group's log ends with {held.last}"
            _wrong(outcome, file.store, file.path, what)
        elif file.index >= held.first - 1:
            result.append(file)
    return result


def _start(
    state: BrokerState,
    files: list[TableFile],
    held: GroupFrames,
    outcome: Replayed,
    since: Ended | None,
) -> None:
    """Load the tables before the first frame, of the audit before or from the oldest file."""
    if held.first <= 1:
        return
    if since is not None and since.tables is not None:
        for name, table in zip(FILES, state.tables, strict=True):
            table.load(since.tables[name], since.index)
        return
    for number, table in enumerate(state.tables):
        of_table = [file for file in files if file.number == number]
        if not of_table:
            table.applied_index = held.last  # skips all commands, as there is nothing to judge
            gap = (
                f"{DIRECTORY}/{FILES[number]}: no store has it, and the log's beginning is removed"
            )
            outcome.gaps.append(gap)
            continue
        oldest = min(of_table, key=lambda file: file.index)
        try:
            table.load(oldest.content, oldest.index)
        except (KeyError, TypeError, ValueError, AttributeError, StateError) as error:
            _wrong(outcome, oldest.store, oldest.path, f"cannot be read: {error!r}")
            table.applied_index = held.last
            for file in of_table:
                files.remove(file)


def _compare(file: TableFile, state: BrokerState, outcome: Replayed) -> None:
    made = orjson.loads(orjson.dumps(state.tables[file.number].to_json(), option=_SORTED))
    difference = _difference(file.content, made)
    if difference:
        _wrong(outcome, file.store, file.path, f"at frame {file.index} {difference}")


def _difference(stored: Any, made: Any, at: str = "") -> str:
    """Return the first difference of two tables; "" if they are equal."""
    if stored == made:
        return ""
    if isinstance(stored, dict) and isinstance(made, dict):
        for key in sorted({*stored, *made}):
            if key not in stored or key not in made or stored[key] != made[key]:
                below = f"{at}.{key}" if at else key
                return _difference(stored.get(key), made.get(key), below)
    if isinstance(stored, list) and isinstance(made, list):
        for number, (one, other) in enumerate(zip(stored, made, strict=False)):
            if one != other:
                return _difference(one, other, f"{at}[{number}]")
        return f"{at} has {len(stored)} entries, by the log {len(made)}"
    shown = (orjson.dumps(value).decode()[:120] for value in (stored, made))
    return f"{at or 'the table'} is {next(shown)}, by the log {next(shown)}"


def _wrong(outcome: Replayed, store: str, path: str, what: str) -> None:
    outcome.offenders.append({"store": store, "file": path, "what": what})
