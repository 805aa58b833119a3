"""Scenarios of `python -m bench`: each measures one point of a curve on a cluster of its own.

A load's figures are its rate, the rate of the floor (the same load against a server that does
nothing, measured immediately before), p50 and p99 latency, CPU microseconds per message and
resident MiB by process. Rates of different runs differ with the machine; compare within one run.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import orjson

from bench.beside import beside
from bench.group import PATIENT, PROMPT, RaftGroup, floor_server, raft_group
from bench.leader_changes import freezes, planned_stops, transfers
from bench.pops import held_pulls, pops
from bench.wire import LoadResult, run_load
from raftmq.client import Admin, Message, Producer
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand

Figures = dict[str, float]

TOPIC = "Bench"
QUEUES = 4
IN_FLIGHT = 256
BODY = b"x" * 128
LARGE_BYTES, LARGE_IN_FLIGHT = 64 << 10, 64  # to fill a log
MANY = 1 << 40  # more requests than any load sends in its time
CREATIONS = 64  # concurrent requests that create topics
RETRY_S = 0.05
READY_TIMEOUT_S = 600.0
QUIET_S = 12.0  # longer than the interval of the tables' snapshots
SETTINGS = PATIENT | {"defaultTopicQueueNums": str(QUEUES)}


class Load:
    """Sends to a group over a connection, with a fixed number in flight."""

    def __init__(self, seconds: float, body: bytes = BODY, in_flight: int = IN_FLIGHT) -> None:
        self._seconds = seconds
        self._body = body
        self._in_flight = in_flight

    async def run(
        self, address: str, topics: str | Sequence[str] = TOPIC, queues: int = QUEUES
    ) -> LoadResult:
        return await run_load(
            *(address, topics),
            queues=queues,
            body=self._body,
            count=MANY,
            in_flight=self._in_flight,
            seconds=self._seconds,
        )

    async def measure(
        self, group: RaftGroup, topics: str | Sequence[str] = TOPIC, queues: int = QUEUES
    ) -> Figures:
        async with floor_server() as floor:
            least = await self.run(floor)
        before = group.usage()
        result = await self.run(group.address, topics, queues)
        after = group.usage()
        spent = {role: after.cpu_us[role] - us for role, us in before.cpu_us.items()}
        del spent["namesrv"]
        return (
            latencies(result)
            | {"floor_rate": least.rate}
            | {f"{role}_us": us / result.messages for role, us in spent.items()}
            | {f"{role}_mib": mib for role, mib in after.memory_mib.items()}
        )


def latencies(result: LoadResult) -> Figures:
    return {
        "rate": result.rate,
        "p50_ms": result.percentile_ms(0.5),
        "p99_ms": result.percentile_ms(0.99),
    }


@asynccontextmanager
async def warm_group(
    settings: Mapping[str, str] = SETTINGS, replicas: int = 3
) -> AsyncIterator[RaftGroup]:
    """Run a group that has had some load, so that TOPIC exists."""
    async with raft_group(settings, replicas) as group:
        await Load(0.5).run(group.address)
        yield group


async def window(value: int, seconds: float) -> Figures:
    async with warm_group() as group:
        return await Load(seconds, in_flight=value).measure(group)


async def body(value: int, seconds: float) -> Figures:
    """At most 16 MiB are in flight."""
    in_flight = max(4, min(IN_FLIGHT, (16 << 20) // value))
    async with warm_group() as group:
        figures = await Load(seconds, bytes(value), in_flight).measure(group)
    return figures | {"mib_per_s": figures["rate"] * value / (1 << 20)}


async def replicas(value: int, seconds: float) -> Figures:
    async with warm_group(replicas=value) as group:
        return await Load(seconds).measure(group)


async def queues(value: int, seconds: float) -> Figures:
    async with warm_group() as group:
        await create(group, ["Queues"], value)
        return await Load(seconds).measure(group, "Queues", value)


async def groups(value: int, seconds: float) -> Figures:
    async with raft_group(SETTINGS, groups=value) as group:
        leaders = [leader.address for leader in await group.leaders()]
        await asyncio.gather(*(Load(0.5).run(leader) for leader in leaders))
        load = Load(seconds, in_flight=max(1, IN_FLIGHT // value))
        before_us, _ = group.all_replicas()
        results = await asyncio.gather(*(load.run(leader) for leader in leaders))
        after_us, resident_mib = group.all_replicas()
    total = LoadResult.together(results)
    spent_us = (after_us - before_us) / total.messages
    return latencies(total) | {"all_replicas_us": spent_us, "all_replicas_mib": resident_mib}


async def connections(value: int, seconds: float) -> Figures:
    """A busy connection beside idle connections; then one send in flight on each of them."""
    async with warm_group() as group:
        before = group.usage().memory_mib["leader"]
        host, _, port = group.address.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(value - 1)]
        await asyncio.sleep(1)
        held = group.usage().memory_mib["leader"] - before
        figures = await Load(seconds).measure(group)
        for _, writer in idle:
            writer.close()
        load = Load(seconds, in_flight=1)
        results = await asyncio.gather(*(load.run(group.address) for _ in range(value)))
    busy = {
        f"busy_{name}": figure for name, figure in latencies(LoadResult.together(results)).items()
    }
    return figures | {"idle_kib_each": held * 1024 / max(1, value - 1)} | busy


class Member(asyncio.Protocol):
    """A consumer that joins a group and fetches the list of members at each notification."""

    def __init__(self, group: str, number: int) -> None:
        self._group = group
        self._id = f"bench@{number}"
        self._fetching = self._fetch_again = False
        self.notified = 0
        self.known = 0  # members in the last response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def join(self) -> None:
        entry = {"topic": TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 1}
        consumer = {
            "groupName": self._group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [entry],
        }
        heartbeat = {"clientID": self._id, "consumerDataSet": [consumer], "producerDataSet": []}
        self._send(RequestCode.HEART_BEAT, None, orjson.dumps(heartbeat))

    def leave(self) -> None:
        self._transport.close()

    def _send(self, code: int, ext: dict[str, str] | None, content: bytes = b"") -> None:
        self._transport.write(encode_command(RemotingCommand.request(code, ext, content)))

    def data_received(self, data: bytes) -> None:
        notifications = data.count(b'"code":40')
        self.notified += notifications
        if b"consumerIdList" in data:
            self._fetching = False
            self.known = data.count(b"bench@")
        if notifications or self._fetch_again:
            self._fetch_again = self._fetching
            if not self._fetching:
                self._fetching = True
                self._send(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group})


async def consumers(value: int, seconds: float) -> Figures:
    """Members join in immediate succession; then a member leaves."""
    async with warm_group() as group:
        host, _, port = group.address.rpartition(":")
        loop = asyncio.get_running_loop()
        members: list[Member] = []
        for number in range(value):
            members.append(Member("many", number))
            await loop.create_connection(lambda: members[-1], host, int(port))

        async def all_know(count: int) -> bool:
            return all(member.known == count for member in members[-count:])

        started_s = time.perf_counter()
        for member in members:
            member.join()
            await asyncio.sleep(0)
        await _until(lambda: all_know(value))
        figures = {
            "join_ms": (time.perf_counter() - started_s) * 1e3,
            "notifications_each": sum(member.notified for member in members) / value,
        }
        if value > 1:
            members[0].leave()
            figures["leave_ms"] = await _elapsed_s(_until(lambda: all_know(value - 1))) * 1e3
        return figures | await Load(seconds).measure(group)


async def create(group: RaftGroup, names: Sequence[str], queue_count: int) -> None:
    waiting = iter(names)

    async def creations(admin: Admin) -> None:
        for name in waiting:
            await admin.topic.put(group.address, TopicHeader(name, queue_count, queue_count, 6))

    async with Admin(group.namesrv) as admin:
        await asyncio.gather(*(creations(admin) for _ in range(min(CREATIONS, len(names)))))


async def topics(value: int, seconds: float) -> Figures:
    """Create topics, send to all of them in a random order, and restart a follower. The first
    message of each, which creates its queue's files, is measured by itself."""
    names = [f"topic-{number:06}" for number in range(value)]
    shuffled = random.Random(value).sample(names, value)
    settings = PATIENT | {"topicsMax": str(max(1_000, 2 * value))}
    async with raft_group(settings) as group:
        empty = group.usage()
        took_s = await _elapsed_s(create(group, names, 1))
        full = group.usage()
        figures = {"create_rate": value / took_s} | {
            f"{role}_kib_topic": (full.memory_mib[role] - mib) * 1024 / value
            for role, mib in empty.memory_mib.items()
        }
        first = await run_load(
            *(group.address, shuffled),
            queues=1,
            body=BODY,
            count=value,
            in_flight=min(value, IN_FLIGHT),
        )
        await asyncio.sleep(QUIET_S)
        figures |= {"first_rate": first.rate}
        figures |= await Load(seconds).measure(group, shuffled, 1)
        quiet = await Load(QUIET_S, in_flight=1).run(group.address, names[0], 1)
        follower = group.followers[0]
        await group.kill(follower)
        group.cluster.start(follower.name)
        return figures | {
            "lone_p50_ms": quiet.percentile_ms(0.5),
            "lone_max_ms": quiet.percentile_ms(1.0),
            "restart_follower_s": await _elapsed_s(group.wait_recovered()),
        }


