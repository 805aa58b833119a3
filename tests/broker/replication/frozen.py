"""A replica that hears nobody and whose core's clock stands still: it wakes as a stopped process
does, or one that was cut off, and believes for a moment that it still leads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.broker.cluster import Group
from tests.waiting import until

SOON = {"electionTimeoutMinMs": 800, "electionTimeoutMaxMs": 1_200}  # of those that are awake


@contextmanager
def frozen(broker: Any) -> Iterator[None]:
    """Within, the broker serves clients, but none of its peers reaches it, nor it them."""
    member = broker.engine
    with (
        patch.object(member.links, "send", lambda *_, **__: True),
        patch.object(member.inbox, "on_messages", lambda messages: None),
        patch.object(member.core, "tick", lambda now_ms: None),
    ):
        yield


async def successor(group: Group, old: Any) -> Any:
    """Return who leads while `old` is frozen, and still believes that it leads."""
    result: list[Any] = []

    def look() -> bool:
        result[:] = [b for b in group.brokers.values() if b is not old and b.roles.leading]
        return bool(result)

    await until(look)
    assert old.roles.leading
    return result[0]
