"""What holds between replicas at every moment, read from the running brokers.

- what Raft promises (raftchecks.py), and at most one leader a term;
- every replica applies the same frame at an index;
- the replicated tables are equal at every applied index;
- no broker ends by a broken invariant of its own;
- in the end all replicas have applied the same, and their logs have the same bytes.

Each of it within a broker group, if a world has several (scaling.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zlib import crc32

import orjson

from raftmq.broker.broker import Broker
from raftmq.broker.state_machine import BrokerApplication
from raftmq.dledger.node.node import RaftMember
from raftmq.dledger.raft.messages import Role, RoleEvent
from tests.simulator.cluster.process import here
from tests.simulator.cluster.raftchecks import RaftChecks

if TYPE_CHECKING:
    from tests.simulator.cluster.machine import Machine
    from tests.simulator.cluster.world import ClusterWorld

SORTED = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS


class CheckFailed(Exception):
    """A promise is broken."""


class Invariants:
    """See the module's docstring. `brokers`: the latest broker of each machine."""

    def __init__(self, world: ClusterWorld) -> None:
        self.brokers: dict[str, Broker] = {}
        self._world = world
        self._raft = {group.name: RaftChecks(world, group) for group in world.groups}
        # All by the group, and by the term or the index in its log.
        self._leaders: dict[tuple[str, int], str] = {}
        self._frames: dict[tuple[str, int], int] = {}  # the checksum of the committed frame
        self._tables: dict[tuple[str, int], tuple[int, str]] = {}  # their digest, by whom
        self._compared = 0

    def numbers(self) -> dict[str, int]:
        return {
            "elections": len(self._leaders),
            "frames": len(self._frames),
            "tables compared": self._compared,
        }

    def digest(self) -> int:
        """Return a number of all committed frames."""
        return crc32(orjson.dumps(sorted(self._frames.items())))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while brokers are built, apply and change roles."""
        apply, changed, built = BrokerApplication.apply, Broker._role_changed, Broker.__init__
        failed = Broker._on_fatal
        invariants = self

        strangers = invariants._world.strangers

        def on_built(broker: Broker, *arguments: Any) -> None:
            built(broker, *arguments)
            if here() not in strangers:
                name = here().machine.name
                invariants._raft[invariants._group_here()].brokers[here()] = broker
                invariants.brokers[name] = broker

        def on_apply(application: BrokerApplication, frames: Any) -> None:
            if here() in strangers:
                apply(application, frames)
                return
            invariants._raft[invariants._group_here()].batch_applied(here(), frames[-1])
            for frame in frames:  # one by one, so that the tables of every index are seen
                apply(application, [frame])
                invariants._applied(application, frame)

        def on_role(broker: Broker, event: RoleEvent) -> None:
            invariants._role(event)
            changed(broker, event)

        def on_fatal(broker: Broker, reason: str) -> None:
            process = here()
            if process.alive and "invariant" in reason:
                invariants._world.broken(f"{process}: {reason}")
            failed(broker, reason)

        with ExitStack() as stack:
            for raft in self._raft.values():
                stack.enter_context(raft.watching())
            for owner, name, function in (
                (BrokerApplication, "apply", on_apply),
                (Broker, "_role_changed", on_role),
                (Broker, "__init__", on_built),
                (Broker, "_on_fatal", on_fatal),
            ):
                stack.enter_context(patch.object(owner, name, function))
            yield

    def _group_here(self) -> str:
        return self._world.group_of(here().machine.name).name

    def _role(self, event: RoleEvent) -> None:
        if event.role is not Role.LEADER or here() in self._world.strangers:
            return
        process, group = str(here()), self._group_here()
        key = group, event.term
        # Told again when it is ready, or keeps leadership that it wanted to hand over: by then the
        # voters may be others than those who elected it.
        if key not in self._leaders:
            self._leaders[key] = process
            self._raft[group].leads(here(), event.term)
        elif self._leaders[key] != process:
            known = self._leaders[key]
            self._world.broken(f"election safety: {known} and {process} lead term {event.term}")

    def _applied(self, application: BrokerApplication, frame: Any) -> None:
        process = here()
        world = self._world
        data = crc32(frame.data)
        group = self._group_here()
        key = group, frame.index
        known = self._frames.setdefault(key, data)
        if known != data:
            world.broken(f"state machine safety: {process} applies another {frame}")
        self._raft[group].applied(process, frame)
        tables = application._state.tables
        if not len(frame.command) or any(t.applied_index > frame.index for t in tables):
            return  # nothing changed, or a snapshot is ahead of the replay
        digest = crc32(orjson.dumps([table.to_json() for table in tables], option=SORTED))
        self._compared += 1
        before, whose = self._tables.setdefault(key, (digest, str(process)))
        if before != digest:
            world.broken(f"tables differ at {frame.index}: those of {process} and of {whose}")

    # -- the end ----------------------------------------------------------------------------------

    def all_equal(self) -> bool:
        """Whether every replica runs and has applied everything."""
        world = self._world
        return all(self._are_equal(world.machines_of(group)) for group in world.groups)

    def _are_equal(self, machines: Iterable[Machine]) -> bool:
        result = set()
        for machine in machines:
            broker = self.brokers.get(machine.name)
            if broker is None or not machine.processes or not broker.life.recovered:
                return False
            engine = broker.engine
            assert isinstance(engine, RaftMember)
            # The tables may be ahead of the queues, if they are of a snapshot.
            result |= {broker.state.applied_index, engine.parts.pump.applier.applied_index}
        return len(result) <= 1  # 0: the group is not there

    def at_end(self) -> None:
        """Tables and queues are equal; the logs have the same bytes, but for what retention took
        and what rotted."""
        for group in self._world.groups:
            if names := [machine.name for machine in self._world.machines_of(group)]:
                self._at_end(names)

    def _at_end(self, names: Sequence[str]) -> None:
        world = self._world
        states: dict[str, dict[str, str]] = {}
        for name in names:
            broker = self.brokers[name]
            result: dict[str, Any] = {
                type(table).__name__: table.to_json() for table in broker.state.tables
            }
            result["queues"] = sorted(
                (q.topic, q.queue_id, q.max_offset) for q in broker.store.queues.queues()
            )
            for part, value in result.items():
                text = orjson.dumps(value, option=SORTED).decode()
                states.setdefault(part, {})[name] = text
        for part, texts in states.items():
            if len(set(texts.values())) != 1:
                world.fail(f"{part} differ in the end: {texts}")
        images = {}
        for name in names:
            if name not in world.plan.fragile:
                engine = self.brokers[name].engine
                assert isinstance(engine, RaftMember)
                index = engine.log.index
                images[name] = (engine.log, index.first_index, index.last_index)
        first = max(start for _, start, _ in images.values())
        last = min(end for _, _, end in images.values())
        digests = {}
        for name, (log, _, _) in images.items():
            digest = 0
            for at in range(first, last + 1, 64):
                for frame in log.frames(at, min(at + 63, last)):
                    digest = crc32(frame.data, digest)
            digests[name] = digest
        if len(set(digests.values())) != 1:
            world.fail(f"logs differ between {first} and {last}: {digests}")

    def trimmed(self) -> bool:
        """Whether retention has taken the beginning of the leader's log; of all logs, if bits of
        some have flipped: what is damaged in one that was not trimmed may be nowhere else once
        another replica is empty."""
        leader = self._world.leader()
        if leader is None:
            return False
        names = self.brokers if "rot" in self._world.plan.kinds else (leader.name,)
        engines = [self.brokers[name].engine for name in names]
        return all(
            isinstance(engine, RaftMember) and engine.log.index.first_index > 1
            for engine in engines
        )

    def states(self) -> str:
        """Describe every broker, for a failure's message."""
        lines = []
        for name, machine in self._world.brokers.items():
            broker = self.brokers.get(name)
            lines.append(f"{name}: {machine.processes}")
            if broker is not None:
                lines[-1] += f" applied {broker.state.applied_index} {broker.engine.status()}"
        return "\n".join(lines)
