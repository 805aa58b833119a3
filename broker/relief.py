"""Reacts to what speaks against this replica as leader, a full or slow disk or a wrong clock:
another replica takes over, or sends are refused.

A leader of a Raft group whose disk is full (broker.diskroom) hands leadership to a replica that has
room, as in any planned transfer; so does one whose writes wait for the disk (dledger.slowwrites),
and one whose clock is wrong, as most others say (dledger.surroundings). Until then it takes sends,
because a disk that counts as full still has free blocks. dledger.relief decides which replicas are
better, which are asked and for how long. If no replica has room, and always in classic mode and
over pysyncobj, sends are refused ([DISK_FULL]) until there is room again; so they are while the
disks of so many other replicas are full to the last block that no majority takes frames. If all
disks are slow, the leader stays. A replica that is short of room or slow, or whose clock is wrong,
tells its group so, and is not made leader.
"""

from __future__ import annotations

import logging

from raftmq.broker.context import Context
from raftmq.broker.diskroom import DiskRoom
from raftmq.broker.errors import Refused
from raftmq.broker.housekeeping import IDLE_MS, Chore
from raftmq.broker.sending.send import SendPath
from raftmq.broker.service import RoleChange, Service
from raftmq.dledger.errors import RaftError

log = logging.getLogger("raftmq.broker.disk")

LOOK_MS = 1_000  # between looks at the disk: at a GB/s that is one segment
SLOW_LOOKS = 3
TICK_MS = 100  # between looks for a replica that has room
# The initiator named in the transfer's event
BY_FULL = "full disk"
BY_SLOW = "slow disk"
BY_CLOCK = "wrong clock"


class Reliever:
    """Watches disk and clock periodically, and keeps in `sends.disk_full` why sends are refused.
    One per broker."""

    def __init__(self, context: Context, sends: SendPath) -> None:
        self._context = context
        self._sends = sends
        self._told = ("ok", "")
        self._slow_looks = 0  # one after the other at which writes were slow
        self._clock_is_wrong = False
        self.room = DiskRoom()

    def service(self) -> Service:
        return Service(
            chores=[
                Chore("disk_usage", LOOK_MS, self.look),
                Chore("full_disk", TICK_MS, self.tick, lambda: self._rest_ms),
            ],
            role_changed=self._role_changed,
        )

    @property
    def _rest_ms(self) -> float:
        engine = self._context.log.raft
        wanted = self.room.full or self._slow_looks or self._clock_is_wrong
        idle = not (wanted or (engine and engine.full_voters))
        return IDLE_MS if idle else 0

    def look(self) -> None:
        """Look at how full the disk is, whether it is slow, and whether the clock is wrong. Raises
        OSError."""
        config, room = self._context.config, self.room
        was_full = room.full
        room.look(
            self._context.disk.usage(),
            config.disk_space_warning_level_ratio,
            config.disk_space_warning_free_bytes,
        )
        if room.full != was_full:
            log.warning("disk_full=%s percent=%d", room.full, room.percent)
        engine, slow_before = self._context.log.raft, self._slow_looks
        if engine is not None:
            self._slow_looks = self._slow_looks + 1 if engine.writes_are_slow else 0
            clock_was_wrong, self._clock_is_wrong = self._clock_is_wrong, engine.clock_is_wrong
            engine.be_willing(not (room.short or self._slow_looks or self._clock_is_wrong))
            if self._clock_is_wrong != clock_was_wrong:
                log.warning("clock_wrong=%s", self._clock_is_wrong)
        if bool(self._slow_looks) != bool(slow_before):
            log.warning("disk_slow=%s", bool(self._slow_looks))
        self.tick()
        self._tell()

    def _tell(self) -> None:
        """Publish a change of the disk's state."""
        state, reason = disk_state(self._context.log.status(), self._sends.disk_full)
        if state != self._told[0]:
            detail = {"state": state, "was": self._told[0], "reason": reason}
            self._context.events.tell("diskState", detail)
        self._told = (state, reason)

    def tick(self) -> None:
        """Decide whether sends are refused, and whether another replica should lead."""
        room, sends, engine = self.room, self._sends, self._context.log.raft
        leading, hoped, others = self._context.roles.leading, False, ""
        if engine is not None:
            # Slow disks of one storage system are slow together: the others are given time to say.
            wanted = room.full or self._slow_looks >= SLOW_LOOKS or self._clock_is_wrong
            target = engine.willing_successor(wanted and leading)
            hoped = engine.hopes_for_room
            others = ", ".join(engine.full_voters)
            if target is not None:
                self._hand_over(target)
        reason = ""
        if others:
            reason = f"no majority has room, the disk is full on {others}"
        elif room.full and not hoped:
            reason = f"the disk is {room.percent} percent full"
        if leading and bool(reason) != bool(sends.disk_full):
            log.warning(
                "sends_refused=%s disk_percent=%d others_full=%s",
                bool(reason),
                room.percent,
                others or "-",
            )
        sends.disk_full = f"{reason}; the message was not stored" if reason else ""

    def _role_changed(self, change: RoleChange) -> None:
        """Take sends after becoming leader; the next tick finds out whether others have room."""
        if change.began and self._context.log.raft is not None:
            self._sends.disk_full = ""

    def _hand_over(self, target: str) -> None:
        try:
            self._context.log.hand_over(target)
        except (Refused, RaftError) as error:  # state just changed: the next tick looks again
            log.info("relief_waits name=%s: %s", target, error)
            return
        if self.room.full:
            by = BY_FULL
            log.warning("full_disk_hands_over name=%s percent=%d", target, self.room.percent)
        elif self._slow_looks:
            by = BY_SLOW
            log.warning("slow_disk_hands_over name=%s", target)
        else:
            by = BY_CLOCK
            log.warning("wrong_clock_hands_over name=%s", target)
        self._context.events.tell("transfer", {"to": target, "by": by})


def disk_state(status: dict[str, object], disk_full: str) -> tuple[str, str]:
    """Return the disk's state (dledger.health, or "full" while sends are refused) and why."""
    state, reason = str(status.get("disk_state") or "ok"), str(status.get("disk_reason") or "")
    return ("full", disk_full) if disk_full and state == "ok" else (state, reason)
