"""Idempotent sends in flight (broker.tables.idempotent_sends has the table)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from ..config import BrokerConfig
from ..errors import busy
from ..tables.idempotent_sends import Key, Once
from .frame_builder import by_queue
from .queue import Group, Sender

WAITING_MAX = 10_000  # repeated attempts, over all sends


class Repeats:
    """Idempotent sends in flight, and the repeated attempts that wait for each."""

    def __init__(self) -> None:
        self._waiting: dict[Key, list[tuple[Sender, int]]] = {}
        self._count = 0

    def join(self, key: Key, sender: Sender, now_ms: int) -> bool:
        """Add an attempt to one of its key in flight; True if there is one. Raises Refused."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return False
        if self._count >= WAITING_MAX:
            raise busy(f"{self._count} repeated sends wait already", retriable=True)
        waiting.append((sender, now_ms))
        self._count += 1
        return True

    def start(self, key: Key) -> None:
        self._waiting[key] = []

    def finish(self, sends: Iterable[Once]) -> list[tuple[Once, Sender]]:
        """Return (send, sender) of each attempt that waits for these decided sends."""
        waiters: list[tuple[Once, Sender]] = []
        for once in sends:
            waiters += [(once, sender) for sender, _ in self._waiting.pop(once.key, ())]
        self._count -= len(waiters)
        return waiters

    def overdue(self, before_ms: int) -> Sequence[Sender]:
        """Remove and return the senders waiting since `before_ms`; their outcome is unknown."""
        if not self._count:
            return ()
        senders: list[Sender] = []
        for waiting in self._waiting.values():
            late = [sender for sender, since_ms in waiting if since_ms <= before_ms]
            if late:
                waiting[:] = [entry for entry in waiting if entry[1] > before_ms]
                senders += late
        self._count -= len(senders)
        return senders


def sent_once(group: Group, host: bytes, limits: BrokerConfig) -> bytes:
    """Return the command that records a group's idempotent sends. Call it before the queues
    advance. `host` is the STOREHOST of the records."""
    assert group.once is not None
    by_index = {once.at: once for once in group.once}
    sends: list[tuple[str, str, int, int, int]] = []
    position = 0
    for queue, run in by_queue(group.records).items():
        for offset, at in enumerate(run, queue.next_offset):
            once = by_index.get(at)
            if once is not None:
                sends.append((*once.key, once.queue_id, offset, position))
            position += group.records[at][1]
    return orjson.dumps(
        {
            "op": "sent_once",
            "window_ms": limits.idempotent_window_ms,
            "max": limits.idempotent_window_max,
            "host": host.hex().upper(),
            "sends": sends,
        }
    )
