"""Asks brokers for messages that consumer groups have not consumed for some time.

A message at or above a group's offset in its queue is not consumed. So a queue's first offset of
the last N minutes and the group's offset are all that is needed, and nothing is kept by message.
Unacknowledged pops count as not consumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from raftmq.client.admin.admin import Admin
from raftmq.client.errors import BrokerUnreachable, ClientError
from raftmq.remoting.errors import RemotingError
from raftmq.spark.cluster import instance_config
from raftmq.spark.options import Connection


class Unconsumed(NamedTuple):
    """A queue with `messages` that its group has not consumed for too long."""

    consumer_group: str
    topic: str
    broker: str
    queue_id: int
    queue_offset: int  # the group's
    messages: int

    @property
    def queue(self) -> tuple[str, str, str, int]:
        return self[:4]


def unconsumed_by(
    connection: Connection, groups: Sequence[str], before_ms: int, known: Sequence[Unconsumed]
) -> tuple[list[Unconsumed], Exception | None]:
    """Return the queues with messages stored before a time that a group has not consumed. For
    brokers that do not answer, return what is `known`, and an error."""
    return asyncio.run(_unconsumed_by(connection, groups, before_ms, known))


async def _unconsumed_by(
    connection: Connection, groups: Sequence[str], before_ms: int, known: Sequence[Unconsumed]
) -> tuple[list[Unconsumed], Exception | None]:
    result: list[Unconsumed] = []
    failure: Exception | None = None
    async with Admin(connection.namesrv, instance_config=instance_config(connection)) as admin:
        for group in groups:
            before = [each for each in known if each.consumer_group == group]
            try:
                lagging, away = await _of_group(admin, group, before_ms)
            except (ClientError, RemotingError) as error:
                result, failure = result + before, error
                continue
            result += lagging
            if away:
                result += [each for each in before if each.broker in away]
                failure = BrokerUnreachable(f"no leader of {', '.join(away)}")
    return result, failure


async def _of_group(
    admin: Admin, group: str, before_ms: int
) -> tuple[list[Unconsumed], tuple[str, ...]]:
    """Return the queues, and the broker groups without a leader. Raises ClientError."""
    stats = await admin.group.stats(group)
    result = []
    for queue, progress in sorted(stats.queues.items()):
        if progress.behind and progress.last_ms < before_ms:
            end = min(await admin.offset.search(queue, before_ms), progress.broker_offset)
            if (messages := end - progress.consumer_offset) > 0:
                result.append(Unconsumed(group, *queue, progress.consumer_offset, messages))
    return result, stats.headless
