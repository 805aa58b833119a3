"""What a broker does for others while it applies frames, and must not fail for.

When a frame is applied, the log and the tables change first; an exception there means that they
are not what they have to be, and stops the node. Behind that senders are answered, held pulls are
woken, listeners are told: all of it is made of what clients sent, and whatever goes wrong with it
is no damage to log or tables. It is logged and counted, the connection it was for ends, and the
replica goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from raftmq.remoting.connection import FROM_PEER

# There before the first one: Prometheus sees no increase in a series that begins at its new value.
KINDS = (
    "answer",
    "clients_told",
    "cut",
    "group_created",
    "held_pull",
    "told_of_command",
    "told_of_store",
    "topics_told",
    "units_told",
)
log = logging.getLogger("raftmq.broker.containment")


class Closable(Protocol):
    """The connection that something was done for."""

    def abort(self, reason: str) -> None: ...


class Contained:
    """One per broker. `counts`: failures by what was being done."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)

    def failed(self, what: str, error: Exception, connection: Closable | None = None) -> None:
        """Note that `what` failed, and end the connection it was done for."""
        self.counts[what] += 1
        log.error("contained what=%s error=%r", what, error, exc_info=error, extra=FROM_PEER)
        if connection is not None:
            connection.abort(f"{what} failed")

    def run(self, what: str, act: Callable[[], object]) -> None:
        """Do it; whatever it raises ends here."""
        try:
            act()
        except Exception as error:  # see the module
            self.failed(what, error)
