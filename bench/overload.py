"""A group's behaviour when far more is asked of it than it can do: `python -m bench.overload`.

Each row is a cluster of its own, with three replicas, SYNC_FLUSH and otherwise default settings, a
normal client (our Producer, a send every 20 ms) and a load of bench.flood.

    nothing            no load, as a baseline for this machine
    slow disk          every fdatasync takes 100 ms more and frames are small, so that capacity is
                       known and low; then ten times that load, open loop
    fast disk          ten times the group's capacity, as far as the generator can
    never read         64 connections, 2,000 pulls per second, responses never read
    connections        5,000 connections with ten times the slow disk's capacity
    slow senders       60 connections, each with an unfinished frame of 14 MiB
    large one-way      8 connections, one-way sends of 4 MiB at full speed

The output, also by --json, has the offered load and its outcomes; resident memory of leader and
followers before, at the peak, and ten seconds after the end; leader changes (the term before and
after); and the normal client's latencies before, during, and from 5 s after the end on, with the
seconds to recovery. Compare checkouts with several `--root`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.cost import mqcluster
from bench.flood import DEAF, NOTHING, ONE_WAY, SENDS, SETTLE_S, SLOW, Plan
from bench.group import resident_mib
from bench.wire import run_load
from raftmq.chaos.faults.fault_control import SLOW as SLOW_EFFECT
from raftmq.chaos.faults.fault_control import SYNC, Rule, Steering
from raftmq.client import Message, Producer
from raftmq.client.errors import ClientError
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError

HERE = Path(__file__).resolve().parent
TOPIC = "Overload"
OVERLOAD = 10  # times the capacity
BODY_BYTES = 1024
PACE_S = 0.02
SAMPLE_S = 0.05
IN_FLIGHT = 256
LOOKS_MAX = 10
SYNC_DELAY_MS = 100
# A frame holds some thirty messages, so a slow disk's capacity is low enough to be exceeded.
SLOW_DISK = {"frameSizeMax": str(32 << 10)}
SETTINGS = {"flushDiskType": "SYNC_FLUSH", "defaultTopicQueueNums": "4"}


@dataclass(frozen=True, slots=True)
class Spans:
    """Durations in seconds of the load, of measuring the capacity, of the normal client alone, of
    waiting for responses after the load, until recovery is expected, and of checking it."""

    load: float
    capacity: float = 3.0
    calm: float = 3.0
    settle: float = SETTLE_S
    back: float = 5.0
    after: float = 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """A kind of overload, with `overload` times the capacity, or `pace` per second, or neither."""

    name: str
    kind: str
    connections: int
    overload: float = 0.0
    pace: float = 0.0
    slow_disk: bool = False
    body_bytes: int = BODY_BYTES


ROWS = (
    Row("nothing", NOTHING, 0),
    Row("slow disk", SENDS, 8, OVERLOAD, slow_disk=True),
    Row("fast disk", SENDS, 8, OVERLOAD),
    Row("never read", DEAF, 64, pace=2_000),
    Row("connections", SENDS, 5_000, OVERLOAD, slow_disk=True),
    Row("slow senders", SLOW, 60, body_bytes=14 << 20),
    Row("large one-way", ONE_WAY, 8, body_bytes=4 << 20),
)


@dataclass(slots=True)
class Memory:
    """Resident MiB of a process."""

    before: float
    peak: float
    after: float = 0.0


@dataclass(slots=True)
class Latencies:
    """Latencies of the normal client's sends in a span; failures are counted, not timed."""

    sends: int
    failed: int
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class Result:
    row: str
    root: str
    capacity: float
    flood: dict[str, Any]
    leader: Memory
    followers: list[Memory]
    leader_changes: int
    machine_load: float  # the system's load average over the last minute, at the end
    latencies: dict[str, Latencies]
    back_after_s: int  # until every later second was as before; -1: not while it was watched
    failures: dict[str, int] = field(default_factory=dict)  # the normal client's, in words


class Cluster:
    """A Raft group of three from some checkout, in a directory of its own."""

    def __init__(self, root: Path, settings: dict[str, str]) -> None:
        self._root = root
        self.namesrv = self.address = ""
        self.brokers: list[dict[str, Any]] = []
        self.leader_pid = 0
        self.follower_pids: list[int] = []
        self.directory = Path(tempfile.mkdtemp(prefix="bench-overload-"))
        given = [part for item in settings.items() for part in ("--set", "=".join(item))]
        try:
            self._mqcluster("up", "--faultable", *given, "--timeout", "120")
            self.look()
        except BaseException:
            self.down()
            raise

    def look(self) -> None:
        """Find the leader, retrying for a while if nobody leads. Raises ClickException."""
        for _ in range(LOOKS_MAX):
            nodes: list[dict[str, Any]] = json.loads(self._mqcluster("status", "--json"))["nodes"]
            (self.namesrv,) = [n["address"] for n in nodes if n["kind"] == "namesrv"]
            self.brokers = [n for n in nodes if n["kind"] == "broker"]
            leaders = [n for n in self.brokers if n["role"] == "leader"]
            if len(leaders) == 1:
                self.address = str(leaders[0]["address"])
                self.leader_pid = int(leaders[0]["pid"])
                self.follower_pids = [int(n["pid"]) for n in self.brokers if n != leaders[0]]
                return
        raise click.ClickException("nobody leads the group")

    def slow_down(self) -> None:
        for node in self.brokers:
            steering = Steering(self.directory / node["name"] / "faults")
            rule = Rule(SLOW_EFFECT, (SYNC,), "commitlog/*", delay_ms=SYNC_DELAY_MS)
            steering.put("overload", [rule])

    def down(self) -> None:
        try:
            self._mqcluster("down")
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _mqcluster(self, command: str, *arguments: str) -> str:
        return mqcluster(self._root, command, "--dir", str(self.directory), *arguments)


