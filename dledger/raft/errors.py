"""Errors of the core and its driver.

Nothing was appended when an error is raised, except with OutcomeUnknown.
"""

from __future__ import annotations

from raftmq.store.errors import StoreDamaged

from .messages import NodeId


class RaftError(Exception):
    """An operating error. `retriable` requests may succeed later or elsewhere. With
    `outcome_unknown` the request may have taken effect."""

    code = "RAFT"
    retriable = True
    outcome_unknown = False


class NotLeader(RaftError):
    """This replica does not lead; `leader` is the leader, or None if unknown."""

    code = "NOT_LEADER"

    def __init__(self, leader: NodeId | None) -> None:
        super().__init__(f"not the leader; the leader is {leader or 'not known'}")
        self.leader = leader


class Busy(RaftError):
    """A limit is reached (uncommitted bytes, waiting reads), or leadership is being transferred."""

    code = "BUSY"


class UnknownTarget(RaftError):
    """Leadership cannot go to this node, because it is no voter of the group, or already leads."""

    code = "UNKNOWN_TARGET"
    retriable = False


class ChangeRefused(RaftError):
    """A membership change is refused; the text has the reason."""

    code = "CHANGE_REFUSED"


class PreferredChanged(ChangeRefused):
    """The preferred leader is `preferred`, and not in the change's `instead_of`."""

    retriable = False

    def __init__(self, preferred: NodeId | None) -> None:
        super().__init__(f"the preferred leader is {preferred or 'nobody'}")
        self.preferred = preferred


class OutcomeUnknown(RaftError):
    """A proposal may or may not be stored, and must not be reported as not stored."""

    code = "OUTCOME_UNKNOWN"
    outcome_unknown = True


class CommandTooLarge(RaftError):
    """A command is too large for any frame."""

    code = "COMMAND_TOO_LARGE"
    retriable = False


class StateTooOld(RaftError):
    """The application's state ends before the log starts, with frames missing in between."""

    code = "STATE_TOO_OLD"
    retriable = False


class MessageRefused(Exception):
    """A peer's message breaks Raft's rules. It had no effect; its connection should be closed."""

    def __init__(self, sender: NodeId, reason: str) -> None:
        super().__init__(f"{sender}: {reason}")
        self.sender = sender
        self.reason = reason


ONE_ID = "two groups that have one id"  # part of the reason that peers receive


class OtherHistory(MessageRefused):
    """A peer has another frame of the same index and term than this replica. Raft never makes two,
    so their logs are of two groups with the same id, such as copies or two restorations. Nothing
    was changed. The two must not exchange messages until an operator has chosen a history."""


def other_history(sender: NodeId, own: NodeId, index: int, theirs: int, ours: int) -> OtherHistory:
    """Return the error for a peer's frame `index` of term `theirs` that differs from the own frame
    of term `ours`. If the terms differ, the own frame is committed."""
    difference = f"different frames {index} of term {ours}"
    if theirs != ours:
        difference = f"frames {index} of terms {theirs} and {ours}, committed"
    return OtherHistory(
        sender,
        f"{sender} and {own} have {difference}: they are of {ONE_ID}, as after stores were set"
        " back, two restorations under one incarnation, or a copy of all stores",
    )


class FrameDamaged(StoreDamaged):
    """Frame `index` is damaged and fetched again from a peer; readers wait."""

    code = "FRAME_DAMAGED"
    retriable = True

    def __init__(self, index: int, position: int, reason: str) -> None:
        super().__init__(position, f"frame {index}: {reason}")
        self.index = index


class ApplyLater(Exception):
    """The application cannot apply now, and has changed nothing; the same call is repeated."""
