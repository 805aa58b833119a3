"""Scenarios, which are named lists of faults, and their plans.

A scenario is a list of wishes in the notation of chaos.faults.catalogue (`kill:leader`,
`one-way-in:leader+kill:follower`). Each round of a run injects every wish once, in an order drawn
from the seed. Wishes separated by spaces are an unnamed scenario. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..cluster.clusterfile import ClusterError, ClusterState, Node
from ..faults.base import Planned
from ..faults.catalogue import parse_wish, unavailable
from ..faults.plan import LASTS_MAX, Want, plan
from ..faults.select import SELECTORS

SLOT_S = 8.0  # for a fault, its heal and some calm; divides a run's minutes


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named list of faults, with the load that fits them: `workloads`, the `share` of their usual
    rates, and further settings of the cluster. With `in_order` the wishes are not shuffled."""

    name: str
    description: str
    faults: str  # wishes, separated by blanks
    in_order: bool = False
    workloads: tuple[str, ...] = ("log",)
    share: float = 1.0
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def wishes(self) -> tuple[str, ...]:
        return tuple(self.faults.split())

    def wants(self) -> list[tuple[Want, ...]]:
        """Return the wishes, parsed. Raises ClusterError."""
        return [parse_wish(wish) for wish in self.wishes]

    def needs(self) -> frozenset[str]:
        """Return the requirements on the cluster ("links", "faultable", …)."""
        return frozenset(n for parts in self.wants() for want in parts for n in want.kind.needs)