class Watch:
    def __init__(self, pids: Sequence[int]) -> None:
        self.memory = {pid: Memory(resident_mib(pid), resident_mib(pid)) for pid in pids}

    async def run(self) -> None:
        while True:
            for pid, memory in self.memory.items():
                memory.after = resident_mib(pid)
                memory.peak = max(memory.peak, memory.after)
            await asyncio.sleep(SAMPLE_S)


class NormalClient:
    """Sends a message every PACE_S, each awaited; keeps its start, its latency or its error."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.sends: list[tuple[float, float, str]] = []
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while True:
            task = asyncio.create_task(self._send())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(PACE_S)

    async def _send(self) -> None:
        started = time.monotonic()
        failure = ""
        try:
            await self._producer.send(Message(TOPIC, bytes(BODY_BYTES)))
        except ClientError as error:
            failure = type(error).__name__
        self.sends.append((started, (time.monotonic() - started) * 1000, failure))

    async def settle(self) -> None:
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    def span(self, begin: float, end: float) -> Latencies:
        mine = [(ms, failure) for at, ms, failure in self.sends if begin <= at < end]
        good = sorted(ms for ms, failure in mine if not failure)
        return Latencies(
            len(mine), len(mine) - len(good), share_of(good, 0.5), share_of(good, 0.99)
        )

    def back_after_s(self, begin: float, end: float, before: Latencies) -> int:
        """Return the seconds from `begin` until every later second, up to `end`, has a p99 like
        `before` (at most twice that, or 20 ms more); -1 without recovery."""
        bound_ms = max(2 * before.p99_ms, before.p99_ms + 20)
        seconds = int(end - begin)
        back = 0
        for second in range(seconds):
            seen = self.span(begin + second, begin + second + 1)
            if seen.failed or not seen.sends or seen.p99_ms > bound_ms:
                back = second + 1
        return back if back < seconds else -1


def share_of(ordered: Sequence[float], share: float) -> float:
    """Return a percentile by rank; NaN of nothing."""
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def terms(cluster: Cluster) -> int:
    client = RemotingClient()
    result = [0]
    try:
        for node in cluster.brokers:
            command = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            with suppress(RemotingError):  # busy, but another replica also has the term
                answer = await client.invoke(str(node["address"]), command, 5_000)
                table = orjson.loads(answer.body)["table"]
                result.append(int(table["raftTerm"]))
    finally:
        await client.close()
    return max(result)


async def capacity_of(cluster: Cluster, seconds: float) -> float:
    """Return the messages per second that the group can store. The cluster's `address` is then the
    current leader's. It retries after a change of leader."""

    async def rate(count: int) -> float:
        load = run_load(
            *(cluster.address, TOPIC),
            queues=4,
            body=bytes(BODY_BYTES),
            count=count,
            in_flight=IN_FLIGHT,
        )
        return (await load).rate

    for _ in range(LOOKS_MAX):
        await asyncio.to_thread(cluster.look)
        try:
            return await rate(max(IN_FLIGHT, int(await rate(IN_FLIGHT) * seconds)))
        except (RuntimeError, OSError) as error:
            click.echo(f"the capacity is measured again: {error}", err=True)
    raise click.ClickException("the group does not keep a leader on this machine just now")


