"""Rich consoles for programs with output into a pipe that may close early, as with `head`.

rich's own console exits with status 1 then. These consoles leave the reaction and the exit status
to the program.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console


class PipedConsole(Console):
    """A console that raises BrokenPipeError once its pipe is closed."""

    def on_broken_pipe(self) -> None:
        raise


class QuietConsole(Console):
    """A console on standard output that stops printing once its pipe is closed."""

    def on_broken_pipe(self) -> None:
        print_no_more()


def print_no_more(stream: TextIO | None = None) -> None:
    """Redirect the rest of a stream's output to nowhere, since Python also flushes it at exit."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), (stream or sys.stdout).fileno())


def complain(message: str) -> None:
    """Print a line on standard error. A failure to write it does not change the exit status."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        print_no_more(sys.stderr)
