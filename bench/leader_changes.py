"""Cost of leader changes to clients by transfers, planned stops (SIGTERM), and freezes (SIGSTOP).

A producer sends open loop while a consumer reads along. The figures are the longest gap between
acknowledgements around each change, failed sends, and messages lost or stored twice.

A freeze closes no connection. A send that the frozen leader received has an unknown outcome, so
the producer repeats it, and it may be stored twice. Before a freeze the group is left alone until
its election time-outs are halved (dledger/raft/election_timeout.py) or CALM_TIMEOUT_S have passed.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from bench.group import PROMPT, RaftGroup, raft_group
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.transfer import transfer
from raftmq.client import ConsumeFrom, ConsumerConfig, Message, Producer, PushConsumer, SendConfig

TOPIC = "Bench"
RATE_PER_S = 500.0
BURST_INTERVAL_S = 0.002
SETTLE_S = 0.3  # of load before a change and after it
DRAIN_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
FREEZE_S = 2.0  # longer than an election without back-off
CALM_TIMEOUT_S = 60.0  # longer than WAIT_FACTOR_MAX (dledger/raft/election_timeout.py) times 6 s
DECIDED_S = 3.5  # longer than a send's time-out


async def transfers(value: int, seconds: float) -> dict[str, float]:
    return await _measure(value, lambda group: _transfer(group.cluster))


async def planned_stops(value: int, seconds: float) -> dict[str, float]:
    return await _measure(value, _stop_and_start)


async def freezes(value: int, seconds: float) -> dict[str, float]:
    return await _measure(value, _freeze, before=_calm, retry_unknown=True)


async def _transfer(cluster: Cluster) -> None:
    await transfer(cluster)


async def _stop_and_start(group: RaftGroup) -> None:
    name = group.leader.name
    await group.cluster.wait_dead(group.cluster.signal(name, signal.SIGTERM), STOP_TIMEOUT_S)
    group.cluster.start(name)


async def _freeze(group: RaftGroup) -> None:
    group.cluster.signal(group.leader.name, signal.SIGSTOP)
    try:
        await asyncio.sleep(FREEZE_S)
    finally:
        group.cluster.signal(group.leader.name, signal.SIGCONT)


async def _calm(group: RaftGroup) -> None:
    """Wait until both followers' election time-outs are halved, at most CALM_TIMEOUT_S."""
    deadline = time.monotonic() + CALM_TIMEOUT_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            halved = 0
            for node in group.cluster.state().brokers:
                async with session.get(f"http://{node.http}/api/v1/node") as response:
                    halved += (await response.json(loads=orjson.loads))["electionHalved"]
            if halved == 2:
                return
            await asyncio.sleep(1)


@dataclass(slots=True)
class Seen:
    """Observations of the clients."""

    acks_ns: list[int] = field(default_factory=list)  # in the order of arrival
    keys: set[str] = field(default_factory=set)  # acknowledged
    failed: int = 0
    consumed: Counter[str] = field(default_factory=Counter)

    def longest_gap_ms(self, start_ns: int, end_ns: int) -> float:
        """Return the longest time without an acknowledgement that overlaps the span."""
        times = [t for t in self.acks_ns if start_ns <= t <= end_ns]
        if before := [t for t in self.acks_ns if t < start_ns]:
            times.insert(0, before[-1])
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        return max(gaps, default=end_ns - start_ns) / 1e6


async def _load(producer: Producer, seen: Seen) -> None:
    """Send RATE_PER_S messages per second, open loop, until cancelled."""

    def settled(result: Any, error: BaseException | None) -> None:
        if error is not None:
            seen.failed += 1
            return
        seen.acks_ns.append(time.monotonic_ns())
        seen.keys.add(result.msg_id)

    started_s, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - started_s) * RATE_PER_S)
        for number in range(sent, due):
            producer.send_nowait(Message(TOPIC, bytes(128), keys=f"h{number}"), settled)
        sent = due
        await asyncio.sleep(BURST_INTERVAL_S)


async def _measure(
    count: int,
    change: Callable[[RaftGroup], Awaitable[None]],
    before: Callable[[RaftGroup], Awaitable[None]] | None = None,
    *,
    retry_unknown: bool = False,
) -> dict[str, float]:
    seen = Seen()
    gaps: list[float] = []

    def listener(messages: list[Any]) -> None:
        seen.consumed.update(message.msg_id for message in messages)

    async with raft_group(PROMPT) as group:
        producer_config = SendConfig(retry_unknown=retry_unknown)
        async with Producer("bench", group.namesrv, config=producer_config) as producer:
            await producer.send(Message(TOPIC, b"first"), timeout_ms=10_000)
            config = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
            consumer = PushConsumer("bench-changes", group.namesrv, listener, config=config)
            consumer.subscribe(TOPIC)
            async with consumer:
                sending = asyncio.create_task(_load(producer, seen))
                for _ in range(count):
                    await group.wait_recovered()
                    if before is not None:
                        await before(group)
                    await asyncio.sleep(SETTLE_S)
                    start_ns = time.monotonic_ns()
                    await change(group)
                    await group.cluster.wait_serving()
                    await asyncio.sleep(SETTLE_S)
                    gaps.append(seen.longest_gap_ms(start_ns, time.monotonic_ns()))
                sending.cancel()
                await asyncio.wait([sending])
                await asyncio.sleep(DECIDED_S)
                deadline = time.monotonic() + DRAIN_TIMEOUT_S
                while seen.keys - seen.consumed.keys() and time.monotonic() < deadline:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
    gaps.sort()
    return {
        **{f"gap_p{share}_ms": gaps[len(gaps) * share // 100] for share in (50, 90)},
        "gap_max_ms": gaps[-1],
        "acknowledged": len(seen.keys),
        "failed": seen.failed,
        "lost": len(seen.keys - seen.consumed.keys()),
        "duplicates": seen.consumed.total() - len(seen.consumed),
    }
