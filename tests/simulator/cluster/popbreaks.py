"""Planted breaks of pop consumption: each takes one rule out of the real broker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from raftmq.broker.pop.acks import Acks
from raftmq.broker.pop.command_batch import StepLog
from raftmq.broker.pop.leader_state import LiveQueues
from raftmq.broker.pop.revive import Deadlines
from raftmq.broker.pop.selection import Selection
from raftmq.broker.tables.pops import PopTable
from tests.simulator.cluster.planting import instead, replaced


def pops_answered_before_they_are_logged() -> AbstractContextManager[Any]:
    """Acknowledgements are answered when they are proposed."""

    def broken(add: Any) -> Any:
        def adds(self: StepLog, steps: Sequence[Any], done: Any) -> None:
            if steps[0][0] == "done":
                add(self, steps, lambda error: None)
                done(None)
            else:
                add(self, steps, done)

        return adds

    return replaced(StepLog, "add", broken)


def pops_acknowledged_in_memory() -> AbstractContextManager[Any]:
    """Acknowledgements are the leader's memory, as at Apache's: a failover forgets them."""

    def broken(add: Any) -> Any:
        def adds(self: StepLog, steps: Sequence[Any], done: Any) -> None:
            if steps[0][0] == "done":
                done(None)
            else:
                add(self, steps, done)

        return adds

    return replaced(StepLog, "add", broken)


def pops_never_again() -> AbstractContextManager[Any]:
    """A new leader does not learn what is in flight."""
    return instead(Deadlines, "reload", lambda self: self.clear())


def pops_too_early() -> AbstractContextManager[Any]:
    """Messages come again after half of their time."""

    def broken(steps: Any) -> Any:
        def shortened(self: Selection, pop_ms: int, header: Any) -> Any:
            return steps(self, pop_ms, header._replace(invisible_ms=header.invisible_ms // 2))

        return shortened

    return replaced(Selection, "steps", broken)


def pops_in_flight_forgotten() -> AbstractContextManager[Any]:
    """The next pop begins where the table says, although others are in flight."""
    return instead(LiveQueues, "next_of", lambda self, place: None)


def pops_come_again_whatever_is_under_way() -> AbstractContextManager[Any]:
    """A message whose acknowledgement is on its way into the log is let come again."""
    return instead(LiveQueues, "busy_of", lambda self, place, key: 0)


def pops_not_in_flight() -> AbstractContextManager[Any]:
    """What was popped is not noted: nobody gets it again."""

    def broken(take: Any) -> Any:
        def takes(self: PopTable, key: Any, queue_id: int, *rest: Any) -> None:
            before, after, start, pop_ms, visible_ms, _, *more = rest
            take(self, key, queue_id, before, after, start, pop_ms, visible_ms, [], *more)

        return takes

    return replaced(PopTable, "_take", broken)


def pops_void_handles_acknowledge() -> AbstractContextManager[Any]:
    """An acknowledgement with a handle that is void is answered as if it counted."""
    return instead(Acks, "_all_known", lambda self, one, pending: True)
