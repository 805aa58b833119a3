"""`python -m bench.scale`: name server, clients, mqadmin and dashboard with many broker groups.

A real group of a single replica and `--groups` made-up groups of three (bench.scaleworld) have the
same `--topics`, and `--clients` watch routes. The rows are phases, commands of mqadmin and pages of
the dashboard. Each has the CPU time, memory and bytes of the name server, the latency of a probe
that repeats a request for a route, and the cost of the real leader and of a real consumer.

The made-up brokers are a process, and the clients another, so that the brokers' registrations do
not wait for the clients' answers. They share the machine, so latencies are upper limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import click
import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.group import PATIENT, RaftGroup, cpu_us, raft_group, raise_file_limit, resident_mib
from bench.scaleworld import PERIOD_MS, Group, Recorder, Routes
from bench.wire import LoadResult
from raftmq.broker.tables.topics import TopicConfig
from raftmq.chaos.cluster import groups as cluster_groups
from raftmq.chaos.cluster.launch import registration_key
from raftmq.client import Admin, ConsumerConfig, PushConsumer
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import ConnectError
from raftmq.remoting.memory_limits import BudgetLimits, Budgets
from raftmq.remoting.registration_proof import load_registration_keys

BATCH = 200  # topics in a request
TOPICS_EACH = 5  # of a client
PROBE_S = 0.1
REPLACED = "bench-joins"  # a group that joins and leaves
NEW_TOPIC = "bench-new"
PAGES = (
    "/api/v1/cluster", "/api/v1/topics?limit=100", "/api/v1/consumer-groups?limit=100",
    "/api/v1/connections", "/metrics",
)  # fmt: skip
Row = dict[str, str | float]
TOOL, PAGE = ("tool_cpu_ms", "tool_mib", "status"), ("page_kb", "status")  # of their rows only


class Scale:
    """The cluster, and the rows of its table."""

    def __init__(self, real: RaftGroup, group_count: int, client_count: int) -> None:
        self._real = real
        self._group_count = group_count
        self._client_count = client_count
        (self._server,) = real.cluster.state().name_servers
        self._keys = load_registration_keys(str(registration_key(real.cluster.directory)))
        self._recorder = Recorder(real.leader.group, real.address, real.leader.http)
        self._budgets = Budgets(BudgetLimits())
        self._groups: list[Group] = []
        self._http = aiohttp.ClientSession()
        self._watched: dict[str, int] = {}  # other processes, by name
        self._started_s = 0.0  # of the phase
        self.rows: list[Row] = []

    async def close(self) -> None:
        await self._recorder.close()
        await self._http.close()

    @property
    def _pid(self) -> int:
        process = self._real.cluster.state().node(self._server.name).process
        assert process is not None
        return process.pid

    async def _traffic(self) -> tuple[float, float]:
        """Return the bytes that the name server has received and sent."""
        while True:
            try:
                async with self._http.get(f"http://{self._server.http}/metrics") as response:
                    lines = (await response.text()).splitlines()
                    break
            except aiohttp.ClientConnectionError:  # it starts, or has closed an idle connection
                await asyncio.sleep(0.1)
        figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        received, sent = (
            float(figures[f"rocketmq_namesrv_{name}_bytes_total"]) for name in ("received", "sent")
        )
        return received, sent

    async def _probe(self, topic: str, latencies_ns: array[int]) -> None:
        client = RemotingClient()
        try:
            while True:
                request = RemotingCommand.request(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
                )
                started_ns = time.perf_counter_ns()
                with contextlib.suppress(ConnectError):  # it starts
                    await client.invoke(self._server.address, request, 60_000)
                    latencies_ns.append(time.perf_counter_ns() - started_ns)
                await asyncio.sleep(PROBE_S)
        finally:
            await client.close()

    @asynccontextmanager
    async def _phase(self, name: str, topic: str, *, restarted: bool = False) -> AsyncIterator[Row]:
        """Measure the block, which may set "seconds", as a row."""
        latencies_ns: array[int] = array("q")
        row: Row = {"phase": name}
        before = (0.0, 0.0) if restarted else await self._traffic()
        others = {title: cpu_us(pid) for title, pid in self._watched.items()}
        cpu, self._started_s = 0.0 if restarted else cpu_us(self._pid), time.perf_counter()
        probing = asyncio.create_task(self._probe(topic, latencies_ns))
        try:
            yield row
        finally:
            probing.cancel()
        row.setdefault("seconds", time.perf_counter() - self._started_s)
        row["cpu_ms"] = (cpu_us(self._pid) - cpu) / 1e3
        row["mib"] = resident_mib(self._pid)
        after = await self._traffic()
        row["mb_in"], row["mb_out"] = ((after[n] - before[n]) / 1e6 for n in (0, 1))
        probe = LoadResult(0, 1.0, latencies_ns or array("q", [0]))
        row |= {f"p{share}_ms": probe.percentile_ms(share / 100) for share in (50, 99)}
        for title, pid in self._watched.items():
            row[f"{title}_cpu_ms"] = (cpu_us(pid) - others.get(title, 0.0)) / 1e3
            row[f"{title}_mib"] = resident_mib(pid)
        self.rows.append(row)
        print(" ".join(f"{k}={v if isinstance(v, str) else f'{v:.1f}'}" for k, v in row.items()),
              flush=True)  # fmt: skip

    async def _listed(self, groups: Sequence[Group]) -> None:
        while not all(group.is_listed for group in groups):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def run(self, topics: dict[str, TopicConfig], rest_s: float) -> None:
        names = list(topics)
        assert self._real.leader.process is not None
        self._watched["leader"] = self._real.leader.process.pid

        def made(name: str) -> Group:
            return Group(
                name, topics, self._recorder, namesrv=self._server.address, keys=self._keys
            )

        self._groups = [made(f"bench-{number:04}") for number in range(self._group_count)]
        async with self._phase("all brokers start", names[0]):
            for group in self._groups:
                await group.start(self._budgets)
            await self._listed(self._groups)
        async with self._phase("rest, brokers only", names[0]):
            await asyncio.sleep(rest_s)
        clients = Clients(self._server.address, len(names), self._client_count)
        async with self._phase("clients start", names[0]) as row:
            await clients.start()
            await self._settled(clients, row)
        consumer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.scale", "consume", self._server.address),
            *names[:TOPICS_EACH],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the name server's outage
        )
        self._watched["consumer"] = consumer.pid
        async with self._phase("a consumer of ours starts", names[0]):
            await asyncio.sleep(rest_s)
        async with self._phase("rest, clients ask", names[0]):
            await clients.run(f"poll {rest_s}")
        async with self._phase("a leader changes", names[0]) as row:
            self._groups[0].fail_over()
            await self._settled(clients, row)
        async with self._phase("a topic is created in all groups", names[0]):
            for group in self._groups:
                group.put(TopicConfig(NEW_TOPIC, 1, 1))
            await self._routed(NEW_TOPIC, len(self._groups))
        joined = made(REPLACED)
        async with self._phase("a group joins", names[0]) as row:
            await joined.start(self._budgets)
            await self._listed([joined])
            await self._settled(clients, row)
        async with self._phase("the group leaves", names[0]) as row:
            await joined.stop()
            await self._settled(clients, row)
        await self._outage(clients, names)
        await clients.stop()
        await self._mqadmin(names[0])
        await self._pages()
        del self._watched["consumer"]
        consumer.kill()
        await consumer.wait()
        await self._real_group_joins(names[0])
        await asyncio.gather(*(group.stop() for group in self._groups))

    async def _routed(self, topic: str, group_count: int) -> None:
        """Return once the name server has the topic in so many groups."""
        async with Admin(self._server.address) as admin:
            while len(await admin.cluster.groups_of(topic)) < group_count:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _settled(self, clients: Clients, row: Row) -> None:
        row["seconds"] = await clients.run("quiet") - self._started_s

    async def _outage(self, clients: Clients, names: Sequence[str]) -> None:
        cluster = self._real.cluster
        await cluster.wait_dead(cluster.signal(self._server.name, signal.SIGKILL))
        await asyncio.sleep(5)
        while any(group.is_listed for group in self._groups):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        async with self._phase("all return after an outage", names[0], restarted=True) as row:
            cluster.start(self._server.name)
            await self._listed(self._groups)
            row["seconds"] = time.perf_counter() - self._started_s
            await clients.run("quiet")

    async def _mqadmin(self, topic: str) -> None:
        for arguments in (
            ("clusterList",), ("topicList",), ("topicRoute", "-t", topic),
            ("topicStatus", "-t", topic), ("definitions",),
            ("updateTopic", "-c", "DefaultCluster", "-t", NEW_TOPIC, "-r", "2", "-w", "2"),
        ):  # fmt: skip
            async with self._phase(f"mqadmin {arguments[0]}", topic) as row:
                command = [sys.executable, "-m", "raftmq.mqadmin", *arguments]
                key = registration_key(self._real.cluster.directory)
                row |= await asyncio.to_thread(_resources, command, {
                    "NAMESRV_ADDR": self._server.address, "RAFTMQ_REGISTRATION_KEY_FILE": str(key),
                })  # fmt: skip

    async def _pages(self) -> None:
        for path in PAGES:
            for attempt in ("first", "second"):
                async with self._phase(f"GET {path}, {attempt}", "-") as row:
                    async with self._http.get(f"http://{self._server.http}{path}") as response:
                        row["page_kb"] = len(await response.read()) / 1e3
                        row["status"] = response.status

    async def _real_group_joins(self, topic: str) -> None:
        async with self._phase("a real group joins", topic):
            await cluster_groups.add(self._real.cluster, None, 1, lambda text: None, 600)
            new = self._real.cluster.state().brokers[-1]
            assert new.process is not None
            self._watched["joined"] = new.process.pid


class Clients:
    """The process of the clients (`watch`). Its clock is that of this process."""

    def __init__(self, namesrv: str, topic_count: int, client_count: int) -> None:
        self._arguments = namesrv, str(topic_count), str(client_count)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Connect all clients; return when they have asked."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.scale", "watch", *self._arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        await self.run("connect")

    async def run(self, command: str) -> float:
        """Run a command of Routes; return its result."""
        assert self._process is not None and self._process.stdin and self._process.stdout
        self._process.stdin.write(command.encode() + b"\n")
        return float(await self._process.stdout.readline())

    async def stop(self) -> None:
        assert self._process is not None and self._process.stdin
        self._process.stdin.close()
        await self._process.wait()


def _resources(command: Sequence[str], environment: dict[str, str]) -> Row:
    """Run a command; return its time, CPU and largest memory."""
    started_s = time.perf_counter()
    process = subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    ended = most_mib = 0
    while not ended:
        # The largest memory by wait4 has that of this process before the exec.
        status_lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        most_mib = max(
            [most_mib, *(int(line.split()[1]) // 1024 for line in status_lines if "VmHWM" in line)]
        )
        time.sleep(0.01)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    with process.stderr:
        complaint = process.stderr.read()
    if complaint:
        print(complaint.decode()[:500], flush=True)
    return {
        "seconds": time.perf_counter() - started_s,
        "tool_cpu_ms": (usage.ru_utime + usage.ru_stime) * 1e3,
        "tool_mib": float(most_mib),
        "status": float(process.returncode),
    }


@click.group(invoke_without_command=True, context_settings={"show_default": True})
@click.pass_context
@click.option("--groups", default=100, help="Made-up broker groups of three.")
@click.option("--topics", default=20_000, help="Topics, each in all groups.")
@click.option("--clients", default=2_000, help=f"Clients with {TOPICS_EACH} topics each.")
@click.option("--rest", "rest_s", default=PERIOD_MS / 1000, help="Seconds of the phases of rest.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(
    context: click.Context,
    groups: int,
    topics: int,
    clients: int,
    rest_s: float,
    json_path: Path | None,
) -> None:
    """Measure a name server with many broker groups, and what asks it."""
    if context.invoked_subcommand is not None:
        return
    raise_file_limit()
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores of {platform.machine()}: "
        f"{groups} groups of three, {topics} topics, {clients} clients"
    )

    async def measure() -> list[Row]:
        settings = PATIENT | {"topicsMax": str(2 * topics + 1_000)}
        async with raft_group(settings, replicas=1) as real:
            own = await _created(real, names_of(topics))
            scale = Scale(real, groups, clients)
            try:
                await scale.run(own, rest_s)
            finally:
                await scale.close()
            return scale.rows

    rows = uvloop.run(measure())
    Console(width=200).print(*tables_of(rows))
    if json_path:
        json_path.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


def names_of(topic_count: int) -> list[str]:
    return [f"bench-topic-{number:06}" for number in range(topic_count)]


async def _created(real: RaftGroup, names: Sequence[str]) -> dict[str, TopicConfig]:
    topics = {name: TopicConfig(name, 1, 1) for name in names}
    beans = [topic.to_json() for topic in topics.values()]
    async with Admin(real.namesrv) as admin:
        for start in range(0, len(beans), BATCH):
            body = orjson.dumps({"topicConfigList": beans[start : start + BATCH]})
            code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
            await admin.ask(real.address, code, None, body, 60_000)
    return topics


def tables_of(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each kind of rows, by their columns."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        names = tuple(name for name in row if name in TOOL or name in PAGE)
        kinds.setdefault(names, []).append(row)
    tables = []
    for of_kind in kinds.values():
        columns = list(dict.fromkeys(name for row in of_kind for name in row))
        tables.append(Table(*columns))
        for row in of_kind:
            cells = (row.get(name, "") for name in columns)
            texts = (cell if isinstance(cell, str) else f"{cell:,.3g}" for cell in cells)
            tables[-1].add_row(*texts)
    return tables


@main.command(hidden=True)
@click.argument("namesrv")
@click.argument("topic_count", type=int)
@click.argument("client_count", type=int)
def watch(namesrv: str, topic_count: int, client_count: int) -> None:
    """Run the clients. A line of the standard input is `connect`, `poll SECONDS` or `quiet`, its
    result is a line of the output."""
    raise_file_limit()

    async def run() -> None:
        routes = Routes(namesrv, names_of(topic_count), client_count, TOPICS_EACH)
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        while line := (await lines.readline()).decode().split():
            result = 0.0
            if line[0] == "connect":
                await routes.connect()
            elif line[0] == "poll":
                await routes.poll(float(line[1]))
            else:
                result = await routes.quiet()
            print(result, flush=True)
        routes.close()

    uvloop.run(run())


@main.command(hidden=True)
@click.argument("namesrv")
@click.argument("topics", nargs=-1)
def consume(namesrv: str, topics: tuple[str, ...]) -> None:
    """Consume topics until the standard input ends."""

    async def run() -> None:
        consumer = PushConsumer("bench-scale", namesrv, lambda messages: None,
                                config=ConsumerConfig())  # fmt: skip
        for topic in topics:
            consumer.subscribe(topic)
        async with consumer:
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    uvloop.run(run())


if __name__ == "__main__":
    main()
