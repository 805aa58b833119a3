"""How many calls of a kind may be in progress at a time. Shell."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from raftmq.remoting.connection import FROM_PEER

log = logging.getLogger("raftmq.proxy")


class Bound:
    """Counts calls from when they are taken until their task ends, which is when gRPC has written
    the answer: a caller that does not read it goes on counting."""

    def __init__(self, kind: str, limit: int) -> None:
        """`kind` is for the log and the metrics; `limit` is for each key."""
        self.kind = kind
        self.limit = limit
        self.refused_count = 0
        self._counts: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._counts.total()

    def take(self, peer: str, key: str = "") -> bool:
        """Count the call that this task serves; return False, and log it, for one too many."""
        if self._counts[key] >= self.limit:
            self.refuse(peer)
            return False
        task = asyncio.current_task()
        assert task is not None
        self._counts[key] += 1
        task.add_done_callback(lambda _: self._give_back(key))
        return True

    def refuse(self, peer: str) -> None:
        self.refused_count += 1
        words = "call_bound kind=%s limit=%d total=%d peer=%s"
        log.warning(words, self.kind, self.limit, self.refused_count, peer, extra=FROM_PEER)

    def _give_back(self, key: str) -> None:
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
