"""ReadIndex (thesis 6.4): reads that wait for proof that the leader still led when they arrived.

A read is confirmed by the first heartbeat round that starts after it; all reads between two rounds
form a batch. Reads before the commit of a frame of the leader's own term wait for that commit,
because the commit index may be behind.

Invariants: batches are in the order of their rounds, each with at least one token; `count` tokens
wait, at most `count_max`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .errors import Busy


@dataclass(slots=True)
class _Batch:
    """The reads that a round confirms at a commit index."""

    round: int
    index: int
    tokens: list[int]


@dataclass(slots=True, eq=False)
class ReadIndex:
    """The unconfirmed reads of a leadership."""

    _count_max: int
    count: int = 0
    _batches: deque[_Batch] = field(default_factory=deque)
    _unready: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        """True if a round may confirm reads."""
        return bool(self._batches)

    def check_room(self) -> None:
        """Raises Busy at the limit."""
        if self.count >= self._count_max:
            raise Busy(f"{self.count} reads wait for confirmation")

    def hold(self, token: int) -> None:
        """Keep a read until `release`."""
        self.count += 1
        self._unready.append(token)

    def ask(self, token: int, round_: int, commit_index: int) -> None:
        """Add a read at `commit_index`; the future round `round_` confirms it."""
        self.count += 1
        self._queue(token, round_, commit_index)

    def release(self, round_: int, commit_index: int) -> None:
        """Queue the reads of `hold`."""
        waiting, self._unready = self._unready, []
        for token in waiting:
            self._queue(token, round_, commit_index)

    def _queue(self, token: int, round_: int, commit_index: int) -> None:
        last = self._batches[-1] if self._batches else None
        if last is not None and last.round == round_ and last.index == commit_index:
            last.tokens.append(token)
        else:
            self._batches.append(_Batch(round_, commit_index, [token]))

    @property
    def oldest_round(self) -> int:
        """The first round that reads wait for; 0: none."""
        return self._batches[0].round if self._batches else 0

    @property
    def newest_round(self) -> int:
        """The last round that reads wait for; 0: none."""
        return self._batches[-1].round if self._batches else 0

    def confirm(self, round_: int) -> list[tuple[int, int]]:
        """Remove and return the reads of rounds up to `round_`, as (token, index)."""
        confirmed: list[tuple[int, int]] = []
        while self._batches and self._batches[0].round <= round_:
            batch = self._batches.popleft()
            self.count -= len(batch.tokens)
            confirmed.extend([(token, batch.index) for token in batch.tokens])
        return confirmed

    def fail(self) -> list[int]:
        """Remove and return all tokens, because leadership is lost."""
        failed = [token for batch in self._batches for token in batch.tokens] + self._unready
        self._batches.clear()
        self._unready = []
        self.count = 0
        return failed
