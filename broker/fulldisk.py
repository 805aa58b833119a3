"""What a broker does about a full disk: another replica takes over, or sends are refused.

A leader of a Raft group whose disk is full (broker.diskroom) hands leadership to a replica that has
room, as in any planned transfer, and takes sends until then: it is not full to the last block. Who
has room, whom it asks and for how long is dledger.relief's to say. When nobody has room, in classic
mode and over pysyncobj sends are refused ([DISK_FULL]) until there is some again. A replica that is
short of room tells its group so, and is not made leader.
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
TICK_MS = 100  # between looks for somebody who has room
BY = "full disk"  # who asked for such a transfer, in its event


class FullDisk:
    """Its chores see to it that `broker.sends.disk_full` says why sends are refused. One per
    broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.room = DiskRoom()

    def chores(self) -> list[Chore]:
        return [
            Chore("disk_usage", LOOK_MS, self.look),
            Chore("full_disk", TICK_MS, self.tick),
        ]

    def look(self) -> None:
        """How full the disk is. Raises OSError."""
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
        """Whether sends are to be refused, and whether somebody else should lead."""
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
        """This replica has become leader. Whether anybody else has room it finds out at its next
        tick; until then it takes sends."""
        if isinstance(self._broker.engine, RaftEngine):
            self._broker.sends.disk_full = ""

    def _hand_over(self, target: str) -> None:
        try:
            self._broker.hand_over(target)
        except (Refused, RaftError) as error:  # something changed just now: it looks again
            log.info("full_disk_waits name=%s: %s", target, error)
            return
        log.warning("full_disk_hands_over name=%s percent=%d", target, self.room.percent)
        self._broker.http.tell("transfer", {"to": target, "by": BY})
