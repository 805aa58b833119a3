"""Rich consoles for programs whose output may be piped to one that stops reading, as `head` does.

rich's own console ends the program with status 1 then. With these it is the program that says how
it goes on, and with which status it ends.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console


class PipedConsole(Console):
    """A console that raises BrokenPipeError once nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """Called while that error is handled: pass it on."""
        raise


class QuietConsole(Console):
    """A console on standard output that prints no more once nobody reads it, and lets the program
    go on."""

    def on_broken_pipe(self) -> None:
        print_no_more()


def print_no_more(stream: TextIO | None = None) -> None:
    """Send what is still to be printed (standard output, or another stream) nowhere: Python, too,
    flushes it at the end."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), (stream or sys.stdout).fileno())


def complain(words: str) -> None:
    """Print a line on standard error. If that cannot be written, the program ends all the same with
    the status that it meant to end with."""
    try:
        print(words, file=sys.stderr, flush=True)
    except OSError:
        print_no_more(sys.stderr)
