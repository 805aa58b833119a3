"""Offsets of many queues: what to read of each, in how many parts, and how much at once. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

EARLIEST = -2  # as offsets: the first that the queue still holds, and the end of the queue
LATEST = -1


class Queue(NamedTuple):
    """A queue of a topic in one broker group."""

    topic: str
    broker: str
    queue_id: int


Offsets = Mapping[Queue, int]


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets [start, end) of a queue. `strict`: a start that is not in the queue any more is lost
    data; otherwise the range begins at the first offset that is."""

    queue: Queue
    start: int
    end: int
    strict: bool = True

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(offsets: Offsets) -> dict[str, dict[str, dict[str, int]]]:
    """Return offsets as Spark keeps them in a checkpoint: {topic: {broker: {queue: offset}}}."""
    table: dict[str, dict[str, dict[str, int]]] = {}
    for queue, offset in sorted(offsets.items()):
        brokers = table.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.queue_id)] = offset
    return table


def of_json(table: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[Queue, int]:
    """Read offsets out of a checkpoint."""
    return {
        Queue(topic, broker, int(number)): offset
        for topic, brokers in table.items()
        for broker, queues in brokers.items()
        for number, offset in queues.items()
    }


def ranges_between(start: Offsets, end: Offsets) -> list[QueueRange]:
    """Return what lies between two places, without what is empty. A queue without a start has come
    since, and is read from its beginning."""
    return [
        QueueRange(queue, start.get(queue, 0), to, queue in start)
        for queue, to in sorted(end.items())
        if to > start.get(queue, 0)
    ]


def split(ranges: Sequence[QueueRange], partitions_min: int) -> list[QueueRange]:
    """Cut ranges into at least `partitions_min` parts of about the same size, if they have that
    many messages."""
    total = sum(each.size for each in ranges)
    parts: list[QueueRange] = []
    for each in ranges:
        share = -(-each.size * partitions_min // total) if len(ranges) < partitions_min else 1
        count = min(each.size, max(1, share))
        edges = [each.start + each.size * number // count for number in range(count + 1)]
        parts += [replace(each, start=low, end=high) for low, high in itertools.pairwise(edges)]
    return parts


def at_most(start: Offsets, end: Offsets, rows_max: int) -> dict[Queue, int]:
    """Return the end of a micro-batch of at most `rows_max` messages: each queue has its share of
    them by what waits in it, and the rest goes to those with the largest remainders."""
    waiting = {each.queue: each for each in ranges_between(start, end)}
    total = sum(each.size for each in waiting.values())
    if total <= rows_max:
        return dict(end)
    shares = {queue: divmod(each.size * rows_max, total) for queue, each in waiting.items()}
    rest = rows_max - sum(whole for whole, _ in shares.values())
    first = sorted(shares, key=lambda queue: (-shares[queue][1], queue))[:rest]
    limited = dict(end)
    for queue, (whole, _) in shares.items():
        limited[queue] = waiting[queue].start + whole + (queue in first)
    return limited


def behind(offsets: Offsets, others: Offsets) -> Iterable[Queue]:
    """Return the queues whose offset is below that in `others`."""
    return (queue for queue, offset in offsets.items() if offset < others.get(queue, offset))
