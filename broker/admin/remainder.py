"""The remaining content of a draining broker group, counted for operators and for its removal.

The counts are JSON:

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
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from raftmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX, is_brokers_own
from raftmq.store.dispatch import SCHEDULE_TOPIC, TIMER_TOPIC

from ..clients import ClientTable
from ..context import Context
from ..delayed.moves import Moves
from ..delayed.timers import TimerService
from ..messages.half_message import HALF_TOPIC
from ..transactions.service import Halves
from .progress import Steps, queue_ends, stored_ms

ROWS_MAX = 1_000
RATE_S = 300.0  # a pause of consumers of a few minutes is not the end of the estimate
RATE_STEP_S = 5.0  # between two counts that are kept


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


def takes_sends(context: Context) -> bool:
    """Return whether the group is not draining, or in the grace period of its draining."""
    draining_ms = context.state.group.draining_ms
    return not draining_ms or context.wall_ms() - draining_ms < context.config.drain_grace_ms


class Remainder:
    """Counts what this replica has left."""

    def __init__(
        self,
        context: Context,
        clients: ClientTable,
        timers: TimerService,
        halves: Halves,
        moves: Moves,
    ) -> None:
        self._context = context
        self._state = context.state
        self._clients = clients
        self._timers = timers
        self._halves = halves
        self._moves = moves
        self._rate = ConsumptionRate()

    def forget_rate(self) -> None:
        """Estimate by later counts only."""
        self._rate.clear()

    async def stored(self) -> int:
        """Return the number of messages that were ever stored in all queues."""
        steps, count = Steps(), 0
        for queue in list(self._context.store.queues.queues()):
            count += queue.max_offset
            await steps.done()
        return count

    async def count(self) -> dict[str, Any]:
        """Return the remaining content, in turns of the loop."""
        state, moving = self._state, self._state.group.moving
        steps = Steps()
        rows = await self._unconsumed(steps)
        delayed, latest_ms = await self._delayed(steps)
        dead_letters = 0
        for name in list(state.topics.entries):
            if name.startswith(DLQ_PREFIX):
                for queue_id, (low, high) in enumerate(await self._ends(name, steps)):
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
        is_open = takes_sends(self._context)
        book, halves_end = self._halves.book, self._context.store.queues.end_of(HALF_TOPIC, 0)
        known = book is not None and book.half_next >= halves_end and self._timers.is_read
        value: dict[str, Any] = {
            "brokerName": self._context.config.broker_name,
            "removed": state.group.removed,
            "drainingMs": state.group.draining_ms,
            "takesSends": is_open,
            "isEmpty": state.group.draining_ms > 0 and not is_open and known and not remaining,
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
        if not self._state.group.draining_ms:
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
            ends = await self._ends(name, steps)
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
                row["sinceMs"] = await self._oldest_ms(row["topic"], row["group"], steps)
            await steps.done()
        return rows

    async def _oldest_ms(self, topic: str, group: str, steps: Steps) -> int | None:
        """Return the store time of the oldest message that a group has not consumed."""
        times = []
        for queue_id, (low, high) in enumerate(await self._ends(topic, steps)):
            position, in_flight = self._state.progress(topic, group, queue_id)
            offset = max(low, (position or 0) - in_flight)
            if offset < high:
                times.append(stored_ms(self._context.store, topic, queue_id, offset))
            await steps.done()
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

    async def _ends(self, topic: str, steps: Steps) -> list[tuple[int, int]]:
        """Return the minimum and maximum offset of each queue."""
        config, ends = self._state.topics.get(topic), []
        for queue_id in range(0 if config is None else config.queue_count):
            ends.append(queue_ends(self._context.store, topic, queue_id))
            await steps.done()
        return ends


def _remainder(
    status: dict[str, Any], rows: Sequence[dict[str, Any]], waiting: Mapping[str, int]
) -> str:
    """Return the remaining content as a sentence."""
    parts = [
        f"{row['messages']} of {row['topic']} for {row['group'] or 'no group'}" for row in rows[:3]
    ]
    if len(rows) > len(parts):
        parts.append(f"{len(rows) - len(parts)} more topics and groups")
    parts += [
        f"{count} {'being moved' if kind == 'inMove' else kind}"
        for kind, count in waiting.items()
        if count
    ]
    if status["takesSends"]:
        parts.append("sends of clients with an older route")
    return f"the broker group still has: {', '.join(parts) or 'content that is not counted yet'}"
