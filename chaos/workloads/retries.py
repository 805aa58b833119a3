"""The workload `retries`: consumers that fail each message a drawn number of times, or always.

The number is drawn when a message is sent. Failed messages are sent back (36), recorded before and
after with the number of requests; hopeless messages become dead letters, which a second group
consumes. It needs a short messageDelayLevel (SETTINGS).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from raftmq.client import Admin, ClientError, ConsumerConfig, FailurePolicy, MessageExt
from raftmq.client.consumer.consume_service import ConcurrentDeliverer, Deliverer
from raftmq.client.consumer.push_consumer import PushConsumer
from raftmq.client.consumer.send_back import PATIENCE, SendBack
from raftmq.remoting.command import RemotingCommand

from ..history.files import HistoryWriter
from .consumers import ConsumerGroup, consumer_config
from .deferred import Deliveries, PostedConfig, Posting

RETRIES = PostedConfig(
    "retries", "ChaosRetries", "chaos-retries", rate_per_s=100.0, dead_letters=True
)
SETTINGS = {"messageDelayLevel": "1s 2s 3s"}
TIMES_MAX = 3  # then it is a dead letter
HOPELESS = 1_000
FAILURES = ((50, 0), (25, 1), (12, 2), (8, 3), (5, HOPELESS))  # out of a hundred, how often


class RecordedSendBack(SendBack):
    """Gives messages back as any consumer does, and records it."""

    def __init__(self, history: HistoryWriter, work: str, seen: Deliveries, *more: Any) -> None:
        super().__init__(*more)
        self._history = history
        self._work = work
        self._seen = seen
        self._tries: dict[int, int] = {}  # by the message's identity, while it is given back

    async def send(self, message: MessageExt, delay_level: int, reconsume_times_max: int) -> bool:
        op = self._history.next_op()
        seen = message.reconsume_times
        fields = {
            "work": self._work,
            "id": message.msg_id,
            "times": self._seen.times_of(message),
            "seen": seen,
            "dead": seen >= reconsume_times_max,
        }
        self._history.event("invoke", "give_back", "consumer", op, **fields)
        self._tries[id(message)] = 0
        taken = await super().send(message, delay_level, reconsume_times_max)
        tries = self._tries.pop(id(message))
        kind = "ok" if taken else "unknown"
        self._history.event(kind, "give_back", "consumer", op, **fields, tries=tries)
        return taken

    async def _ask(self, message: MessageExt, command: RemotingCommand) -> RemotingCommand | None:
        """Ask as the base class does, counting each request."""
        ext, body = dict(command.ext or {}), command.body

        def request() -> RemotingCommand:
            self._tries[id(message)] += 1
            return RemotingCommand.request(command.code, dict(ext), body)

        try:
            return await self._instance.invoke_leader(
                message.broker_name, request, leader_only=True, policy=PATIENCE
            )
        except ClientError:
            return None


class Retries:
    def __init__(self, posting: Posting) -> None:
        self._posting = posting
        self._failures: dict[str, int] = {}

    async def prepare(self, admin: Admin) -> None:
        """Create nothing more."""

    def consumers(self) -> ConsumerGroup:
        """Make consumers that give messages back as drawn."""
        posting = self._posting
        config, env = posting.config, posting.env
        seen = Deliveries(env.history, posting.name, config.group, posting.arrived, self._fails)

        class Recorded(PushConsumer):
            def _new_deliverer(self) -> Deliverer:
                back = RecordedSendBack(env.history, config.name, seen, self.group, self._instance)
                return ConcurrentDeliverer(
                    self._listener, back, self.config.failure, self._sent_back
                )

        return ConsumerGroup(
            env.namesrv, env.history, config.topic, config.group,
            listener=seen.listener, config=retries_config(), kind=Recorded,
        )  # fmt: skip

    async def evidence(self, deadline_s: float) -> None:
        """Record nothing, because the broker's own topics have no further evidence."""

    def _fails(self, name: str, times: int) -> bool:
        return times < self._failures.get(name, 0)

    async def producer(
        self, stack: AsyncExitStack, name: str, rng: random.Random
    ) -> Callable[[int], Awaitable[None]]:
        posting = self._posting
        producer = await posting.start_producer(stack)
        weights, counts = zip(*FAILURES, strict=True)

        async def one(number: int) -> None:
            op, key = posting.starts(name)
            (self._failures[key],) = rng.choices(counts, weights)
            message = posting.message(key, rng)
            await posting.send_awaited(producer, name, op, key, message)

        return one


def retries_config() -> ConsumerConfig:
    """Return a configuration that accepts or sends back one message at a time."""
    base = consumer_config()
    return replace(
        base,
        pull=replace(base.pull, consume_batch_size=1, consume_tasks=8),
        failure=FailurePolicy(max_reconsume_times=TIMES_MAX),
    )
