"""Standard output and standard error of commands that stream.

Progress is written to standard error, and only if that is a terminal, so pipes and logs have no
progress lines.
"""

from __future__ import annotations

import sys
import time
from typing import BinaryIO, TextIO

PROGRESS_PAUSE_S = 0.25
_CLEAR_LINE = "\r\x1b[K"


class Terminal:
    """The output of a command. Raises BrokenPipeError after the reader has left."""

    def __init__(self, out: BinaryIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout.buffer
        self._err = err or sys.stderr
        self._shows = self._err.isatty()
        self._shown = False
        self._next_s = 0.0

    @property
    def is_terminal(self) -> bool:
        """Return whether standard output is a terminal."""
        return self._out.isatty()

    def write(self, data: bytes) -> None:
        """Write bytes; they may stay buffered until `flush`."""
        self._out.write(data)

    def flush(self) -> None:
        self._out.flush()

    def progress(self, text: str, *, now: bool = False) -> None:
        """Update the progress line, at most a few times per second unless `now` is set."""
        at_s = time.monotonic()
        if self._shows and (now or at_s >= self._next_s):
            self._err.write(_CLEAR_LINE + text)
            self._err.flush()
            self._shown = True
            self._next_s = at_s + PROGRESS_PAUSE_S

    def say(self, text: str) -> None:
        """Print a line on standard error, over the progress line."""
        self.end_progress()
        self._err.write(text + "\n")
        self._err.flush()

    def end_progress(self) -> None:
        if self._shown:
            self._err.write(_CLEAR_LINE)
            self._err.flush()
            self._shown = False
