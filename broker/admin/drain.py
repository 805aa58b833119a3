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

The response is JSON:

    {"brokerName":name,"drainingMs":since,"takesSends":bool,"isEmpty":bool,"removed":bool,
     "unconsumed":[{"topic":t,"group":g,"messages":n,"members":n,"sinceMs":ms|null,"givenUp":bool},…],
     "delayed":n,"timers":n,"latestDueMs":ms|null,"transactions":n,"popped":n,"inMove":n,
     "remaining":n,"writers":n,"idempotent":n,"deadLetters":n,"emptyAtMs":ms|null,
     "remainder":sentence,
     "move":{"to":name|"","timers":bool,"deadLetters":bool,"movedTimers":n,"movedDeadLetters":n,
             "problem":text}}

`unconsumed` has a row per topic and consumer group, largest first, at most ROWS_MAX. A topic
without any group has a row with an empty group. `members` are the group's connected consumers;
without any, `sinceMs` is the store time of its oldest unconsumed message. `remaining` sums all rows
of groups that are not given up, and the counts up to it. `inMove` are messages of an open window,
and the dead letters that are still to be moved. `emptyAtMs` is an estimate by the rate of
consumption in the last RATE_S, the latest due time and the grace period; null without a rate. Dead
letters, writers and idempotent sends end with the group, but do not keep it from being empty.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fast_json import dumps
from raftmq.remoting.fields import boolean_or, text, text_or
from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, is_brokers_own, name_problem
from raftmq.remoting.registration import GROUP_ID
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC

from ..clients import ClientTable
from ..cluster.other_groups import OtherGroups
from ..component import RoleChange, Service
from ..context import Context
from ..delayed.moves import Moves
from ..delayed.timers import TimerService
from ..errors import Refused, busy, forbidden, invalid
from ..scheduler import IDLE_MS, Chore
from ..send.service import SendPath
from ..tables.broker_group import drain, forget_group, remove_group
from ..tables.broker_group import group_id as unchanged_id
from ..transactions.service import Halves
from .progress import Steps, queue_ends, stored_ms

CHECK_MS = 100
COUNT_MS = 30_000  # between two counts for the metrics
ROWS_MAX = 1_000
GIVEN_UP_MAX = 1_000
KINDS = {
    "delayed": "delayed",
    "timers": "timers",
    "transactions": "transactions",
    "popped": "popped",
    "inMove": "being moved",
}
RATE_S = 300.0  # a pause of consumers of a few minutes is not the end of the estimate
RATE_STEP_S = 5.0  # between two counts that are kept
log = logging.getLogger("raftmq.broker.cluster")