async def flooded(plan: Plan) -> tuple[float, dict[str, Any]]:
    """Run the load; return when it ended, and its report."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.flood", orjson.dumps(asdict(plan)).decode()),
        stdout=asyncio.subprocess.PIPE,
        cwd=HERE.parent,
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"ready\n"
        assert await process.stdout.readline() == b"ended\n"
        ended = time.monotonic()
        report: dict[str, Any] = orjson.loads(await process.stdout.readline())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()
    return ended, report


async def measure(root: Path, row: Row, spans: Spans, connections_max: int) -> Result:
    cluster = Cluster(root, SETTINGS | (SLOW_DISK if row.slow_disk else {}))
    try:
        async with Producer("normal", cluster.namesrv) as producer:
            await producer.send(Message(TOPIC, b"creates the topic"))
            if row.slow_disk:
                cluster.slow_down()
            capacity = await capacity_of(cluster, spans.capacity)
            plan = Plan(
                row.kind,
                cluster.address,
                TOPIC,
                spans.load,
                min(row.connections, connections_max),
                row.overload * capacity or row.pace,
                row.body_bytes,
                spans.settle,
            )
            return await _measured(cluster, producer, plan, spans, (row.name, root.name, capacity))
    finally:
        cluster.down()


async def _measured(
    cluster: Cluster,
    producer: Producer,
    plan: Plan,
    spans: Spans,
    named: tuple[str, str, float],
) -> Result:
    term = await terms(cluster)
    pids = [cluster.leader_pid, *cluster.follower_pids]
    watch, client = Watch(pids), NormalClient(producer)
    tasks = [asyncio.create_task(watch.run()), asyncio.create_task(client.run())]
    try:
        await asyncio.sleep(spans.calm)
        started = time.monotonic()
        ended, report = await flooded(plan)
        over = ended + spans.back + spans.after
        await asyncio.sleep(max(0.0, over - time.monotonic()))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.settle()
    before = client.span(started - spans.calm, started)
    memories = [watch.memory[pid] for pid in pids]
    return Result(
        *named,
        report,
        memories[0],
        memories[1:],
        await terms(cluster) - term,
        os.getloadavg()[0],
        {
            "before": before,
            "during": client.span(started, ended),
            "after": client.span(ended + spans.back, over),
        },
        client.back_after_s(ended, over, before),
        dict(Counter(failure for _, _, failure in client.sends if failure)),
    )


def table_of(results: Sequence[Result]) -> Table:
    """Return a table with a line for each row and checkout."""
    table = Table(
        "overload",
        "checkout",
        "capacity /s",
        "offered /s",
        "outcomes",
        "leader MiB",
        "follower MiB",
        "leader changes",
        "before p50/p99 ms",
        "during",
        "after",
        "back after",
    )
    for result in results:
        flood = result.flood
        follower = max(result.followers, key=lambda memory: memory.peak)
        table.add_row(
            result.row,
            result.root,
            f"{result.capacity:,.0f}",
            f"{flood['sent'] / flood['seconds']:,.0f}",
            outcomes_text(flood),
            memory_text(result.leader),
            memory_text(follower),
            str(result.leader_changes),
            *(latencies_text(result.latencies[span]) for span in ("before", "during", "after")),
            "not" if result.back_after_s < 0 else f"{result.back_after_s} s",
        )
    return table


def outcomes_text(flood: dict[str, Any]) -> str:
    """Return shares of the sends, largest first; held back sends as a share of the due sends."""
    sent = max(1, flood["sent"])
    counts = Counter({name: int(count) for name, count in flood["outcomes"].items()})
    parts = [f"{name} {count / sent:.1%}" for name, count in counts.most_common()]
    silent = flood["sent"] - sum(counts.values())
    if silent > 0:
        parts.append(f"unanswered {silent / sent:.1%}")
    if flood["held_back"]:
        parts.append(f"held back {flood['held_back'] / max(1, flood['due']):.1%}")
    if flood["closed_by_broker"]:
        parts.append(f"{flood['closed_by_broker']} connections closed")
    if flood["refused"]:
        parts.append(f"{flood['refused']} connections refused")
    return ", ".join(parts)


def memory_text(memory: Memory) -> str:
    return f"{memory.before:.0f} / {memory.peak:.0f} / {memory.after:.0f}"


def latencies_text(seen: Latencies) -> str:
    failed = f", {seen.failed} of {seen.sends} failed" if seen.failed else ""
    return f"{seen.p50_ms:.1f} / {seen.p99_ms:.1f}{failed}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root",
    "roots",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout to measure. Repeatable; this one if there is none.",
)
@click.option("--seconds", default=60.0, show_default=True, help="How long each overload lasts.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice([row.name for row in ROWS]),
    help="One kind of overload. Repeatable; all if there is none.",
)
@click.option(
    "--connections", default=5_000, show_default=True, help="At most so many, in every row."
)
@click.option("--json", "json_path", type=click.Path(), help="Write every figure to this file.")
def main(
    roots: tuple[Path, ...],
    seconds: float,
    only: tuple[str, ...],
    connections: int,
    json_path: str | None,
) -> None:
    """Overload a Raft group of three in several ways, and report the effects."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # brokers inherit it
    chosen = [root.resolve() for root in roots] or [HERE.parent]
    rows = [row for row in ROWS if not only or row.name in only]
    results: list[Result] = []
    for row in rows:
        for root in chosen:
            results.append(uvloop.run(measure(root, row, Spans(seconds), connections)))
            click.echo(f"{row.name} {root.name}: {outcomes_text(results[-1].flood)}", err=True)
    Console(width=max(200, Console().width)).print(table_of(results))
    if json_path:
        written = [asdict(result) for result in results]
        Path(json_path).write_bytes(orjson.dumps(written, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
