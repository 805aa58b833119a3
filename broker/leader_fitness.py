"""Fitness of this replica as leader, by disk, speed and clock.

A Raft leader with a full disk (broker.disk_space) transfers leadership to a replica with space. So
does a leader with commits far slower than they would be elsewhere (dledger.raft.pace), or with a
wrong clock according to most replicas (dledger.node.peer_info) or to its log (broker.retention).
Until then it accepts sends, because a disk counts as full while blocks are still free. dledger.raft
decides which replicas are better and how long they are asked.

Sends are rejected ([DISK_FULL]) if no replica has space, always in classic mode, and if no majority
can store frames. An unfit replica reports that to its group and is not elected.
"""

from __future__ import annotations

import logging

from raftmq.dledger.raft.errors import RaftError
from raftmq.store.disk import DiskMark

from .component import RoleChange, Service
from .context import Context
from .disk_space import FULL_FREE_BYTES, DiskRoom, Forecast
from .errors import Refused
from .retention import Retention
from .scheduler import IDLE_MS, Chore
from .send.service import SendPath

log = logging.getLogger("raftmq.broker.disk")

CHECK_PERIOD_MS = 1_000  # between two disk checks; at 1 GB/s that is one segment
CLOCK_CHECKS = 2  # a peer's report about its clock may be on its way
TICK_MS = 100  # between two searches for a replica with space
# The initiator named in the transfer's event.
BY_FULL = "full disk"
BY_SLOW = "slow commits"
BY_CLOCK = "wrong clock"


class Reliever:
    """Checks disk and clock; sets `sends.disk_full` to the reason for rejecting sends."""

    def __init__(self, context: Context, sends: SendPath, retention: Retention) -> None:
        self._context = context
        self._sends = sends
        self._retention = retention
        self._replicated = not context.config.is_classic
        self._reported = ("ok", "")
        self._slow = ""  # the reason for slow commits under this replica
        self._clock_checks = 0  # successive checks with a wrong clock
        self.room = DiskRoom()
        self.forecast = Forecast()

    def service(self) -> Service:
        return Service(
            chores=[
                Chore("disk_usage", CHECK_PERIOD_MS, self.poll),
                Chore("full_disk", TICK_MS, self.tick, lambda: self._rest_ms),
            ],
            role_changed=self._role_changed,
        )

    def start(self) -> None:
        """Check at once, so that a replica with a wrong clock is not elected first."""
        try:
            self.poll()
        except OSError as error:  # of the disk's usage; the chore reports it again
            log.warning("disk_usage_unknown: %s", error)

    @property
    def _rest_ms(self) -> float:
        unfit = self.room.full or self._slow or self._clock_checks
        idle = not (unfit or (self._replicated and self._context.log.raft.full_voters))
        return IDLE_MS if idle else 0

    def poll(self) -> None:
        """Check the disk's usage and speed, and the clock. Raises OSError."""
        config, room = self._context.config, self.room
        was_full = room.full
        usage = self._context.disk.usage()
        mark = DiskMark(config.disk_space_warning_level_ratio, FULL_FREE_BYTES)
        room.poll(usage, mark)
        self.forecast.poll(mark.capacity_bytes(usage), self._context.clock_ms())
        self._retention.poll()
        if room.full != was_full:
            log.warning("disk_full=%s percent=%d", room.full, room.percent)
        slow_before = self._slow
        if self._replicated:
            engine = self._context.log.raft
            self._slow = engine.slow_reason
            engine.doubt_clock(self._retention.clock_lead_ms)
            if engine.clock_is_confirmed:
                self._retention.trust_clock()
            was_wrong = self._clock_checks
            is_wrong = engine.clock_is_wrong or bool(self._retention.contradiction)
            self._clock_checks = self._clock_checks + 1 if is_wrong else 0
            engine.set_willing(not (room.short or self._slow or is_wrong))
            if is_wrong != bool(was_wrong):
                log.warning("clock_wrong=%s", is_wrong)
        if bool(self._slow) != bool(slow_before):
            log.warning("slow=%s reason=%s", bool(self._slow), self._slow or "-")
        self.tick()
        self._tell()

    def _tell(self) -> None:
        state, reason = disk_state(self._context.log.status(), self._sends.disk_full)
        if state != self._reported[0]:
            detail = {"state": state, "was": self._reported[0], "reason": reason}
            self._context.events.publish("diskState", detail)
        self._reported = (state, reason)

    def tick(self) -> None:
        """Decide whether sends are rejected and whether leadership moves."""
        room, sends = self.room, self._sends
        leading, hoped, others = self._context.roles.leading, False, ""
        if self._replicated:
            engine = self._context.log.raft
            unfit = room.full or self._clock_checks >= CLOCK_CHECKS
            transfer_due = leading and (unfit or bool(self._slow))
            target = engine.willing_successor(transfer_due, faster=not unfit)
            hoped = engine.successor_expected
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
        """Accept sends after an election; the next tick checks the peers' space."""
        if change.began and self._replicated:
            self._sends.disk_full = ""

    def _hand_over(self, target: str) -> None:
        try:
            self._context.log.hand_over(target)
        except (Refused, RaftError) as error:  # the state just changed; the next tick retries
            log.info("relief_waits name=%s: %s", target, error)
            return
        if self.room.full:
            by = BY_FULL
            log.warning("full_disk_hands_over name=%s percent=%d", target, self.room.percent)
        elif self._slow:
            by = BY_SLOW
            log.warning("slow_leader_hands_over name=%s reason=%s", target, self._slow)
        else:
            by = BY_CLOCK
            log.warning("wrong_clock_hands_over name=%s", target)
        self._context.events.publish("transfer", {"to": target, "by": by})


def disk_state(status: dict[str, object], disk_full: str) -> tuple[str, str]:
    """Return the disk's state ("full" while sends are rejected) and the reason."""
    state, reason = str(status.get("disk_state") or "ok"), str(status.get("disk_reason") or "")
    return ("full", disk_full) if disk_full and state == "ok" else (state, reason)
