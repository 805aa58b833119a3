"""What the core and its shell refuse, and why.

Nothing was appended when one of these is raised, OutcomeUnknown excepted.
"""

from __future__ import annotations

from raftmq.dledger.messages import NodeId
from raftmq.store.errors import StoreDamaged


class RaftError(Exception):
    """An operating error of the Raft room.

    `retriable`: the same request may succeed later or elsewhere. `outcome_unknown`: it may have
    taken effect although it failed.
    """

    code = "RAFT"
    retriable = True
    outcome_unknown = False


class NotLeader(RaftError):
    """This replica does not lead; `leader` is who does, as far as it knows."""

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
    """A change of members that may not be made, or not now; the text says why."""

    code = "CHANGE_REFUSED"


class PreferredChanged(ChangeRefused):
    """Another leader is `preferred` by now than the change was meant to replace."""

    retriable = False

    def __init__(self, preferred: NodeId | None) -> None:
        super().__init__(f"the preferred leader is {preferred or 'nobody'}")
        self.preferred = preferred


class OutcomeUnknown(RaftError):
    """It was proposed, and whether it is or will be stored is not known: nobody may say 'no'."""

    code = "OUTCOME_UNKNOWN"
    outcome_unknown = True


class CommandTooLarge(RaftError):
    """A command that could never be proposed."""

    code = "COMMAND_TOO_LARGE"
    retriable = False


class StateTooOld(RaftError):
    """The application's state ends before the log begins: frames in between are gone here."""

    code = "STATE_TOO_OLD"
    retriable = False


class MessageRefused(Exception):
    """A peer's message cannot be true of a replica that keeps Raft's rules, and was not acted on:
    the connection that it came over should end. Nothing is wrong with this replica."""

    def __init__(self, sender: NodeId, reason: str) -> None:
        super().__init__(f"{sender}: {reason}")
        self.sender = sender
        self.reason = reason


class FrameDamaged(StoreDamaged):
    """Frame `index`, whose term and place are known, is not what was written. It is fetched again
    from a peer; until then whoever needs it has to wait."""

    code = "FRAME_DAMAGED"
    retriable = True

    def __init__(self, index: int, position: int, reason: str) -> None:
        super().__init__(position, f"frame {index}: {reason}")
        self.index = index
