"""`python -m bench.soak`: memory over time under changing clients, topics and groups.

A Raft group carries a steady load. In parallel, loops open connections, join them to a consumer
group as members, and close them; they create topics, send to them and delete them; they create
groups and delete them. All names are new, unless `--names` gives the number of rounds after which
names repeat. The resident memory of leader, follower and name server is sampled. Growth, in MiB per
hour, is the median of the last quarter of the samples minus that of the second quarter (the first
quarter fills caches and buffers). Exit status 1 if a process grew by more than `--growth`.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.group import RaftGroup, raise_file_limit
from bench.scenarios import BODY, QUEUES, TOPIC, Member, create, warm_group
from bench.wire import run_load
from raftmq.client import Admin
from raftmq.client.errors import ClientError

SAMPLES = 240  # of a run
CONNECTIONS = 20  # opened and closed together
GROUPS = 50  # groups for members; a broker keeps a group, and its retry topic, until it is deleted
TOPICS = 10  # created and deleted together
PAUSE_S = 0.25  # between two rounds of a kind, so that the machine is not saturated
SENDS = 200  # per round, all in flight, so they share few frames
REPORT_S = 60.0
INTERRUPTIONS = (ClientError, OSError, RuntimeError)  # for instance another leader


@dataclass(slots=True)
class Watch:
    """Samples of resident MiB by role, and the number of completed operations."""

    times_s: list[float] = field(default_factory=list)
    memory_mib: dict[str, list[float]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    def sample(self, at_s: float, memory_mib: dict[str, float]) -> None:
        self.times_s.append(at_s)
        for role, mib in memory_mib.items():
            self.memory_mib.setdefault(role, []).append(mib)

    def count(self, what: str, number: int) -> None:
        self.done[what] = self.done.get(what, 0) + number

    def growth(self, role: str) -> float:
        """Return by how many MiB an hour a process grew."""
        return growth_mib_hour(self.times_s, self.memory_mib[role])


def growth_mib_hour(times_s: Sequence[float], mib: Sequence[float]) -> float:
    """Return the growth from the second quarter of the samples to the last."""
    quarter = len(times_s) // 4
    early, late = slice(quarter, 2 * quarter), slice(3 * quarter, None)
    passed_s = statistics.median(times_s[late]) - statistics.median(times_s[early])
    grown = statistics.median(mib[late]) - statistics.median(mib[early])
    return grown / passed_s * 3600


async def churn_connections(group: RaftGroup, number: int) -> int:
    """Open connections, let each join a consumer group, and close them."""
    host, _, port = group.address.rpartition(":")
    members: list[Member] = []
    loop = asyncio.get_running_loop()
    for one in range(CONNECTIONS):
        members.append(Member(f"soak-{number % GROUPS}", one))
        await loop.create_connection(lambda: members[-1], host, int(port))
        members[-1].join()
    await asyncio.sleep(PAUSE_S)
    for member in members:
        member.leave()
    return len(members)


async def churn_topics(group: RaftGroup, number: int) -> int:
    """Create topics, send to them, and delete them, also at the name server."""
    names = [f"soak-t-{number * TOPICS + one}" for one in range(TOPICS)]
    await create(group, names, 1)
    await run_load(group.address, names, queues=1, body=BODY, count=2 * TOPICS, in_flight=TOPICS)
    async with Admin(group.namesrv) as admin:
        for name in names:
            await admin.topic.delete(group.address, name)
            await admin.name_server.forget_topic(name)
    return len(names)


async def churn_groups(group: RaftGroup, number: int) -> int:
    """Create a subscription group and delete it with its offsets."""
    async with Admin(group.namesrv) as admin:
        await admin.group.put(group.address, {"groupName": f"soak-g-{number}"})
        await admin.group.delete(group.address, f"soak-g-{number}", offsets=True)
    return 1


async def send(group: RaftGroup, _: int) -> int:
    """Send over a connection of its own."""
    result = await run_load(
        group.address, TOPIC, queues=QUEUES, body=BODY, count=SENDS, in_flight=SENDS
    )
    return result.messages


KINDS: dict[str, Callable[[RaftGroup, int], Awaitable[int]]] = {
    "messages": send,
    "connections": churn_connections,
    "topics": churn_topics,
    "groups": churn_groups,
}


async def soak(seconds: float, names: int = 0) -> Watch:
    """Run the soak; return its samples. Names repeat after `names` rounds (0: never)."""
    watch = Watch()
    async with warm_group() as group:
        started = time.monotonic()

        async def keep(what: str, act: Callable[[RaftGroup, int], Awaitable[int]]) -> None:
            for number in itertools.count():
                if time.monotonic() > started + seconds:
                    return
                try:
                    watch.count(what, await act(group, number % names if names else number))
                except INTERRUPTIONS as error:
                    print(f"{what}: {error}", flush=True)
                    watch.count("interrupted rounds", 1)
                    await group.find_leader()
                await asyncio.sleep(PAUSE_S)

        async with asyncio.TaskGroup() as tasks:
            for what, act in KINDS.items():
                tasks.create_task(keep(what, act))
            said_s = 0.0
            for number in range(1, SAMPLES + 1):
                await asyncio.sleep(
                    max(0.0, started + seconds * number / SAMPLES - time.monotonic())
                )
                watch.sample(time.monotonic() - started, dict(group.usage().memory_mib))
                if watch.times_s[-1] > said_s + REPORT_S:
                    said_s = watch.times_s[-1]
                    now = ", ".join(f"{r} {mib[-1]:.1f}" for r, mib in watch.memory_mib.items())
                    print(f"{said_s / 60:.0f} min, MiB: {now}", flush=True)
    return watch


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--minutes", default=60.0, type=click.FloatRange(0.05))
@click.option("--growth", default=10.0, help="MiB an hour that a process may grow by.")
@click.option("--names", default=0, type=click.IntRange(0), help="Rounds until names come again.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(minutes: float, growth: float, names: int, json_path: Path | None) -> None:
    """Watch the memory of a Raft group under changing clients, topics and groups."""
    raise_file_limit()
    watch = uvloop.run(soak(minutes * 60, names))
    shown = Table("process", "MiB at first", "least", "most", "at last", "MiB an hour")
    for role, mib in watch.memory_mib.items():
        figures = (mib[0], min(mib), max(mib), mib[-1], watch.growth(role))
        shown.add_row(role, *(f"{figure:.1f}" for figure in figures))
    Console().print(shown)
    print(", ".join(f"{number:,} {what}" for what, number in watch.done.items()))
    if json_path is not None:
        result = {"times_s": watch.times_s, "memory_mib": watch.memory_mib, "done": watch.done}
        json_path.write_bytes(orjson.dumps(result))
    sys.exit(int(any(watch.growth(role) > growth for role in watch.memory_mib)))


if __name__ == "__main__":
    main()
