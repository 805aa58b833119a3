"""The consuming side of a run: join a group, know when it has consumed everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from chaos.cluster.clusterfile import ClusterError
from chaos.history.files import HistoryWriter
from chaos.run.observer import Observer, Watched
from chaos.workloads.log import Consumption
from client import CacheLimits, ConsumeFrom, ConsumerConfig, PullConfig, PushConsumer

COMMIT_INTERVAL_MS = 500
CONSUME_BATCH = 256
POLL_S = 0.1


async def join_group(
    stack: AsyncExitStack,
    namesrv: str,
    watched: Watched,
    names: Sequence[str],
    consumption: Consumption,
    timeout_s: float,
) -> list[PushConsumer]:
    """Start one consumer per name; return once the topic's queues are shared out among them.

    They leave the group when `stack` unwinds. Raises ClusterError after `timeout_s`.
    """
    config = ConsumerConfig(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        commit_interval_ms=COMMIT_INTERVAL_MS,
        confirm_commits=True,
        pull=PullConfig(consume_batch_size=CONSUME_BATCH, limits=CacheLimits(messages_max=4096)),
    )
    consumers = []
    for name in names:
        consumer = PushConsumer(
            watched.group,
            namesrv,
            consumption.listener(name),
            config=config,
            on_commit=consumption.committer(name, watched.group),
        )
        consumer.subscribe(watched.topic)
        consumers.append(await stack.enter_async_context(consumer))
    deadline = time.monotonic() + timeout_s
    while not shared_out(consumers, watched):
        if time.monotonic() > deadline:
            held = [len(consumer.queues) for consumer in consumers]
            raise ClusterError(f"the group did not share its queues in {timeout_s:g} s: {held}")
        await asyncio.sleep(POLL_S)
    return consumers


def shared_out(consumers: Sequence[PushConsumer], watched: Watched) -> bool:
    """Every queue of the topic has exactly one consumer, and none has nothing it should have."""
    held = [
        [queue.queue_id for queue in consumer.queues if queue.topic == watched.topic]
        for consumer in consumers
    ]
    everything = sorted(queue for queues in held for queue in queues)
    fair = min(len(queues) for queues in held) >= watched.queue_count // len(consumers)
    return everything == list(range(watched.queue_count)) and fair


async def drain(
    observer: Observer, watched: Watched, history: HistoryWriter, timeout_s: float
) -> bool:
    """Wait until the group has committed the end of every queue; write down whether it did."""
    deadline = time.monotonic() + timeout_s
    complete = False
    while not complete and time.monotonic() < deadline:
        complete = await observer.lag() == 0
        if not complete:
            await asyncio.sleep(POLL_S)
    history.event(
        "ok",
        "drain",
        "runner",
        history.next_op(),
        topic=watched.topic,
        group=watched.group,
        complete=complete,
    )
    return complete
