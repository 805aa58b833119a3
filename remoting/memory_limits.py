"""Limits of the memory that all connections of a process may cause.

A peer may start a frame of 16 MiB and never finish it, and so may sixty peers. Limits per
connection therefore do not limit the process. These budgets do:
- `unfinished` covers incomplete frames, and frames that wait because their sender does not read our
  answers. Each has a deadline.
- `unsent` covers answers in transports to peers that do not read.
- `work` covers bodies of running slow requests (a task each).
- `kept` covers data that peers sent about themselves and their waits, until their connection ends.

A `Holding` above its limit closes connections until it is below: those with the oldest frame first,
or the largest. The former spares small holders while there is a large holder. All remaining
connections are served. A used-up `Allowance` rejects further requests with BUSY. A `Share` is a
peer's share of it. Pure, without I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MIB = 1024 * 1024
SMALL_BYTES = 64 * 1024  # any peer may hold this, by a read that ended within a frame
TASK_BYTES = 4 * 1024  # memory of a slow request except its body


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """The limits of a process; each has a configuration key."""

    unfinished_bytes_max: int = 64 * MIB
    frame_deadline_s: float = 60.0
    unsent_bytes_max: int = 256 * MIB
    work_bytes_max: int = 64 * MIB
    kept_bytes_max: int = 256 * MIB


class Holder(Protocol):
    """A connection, for a `Holding`."""

    @property
    def unsent_bytes(self) -> int: ...

    def abort(self, reason: str) -> None: ...


class Holding:
    """Bytes held for connections, which are closed to free memory, with `oldest_first` the oldest,
    otherwise the largest."""

    def __init__(self, name: str, bytes_max: int, *, oldest_first: bool) -> None:
        assert bytes_max > 0, bytes_max
        self.name = name
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.closed_count = 0  # connections closed above the limit or past the deadline
        self._oldest_first = oldest_first
        self._held: dict[Holder, tuple[float, int]] = {}  # since when, bytes; oldest first

    def hold(self, holder: Holder, size: int, now_s: float) -> None:
        """Record that `holder` holds `size` bytes. May close connections, also `holder`."""
        since_s, before = self._held.get(holder, (now_s, 0))
        if size:
            self._held[holder] = (since_s, size)
        elif before:
            del self._held[holder]
        self.held_bytes += size - before
        if self.held_bytes > self.bytes_max and size > before:
            self._free()

    def restart(self, holder: Holder, size: int, now_s: float) -> None:
        """Do as `hold` for a new frame, with a new deadline."""
        known = self._held.pop(holder, None)
        if known is not None:
            self.held_bytes -= known[1]
        if size:
            self.hold(holder, size, now_s)

    def refresh(self) -> None:
        """Update the sizes in transports, which shrink without notice as they send."""
        for holder, (_, size) in list(self._held.items()):
            now = holder.unsent_bytes
            if now != size:
                self.hold(holder, min(now, size), 0.0)

    def expire(self, before_s: float) -> None:
        """Close holders since `before_s` or longer."""
        for holder, (since_s, size) in list(self._held.items()):
            if since_s > before_s:
                break
            self._close(holder, f"{size} bytes of an unfinished frame for too long")

    def _free(self) -> None:
        if not self._oldest_first:
            self.refresh()
        while self.held_bytes > self.bytes_max:
            self._close(self._victim(), f"{self.name}: over {self.bytes_max} bytes in all")

    def _victim(self) -> Holder:
        if not self._oldest_first:
            return max(self._held, key=lambda holder: self._held[holder][1])
        large = (holder for holder, (_, size) in self._held.items() if size >= SMALL_BYTES)
        return next(large, next(iter(self._held)))

    def _close(self, holder: Holder, reason: str) -> None:
        self.closed_count += 1
        _, size = self._held.pop(holder)
        self.held_bytes -= size
        holder.abort(reason)


class Allowance:
    """A budget of bytes, taken before work and returned after it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.refused_count = 0

    def take(self, size: int) -> bool:
        """Take `size` bytes; return False if that exceeds the budget."""
        if self.used_bytes + size > self.bytes_max:
            self.refused_count += 1
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Return `size` bytes."""
        self.used_bytes -= size
        assert self.used_bytes >= 0, self.used_bytes


class Share:
    """A peer's share of an Allowance, at most `bytes_max`; `end` returns all of it."""

    def __init__(self, allowance: Allowance, bytes_max: int) -> None:
        self.used_bytes = 0
        self._allowance = allowance
        self._bytes_max = bytes_max

    def take(self, size: int) -> bool:
        """Take `size` bytes; return False if that exceeds share or budget."""
        if self.used_bytes + size > self._bytes_max or not self._allowance.take(size):
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Return `size` bytes."""
        self._allowance.give_back(size)
        self.used_bytes -= size
        assert self.used_bytes >= 0, self.used_bytes

    def end(self) -> None:
        self.give_back(self.used_bytes)


class Budgets:
    """All budgets of a process. `failures` counts unforeseen errors in requests and callbacks."""

    def __init__(self, limits: BudgetLimits | None = None) -> None:
        self.limits = limits or BudgetLimits()
        self.unfinished = Holding(
            "unfinished frames", self.limits.unfinished_bytes_max, oldest_first=True
        )
        self.unsent = Holding("unsent answers", self.limits.unsent_bytes_max, oldest_first=False)
        self.work = Allowance(self.limits.work_bytes_max)
        self.kept = Allowance(self.limits.kept_bytes_max)
        self.failures = 0

    @property
    def held_bytes(self) -> int:
        held_bytes = self.unfinished.held_bytes + self.unsent.held_bytes
        return held_bytes + self.work.used_bytes + self.kept.used_bytes

    def expire(self, now_s: float) -> None:
        """Close connections with overdue frames. Call it about once per second."""
        self.unfinished.expire(now_s - self.limits.frame_deadline_s)
