"""The workload `delayed`: delay levels, and timer messages of up to TIMER_MS_MAX.

At the end it reads the broker's own topics for the times at which messages started to wait. For a
delay level that is the store time, for a timer message the end of its slot (TIMER_OUT_MS) minus its
delay. It needs a short messageDelayLevel (SETTINGS); levels above DELAY_MS_MAX are not used.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

from raftmq.client import Admin, MessageExt, MessageQueue

from ..cluster.clusterfile import ClusterError
from .deferred import PostedConfig, Posting

DELAYED = PostedConfig("delayed", "ChaosDelayed", "chaos-delayed")
SETTINGS = {"messageDelayLevel": "1s 2s 3s"}
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
DELAY_MS_MAX = 10_000
TIMER_MS_MAX = 3_000
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Delayed:
    def __init__(self, posting: Posting) -> None:
        self._posting = posting
        self.consumers = posting.consumers
        self.levels: dict[int, int] = {}  # level → ms, of those that are used
        self._known: dict[str, int] = {}  # key → delay in ms

    async def prepare(self, admin: Admin) -> None:
        for broker in (await admin.cluster.info()).brokers.values():
            for address in broker.addresses.values():
                text = (await admin.broker.config(address))["messageDelayLevel"]
                self.levels = {
                    level: ms for level, ms in delay_levels(text).items() if ms <= DELAY_MS_MAX
                }
        if not self.levels:
            raise ClusterError(f"no broker has delay levels of at most {DELAY_MS_MAX} ms")

    async def producer(
        self, stack: AsyncExitStack, name: str, rng: random.Random
    ) -> Callable[[int], Awaitable[None]]:
        posting = self._posting
        producer = await posting.start_producer(stack)
        levels = sorted(self.levels)

        async def one(number: int) -> None:
            level = rng.choice((0, rng.choice(levels)))  # 0: at any time
            delay_ms = self.levels[level] if level else rng.randint(1, TIMER_MS_MAX)
            op, key = posting.starts(name, delay_ms)
            self._known[key] = delay_ms
            message = posting.message(key, rng)
            if level:
                message.delay_level = level
            else:
                message.delay_time = timedelta(milliseconds=delay_ms)
            await posting.send_awaited(producer, name, op, key, message, delay_ms)

        return one

    async def evidence(self, deadline_s: float) -> None:
        """Record the time at which each message started to wait; unknown after retention."""
        posting, records = self._posting, 0
        async with posting.scanner() as scanner:
            for broker in scanner.brokers:
                waiting = [MessageQueue(SCHEDULE_TOPIC, broker, level - 1) for level in self.levels]
                for queue in (*waiting, MessageQueue(TIMER_TOPIC, broker, 0)):
                    for message in await scanner.read(queue):
                        records += 1
                        delay_ms = self._known.get(message.msg_id)
                        if delay_ms is not None:
                            message.store_timestamp_ms = began_to_wait_ms(message, delay_ms)
                            posting.write_stored(message)
        posting.write_scanned(records)


def began_to_wait_ms(message: MessageExt, delay_ms: int) -> int:
    """Return when the message started to wait, by the storing broker's clock."""
    slot = message.properties.get("TIMER_OUT_MS")
    return message.store_timestamp_ms if slot is None else int(slot) + 1 - delay_ms


def delay_levels(text: str) -> dict[int, int]:
    """Parse messageDelayLevel into ms by level. Raises ClusterError if it is malformed."""
    levels = {}
    for level, word in enumerate(text.split(), 1):
        result = re.fullmatch(r"(\d+)(ms|s|m|h|d)", word)
        if result is None:
            raise ClusterError(f"messageDelayLevel {text!r} has {word!r}")
        levels[level] = int(result[1]) * _UNITS_MS[result[2]]
    return levels
