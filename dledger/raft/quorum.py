"""The size of majorities, and the values that a majority has reached."""

from __future__ import annotations

from collections.abc import Set
from enum import Enum
from typing import TypeVar

from .messages import NodeId

Number = TypeVar("Number", int, float)


def majority(count: int) -> int:
    """Return the size of a majority of `count` voters."""
    assert count > 0, count
    return count // 2 + 1


def witnesses(count: int, votes: bool) -> int:
    """Return how many recovered voters of `count`, besides the replica itself, must hold a frame to
    prove that a replica without memory has caught up. It is a majority. `votes` is true if the
    replica votes.

    For a voter of two it is the other voter, because there the guarantee allows no loss. For a
    third replica, a learner or a removed member, it is both."""
    if not votes:
        return majority(count)
    return max(1, min(majority(count), count - 1))


def reached_by_majority(values: list[Number]) -> Number:
    """Return the largest value that more than half of the voters have reached; sorts `values`.

    Match indexes, one per voter, give the commit candidate; times give the time since when a
    majority has been heard."""
    values.sort()
    return values[(len(values) - 1) // 2]


class Outcome(Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Tally:
    """The votes of an election. Each voter counts once.

    A majority wins if its voters are recovered (recovery.py); all voters together also win."""

    __slots__ = ("granted", "refused", "voters")

    def __init__(self, voters: Set[NodeId]) -> None:
        self.voters = voters
        self.granted: dict[NodeId, int] = {}  # 0, or the voter's incarnation while it recovers
        self.refused: set[NodeId] = set()

    def record(self, voter: NodeId, granted: bool, recovering: int = 0) -> None:
        """Record a vote. A grant is final; a later refusal is older, or does not revoke it."""
        if voter not in self.voters:
            return
        if granted:
            self.granted[voter] = recovering
            self.refused.discard(voter)
        elif voter not in self.granted:
            self.refused.add(voter)

    @property
    def recovered(self) -> int:
        return sum(not recovering for recovering in self.granted.values())

    @property
    def by_majority(self) -> bool:
        """True if a majority of recovered voters has granted."""
        return self.recovered >= majority(len(self.voters))

    def outcome(self, unreachable: Set[NodeId] = frozenset()) -> Outcome:
        """Return the election's state. `unreachable` voters without a grant count as refusals."""
        if self.by_majority or len(self.granted) == len(self.voters):
            return Outcome.WON
        hopeless = (self.refused | (unreachable & self.voters)) - self.granted.keys()
        open_count = len(self.voters) - len(hopeless) - len(self.granted)
        if hopeless and self.recovered + open_count < majority(len(self.voters)):
            return Outcome.LOST
        return Outcome.PENDING
