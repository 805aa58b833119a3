"""The `Service` interface of every part of a broker.

A part lists its request handlers, HTTP operations, periodic work, and its reactions to role changes
and to the stop. `broker.broker` orders the services and passes every event in that order.
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
    """A role event and its meaning; a leader here is ready to serve."""

    event: RoleEvent
    leading: bool
    began: bool  # this replica has become the ready leader
    ended: bool  # this replica has ceased to be the ready leader
    goes_on: bool  # it still leads, in the same term
    awaited: bool  # this replica, or the target of its transfer, is about to lead


def at_each_leadership(act: Callable[[], None]) -> Callable[[RoleChange], None]:
    """Return a `role_changed` that calls `act` when a leadership starts or ends. A leadership that
    continues does not restart the work in progress."""

    def changed(change: RoleChange) -> None:
        if not change.goes_on:
            act()

    return changed


def next_turn(act: Callable[[], None]) -> None:
    """Call `act` in the next iteration of the loop."""
    asyncio.get_running_loop().call_soon(act)


def _nothing(_: RoleChange) -> None:
    """Ignore the role."""


async def _at_once() -> None:
    """Return, since there is nothing to end."""


@dataclass(frozen=True, slots=True)
class Service:
    """The interface of one part of a broker. `stop` is awaited after the engine has stopped."""

    handlers: Mapping[int, Handler] = field(default_factory=dict)
    operations: Sequence[Operation] = ()
    chores: Sequence[Chore] = ()
    role_changed: Callable[[RoleChange], None] = _nothing
    stop: Callable[[], Awaitable[None]] = _at_once
