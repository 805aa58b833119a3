"""Offset ranges of many queues, split into partitions and micro-batches."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

EARLIEST = -2  # as offsets, the first in the queue, and the end of the queue
LATEST = -1
_CHECKED = "@checked_ms"  # no name of a topic
ROWS_MAX = (1 << 63) - 1
SHARED_ROWS_MAX = 10_000  # of a partition of several ranges: 20 ms of decoding


class Queue(NamedTuple):
    """A queue of a topic in one broker group."""

    topic: str
    broker: str
    queue_id: int


Offsets = Mapping[Queue, int]


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets [start, end) of a queue. A start that is no longer in the queue is lost data if
    `strict`; otherwise the range starts at the queue's first offset."""

    queue: Queue
    start: int
    end: int
    strict: bool = True

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(
    offsets: Offsets, checked_ms: int | None = None
) -> dict[str, dict[str, dict[str, int]]]:
    """Return offsets in the form of Spark's checkpoints: {topic: {broker: {queue: offset}}}.
    `checked_ms` is the time when the queues had these offsets, or later ones."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    if checked_ms is not None:
        table[_CHECKED] = {"": {"": checked_ms}}
    for queue, offset in sorted(offsets.items()):
        brokers = table.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.queue_id)] = offset
    return table


def of_json(table: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[Queue, int]:
    return {
        Queue(topic, broker, int(number)): offset
        for topic, brokers in table.items()
        if topic != _CHECKED
        for broker, queues in brokers.items()
        for number, offset in queues.items()
    }


def checked_ms_of(table: Mapping[str, Mapping[str, Mapping[str, int]]]) -> int | None:
    return table[_CHECKED][""][""] if _CHECKED in table else None


def gone(queues: Iterable[Queue], there: Collection[Queue]) -> list[Queue]:
    """Return the queues that exist no longer, because their topic was deleted or has fewer queues.
    A broker group that is missing in a topic's route may only be away."""
    topics = {queue.topic for queue in there}
    groups = {(queue.topic, queue.broker) for queue in there}
    return [
        queue
        for queue in queues
        if queue not in there
        and (queue.topic not in topics or (queue.topic, queue.broker) in groups)
    ]


def ranges_between(start: Offsets, end: Offsets) -> list[QueueRange]:
    """Return the non-empty ranges between two sets of offsets. A queue without a start is new, and
    is read from its first offset."""
    return [
        QueueRange(queue, start.get(queue, 0), to, queue in start)
        for queue, to in sorted(end.items())
        if to > start.get(queue, 0)
    ]


def split(
    ranges: Sequence[QueueRange], partitions_min: int, rows_max: int = ROWS_MAX
) -> list[tuple[QueueRange, ...]]:
    """Divide ranges into at least `partitions_min` partitions, if there are as many messages, each
    of at most `rows_max` messages. A partition costs time by itself, so small ranges share it."""
    total = sum(each.size for each in ranges)
    size_max = min(rows_max, max(1, total // partitions_min))
    shared_max = min(size_max, SHARED_ROWS_MAX)
    partitions: list[tuple[QueueRange, ...]] = []
    rows = shared_max  # of the last partition
    for each in ranges:
        count = -(-each.size // size_max)
        edges = [each.start + each.size * number // count for number in range(count + 1)]
        for low, high in itertools.pairwise(edges):
            part = replace(each, start=low, end=high)
            if rows + part.size <= shared_max:
                partitions[-1] += (part,)
                rows += part.size
            else:
                partitions.append((part,))
                rows = part.size
    return partitions


def at_most(start: Offsets, end: Offsets, rows_max: int) -> dict[Queue, int]:
    """Return the end of a micro-batch of at most `rows_max` messages. Each queue has a share
    proportional to its waiting messages, and the largest remainders get the rest."""
    waiting = {each.queue: each for each in ranges_between(start, end)}
    total = sum(each.size for each in waiting.values())
    if total <= rows_max:
        return dict(end)
    shares = {queue: divmod(each.size * rows_max, total) for queue, each in waiting.items()}
    rest = rows_max - sum(share for share, _ in shares.values())
    first = sorted(shares, key=lambda queue: (-shares[queue][1], queue))[:rest]
    limited = dict(end)
    for queue, (share, _) in shares.items():
        limited[queue] = waiting[queue].start + share + (queue in first)
    return limited


def behind(offsets: Offsets, others: Offsets) -> Iterable[Queue]:
    """Return the queues with a lower offset than in `others`."""
    return (queue for queue, offset in offsets.items() if offset < others.get(queue, offset))
