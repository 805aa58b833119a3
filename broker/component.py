"""The one form in which every part of a broker offers what it does.

A part lists in a `Service` its request handlers, its HTTP operations, its periodic work, what it
does when the role changes and when the broker stops. `broker.broker` puts the services into one
order and passes every event to them in that order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raftmq.dledger.raft.messages import RoleEvent
from raftmq.remoting.connection import Handler
from raftmq.web.operation import Operation

from .scheduler import Chore


@dataclass(frozen=True, slots=True)
class RoleChange:
    """A role event and its meaning. Here a leader is one that is ready to serve."""

    event: RoleEvent
    leading: bool
    began: bool  # this replica is the ready leader, and was not
    ended: bool  # it was, and is not any more
    goes_on: bool  # it leads as before, in the same term: nothing has ended or begun
    awaited: bool  # this replica, or the one that it hands over to, will lead in a moment


def at_each_leadership(act: Callable[[], None]) -> Callable[[RoleChange], None]:
    """Return a `role_changed` that calls `act` whenever a leadership begins or ends, but not while
    one just goes on: its work in progress must not be begun a second time."""

    def changed(change: RoleChange) -> None:
        if not change.goes_on:
            act()

    return changed


def next_turn(act: Callable[[], None]) -> None:
    """Call `act` in the next turn of the loop."""
    asyncio.get_running_loop().call_soon(act)


def _nothing(_: RoleChange) -> None:
    """Do nothing: most parts need not know the role."""


async def _at_once() -> None:
    """Return: there is nothing to end."""


@dataclass(frozen=True, slots=True)
class Service:
    """Everything that one part of a broker offers. `stop` is awaited after the engine has
    stopped."""

    handlers: Mapping[int, Handler] = field(default_factory=dict)
    operations: Sequence[Operation] = ()
    chores: Sequence[Chore] = ()
    role_changed: Callable[[RoleChange], None] = _nothing
    stop: Callable[[], Awaitable[None]] = _at_once
