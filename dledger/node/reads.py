"""Linearizable reads (ReadIndex): they wait for proof of leadership, and for applied frames.

All reads of a turn of the loop share a token, and so a confirmation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..raft.errors import Busy, NotLeader, RaftError
from ..raft.messages import NodeId

READS_WAITING_MAX = 16_384


class Reads:
    """Futures of waiting reads; each resolves with its read index."""

    def __init__(self, waiting_max: int = READS_WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._waiting = 0
        self._token = 0
        self._gathering: list[asyncio.Future[int]] = []
        self._confirming: dict[int, list[asyncio.Future[int]]] = {}
        self._confirmed: deque[tuple[int, list[asyncio.Future[int]]]] = deque()

    def add(self, ask: Callable[[int], None]) -> asyncio.Future[int]:
        """Add a read. `ask(token)` confirms it; its RaftError fails the reads. Raises Busy."""
        if self._waiting >= self._waiting_max:
            raise Busy(f"{self._waiting} reads wait already")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        if not self._gathering:
            loop.call_soon(self._start, ask)
        self._gathering.append(future)
        self._waiting += 1
        return future

    def confirmed(self, token: int, index: int, applied_index: int) -> None:
        """Serve the reads of a proven token once `index` is applied."""
        self._confirmed.append((index, self._confirming.pop(token)))
        self.applied(applied_index)

    def failed(self, token: int, leader: NodeId | None) -> None:
        """Fail the reads of `token`, because leadership was lost."""
        self._fail(self._confirming.pop(token), lambda: NotLeader(leader))

    def applied(self, index: int) -> None:
        """Serve the reads that waited for frames up to `index`."""
        confirmed = self._confirmed
        while confirmed and confirmed[0][0] <= index:
            at, futures = confirmed.popleft()
            self._waiting -= len(futures)
            for future in futures:
                if not future.done():
                    future.set_result(at)

    def close(self) -> None:
        """Fail all reads, because the member ends."""
        waiting = [self._gathering, *self._confirming.values(), *(f for _, f in self._confirmed)]
        self._gathering = []
        self._confirming.clear()
        self._confirmed.clear()
        for futures in waiting:
            self._fail(futures, lambda: NotLeader(None))

    def _start(self, ask: Callable[[int], None]) -> None:
        futures, self._gathering = self._gathering, []
        if not futures:
            return  # closed in the meantime
        self._token += 1
        self._confirming[self._token] = futures
        try:
            ask(self._token)
        except RaftError as error:
            kind, text, leader = type(error), str(error), getattr(error, "leader", None)
            self._confirming.pop(self._token)
            self._fail(futures, lambda: NotLeader(leader) if kind is NotLeader else kind(text))

    def _fail(self, futures: list[asyncio.Future[int]], error: Callable[[], RaftError]) -> None:
        self._waiting -= len(futures)
        for future in futures:
            if not future.done():
                future.set_exception(error())
