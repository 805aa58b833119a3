"""Injection of a plan, with each fault at its time, its heal, and recovery before the next.

A failed fault, or a cluster that does not recover, does not end the run; the verdict reports it.
Processes that ended by themselves are started again after the faults are healed. A classic slave
with a log unlike its master's is rebuilt, as an operator would do it. Messages that only that slave
had are lost, as the mode allows.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ..cluster.clusterfile import ClusterError, Node
from ..cluster.probe import ReplicaView
from ..cluster.wait_healthy import RECOVERY_TIMEOUT_S, wait_recovered
from ..faults.base import Context, Fault, Planned, finished, in_thread
from ..faults.catalogue import make
from ..faults.disk import lose_disk

HEAL_TRIES = 3
WATCH_S = 0.25  # how often the load is asked whether it still runs


@dataclass(slots=True)
class Inflicted:
    """The result. `failed`: faults that could not be done or healed, in words; `stuck`: the faults
    after which the cluster was not whole in time, and why; `left`: nodes of removed groups."""

    done: int = 0
    failed: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    left: list[Node] = field(default_factory=list)


class Nemesis:
    """Inflicts plans. `begin_s`: second 0 of the plan, on the monotonic clock."""

    def __init__(
        self,
        context: Context,
        start_s: float,
        recovery_timeout_s: float = RECOVERY_TIMEOUT_S,
    ) -> None:
        self._context = context
        self._start_s = start_s
        self._recovery_timeout_s = recovery_timeout_s
        self.result = Inflicted(left=context.left)

    async def inflict(self, plan: Sequence[Planned], check_load: Callable[[], None]) -> Inflicted:
        """Inflict all of `plan`. `check_load` is called now and then, and may raise."""
        for number, together in enumerate(simultaneous(plan), 1):
            late_s = max(0.0, time.monotonic() - self._at(together[0].at_s))
            await self._sleep_until(self._at(together[0].at_s), check_load)
            text = " + ".join(f"{planned.kind}:{planned.whom}" for planned in together)
            self._context.say(f"fault {number}: {text}")
            await self._together(together, late_s, check_load)
            await self._wait_recovered(text)
        return self.result

    def _at(self, at_s: float) -> float:
        return self._start_s + at_s

    async def _sleep_until(self, when_s: float, check_load: Callable[[], None]) -> None:
        while (left_s := when_s - time.monotonic()) > 0:
            check_load()
            await asyncio.sleep(min(left_s, WATCH_S))

    async def _together(
        self, together: Sequence[Planned], late_s: float, check_load: Callable[[], None]
    ) -> None:
        """Inject the faults of a wish, the first at its time, the rest at their planned distance
        from its injection, so that a slow machine does not bring them closer together."""
        first, *others = together
        done: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def after_the_first(planned: Planned) -> None:
            start_s = await asyncio.shield(done)
            await self._one(planned, start_s + planned.at_s - first.at_s, check_load)

        async with asyncio.TaskGroup() as group:
            group.create_task(self._one(first, self._at(first.at_s) + late_s, check_load, done))
            for planned in others:
                group.create_task(after_the_first(planned))

    async def _one(
        self,
        planned: Planned,
        when_s: float,
        check_load: Callable[[], None],
        done: asyncio.Future[float] | None = None,
    ) -> None:
        """Inject and heal a fault; complete `done` when it is injected or has failed."""
        fault: Fault | None = None
        try:
            await self._sleep_until(when_s, check_load)
            try:
                fault = make(planned, self._context)
                await fault.inject()
            finally:
                if done is not None:
                    done.set_result(time.monotonic())
            self.result.done += 1
            self._context.say(f"  {fault.describe()}")
            await self._sleep_until(time.monotonic() + planned.for_s, check_load)
        except ClusterError as error:
            self.result.failed.append(f"{planned.kind}:{planned.whom}: {error}")
            self._context.say(f"  not done: {error}")
        finally:
            if fault is not None:
                await finished(self._heal(planned, fault))

    async def _heal(self, planned: Planned, fault: Fault) -> None:
        for tried in range(1, HEAL_TRIES + 1):
            try:
                await fault.heal()
                return
            except (ClusterError, OSError) as error:  # an OSError if the history cannot be written
                if tried == HEAL_TRIES:
                    self.result.failed.append(f"{planned.kind}:{planned.whom}: {error}")
                    self._context.say(f"  not healed: {error}")
                await asyncio.sleep(WATCH_S)

    async def _wait_recovered(self, text: str) -> None:
        cluster = self._context.cluster
        for node in cluster.state().nodes:
            if node.process is None or cluster.is_alive(node.name):
                continue
            self._context.say(f"  {node.name} ended by itself; starting it")
            try:
                cluster.start(node.name)
            except (ClusterError, OSError) as error:
                self.result.failed.append(f"{node.name} cannot be started: {error}")
        rebuilt: set[str] = set()

        async def rebuild(view: ReplicaView) -> bool:
            if view.node in rebuilt:
                return False
            rebuilt.add(view.node)
            self._context.say(f"  {view.node} refuses to follow; made anew from its master")
            await finished(self._rebuild(view.node))
            return True

        try:
            await wait_recovered(cluster, self._recovery_timeout_s, rebuild)
        except ClusterError as error:
            first = str(error).splitlines()[0]
            self.result.stuck.append(f"after {text}: {first}")
            self._context.say(f"  {first}")

    async def _rebuild(self, name: str) -> None:
        """Kill the node, empty its disk, start it. Raises ClusterError."""
        cluster = self._context.cluster
        await cluster.wait_dead(cluster.signal(name, signal.SIGKILL))
        try:
            await in_thread(lose_disk, self._context, cluster.state().node(name))
        except OSError as error:
            raise ClusterError(f"{name} cannot be made anew: {error}") from error
        cluster.start(name)


def simultaneous(plan: Sequence[Planned]) -> list[list[Planned]]:
    """Return the plan in its order, with the faults of each wish in a list. They belong together
    even if the first is over at once."""
    ordered = sorted(plan, key=lambda planned: (planned.slot, planned.at_s))
    return [list(parts) for _, parts in groupby(ordered, key=lambda planned: planned.slot)]
