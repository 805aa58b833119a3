"""Majorities: how many are enough, and what a majority has reached. Pure."""

from __future__ import annotations

from collections.abc import Set
from enum import Enum
from typing import TypeVar

from .messages import NodeId

Number = TypeVar("Number", int, float)


def majority(count: int) -> int:
    """Return how many of `count` voters are a majority."""
    assert count > 0, count
    return count // 2 + 1


def witnesses(count: int, votes: bool) -> int:
    """Return how many recovered voters of `count`, other than it, must hold a frame to vouch that a
    replica which lost its memory has caught up: a majority. `votes`: whether it is one of them
    itself. (Of two voters it is the other one: there the promise allows no loss, and what is left
    should be led. For a third replica, a learner or one that was removed, both are asked.)"""
    if not votes:
        return majority(count)
    return max(1, min(majority(count), count - 1))


def reached_by_majority(values: list[Number]) -> Number:
    """Return the largest value that more than half of the voters have reached; sorts `values`.

    One value per voter: match indexes give the commit candidate, times the moment since when
    a majority has been heard.
    """
    values.sort()
    return values[(len(values) - 1) // 2]


class Outcome(Enum):
    """The state of an election."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Tally:
    """The votes of one election, by voter: each counts once however often it answers.

    A majority of all voters wins, but only recovered voters count for it (recovery.py); and so do
    all voters together, recovered or not."""

    __slots__ = ("granted", "refused", "voters")

    def __init__(self, voters: Set[NodeId]) -> None:
        self.voters = voters
        self.granted: dict[NodeId, int] = {}  # 0, or the incarnation of one that recovers
        self.refused: set[NodeId] = set()

    def record(self, voter: NodeId, granted: bool, recovering: int = 0) -> None:
        """Note a vote. A grant stands: a refusal that arrives later is an older answer, or does not
        revoke it."""
        if voter not in self.voters:
            return
        if granted:
            self.granted[voter] = recovering
            self.refused.discard(voter)
        elif voter not in self.granted:
            self.refused.add(voter)

    @property
    def recovered(self) -> int:
        """The number of recovered voters that have granted."""
        return sum(not recovering for recovering in self.granted.values())

    @property
    def by_majority(self) -> bool:
        """True if a majority of recovered voters has granted, and not only all voters together."""
        return self.recovered >= majority(len(self.voters))

    def outcome(self, unreachable: Set[NodeId] = frozenset()) -> Outcome:
        """Return the state of the election. `unreachable` voters that have not granted count as
        refusing."""
        if self.by_majority or len(self.granted) == len(self.voters):
            return Outcome.WON
        hopeless = (self.refused | (unreachable & self.voters)) - self.granted.keys()
        open_count = len(self.voters) - len(hopeless) - len(self.granted)
        if hopeless and self.recovered + open_count < majority(len(self.voters)):
            return Outcome.LOST
        return Outcome.PENDING
