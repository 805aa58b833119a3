"""Limits of the calls in progress, by kind."""

from __future__ import annotations

import asyncio
import logging

from raftmq.ops.fairness import SharedLimit
from raftmq.remoting.connection import FROM_PEER

log = logging.getLogger("raftmq.proxy")


class CallLimit:
    """Counts calls until their task ends. gRPC has then written the answer, so a caller that does
    not read its answer keeps counting."""

    def __init__(self, kind: str, limit: int, share: float) -> None:
        """`kind` is a label for the log and the metrics. `share` limits each holder's share of the
        free calls."""
        self.kind = kind
        self.refused_count = 0
        self._shared = SharedLimit(limit, share)

    @property
    def limit(self) -> int:
        return self._shared.limit

    @property
    def count(self) -> int:
        return self._shared.used

    def take(self, peer: str, holder: str) -> bool:
        """Count the call of the current task. Return False, and log it, if the limit is reached."""
        if not self._shared.take(holder):
            self.refuse(peer)
            return False
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._shared.give_back(holder))
        return True

    def refuse(self, peer: str) -> None:
        self.refused_count += 1
        text = "call_bound kind=%s limit=%d total=%d peer=%s"
        log.warning(text, self.kind, self.limit, self.refused_count, peer, extra=FROM_PEER)
