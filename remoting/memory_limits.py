"""Bounds on the bytes that all connections of a process together may make it hold. Pure.

A peer that may send a frame of 16 MiB may also begin one and never end it, and so may sixty peers.
So a bound for each connection does not bound the process. These budgets do:

- `unfinished`: frames that have arrived in part, and frames that wait because their sender does not
  read our answers. Each has a deadline, too.
- `unsent`: answers that the transports hold for peers that do not read.
- `work`: bodies of slow requests in progress (a task each).
- `kept`: what peers told of themselves and of what they wait for, until their connection ends.

A `Holding` over its bound closes connections until it is not: first the one whose frame began
first, or the one that holds most. With the former, small holders are spared while there is a large
one. All others are served meanwhile. An `Allowance` that is used up refuses more: the request is
answered BUSY. A `Share` is one peer's part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MIB = 1024 * 1024
SMALL_BYTES = 64 * 1024  # any peer may hold this at times: a read that ended within a frame
TASK_BYTES = 4 * 1024  # memory of a slow request besides its body


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """The bounds of a process; each has a configuration key."""

    unfinished_bytes_max: int = 64 * MIB
    frame_deadline_s: float = 60.0
    unsent_bytes_max: int = 256 * MIB
    work_bytes_max: int = 64 * MIB
    kept_bytes_max: int = 256 * MIB


class Holder(Protocol):
    """A connection, as a `Holding` sees it."""

    @property
    def unsent_bytes(self) -> int: ...

    def abort(self, reason: str) -> None: ...


class Holding:
    """Bytes held for connections that may be closed to get them back.

    `oldest_first`: close the oldest holder first, else the largest.
    """

    def __init__(self, name: str, bytes_max: int, *, oldest_first: bool) -> None:
        assert bytes_max > 0, bytes_max
        self.name = name
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.closed_count = 0  # connections, for being over the bound or too late
        self._oldest_first = oldest_first
        self._held: dict[Holder, tuple[float, int]] = {}  # since when, bytes; oldest first

    def hold(self, holder: Holder, size: int, now_s: float) -> None:
        """Note that `holder` holds `size` bytes now. May close connections, also `holder`."""
        since_s, before = self._held.get(holder, (now_s, 0))
        if size:
            self._held[holder] = (since_s, size)
        elif before:
            del self._held[holder]
        self.held_bytes += size - before
        if self.held_bytes > self.bytes_max and size > before:
            self._free()

    def restart(self, holder: Holder, size: int, now_s: float) -> None:
        """Do as `hold`, for a new frame: its deadline counts from now."""
        known = self._held.pop(holder, None)
        if known is not None:
            self.held_bytes -= known[1]
        if size:
            self.hold(holder, size, now_s)

    def refresh(self) -> None:
        """Update the sizes that transports hold: they shrink without notice as they send."""
        for holder, (_, size) in list(self._held.items()):
            now = holder.unsent_bytes
            if now != size:
                self.hold(holder, min(now, size), 0.0)

    def expire(self, before_s: float) -> None:
        """Close holders that have held something since `before_s` or longer."""
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
    """A budget of bytes that are taken before work begins and given back when it is done."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.refused_count = 0

    def take(self, size: int) -> bool:
        """Take `size` bytes; return False if there is no room, with nothing taken."""
        if self.used_bytes + size > self.bytes_max:
            self.refused_count += 1
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Give back `size` bytes that were taken."""
        self.used_bytes -= size
        assert self.used_bytes >= 0, self.used_bytes


class Share:
    """The bytes that one peer has taken of a shared Allowance: at most `bytes_max`, all given back
    by `end`."""

    def __init__(self, allowance: Allowance, bytes_max: int) -> None:
        self.used_bytes = 0
        self._allowance = allowance
        self._bytes_max = bytes_max

    def take(self, size: int) -> bool:
        """Take `size` bytes; return False if there is no room, with nothing taken."""
        if self.used_bytes + size > self._bytes_max or not self._allowance.take(size):
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Give back `size` bytes that were taken."""
        self._allowance.give_back(size)
        self.used_bytes -= size
        assert self.used_bytes >= 0, self.used_bytes

    def end(self) -> None:
        """Give back all that is taken."""
        self.give_back(self.used_bytes)


class Budgets:
    """All budgets of a process. `failures` counts requests and callbacks that raised an unforeseen
    error."""

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
        """Return the bytes that all peers together make this process hold."""
        held_bytes = self.unfinished.held_bytes + self.unsent.held_bytes
        return held_bytes + self.work.used_bytes + self.kept.used_bytes

    def expire(self, now_s: float) -> None:
        """Close connections whose frame has taken too long. Call it about once a second."""
        self.unfinished.expire(now_s - self.limits.frame_deadline_s)
