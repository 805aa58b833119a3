"""Holds sends for a moment, instead of refusing them, while a replica is about to lead.

During a hand-over the former leader holds them until it knows its successor, and then refuses them
with the successor's address. A new leader holds them until its term's no-op is committed, and then
takes them. So a client finds the leader with one request instead of asking every replica until one
leads. A held send has not touched the log: if it is refused in the end, it is certainly not stored.

Bounds: HOLD_MS_MAX, and the bytes that the send path counts (waitingBytesMax).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .queue import Group, Sender

HOLD_MS_MAX = 200  # < the 300 ms that our producer waits for each replica it tries


class HeldSend(NamedTuple):
    """One send as it arrived."""

    sender: Sender
    ext: Mapping[str, str]
    body: bytes
    born_host: bytes
    code: int


class HeldSends:
    """The held sends and their common deadline. Holds nothing until `begin`."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._until_ms = 0
        self.sends: list[HeldSend] = []
        self.groups: list[Group] = []  # admitted by a leader that leaves, never put into a frame

    @property
    def holding(self) -> bool:
        return self._until_ms > 0

    def begin(self) -> None:
        """Hold from now on. Calling it again does not extend the deadline."""
        if not self._until_ms:
            self._until_ms = self._clock_ms() + HOLD_MS_MAX

    @property
    def overdue(self) -> bool:
        return 0 < self._until_ms <= self._clock_ms()

    def end(self) -> tuple[list[HeldSend], list[Group]]:
        """Stop holding; return what was held to the caller."""
        self._until_ms = 0
        sends, self.sends = self.sends, []
        groups, self.groups = self.groups, []
        return sends, groups