async def log_of_three(value: int, seconds: float) -> Figures:
    """Like `log_size`, with three replicas, of which a follower then loses its store under load."""
    return await log_size(value, seconds, replica_count=3)


async def log_size(value: int, seconds: float, replica_count: int = 1) -> Figures:
    """Fill the log with bodies of 64 KiB, find its last message, and restart the leader."""
    settings = PROMPT | {"defaultTopicQueueNums": str(QUEUES), "diskMaxUsedSpaceRatio": "90"}
    async with warm_group(settings, replica_count) as group:
        figures = {"fill_mib_per_s": value / await _elapsed_s(_fill(group, value))}
        async with Producer("bench", group.namesrv) as producer:
            await producer.send(Message(TOPIC, BODY, keys="last"), timeout_ms=60_000)
        async with Admin(group.namesrv) as admin:

            async def indexed() -> bool:
                return bool(await admin.message.query(TOPIC, "last"))

            figures["find_last_ms"] = await _elapsed_s(_until(indexed)) * 1e3
        for name, number in (("kill", signal.SIGKILL), ("stop", signal.SIGTERM)):
            process = group.cluster.signal(group.leader.name, number)
            await group.cluster.wait_dead(process, READY_TIMEOUT_S)
            group.cluster.start(group.leader.name)
            figures[f"restart_after_{name}_s"] = await _elapsed_s(group.wait_recovered())
        if replica_count > 1:
            figures["calm_rate"] = (await Load(seconds).run(group.address)).rate
            await group.empty(group.followers[0])
            started_s = time.perf_counter()
            figures["refill_rate"] = (await Load(seconds).run(group.address)).rate
            await group.wait_recovered()
            figures["refill_s"] = time.perf_counter() - started_s
        return figures | {f"{role}_mib": mib for role, mib in group.usage().memory_mib.items()}


