"""Fixed intervals and time-outs of a broker; tests pass other ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Durations:
    """Intervals and time-outs in milliseconds."""

    snapshot: int = 10_000  # between snapshots of the tables, or a classic broker's queue flushes
    retention: int = 10_000  # between checks for expired segments
    config_files: int = 5_000  # between writes of a classic broker's tables
    outcome: int = 3_000  # until an undecided send is answered [OUTCOME_UNKNOWN]
    # Until an unrenewed queue lock ends. Consumers renew every 20 s and keep a lock for 30 s of
    # their own. Below twice that, two consumers may share a queue.
    queue_lock: int = 60_000
    # Timer messages wait after a jump of the clock. By then, a leader with a wrong clock has
    # transferred its leadership.
    timer_hold: int = 15_000
    sync_flush: int = 5_000  # limit of a send's wait for a classic broker's disk
    ha_heartbeat: int = 5_000  # between heartbeats on a quiet link of a classic group
    ha_silence: int = 20_000  # until a silent link is closed


DURATIONS = Durations()
