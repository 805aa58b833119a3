"""The parts of the log that the group holds, by the facts about its windows.

Where enough stores have the same items, the group holds those. The other ranges are *open*: records
there are compared individually, because stores with different items may share some of them. In
classic mode a single store is enough, so ranges with different copies are open as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..engine import columns as F
from ..engine.columns import Column
from .cluster_info import RAFT
from .committed_range import Limits
from .index_keys import StagedRange
from .log_facts import LogFacts
from .store_files import STORES_SEPARATOR


@dataclass(frozen=True, slots=True)
class GroupParts:
    """`holders` has the sets of stores of which each is enough, `open` the open ranges below the
    agreed end. `complete`: the holders have every record of the group, and none behind that end."""

    holders: frozenset[tuple[str, ...]]
    open: Sequence[tuple[int, int]]
    complete: bool

    @property
    def are_held(self) -> Column:
        """Return whether the group holds a row, by its `store`."""
        return F.col("store").isin(*sorted(map(STORES_SEPARATOR.join, self.holders)))

    @property
    def are_open(self) -> Column:
        """Return whether a row is in an open range, by its `position`."""
        are_open = F.lit(False)
        for start, end in self.open:
            are_open |= (F.col("position") >= start) & (F.col("position") < end)
        return are_open


def group_parts(facts: LogFacts, windows: Sequence[StagedRange], limits: Limits) -> GroupParts:
    contents = {same for holders, _ in facts.held for same in holders}
    held = frozenset(same for same in contents if limits.enough(same))
    ranges = {
        interval
        for (holders, _), intervals in facts.held.items()
        if held.isdisjoint(holders) or (limits.mode != RAFT and len(holders) > 1)
        for interval in intervals
    }
    if limits.mode != RAFT:  # segments of different sizes
        pairs = (pair for pair in pairwise(windows) if pair[1].start < pair[0].end)
        ranges |= {(each.start, each.end) for pair in pairs for each in pair}
    open_ranges = sorted(each for each in ranges if each[0] < limits.agreed_end)
    last = max((end for end, *_ in facts.ends.values()), default=0)
    return GroupParts(held, open_ranges, not open_ranges and last <= limits.agreed_end)
