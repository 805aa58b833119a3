"""Latency of sends at a fixed rate while something else happens to the group.

Each disturbance has a group of its own, with a log that was filled before. It begins with the load
and is repeated until the load ends. Elections are as in a real group.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.group import PROMPT, RaftGroup, output_of, raft_group
from bench.peers.remoting import QUEUES, TOPIC, pull_all
from bench.peers.system import BODY
from bench.wire import run_load, run_paced
from raftmq.client import Admin
from raftmq.remoting.admin_headers import TopicHeader

FILLED = 200_000  # messages
MANY_TOPICS = 5_000  # for tables whose snapshots are large
SEGMENTS = {"mappedFileSizeCommitLog": "16MiB"}
RETENTION_PERIOD_S = 1.0

Act = Callable[[RaftGroup], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """An action beside the load, with the settings and preparation of its group."""

    act: Act
    prepare: Act | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


async def _nothing(group: RaftGroup) -> None:
    await asyncio.Event().wait()


async def _catch_up(group: RaftGroup) -> None:
    await pull_all(group.address)


async def _rebuild(group: RaftGroup) -> None:
    await group.empty(group.followers[0])
    await group.wait_recovered()


async def _create_topics(group: RaftGroup) -> None:
    async with Admin(group.namesrv) as admin:
        for number in range(MANY_TOPICS):
            await admin.topic.put(group.address, TopicHeader(f"topic-{number}", 1, 1, 6))


async def _change_tables(group: RaftGroup) -> None:
    """Tables are written in a snapshot some time after a change."""
    async with Admin(group.namesrv) as admin:
        await admin.topic.put(group.address, TopicHeader("changed", 1, 1, 6))
    await asyncio.sleep(1)


async def _retention(group: RaftGroup) -> None:
    async with Admin(group.namesrv) as admin:
        for node in group.cluster.state().brokers:
            await admin.broker.delete_expired_log(node.address)
    await asyncio.sleep(RETENTION_PERIOD_S)


async def _audit(group: RaftGroup) -> None:
    await _run("raftmq.audit", "--namesrv", group.namesrv)


async def _backup(group: RaftGroup) -> None:
    directory = tempfile.mkdtemp(prefix="bench-backup-")
    try:
        target = str(Path(directory) / "backup")
        name = group.cluster.state().groups[0]
        await _run("raftmq.broker", "backup", target, "-n", group.namesrv, "--brokerName", name)
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


async def _run(module: str, *arguments: str) -> None:
    """Run a command. Raises RuntimeError if it fails."""
    await output_of(sys.executable, "-m", module, *arguments)


DISTURBANCES = {
    "nothing": Disturbance(_nothing),
    "catch-up consumer": Disturbance(_catch_up),
    "rebuilt replica": Disturbance(_rebuild),
    "snapshots": Disturbance(_change_tables, _create_topics),
    "segment changes": Disturbance(_nothing, settings=SEGMENTS),
    "retention": Disturbance(_retention, settings=SEGMENTS | {"fileReservedTime": "0"}),
    "audit": Disturbance(_audit),
    "backup": Disturbance(_backup),
}


async def beside(value: int, seconds: float) -> dict[str, float]:
    """Return the latencies of `value` sends per second beside each disturbance."""
    figures: dict[str, float] = {}
    for name, disturbance in DISTURBANCES.items():
        figures |= {
            f"{name}: {figure}": ms
            for figure, ms in (await _one(disturbance, value, seconds)).items()
        }
    return figures


async def _one(disturbance: Disturbance, rate: int, seconds: float) -> dict[str, float]:
    settings = PROMPT | {"defaultTopicQueueNums": str(QUEUES)} | dict(disturbance.settings)
    async with raft_group(settings) as group:
        await run_load(group.address, TOPIC, queues=QUEUES, body=BODY, count=FILLED, in_flight=256)
        if disturbance.prepare is not None:
            await disturbance.prepare(group)
        happening = asyncio.create_task(_repeat(disturbance.act, group))
        result = await run_paced(
            group.address, TOPIC, queues=QUEUES, body=BODY, rate=rate, seconds=seconds
        )
        if happening.done():
            await happening  # it failed, so the figures say nothing
        happening.cancel()
        with suppress(asyncio.CancelledError):
            await happening
        p50, p99, p999, longest = result.percentiles_ms(0.5, 0.99, 0.999, 1.0)
        return {"p50_ms": p50, "p99_ms": p99, "p99.9_ms": p999, "longest_ms": longest}


async def _repeat(act: Act, group: RaftGroup) -> None:
    while True:
        await act(group)
