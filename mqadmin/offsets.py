"""Commands that reset a group's offsets.

resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset. A broker resets the offsets itself
(222), with or without consumers. Apache's brokers before 5.0 need connected consumers (206
CONSUMER_NOT_ONLINE); for them the command commits the offsets. If a broker group rejects the reset,
the remaining groups are still reset, and the answer lists the failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raftmq.client.admin import TO_END, Admin
from raftmq.client.admin.requests import at_each
from raftmq.client.errors import BrokerRefused, ClientError
from raftmq.client.message import MessageQueue
from raftmq.remoting.codes import ResponseCode

from .command import Arguments, CommandError, Done, Section, Table
from .targets import leaders_of


async def reset(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    queue_id, offset = arguments.integer("queue"), arguments.integer("offset")
    if offset is not None and (queue_id is None or not arguments.text("broker")):
        raise CommandError("-o OFFSET is of one queue: give -b BROKER and -q QUEUE", usage=True)
    timestamp_ms = arguments.integer("timestamp")
    assert timestamp_ms is not None  # required
    return await _move(admin, arguments, timestamp_ms, -1 if queue_id is None else queue_id, offset)


async def skip(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    return await _move(admin, arguments, TO_END, -1, None)


async def _move(
    admin: Admin, arguments: Arguments, timestamp_ms: int, queue_id: int, offset: int | None
) -> Sequence[Section]:
    group, topic = arguments.text("group"), arguments.text("topic")
    force = arguments.boolean("force")
    address = arguments.text("broker")
    if address:
        leaders = await admin.cluster.leaders_of(topic)
        leaders = {name: a for name, a in leaders.items() if address in (name, a)}
        if not leaders:
            raise CommandError(f"{address} leads no broker group that has topic {topic}")
    else:
        leaders = await leaders_of(admin, topic)

    async def move(name: str, leader: str) -> dict[MessageQueue, int]:
        try:
            return await admin.offset.reset(
                leader,
                group,
                topic,
                timestamp_ms,
                force=force is not False,
                queue_id=queue_id,
                offset=-1 if offset is None else offset,
            )
        except BrokerRefused as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            return await _commit(admin, group, topic, name, timestamp_ms, queue_id, offset)

    moved: dict[MessageQueue, int] = {}
    failed: dict[str, ClientError] = {}
    for name, leader in leaders.items():
        try:
            moved |= await move(name, leader)
        except ClientError as error:
            failed[name] = error
    if failed and len(failed) == len(leaders):
        raise max(failed.values(), key=lambda failure: failure.outcome_unknown)
    rows: list[dict[str, Any]] = [
        {"broker": q.broker_name, "queue": q.queue_id, "offset": o}
        for q, o in sorted(moved.items())
    ]
    for name, failure in failed.items():
        doubt = "it is unknown whether this was done: " if failure.outcome_unknown else ""
        rows.append({"broker": name, "queue": None, "offset": f"{doubt}{failure.message}"})
    unknown = any(failure.outcome_unknown for failure in failed.values())
    columns = ("broker", "queue", "offset")
    return [Table(rows, columns=columns, complete=not failed, unknown=unknown)]


async def _commit(
    admin: Admin,
    group: str,
    topic: str,
    broker_name: str,
    timestamp_ms: int,
    queue_id: int,
    offset: int | None,
) -> dict[MessageQueue, int]:
    """Commit the offsets at a broker for a group without consumers; return them."""
    moved = {}
    for queue in (await admin.cluster.route(topic)).read_queues(topic):
        if queue.broker_name != broker_name or queue_id not in (-1, queue.queue_id):
            continue
        if offset is not None:
            moved[queue] = offset
        elif timestamp_ms == TO_END:
            moved[queue] = await admin.offset.max(queue)
        else:
            moved[queue] = await admin.offset.search(queue, timestamp_ms)
        await admin.offset.commit(group, queue, moved[queue])
    return moved


async def clone(admin: Admin, arguments: Arguments) -> Sequence[Section]:
    source, target = arguments.text("srcGroup"), arguments.text("destGroup")
    topic = arguments.text("topic")
    leaders = await leaders_of(admin, topic)
    stats = await admin.group.stats(source, topic)
    if not stats.queues:
        raise CommandError(f"group {source} has committed nothing in topic {topic}")
    await at_each(
        leaders.values(), lambda address: admin.offset.clone(address, source, target, topic)
    )
    values = {"from": source, "to": target, "topic": topic}
    return [Done(f"group {target} has the offsets of {source} in {topic}", values)]
