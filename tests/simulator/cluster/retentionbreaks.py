"""Planted breaks of retention: what it takes of the log, and where it leaves those who read."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from raftmq.broker.consuming.pull import PullService
from raftmq.broker.keeper import RaftKeeper
from raftmq.store.derived import DerivedFiles
from tests.simulator.cluster.planting import instead, replaced


def retention_takes_nothing() -> AbstractContextManager[Any]:
    """No segment is deleted, however full the disk is."""

    async def retain(self: RaftKeeper, *, at_once: bool = False) -> None:
        pass

    return instead(RaftKeeper, "retain", retain)


def readers_behind_are_led_to_the_end() -> AbstractContextManager[Any]:
    """Who reads what retention has taken is sent behind the last message, not to the first."""

    def broken(decide: Any) -> Any:
        def decides(self: Any, header: Any, result: Any) -> tuple[int, int]:
            code, offset = decide(self, header, result)
            return code, result.max_offset if result.status.name == "OFFSET_TOO_SMALL" else offset

        return decides

    return replaced(PullService, "_decide", broken)


def queues_keep_what_the_log_lost() -> AbstractContextManager[Any]:
    """Retention cuts the log, and not the queues that lead into it."""
    return instead(DerivedFiles, "correct_min_offset", lambda self: None)
