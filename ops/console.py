"""A rich console for programs whose output may be piped to one that stops reading, as `head` does.

Its user catches BrokenPipeError and says with which status the program ends: rich's own console
ends it with 1.
"""

from __future__ import annotations

from rich.console import Console


class PipedConsole(Console):
    """A console that raises BrokenPipeError once nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        """Called while that error is handled: pass it on."""
        raise
