"""The dispatcher passes messages and events of a member's links to their handlers.

While the log is being recovered and repaired, only repair and peer information are handled, and
this node neither votes nor acknowledges. From `open` on all other messages reach the core, and the
pump performs the core's output after each read of a connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..raft.errors import MessageRefused, OtherHistory
from ..raft.messages import NodeId
from ..transport.wire import PeerMessage
from .ready_loop import Life, Pump

log = logging.getLogger("raftmq.dledger.node.node")

Takers = Mapping[type, Callable[[Any], None]]  # by the type of the message


class Inbox:
    """Receives the events of a member's links (a LinkHandler)."""

    def __init__(
        self,
        node_id: NodeId,
        life: Life,
        takers: Takers,
        *,
        opened: Callable[[NodeId], None],
        refuse: Callable[[NodeId, str], None],
        disconnect: Callable[[NodeId, str], None],
        fail: Callable[[str, BaseException], None],
        disk_failed: Callable[[str, BaseException], None],
    ) -> None:
        """`takers` handle their messages from now on. `opened(peer)` is called when a link starts,
        `refuse(peer, reason)` for a message that breaks Raft's rules, `disconnect` for a message
        that shows another group's log, `fail` for a broken invariant, `disk_failed` for a disk
        error."""
        self._node_id = node_id
        self._life = life
        self._early = self._takers = dict(takers)
        self._opened = opened
        self._refuse = refuse
        self._disconnect = disconnect
        self._fail = fail
        self._disk_failed = disk_failed
        self._pump: Pump | None = None

    def open(self, pump: Pump, takers: Takers) -> None:
        """Start to pass messages to the core, and to these further `takers`."""
        self._pump = pump
        self._takers = {**self._early, **takers}

    def on_messages(self, messages: list[PeerMessage]) -> None:
        """Pass each message to its handler or to the core, then perform the core's output."""
        pump = self._pump
        try:
            if pump is not None and self._life.running:
                takers, step, now_ms = self._takers, pump.core.step, pump.core_ms()
                if now_ms >= pump.core_ms.turn_due_ms:
                    pump.alarm.now()  # avoids a wake-up
                for message in messages:
                    take = takers.get(type(message))
                    if take is None:
                        step(message, now_ms)  # type: ignore[arg-type]  # all others are the core's
                    else:
                        take(message)
            elif self._life.failure is None:
                for message in messages:
                    self._early.get(type(message), _ignore)(message)
        except OtherHistory as other:
            self._disconnect(other.sender, other.reason)
        except MessageRefused as refused:
            self._refuse(refused.sender, refused.reason)
        except OSError as error:
            self._disk_failed("the disk failed at a message", error)
            return
        except Exception as error:  # a broken promise stops the node
            self._fail("a message broke an invariant", error)
            return
        if pump is not None:
            pump.run()

    def on_opened(self, peer: NodeId) -> None:
        log.info("peer_opened node=%s peer=%s", self._node_id, peer)
        self._opened(peer)
        pump = self._pump
        if pump is not None:
            pump.drive(pump.link_opened, peer)

    def on_closed(self, peer: NodeId) -> None:
        log.info("peer_closed node=%s peer=%s", self._node_id, peer)
        pump = self._pump
        if pump is not None:
            pump.drive(pump.core.peer_closed, peer, pump.core_ms())
            pump.alarm.soon()  # a follower without its leader has an earlier deadline

    def on_failed(self, error: BaseException) -> None:
        self._fail("a peer link's task ended", error)


def _ignore(message: PeerMessage) -> None:
    """Drop an early message."""
