"""The state of this node's disk: whether it lets the node lead. Pure.

ok          it lets the node lead
stalled     an fdatasync, of the log or of a vote, has been in flight for too long
full        there is no room for the next frame, or no descriptor or memory to write it: nothing is
            acknowledged until there is
unreadable  a read failed while this node led, and would fail again (readtrial.py)
failed      a write or an fdatasync failed: the member has ended
slow        it works, but writes wait for it (slowwrites.py): another replica should lead
"""

from __future__ import annotations

from enum import Enum


class DiskState(Enum):
    """The states of a disk, in the module's order."""

    OK = "ok"
    STALLED = "stalled"
    FULL = "full"
    UNREADABLE = "unreadable"
    FAILED = "failed"
    SLOW = "slow"


class DiskHealth:
    """The disk's state and the reason for it. `failed` is final; a full or unreadable disk is not
    also called stalled."""

    def __init__(self, stall_ms: int) -> None:
        self.state = DiskState.OK
        self.reason = ""
        self._stall_ms = stall_ms

    def synced(self, under_way_ms: float) -> bool:
        """Note for how many milliseconds the oldest fdatasync has been in flight; return True if
        the state changed."""
        if self.state is DiskState.OK and under_way_ms > self._stall_ms:
            self.state = DiskState.STALLED
            self.reason = f"fdatasync has not returned for {under_way_ms:.0f} ms"
            return True
        if self.state is DiskState.STALLED and under_way_ms <= self._stall_ms:
            self._clear()
            return True
        return False

    @property
    def is_full(self) -> bool:
        """True while there is no room for the next frame."""
        return self.state is DiskState.FULL

    def full(self, reason: str) -> None:
        """Note that there is no room, and why."""
        if self.state is not DiskState.FAILED:
            self.state, self.reason = DiskState.FULL, reason

    def has_room(self) -> None:
        """Note that there is room again."""
        if self.state is DiskState.FULL:
            self._clear()

    @property
    def is_unreadable(self) -> bool:
        """True from a failed read on, until one succeeds again."""
        return self.state is DiskState.UNREADABLE

    def unreadable(self, reason: str) -> bool:
        """Note a failed read; return True if the state changed. A disk that is bad already stays
        what it is."""
        if self.state is not DiskState.OK:
            return False
        self.state, self.reason = DiskState.UNREADABLE, reason
        return True

    def readable(self) -> None:
        """Note that a read succeeds again."""
        if self.state is DiskState.UNREADABLE:
            self._clear()

    def failed(self, reason: str) -> None:
        """Note for good that the disk failed, and how."""
        self.state, self.reason = DiskState.FAILED, reason

    def told(self, *, slow: bool) -> tuple[DiskState, str]:
        """Return state and reason, for the member's status; `slow`: writes are."""
        if slow and self.state is DiskState.OK:
            return DiskState.SLOW, "writes to the log wait for the disk"
        return self.state, self.reason

    def _clear(self) -> None:
        self.state, self.reason = DiskState.OK, ""
