"""Clients that die: guests join the load's groups on a machine of their own, and are killed midway.

They say goodbye to nobody: not to their groups, nor to whom they popped messages from, hold locks
of, or began transactions with. Some are killed, and their connections closed; some lose power, and
nobody is told. What they held must become available to others in bounded time:

- their queues, with locks or without: `late` (lateness.py) has the time;
- what they popped: soon after it becomes visible again;
- transactions that they left undecided: a broker asks another producer of the group.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING, Any

from raftmq.chaos.workloads.deferred import PostedWorkload
from raftmq.chaos.workloads.messages import MessagesWorkload
from tests.simulator.cluster.machine import Machine
from tests.simulator.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulator.cluster.world import ClusterWorld

STAY_S = (0.8, 2.5)
AWAY_S = (0.1, 0.8)
TRANSACTION_EVERY_S = 0.1
AGAIN_WITHIN_S = 10.0  # as long as anything that is due may take (lateness.py)
# A broker may ask no producer before that one's next heartbeat, 30 s after a restart.
ASKED_WITHIN_S = 45.0
SILENT_S = 20.0  # the longest poll: only its answer finds out that nobody is there any more
NS_PER_S = 1_000_000_000

Record = Mapping[str, Any]


class Guests:
    """See the module's docstring. One after the other; `deaths`: when each died, by its name."""

    def __init__(self, world: ClusterWorld) -> None:
        self.deaths: dict[str, int] = {}
        self.silent = 0  # of these, those that nobody was told of
        self._world = world
        self._rng = rng = Random(f"guests of {world.seed}")
        self.machine = Machine("guest", world.loop, world.network, Random(rng.random()))
        self._name = ""

    def start(self) -> None:
        """Let them come and go."""
        self._later(AWAY_S, self._come)

    def end(self) -> None:
        """Let the last one die."""
        if self._name:
            self._die()

    def _later(self, bounds_s: tuple[float, float], act: Any) -> None:
        world = self._world
        world.loop.call_later(self._rng.uniform(*bounds_s), act, context=world.context)

    def _come(self) -> None:
        world = self._world
        if world.plan.over:
            return
        self.machine.power_on()
        self._name = f"guest-{len(self.deaths)}"
        world.note(f"{self._name} comes")
        self.machine.start(self._name, self._stay, world.finished)
        self._later(STAY_S, self._go)

    def _go(self) -> None:
        if self._name:
            self._die()
            self._later(AWAY_S, self._come)

    def _die(self) -> None:
        """Kill it, or cut its power for a while."""
        world, name = self._world, self._name
        self._name = ""
        if silent := self._rng.random() < 0.3:
            self.machine.cut_power()
            self._later(AWAY_S, self.machine.power_on)
        else:
            self.machine.kill()
        self.silent += silent
        self.deaths[name] = int(world.loop.now_s * NS_PER_S)
        world.note(f"{name} {'loses power' if silent else 'is killed'}")
        # Nobody will say how these ended.
        world.load.give_up(_unanswered(world.history.records, name))

    async def _stay(self, process: Process) -> None:
        """Join every group of the load, and produce transactions if it does."""
        name = process.name
        async with AsyncExitStack() as stack:
            for one in self._world.load.workloads:
                if isinstance(one, MessagesWorkload | PostedWorkload):
                    await one.make_consumers().join(f"{one.name}-{name}")
            for one in self._world.load.workloads:
                if isinstance(one, PostedWorkload) and one.name == "transactions":
                    work = await one.work.producer(stack, name, Random(self._rng.random()))
                    for number in range(1_000_000):
                        await work(number)
                        await asyncio.sleep(TRANSACTION_EVERY_S)
            await asyncio.get_running_loop().create_future()

    def kept(self, records: Iterable[Record], healed_ns: int) -> list[str]:
        """Return in words what did not become available to others in time."""
        records = list(records)
        for name, died_ns in self.deaths.items():
            own = (one for one in records if str(one.get("p", "")).endswith(name))
            assert all(one["t_ns"] <= died_ns for one in own), f"{name} does things when it is dead"
        return [*self._popped(records, healed_ns), *self._undecided(records, healed_ns)]

    def _popped(self, records: list[Record], healed_ns: int) -> Iterator[str]:
        held: dict[str, tuple[str, int]] = {}  # id → by whom, and when it is due to others
        for record in records:
            what, name, by = record.get("f"), record.get("id", ""), record.get("p", "")
            if what in ("pop_end", "deliver"):
                held.pop(name, None)  # done with, or asked to be; or it was a dead letter
            elif what == "pop":
                if name in held:
                    owner, due_ns = held.pop(name)
                    if record["t_ns"] > due_ns + AGAIN_WITHIN_S * NS_PER_S:
                        late_s = (record["t_ns"] - due_ns) / NS_PER_S
                        yield f"{name}, popped by {owner}, came again {late_s:.1f} s late"
                guest = by.removeprefix("pop-")
                if guest in self.deaths:
                    due_ns = record["t_ns"] + record["invisible_ms"] * 1_000_000
                    held[name] = by, max(due_ns, healed_ns)
        for name, (owner, _) in held.items():
            yield f"{name}, popped by {owner}, never came again"

    def _undecided(self, records: list[Record], healed_ns: int) -> Iterator[str]:
        requested: dict[str, list[int]] = defaultdict(list)
        decided = set()
        for record in records:
            if record.get("f") == "decide":
                requested[record["id"]].append(record["t_ns"])
                if record["p"] in self.deaths and record["type"] == "ok":
                    decided.add(record["id"])
        for record in records:
            guest, name = record.get("p", ""), record.get("id", "")
            mine = record.get("f") == "post" and record["type"] == "ok" and guest in self.deaths
            if mine and name not in decided:
                since_ns = max(self.deaths[guest], healed_ns)
                if not any(ns < since_ns + ASKED_WITHIN_S * NS_PER_S for ns in requested[name]):
                    yield f"{guest} left {name} undecided, and nobody was asked about it"


def _unanswered(records: Iterable[Record], process: str) -> set[str]:
    """Return the messages whose sends or acknowledgements this process began and did not end."""
    names = {}
    for record in records:
        if record.get("f") in ("post", "pop_end") and record["p"].endswith(process):
            if record["type"] == "invoke":
                names[record["op"]] = record["id"]
            else:
                names.pop(record["op"], None)
    return set(names.values())
