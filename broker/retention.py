"""Decides which part of the log may be deleted now, by policy, disk use and the log's own time.

The wall clock is compared with the log's own time (store.retention) once a second. While it is
doubted, messages from before do not age by it. The log's own time is noted in the checkpoint every
NOTE_MS, and so survives a restart.

The log *contradicts* the clock if that is behind, or so far ahead that a message stored just before
the last stop would count as expired: then this replica should not lead (broker.leader_fitness), and
operators are warned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from raftmq.store.checkpoint import LogTimes
from raftmq.store.message_store import MessageStore
from raftmq.store.retention import HOUR_MS, Expired, LogClock, LogNow

from .config import BrokerConfig
from .construction import retention_policy

log = logging.getLogger("raftmq.broker.retention")

NOTE_MS = 60_000  # between two notes; well below logclock.CLOCK_JUMP_MS
NOT_SETTLED = "what is not applied and durable yet"


@dataclass(frozen=True, slots=True)
class Retained:
    """What one pass of retention did, in bytes of the CommitLog: deleted, and kept although the
    policy deletes it, with what it is kept for."""

    deleted: int
    kept: int = 0
    kept_for: str = ""


@dataclass(slots=True)
class Limit:
    """The CommitLog offset up to which a pass deletes, and what sets it; "": nothing but the
    policy."""

    position: int
    reason: str = ""

    def lower(self, position: int, reason: str) -> None:
        """Go no further than `position`, for this reason."""
        if position < self.position:
            self.position, self.reason = position, reason

    def retained(self, expired: int, before: int, after: int) -> Retained:
        """Return what a pass did that was to delete up to `expired`, and that the log began at
        `before` and at `after` around it."""
        kept = max(0, expired - after)
        return Retained(after - before, kept, (self.reason or NOT_SETTLED) if kept else "")


class Retention:
    """Decides which segments have expired. One per broker."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        wall_ms: Callable[[], int],
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._config = config
        self._wall_ms = wall_ms
        self._clock_ms = clock_ms
        self._clock: LogClock | None = None  # made at the first look, when the log is recovered
        self._now = LogNow(0, 0)
        self._note_due_ms = 0
        self._doubted_bytes = 0

    def look(self) -> LogNow:
        """Compare the wall clock with the log's own time, and note that from time to time. Raises
        OSError at the first look."""
        return self._look(-1)

    def _look(self, log_start_ms: int) -> LogNow:
        wall_ms, clock_ms = self._wall_ms(), self._clock_ms()
        times, was, starting = self._store.checkpoint.times, self._now, self._clock is None
        if self._clock is None:
            own_ms = times.own_ms or self._store.expiry.log_end_time() or wall_ms
            self._clock = LogClock(clock_ms, own_ms, times.since_ms)
        self._now = now = self._clock.compare(wall_ms, clock_ms, log_start_ms)
        changed = bool(now.lead_ms) != bool(was.lead_ms)
        if changed and now.lead_ms:
            log.log(
                logging.INFO if starting and not self.contradiction else logging.WARNING,
                "clock_doubted seconds=%+.3f: messages from before do not age by it",
                now.lead_ms / 1000,
            )
        elif changed:
            log.info("clock_agrees")
        if changed or clock_ms >= self._note_due_ms:
            self._note_due_ms = clock_ms + NOTE_MS
            try:
                self.note()
            except OSError as error:  # it is noted again; a start would count the time as off
                log.warning("log_time_not_noted: %s", error)
        return now

    def note(self) -> None:
        """Note the log's own time in the checkpoint. Raises OSError."""
        if self._clock is not None:
            self._store.checkpoint.write_times(LogTimes(self._now.own_ms, self._now.since_ms))

    def trust_clock(self) -> None:
        """Take the wall clock for right, because most replicas or an operator confirm it."""
        lead_ms = self.look().lead_ms
        if self._clock is not None and lead_ms:
            log.warning("clock_trusted seconds=%+.3f", lead_ms / 1000)
            self._clock.trust(self._wall_ms(), self._clock_ms())
            self.look()

    @property
    def contradiction(self) -> str:
        """How the log contradicts the wall clock, as of the last look; "" if it does not."""
        lead_ms = self._now.lead_ms
        if 0 <= lead_ms < max(1, self._config.file_reserved_time * HOUR_MS):
            return ""
        days, hours = divmod(abs(lead_ms) // HOUR_MS, 24)
        minutes = abs(lead_ms) // 60_000 % 60
        by = f"{days} d {hours} h {minutes} min"
        if lead_ms < 0:
            return f"the clock is {by} behind the time when this store was last written"
        return (
            f"the clock is {by} ahead of the time when this store was last open: messages from"
            " before do not age by it. If the clock is right and the store was off for so long,"
            " mqadmin deleteExpiredCommitLog --trustClock confirms it"
        )

    def expired(self, *, at_once: bool = False) -> Expired:
        """Return which segments are to be deleted; `at_once`: decide as if it were the hour of
        `deleteWhen`. Raises OSError."""
        policy, expiry = retention_policy(self._config), self._store.expiry
        now = self.look()
        if now.since_ms:
            now = self._look(expiry.log_start_time())
        hour = policy.due_hour if at_once else None
        expired = expiry.expired(policy, now, self._store.disk.usage(), hour)
        self._doubted_bytes = expired.doubted_bytes
        return expired

    @property
    def crowded(self) -> bool:
        """True if the disk is so full that expired segments go although a replica or a backup still
        reads them. Raises OSError."""
        return retention_policy(self._config).crowded.is_reached(self._store.disk.usage())

    @property
    def forced(self) -> bool:
        """True if the oldest segments go although they have not expired. Raises OSError."""
        return self._config.clean_file_forcibly_enable and self.crowded

    @property
    def clock_lead_ms(self) -> int:
        """By how much the wall clock is ahead of the log's own time, as of the last look; 0 while
        they agree."""
        return self._now.lead_ms

    def info(self) -> dict[str, str]:
        """Return the entries of the runtime info."""
        return {
            "clockAheadOfLogMs": str(self.clock_lead_ms),
            "clockContradiction": self.contradiction,
            "retentionDoubtedBytes": str(self._doubted_bytes),
        }
