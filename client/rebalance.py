"""Which queues of a topic belong to which consumer of a group. Pure.

Every consumer computes the same answer from the same two sorted lists; nobody coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from client.message import MessageQueue


def allocate_averagely(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> tuple[MessageQueue, ...]:
    """RocketMQ's AVG: neighbouring queues to one consumer, the first ones get one more.

    Both lists are sorted here. A client that is not in the list gets nothing: it has not been
    registered with the broker yet, and taking queues now would only take them from others.
    """
    clients = sorted(set(client_ids))
    if client_id not in clients or not queues:
        return ()
    ordered = sorted(queues)
    position = clients.index(client_id)
    share, rest = divmod(len(ordered), len(clients))
    start = position * share + min(position, rest)
    return tuple(ordered[start : start + share + (1 if position < rest else 0)])


@dataclass(frozen=True, slots=True)
class Assignment:
    """The change from the queues held to the queues allocated."""

    dropped: tuple[MessageQueue, ...]
    added: tuple[MessageQueue, ...]


def assignment_change(
    topic: str, held: Iterable[MessageQueue], allocated: Iterable[MessageQueue]
) -> Assignment:
    """What to give up and what to take, for one topic; queues of other topics are left alone."""
    before = {queue for queue in held if queue.topic == topic}
    after = set(allocated)
    return Assignment(tuple(sorted(before - after)), tuple(sorted(after - before)))
