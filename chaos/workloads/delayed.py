"""The workload `delayed`: messages of the shortest delay levels, consumed by one group.

At the end the broker's own topic of waiting messages is read for the times at which they were
stored there. Wants a short messageDelayLevel (SETTINGS); levels above DELAY_MS_MAX are not used.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from chaos.cluster.clusterfile import ClusterError
from chaos.history.events import Outcome
from chaos.workloads.posted import PostedConfig, PostedWorkload, Scanner
from client import Admin, ClientError, Message, MessageQueue, Producer, PullConsumer

DELAYED = PostedConfig("delayed", "ChaosDelayed", "chaos-delayed")
SETTINGS = {"messageDelayLevel": "1s 2s 3s"}
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAY_MS_MAX = 10_000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DelayedWorkload(PostedWorkload):
    """See the module."""

    def __init__(self, config: PostedConfig = DELAYED) -> None:
        super().__init__(config)
        self.levels: dict[int, int] = {}  # level → ms, of those that are used
        self._known: set[str] = set()

    async def _prepare(self, admin: Admin) -> None:
        """Which levels the brokers have."""
        for broker in (await admin.cluster_info()).brokers.values():
            for address in broker.addresses.values():
                text = (await admin.broker_config(address))["messageDelayLevel"]
                self.levels = {
                    level: ms for level, ms in delay_levels(text).items() if ms <= DELAY_MS_MAX
                }
        if not self.levels:
            raise ClusterError(f"no broker has delay levels of at most {DELAY_MS_MAX} ms")

    async def _producer(
        self, stack: AsyncExitStack, name: str, rng: random.Random
    ) -> Callable[[int], Awaitable[None]]:
        producer = Producer(f"{self.config.group}-producers", self.env.namesrv)
        await stack.enter_async_context(producer)
        levels = sorted(self.levels)

        async def one(number: int) -> None:
            level = rng.choice(levels)
            delay_ms = self.levels[level]
            op, key = self._post_begins(name, delay_ms)
            self._known.add(key)
            self.awaited.add(key)
            body = self._body(key, rng)
            message = Message(self.config.topic, body, keys=key, delay_level=level, unique_key=key)
            try:
                result = await producer.send(message)
            except ClientError as error:
                self.awaited.discard(key)
                self._post_ends(name, op, key, error, delay_ms)
                return
            if self._post_ends(name, op, key, result, delay_ms) is not Outcome.OK:
                self.awaited.discard(key)

        return one

    async def _evidence(self, deadline_s: float) -> None:
        """When each message began to wait. What retention took is not known."""
        records = 0
        brokers = sorted({queue.broker_name for queue in self.queues})
        async with PullConsumer(f"{self.config.group}-scanner", self.env.namesrv) as consumer:
            await consumer.queues(self.config.topic)
            scanner = Scanner(consumer)
            for broker in brokers:
                for level in self.levels:
                    queue = MessageQueue(SCHEDULE_TOPIC, broker, level - 1)
                    for message in await scanner.read(queue):
                        records += 1
                        if message.msg_id in self._known:
                            self._write_stored(message)
        self._write_scanned(records)


def delay_levels(text: str) -> dict[int, int]:
    """messageDelayLevel → level → ms. Raises ClusterError for what is none."""
    levels = {}
    for level, word in enumerate(text.split(), 1):
        found = re.fullmatch(r"(\d+)(ms|s|m|h|d)", word)
        if found is None:
            raise ClusterError(f"messageDelayLevel {text!r} has {word!r}")
        levels[level] = int(found[1]) * _UNITS_MS[found[2]]
    return levels
