"""Broker groups that join and leave, and topics that are made and deleted, while faults strike.

An operator at the desk starts further groups beside the first, drains groups, with or without moves
of their timer messages, cancels that, removes them once they are empty, and sometimes starts a
removed group again. Each request is repeated until it is answered. What must hold:

- a group that registers for the first time has all topics that the others had when it was started;
- a topic that is deleted is not in that group again, unless it was made since;
- a group that drains takes no send after its time of grace, through failovers;
- a drained group becomes empty in bounded time;
- in the end all groups have the topics that were made, and the consumer groups, and name servers
  have exactly the groups that are there, without write permission where they drain.

That a removed group was empty is found by its messages, which nobody can read any more (scaled.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import orjson

from raftmq.broker.broker import Broker
from raftmq.broker.cluster import sharing
from raftmq.broker.cluster.other_groups import OtherGroups
from raftmq.broker.registration import Identity
from raftmq.broker.replication.log import ReplicatedLog
from raftmq.broker.tables.topics import TopicTable
from raftmq.broker.tables.versioned import VersionedTable
from raftmq.namesrv.routes import LEADER_ID, Registered, Registration, RouteTable
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.names import is_brokers_own
from tests.simulator.cluster.operator import AGAIN_S, asked
from tests.simulator.cluster.process import Process, here
from tests.simulator.cluster.scaled import ORDERED, ScaledWorkload

if TYPE_CHECKING:
    from tests.simulator.cluster.world import ClusterWorld, Group

PERIOD_S = 0.5  # in which groups ask each other for changes
GRACE_MS = 1_000
CLOSED_S = GRACE_MS / 1000 + 4.0  # after a drain was answered, and a leader that was frozen goes on
EMPTY_WITHIN_S = 80.0  # three invisible times, or a transaction's next check and another heartbeat
MEMBERS_S = 30.0  # a new group may know a consumer only from its next heartbeat on
AGREED_WITHIN_S = 20.0
NAMES = 4  # of topics that are made, deleted, and made again
LOST_SHARE = 0.3  # of the answers to moved messages: few faults strike between two of them
FATES = ("cancel", "leave", "remove", "remove", "remove")  # of a group that is drained
FURTHER = (("group-b", "b"), ("group-c", "c"))  # groups, and how their machines' names begin


@dataclass(slots=True)
class Drained:
    """A drain that was asked for: from when on no send may be taken, and when it was cancelled."""

    asked_s: float
    closed_s: float = inf
    ends_s: float = inf


class Scaling:
    """See the module's docstring. `stop` lets the operator finish what it has begun; then it is
    `idle`."""

    def __init__(self, world: ClusterWorld) -> None:
        self.idle = True
        # Else a topic whose only group is gone would be made elsewhere, and its keys with it.
        self.settings = {"drainGraceMs": str(GRACE_MS), "autoCreateTopicEnable": "false"}
        self.numbers: Counter[str] = Counter()
        self.differences = ""
        self._world = world
        self._rng = Random(f"groups of {world.seed}")
        self._moves_rng = Random(f"moves of {world.seed}")
        self._answers_rng = Random(f"lost answers of {world.seed}")
        self._client: RemotingClient | None = None
        self._stopping = False
        self._deleting = False
        self._absent: list[Group] = []
        self._there = [world.groups[0]]  # those that were started and not removed
        self._listed: set[str] = set()  # names of groups whose leader has registered
        # group → other group → topics that this one had when that one was started
        self._required: dict[str, dict[str, set[str]]] = {}
        self._drained: dict[str, list[Drained]] = {}  # by the group's name
        self._made: set[str] = set()  # topics
        self._deleted: set[str] = set()  # ever
        self._unsure: set[str] = set()  # may be made by a request that was not answered
        self._gone: set[tuple[str, str]] = set()  # topic and group
        self._routes: dict[Process, RouteTable] = {}

    def found(self) -> list[str]:
        """Add further groups to the world; return the names of their machines."""
        names: list[str] = []
        for name, letter in FURTHER:
            replicas = self._rng.choice((1, 1, 3))
            members = tuple(f"{letter}{number}" for number in range(replicas))
            self._absent.append(self._world.add_group(name, members))
            names += members
        return names

    def stop(self) -> None:
        self._stopping = True

    # -- the operator -----------------------------------------------------------------------------

    async def run(self, _: Process) -> None:
        """Operate until stopped."""
        self.idle = False
        self._client = RemotingClient()
        await asyncio.gather(self._change_groups(), self._change_topics())
        await self._client.close()
        self.idle = True

    async def _change_groups(self) -> None:
        rng = self._rng
        while not self._stopping:
            await asyncio.sleep(rng.choice((0.1, 0.5)) * rng.random())
            takers = self._takers()
            if self._absent and not self._deleting and (len(takers) < 2 or rng.random() < 0.3):
                self._join(self._absent.pop(0))
                if self._absent and rng.random() < 0.3:
                    self._join(self._absent.pop(0))
            elif len(takers) > 1:
                # Other workloads wait at their end for the queues that the first group had.
                leaving = [one for one in takers if one is not self._world.groups[0] or self._alone]
                await self._drain(rng.choice(leaving))

    def _join(self, group: Group) -> None:
        world = self._world
        world.note(f"{group.name} is started")
        tables = [table for process, table in self._routes.items() if process.alive]
        self._required[group.name] = {
            one.name: self._topics_of(one)
            for one in self._there
            if any(table.group(one.name) is not None for table in tables)
        }
        self._there.append(group)
        self.numbers["joins"] += 1
        for name in group.founders:
            machine = world.machine_named(name)
            world.brokers[name] = machine
            world.start_broker(machine)

    async def _drain(self, group: Group) -> None:
        """Drain a group, and cancel that, remove it, or leave it so."""
        world, rng, name = self._world, self._rng, group.name
        fate = rng.choice(FATES) if self._alone else "remove"
        world.note(f"{name} is to be drained: {fate}")
        drained = Drained(world.loop.now_s)
        self._drained.setdefault(name, []).append(drained)
        moves = {"moveTimers": "true" if self._moves_rng.random() < 0.6 else "false"}
        moves |= {} if self._alone else {"moveDeadLetters": "true"}  # their consumers await them
        await self._insist(group, RequestCode.DRAIN_GROUP, {"op": "start"} | moves)
        drained.closed_s = world.loop.now_s + CLOSED_S
        self.numbers[f"drains: {fate}"] += 1
        if fate == "cancel":
            await asyncio.sleep(3 * rng.random())
            drained.ends_s = world.loop.now_s
            await self._insist(group, RequestCode.DRAIN_GROUP, {"op": "cancel"})
        elif fate == "remove":
            while not await self._is_removed(group):  # noqa: ASYNC110 - asked each time
                await asyncio.sleep(0.2 * rng.random())
            self._retire(group)

    async def _is_removed(self, group: Group) -> bool:
        answer = await self._ask(group, RequestCode.DRAIN_GROUP, {"op": "remove"})
        if "is not draining" in (answer.remark or ""):
            self._world.broken(f"{group.name} drains no more, and nobody has cancelled that")
        if answer.code != ResponseCode.SUCCESS:
            return False
        status = orjson.loads(answer.body)
        self.numbers["timers moved"] += status["move"]["movedTimers"]
        return status["removed"] is True

    def _retire(self, group: Group) -> None:
        """Stop the brokers of a group that was removed; perhaps somebody starts them again."""
        world, rng = self._world, self._rng
        world.note(f"{group.name} is removed")
        self._there.remove(group)
        self.numbers["groups removed"] += 1
        machines = [world.brokers.pop(name) for name in group.founders]
        returns = rng.random() < 0.5
        self.numbers["returns"] += returns
        for machine in machines:
            machine.kill()
            if returns:
                again = partial(self._start_again, machine)
                world.loop.call_later(2 * rng.random(), again, context=world.context)

    def _start_again(self, machine: Any) -> None:
        if not machine.processes:
            machine.power_on()
            self._world.start_broker(machine)

    async def _change_topics(self) -> None:
        """Make a topic in one group, and delete it in all, now and then."""
        rng = Random(self._rng.random())
        while not self._stopping:
            topic = f"Made{rng.randrange(NAMES)}"
            if topic not in self._made:
                await self._make(rng, topic)
            # A group that joins meanwhile may adopt it in the last moment (docs/scaling.md).
            elif rng.random() < 0.7 and self._listed >= {group.name for group in self._there}:
                self._deleting = True
                await self._delete(rng, topic)
                self._deleting = False
            await asyncio.sleep(rng.choice((0.02, 0.2, 1.0)) * rng.random())

    async def _make(self, rng: Random, topic: str) -> None:
        self._gone -= {(topic, group.name) for group in self._world.groups}
        self._made.add(topic)
        self.numbers["topics made"] += 1
        while not await self._put(rng.choice(self._takers() or self._there), topic, 1):  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)

    async def _delete(self, rng: Random, topic: str) -> None:
        """Delete it in all groups that are listed, in any order; change it in some before."""
        self._deleted.add(topic)
        self.numbers["topics deleted"] += 1
        done: set[str] = set()
        while left := [g for g in self._there if g.name in self._listed and g.name not in done]:
            group = rng.choice(left)
            leader = self._leader(group)
            if leader is not None and topic in leader.state.topics.entries and rng.random() < 0.5:
                await self._put(group, topic, 2 + rng.randrange(8))
                await asyncio.sleep(PERIOD_S * rng.random())
            ext = {"topic": topic}
            answer = await self._ask(group, RequestCode.DELETE_TOPIC_IN_BROKER, ext)
            if answer.code == ResponseCode.SUCCESS:
                self._world.note(f"{topic} is deleted in {group.name}")
                self._gone.add((topic, group.name))
                done.add(group.name)
            else:
                await asyncio.sleep(AGAIN_S)
        self._made.discard(topic)

    async def _put(self, group: Group, topic: str, queues: int) -> bool:
        """Make or change a topic. Without an answer it may be made at any time."""
        if self._leader(group) is None:
            return False
        ext = TopicHeader(topic, queues, queues, 6).to_ext()
        answer = await self._ask(group, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        self._world.note(f"{topic} with {queues} queues in {group.name}: {answer.code}")
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION):
            self._unsure.add(topic)
        return answer.code == ResponseCode.SUCCESS

    async def _insist(self, group: Group, code: RequestCode, ext: dict[str, str]) -> None:
        while (await self._ask(group, code, ext)).code != ResponseCode.SUCCESS:  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, group: Group, code: RequestCode, ext: dict[str, str]) -> RemotingCommand:
        assert self._client is not None
        return await asked(self._world, self._client, code, ext, group)

    # -- what is there ----------------------------------------------------------------------------

    def _takers(self) -> list[Group]:
        """Return the groups that take sends."""
        return [
            group
            for group in self._there
            if group.name in self._listed and not self._drains(group.name)
        ]

    def _drains(self, name: str) -> bool:
        return any(one.ends_s == inf for one in self._drained.get(name, ()))

    def _leader(self, group: Group) -> Broker | None:
        machine = self._world.leader(group=group)
        return None if machine is None else self._world.invariants.brokers[machine.name]

    def _topics_of(self, group: Group) -> set[str]:
        """Return the topics of any replica, but the brokers' own."""
        brokers = self._world.invariants.brokers
        broker = self._leader(group) or brokers[group.founders[0]]
        return shared(broker.state.topics)

    # -- the judges -------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while brokers register and adopt."""
        register, build, adopt = RouteTable.register, RouteTable.__init__, VersionedTable.adopt
        end: Any = RouteTable._end
        take = OtherGroups.take
        identify: Any = ReplicatedLog.identity.fget  # type: ignore[attr-defined]
        scaling = self

        def on_build(table: RouteTable, *arguments: Any, **named: Any) -> None:
            build(table, *arguments, **named)
            scaling._routes[here()] = table

        def on_register(table: RouteTable, claim: Registration, now_ms: int) -> Registered:
            result = register(table, claim, now_ms)
            if claim.broker_id == LEADER_ID:
                scaling._listed.add(claim.broker_name)
            return result

        def on_identity(log: ReplicatedLog) -> Identity:
            result: Identity = identify(log)
            if result.broker_id == LEADER_ID:
                scaling._registers()
            return result

        def on_adopt(table: VersionedTable[Any], entry: Any, *more: int) -> bool:
            adopted = adopt(table, entry, *more)
            if adopted and isinstance(table, TopicTable):
                scaling._adopted(entry.name)
            return adopted

        def on_end(table: RouteTable, group: Any) -> None:
            end(table, group)
            for required in scaling._required.values():  # who starts now cannot know of it
                required.pop(group.name, None)

        async def on_take(others: OtherGroups, *arguments: Any) -> None:
            await take(others, *arguments)
            if scaling._answers_rng.random() < LOST_SHARE:
                scaling.numbers["answers lost"] += 1
                raise RemotingError("the answer is lost")

        with (
            patch.object(OtherGroups, "take", on_take),
            patch.object(sharing, "PERIOD_S", PERIOD_S),
            patch.object(RouteTable, "__init__", on_build),
            patch.object(RouteTable, "register", on_register),
            patch.object(RouteTable, "_end", on_end),
            patch.object(ReplicatedLog, "identity", property(on_identity)),
            patch.object(VersionedTable, "adopt", on_adopt),
        ):
            yield

    def _registers(self) -> None:
        """Check what a leader has that registers, or is about to."""
        machine = here().machine.name
        name = self._world.group_of(machine).name
        broker = self._world.invariants.brokers.get(machine)
        if broker is None or name in self._listed or name not in self._required:
            return
        required = set[str]().union(*self._required[name].values())
        if missing := required - shared(broker.state.topics) - self._deleted:
            self._world.broken(f"{name} registers without {sorted(missing)}")

    def _adopted(self, topic: str) -> None:
        machine = here().machine.name
        group = self._world.group_of(machine).name
        leads = self._world.invariants.brokers[machine].roles.leading  # others repeat what was
        if leads and (topic, group) in self._gone and topic not in self._unsure:
            self._world.broken(f"{topic} was deleted, and comes back to {group}")

    def agrees(self) -> bool:
        """Whether groups and name servers have what they must have in the end."""
        self.differences = next(self._differences(), "")
        return not self.differences

    def _differences(self) -> Iterator[str]:
        wanted: set[str] = set()  # consumer groups
        leaders = {group.name: self._leader(group) for group in self._there}
        for name, leader in leaders.items():
            if leader is None:
                yield f"{name} has no leader"
                return
            wanted |= set() if self._drains(name) else shared(leader.state.groups)
        for name, leader in leaders.items():
            assert leader is not None
            drains = leader.state.group.draining_ms > 0
            if drains != self._drains(name):
                yield f"{name} drains: {drains}"
            if not drains:
                topics, groups = shared(leader.state.topics), shared(leader.state.groups)
                if topics - self._unsure != (self._made | self._loaded) - self._unsure:
                    yield f"{name} has {sorted(topics)}, made are {sorted(self._made)}"
                if groups != wanted:
                    yield f"{name} has {sorted(groups)}, others have {sorted(wanted)}"
        for process, table in self._routes.items():
            if process.alive:
                actual = {group.name for group in table.groups()}
                if actual != leaders.keys():
                    yield f"{process} lists {sorted(actual)}, not {sorted(leaders)}"
                for topic in sorted(self._loaded):
                    for name, queues in (table.queues(topic) or {}).items():
                        if bool(queues.perm & 2) == self._drains(name):
                            yield f"{process} has permission {queues.perm} for {name}"

    @property
    def _alone(self) -> bool:
        return len(self._world.load.names) == 1

    @property
    def _loaded(self) -> set[str]:
        """The topics of the load that all groups have."""
        workloads = self._world.load.workloads
        return {topic for one in workloads for topic in one.topics} - {ORDERED}

    def wrong(self) -> list[str]:
        """Return in words which messages are where they should not be."""
        workload = self._world.load.workloads[0]
        assert isinstance(workload, ScaledWorkload)
        result = workload.wrong()
        for name, drains in self._drained.items():
            result += [
                f"{name} took {one} {one.began_s - drained.closed_s:.1f} s after it was closed"
                for drained in drains
                for one in workload.placed
                if one.queue.broker_name == name and drained.closed_s < one.began_s < drained.ends_s
            ]
        return result


def shared(table: VersionedTable[Any]) -> set[str]:
    """Return the names in a table that all groups have."""
    return {name for name in table.entries if not is_brokers_own(name)} - {ORDERED}
