"""Waiting requests by opaque.

Invariants: at most `count_max` requests wait; an opaque identifies one request at a time; every
added request is removed exactly once, by `take`, `expire` or `drain`. A single timer serves all,
because `next_deadline` is never later than the earliest deadline. Deadlines are plain numbers.
Pure, without I/O.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from .errors import TooManyRequests

W = TypeVar("W")

OPAQUE_MAX = 0x7FFFFFFF


class PendingRequests(Generic[W]):
    """The table of waiting requests. `deadline` has the unit of `expire`'s `now`."""

    __slots__ = ("_count_max", "_next_opaque", "_unsent", "_waiting", "next_deadline")

    def __init__(self, count_max: int, first_opaque: int = 0) -> None:
        self._count_max = count_max
        self._next_opaque = first_opaque
        self._waiting: dict[int, tuple[W, float]] = {}
        self._unsent: list[int] = []  # added since the last `all_sent`
        self.next_deadline = float("inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def next_opaque(self) -> int:
        """Return an opaque of no waiting request; wraps around after 2^31 - 1."""
        opaque = self._next_opaque
        while opaque in self._waiting:  # terminates, since fewer than 2^31 can wait
            opaque = (opaque + 1) & OPAQUE_MAX
        self._next_opaque = (opaque + 1) & OPAQUE_MAX
        return opaque

    def add(self, opaque: int, waiter: W, deadline: float) -> None:
        """Add a request. Raises TooManyRequests at the limit, ValueError for an opaque in use."""
        waiting = self._waiting
        if len(waiting) >= self._count_max:
            raise TooManyRequests(f"{len(waiting)} requests wait for answers already")
        if opaque in waiting:
            raise ValueError(f"opaque {opaque} is in use")
        waiting[opaque] = (waiter, deadline)
        self._unsent.append(opaque)
        if deadline < self.next_deadline:
            self.next_deadline = deadline

    def all_sent(self) -> None:
        """Record that all added requests were passed to the transport."""
        self._unsent.clear()

    def take(self, opaque: int) -> W | None:
        """Remove a request; return its waiter, or None (a late answer)."""
        entry = self._waiting.pop(opaque, None)
        return entry[0] if entry is not None else None

    def expire(self, now: float) -> list[tuple[W, bool]]:
        """Remove every overdue request; return (waiter, was sent) of each."""
        due = [opaque for opaque, (_, deadline) in self._waiting.items() if deadline <= now]
        unsent = set(self._unsent) if due else set()
        expired = [(self._waiting.pop(opaque)[0], opaque not in unsent) for opaque in due]
        self.next_deadline = min(
            (deadline for _, deadline in self._waiting.values()), default=float("inf")
        )
        return expired

    def drain(self) -> list[tuple[W, bool]]:
        """Remove all; return (waiter, was sent) of each, in the order of addition."""
        unsent = set(self._unsent)
        drained = [(entry[0], opaque not in unsent) for opaque, entry in self._waiting.items()]
        self._waiting.clear()
        self._unsent.clear()
        self.next_deadline = float("inf")
        return drained
