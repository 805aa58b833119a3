"""Errors of the core and its shell. Pure.

When one of these is raised nothing was appended, except with OutcomeUnknown.
"""

from __future__ import annotations

from raftmq.store.errors import StoreDamaged

from .messages import NodeId


class RaftError(Exception):
    """An operating error of the Raft room.

    `retriable`: the same request may succeed later or elsewhere. `outcome_unknown`: it may have
    taken effect although it failed.
    """

    code = "RAFT"
    retriable = True
    outcome_unknown = False


class NotLeader(RaftError):
    """This replica does not lead; `leader` is the leader it knows of, None if none."""

    code = "NOT_LEADER"

    def __init__(self, leader: NodeId | None) -> None:
        super().__init__(f"not the leader; the leader is {leader or 'not known'}")
        self.leader = leader


class Busy(RaftError):
    """A limit is reached (uncommitted bytes, waiting reads) or leadership is being handed over."""

    code = "BUSY"


class UnknownTarget(RaftError):
    """Leadership cannot go to this node: it is no voter of the group, or it leads already."""

    code = "UNKNOWN_TARGET"
    retriable = False


class ChangeRefused(RaftError):
    """A membership change may not be made, or not now; the text says why."""

    code = "CHANGE_REFUSED"


class PreferredChanged(ChangeRefused):
    """The preferred leader is now `preferred`, not one that the change was meant to replace."""

    retriable = False

    def __init__(self, preferred: NodeId | None) -> None:
        super().__init__(f"the preferred leader is {preferred or 'nobody'}")
        self.preferred = preferred


class OutcomeUnknown(RaftError):
    """It was proposed, but it is not known whether it is or will be stored: it must not be
    reported as not stored."""

    code = "OUTCOME_UNKNOWN"
    outcome_unknown = True


class CommandTooLarge(RaftError):
    """A command is too large to be ever proposed."""

    code = "COMMAND_TOO_LARGE"
    retriable = False


class StateTooOld(RaftError):
    """The application's state ends before the log begins: this replica lacks frames in between."""

    code = "STATE_TOO_OLD"
    retriable = False


class MessageRefused(Exception):
    """A peer's message that no replica keeping Raft's rules can send. It was not acted on, and its
    connection should be closed. Nothing is wrong with this replica."""

    def __init__(self, sender: NodeId, reason: str) -> None:
        super().__init__(f"{sender}: {reason}")
        self.sender = sender
        self.reason = reason


ONE_ID = "two groups that have one id"  # in what peers are told with that


class OtherHistory(MessageRefused):
    """A peer has another frame than this replica of one index and term. Raft never makes two, so
    their logs are of two groups that have one id: one store is a copy, or of another restoration.
    Nothing was changed. Neither must hear the other until an operator has chosen one history."""


def other_history(sender: NodeId, own: NodeId, index: int, theirs: int, ours: int) -> OtherHistory:
    """Return the error that says that a peer's frame `index` is another one than the own: of the
    same term, or of term `theirs` while one of term `ours` is committed here."""
    difference = f"different frames {index} of term {ours}"
    if theirs != ours:
        difference = f"frames {index} of terms {theirs} and {ours}, committed"
    return OtherHistory(
        sender,
        f"{sender} and {own} have {difference}: they are of {ONE_ID}, as after stores were set"
        " back, two restorations under one incarnation, or a copy of all stores",
    )


class FrameDamaged(StoreDamaged):
    """Frame `index`, whose term and position are known, is not what was written. It is fetched
    again from a peer; until then its readers have to wait."""

    code = "FRAME_DAMAGED"
    retriable = True

    def __init__(self, index: int, position: int, reason: str) -> None:
        super().__init__(position, f"frame {index}: {reason}")
        self.index = index


class ApplyLater(Exception):
    """The application cannot apply now, and has changed nothing: the same call is made again."""
