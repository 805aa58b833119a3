"""The state of a continuous audit, DIR/watch.sqlite.

It has offsets in the audit topic, tables that were read, messages that wait for their judgement,
queues that a consumer group has not consumed, counts by hour, and all findings. A round is one
transaction. Everything else is derived from the state (audit.watch.results), so a killed watch
repeats and omits nothing.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from .consumed import Unconsumed
from .judge import Acknowledged, Finding

_TABLES = """
CREATE TABLE IF NOT EXISTS progress (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS counts (
  hour INTEGER, name TEXT, value INTEGER NOT NULL, PRIMARY KEY (hour, name));
CREATE TABLE IF NOT EXISTS findings (
  id INTEGER PRIMARY KEY, found_ms INTEGER, kind TEXT, message TEXT, line BLOB NOT NULL,
  UNIQUE (kind, message));
CREATE TABLE IF NOT EXISTS waiting (
  msg_id TEXT, topic TEXT, broker TEXT, queue_id INTEGER, queue_offset INTEGER, body_crc INTEGER,
  time_ms INTEGER, first_seen_ms INTEGER, late INTEGER);
CREATE TABLE IF NOT EXISTS unconsumed (
  consumer_group TEXT, topic TEXT, broker TEXT, queue_id INTEGER, queue_offset INTEGER,
  messages INTEGER);
"""
_SUBJECT, _OFFSETS, _LEVEL = "subject", "offsets", "level_ms"
ACKNOWLEDGED = "acknowledged"  # names of counts, as the reasons below
REMOVED, UNPLACED, UNREACHABLE = REASONS = ("removed", "unplaced", "unreachable")
HOUR_MS = 3_600_000


class StateError(Exception):
    """The directory cannot be this watch's."""


@dataclass(slots=True)
class Round:
    """The result of a round. `waiting` and `unconsumed` replace the earlier ones; `level_ms` is the
    time at which all acknowledgements were judged, if they were."""

    offsets: dict[str, Any] | None = None
    files: Iterable[str] = ()
    waiting: list[Acknowledged] = field(default_factory=list)
    unconsumed: list[Unconsumed] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    level_ms: int | None = None


class State:
    """Use as `with State(directory, subject) as state`."""

    def __init__(self, directory: Path, subject: str) -> None:
        """Raises StateError, sqlite3.Error, OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.subject = subject
        self._database = sqlite3.connect(
            directory / "watch.sqlite", isolation_level=None, timeout=0.1
        )
        try:
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("BEGIN EXCLUSIVE")
            self._database.execute("COMMIT")
            self._database.executescript(_TABLES)
        except sqlite3.OperationalError as error:
            raise StateError(f"{directory} is in use, or no such state: {error}") from error
        known = self._value(_SUBJECT)
        if known not in (None, subject):
            raise StateError(f"{directory} has the state of a watch over {known}, not {subject}")
        self._set(_SUBJECT, subject)
        rows = self._database.execute(f"SELECT {','.join(Acknowledged._fields)} FROM waiting")
        self.waiting = [Acknowledged(*row)._replace(late=bool(row[-1])) for row in rows]
        rows = self._database.execute(f"SELECT {','.join(Unconsumed._fields)} FROM unconsumed")
        self.unconsumed = [Unconsumed(*row) for row in rows]

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    @property
    def offsets(self) -> dict[str, Any] | None:
        """Return the offsets up to which the audit topic was judged, as in Spark's checkpoints."""
        value = self._value(_OFFSETS)
        return None if value is None else orjson.loads(value)

    @property
    def files(self) -> frozenset[str]:
        """Return the tables that were judged."""
        return frozenset(path for (path,) in self._database.execute("SELECT path FROM files"))

    @property
    def level_ms(self) -> int:
        """Return the time at which all acknowledgements were judged; 0 if they never were."""
        return int(self._value(_LEVEL) or 0)

    def commit(self, result: Round, now_ms: int) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            if result.offsets is not None:
                self._set(_OFFSETS, orjson.dumps(result.offsets).decode())
            if result.level_ms is not None:
                self._set(_LEVEL, str(result.level_ms))
            database.executemany("INSERT INTO files VALUES (?)", [(path,) for path in result.files])
            if result.waiting != self.waiting:
                self._replace("waiting", result.waiting)
            if result.unconsumed != self.unconsumed:
                self._replace("unconsumed", result.unconsumed)
            database.executemany(  # a message may be acknowledged twice
                "INSERT OR IGNORE INTO findings (found_ms, kind, message, line)"
                " VALUES (?, ?, ?, ?)",
                [_row(each, now_ms) for each in result.findings],
            )
            database.executemany(
                "INSERT INTO counts VALUES (?, ?, ?)"
                " ON CONFLICT (hour, name) DO UPDATE SET value = value + excluded.value",
                [(now_ms // HOUR_MS, *count) for count in result.counts.items()],
            )
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise
        self.waiting, self.unconsumed = result.waiting, result.unconsumed

    def lines(self, start: int) -> list[bytes]:
        """Return the findings from the `start`th on, as JSON."""
        rows = self._database.execute(
            "SELECT line FROM findings ORDER BY id LIMIT -1 OFFSET ?", (start,)
        )
        return [line for (line,) in rows]

    def last_lines(self, since_ms: int, count_max: int) -> list[bytes]:
        """Return the last findings, the newest first."""
        rows = self._database.execute(
            "SELECT line FROM findings WHERE found_ms > ? ORDER BY id DESC LIMIT ?",
            (since_ms, count_max),
        )
        return [line for (line,) in rows]

    def counts(self) -> dict[str, int]:
        """Return all counts."""
        return dict(self._database.execute("SELECT name, sum(value) FROM counts GROUP BY name"))

    def hours(self, since_ms: int) -> list[tuple[int, dict[str, int]]]:
        """Return the hours with counts or findings, the newest first: the start in ms, and numbers
        by name of count and kind of finding."""
        rows = self._database.execute(
            "SELECT hour, name, value FROM counts WHERE hour >= ?1 / ?2"
            " UNION ALL SELECT found_ms / ?2, kind, count(*) FROM findings"
            " WHERE found_ms > ?1 GROUP BY 1, 2 ORDER BY 1 DESC",
            (since_ms, HOUR_MS),
        )
        result: dict[int, dict[str, int]] = {}
        for hour, name, value in rows:
            result.setdefault(hour * HOUR_MS, {})[name] = value
        return list(result.items())

    def findings(self, since_ms: int) -> dict[str, int]:
        """Return the number of findings by kind."""
        return dict(
            self._database.execute(
                "SELECT kind, count(*) FROM findings WHERE found_ms > ? GROUP BY kind", (since_ms,)
            )
        )

    def _replace(self, table: str, rows: list[Acknowledged] | list[Unconsumed]) -> None:
        self._database.execute(f"DELETE FROM {table}")
        for row in rows[:1]:
            marks = ",".join("?" * len(row))
            self._database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _value(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM progress WHERE name = ?", (name,))
        values = row.fetchone()
        return None if values is None else str(values[0])

    def _set(self, name: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", (name, value))


def _row(finding: Finding, found_ms: int) -> tuple[int, str, str | None, bytes]:
    """Return a finding's row. Findings about the same message have the same `message`."""
    about, message = finding.about, None
    fields = {} if about is None else about._asdict()
    if isinstance(about, Acknowledged):
        message = " ".join(map(str, (about.msg_id, *about.queue, about.queue_offset)))
        del fields["first_seen_ms"], fields["late"]
    row = {"kind": finding.kind, **fields, "found_ms": found_ms, "what": finding.what}
    return found_ms, finding.kind, message, orjson.dumps(row)
