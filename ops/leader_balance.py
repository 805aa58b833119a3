"""The even placement of the leaders of Raft groups over zones and machines (docs/scaling.md). Pure.

The numbers of leaders differ by at most one where the replicas permit it, first those of zones,
then those of machines. Of such placements this has the fewest moves, then the fewest changed
preferences.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LAG_FRAMES_MAX = 100  # of a voter of a group that is moved, as before a planned stop in the chart
THERE, MOVED, LEFT = "there already", "moved", "left"  # outcomes


class Location(NamedTuple):
    """A replica's zone (brokerZone) and machine (the host of its address). Without a zone each
    machine is a zone."""

    zone: str
    machine: str

    @property
    def domain(self) -> str:
        return self.zone or self.machine


class Voter(NamedTuple):
    """A voter by the views of its leader and of itself."""

    node: str
    location: Location
    answers: bool
    recovered: bool
    lag_frames: int | None

    @property
    def problem(self) -> str:
        """Return why a group with this voter is left, or ""."""
        if not self.answers:
            return f"{self.node} does not answer"
        if not self.recovered or self.lag_frames is None:
            return f"{self.node} is recovering"
        if self.lag_frames > LAG_FRAMES_MAX:
            return f"{self.node} is {self.lag_frames} frames behind"
        return ""


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group. `locations` has its voters by node id. A group with a `problem` is left."""

    name: str
    leader: str
    locations: Mapping[str, Location]
    preferred: str = ""
    problem: str = ""

    @classmethod
    def of(cls, name: str, leader: str, voters: Sequence[Voter], preferred: str) -> Group:
        locations = {voter.node: voter.location for voter in voters}
        problem = next(filter(None, (voter.problem for voter in voters)), "")
        return cls(name, leader, locations, preferred, problem)

    @property
    def location(self) -> Location | None:
        """Return the leader's location, None without a leader."""
        return self.locations.get(self.leader)

    @property
    def choices(self) -> list[Location]:
        """Return the locations that may lead the group."""
        if self.problem:
            return [] if self.location is None else [self.location]
        return sorted(set(self.locations.values()))

    def price(self, location: Location, move: int) -> int:
        """Return the price of a leader there. A move costs `move`, a changed preference 1."""
        stays = self.locations.get(self.preferred) == location
        return move * (location != self.location) + (not stays)

    def node(self, location: Location) -> str:
        """Return the voter that should lead at a location."""
        there = sorted(node for node, its in self.locations.items() if its == location)
        return next((node for node in (self.leader, self.preferred) if node in there), there[0])


class Leaders(NamedTuple):
    """The broker groups with a voter at a location, and the leaders before and after."""

    location: Location
    groups: int
    before: int
    after: int


def targets(groups: Sequence[Group]) -> dict[str, str]:
    """Return the voter that should lead each group; the present leader, or "", of groups with a
    problem."""
    locations = balanced(groups)
    return {
        group.name: group.leader if group.problem else group.node(locations[group.name])
        for group in groups
    }


def counts(groups: Sequence[Group], after: Mapping[str, str]) -> list[Leaders]:
    """Return the leaders by location, if `after` has the leader of each group."""
    voters = Counter(location for group in groups for location in set(group.locations.values()))
    before = Counter(group.location for group in groups)
    then = Counter(group.locations.get(after[group.name]) for group in groups)
    return [
        Leaders(location, voters[location], before[location], then[location])
        for location in sorted(voters)
    ]


def balanced(groups: Sequence[Group]) -> dict[str, Location]:
    """Return the location of each group's leader, without groups that have no choice. The sum of
    the squares of the zones' leaders is as small as possible, then that of the machines' leaders,
    then the number of moves, then the number of changed preferences.

    Groups are assigned in turn, each by the cheapest path on which earlier groups make room
    (successive shortest paths of a minimum-cost flow)."""
    flow = _Flow(groups)
    for group in groups:
        if group.choices:
            flow.add(group.name)
    return flow.assigned


Path = tuple[tuple[str, Location], ...]  # groups with their new locations
Paths = dict[
    Location, tuple[int, Path]
]  # by the location that leads one group more, with the price


class _Flow:
    """A flow from groups over locations and zones. Each further leader of a location or zone costs
    two units more than the leader before, so that a sum is the square."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._move = len(groups) + 1
        self._machine = self._move**2  # more than the prices of all groups
        self._zone = self._machine * self._move**2
        self._prices = {
            group.name: {location: group.price(location, self._move) for location in group.choices}
            for group in groups
        }
        self._domains: dict[str, list[Location]] = {}
        for location in sorted(
            {location for prices in self._prices.values() for location in prices}
        ):
            self._domains.setdefault(location.domain, []).append(location)
        self._leads: dict[Location, list[str]] = {}  # groups by location
        self._zone_leads = Counter[str]()
        self.assigned: dict[str, Location] = {}

    def add(self, name: str) -> None:
        paths: Paths = {
            location: (price, ((name, location),)) for location, price in self._prices[name].items()
        }
        zones: dict[str, int] = {}  # the cheapest price of a leader more, by domain
        cheaper = deque(paths)
        while cheaper:  # until no path becomes cheaper
            location = cheaper.popleft()
            cheaper.extend(self._move_groups(paths, location))
            zone = paths[location][0] + 2 * self._machine * self._count(location)
            if zone < zones.get(location.domain, zone + 1):
                zones[location.domain] = zone
                cheaper.extend(self._exchange(paths, location, zone))
        end = min(paths, key=lambda location: (self._end(location, paths[location][0]), location))
        for moved, location in paths[end][1]:
            if moved in self.assigned:
                self._leads[self.assigned[moved]].remove(moved)
            self._leads.setdefault(location, []).append(moved)
            self.assigned[moved] = location
        self._zone_leads[end.domain] += 1

    def _count(self, location: Location) -> int:
        return len(self._leads.get(location, ()))

    def _end(self, location: Location, price: int) -> int:
        zone = self._zone * (2 * self._zone_leads[location.domain] + 1)
        return price + self._machine * (2 * self._count(location) + 1) + zone

    def _move_groups(self, paths: Paths, source: Location) -> Iterator[Location]:
        """Continue a path by a group that leaves its end."""
        before, path = paths[source]
        for name in self._leads.get(source, ()):
            prices = self._prices[name]
            for location in prices:
                price = before + prices[location] - prices[source]
                if _take(paths, location, price, (*path, (name, location))):
                    yield location

    def _exchange(self, paths: Paths, source: Location, zone: int) -> Iterator[Location]:
        """Continue a path by another location of its zone that leads one group less."""
        for location in self._domains[source.domain]:
            if count := self._count(location):
                price = zone - 2 * self._machine * (count - 1)
                if _take(paths, location, price, paths[source][1]):
                    yield location


def _take(paths: Paths, location: Location, price: int, path: Path) -> bool:
    """Take a path if it is cheaper than the known path to a location; return whether it is."""
    if location in paths and price >= paths[location][0]:
        return False
    paths[location] = price, path
    return True
