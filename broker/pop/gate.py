"""Decides whether this broker may change the table of popped messages now."""

from __future__ import annotations

from collections.abc import Callable, Collection

from raftmq.dledger.transport.wire import POP_VERSION

from ..context import Context
from ..errors import busy, not_leader
from ..replication.engine import all_speak


class Gate:
    """Asked before every change; one per broker. A group's first pop puts a kind of command into
    the log at which older programs would stop, so it waits until every member knows it."""

    def __init__(
        self, context: Context, has_room: Callable[[str, str, Collection[int]], bool]
    ) -> None:
        """`has_room(topic, group, queue ids)`: whether the table of offsets takes them."""
        self.has_room = has_room
        self._context = context
        self._table = context.state.pops

    def check(self) -> None:
        """Raise Refused if this replica does not lead, or the group cannot pop yet."""
        if not self._context.roles.leading:
            raise not_leader()
        engine = None if self._context.config.is_classic else self._context.log.raft
        if engine is not None and not self._table.used and not all_speak(engine, POP_VERSION):
            raise busy(
                "not every replica of this group has said that it knows popped messages: "
                "upgrade all of them, and start those that are down",
                retriable=True,
            )
