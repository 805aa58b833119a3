"""The interface of workloads with prepare, start, stop and drain; any number run at once.

The runner's order: `prepare` all, `start` all, faults, `stop` all, heal, `drain` all. The stack
passed to `start` ends the workload's tasks. `drain` raises the error of a failed task; `failure`
returns it earlier.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from typing import Any, Protocol

from raftmq.client import Admin, BrokerRefused, ClientError
from raftmq.remoting.codes import ResponseCode

from ..history.events import Outcome
from ..history.files import HistoryWriter


@dataclass(slots=True)
class Tally:
    """Outcomes of operations. `weak` counts `ok` sends on fewer disks or brokers than SEND_OK
    promises; `shed` counts operations that a full backlog skipped."""

    invoked: int = 0
    ok: int = 0
    fail: int = 0
    unknown: int = 0
    shed: int = 0
    weak: int = 0

    def count(self, outcome: Outcome) -> None:
        """Count an operation that ended with this outcome."""
        if outcome is Outcome.OK:
            self.ok += 1
        elif outcome is Outcome.UNKNOWN:
            self.unknown += 1
        else:
            self.fail += 1

    @property
    def decided(self) -> int:
        return self.ok + self.fail + self.unknown + self.shed


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        for field in fields(Tally):
            setattr(total, field.name, getattr(total, field.name) + getattr(tally, field.name))
    return total


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a workload. `rng` is its own, so the same seed gives the same choices.
    With `groups_change`, broker groups join and leave during the run. Producers write their
    acknowledgements into `audit_topic`, if there is one."""

    namesrv: str
    history: HistoryWriter
    rng: random.Random
    say: Callable[[str], None] = lambda text: None
    join_timeout_s: float = 120.0
    drain_timeout_s: float = 120.0
    groups_change: bool = False
    audit_topic: str = ""


class Workload(Protocol):
    """A workload. `topics` and `groups` (topic, consumer group) are known from the start."""

    name: str

    @property
    def topics(self) -> tuple[str, ...]: ...

    @property
    def groups(self) -> tuple[tuple[str, str], ...]: ...

    @property
    def tally(self) -> Tally: ...

    async def prepare(self, env: Environment) -> None:
        """Create topics and groups. Raises ClientError."""
        ...

    async def start(self, stack: AsyncExitStack) -> None:
        """Let clients join and start the load. Raises ClusterError, ClientError."""
        ...

    def stop(self) -> None:
        """Start no more operations; running operations end by themselves. Idempotent."""
        ...

    async def drain(self) -> bool:
        """Wait until every operation is decided and everything is consumed; return whether that was
        in time. Raises the error that ended a task."""
        ...

    def failure(self) -> BaseException | None:
        """Return the error that ended a task, or None."""
        ...


class Tasks:
    """A workload's tasks. `cancel` ends them all; a stack makes sure it is called."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    def failure(self) -> BaseException | None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return error
        return None

    async def finish(self) -> None:
        """Wait until all have ended by themselves. Raises the first error."""
        await asyncio.gather(*self._tasks)

    async def cancel(self) -> None:
        """End those that still run. `finish` raises errors of failed tasks, this does not."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def outcome_of(error: ClientError) -> Outcome:
    """Return the outcome of an operation that ended with this error."""
    return Outcome.UNKNOWN if error.outcome_unknown else Outcome.FAIL


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event`; return whether it was set in time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def leader_of(admin: Admin, broker: str) -> str:
    """Return the address of the group's brokerId 0. Raises ClientError if there is none."""
    known = (await admin.cluster.info()).brokers.get(broker)
    address = known.addresses.get(0) if known is not None else None
    if address is None:
        code = ResponseCode.SERVICE_NOT_AVAILABLE
        raise BrokerRefused(code, f"nobody leads {broker}", "name server")
    return address
