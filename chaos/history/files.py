"""The history file: JSON Lines, a line per event, written during a run.

Format: docs/history.md. A thread of the writer passes its buffer to the operating system every
`FLUSH_INTERVAL_MS`, so a killed harness loses no more than that. A reader accepts a torn last line,
and reports it, but no other damage. `Follower` reads a growing file.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from .assembly import VERSION, assemble
from .events import History, HistoryError

FLUSH_INTERVAL_MS = 50
BUFFER_BYTES_MAX = 1 << 20  # beyond, the caller writes the buffer itself, and waits for the disk
READ_BYTES_MAX = 4 << 20  # per poll of a follower


class HistoryWriter:
    """Appends events to a new history file. Thread-safe; a file has one writer.

    Every line is complete JSON. Lines are in the order of the calls. After `close` the operating
    system has everything. The next call raises the OSError of a failed write.
    """

    def __init__(self, path: Path, **meta: Any) -> None:
        """Create `path`. Raises FileExistsError if it exists, because histories are never mixed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._buffered_bytes = 0
        self._error: OSError | None = None
        self._ops = itertools.count(1)
        self._closing = threading.Event()
        self.write(
            {
                "type": "meta",
                "version": VERSION,
                "wall_ms": time.time_ns() // 1_000_000,
                "t_ns": time.monotonic_ns(),
                **meta,
            }
        )
        self._thread = threading.Thread(target=self._flush_often, name="history", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next_op(self) -> int:
        """Return a number that no other operation of this history has."""
        return next(self._ops)

    def write(self, record: dict[str, Any]) -> None:
        """Append a record. Raises OSError if an earlier flush failed; ValueError if closed."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._fd < 0:
                raise ValueError("the history is closed")
            self._lines.append(line)
            self._buffered_bytes += len(line)
            if self._buffered_bytes >= BUFFER_BYTES_MAX:
                self._flush_locked()

    def event(self, kind: str, function: str, process: str, op: int, /, **fields: Any) -> int:
        """Write an event stamped with the current clock; return that clock (ns)."""
        t_ns = time.monotonic_ns()
        self.write({"type": kind, "f": function, "op": op, "t_ns": t_ns, "p": process, **fields})
        return t_ns

    def record(self, function: str, process: str, /, **fields: Any) -> None:
        """Write an operation that is a single event, and not an invocation and its outcome."""
        self.event("ok", function, process, self.next_op(), **fields)

    def flush(self) -> None:
        """Flush the buffer to the operating system."""
        with self._lock:
            self._flush_locked()

    def close(self) -> None:
        """Flush and close; harmless the second time. Raises OSError if lines were lost."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)
        with self._lock:
            if self._fd < 0:
                return
            try:
                self._flush_locked()
            finally:
                os.close(self._fd)
                self._fd = -1

    def _flush_often(self) -> None:
        while not self._closing.wait(FLUSH_INTERVAL_MS / 1000):
            with self._lock:
                try:
                    self._flush_locked()
                except OSError:
                    return  # kept in _error for the next write

    def _flush_locked(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._lines:
            return
        view = memoryview(b"".join(self._lines))
        self._lines = []
        self._buffered_bytes = 0
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            self._error = error
            raise


class Records:
    """The records of a history file, to be iterated once.

    A torn last line is skipped, and `torn` is True from then on. Raises HistoryError, naming the
    line, for any other line that is not a JSON object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb", buffering=1 << 20) as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = _parse(self.path, number, line)
                except HistoryError as error:
                    if line.endswith(b"\n") or error.__cause__ is None:  # whole, or JSON at least
                        raise
                    self.torn = True  # the writer was killed in the middle of this line
                    return
                yield record


def read_history(path: Path) -> History:
    """Read and assemble a whole history. Raises HistoryError, OSError."""
    records = Records(path)
    history = assemble(records)
    history.torn = records.torn
    return history


class Follower:
    """Reads a growing history; each `poll` returns the new records.

    Only whole lines are returned; a partial line waits for its end. Use as `with`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb", buffering=0)
        self._half = b""
        self._line = 0

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def poll(self) -> list[dict[str, Any]]:
        """Return the records of about READ_BYTES_MAX new bytes; none without a complete new line.

        Raises HistoryError, OSError.
        """
        newline = b""
        while not newline:
            new = self._file.read(READ_BYTES_MAX)
            if not new:
                return []
            complete, newline, self._half = (self._half + new).rpartition(b"\n")
        result = []
        for line in complete.split(b"\n"):
            self._line += 1
            result.append(_parse(self.path, self._line, line))
        return result


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Parse a line. Raises HistoryError, naming the line, if it is no JSON object."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise HistoryError(f"{path}:{number}: {error}") from error
    if not isinstance(record, dict):
        raise HistoryError(f"{path}:{number}: not a JSON object")
    return record
