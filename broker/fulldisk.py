"""How a broker reacts to a full disk: another replica takes over, or sends are refused.

A leader of a Raft group whose disk is full (broker.diskroom) hands leadership to a replica that has
room, as in any planned transfer, and takes sends until then: its disk is not full to the last
block. dledger.relief decides which replicas have room, which are asked and for how long. Sends are
refused ([DISK_FULL]) when nobody has room, in classic mode and over pysyncobj, until there is room
again. A replica that is short of room tells its group so, and is not made leader.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from raftmq.broker.diskroom import DiskRoom
from raftmq.broker.errors import Refused
from raftmq.broker.housekeeping import Chore
from raftmq.broker.replication.engine import RaftEngine
from raftmq.dledger.errors import RaftError

if TYPE_CHECKING:
    from raftmq.broker.broker import Broker

log = logging.getLogger("raftmq.broker.disk")

LOOK_MS = 1_000  # between looks at the disk: at a GB/s that is one segment
TICK_MS = 100  # between looks for a replica that has room
BY = "full disk"  # the initiator named in the transfer's event


class FullDisk:
    """Watches the disk with its chores and keeps in `broker.sends.disk_full` why sends are refused.
    One per broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.room = DiskRoom()

    def chores(self) -> list[Chore]:
        return [
            Chore("disk_usage", LOOK_MS, self.look),
            Chore("full_disk", TICK_MS, self.tick),
        ]

    def look(self) -> None:
        """Look at how full the disk is. Raises OSError."""
        broker, room = self._broker, self.room
        config, was_full = broker.config, room.full
        room.look(
            broker.disk.usage(),
            config.disk_space_warning_level_ratio,
            config.disk_space_warning_free_bytes,
        )
        if room.full != was_full:
            log.warning("disk_full=%s percent=%d", room.full, room.percent)
        if isinstance(broker.engine, RaftEngine):
            broker.engine.room_is(not room.short)
        self.tick()
        broker.http.look_at_disk()

    def tick(self) -> None:
        """Decide whether sends are refused, and whether another replica should lead."""
        broker, room = self._broker, self.room
        hoped = False
        if isinstance(broker.engine, RaftEngine):
            target = broker.engine.successor_with_room(room.full and broker.roles.leading)
            hoped = broker.engine.hopes_for_room
            if target is not None:
                self._hand_over(target)
        refused = room.full and not hoped
        if broker.roles.leading and refused != bool(broker.sends.disk_full):
            log.warning("sends_refused=%s disk_percent=%d", refused, room.percent)
        text = f"the disk is {room.percent} percent full; the message was not stored"
        broker.sends.disk_full = text if refused else ""

    def leads_now(self) -> None:
        """Take sends after becoming leader; the next tick finds out whether others have room."""
        if isinstance(self._broker.engine, RaftEngine):
            self._broker.sends.disk_full = ""

    def _hand_over(self, target: str) -> None:
        try:
            self._broker.hand_over(target)
        except (Refused, RaftError) as error:  # state just changed: the next tick looks again
            log.info("full_disk_waits name=%s: %s", target, error)
            return
        log.warning("full_disk_hands_over name=%s percent=%d", target, self.room.percent)
        self._broker.http.tell("transfer", {"to": target, "by": BY})
