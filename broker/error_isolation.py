"""Runs the work that a broker does for others while it applies frames, and that must not make the
apply fail.

When a frame is applied, the log and the tables change first; an exception there means that they are
not what they have to be, and stops the node. After that senders are answered, held pulls are woken
and listeners are told: this works on what clients sent, and whatever goes wrong with it does not
damage the log or the tables. It is logged and counted, the connection it was for is closed, and the
replica goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from raftmq.remoting.connection import FROM_PEER

# Present from the start: Prometheus sees no increase in a series that first appears with a count.
KINDS = (
    "answer",
    "clients_told",
    "cut",
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
    """The connection that the work was done for."""

    def abort(self, reason: str) -> None: ...


class Contained:
    """Runs work whose failure is contained; one per broker. `counts`: failures by kind of work."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)

    def failed(self, what: str, error: Exception, connection: Closable | None = None) -> None:
        """Count and log that `what` failed, and close the connection that it was done for."""
        self.counts[what] += 1
        log.error("contained what=%s error=%r", what, error, exc_info=error, extra=FROM_PEER)
        if connection is not None:
            connection.abort(f"{what} failed")

    def run(self, what: str, act: Callable[[], object]) -> None:
        """Run `act`; contain whatever it raises."""
        try:
            act()
        except Exception as error:  # log and tables are intact: only the connection ends
            self.failed(what, error)
