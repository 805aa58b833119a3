"""Standard output and standard error, for commands that print as they go.

Progress goes to standard error and only if that is a terminal, so that what is piped or logged has
no line of it.
"""

from __future__ import annotations

import sys
import time
from typing import BinaryIO, TextIO

PROGRESS_PAUSE_S = 0.25
_CLEAR_LINE = "\r\x1b[K"


class Terminal:
    """Where a command prints. Raises BrokenPipeError once nobody reads it any more."""

    def __init__(self, out: BinaryIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout.buffer
        self._err = err or sys.stderr
        self._shows = self._err.isatty()
        self._shown = False
        self._next_s = 0.0

    @property
    def is_terminal(self) -> bool:
        """Return whether a person sees standard output."""
        return self._out.isatty()

    def write(self, data: bytes) -> None:
        """Print bytes; `flush` brings them out."""
        self._out.write(data)

    def flush(self) -> None:
        """Bring out what was written."""
        self._out.flush()

    def progress(self, words: str, *, now: bool = False) -> None:
        """Show in one line how far it is, a few times a second at most unless it shall be `now`."""
        at_s = time.monotonic()
        if self._shows and (now or at_s >= self._next_s):
            self._err.write(_CLEAR_LINE + words)
            self._err.flush()
            self._shown = True
            self._next_s = at_s + PROGRESS_PAUSE_S

    def say(self, words: str) -> None:
        """Print a line on standard error, in the place of any progress."""
        self.end_progress()
        self._err.write(words + "\n")
        self._err.flush()

    def end_progress(self) -> None:
        """Take the line of progress away."""
        if self._shown:
            self._err.write(_CLEAR_LINE)
            self._err.flush()
            self._shown = False