# Schedules named jepsen-… broke NATS 2.12.1 in a report of December 2025.
_ALL = (
    Scenario("failover", "kill -9 of the leader, again and again", "kill:leader"),
    Scenario("followers", "kill -9 of followers: nobody should notice", "kill:follower"),
    Scenario("anybody", "kill -9 of the leader or a follower", "kill:leader kill:follower"),
    Scenario("majority", "kill -9 of a majority: writes stop and nothing is lost", "kill:majority"),
    Scenario("freeze", "processes frozen and let go on", "pause:leader pause:follower"),
    Scenario(
        "planned",
        "what an operator does: orderly ends, leadership handed over, rolling restarts",
        "term:leader transfer rolling-restart",
    ),
    Scenario("restarts", "kill -9 of everybody at once", "restart-all"),
    Scenario("isolation", "the leader cut off from everybody", "cut-node:leader"),
    Scenario(
        "partitions",
        "every way to cut a network",
        "cut-node:leader cut-node:follower cut-peers:leader halves bridge one-way-in:leader "
        "one-way-out:leader clients-only:leader answers-lost:leader flapping:leader swizzle",
    ),
    Scenario(
        "bad-network",
        "slow, late and broken links",
        "delay:leader delay:follower delay:clients slow-link:leader connection-loss:leader "
        "reset:leader refuse:leader",
    ),
    Scenario(
        "disks",
        "disks that are full, slow or broken",
        "disk-full:leader eio-write:leader eio-sync:leader eio-sync:follower slow-fsync:leader "
        "stalled-fsync:leader",
    ),
    Scenario(
        "power",
        "power cuts: what was not fsynced is gone",
        "power-cut:leader power-cut:minority power-cut:all",
    ),
    Scenario(
        "damage",
        "files damaged while their node is down, disks lost and set back",
        "torn-tail:follower flip-header:follower flip-payload:follower flip-queue:follower "
        "flip-index:follower flip-vote:follower flip-vote-slot:follower "
        "flip-checkpoint:follower flip-config:follower lost-segment:follower "
        "lost-queue:follower lost-vote:follower disk-loss:follower disk-loss:leader "
        "old-disk:follower",
    ),
    Scenario(
        "clocks",
        "wall clocks that jump",
        "clock-forward:leader clock-back:leader clock-strobe:leader clock-month:all",
    ),
    Scenario(
        "names",
        "name servers down, alone and while a leader dies",
        "namesrv-down:namesrvs namesrv-pause:namesrvs namesrv-down:namesrvs+kill:leader",
    ),
    Scenario(
        "scale",
        "from one broker group to three and back, while leaders and name servers are killed",
        "add-group+kill:leader add-group+namesrv-down:namesrvs+kill:leader "
        "remove-group+kill:leader remove-group+namesrv-down:namesrvs+kill:leader",
        in_order=True,
        workloads=(
            *("log", "ordered", "group", "idempotent", "locks"),
            *("transactions", "delayed", "retries", "pop"),
        ),
        share=0.1,
        settings={"drainGraceMs": "5000"},
    ),
    Scenario(
        "jepsen-power",
        "every node loses its power at once, by the kernel: what was acknowledged is there",
        "kernel-power-cut:all",
    ),
    Scenario(
        "jepsen-bits",
        "bit errors in log and snapshots of one node: the others' copies mend it, nothing is lost",
        "bit-rot:n1 snapshot-rot:n1 kill:leader restart-all",
    ),
    Scenario(
        "jepsen-members",
        "members replaced for good while others are killed: no majority forgets anything",
        "replace-member:follower,for=12+kill:leader kill:follower,for=12+replace-member:leader",
    ),
    Scenario(
        "jepsen-snapshots",
        "snapshots of one node damaged and cut short: no replica deletes what it has",
        "snapshot-rot:n1 torn-snapshot:n1 kill:leader restart-all",
    ),
    Scenario(
        "jepsen-partitions",
        "nodes killed or without power while others are cut off or down: one history remains",
        "halves:leader,for=12+restart-all,for=4 majority-swap:follower,for=12",
    ),
    Scenario(
        "compare",
        "what tells engines apart",
        "kill:leader pause:leader cut-node:leader restart-all power-cut:all "
        "cut-peers:leader+disk-loss:leader",
    ),
    Scenario(
        "mixed",
        "one of each family, and two at once",
        "kill:leader pause:leader cut-node:leader restart-all stalled-fsync:leader "
        "power-cut:all disk-loss:leader delay:follower+kill:leader",
    ),
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def find_scenario(text: str) -> Scenario:
    """Find a scenario by name, or make an unnamed scenario of wishes. Raises ClusterError."""
    result = SCENARIOS.get(text)
    if result is not None:
        return result
    unnamed = Scenario(text, "faults by name", text)
    try:
        unnamed.wants()
    except ClusterError as error:
        names = ", ".join(SCENARIOS)
        raise ClusterError(f"no scenario {text!r} (there are {names}), and {error}") from None
    if not unnamed.wishes:
        raise ClusterError("a scenario needs a name or a fault")
    return unnamed


def check_victims(scenario: Scenario, nodes: Sequence[Node]) -> None:
    """Refuse a scenario that names a node which is not there. Raises ClusterError."""
    names = [node.name for node in nodes]
    for wish, parts in zip(scenario.wishes, scenario.wants(), strict=True):
        for want in parts:
            if want.whom and want.whom not in SELECTORS and want.whom not in names:
                there = ", ".join(names)
                raise ClusterError(f"{wish}: there is no node {want.whom}; there are {there}")


def split_available(
    scenario: Scenario, state: ClusterState
) -> tuple[list[tuple[Want, ...]], list[str]]:
    """Return the wishes possible for this cluster and machine, and reasons against the rest."""
    can, cannot = [], []
    for wish, parts in zip(scenario.wishes, scenario.wants(), strict=True):
        reasons = [r for want in parts if (r := unavailable(want.kind, state)) is not None]
        if reasons:
            cannot.append(f"{wish}: {reasons[0]}")
        else:
            can.append(parts)
    return can, cannot


def make_plan(
    seed: int,
    wants: Sequence[Sequence[Want]],
    minutes: float,
    repeats: int | None,
    *,
    in_order: bool = False,
) -> tuple[Planned, ...]:
    """Plan the faults of a run. Without `repeats` as many rounds as fit into `minutes`, at least
    one. A wish with a duration of its own lengthens the slots.

    Raises ClusterError if the time is too short for a wish's own duration.
    """
    if not wants:
        return ()
    seconds = minutes * 60
    slot_s = max(SLOT_S, *(want.for_s / LASTS_MAX for parts in wants for want in parts))
    rounds = repeats if repeats is not None else max(1, int(seconds / slot_s / len(wants)))
    try:
        return plan(seed, wants, seconds, rounds, in_order=in_order)
    except ValueError as error:
        raise ClusterError(str(error)) from error
