"""spreadTopic, which spreads a topic's queues evenly over the broker groups of a cluster
(docs/scaling.md).

Surplus queues are closed for writing, and taken away once every consumer group has consumed them.
Messages are not moved. A repeated command continues.

An ordered topic is closed for writing in all groups until its queues are consumed and clients have
the new route. So a key is never in two queues at once. If the queues are not consumed in time, or
after an error or Ctrl-C, the old queues are opened again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raftmq.client.admin import Admin
from raftmq.client.admin.bodies import Progress, TopicOffset
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.message import MessageQueue
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.definitions import (
    CHANGED,
    MADE,
    ORDERED,
    READ_COUNT,
    THERE,
    WRITE_COUNT,
    Bean,
    Has,
    is_ordered,
    largest_of,
    resized,
    types_of,
)

from .command import Arguments, CommandError, Section, Table
from .definitions import put_order, topic_header
from .targets import cluster_groups, leader_of, no_leader
from .terminal import Terminal

POLL_S = 1.0
WRITE = 2
NOT_CONSUMED = "[NOT_CONSUMED]"  # a broker's reason for keeping queues

Row = dict[str, Any]


async def spread_topic(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    topic, queues = arguments.text("topic"), arguments.integer("queues") or 0
    info = await admin.cluster.info()
    leaders, without = await cluster_groups(admin, info, arguments.text("cluster"))
    if without:
        raise CommandError(no_leader(without))
    if queues < len(leaders):
        text = f"--queues {queues}: each of the {len(leaders)} broker groups gets a queue"
        raise CommandError(text, usage=True)
    has = {broker: await _config(admin, address, topic) for broker, address in leaders.items()}
    if not any(has.values()):
        raise CommandError(f"no broker group of the cluster has topic {topic}")
    if why := types_of(has):
        raise CommandError(f"topic {topic}: {why}")
    if is_ordered(has) and not arguments.on("withOrdered"):
        raise CommandError(f"topic {topic}: {ORDERED}")
    share = shares(queues, leaders)
    wait_s = arguments.number("wait") or 0
    work = Work(admin, topic, share)
    is_closed = any(bean and not bean["perm"] & WRITE for bean in has.values())
    if arguments.on("dryRun"):
        after, left = await work.spread(has, None)
    elif is_ordered(has) and (is_closed or opened(has, share) != has):
        after, left = await work.spread_ordered(has, wait_s, arguments.number("within") or 0)
    else:
        after, left = await work.spread(has, wait_s)
    done = Table([_row(name, has[name], after[name], share[name]) for name in after], "queues")
    later = not arguments.on("dryRun")
    return [done, Table(left, "not consumed", later=later)] if left else [done]


@dataclass(frozen=True, slots=True)
class Work:
    """The spread of a topic over broker groups."""

    admin: Admin
    topic: str
    share: Mapping[str, int]

    async def put(self, name: str, bean: Bean) -> None:
        address = await leader_of(self.admin, name)  # it may change while the command waits
        await self.admin.topic.put(address, topic_header(self.topic, bean))

    async def spread(self, has: Has, wait_s: float | None) -> tuple[dict[str, Bean], list[Row]]:
        """Return the topic in each group, and its unconsumed surplus queues. Only plan this if
        `wait_s` is None."""
        share = self.share
        after = opened(has, share)
        surplus = [name for name in after if after[name][READ_COUNT] > share[name]]
        if wait_s is not None:
            # Queues are opened before others are closed.
            for name in sorted(after, key=lambda name: name in surplus):
                if after[name] != has[name]:
                    await self.put(name, after[name])
            await put_order(self.admin, self.topic, after)
            if surplus:
                await asyncio.sleep(wait_s)
        left: list[Row] = []
        first = {name: share[name] for name in surplus}
        for name, rows in (await self.unconsumed(first)).items():
            kept = max(share[name], *(row["queue"] + 1 for row in rows), 0)
            smaller = resized(after[name], {READ_COUNT: kept})
            if wait_s is not None and kept < after[name][READ_COUNT]:
                try:
                    await self.put(name, smaller)
                except BrokerRefused as error:  # the broker's own check has the last word
                    if NOT_CONSUMED not in error.remark:
                        raise
                    rows.append(
                        {"broker": name, "queue": None, "messages": None, "groups": str(error)}
                    )
                    smaller = after[name]
            after[name] = smaller
            left += rows
        return after, left

    async def spread_ordered(
        self, has: Has, wait_s: float, within_s: float
    ) -> tuple[dict[str, Bean], list[Row]]:
        """Close the topic, await its consumption for `within_s`, spread it, and open it. Clients
        have `wait_s` to read each route. After an error the old queues are opened again. Raises
        CommandError."""
        terminal = Terminal()
        closed = {
            name: bean and resized(bean, {"perm": bean["perm"] & ~WRITE})
            for name, bean in has.items()
        }
        try:
            for name, bean in closed.items():
                if bean is not None:
                    await self.put(name, bean)
            terminal.say(f"{self.topic} is closed for writing until its queues are consumed")
            await asyncio.sleep(wait_s)
            await self.until_consumed(has, within_s, terminal)
            after, left = await self.spread(closed, 0)
            await asyncio.sleep(wait_s)
        except BaseException:
            await self.restore(has, terminal)
            raise
        for name in after:
            after[name] = resized(after[name], {"perm": after[name]["perm"] | WRITE})
            await self.put(name, after[name])
        return after, left

    async def restore(self, has: Has, terminal: Terminal) -> None:
        """Give each group its old queues and permission."""
        for name, bean in has.items():
            try:
                if bean is not None:
                    await self.put(name, resized(bean, {}))
            except (ClientError, CommandError) as error:
                terminal.say(f"{name}: {self.topic} may be closed ({error}): updateTopicPerm -p 6")
        await put_order(self.admin, self.topic, has)
        terminal.say(f"{self.topic} has its old queues again")

    async def until_consumed(self, has: Has, within_s: float, terminal: Terminal) -> None:
        """Return once all queues are consumed. Raises CommandError after `within_s`."""
        first = {name: 0 for name, bean in has.items() if bean is not None}
        deadline = time.monotonic() + within_s
        said = ""
        while True:
            try:
                rows = [row for rows in (await self.unconsumed(first)).values() for row in rows]
                if not rows:
                    return
                groups = sorted({group for row in rows for group in row["groups"]})
                text = f"{sum(row['messages'] for row in rows)} messages are not consumed"
                text += f" by {', '.join(groups)}" if groups else " by any consumer group"
            except ClientError as error:
                text = str(error)
            if time.monotonic() >= deadline:
                raise CommandError(f"topic {self.topic}: {text} after {within_s:g} s")
            if text != said:
                terminal.say(said := text)
            await asyncio.sleep(POLL_S)

    async def unconsumed(self, first: Mapping[str, int]) -> dict[str, list[Row]]:
        """Return the unconsumed queues from `first` on by broker group. A consumer group counts in
        a broker group where it has an offset, which a broadcasting group has not."""
        admin, topic = self.admin, self.topic
        stats: dict[str, Mapping[MessageQueue, Progress]] = {}
        result: dict[str, list[Row]] = {}
        for name, number in first.items():
            address = await leader_of(admin, name)
            offsets = await admin.topic.offsets_at(address, topic)
            progress = {}
            for group in await admin.topic.groups(address, topic):
                if group not in stats:
                    stats[group] = (await admin.group.stats(group, topic)).queues
                here = {queue: stats[group][queue] for queue in offsets if queue in stats[group]}
                if any([value.consumer_offset for value in here.values()]) or any(
                    [await admin.offset.committed(group, queue) is not None for queue in here]
                ):
                    progress[group] = here
            result[name] = list(unconsumed(offsets, progress, number))
        return result


def shares(queues: int, brokers: Collection[str]) -> dict[str, int]:
    """Return the number of queues of each broker group. The first by name get the remainder."""
    least, more = divmod(queues, len(brokers))
    return {name: least + (number < more) for number, name in enumerate(sorted(brokers))}


def opened(has: Has, share: Mapping[str, int]) -> dict[str, Bean]:
    """Return the topic in each broker group with its share of queues for writing. No queue is taken
    away from readers."""
    largest = largest_of(has)

    def after(bean: Bean | None, count: int) -> Bean:
        if bean is None:
            return {**largest, READ_COUNT: count, WRITE_COUNT: count}
        counts = {READ_COUNT: max(bean[READ_COUNT], count), WRITE_COUNT: count}
        return bean if counts.items() <= bean.items() else resized(bean, counts)

    return {name: after(bean, share[name]) for name, bean in has.items()}


def unconsumed(
    offsets: Mapping[MessageQueue, TopicOffset],
    progress: Mapping[str, Mapping[MessageQueue, Progress]],
    first: int,
) -> Iterator[Row]:
    """Yield the queues from `first` on with messages that a consumer group has not consumed, or
    that nobody has. `progress` is by consumer group."""
    for queue, offset in sorted(offsets.items()):
        if queue.queue_id < first:
            continue
        stored = offset.max_offset - offset.min_offset
        behind = {
            group: min(stored, queues[queue].behind)
            for group, queues in sorted(progress.items())
            if queue in queues
        }
        if messages := max(behind.values()) if behind else stored:
            groups = [group for group, count in behind.items() if count]
            row = {"broker": queue.broker_name, "queue": queue.queue_id}
            yield row | {"messages": messages, "groups": groups}


async def _config(admin: Admin, address: str, topic: str) -> Bean | None:
    try:
        return await admin.topic.config(address, topic)
    except BrokerRefused as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return None


def _row(broker: str, before: Bean | None, after: Bean, share: int) -> Row:
    outcome = MADE if before is None else CHANGED if _counts(before) != _counts(after) else THERE
    closed = range(share, after[READ_COUNT])
    why = f"queues {closed[0]} to {closed[-1]} are closed for writing" if closed else ""
    row = {"broker": broker, "before": _counts(before), "after": _counts(after)}
    return row | {"outcome": outcome, "why": why}


def _counts(bean: Bean | None) -> str:
    return f"{bean[READ_COUNT]}/{bean[WRITE_COUNT]}" if bean else ""
