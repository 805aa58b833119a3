"""The points of bench.curves: each function measures one value of one curve, on a group of its own.

A load's figures are its rate (and the floor's, measured with the same load right before: the
machine is seldom alone), p50 and p99, CPU microseconds a message by process, and resident MiB by
process when it ends.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import orjson

from bench.group import PATIENT, PROMPT, RaftGroup, Usage, floor_server, raft_group
from bench.wire import LoadResult, run_load
from raftmq.client import Admin, Message, Producer
from raftmq.remoting.admin_headers import TopicHeader
from raftmq.remoting.codec import encode_command
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand

Figures = dict[str, float]

TOPIC = "Curve"
QUEUES = 4
IN_FLIGHT = 256
BODY = b"x" * 128
LARGE_BYTES, LARGE_IN_FLIGHT = 64 << 10, 64  # to fill a log
MANY = 1 << 40  # requests: more than any load sends in its time
CREATIONS = 64  # topics that are created at one time
LIST_LIMIT = 1_000  # topics in a page of the HTTP API
RETRY_S = 0.01
ATTEMPTS = 3  # at a load during which leadership changed
READY_TIMEOUT_S = 600.0
QUIET_S = 12.0  # of lone sends: long enough for a snapshot of the tables (snapshotIntervalMs)
SETTINGS = PATIENT | {"defaultTopicQueueNums": str(QUEUES)}


def progress(text: str) -> None:
    print(f"  {text}", flush=True)


class Load:
    """A load on one group: sends on one connection, a number of them in flight."""

    def __init__(self, seconds: float, body: bytes = BODY, in_flight: int = IN_FLIGHT) -> None:
        self._seconds = seconds
        self._body = body
        self._in_flight = in_flight

    async def run(self, address: str, topics: str | Sequence[str], queues: int) -> LoadResult:
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
        """Return the figures of the load."""
        async with floor_server() as floor:
            least = await self.run(floor, TOPIC, QUEUES)
        before = group.usage()
        result = await self.run(group.address, topics, queues)
        return (
            {
                "rate": result.rate,
                "p50_ms": result.percentile_ms(0.5),
                "p99_ms": result.percentile_ms(0.99),
                "max_ms": result.percentile_ms(1.0),
                "floor_rate": least.rate,
                "floor_p50_ms": least.percentile_ms(0.5),
            }
            | per_message(before, group.usage(), result.messages)
            | memory(group.usage())
        )


def per_message(before: Usage, after: Usage, count: int) -> Figures:
    spent = {role: after.cpu_us[role] - us for role, us in before.cpu_us.items()}
    return {f"{role}_us": us / count for role, us in spent.items() if role != "namesrv"}


def memory(usage: Usage) -> Figures:
    return {f"{role}_mib": mib for role, mib in usage.memory_mib.items()}


@asynccontextmanager
async def warm_group(
    settings: Mapping[str, str] = SETTINGS, replicas: int = 3
) -> AsyncIterator[RaftGroup]:
    """Run a group whose topic TOPIC exists and that has had some load."""
    async with raft_group(settings, replicas) as group:
        await Load(0.5).run(group.address, TOPIC, QUEUES)
        yield group


async def window(value: int, seconds: float) -> Figures:
    """Measure with `value` sends in flight."""
    async with warm_group() as group:
        return await Load(seconds, in_flight=value).measure(group)


async def body(value: int, seconds: float) -> Figures:
    """Measure bodies of `value` bytes, at most 16 MiB of them in flight."""
    in_flight = max(4, min(IN_FLIGHT, (16 << 20) // value))
    async with warm_group() as group:
        figures = await Load(seconds, bytes(value), in_flight).measure(group)
    return figures | {"mib_s": figures["rate"] * value / (1 << 20)}


async def replicas(value: int, seconds: float) -> Figures:
    """Measure a group of `value` replicas."""
    async with warm_group(replicas=value) as group:
        return await Load(seconds).measure(group)


async def queues(value: int, seconds: float) -> Figures:
    """Measure a topic of `value` queues, to which sends go in turn."""
    async with warm_group() as group:
        await create(group, ["Queues"], value)
        return await Load(seconds).measure(group, "Queues", value)


async def groups(value: int, seconds: float) -> Figures:
    """Measure `value` groups of three replicas at once, IN_FLIGHT sends in flight in all."""
    async with floor_server() as floor:
        least = await Load(seconds).run(floor, TOPIC, QUEUES)
    async with raft_group(SETTINGS, groups=value) as group:
        leaders = [leader.address for leader in await group.leaders()]
        await asyncio.gather(*(Load(0.5).run(one, TOPIC, QUEUES) for one in leaders))
        load = Load(seconds, in_flight=max(1, IN_FLIGHT // value))
        before_us, _ = group.all_replicas()
        results = await asyncio.gather(*(load.run(one, TOPIC, QUEUES) for one in leaders))
        after_us, resident_mib = group.all_replicas()
    whole = LoadResult.together(results)
    return {
        "rate": whole.rate,
        "slowest_group_rate": min(result.rate for result in results),
        "p50_ms": whole.percentile_ms(0.5),
        "p99_ms": whole.percentile_ms(0.99),
        "floor_rate": least.rate,
        "all_replicas_us": (after_us - before_us) / whole.messages,
        "all_replicas_mib": resident_mib,
    }


async def connections(value: int, seconds: float) -> Figures:
    """Measure one busy connection beside `value` - 1 idle ones, and then all of them with one send
    in flight each."""
    async with warm_group() as group:
        before = group.usage().memory_mib["leader"]
        host, _, port = group.address.rpartition(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(value - 1)]
        await asyncio.sleep(1)
        held = group.usage().memory_mib["leader"] - before
        figures = await Load(seconds).measure(group)
        for _, writer in idle:
            writer.close()
        one = Load(seconds, in_flight=1)
        begun = group.usage()
        results = await asyncio.gather(
            *(one.run(group.address, TOPIC, QUEUES) for _ in range(value))
        )
        whole = LoadResult.together(results)
        cost = per_message(begun, group.usage(), whole.messages)
    return figures | {
        "idle_kib_each": held * 1024 / max(1, value - 1),
        "busy_rate": whole.rate,
        "busy_p50_ms": whole.percentile_ms(0.5),
        "busy_p99_ms": whole.percentile_ms(0.99),
        "busy_leader_us": cost["leader_us"],
    }


class Member(asyncio.Protocol):
    """A consumer as its broker sees it, and nothing else: it joins a group, and asks who is in the
    group whenever it is told that this changed (once more if it is told while it asks)."""

    def __init__(self, group: str, number: int) -> None:
        self._group = group
        self._id = f"bench@{number}"
        self._asking = self._again = False
        self.told = self.asked = 0
        self.known = 0  # members in the last answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def join(self) -> None:
        entry = {"topic": TOPIC, "subString": "*", "expressionType": "TAG", "subVersion": 1}
        consumer = {
            "groupName": self._group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [entry],
        }
        body = {"clientID": self._id, "consumerDataSet": [consumer], "producerDataSet": []}
        self._send(RequestCode.HEART_BEAT, None, orjson.dumps(body))

    def leave(self) -> None:
        self._transport.close()

    def _send(self, code: int, ext: dict[str, str] | None, body: bytes = b"") -> None:
        self._transport.write(encode_command(RemotingCommand.request(code, ext, body)))

    def data_received(self, data: bytes) -> None:
        told = data.count(b'"code":40')
        self.told += told
        if b"consumerIdList" in data:
            self._asking = False
            self.known = data.count(b"bench@")
        if told or self._again:
            self._again = self._asking
            if not self._asking:
                self._asking = True
                self.asked += 1
                ext = {"consumerGroup": self._group}
                self._send(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)


async def consumers(value: int, seconds: float) -> Figures:
    """Measure a consumer group whose `value` members join one right after the other, and are then
    left by one of them."""
    async with warm_group() as group:
        host, _, port = group.address.rpartition(":")
        loop = asyncio.get_running_loop()
        members: list[Member] = []
        for number in range(value):
            member = Member("many", number)
            members.append(member)
            await loop.create_connection(lambda: members[-1], host, int(port))
        before = group.usage()
        begun = time.perf_counter()
        for member in members:
            member.join()
            await asyncio.sleep(0)

        async def all_know(count: int) -> bool:
            return all(member.known == count for member in members[-count:])

        await _until(lambda: all_know(value))
        joined = time.perf_counter() - begun
        after = group.usage()
        figures = {
            "join_ms": joined * 1e3,
            "told_each": sum(member.told for member in members) / value,
            "asked_each": sum(member.asked for member in members) / value,
            "join_leader_us": (after.cpu_us["leader"] - before.cpu_us["leader"]) / value,
        }
        if value > 1:
            begun = time.perf_counter()
            members[0].leave()
            await _until(lambda: all_know(value - 1))
            figures["leave_ms"] = (time.perf_counter() - begun) * 1e3
        figures |= await Load(seconds).measure(group)
        for member in members:
            member.leave()
        return figures


async def create(group: RaftGroup, names: Sequence[str], queues: int) -> float:
    """Create topics at the leader, CREATIONS at a time; return the seconds that took."""
    waiting = iter(names)

    async def lane(admin: Admin) -> None:
        for name in waiting:
            await admin.topic.put(group.address, TopicHeader(name, queues, queues, 6))

    begun = time.perf_counter()
    async with Admin(group.namesrv) as admin:
        await asyncio.gather(*(lane(admin) for _ in range(min(CREATIONS, len(names)))))
    return time.perf_counter() - begun


async def log_of_three(value: int, seconds: float) -> Figures:
    """Measure a group of three as log_size does one replica, and how long a replica takes that lost
    its disk. A restart is the leader's: another one leads meanwhile."""
    return await log_size(value, seconds, replicas=3)


