"""Planted breaks of retention: what it takes of the log, and where it leaves those who read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from raftmq.broker import retention
from raftmq.broker.checkpointer import RaftKeeper
from raftmq.broker.consume.pull import PullService
from raftmq.broker.messages.half_message import HALF_TOPIC
from raftmq.broker.pop.revive import Reviver
from raftmq.broker.retention import Retained, Retention
from raftmq.broker.tables.pops import QueueKey
from raftmq.broker.transactions.service import Transactions
from raftmq.store.derived_files import DerivedFiles
from raftmq.store.retention import LogNow
from tests.simulator.cluster.planting import all_of, instead, replaced


def retention_takes_nothing() -> AbstractContextManager[Any]:
    """No segment is deleted, however full the disk is."""

    async def retain(self: RaftKeeper, *, at_once: bool = False) -> Retained:
        return Retained(0)

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


def popped_messages_go_with_any_trim() -> AbstractContextManager[Any]:
    """Once retention has taken anything, nothing that was popped comes again."""

    def broken(read: Any) -> Any:
        def reads(self: Reviver, place: QueueKey, offset: int, *budget: Any) -> Any:
            trimmed = self._context.store.commitlog.min_offset
            return None if trimmed else read(self, place, offset, *budget)

        return reads

    return replaced(Reviver, "_read", broken)


def halves_go_with_any_trim() -> AbstractContextManager[Any]:
    """Once retention has taken anything, a leader passes the halves that it has not read yet."""

    def broken(records: Any) -> Any:
        def reads(
            self: Transactions, topic: str, offset: int, on_gone: Callable[[int], None]
        ) -> Sequence[Any]:
            end = self._store.queues.end_of(topic, 0)
            if topic == HALF_TOPIC and self._store.commitlog.min_offset and offset < end:
                on_gone(end)
                return ()
            result: Sequence[Any] = records(self, topic, offset, on_gone)
            return result

        return reads

    return replaced(Transactions, "_records", broken)


def disks_in_need_take_what_has_not_expired() -> AbstractContextManager[Any]:
    """The oldest messages go when a disk is crowded, though nobody has allowed that."""

    def broken(policy: Any) -> Any:
        return lambda config: policy(replace(config, clean_file_forcibly_enable=True))

    return all_of(
        replaced(retention, "retention_policy", broken),
        instead(Retention, "forced", property(lambda self: self.crowded)),
    )


def messages_age_by_any_clock() -> AbstractContextManager[Any]:
    """A clock that the log contradicts makes messages old."""
    return instead(LogNow, "age_ms", lambda self, stored_ms: self.wall_ms - stored_ms)


def clocks_lead_that_the_log_contradicts() -> AbstractContextManager[Any]:
    """A replica leads with a clock that the log contradicts, if most others have the same."""
    return all_of(
        instead(Retention, "contradiction", property(lambda self: "")),
        instead(Retention, "clock_lead_ms", property(lambda self: 0)),
    )
