"""The algebra of majorities: how many are enough, and what a majority has reached. Pure."""

from __future__ import annotations

from collections.abc import Set
from enum import Enum
from typing import TypeVar

from dledger.messages import NodeId

Number = TypeVar("Number", int, float)


def majority(count: int) -> int:
    """How many of `count` voters are more than half."""
    assert count > 0, count
    return count // 2 + 1


def reached_by_majority(values: list[Number]) -> Number:
    """The largest value that more than half of the voters have reached; sorts `values`.

    One value per voter: match indexes give the commit candidate, times the moment since when
    a majority has been heard.
    """
    values.sort()
    return values[(len(values) - 1) // 2]


class Outcome(Enum):
    """How an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Tally:
    """The votes of one election, as sets of ids: a voter counts once however often it answers."""

    __slots__ = ("granted", "refused", "voters")

    def __init__(self, voters: Set[NodeId]) -> None:
        self.voters = voters
        self.granted: set[NodeId] = set()
        self.refused: set[NodeId] = set()

    def record(self, voter: NodeId, granted: bool) -> None:
        """Note a vote. A grant stands: a refusal that arrives later is an older or lesser word."""
        if voter not in self.voters:
            return
        if granted:
            self.granted.add(voter)
            self.refused.discard(voter)
        elif voter not in self.granted:
            self.refused.add(voter)

    def outcome(self, unreachable: Set[NodeId] = frozenset()) -> Outcome:
        """`unreachable` voters that have not granted cannot help any more."""
        enough = majority(len(self.voters))
        if len(self.granted) >= enough:
            return Outcome.WON
        hopeless = (self.refused | (unreachable & self.voters)) - self.granted
        if len(self.voters) - len(hopeless) < enough:
            return Outcome.LOST
        return Outcome.PENDING
