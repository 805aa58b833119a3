"""Decides which part of the log may be deleted now; ages count only while the wall clock is steady.

After a jump of the wall clock everything looks old, or young. So it is compared with the monotonic
clock in each round of retention. After a jump (`clock_jumped`) nothing is deleted because of its
age until the clock has been steady for CLOCK_STEADY_MS. A disk that is too full still makes the
oldest segments go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from raftmq.store.messagestore import MessageStore
from raftmq.store.retention import CLOCK_STEADY_MS, Expired, SteadyClock

log = logging.getLogger("raftmq.broker.retention")

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
    """Decides which segments have expired. One per broker, made when it starts: the clocks are
    compared from then on."""

    def __init__(
        self, store: MessageStore, wall_ms: Callable[[], int], clock_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._wall_ms = wall_ms
        self._clock_ms = clock_ms
        self._steady = SteadyClock(wall_ms(), clock_ms())

    def expired(self, *, at_once: bool = False) -> Expired:
        """Return which segments are to be deleted; `at_once`: decide as if it were the hour of
        `deleteWhen`. Raises OSError."""
        wall_ms, clock_ms = self._wall_ms(), self._clock_ms()
        jump_ms = self._steady.look(wall_ms, clock_ms)
        if jump_ms:
            log.warning(
                "clock_jumped seconds=%+.3f retention_by_age_held_s=%d",
                jump_ms / 1000,
                CLOCK_STEADY_MS // 1000,
            )
        expiry = self._store.expiry
        hour = expiry.due_hour if at_once else None
        return expiry.expired(wall_ms, hour=hour, by_age=self._steady.held_ms(clock_ms) == 0)

    @property
    def disk_is_full(self) -> bool:
        """True if the disk is so full that old segments go whatever their age. Raises OSError."""
        used_ratio = self._store.disk.usage().used_ratio
        return used_ratio >= self._store.config.retention.disk_ratio_force

    def info(self) -> dict[str, str]:
        """Return the entries of the runtime info. clockJumpedMs: the last jump, 0 for none since
        the start."""
        return {
            "clockJumpedMs": str(self._steady.jump_ms),
            "retentionByAgeHeldMs": str(self._steady.held_ms(self._clock_ms())),
        }
