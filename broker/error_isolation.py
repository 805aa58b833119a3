"""Isolation of errors in client-facing work during the apply of frames.

An exception while log and tables change stops the node, since they would be inconsistent. Answering
senders, waking held pulls and calling listeners comes afterwards and depends on client input.
Errors there cannot damage log or tables. They are logged and counted, the connection is closed, and
the replica continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from raftmq.remoting.connection import FROM_PEER

# Present from the start, because Prometheus sees no increase in a series that first appears with a
# count.
KINDS = (
    "answer",
    "clients_told",
    "cut",
    "definitions",
    "group_created",
    "held_pop",
    "held_pull",
    "pop_told",
    "revival",
    "told_of_command",
    "told_of_store",
    "topics_told",
    "units_told",
)
log = logging.getLogger("raftmq.broker.error_isolation")


class Closable(Protocol):
    """The connection that the work serves."""

    def abort(self, reason: str) -> None: ...


class Contained:
    """Runs work with isolated errors. `counts` has the errors by kind of work."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)

    def failed(self, what: str, error: Exception, connection: Closable | None = None) -> None:
        self.counts[what] += 1
        log.error("contained what=%s error=%r", what, error, exc_info=error, extra=FROM_PEER)
        if connection is not None:
            connection.abort(f"{what} failed")

    def run(self, what: str, act: Callable[[], object]) -> None:
        """Run `act`; isolate any error."""
        try:
            act()
        except Exception as error:  # log and tables are intact, so only the connection ends
            self.failed(what, error)