async def log_size(value: int, seconds: float, replicas: int = 1) -> Figures:
    """Measure a group with `value` MiB of log, in bodies of 64 KiB: how long it takes to be filled,
    to come back after SIGKILL and after SIGTERM, and to find its first and last message."""
    settings = PROMPT | {"defaultTopicQueueNums": str(QUEUES), "diskMaxUsedSpaceRatio": "90"}
    async with warm_group(settings, replicas) as group:
        await _mark(group, "first")
        begun = time.perf_counter()
        load = Load(1.0, bytes(LARGE_BYTES), LARGE_IN_FLIGHT)
        filled, lives = 0, {}
        while filled < value << 20:
            filled += (await load.run(group.address, TOPIC, QUEUES)).messages * LARGE_BYTES
        figures = {"fill_mib_s": (filled >> 20) / (time.perf_counter() - begun)}
        await _mark(group, "last")
        progress(f"filled at {figures['fill_mib_s']:,.0f} MiB/s")
        figures |= await _found(group)
        for name, number in (("kill", signal.SIGKILL), ("stop", signal.SIGTERM)):
            process = group.cluster.signal(group.leader.name, number)
            await group.cluster.wait_dead(process, READY_TIMEOUT_S)
            group.cluster.start(group.leader.name)
            lives[f"restart_after_{name}_s"] = await _elapsed(group.whole)
        if replicas > 1:
            await group.empty(group.followers[0])
            lives["refill_s"] = await _elapsed(group.whole)
        figures |= lives | {f"cold_{name}": ms for name, ms in (await _found(group)).items()}
        return figures | memory(group.usage())


