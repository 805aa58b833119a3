"""Changes of members, in the worlds that have them: seeds from MEMBERS_FROM on.

Spare nodes wait with empty disks and no configuration; replicas are added as learners, promoted,
moved and removed, the leader among them, by whoever leads or believes so, while everything else
goes wrong. All of this is drawn from a generator of its own.

Knows what is true of configurations, from the frames that were written: what the promise covers
("at most a minority of the voters at a time") is judged by every configuration that may be in
force: the newest one committed, all proposed behind it, and whatever older one a replica still
goes by because it has not heard of the next (dledger/recovery.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING

from raftmq.dledger.configuration import (
    Change,
    ChangeKind,
    Configuration,
    MemberRole,
    decode_configuration,
    founding,
)
from raftmq.dledger.messages import Role
from raftmq.dledger.quorum import majority
from raftmq.store.frame import Frame, FrameKind

if TYPE_CHECKING:
    from tests.simulator.node import SimNode
    from tests.simulator.world import World

MEMBERS_FROM = 10_000_000  # seeds below are as they were before members could change


class Members:
    """One world's changes, and its configurations as they truly are."""

    def __init__(self, world: World, founders: Iterable[str]) -> None:
        self._world = world
        self.rng = rng = Random(world.seed * 104_729 + 3)
        self.on = world.seed >= MEMBERS_FROM
        founders = tuple(founders)
        self.spares: tuple[str, ...] = ()
        if self.on:
            founders = founders[: rng.choice((2, 3, 3, 3, 4, 4, 5))]
            self.spares = ("x", "y")[: rng.choice((1, 2))]
        self.founding = founding((name, f"{name}:1") for name in founders)
        self.names = (*founders, *self.spares)
        self.committed: tuple[int, Configuration] = (0, self.founding)
        self._committed: list[tuple[int, Configuration]] = []
        self._proposed: dict[tuple[int, int], Configuration] = {}  # (index, term)
        self._every_ms = rng.choice((1.0, 3.0, 8.0, 20.0)) * world.unit_ms
        self._hasty = rng.random() < 0.5  # asks each new leader at once
        self.changes = 0

    # -- what is true -----------------------------------------------------------------------------

    def appended(self, frame: Frame) -> None:
        if frame.kind == FrameKind.CONFIGURATION:
            configuration = decode_configuration(frame.payload)
            self._proposed.setdefault((frame.index, frame.term), configuration)

    def applied(self, frame: Frame) -> None:
        """A frame is committed that was not known to be so before."""
        if frame.kind == FrameKind.CONFIGURATION:
            self.committed = (frame.index, decode_configuration(frame.payload))
            self._committed.append(self.committed)
            self.changes += 1
            self._world.note(f"members {self.committed}")

    def of_log(self, node: SimNode) -> list[tuple[int, Configuration]]:
        """The configurations in a node's log, newest first; the founding one at the end."""
        index = node.log.index
        found = [
            (at, configuration)
            for (at, term), configuration in self._proposed.items()
            if index.first_index <= at <= index.last_index and index.term_at(at) == term
        ]
        # Retention took the frames of some; a group snapshot may name one that is yet to come.
        gone = max(index.first_index - 1, node.saved[0] if node.saved else 0)
        found += [entry for entry in self._committed if entry[0] <= gone and entry not in found]
        found.sort(key=lambda entry: -entry[0])
        return [*found, (0, self.founding)]

    def possible(self) -> list[Configuration]:
        """All that may be in force somewhere and count."""
        index, committed = self.committed
        newer = [c for (at, _), c in self._proposed.items() if at > index]
        nodes = self._world.nodes.values()
        stale = [self.founding if n.blank else self.of_log(n)[0][1] for n in nodes if n.started]
        return [committed, *newer, *stale]

    def tolerates(self, node: SimNode, bad: Callable[[SimNode], bool]) -> bool:
        """Whether `node` may be bad, too: it is one of a minority then, of any configuration."""
        nodes = self._world.nodes
        for configuration in self.possible():
            voters = configuration.voters
            others = sum(bad(nodes[name]) for name in sorted(voters - {node.name}))
            if node.name in voters and others + 1 > len(voters) - majority(len(voters)):
                return False
        return True

    def current(self) -> list[SimNode]:
        """The nodes that are members in the end."""
        ids = self.committed[1].ids
        return [node for node in self._world.nodes.values() if node.name in ids]

    # -- changing ---------------------------------------------------------------------------------

    def schedule(self) -> None:
        if self.on:
            world = self._world
            world.after(8 * world.unit_ms + self._every_ms * self.rng.random(), self._again)

    def elected(self, node: SimNode) -> None:
        """Hasty operators ask when its no-op is just on the way."""
        if self.on and self._hasty and not self._world.healed:
            for delays in (0.0, 0.5, 1.5):
                delay_ms = delays * self._world.profile.delay_ms
                self._world.after(delay_ms, self._change, node)

    def _again(self) -> None:
        if self._world.healed:
            return
        self._world.after(2 * self._every_ms * self.rng.random(), self._again)
        for node in self._world.nodes.values():
            for _ in range(self.rng.choice((1, 1, 3))):  # some do not wait for the first
                self._change(node)

    def _change(self, node: SimNode) -> None:
        if self._world.healed or not node.up or node.paused or node.core.role is not Role.LEADER:
            return
        before = node.core.membership.configurations.current
        change = self._draw(node, before)
        if change is not None and self._promised(before.after(change)):
            node.change(change)

    def _draw(self, node: SimNode, before: Configuration) -> Change | None:
        rng = self.rng
        learners = sorted(m.node_id for m in before.members if m.role is MemberRole.LEARNER)
        outside = sorted(set(self.names) - before.ids)
        kinds = []
        if outside and len(before.members) < 5:
            kinds += [ChangeKind.ADD_LEARNER] * 2
        if learners:
            kinds += [ChangeKind.PROMOTE] * 4
        if len(before.voters) > 2 or (len(before.voters) == 2 and rng.random() < 0.3):
            kinds += [ChangeKind.REMOVE] * 2
        if rng.random() < 0.05:
            kinds.append(ChangeKind.MOVE)
        if not kinds:
            return None
        kind = rng.choice(kinds)
        if kind is ChangeKind.ADD_LEARNER:
            name = rng.choice(outside)
            return Change(kind, name, f"{name}:{rng.randint(2, 9)}")
        if kind is ChangeKind.PROMOTE:
            return Change(kind, rng.choice(learners))
        if kind is ChangeKind.REMOVE:
            me = [node.name] if rng.random() < 0.5 and node.name in before.voters else []
            return Change(kind, rng.choice(me or sorted(before.ids)))
        name = rng.choice(sorted(before.ids))
        return Change(kind, name, f"{name}:{rng.randint(2, 9)}")

    def _promised(self, after: Configuration) -> bool:
        """Whether the promise covers what comes out of it: no operator may ask for less."""
        nodes, damage = self._world.nodes, self._world.damage
        voters = sorted(after.voters)
        bad = sum(nodes[name].lost or damage.has(nodes[name]) for name in voters)
        return bool(voters) and bad <= len(voters) - majority(len(voters))
