"""`python -m bench.handover`: what changes of leader cost the clients.

A Raft group of three processes runs under an open-loop load, with a consumer reading along.
Leadership is transferred a number of times, and the leader is stopped in order (SIGTERM) and
started again a number of times. Counted: sends that failed or whose outcome stayed unknown,
messages stored twice, messages acknowledged and never consumed; and around each event the longest
time without an acknowledgement. Exit status 1 if a send failed or a message was lost.

With `--freezes` the leader is also kept from running (SIGSTOP) for a while, which closes none of
its connections. What it was sent then has no certain outcome, so the producer repeats it, and
messages may be stored twice. Before a freeze the group rests until its election time-outs are
halved, as in calm times (dledger/raft/election_halving.py), or REST_S have passed: a leader that
goes on after it was given up looks like one on a slow machine.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.cluster.transfer import transfer
from raftmq.chaos.cluster.wait_healthy import wait_whole
from raftmq.client import ConsumeFrom, ConsumerConfig, Message, Producer, PushConsumer, SendConfig

TOPIC = "Handover"
BODY = bytes(128)
PACE_S = 0.002  # between two bursts of due sends
CALM_S = 0.3  # of load before an event, and after it
DRAIN_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
FROZEN_S = 2.0  # longer than an election takes without back-off
REST_S = 60.0  # more than WAIT_FACTOR_MAX (dledger/raft/election_halving.py) times 6 s
SETTLE_S = 3.5  # a send's own time-out is 3 s: by then each is decided


@dataclass(slots=True)
class Seen:
    """The clients' observations."""

    acks_ns: list[int] = field(default_factory=list)  # in the order of arrival
    keys: set[str] = field(default_factory=set)  # acknowledged
    failed: list[str] = field(default_factory=list)
    attempts: int = 0
    consumed: Counter[str] = field(default_factory=Counter)

    def longest_gap_ms(self, begin_ns: int, end_ns: int) -> float:
        """Return the longest time without an acknowledgement that overlaps the span."""
        marks = [t for t in self.acks_ns if begin_ns <= t <= end_ns]
        before = [t for t in self.acks_ns[-1_000_000:] if t < begin_ns]
        if before:
            marks.insert(0, before[-1])
        gaps = [later - earlier for earlier, later in itertools.pairwise(marks)]
        return max(gaps, default=end_ns - begin_ns) / 1e6


async def load(producer: Producer, seen: Seen, rate: float) -> None:
    """Send `rate` messages a second, open loop, until cancelled."""
    begun, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - begun) * rate)
        for _ in range(due - sent):
            key = f"h{sent}"
            sent += 1

            def settled(result: Any, error: BaseException | None, key: str = key) -> None:
                if error is not None:
                    seen.failed.append(f"{type(error).__name__}: {error}")
                    return
                seen.acks_ns.append(time.monotonic_ns())
                seen.keys.add(result.msg_id)
                seen.attempts += result.attempts

            producer.send_nowait(Message(TOPIC, BODY, keys=key), settled)
        await asyncio.sleep(PACE_S)


async def leader_name(cluster: Cluster) -> str:
    leader = await cluster.leader()
    if leader is None:
        raise click.ClickException("nobody leads")
    return leader.name


async def stop_leader(cluster: Cluster) -> None:
    """Stop the leader with SIGTERM, wait until it is gone, and start it again."""
    name = await leader_name(cluster)
    process = cluster.signal(name, signal.SIGTERM)
    await cluster.wait_dead(process, STOP_TIMEOUT_S)
    cluster.start(name)


async def freeze_leader(cluster: Cluster) -> None:
    """Keep the leader's process from running for a while."""
    name = await leader_name(cluster)
    cluster.signal(name, signal.SIGSTOP)
    try:
        await asyncio.sleep(FROZEN_S)
    finally:
        cluster.signal(name, signal.SIGCONT)


async def rest(cluster: Cluster) -> None:
    """Wait until both followers' election time-outs are halved, at most REST_S."""
    deadline = time.monotonic() + REST_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            halved = 0
            for node in cluster.state().brokers:
                async with session.get(f"http://{node.http}/api/v1/node") as response:
                    halved += (await response.json(loads=orjson.loads))["electionHalved"]
            if halved == 2:
                return
            await asyncio.sleep(1)


