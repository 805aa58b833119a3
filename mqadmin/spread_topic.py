"""spreadTopic, which spreads a topic's queues evenly over the broker groups of a cluster
(docs/scaling.md).

Surplus queues are closed for writing, and taken away once every consumer group has consumed them.
Messages are not moved. A repeated command continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from raftmq.client.admin import Admin
from raftmq.client.admin.bodies import Progress, TopicOffset
from raftmq.client.errors import BrokerRefused
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
from .targets import cluster_groups, no_leader

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
    carries_out = not arguments.on("dryRun")
    share = shares(queues, leaders)
    after = opened(has, share)
    surplus = [name for name in after if after[name][READ_COUNT] > share[name]]
    if carries_out:
        # Queues are opened before others are closed.
        for name in sorted(after, key=lambda name: name in surplus):
            if after[name] != has[name]:
                await admin.topic.put(leaders[name], topic_header(topic, after[name]))
        await put_order(admin, topic, after)
        if surplus:
            await asyncio.sleep(arguments.number("wait") or 0)
    left: list[Row] = []
    for name, rows in (await _unconsumed(admin, topic, leaders, share, surplus)).items():
        kept = max(share[name], *(row["queue"] + 1 for row in rows), 0)
        smaller = resized(after[name], {READ_COUNT: kept})
        if carries_out and kept < after[name][READ_COUNT]:
            try:
                await admin.topic.put(leaders[name], topic_header(topic, smaller))
            except BrokerRefused as error:  # the broker's own check has the last word
                if NOT_CONSUMED not in error.remark:
                    raise
                rows.append({"broker": name, "queue": None, "messages": None, "groups": str(error)})
                smaller = after[name]
        after[name] = smaller
        left += rows
    done = Table([_row(name, has[name], after[name], share[name]) for name in after], "queues")
    return [done, Table(left, "not consumed", later=carries_out)] if left else [done]


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


async def _unconsumed(
    admin: Admin,
    topic: str,
    leaders: Mapping[str, str],
    share: Mapping[str, int],
    surplus: Sequence[str],
) -> dict[str, list[Row]]:
    """Return the unconsumed queues beyond the share by broker group. A consumer group counts in a
    broker group where it has an offset, which a broadcasting group has not."""
    stats: dict[str, Mapping[MessageQueue, Progress]] = {}
    result: dict[str, list[Row]] = {}
    for name in surplus:
        offsets = await admin.topic.offsets_at(leaders[name], topic)
        progress = {}
        for group in await admin.topic.groups(leaders[name], topic):
            if group not in stats:
                stats[group] = (await admin.group.stats(group, topic)).queues
            here = {queue: stats[group][queue] for queue in offsets if queue in stats[group]}
            if any([value.consumer_offset for value in here.values()]) or any(
                [await admin.offset.committed(group, queue) is not None for queue in here]
            ):
                progress[group] = here
        result[name] = list(unconsumed(offsets, progress, share[name]))
    return result


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
