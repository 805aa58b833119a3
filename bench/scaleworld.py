"""Made-up brokers and clients for bench.scale, on loopback.

A made-up broker registers as a real broker does (broker.registration), with the topics of a real
leader. Tables are large and equal in all brokers, so it returns the leader's recorded responses to
requests for them. It forwards all other requests to the leader. A made-up client watches the routes
of its topics at the name servers, as our client does.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import aiohttp
import orjson
from aiohttp import web

from raftmq.broker.registeredtopics import RegisteredTopics
from raftmq.broker.registration import Identity, Registrar
from raftmq.broker.tables.broker_group import BrokerGroupTable
from raftmq.broker.tables.topics import TopicConfig, TopicTable
from raftmq.client.metadata import WATCH
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codec import FrameReader, encode_command
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.memory_limits import Budgets
from raftmq.remoting.server import RemotingServer

HOST, CLUSTER = "127.0.0.1", "DefaultCluster"
REPLICAS = 3
TIMEOUT_MS = 60_000
PERIOD_MS = 30_000  # registerNameServerPeriod, and Java's clients' interval for routes
RECORDED = frozenset(
    (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_DEFINITIONS,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_TOPIC_CONFIG,
    )
)
T = TypeVar("T")


class Recorder:
    """The answers of the real leader of `name` at `address`, whose HTTP API is at `http`."""

    def __init__(self, name: str, address: str, http: str) -> None:
        self._name = name
        self._address = address
        self._http = http
        self._client = RemotingClient()
        self._session = aiohttp.ClientSession()
        self._recorded: dict[object, asyncio.Task[Any]] = {}

    async def close(self) -> None:
        await self._client.close()
        await self._session.close()

    def forget(self) -> None:
        """Ask again, because the leader's tables have changed."""
        self._recorded.clear()

    def _once(self, key: object, ask: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        if key not in self._recorded:
            self._recorded[key] = asyncio.ensure_future(ask())
        return self._recorded[key]

    async def answer(self, name: str, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the leader's answer, as that of the broker group `name`."""

        def ask() -> Awaitable[RemotingCommand]:
            copy = RemotingCommand.request(request.code, request.ext, request.body)
            return self._client.invoke(self._address, copy, TIMEOUT_MS)

        if request.code in RECORDED:
            key = (request.code, str(request.ext), request.body)
            result = await asyncio.shield(self._once(key, ask))
        else:
            result = await ask()
        body = result.body.replace(b'"broker":"%b"' % self._name.encode(),
                                   b'"broker":"%b"' % name.encode())  # fmt: skip
        return RemotingCommand.response_to(request, result.code, result.remark, result.ext, body)

    async def http(self, path: str) -> tuple[int, bytes]:
        async def ask() -> tuple[int, bytes]:
            async with self._session.get(f"http://{self._http}{path}") as response:
                return response.status, await response.read()

        return await asyncio.shield(self._once(path, ask))


class Group:
    """A broker group of three made-up replicas."""

    def __init__(
        self,
        name: str,
        topics: Mapping[str, TopicConfig],
        recorder: Recorder,
        *,
        namesrv: str,
        keys: Sequence[bytes],
    ) -> None:
        self.name = name
        self.table = TopicTable()
        self.table.entries = dict(topics)
        self.table.counter, self.table.timestamp_ms = len(topics), time.time_ns() // 1_000_000
        self._registered = RegisteredTopics(self.table, None, BrokerGroupTable())
        self._id = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
        self._recorder = recorder
        self._namesrv = namesrv
        self._keys = keys
        self._leader, self._term = 0, 1
        self.registrars: list[Registrar] = []
        self._servers: list[RemotingServer] = []
        self._runners: list[web.AppRunner] = []

    async def start(self, budgets: Budgets) -> None:
        """Listen, register, and return at once."""
        for number in range(REPLICAS):
            answer = partial(self._recorder.answer, self.name)
            handlers = dict.fromkeys(map(int, RequestCode), answer)
            server = RemotingServer(handlers, budgets=budgets)
            await server.start(HOST)
            self._servers.append(server)
            address = f"{HOST}:{server.port}"
            registrar = Registrar(
                [self._namesrv],
                cluster=CLUSTER,
                broker_name=self.name,
                address=address,
                ha_address=lambda: "",
                http_address=await self._serve_http(number, address),
                identity=partial(self._identity, number),
                topics=self._registered,
                on_master=lambda address, ha_address: None,
                needs_master=lambda: False,
                period_ms=PERIOD_MS,
                signing_keys=self._keys,
            )
            self.registrars.append(registrar)
            registrar.start()

    async def stop(self) -> None:
        """Unregister, as brokers that are stopped."""
        await asyncio.gather(*(one.stop() for one in self.registrars))
        await asyncio.gather(*(one.stop() for one in self._servers))
        await asyncio.gather(*(one.cleanup() for one in self._runners))

    @property
    def is_listed(self) -> bool:
        return all(one.registered for one in self.registrars)

    def fail_over(self) -> None:
        """Have the next replica lead, in a new term."""
        self._leader, self._term = (self._leader + 1) % REPLICAS, self._term + 1
        self.trigger()

    def put(self, topic: TopicConfig) -> None:
        self.table.put(topic, time.time_ns() // 1_000_000)
        self.trigger()

    def trigger(self) -> None:
        for registrar in self.registrars:
            registrar.trigger()

    def _identity(self, number: int) -> Identity:
        own, group_id = number + 1, self._id
        if number == self._leader:
            return Identity(0, self._term, "leader", group_id=group_id, own_id=own)
        return Identity(own, self._term, "follower", group_id=group_id)

    async def _serve_http(self, number: int, address: str) -> str:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.path == "/api/v1/events":
                response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await response.prepare(request)
                await asyncio.sleep(TIMEOUT_MS)
            status, body = await self._recorder.http(request.path_qs)
            if request.path == "/api/v1/node":
                leads = number == self._leader
                body = orjson.dumps(
                    orjson.loads(body)
                    | {"name": f"{self.name}-{number}", "group": self.name, "address": address}
                    | {"leader": f"{self.name}-{self._leader}", "term": self._term}
                    | {"role": "leader" if leads else "follower", "leaderReady": leads}
                )
            return web.Response(status=status, body=body, content_type="application/json")

        app = web.Application()
        app.router.add_get("/{tail:.*}", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, HOST, 0).start()
        return f"{HOST}:{runner.addresses[0][1]}"


class RouteClient(asyncio.Protocol):
    """A client's connection to a name server, on which it watches the routes of its topics."""

    def __init__(self, topics: Sequence[str], seen: Routes) -> None:
        requests = [
            RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **WATCH})
            for topic in topics
        ]
        requests.append(RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO, None))
        for number, request in enumerate(requests):
            request.opaque = number
        self._frames = [encode_command(request) for request in requests]
        self._numbers = {topic: number for number, topic in enumerate(topics)}
        self._seen = seen
        self._reader = FrameReader()
        self._sent_ns: dict[int, int] = {}  # by opaque

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.ask_all()

    def connection_lost(self, error: Exception | None) -> None:
        self._seen.lost(self, len(self._sent_ns))

    def ask_all(self) -> None:
        for number in self._numbers.values():
            self._ask(number)

    def _ask(self, number: int) -> None:
        if number not in self._sent_ns:  # as our directory, which shares a request
            self._sent_ns[number] = time.perf_counter_ns()
            self._seen.unanswered += 1
            self._transport.write(self._frames[number])

    def data_received(self, data: bytes) -> None:
        for _, header, body in self._reader.split(data):
            command = orjson.loads(header)
            if command["flag"] & 1:
                took_ns = time.perf_counter_ns() - self._sent_ns.pop(command["opaque"])
                self._seen.answered(took_ns)
                continue
            self._seen.received_push()
            changed = orjson.loads(body)
            everything = command["extFields"]["everything"] == "true"
            if everything:
                self._ask(len(self._numbers))
            for topic in self._numbers if everything else changed["topics"]:
                self._ask(self._numbers[topic])

    def close(self) -> None:
        self._transport.close()