async def change(cluster: Cluster, seen: Seen, kind: str) -> float:
    """Make one event; return the longest gap around it in ms."""
    await wait_whole(cluster)
    if kind == "freeze":
        await rest(cluster)
    await asyncio.sleep(CALM_S)
    begin_ns = time.monotonic_ns()
    if kind == "transfer":
        await transfer(cluster)
    elif kind == "freeze":
        await freeze_leader(cluster)
    else:
        await stop_leader(cluster)
    await cluster.wait_serving()
    await asyncio.sleep(CALM_S)
    return seen.longest_gap_ms(begin_ns, time.monotonic_ns())


async def drained(seen: Seen) -> int:
    """Wait until everything acknowledged was consumed; return how many messages were not."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while True:
        missing = len(seen.keys - seen.consumed.keys())
        if not missing or time.monotonic() > deadline:
            return missing
        await asyncio.sleep(0.1)


async def measure(rate: float, flush: str, events: dict[str, int]) -> dict[str, Any]:
    """Run the whole experiment on a fresh cluster."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    cluster = Cluster(directory)
    seen = Seen()
    gaps: dict[str, list[float]] = {kind: [] for kind in events}
    try:
        settings = {"flushDiskType": flush, "mappedFileSizeCommitLog": str(64 << 20)}
        state = await cluster.up(Shape(), settings)

        def listener(messages: list[Any]) -> None:
            seen.consumed.update(message.msg_id for message in messages)

        # An outcome that stays open counts as failed, except where it cannot be helped.
        retries = SendConfig(retry_unknown=events["freeze"] > 0)
        async with Producer("bench", state.namesrv, config=retries) as producer:
            await producer.send(Message(TOPIC, BODY), timeout_ms=10_000)
            config = ConsumerConfig(consume_from=ConsumeFrom.FIRST_OFFSET)
            consumer = PushConsumer("bench-handover", state.namesrv, listener, config=config)
            consumer.subscribe(TOPIC)
            async with consumer:
                sending = asyncio.create_task(load(producer, seen, rate))
                for kind, count in events.items():
                    for number in range(count):
                        gap = await change(cluster, seen, kind)
                        gaps[kind].append(gap)
                        print(f"{kind} {number + 1}: {gap:.1f} ms, {len(seen.failed)} failed")
                sending.cancel()
                await asyncio.wait([sending])
                await asyncio.sleep(SETTLE_S)
                missing = await drained(seen)
    finally:
        await cluster.down()
        await cluster.close()
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "acknowledged": len(seen.keys),
        "failed": len(seen.failed),
        "errors": seen.failed[:10],
        "attempts": seen.attempts,
        "missing": missing,
        "duplicates": sum(count - 1 for count in seen.consumed.values()),
        "gaps_ms": gaps,
    }


def show(result: dict[str, Any]) -> None:
    table = Table("event", "times", "longest gap ms: median", "p90", "max")
    for kind, gaps in result["gaps_ms"].items():
        if gaps:
            ordered = sorted(gaps)
            p90 = ordered[int(0.9 * (len(ordered) - 1))]
            cells = (ordered[len(ordered) // 2], p90, ordered[-1])
            table.add_row(kind, str(len(gaps)), *(f"{value:.1f}" for value in cells))
    Console().print(table)
    for name in ("acknowledged", "failed", "missing", "duplicates", "attempts"):
        print(f"{name:14} {result[name]:,}")
    for error in result["errors"]:
        print(f"  {error}")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--transfers", default=50, type=click.IntRange(0))
@click.option("--stops", default=50, type=click.IntRange(0), help="Orderly ends of the leader.")
@click.option("--freezes", default=0, type=click.IntRange(0), help="The leader stands still.")
@click.option("--rate", default=500.0, type=click.FloatRange(1), help="Sends a second, open loop.")
@click.option("--flush", default="SYNC_FLUSH", type=click.Choice(["ASYNC_FLUSH", "SYNC_FLUSH"]))
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="Write all figures.")
def main(
    transfers: int, stops: int, freezes: int, rate: float, flush: str, json_path: str | None
) -> None:
    """Measure what changes of leader cost."""
    events = {"transfer": transfers, "planned stop": stops, "freeze": freezes}
    result = uvloop.run(measure(rate, flush, events))
    show(result)
    if json_path:
        Path(json_path).write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
    sys.exit(1 if result["failed"] or result["missing"] else 0)


if __name__ == "__main__":
    main()
