"""The outbox of actions that the core has decided on and its driver has not taken yet.

Every part of the core puts its effects here; `take` hands all of them out as a Ready, once.

Invariants: `append` holds the frames behind `handed_index`, in order and without gaps, so the log
ends at handed_index + len(append). A truncation removes frames that were not handed out from
`append`; the driver truncates only the others. `dirty` is true whenever there may be something to
do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raftmq.store.frame import Frame

from .messages import HardState, Outgoing, Ready, RoleEvent


@dataclass(slots=True, eq=False)
class Outbox:
    """The effects of the core that its driver has not taken yet."""

    handed_index: int  # the last frame given to the driver for writing
    dirty: bool = False
    append: list[Frame] = field(default_factory=list)
    messages: list[Outgoing] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    failed_reads: list[int] = field(default_factory=list)
    truncate_from: int | None = None
    hard_state: HardState | None = None
    commit_index: int | None = None
    role: RoleEvent | None = None
    configuration_changed: bool = False

    def send(self, message: Outgoing) -> None:
        """Add a message to the next Ready."""
        self.messages.append(message)
        self.dirty = True

    def tell_role(self, event: RoleEvent) -> None:
        """Report a change of role; only the last change of a Ready is reported."""
        self.role = event
        self.dirty = True

    def truncate(self, from_index: int) -> None:
        """Withdraw the frames from `from_index` on, handed out or not."""
        del self.append[max(0, from_index - 1 - self.handed_index) :]
        if from_index <= self.handed_index:
            self.truncate_from = from_index
            self.handed_index = from_index - 1
        self.dirty = True

    def take(self) -> Ready | None:
        """Return the driver's next actions, or None."""
        self.dirty = False
        if not (
            self.messages
            or self.append
            or self.commit_index is not None
            or self.configuration_changed
            or self.hard_state is not None
            or self.truncate_from is not None
            or self.reads
            or self.failed_reads
            or self.role is not None
        ):
            return None
        ready = Ready(
            self.truncate_from,
            tuple(self.append),
            self.hard_state,
            tuple(self.messages),
            self.commit_index,
            tuple(self.reads),
            tuple(self.failed_reads),
            self.role,
            self.configuration_changed,
        )
        self.handed_index += len(self.append)
        for taken in (self.append, self.messages, self.reads, self.failed_reads):
            taken.clear()
        self.truncate_from = self.hard_state = self.commit_index = self.role = None
        self.configuration_changed = False
        return ready
