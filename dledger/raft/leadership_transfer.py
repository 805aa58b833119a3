"""The transfer of leadership (thesis 3.10) that a leader has begun: its target and its deadline.
Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .append_throttle import NEVER_DUE_MS
from .errors import Busy
from .messages import NodeId


@dataclass(slots=True, eq=False)
class Transfer:
    """At most one transfer at a time. `target` is None, and `due_ms` never comes, if there is
    none."""

    _timeout_ms: float
    target: NodeId | None = None
    due_ms: float = NEVER_DUE_MS  # it is given up then

    def begin(self, target: NodeId, now_ms: float) -> None:
        """Begin a transfer, or give the same one more time. Raises Busy for another target."""
        if target != self.target:
            self.check_none()
        self.target = target
        self.due_ms = now_ms + self._timeout_ms

    def give_up(self) -> None:
        """Note that there is no transfer any more."""
        self.target, self.due_ms = None, NEVER_DUE_MS

    def check_none(self) -> None:
        """Raises Busy while leadership is being handed over."""
        if self.target is not None:
            raise Busy(f"leadership is being handed to {self.target}")
