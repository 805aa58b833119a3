"""Which faults a seed suffers, and when. Each heals by itself; the world heals all at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftmq.dledger.messages import Role, VoteResponse

if TYPE_CHECKING:
    from tests.simulator.node import SimNode
    from tests.simulator.world import World


class FaultPlan:
    """Draws a fault every few hundred milliseconds while the world is not healed."""

    def __init__(self, world: World) -> None:
        self._world = world
        rng = world.rng
        self._every_ms = rng.choice((2.0, 4.0, 8.0, 16.0)) * world.unit_ms
        faults = [
            self._kill,
            self._crash_in_operation,
            self._isolate,
            self._cut_one_way,
            self._cut_half,
            self._split,
            self._reset_connection,
            self._pause,
            self._slow_disk,
            self._transfer,
            self._step_down,
            self._relapse,
        ]
        if world.profile.durable:
            faults += [self._power_cut, self._power_cut_all]
        self._faults = rng.sample(faults, rng.randint(1, 5))
        if rng.random() < 0.15:
            self._faults += [self._relapse] * 3
        # In half of the worlds replicas lose promises, or have bad disks, too.
        memories = [
            self._lose_disk,
            self._rot_votes,
            self._stall_disk,
            self._fill_disk,
            self._power_cut,
            self._forgotten_vote,
        ]
        if rng.random() < 0.5:
            self._faults += rng.sample(memories, rng.randint(1, 3))
        self._forgetful = ""  # the leader of whom a voter is to learn too late
        if rng.random() < 0.6:
            self._faults.append(self._kill_leader)
        if world.rots:
            self._faults += [self._rot, self._rot_and_kill, self._rot_at_a_fork]

        # New leaders are struck just when their first frames are on the way: the moment of
        # figure 8. In most worlds nobody is.
        self._relapsing: dict[str, str] = {}  # who is to lead again: who shall not hear of it
        self._ambush = rng.choice((0.0, 0.0, 0.3, 0.7))
        self._ambushes = [self._kill_leader, self._isolate_leader, self._split]

    def elected(self, node: SimNode) -> None:
        """`node` has just become leader."""
        world = self._world
        if not world.profile.ordered and world.rng.random() < 0.7:
            for _ in range(3):
                world.after(2 * world.unit_ms * world.rng.random(), self._replay, node.name)
        friend = self._relapsing.pop(node.name, None)
        if friend is not None and not world.healed:
            self._cut({(node.name, friend)})
        if not world.healed and world.rng.random() < self._ambush:
            delay_ms = (world.profile.delay_ms * 2 + world.profile.sync_ms) * 2
            fault = world.rng.choice(self._ambushes)
            world.after(delay_ms * world.rng.random(), self._spring, fault, node)

    def voted(self, node: SimNode, vote: VoteResponse) -> bool:
        """`node` grants a vote. True: it is on its way for longer than usual, and its giver's
        disk is lost meanwhile; the old leader is heard again, and the candidate is not."""
        world = self._world
        leader = world.nodes.get(self._forgetful)
        if leader is None or world.healed or node.lost or leader.name in (vote.sender, vote.to):
            return False
        if not leader.up or leader.core.role is not Role.LEADER or not self._may_lose(node):
            return False
        self._forgetful = ""
        others = world.nodes.keys() - {node.name}
        world.cut = {(a, b) for a, b in world.cut if node.name not in (a, b)}
        far = {other for other in others if (other, leader.name) in world.cut}
        self._cut({(node.name, o) for o in far} | {(o, node.name) for o in far})
        world.after(0.0, self._forget, node)
        world.after((1 + 3 * world.rng.random()) * world.unit_ms, self._arrive, vote)
        for beats in (0.5, 1.0, 1.5):
            world.after(beats * world.unit_ms, leader.offer, b"forgotten")
        return True

    def _forget(self, node: SimNode) -> None:
        if node.up and not self._world.healed:
            node.wipe()
            self._world.after(0.1 * self._world.unit_ms, self._restart, node)

    def _arrive(self, vote: VoteResponse) -> None:
        candidate = self._world.nodes[vote.to]
        if candidate.up:
            candidate.receive(vote)

    def _replay(self, name: str) -> None:
        """Old messages to a new leader arrive once more: words of its earlier leaderships."""
        world = self._world
        if world.healed:
            return
        old = [message for message in world.history if message.to == name]
        for message in world.rng.sample(old, min(len(old), 20)):
            world.deliver(message)

    def _spring(self, fault: Callable[[], None], node: SimNode) -> None:
        if not self._world.healed and node.up and self._leader() is node:
            self._world.note(f"ambush {fault.__name__}")
            fault()

    def schedule(self) -> None:
        world = self._world
        world.after(4 * world.unit_ms + self._every_ms * 3 * world.rng.random(), self._strike)

    def _strike(self) -> None:
        world = self._world
        if world.healed:
            return
        world.after(self._every_ms * 2 * world.rng.random(), self._strike)
        fault = world.rng.choice(self._faults)
        world.note(f"fault {fault.__name__}")
        fault()

    # -- who --------------------------------------------------------------------------------------

    def _anybody(self) -> SimNode:
        return self._world.rng.choice(list(self._world.nodes.values()))

    def _leader(self) -> SimNode:
        for node in self._world.nodes.values():
            if node.up and node.core.role is Role.LEADER:
                return node
        return self._anybody()

    def _victim(self) -> SimNode:
        return self._leader() if self._world.rng.random() < 0.5 else self._anybody()

    def _soon(self) -> float:
        beats = self._world.rng.choice((0.1, 1.0, 4.0, 12.0)) * (0.5 + self._world.rng.random())
        return beats * self._world.unit_ms

    # -- processes --------------------------------------------------------------------------------

    def restart_later(self, node: SimNode) -> None:
        world = self._world
        delay_ms = 1.0 if world.healed else self._soon()
        world.after(delay_ms, self._restart, node)

    def _restart(self, node: SimNode) -> None:
        if node.alive:
            return
        node.start()
        if not node.alive:
            self.restart_later(node)
            return
        for peer in node.peers:
            self._world.tell_opened(node.name, peer)

    def _kill(self) -> None:
        self._stop(self._victim(), power=False)

    def _kill_leader(self) -> None:
        self._stop(self._leader(), power=False)

    def _power_cut(self) -> None:
        """With frames acknowledged before they were durable, it costs promises."""
        node = self._victim()
        if self._world.profile.durable or self._may_lose(node):
            self._stop(node, power=True)

    def _power_cut_all(self) -> None:
        for node in self._world.nodes.values():
            self._stop(node, power=True)

    def _stop(self, node: SimNode, power: bool) -> None:
        if node.alive:
            node.crash(power)
            self.restart_later(node)

    def _crash_in_operation(self) -> None:
        node = self._victim()
        if node.up:
            node.disk.crash_after(self._world.rng.randint(1, 12))

    def _pause(self) -> None:
        node = self._victim()
        if node.up and not node.paused:
            node.pause()
            self._world.after(self._soon(), self._resume, node, node.incarnation)

    def _resume(self, node: SimNode, incarnation: int) -> None:
        if node.incarnation == incarnation:
            node.resume()

    # -- memories -------------------------------------------------------------------------------

    def _may_lose(self, node: SimNode) -> bool:
        """Whether the promise holds if `node` loses some, too: a minority at a time."""
        damage = self._world.damage
        return self._world.members.tolerates(node, lambda n: n.lost or damage.has(n))

    def _lose_disk(self) -> None:
        node = self._victim()
        if self._may_lose(node):
            was_up = node.alive
            node.wipe()
            if was_up:
                self.restart_later(node)

    def _rot_votes(self) -> None:
        """In one slot, which costs nothing; or in both."""
        node = self._victim()
        both = self._world.rng.random() < 0.3
        if node.up and (not both or self._may_lose(node)):
            self._stop(node, power=False)
            node.rot_votes((0, 1) if both else (self._world.rng.randrange(2),))

    def _forgotten_vote(self) -> None:
        """The others hear nothing of the leader until one has voted for another and forgets it."""
        world = self._world
        leader = self._leader()
        if not leader.up or leader.core.role is not Role.LEADER:
            return
        others = sorted(world.nodes.keys() - {leader.name})
        friends = world.rng.sample(others, len(others) // 2 - 1)
        near = {leader.name, *friends}
        far = world.nodes.keys() - near
        self._forgetful = leader.name
        self._cut({(a, b) for a in near for b in far} | {(b, a) for a in near for b in far})
        world.after(world.config.election_ms_max, self._remember, leader.name)

    def _remember(self, name: str) -> None:
        if self._forgetful == name:
            self._forgetful = ""

    # -- disks ------------------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        node = self._victim()
        node.slow_sync = self._world.rng.choice((5.0, 50.0))
        self._world.after(self._soon(), setattr, node, "slow_sync", 1.0)

    def _stall_disk(self) -> None:
        node = self._victim()
        node.stall()
        self._world.after(self._soon(), node.disk_works, node.incarnation)

    def _fill_disk(self) -> None:
        node = self._victim()
        node.fill()
        self._world.after(self._soon(), node.disk_works, node.incarnation)

    # -- rot --------------------------------------------------------------------------------------

    def _rot(self) -> None:
        """While it runs: met by the next reader, or the scrubber, or at the next start."""
        self._world.damage.strike(self._anybody())

    def _rot_and_kill(self) -> None:
        """Found at start, one place or several."""
        node = self._anybody()
        self._stop(node, power=self._world.profile.durable and self._world.rng.random() < 0.5)
        for _ in range(self._world.damage.rng.choice((1, 1, 2, 4))):
            self._world.damage.strike(node)

    def _rot_at_a_fork(self) -> None:
        """A leader goes on alone while the others elect another one; when they hear each other
        again, somebody has to mend his log just where the two part."""
        world = self._world
        leader = self._leader()
        if not leader.up or leader.core.role is not Role.LEADER:
            return
        others = world.nodes.keys() - {leader.name}
        self._cut({(leader.name, o) for o in others} | {(o, leader.name) for o in others})
        for _ in range(3):
            world.after(2 * world.unit_ms * world.rng.random(), leader.offer, b"alone")
        apart_ms = (6 + 4 * world.rng.random()) * world.unit_ms
        world.after(apart_ms, self._strike_fork, leader.name)

    def kill_in_doubt(self, node: SimNode) -> None:
        """`node` has just patched its log, and knows that what stands behind the patch may not
        belong there. Nobody may believe it after a kill either."""
        world = self._world
        if not world.healed and world.damage.rng.random() < 0.5:
            world.note("killed in doubt")
            self._stop(node, power=world.profile.durable and world.damage.rng.random() < 0.5)

    def _strike_fork(self, alone: str) -> None:
        """Half of the time nobody but the one who was alone is there to answer."""
        world = self._world
        node = None if world.healed else world.damage.strike_fork()
        if node is None:
            return
        self._stop(node, power=False)
        if world.rng.random() < 0.5 and node.name != alone:
            for other in sorted(world.nodes.keys() - {node.name, alone}):
                self._cut({(other, node.name), (node.name, other)})
        world.cut -= {(alone, node.name), (node.name, alone)}

    # -- links ------------------------------------------------------------------------------------

    def _isolate(self) -> None:
        self._isolate_node(self._victim().name)

    def _isolate_leader(self) -> None:
        self._isolate_node(self._leader().name)

    def _isolate_node(self, name: str) -> None:
        others = self._world.nodes.keys() - {name}
        self._cut({(name, o) for o in others} | {(o, name) for o in others})

    def _cut_one_way(self) -> None:
        one, other = self._world.rng.sample(sorted(self._world.nodes), 2)
        self._cut({(one, other)})

    def _cut_half(self) -> None:
        name = self._victim().name
        others = sorted(self._world.nodes.keys() - {name})
        if self._world.rng.random() < 0.5:
            self._cut({(name, o) for o in others})
        else:
            self._cut({(o, name) for o in others})

    def _split(self) -> None:
        """Two groups that do not hear each other; the leader tends to be in the smaller one."""
        world = self._world
        victim = self._victim().name
        others = [name for name in sorted(world.nodes) if name != victim]
        world.rng.shuffle(others)
        far = others[: world.rng.randint(len(others) // 2, len(others))]
        near = world.nodes.keys() - set(far)
        self._cut({(a, b) for a in near for b in far} | {(b, a) for a in near for b in far})

    def _cut(self, links: set[tuple[str, str]]) -> None:
        self._world.cut |= links
        self._world.after(self._soon(), self._uncut, links)

    def _uncut(self, links: set[tuple[str, str]]) -> None:
        self._world.cut -= links

    def _reset_connection(self) -> None:
        """Both ends see the connection close; it is back a moment later."""
        world = self._world
        one, other = world.rng.sample(sorted(world.nodes), 2)
        for about, to in ((one, other), (other, one)):
            if world.rng.random() < 0.9:
                world.tell_closed(about, to)
                world.after(10.0 * world.rng.random(), world.tell_opened, about, to)

    # -- leadership -------------------------------------------------------------------------------

    def _transfer(self) -> None:
        leader = self._leader()
        leader.transfer(self._world.rng.choice(leader.peers))

    def _relapse(self) -> None:
        """A leader goes on with a minority, is deposed, its frames are cut, and it leads again:
        the friend that once acknowledged those frames hears of the new ones late."""
        world = self._world
        leader = self._leader()
        if not leader.up or leader.name in self._relapsing:
            return
        others = sorted(world.nodes.keys() - {leader.name})
        friend = world.rng.choice(others)
        near = {leader.name, friend} if len(others) > 2 else {leader.name}
        far = world.nodes.keys() - near
        links = {(a, b) for a in near for b in far} | {(b, a) for a in near for b in far}
        self._relapsing[leader.name] = friend
        world.cut |= links
        for _ in range(3):
            world.after(2 * world.unit_ms * world.rng.random(), leader.offer, b"minority")
        apart_ms = (8 + 4 * world.rng.random()) * world.unit_ms  # longer than most elections
        world.after(apart_ms, self._uncut, links)
        for beats in (2, 5, 8):
            world.after(apart_ms + beats * world.unit_ms, self._hand_back, leader.name)

    def _hand_back(self, name: str) -> None:
        if name in self._relapsing and not self._world.healed:
            leader = self._leader()
            if leader.name != name:
                leader.transfer(name)

    def _step_down(self) -> None:
        self._leader().step_down()
