"""Planted breaks of what the workload `filtered` looks at: filters under load, live settings."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from raftmq.broker.admin import upkeep
from raftmq.broker.consume.filters import Filter
from raftmq.broker.consume.pull import PullService
from raftmq.broker.errors import Refused
from tests.simulator.cluster.planting import instead, replaced


def filters_turned_off_let_all_through() -> AbstractContextManager[Any]:
    """A consumer that filters by SQL gets everything while that is turned off."""

    def broken(find: Any) -> Any:
        def finds(self: PullService, *arguments: Any) -> Any:
            try:
                return find(self, *arguments)
            except Refused:
                if self._config.enable_property_filter:
                    raise
                return Filter()

        return finds

    return replaced(PullService, "_filter", broken)


def settings_answered_and_not_set() -> AbstractContextManager[Any]:
    """An operator who changes a setting is answered, and nothing changes."""
    return instead(upkeep, "change", lambda config, live: None)
