"""Planted breaks that clients which die show: what they held is not given to others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from raftmq.broker.clients import ClientTable
from raftmq.broker.consume.queue_locks import LockService
from raftmq.broker.transactions.service import Transactions
from tests.simulator.cluster.planting import instead


def the_dead_stay_members() -> AbstractContextManager[Any]:
    """Whose connection is closed stays in its groups until it has been silent for long."""
    return instead(ClientTable, "closed", lambda self, connection: None)


def locks_of_the_dead_never_end() -> AbstractContextManager[Any]:
    """A queue's lock ends only when its owner lets it go."""
    return instead(LockService, "_is_over", lambda self, key, now_ms: False)


def one_producer_is_asked_for_good() -> AbstractContextManager[Any]:
    """What one of a group's producers left undecided, nobody but the first is asked about."""
    requested: dict[Any, Any] = {}

    def producer(self: Transactions, group: str, needs: Sequence[Any]) -> Any:
        members = self._clients.producers.get(group, {}).values()
        for member in members:
            requested.setdefault((self, group), member.connection)
        result = requested.get((self, group))
        return result if result is not None and result.is_open else None

    return instead(Transactions, "_producer_of", producer)