async def _fill(group: RaftGroup, mib: int) -> None:
    load, filled = Load(1.0, bytes(LARGE_BYTES), LARGE_IN_FLIGHT), 0
    while filled < mib << 20:
        filled += (await load.run(group.address)).messages * LARGE_BYTES


async def _elapsed_s(work: Awaitable[None]) -> float:
    started_s = time.perf_counter()
    await work
    return time.perf_counter() - started_s


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Poll until `holds()`. An exception counts as False, and is raised at the time-out."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            if await holds():
                return
        except Exception:  # the server is starting
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError(f"not so after {READY_TIMEOUT_S:g} s")
        await asyncio.sleep(RETRY_S)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A curve. `measure(value, seconds of load)` returns the figures of a point."""

    axis: str
    values: tuple[int, ...]
    measure: Callable[[int, float], Awaitable[Figures]]


SCENARIOS = {
    "beside": Scenario("sends per second", (1_000, 20_000, 40_000), beside),
    "window": Scenario("sends in flight", (1, 4, 16, 64, 256, 1_024, 4_096), window),
    "body": Scenario("bytes of a body", (16, 128, 1_024, 8_192, 65_536, 1 << 20), body),
    "connections": Scenario("connections", (1, 10, 100, 1_000, 5_000), connections),
    "topics": Scenario("topics", (1, 100, 1_000, 10_000, 100_000), topics),
    "log": Scenario("MiB of log on one replica", (256, 1_024, 5_120, 20_480), log_size),
    "log3": Scenario("MiB of log on three", (256, 1_024, 5_120), log_of_three),
    "groups": Scenario("groups of three", (1, 2, 4, 8), groups),
    "queues": Scenario("queues of one topic", (1, 4, 16, 64, 256, 1_024), queues),
    "consumers": Scenario("members of a group", (1, 10, 100, 300, 1_000), consumers),
    "replicas": Scenario("replicas", (1, 3, 5), replicas),
    "pops": Scenario("concurrent pops", (32,), pops),
    "held": Scenario("pulls that wait", (1, 100, 1_000, 5_000), held_pulls),
    "transfers": Scenario("transfers of leadership", (50,), transfers),
    "stops": Scenario("planned stops of the leader", (50,), planned_stops),
    "freezes": Scenario("freezes of the leader", (20,), freezes),
}
