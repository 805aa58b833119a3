"""Chores: what one member does by the clock, from the core's ticks to its files' upkeep."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from raftmq.dledger.enforcement import Enforcement
from raftmq.dledger.flusher import LogFlusher
from raftmq.dledger.healer import Healer
from raftmq.dledger.pump import Pump
from raftmq.dledger.roster import Roster
from raftmq.dledger.snapshotinstaller import Installer

log = logging.getLogger("raftmq.dledger.member")

TICK_MS = 10  # < a seventh of a heartbeat: how late a deadline may be noticed
HOUSEKEEPING_MS = 500
HEALING_MS = 50  # between ticks of healer (repair and scrubber) and installer


@dataclass(slots=True, eq=False)
class Chores:
    """Does one member's periodic work. `start` when the core runs, `cancel` and `stop` in the end.

    `clock_ms` never goes back."""

    pump: Pump
    flusher: LogFlusher
    healer: Healer
    installer: Installer
    roster: Roster
    enforcement: Enforcement
    pool: Executor
    clock_ms: Callable[[], float]
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _preparing: asyncio.Future[None] | None = field(default=None, init=False)  # the next segment
    _back_off: int = field(default=1, init=False)  # the core's factor, as the log has it
    _healing_due_ms: float = field(default=0.0, init=False)
    _housekeeping_due_ms: float = field(default=0.0, init=False)

    def start(self) -> None:
        """Tick from now on."""
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)

    def cancel(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        """Wait for the work in flight in a thread."""
        if self._preparing is not None:
            await asyncio.wait([self._preparing])

    def _tick(self) -> None:
        if self.pump.life.running:
            self.start()
            self.pump.drive(self._do_what_is_due)

    def _do_what_is_due(self) -> None:
        now_ms, core_ms = self.clock_ms(), self.pump.core_ms.turn()
        core = self.pump.core
        self.flusher.tick(now_ms)
        self.pump.disk.look(core_ms)
        if core_ms >= core.next_deadline_ms:
            core.tick(core_ms)
        if core.timer.back_off.factor != self._back_off:
            self._back_off = core.timer.back_off.factor
            log.warning("election_backoff_changed node=%s factor=%d", core.node_id, self._back_off)
            # The event's old name, until version 0.2.
            log.warning("patience_changed node=%s factor=%d", core.node_id, self._back_off)
        if now_ms >= self._healing_due_ms:
            self._healing_due_ms = now_ms + HEALING_MS
            self.healer.tick(now_ms, busy=self.flusher.stalled_ms(core_ms) > 2 * TICK_MS)
            self.installer.tick(now_ms)
        if now_ms >= self._housekeeping_due_ms:
            self._housekeeping_due_ms = now_ms + HOUSEKEEPING_MS
            self._keep_house(self.pump)

    def _keep_house(self, pump: Pump) -> None:
        pump.proposer.expire()
        self.roster.save(pump.core, self.pool)
        self.enforcement.look(pump.core.membership.voters, pump.core.node_id, self.pool)
        if pump.disk.health.is_full:
            pump.write_held()
        pump.disk.trial.try_again()
        if self._preparing is None and pump.log.wants_next_segment:
            prepare = pump.log.commitlog.prepare_next
            self._preparing = asyncio.get_running_loop().run_in_executor(self.pool, prepare)
            self._preparing.add_done_callback(self._prepared)

    def _prepared(self, done: asyncio.Future[None]) -> None:
        self._preparing = None
        error = done.exception()
        if error is not None:  # the roll to that segment tries again; an error there is fatal
            log.warning("prepare_next failed=%s", error)
