"""A member's periodic work, from the core's ticks to the upkeep of its files.

There is no fixed period. Each check of the clock sets the alarm to the next due work. The alarm is
moved forward when a role changes or a connection closes (ready_loop.py, dispatcher.py), since the
core's deadline may then be earlier.

The stall-aware clock counts at most a heartbeat's period between two checks, so there is a check at
least that often. While heartbeats arrive, the dispatcher triggers a check for each of them, and the
alarm does not ring at all, because wake-ups are the main cost of a replica at rest. A silent leader
gains only the alarm's delay, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from ..raft.pace import Paces
from ..repair.repairer import Healer
from ..snapshot.transfer import Installer
from ..storage.log_flusher import LogFlusher
from .peer_addresses import Roster
from .peer_info import PeerInfoExchange
from .ready_loop import Pump
from .rollback_detection import RollbackDetection
from .standstill import Standstill

log = logging.getLogger("raftmq.dledger.node.node")

OVERDUE_MS = 10  # between checks of a core that cannot act on a passed deadline yet
LATE = 1.2  # times a heartbeat's period, after which a heartbeat is late
CHECKS_PER_STEP = 0.8  # of a clock step between checks then, so that a late check loses no time
SLOW_SYNC_MS = 20  # a longer fdatasync holds the scrubber back
HOUSEKEEPING_MS = 500
HEALING_MS = 50  # between ticks of a healer or installer with work


@dataclass(slots=True, eq=False)
class Chores:
    """Does a member's periodic work. Call `start` when the core runs, `cancel` and `stop` in the
    end.

    `clock_ms` never goes back."""

    pump: Pump
    flusher: LogFlusher
    healer: Healer
    installer: Installer
    roster: Roster
    rollback: RollbackDetection
    peer_info: PeerInfoExchange
    paces: Paces
    standstill: Standstill
    pool: Executor
    clock_ms: Callable[[], float]
    _preparing: asyncio.Future[None] | None = field(default=None, init=False)  # the next segment
    _back_off: int = field(default=1, init=False)  # the logged factor
    _healing_due_ms: float = field(default=0.0, init=False)
    _housekeeping_due_ms: float = field(default=0.0, init=False)

    def start(self) -> None:
        self.pump.alarm.start(self._tick)

    def cancel(self) -> None:
        self.pump.alarm.stop()

    async def stop(self) -> None:
        """Wait for the work in flight in a thread."""
        if self._preparing is not None:
            await asyncio.wait([self._preparing])

    def _tick(self) -> None:
        if self.pump.life.running:
            self.pump.drive(self._do_what_is_due)
            self.pump.alarm.set(self._rest_ms())

    def _rest_ms(self) -> float:
        """Return the time until the next due work, in milliseconds."""
        now_ms, core_ms = self.clock_ms(), self.pump.core_ms
        step_ms, core_rest_ms = core_ms.step_ms_max, self.pump.core.next_deadline_ms - core_ms()
        if core_rest_ms <= 0:
            core_rest_ms = OVERDUE_MS
        elif core_rest_ms > step_ms:
            silent_ms = core_ms() - self.pump.core.timer.contact_ms
            late_ms = step_ms * LATE - silent_ms
            core_rest_ms = late_ms if late_ms > 0 else step_ms * CHECKS_PER_STEP
        due_ms = self.flusher.due_ms
        if self.healer.has_work(now_ms) or self.installer.is_busy:
            self._healing_due_ms = min(self._healing_due_ms, now_ms + HEALING_MS)
            due_ms = min(due_ms, self._healing_due_ms)
        return min(core_rest_ms, due_ms - now_ms)  # everything else can wait for any check

    def _do_what_is_due(self) -> None:
        now_ms, core_ms = self.clock_ms(), self.pump.core_ms.turn()
        core = self.pump.core
        self.flusher.tick(now_ms)
        self.pump.disk.poll(core_ms)
        if core_ms >= core.next_deadline_ms:
            core.tick(core_ms)
        if core.timer.back_off.factor != self._back_off:
            self._back_off = core.timer.back_off.factor
            log.warning("election_backoff_changed node=%s factor=%d", core.node_id, self._back_off)
        if now_ms >= self._healing_due_ms:
            self._healing_due_ms = now_ms + HOUSEKEEPING_MS  # earlier if there is work
            self.healer.tick(now_ms, busy=self.flusher.stalled_ms(core_ms) > SLOW_SYNC_MS)
            self.installer.tick(now_ms)
        if now_ms >= self._housekeeping_due_ms:
            self._housekeeping_due_ms = now_ms + HOUSEKEEPING_MS
            self._keep_house(self.pump)
            self.rollback.tick(now_ms, self.pool)
            self.peer_info.tick(now_ms)
            self.paces.poll(now_ms)
            self.standstill.poll(core_ms)

    def _keep_house(self, pump: Pump) -> None:
        pump.proposer.expire()
        self.roster.save(pump.core, self.pool)
        self.roster.poll(pump.core, pump.links)
        if pump.disk.is_full:
            pump.write_held()
        pump.disk.read_again()
        if self._preparing is None and pump.log.wants_next_segment:
            prepare = pump.log.commitlog.prepare_next
            self._preparing = asyncio.get_running_loop().run_in_executor(self.pool, prepare)
            self._preparing.add_done_callback(self._prepared)

    def _prepared(self, done: asyncio.Future[None]) -> None:
        self._preparing = None
        error = done.exception()
        if error is not None:  # the roll to that segment tries again; an error there is fatal
            log.warning("prepare_next failed=%s", error)
