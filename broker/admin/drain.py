"""Draining of this broker group, so that it can be removed (docs/scaling.md).

A draining group is read until it is empty. Its topics are registered without write permission, so
clients send elsewhere. It still takes the sends of clients with an older route for `drainGraceMs`
and then rejects them with NO_PERMISSION, after which clients choose another group. Topics, consumer
groups, delayed and timer messages are not created meanwhile. Retries, transactions and deliveries
continue.

A removed group is unlisted by the name servers and does not register again. The other groups record
its id and report it to the name servers, which reject it if it returns, for instance from a backup.
Its stores stay as they are, for the audit.

DRAIN_GROUP (30010, ours) has the ext field `op`: start, cancel, remove, status, or forget (another
group, by `id` and `name`). remove is rejected before the group is empty, except with the ext field
`lose`=true. start has these optional fields, and a repeated start changes them:

    moveTimers, moveDeadLetters  true: move them to another group (broker.delayed.moves)
    to                           its name; by default the group with the fewest timer messages
    givenUp                      consumer groups whose messages may be lost, separated by commas

The response is JSON (broker.admin.remainder).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.fields import boolean_or, text, text_or
from raftmq.remoting.names import name_problem
from raftmq.remoting.registration import GROUP_ID

from ..cluster.other_groups import OtherGroups
from ..component import RoleChange, Service
from ..context import Context
from ..errors import Refused, busy, forbidden, invalid
from ..scheduler import IDLE_MS, Chore
from ..send.service import SendPath
from ..tables.broker_group import drain, forget_group, remove_group
from ..tables.broker_group import group_id as unchanged_id
from .remainder import Remainder, takes_sends

CHECK_MS = 100
COUNT_MS = 30_000  # between two counts for the metrics
GIVEN_UP_MAX = 1_000
log = logging.getLogger("raftmq.broker.cluster")


class DrainOptions(NamedTuple):
    """The options of a start. `given_up` None leaves these consumer groups as they are."""

    move_timers: bool = False
    move_dead_letters: bool = False
    to: str = ""
    given_up: tuple[str, ...] | None = None


class Drain:
    """Puts the replicated state into effect on this replica, and removes the group."""

    def __init__(
        self,
        context: Context,
        sends: SendPath,
        others: OtherGroups,
        remainder: Remainder,
        take_over: Callable[[str], Awaitable[None]],
        on_changed: Callable[[], None],
    ) -> None:
        """`take_over(name)` adopts the definitions of a leaving group. `on_changed()` registers
        this broker again."""
        self._context = context
        self._state = context.state
        self._sends = sends
        self._others = others
        self._remainder = remainder
        self._take_over = take_over
        self._on_changed = on_changed
        self._counting: asyncio.Task[None] | None = None
        self.remaining = 0  # messages at the last count of a draining leader

    def service(self) -> Service:
        return Service(
            handlers={int(RequestCode.DRAIN_GROUP): self.handle},
            chores=[
                Chore("drain", CHECK_MS, self.check, lambda: self._rest_ms),
                Chore("drain_count", COUNT_MS, self._start_count, self._count_rest_ms),
            ],
            role_changed=self._role_changed,
            stop=self._stop,
        )

    def _role_changed(self, change: RoleChange) -> None:
        """Reject the sends of a closed group from the first moment of a leadership."""
        if change.began:
            self.check()

    @property
    def draining_s(self) -> float:
        """The time since the start of draining, or 0."""
        since_ms = self._state.group.draining_ms
        return max(0, self._context.wall_ms() - since_ms) / 1000 if since_ms else 0.0

    def _count_rest_ms(self) -> float:
        leads = self._context.roles.leading and not self._context.config.is_classic
        return 0 if (leads and self._draining) or self.remaining else IDLE_MS

    def _start_count(self) -> None:
        if self._counting is None or self._counting.done():
            self._counting = asyncio.get_running_loop().create_task(self._count())

    async def _count(self) -> None:
        """Count the remaining messages, beside the other chores."""
        if not (self._draining and self._context.roles.leading):
            self.remaining = 0
            return
        status = await self.status()
        self.remaining = status["remaining"]

    async def _stop(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.wait([self._counting])

    @property
    def _draining(self) -> bool:
        return self._state.group.draining_ms > 0

    @property
    def _rest_ms(self) -> float:
        settled = self._draining == self._sends.draining
        return IDLE_MS if settled and takes_sends(self._context) != self._sends.closed else 0

    def check(self) -> None:
        """Put a change of the state, or the end of the grace period, into effect."""
        draining = self._draining
        changed = draining != self._sends.draining
        self._sends.drain(draining=draining, closed=not takes_sends(self._context))
        if changed:
            self._remainder.forget_rate()
            log.warning("draining=%s", draining)
            self._context.events.publish("drain", {"draining": draining})
            self._on_changed()

    async def handle(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Serve DRAIN_GROUP (30010). Raises Refused, RaftError."""
        if text_or(request.ext, "op") == "forget":
            group_id, name = text(request.ext, "id"), text(request.ext, "name")
            await self._forget(group_id, name)
            return RemotingCommand.response_to(request, body=b"{}")
        ext = request.ext or {}
        options = DrainOptions(
            boolean_or(ext, "moveTimers", False),
            boolean_or(ext, "moveDeadLetters", False),
            text_or(ext, "to"),
            tuple(ext["givenUp"].split(",")) if ext.get("givenUp") else None,
        )
        lose = boolean_or(ext, "lose", False)
        value = await self.act(text_or(ext, "op") or "status", options, lose=lose)
        return RemotingCommand.response_to(request, body=dumps(value))

    async def act(
        self, op: str, options: DrainOptions | None = None, *, lose: bool = False
    ) -> dict[str, Any]:
        """Start or cancel draining, remove the group, or none of these; return the status. Raises
        Refused, RaftError."""
        if op not in ("start", "cancel", "remove", "status"):
            raise invalid(f"op {op!r} is not start, cancel, remove or status")
        if self._context.config.is_classic:
            raise invalid("only a Raft group can be drained")
        if op == "status":
            await self._context.log.barrier()
        elif op == "remove":
            await self._remove(lose=lose)
        elif self._state.group.removed:
            raise forbidden("the broker group is removed")
        else:
            await self._drain(options or DrainOptions(), on=op == "start")
        return await self.status()

    async def _drain(self, options: DrainOptions, *, on: bool) -> None:
        group = self._state.group
        for name in options.given_up or ():
            if name_problem("consumer group", name):
                raise invalid(f"givenUp: {name!r} is no name of a consumer group")
        if len(options.given_up or ()) > GIVEN_UP_MAX:
            raise invalid(f"givenUp: at most {GIVEN_UP_MAX} consumer groups")
        move = None
        moves = options.move_timers or options.move_dead_letters
        if options.to and not moves:
            raise invalid("to: add moveTimers or moveDeadLetters")
        if on and moves:
            name = options.to or group.moving.to
            move = {
                "to": await self._target(name),
                "timers": options.move_timers,
                "deadLetters": options.move_dead_letters,
            }
        await self._context.log.propose(drain(on=on, move=move, given_up=options.given_up))
        self.check()

    async def _target(self, required: str) -> str:
        """Return the group that messages move to: `required`, or the group with the fewest timer
        messages. Raises Refused without one that takes sends."""
        timers: dict[str, int] = {}
        reasons = []
        for name, address in (await self._others.leaders() or {}).items():
            if required in ("", name):
                try:
                    status = await self._others.drain_status(address)
                    if status["drainingMs"]:
                        reasons.append(f"{name} is draining")
                    else:
                        timers[name] = int(status["timers"])
                except (RemotingError, KeyError, TypeError, ValueError) as error:
                    reasons.append(f"{name}: {error}")
        if not timers:
            problem = "; ".join(reasons) or "no name server lists it"
            raise forbidden(f"messages cannot move to {required or 'another group'}: {problem}")
        return min(timers, key=lambda name: (timers[name], name))

    async def _remove(self, *, lose: bool) -> None:
        await self._context.log.barrier()
        if not self._draining:
            raise forbidden("the broker group is not draining")
        group_id = self._state.group.value
        if not group_id:
            raise busy("the broker group has no id yet")
        self.check()
        # An unchanged id is the barrier: all sends that were taken are before it in the log.
        await self._context.log.propose(unchanged_id(group_id))
        stored = await self._remainder.stored()
        status = await self.status()
        # A message may move during the count, for instance from a delay level to its topic.
        if status["isEmpty"] and await self._remainder.stored() != stored:
            raise busy("messages were stored during the count")
        if not status["isEmpty"]:
            if not lose:
                raise Refused(ResponseCode.NO_PERMISSION, status["remainder"], tag="NOT_EMPTY")
            log.warning("removed_with_content %s", status["remainder"])
        await self._report_removal(lose=lose)
        await self._context.log.propose(remove_group())
        log.warning("group_removed")
        self._on_changed()

    async def _report_removal(self, *, lose: bool) -> None:
        """Have another group record the removal; the others learn of it from that group. Raises
        Refused if none records it, except if no other group is listed and `lose`."""
        group_id = self._state.group.value.hex()
        leaders = await self._others.leaders()
        errors = ["no name server answers"] if leaders is None else []
        if leaders == {} and not lose:
            errors = ["no name server lists one; if this is the only group, lose removes it"]
        for name, address in (leaders or {}).items():
            try:
                await self._others.forget(address, group_id, self._context.config.broker_name)
            except RemotingError as error:
                errors.append(f"{name}: {error}")
        if errors and len(errors) >= len(leaders or {}):
            raise busy(f"no other group records the removal: {'; '.join(errors)}")

    async def _forget(self, group_id: str, name: str) -> None:
        """Record that another group was removed, after its definitions are adopted. Raises Refused,
        RaftError."""
        if not GROUP_ID.fullmatch(group_id) or name_problem("broker name", name):
            raise invalid("id or name is not that of a broker group")
        if group_id == self._state.group.value.hex():
            raise invalid("that is this broker group")
        if group_id not in self._state.group.removed_groups:
            if self._context.config.join_cluster and not self._draining:
                try:
                    await self._take_over(name)
                except RemotingError as error:
                    raise busy(f"the definitions of {name} are not adopted: {error}") from error
            await self._context.log.propose(forget_group(group_id, name))
            self._on_changed()

    async def status(self) -> dict[str, Any]:
        """Return the remaining content, in turns of the loop."""
        return await self._remainder.count()
