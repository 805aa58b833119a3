"""Requests that wait for messages: how many, how many bytes, until when and for whom. Pure.

Pulls and pops have tables of their own, by what they wait for. What those have in common is here:
each wait ends with its time or its connection, and all together are bounded.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.memory_limits import Allowance

from .filters import CODE_BYTES, COMPILED, Filter

AT_ONCE_MAX = 500  # waits that are ended in one go; the others must not wait for thousands
WAIT_MS_MAX = 60_000  # whatever a request asks for
COUNT_MAX = 1_024  # messages of a pull that says how many bytes it takes, and of a pop


class Wait(Protocol):
    """A waiting request. `owner`: its connection; `done`: it waits no longer."""

    deadline_ms: int
    owner: object
    size_bytes: int
    done: bool


W = TypeVar("W", bound=Wait)


def kept_bytes(request: RemotingCommand, wanted: Filter) -> int:
    """Return roughly what a waiting request keeps in memory, besides what every one does."""
    size = sum(map(len, (request.ext or {}).values()))
    if wanted.evaluates:
        return size * COMPILED
    return size + CODE_BYTES * len(wanted.codes or ())


class Waits(Generic[W]):
    """All waits of one kind, by deadline and by owner."""

    def __init__(self, count_max: Callable[[], int], kept: Allowance) -> None:
        """`kept` is shared with everything else that is kept for peers."""
        self._count_max = count_max
        self._kept = kept
        self._deadlines: list[tuple[int, int, W]] = []
        self._by_owner: dict[object, dict[W, None]] = {}
        self._sequence = 0
        self.count = 0

    def add(self, wait: W) -> bool:
        """Keep a wait; False, with nothing kept, if there is no room."""
        if self.count >= self._count_max() or not self._kept.take(wait.size_bytes):
            return False
        self._by_owner.setdefault(wait.owner, {})[wait] = None
        self.count += 1
        self._push(wait)
        return True

    def end(self, wait: W) -> None:
        """Forget a wait: it is over, whatever the reason."""
        wait.done = True
        self.count -= 1
        self._kept.give_back(wait.size_bytes)
        owned = self._by_owner[wait.owner]
        del owned[wait]
        if not owned:
            del self._by_owner[wait.owner]
        if len(self._deadlines) > 2 * self.count + 64:  # mostly ended ones: rebuild
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)

    def hurry(self, wait: W) -> None:
        """Let a wait's time be over now."""
        if wait.deadline_ms:
            wait.deadline_ms = 0
            self._push(wait)

    def put_off(self, wait: W, now_ms: int) -> None:
        """Let a wait that was due come behind all others that are."""
        wait.deadline_ms = now_ms
        self._push(wait)

    def due(self, now_ms: int) -> list[W]:
        """Return the waits whose time is over, AT_ONCE_MAX at most; the caller ends them, or puts
        them off."""
        deadlines = self._deadlines
        due: list[W] = []
        while deadlines and len(due) < AT_ONCE_MAX:
            if deadlines[0][0] > now_ms and not deadlines[0][2].done:
                break
            deadline_ms, _, wait = heapq.heappop(deadlines)
            if not wait.done and deadline_ms == wait.deadline_ms:  # else it was hurried
                due.append(wait)
        return due

    def rest_ms(self, now_ms: int) -> float:
        """Return in how many milliseconds the first wait's time is over."""
        return self._deadlines[0][0] - now_ms if self._deadlines else float("inf")

    def owned_by(self, owner: object) -> list[W]:
        return list(self._by_owner.get(owner, ()))

    def all(self) -> list[W]:
        """Return all waits, those of one owner after the other's."""
        return [wait for owned in self._by_owner.values() for wait in owned]

    def _push(self, wait: W) -> None:
        self._sequence += 1
        heapq.heappush(self._deadlines, (wait.deadline_ms, self._sequence, wait))