async def _mark(group: RaftGroup, key: str) -> None:
    async with Producer("bench", group.namesrv) as producer:
        await producer.send(Message(TOPIC, BODY, keys=key), timeout_ms=60_000)


async def _found(group: RaftGroup) -> Figures:
    """Return the times of lookups by key, of the log's first message and of its last, until the
    index goes so far that it is found."""
    figures = {}
    async with Admin(group.namesrv) as admin:
        await admin.cluster.route(TOPIC)
        for key in ("first", "last"):
            begun = time.perf_counter()
            while not (found := await admin.message.query(TOPIC, key)):  # noqa: ASYNC110
                await asyncio.sleep(RETRY_S)
            (message,) = found
            figures[f"find_{key}_ms"] = (time.perf_counter() - begun) * 1e3
            begun = time.perf_counter()
            await admin.offset.search(message.queue, message.store_timestamp_ms)
            figures[f"find_{key}_time_ms"] = (time.perf_counter() - begun) * 1e3
    return figures


async def topics(value: int, seconds: float) -> Figures:
    """Measure a group with `value` topics: making them, listing them, sending to all of them in a
    random order, what they cost while little happens, restarts, and a failover."""
    names = [f"topic-{number:06}" for number in range(value)]
    shuffled = random.Random(value).sample(names, value)
    settings = PROMPT | {"topicsMax": str(max(1_000, 2 * value))}
    async with raft_group(settings) as group:
        empty = group.usage()
        took = await create(group, names, 1)
        made = group.usage()
        figures = {
            "create_rate": value / took,
            **{f"create_{role}_us": (made.cpu_us[role] - us) / value
               for role, us in empty.cpu_us.items()},
            **{f"{role}_kib_topic": (made.memory_mib[role] - mib) * 1024 / value
               for role, mib in empty.memory_mib.items()},
        }  # fmt: skip
        progress(f"created at {figures['create_rate']:,.0f}/s")
        figures |= await _listed(group, value)
        figures |= await _quiet(group, names[0])
        progress(f"lone sends: at most {figures['quiet_max_ms']:.1f} ms")
        refused = 0
        for _ in range(ATTEMPTS):
            try:
                first = await _elapsed(lambda: _send_once(group, shuffled))
                figures |= {"first_sends_rate": value / first}
                figures |= await Load(seconds).measure(group, shuffled, 1)
                break
            except RuntimeError as error:  # another replica leads: this disk is slow just now
                refused += 1
                progress(str(error)[:100])
                await group.whole()
        figures |= {"loads_refused": refused}
        figures |= {f"sent_{n}": v for n, v in (await _quiet(group, names[0])).items()}
        progress(f"first sends {figures['first_sends_rate']:,.0f}/s, then {figures['rate']:,.0f}/s")
        figures |= await _restarts(group, value)
        figures |= await _failover(group, names)
        return figures


