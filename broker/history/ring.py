"""A bounded ring of lines in two files.

Lines are appended to a file until it has half of the bytes; then the second file is emptied and
continues. So at least half of the bytes are kept. A line is a sample, a JSON object that starts
with the time, `{"t":<ms>,…}`. Nothing is synced, and unreadable lines are skipped.

Lines are ordered by time. A line that is not later than the last is skipped, because the clock was
set back or is wrong briefly. If that persists, the clock was ahead before, and the lines from the
future are dropped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from raftmq.store.disk import Disk, File

DIRECTORY = "history"
NAMES = ("0", "1")
HEAD = b'{"t":'
TIME_DIGITS_MAX = 16
LEFT_OUT_MAX = 30  # successive lines; longer than a clock is wrong when a machine starts


@dataclass(slots=True)
class Half:
    """A file with the positions and times of its lines."""

    file: File
    end: int = 0
    times_ms: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, time_ms: int, line: bytes) -> None:
        self.file.pwrite(self.end, line)
        self.times_ms.append(time_ms)
        self.starts.append(self.end)
        self.end += len(line)

    def load(self) -> None:
        at = 0
        for line in self.file.pread(0, self.file.size_bytes).splitlines(keepends=True):
            time_ms = _time_of(line)
            if time_ms is not None and (not self.times_ms or time_ms >= self.times_ms[-1]):
                self.times_ms.append(time_ms)
                self.starts.append(at)
            at += len(line)
        self.end = at

    def empty(self) -> None:
        self.file.truncate(0)
        self.end, self.times_ms, self.starts = 0, [], []

    def cut(self, time_ms: int) -> None:
        number = bisect_left(self.times_ms, time_ms)
        if number < len(self.starts):
            self.file.truncate(self.starts[number])
            self.end = self.starts[number]
            del self.times_ms[number:], self.starts[number:]

    def line(self, number: int) -> bytes:
        start = self.starts[number]
        following = number + 1
        end = self.starts[following] if following < len(self.starts) else self.end
        return self.file.pread(start, end - start).split(b"\n", 1)[0]


class Ring:
    def __init__(self, disk: Disk, bytes_max: int) -> None:
        """Raises OSError."""
        disk.makedirs(DIRECTORY)
        self._half_bytes = bytes_max // 2
        self._left_out = 0  # successive lines skipped for their time
        self._old, self._new = (Half(disk.open(f"{DIRECTORY}/{name}")) for name in NAMES)
        for half in (self._old, self._new):
            half.load()
        if self._old.times_ms[-1:] > self._new.times_ms[-1:]:
            self._old, self._new = self._new, self._old

    def append(self, time_ms: int, line: bytes) -> None:
        """Add a line, which ends with a newline, if it is in order. Raises OSError."""
        if len(line) > self._half_bytes or not self._is_in_order(time_ms):
            return
        if self._new.end + len(line) > self._half_bytes:
            self._old.empty()
            self._old, self._new = self._new, self._old
        self._new.add(time_ms, line)

    def _is_in_order(self, time_ms: int) -> bool:
        """Return whether a line of this time is next; too many misfits drop the blocking lines."""
        last = (self._new.times_ms or self._old.times_ms)[-1:]
        if last and time_ms <= last[0]:
            self._left_out += 1
            if self._left_out <= LEFT_OUT_MAX:
                return False
            for half in (self._old, self._new):
                half.cut(time_ms)
        self._left_out = 0
        return True

    def latest(self, time_ms: int) -> tuple[int, bytes] | None:
        """Return the last line up to a time, and its time, or None. Raises OSError."""
        for half in (self._new, self._old):
            number = bisect_right(half.times_ms, time_ms) - 1
            if number >= 0:
                return half.times_ms[number], half.line(number)
        return None

    def close(self) -> None:
        self._old.file.close()
        self._new.file.close()


def _time_of(line: bytes) -> int | None:
    if not line.startswith(HEAD) or not line.endswith(b"}\n"):
        return None
    digits = line[len(HEAD) : len(HEAD) + TIME_DIGITS_MAX].split(b",", 1)[0]
    return int(digits) if digits.isdigit() else None
