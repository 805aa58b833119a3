"""Idempotent sends on the leader: repeated attempts that wait while the first is in flight, and the
command that notes the results (broker.tables.idempotent_sends has the table). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from ..config import BrokerConfig
from ..errors import busy
from ..tables.idempotent_sends import Key, Once
from .frame_builder import by_queue
from .queue import Group, Sender

WAITING_MAX = 10_000  # repeated attempts that wait for the first one's outcome


class Repeats:
    """The idempotent sends in flight, and the repeated attempts that wait for each."""

    def __init__(self) -> None:
        self._waiting: dict[Key, list[tuple[Sender, int]]] = {}
        self._count = 0

    def join(self, key: Key, sender: Sender, now_ms: int) -> bool:
        """Let an attempt wait if the first one with its key is in flight; return whether it is.
        Raises Refused at the limit."""
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
        """Return (send, sender) of each attempt that waits for these sends, whose outcome is known
        now."""
        waiters: list[tuple[Once, Sender]] = []
        for once in sends:
            waiters += [(once, sender) for sender, _ in self._waiting.pop(once.key, ())]
        self._count -= len(waiters)
        return waiters

    def overdue(self, before_ms: int) -> Sequence[Sender]:
        """Remove and return the senders that have waited since `before_ms` or longer; they are to
        be told that the outcome is unknown."""
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
    """Return the command that notes a group's idempotent sends. The group is about to become a
    frame, and its queues have not advanced yet. `host`: the STOREHOST that its records get."""
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