async def _send_once(group: RaftGroup, names: Sequence[str]) -> None:
    await run_load(
        *(group.address, names), queues=1, body=BODY, count=len(names), in_flight=IN_FLIGHT
    )


async def _listed(group: RaftGroup, value: int) -> Figures:
    """Return the times of listing all topics, by the client's request and by pages over HTTP."""
    async with Admin(group.namesrv) as admin:
        begun = time.perf_counter()
        listed = await admin.cluster.topics()
        wire_s = time.perf_counter() - begun
    assert len(listed) >= value, (len(listed), value)
    (namesrv,) = group.cluster.state().name_servers
    pages = [0.0]
    cursor, count = "", 0
    async with aiohttp.ClientSession() as session:
        while cursor is not None:
            begun = time.perf_counter()
            query = {"limit": str(LIST_LIMIT), **({"cursor": cursor} if cursor else {})}
            async with session.get(f"http://{namesrv.http}/api/v1/topics", params=query) as answer:
                answer.raise_for_status()
                got: dict[str, Any] = await answer.json()
            pages.append(time.perf_counter() - begun)
            count += len(got["items"])
            cursor = got["next"]
    assert count >= value, (count, value)
    return {"list_ms": wire_s * 1e3, "page_ms": max(pages) * 1e3, "pages_ms": sum(pages) * 1e3}


async def _quiet(group: RaftGroup, topic: str) -> Figures:
    """Return the latencies of lone sends, whatever else the processes have to do meanwhile."""
    before = group.usage()
    result = await Load(QUIET_S, in_flight=1).run(group.address, topic, 1)
    after = group.usage()
    return {
        "quiet_p50_ms": result.percentile_ms(0.5),
        "quiet_p99_ms": result.percentile_ms(0.99),
        "quiet_max_ms": result.percentile_ms(1.0),
        "quiet_namesrv_cpu_ms_s": (after.cpu_us["namesrv"] - before.cpu_us["namesrv"])
        / 1e3 / QUIET_S,
    }  # fmt: skip


async def _restarts(group: RaftGroup, value: int) -> Figures:
    """Return the times that a killed follower takes until it has everything again, and a killed
    name server until it knows all topics again."""
    follower = group.followers[0]
    await group.kill(follower)
    group.cluster.start(follower.name)
    took = {"restart_follower_s": await _elapsed(group.whole)}
    (namesrv,) = group.cluster.state().name_servers
    await group.kill(namesrv)
    group.cluster.start(namesrv.name)

    async def known() -> bool:
        async with Admin(group.namesrv) as admin:
            return len(await admin.cluster.topics()) >= value

    return took | {"restart_namesrv_s": await _elapsed(lambda: _until(known))}


async def _failover(group: RaftGroup, names: Sequence[str]) -> Figures:
    """Kill the leader; return the times until a producer's next acknowledgement, until one of a
    topic it had not sent to, and until the name server names the new leader."""
    async with Producer("bench", group.namesrv) as producer:
        await producer.send(Message(names[0], BODY))
        await group.kill(group.leader)
        begun = time.perf_counter()
        await producer.send(Message(names[0], BODY), timeout_ms=60_000)
        acknowledged = time.perf_counter() - begun
        await producer.send(Message(names[-1], BODY), timeout_ms=60_000)
        other = time.perf_counter() - begun
    await group.cluster.wait_serving(READY_TIMEOUT_S)
    known = time.perf_counter() - begun
    return {
        "failover_ms": acknowledged * 1e3,
        "failover_other_topic_ms": other * 1e3,
        "failover_registered_ms": known * 1e3,
    }


async def _elapsed(work: Callable[[], Awaitable[None]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return when `holds()`; an error means not yet."""
    end = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            if await holds():
                return
        except Exception:  # it is starting: not yet
            if time.monotonic() > end:
                raise
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {READY_TIMEOUT_S:g} s")
        await asyncio.sleep(RETRY_S)