def _itself(client: RouteClient) -> RouteClient:
    return client


class Routes:
    """Clients that watch the routes of `topics`, `each` of them per client."""

    def __init__(self, namesrv: str, topics: Sequence[str], count: int, each: int) -> None:
        host, _, port = namesrv.rpartition(":")
        self._where = host, int(port)
        shares = [range(number * each, (number + 1) * each) for number in range(count)]
        self._topics = [[topics[at % len(topics)] for at in share] for share in shares]
        self._clients: dict[RouteClient, list[str]] = {}
        self._closing = False
        self.unanswered = 0
        self.pushed = 0
        self.latencies_ns: array[int] = array("q")
        self._last_s = 0.0

    async def connect(self) -> None:
        for topics in self._topics:
            await self._connect(topics)

    async def _connect(self, topics: list[str]) -> None:
        while True:
            client = RouteClient(topics, self)
            self._clients[client] = topics
            try:
                await asyncio.get_running_loop().create_connection(
                    partial(_itself, client), *self._where
                )
            except OSError:  # the name server is down
                del self._clients[client]
                await asyncio.sleep(1)
            else:
                return

    def lost(self, client: RouteClient, unanswered: int) -> None:
        self.unanswered -= unanswered
        topics = self._clients.pop(client)
        if not self._closing:
            asyncio.ensure_future(self._connect(topics))  # noqa: RUF006 - as long as we run

    def received_push(self) -> None:
        self.pushed += 1
        self._last_s = time.perf_counter()

    def answered(self, took_ns: int) -> None:
        self.unanswered -= 1
        self.latencies_ns.append(took_ns)
        self._last_s = time.perf_counter()

    async def poll(self, seconds: float) -> None:
        """Have each client ask for its routes once in this time."""
        clients = list(self._clients)
        started_s = time.perf_counter()
        for number, client in enumerate(clients, 1):
            client.ask_all()
            late_s = started_s + seconds * number / len(clients) - time.perf_counter()
            if late_s > 0.002:
                await asyncio.sleep(late_s)

    async def quiet(self, for_s: float = 1.0) -> float:
        """Return once nothing was asked, answered or pushed for a while, and when that began."""
        self._last_s = time.perf_counter()
        while self.unanswered or time.perf_counter() - self._last_s < for_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return self._last_s

    def close(self) -> None:
        self._closing = True
        for client in list(self._clients):
            client.close()
