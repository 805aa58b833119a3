"""The state of a continuous audit, in an SQLite file, and what is derived from it.

    DIR/watch.sqlite          offsets in the audit topic, tables that were read, messages that wait
                              for their judgement, counts, and all findings
        findings.jsonl        a line for each finding
        mqaudit_watch.prom    counts for Prometheus' textfile collector

A round's offsets, waiting messages and findings are one transaction. The other files are written
after it from the database, so a killed watch repeats and omits no line.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from .judge import KINDS, Acknowledged, Finding

_TABLES = """
CREATE TABLE IF NOT EXISTS progress (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS counts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS findings (
  id INTEGER PRIMARY KEY, found_ms INTEGER, kind TEXT, line BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS waiting (
  msg_id TEXT, topic TEXT, broker TEXT, queue_id INTEGER, queue_offset INTEGER, body_crc INTEGER,
  time_ms INTEGER, first_seen_ms INTEGER, late INTEGER);
"""
_SUBJECT, _OFFSETS = "subject", "offsets"
ACKNOWLEDGED = "acknowledged"  # names of counts, as the reasons below
REMOVED, UNPLACED, UNREACHABLE = REASONS = ("removed", "unplaced", "unreachable")
_DAY_MS = 86_400_000


class StateError(Exception):
    """The directory cannot be this watch's."""


class State:
    """Use as `with State(directory, subject) as state`."""

    def __init__(self, directory: Path, subject: str) -> None:
        """Raises StateError, sqlite3.Error, OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._path = directory / "findings.jsonl"
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
        self.waiting = self._waiting()
        self._published = self._lines_published()

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

    def commit(
        self,
        offsets: Mapping[str, Any] | None,
        files: Iterable[str],
        waiting: list[Acknowledged],
        findings: Iterable[Finding],
        counts: Mapping[str, int],
        now_ms: int,
    ) -> None:
        """Store a round. `waiting` replaces the earlier messages."""
        lines = [(now_ms, each.kind, line_of(each, now_ms)) for each in findings]
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            if offsets is not None:
                self._set(_OFFSETS, orjson.dumps(offsets).decode())
            database.executemany("INSERT INTO files VALUES (?)", [(path,) for path in files])
            if waiting != self.waiting:
                marks = ",".join("?" * len(Acknowledged._fields))
                database.execute("DELETE FROM waiting")
                database.executemany(f"INSERT INTO waiting VALUES ({marks})", waiting)
            database.executemany(
                "INSERT INTO findings (found_ms, kind, line) VALUES (?, ?, ?)", lines
            )
            database.executemany(
                "INSERT INTO counts VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                counts.items(),
            )
            database.execute("COMMIT")
        except BaseException:
            database.execute("ROLLBACK")
            raise
        self.waiting = waiting

    def publish(self, now_ms: int, level_ms: int) -> list[str]:
        """Write the other files; return the new lines. At `level_ms` the watch had judged all."""
        new = self._database.execute(
            "SELECT line FROM findings ORDER BY id LIMIT -1 OFFSET ?", (self._published,)
        ).fetchall()
        if new:
            with self._path.open("ab") as file:
                file.write(b"".join(line + b"\n" for (line,) in new))
                file.flush()
                os.fsync(file.fileno())
            self._published += len(new)
        temporary = self._directory / ".mqaudit_watch.prom.tmp"
        temporary.write_text("".join(self.metrics(now_ms, level_ms)))
        os.replace(temporary, self._directory / "mqaudit_watch.prom")
        return [line.decode() for (line,) in new]

    def metrics(self, now_ms: int, level_ms: int) -> Iterable[str]:
        """Yield the lines for Prometheus."""
        counts = dict(self._database.execute("SELECT name, value FROM counts"))
        recent = self._database.execute(
            "SELECT kind, count(*) FROM findings WHERE found_ms > ? GROUP BY kind",
            (now_ms - _DAY_MS,),
        )
        by_kind = dict.fromkeys(KINDS, 0) | dict(recent)
        by_reason = {reason: counts.get(reason, 0) for reason in REASONS}
        for name, kind, doc, samples in (
            (
                *("acknowledged_total", "counter", "Acknowledged messages that were judged."),
                {"": counts.get(ACKNOWLEDGED, 0)},
            ),
            (
                *("not_judged_total", "counter", "Acknowledged messages that are not judged."),
                {f'{{reason="{reason}"}}': count for reason, count in by_reason.items()},
            ),
            (
                *("findings", "gauge", "Findings of the last 24 hours."),
                {f'{{kind="{kind}"}}': count for kind, count in by_kind.items()},
            ),
            (
                *("waiting", "gauge", "Acknowledged messages that cannot be judged yet."),
                {"": len(self.waiting)},
            ),
            (
                *("time_seconds", "gauge", "When all acknowledgements were judged, Unix time."),
                {"": level_ms / 1000},
            ),
        ):
            yield f"# HELP raftmq_watch_{name} {doc}\n# TYPE raftmq_watch_{name} {kind}\n"
            for labels, value in samples.items():
                yield f"raftmq_watch_{name}{labels} {value:.15g}\n"

    def _lines_published(self) -> int:
        """Return the number of lines in the file, without the torn line of a killed watch."""
        with self._path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
        return content.count(b"\n")

    def _waiting(self) -> list[Acknowledged]:
        rows = self._database.execute(f"SELECT {','.join(Acknowledged._fields)} FROM waiting")
        return [Acknowledged(*row)._replace(late=bool(row[-1])) for row in rows]

    def _value(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM progress WHERE name = ?", (name,))
        values = row.fetchone()
        return None if values is None else str(values[0])

    def _set(self, name: str, value: str) -> None:
        self._database.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", (name, value))


def line_of(finding: Finding, found_ms: int) -> bytes:
    message = finding.message
    placed = {} if message is None else message._asdict()
    for name in ("first_seen_ms", "late"):
        placed.pop(name, None)
    row = {"kind": finding.kind, **placed, "found_ms": found_ms, "what": finding.what}
    return orjson.dumps(row)
