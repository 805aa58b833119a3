"""The workload `locks`: orderly consumers that work slowly, leave and rejoin.

It is like `group`, but consumers promise the order of each queue, and each piece of work is
recorded from start to end. A queue moves to a different consumer when a consumer leaves or rejoins,
or when the brokers' leader changes. Then two consumers could work on it at once. Further clients
request locks only (chaos.workloads.contention).
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace

from raftmq.client import MessageExt
from raftmq.client.consumer.consume_service import Listener

from ..history.files import HistoryWriter
from .base import Environment
from .consumers import ConsumerGroup, consumer_config
from .contention import Contention
from .load import MessagesConfig
from .log import Consumption
from .messages import Churn, MessagesWorkload

LOCKS = MessagesConfig(
    "locks", "ChaosLocks", "chaos-locks", producers=2, consumers=3, rate_per_s=200.0, keys=50,
    orderly=True,
)  # fmt: skip
BATCH = 8  # messages at once, so that there is always somebody at work
WORK_MS_MAX = 30.0
LONG_WORK_MS = 400.0
LONG_SHARE = 0.01


class Work:
    """Consumption that takes time, with each piece of work recorded."""

    def __init__(self, history: HistoryWriter, group: str, rng: random.Random) -> None:
        self._consumption = Consumption(history, group, orderly=True)
        self._history = history
        self._group = group
        self._rng = rng

    def listener(self, process: str) -> Listener:
        async def listen(messages: list[MessageExt]) -> None:
            began_ns = time.monotonic_ns()
            done = False
            try:
                await asyncio.sleep(self._pause_s())
                self._consumption.accept(process, messages)
                done = True
            finally:
                self._worked(process, messages, began_ns, done)

        return listen

    def _pause_s(self) -> float:
        if self._rng.random() < LONG_SHARE:
            return LONG_WORK_MS / 1000
        return self._rng.uniform(0, WORK_MS_MAX) / 1000

    def _worked(self, process: str, messages: list[MessageExt], began_ns: int, done: bool) -> None:
        first = messages[0]
        self._history.record(
            "work",
            process,
            group=self._group,
            topic=first.topic,
            broker=first.broker_name,
            queue=first.queue_id,
            began_ns=began_ns,
            first=first.queue_offset,
            last=messages[-1].queue_offset,
            done=done,
        )


def locks_workload(
    config: MessagesConfig = LOCKS, *, restart_every_s: float = 4.0
) -> MessagesWorkload:
    """Make the workload of orderly consumers under queue locks."""
    churn = Churn(restart_every_s=restart_every_s)
    return MessagesWorkload(config, make_group=_slow_group, churn=churn, contention=Contention())


def _slow_group(config: MessagesConfig, env: Environment) -> ConsumerGroup:
    base = consumer_config(orderly=True)
    work = Work(env.history, config.group, random.Random(env.rng.random()))
    return ConsumerGroup(
        env.namesrv, env.history, config.topic, config.group,
        listener=work.listener,
        config=replace(base, pull=replace(base.pull, consume_batch_size=BATCH)),
    )  # fmt: skip