class ConsumptionRate:
    """The decrease of the unconsumed messages in the last RATE_S, from counts."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()  # time in s, messages

    def left_s(self, now_s: float, messages: int) -> float | None:
        """Take a count. Return the time until no message is left, None if there is no decrease."""
        counts = self._counts
        while counts and counts[0][0] < now_s - RATE_S:
            counts.popleft()
        if not counts or counts[-1][0] <= now_s - RATE_STEP_S:
            counts.append((now_s, messages))
        then_s, before = counts[0]
        if not messages:
            return 0.0
        return messages * (now_s - then_s) / (before - messages) if before > messages else None

    def clear(self) -> None:
        self._counts.clear()


class DrainOptions(NamedTuple):
    """The options of a start. `given_up` None leaves these consumer groups as they are."""

    move_timers: bool = False
    move_dead_letters: bool = False
    to: str = ""
    given_up: tuple[str, ...] | None = None


class Drain:
    """Puts the replicated state into effect on this replica, and counts the remaining content."""

    def __init__(
        self,
        context: Context,
        sends: SendPath,
        clients: ClientTable,
        timers: TimerService,
        halves: Halves,
        others: OtherGroups,
        moves: Moves,
        take_over: Callable[[str], Awaitable[None]],
        on_changed: Callable[[], None],
    ) -> None:
        """`take_over(name)` adopts the definitions of a leaving group. `on_changed()` registers
        this broker again."""
        self._context = context
        self._state = context.state
        self._sends = sends
        self._clients = clients
        self._timers = timers
        self._halves = halves
        self._others = others
        self._moves = moves
        self._take_over = take_over
        self._on_changed = on_changed
        self._counting: asyncio.Task[None] | None = None
        self._rate = ConsumptionRate()
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
    def _takes_sends(self) -> bool:
        since_ms = self._context.wall_ms() - self._state.group.draining_ms
        return not self._draining or since_ms < self._context.config.drain_grace_ms

    @property
    def _rest_ms(self) -> float:
        settled = self._draining == self._sends.draining
        return IDLE_MS if settled and self._takes_sends != self._sends.closed else 0

    def check(self) -> None:
        """Put a change of the state, or the end of the grace period, into effect."""
        draining = self._draining
        changed = draining != self._sends.draining
        self._sends.drain(draining=draining, closed=not self._takes_sends)
        if changed:
            self._rate.clear()
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
        if on and (options.move_timers or options.move_dead_letters):
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
        stored = await self._stored()
        status = await self.status()
        # A message may move during the count, for instance from a delay level to its topic.
        if status["isEmpty"] and await self._stored() != stored:
            raise busy("messages were stored during the count")
        if not status["isEmpty"]:
            if not lose:
                raise Refused(ResponseCode.NO_PERMISSION, status["remainder"], tag="NOT_EMPTY")
            log.warning("removed_with_content %s", status["remainder"])
        await self._report_removal()
        await self._context.log.propose(remove_group())
        log.warning("group_removed")
        self._on_changed()

    async def _report_removal(self) -> None:
        """Have another group record the removal; the others learn of it from that group. Raises
        Refused if there are groups and none records it."""
        group_id = self._state.group.value.hex()
        leaders = await self._others.leaders()
        errors = ["no name server answers"] if leaders is None else []
        for name, address in (leaders or {}).items():
            try:
                await self._others.forget(address, group_id, self._context.config.broker_name)
            except RemotingError as error:
                errors.append(f"{name}: {error}")
        if errors and len(errors) >= len(leaders or {}):
            raise busy(f"no other group records the removal: {'; '.join(errors)}")

    async def _stored(self) -> int:
        """Return the number of messages that were ever stored in all queues."""
        steps, count = Steps(), 0
        for queue in list(self._context.store.queues.queues()):
            count += queue.max_offset
            await steps.done()
        return count

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
        state, moving = self._state, self._state.group.moving
        steps = Steps()
        rows = await self._unconsumed(steps)
        delayed, latest_ms = await self._delayed(steps)
        dead_letters = 0
        for name in list(state.topics.entries):
            if name.startswith(DLQ_PREFIX):
                for queue_id, (low, high) in enumerate(self._ends(name)):
                    dead_letters += high - max(low, self._moves.moved_before(name, queue_id))
            await steps.done()
        latest = max(filter(None, (latest_ms, self._timers.wheel.last_due_ms)), default=None)
        popped = 0
        for (_, group, _), queue in list(state.pops.all_queues()):
            popped += 0 if group in state.group.given_up else queue.in_flight
            await steps.done()
        waiting = {
            "delayed": delayed,
            "timers": self._timers.wheel.count,
            "transactions": self._halves.open_count,
            "popped": popped,
            "inMove": self._moves.open_count + (dead_letters if moving.dead_letters else 0),
        }
        rows_left = [row for row in rows if not row["givenUp"]]
        remaining = sum(row["messages"] for row in rows_left) + sum(waiting.values())
        known = self._halves.book is not None and self._timers.is_read
        value: dict[str, Any] = {
            "brokerName": self._context.config.broker_name,
            "removed": state.group.removed,
            "drainingMs": state.group.draining_ms,
            "takesSends": self._takes_sends,
            "isEmpty": self._draining and not self._takes_sends and known and not remaining,
            "unconsumed": rows[:ROWS_MAX],
            **waiting,
            "remaining": remaining,
            "latestDueMs": latest,
            "writers": sum(topic != TIMER_TOPIC for topic, _ in state.writers.writers),
            "idempotent": len(state.once.sent),
            "deadLetters": dead_letters,
            "emptyAtMs": self._empty_at_ms(sum(row["messages"] for row in rows_left), latest),
            "move": {
                "to": moving.to,
                "timers": moving.timers,
                "deadLetters": moving.dead_letters,
                "movedTimers": moving.moved_timers,
                "movedDeadLetters": moving.moved_dead_letters,
                "problem": self._moves.problem,
            },
        }
        value["remainder"] = "" if value["isEmpty"] else _remainder(value, rows_left, waiting)
        return value

    def _empty_at_ms(self, unconsumed: int, latest_due_ms: int | None) -> int | None:
        if not self._draining:
            return None
        left_s = self._rate.left_s(asyncio.get_running_loop().time(), unconsumed)
        if left_s is None:
            return None
        grace_end_ms = self._state.group.draining_ms + self._context.config.drain_grace_ms
        consumed_ms = self._context.wall_ms() + round(left_s * 1000)
        due_ms = 0 if self._state.group.moving.timers else latest_due_ms or 0
        return max(consumed_ms, grace_end_ms, due_ms)

    async def _unconsumed(self, steps: Steps) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for name in list(self._state.topics.entries):
            await steps.done()
            if is_brokers_own(name) and not name.startswith(RETRY_PREFIX):
                continue
            ends = self._ends(name)
            if all(low == high for low, high in ends):
                continue
            for group in self._groups_of(name) or [""]:
                count = 0
                for queue_id, (low, high) in enumerate(ends):
                    position, in_flight = self._state.progress(name, group, queue_id)
                    count += max(0, high - max(low, (position or 0) - in_flight))
                    await steps.done()
                if count:
                    rows.append({"topic": name, "group": group, "messages": count})
        rows.sort(key=lambda row: (-row["messages"], row["topic"], row["group"]))
        for at, row in enumerate(rows):
            online = self._clients.consumers.get(row["group"])
            row["members"] = 0 if online is None else len(online.members)
            row["givenUp"] = row["group"] in self._state.group.given_up
            row["sinceMs"] = None
            if at < ROWS_MAX and row["group"] and not row["members"]:
                row["sinceMs"] = self._oldest_ms(row["topic"], row["group"])
            await steps.done()
        return rows

    def _oldest_ms(self, topic: str, group: str) -> int | None:
        """Return the store time of the oldest message that a group has not consumed."""
        times = []
        for queue_id, (low, high) in enumerate(self._ends(topic)):
            position, in_flight = self._state.progress(topic, group, queue_id)
            offset = max(low, (position or 0) - in_flight)
            if offset < high:
                times.append(stored_ms(self._context.store, topic, queue_id, offset))
        return min(filter(None, times), default=None)

    def _groups_of(self, topic: str) -> list[str]:
        """Return the consumer groups that read the topic."""
        groups = set(self._state.offsets.groups_of(topic))
        group = topic.removeprefix(RETRY_PREFIX)
        if group != topic and group in self._state.groups.entries:
            groups.add(group)
        for name, online in self._clients.consumers.items():
            if topic in online.subscriptions and not online.is_broadcasting:
                groups.add(name)
        return sorted(groups)

    async def _delayed(self, steps: Steps) -> tuple[int, int | None]:
        """Return the number of waiting delayed messages, and the latest due time."""
        count, latest_ms = 0, None
        for queue_id, delay_ms in enumerate(self._context.config.delay_levels_ms):
            await steps.done()
            queue = self._context.store.queues.queue(SCHEDULE_TOPIC, queue_id)
            waiting = 0 if queue is None else queue.max_offset
            waiting -= self._state.delays.get(queue_id + 1)
            if queue is None or waiting <= 0:
                continue
            count += waiting
            newest_ms = stored_ms(
                self._context.store, SCHEDULE_TOPIC, queue_id, queue.max_offset - 1
            )
            latest_ms = max(latest_ms or 0, newest_ms + delay_ms)
        return count, latest_ms

    def _ends(self, topic: str) -> list[tuple[int, int]]:
        """Return the minimum and maximum offset of each queue."""
        config = self._state.topics.get(topic)
        count = 0 if config is None else config.queue_count
        return [queue_ends(self._context.store, topic, queue_id) for queue_id in range(count)]


def _remainder(
    status: dict[str, Any], rows: Sequence[dict[str, Any]], waiting: Mapping[str, int]
) -> str:
    """Return the remaining content as a sentence."""
    parts = [
        f"{row['messages']} of {row['topic']} for {row['group'] or 'no group'}" for row in rows[:3]
    ]
    if len(rows) > len(parts):
        parts.append(f"{len(rows) - len(parts)} more topics and groups")
    parts += [f"{count} {KINDS[kind]}" for kind, count in waiting.items() if count]
    if status["takesSends"]:
        parts.append("sends of clients with an older route")
    return f"the broker group still has: {', '.join(parts) or 'content that is not counted yet'}"
