"""Brokers as their node API shows them: small servers that answer what a test tells them to."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from raftmq.namesrv.config import NameServerConfig
from raftmq.namesrv.routes import THIS_MACHINE, Registration
from raftmq.namesrv.server import NameServer
from raftmq.remoting.registration import DataVersion, TopicConfig

EVENTS = "/api/v1/events"
NEVER_SILENT_MS = 1_000_000_000  # a registration that nobody renews lasts as long as the test
Reply = tuple[int, Any] | tuple[int, Any, dict[str, str]]


class FakeNode:
    """One broker. `answers`: (method, path) → (status, JSON[, headers]), or a function of the
    request that gives it. Every request is kept in `requested`."""

    def __init__(self, name: str, group: str = "broker-a", **view: Any) -> None:
        self.name = name
        self.group = group
        self.view = node_view(name, group) | view
        self.answers: dict[tuple[str, str], Reply | Callable[[web.Request, bytes], Reply]] = {}
        self.requested: list[tuple[str, str, Any, dict[str, str]]] = []
        self.hang = asyncio.Event()  # cleared: nothing is answered
        self.hang.set()
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._streams: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None
        self.http = ""
        self.address = ""

    @property
    def last(self) -> tuple[str, str, Any, dict[str, str]]:
        """Return the last request except for events, which the name server asks for at any time."""
        return next(requested for requested in reversed(self.requested) if requested[1] != EVENTS)

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(EVENTS, self._events)
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.http = f"127.0.0.1:{port}"
        self.address = f"127.0.0.1:{port - 1}"
        self.view |= {"address": self.address, "httpAddress": self.http}

    async def stop(self) -> None:
        self.hang.set()
        for task in list(self._streams):
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        await self.hang.wait()
        said = orjson.loads(body) if body else None
        self.requested.append((request.method, request.path_qs, said, dict(request.headers)))
        result = self.answers.get((request.method, request.path))
        if result is None and (request.method, request.path) == ("GET", "/api/v1/node"):
            return web.json_response(self.view)
        if callable(result):
            result = result(request, body)
        if result is None:
            result = (404, {"status": 404, "code": "NOT_FOUND", "detail": "there is nothing here"})
        status, value, *more = result
        headers = more[0] if more else {}
        return web.Response(
            status=status,
            body=orjson.dumps(value),
            content_type="application/json",
            headers=headers,
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self.requested.append(("GET", request.path, None, dict(request.headers)))
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        number = 0
        await response.write(b"retry: 2000\n\n:\n\n")
        while True:
            event = await self.events.get()
            number += 1
            await response.write(b"id: 7-%d\ndata: %s\n\n" % (number, orjson.dumps(event)))

    def tell(self, kind: str, term: int = 0, at: int | None = None, **detail: Any) -> None:
        when = time.time_ns() // 1_000_000 if at is None else at
        self.events.put_nowait(
            {"kind": kind, "node": self.name, "group": self.group, "term": term, "at": when,
             "detail": detail}
        )  # fmt: skip


class FakeCluster:
    """A name server with its HTTP side, and fake brokers that are registered as they say."""

    def __init__(self, *nodes: FakeNode, **config: Any) -> None:
        self.nodes = {node.name: node for node in nodes}
        settings: dict[str, Any] = {"bind": "127.0.0.1", "port": 0, "http_port": 0} | config
        self.server = NameServer(NameServerConfig(**settings))

    async def __aenter__(self) -> "FakeCluster":
        await self.server.start()
        for node in self.nodes.values():
            await node.start()
            self.register(node)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    @property
    def url(self) -> str:
        assert self.server.http is not None
        return f"http://127.0.0.1:{self.server.http.port}"

    def register(self, node: FakeNode, topics: list[TopicConfig] | None = None) -> None:
        """As the node's view says: the leader as brokerId 0."""
        given = [TopicConfig("Orders", 4, 4, 6)] if topics is None else topics
        version = DataVersion(len(given), 0, 1)
        leads = node.view["role"] in ("leader", "master")
        number = 0 if leads else int(node.name[1:]) + 1
        self.server.table.register(
            Registration("C", node.group, node.address, number, version=version, topics=given,
                         term=node.view["term"], http_address=node.http, peer=THIS_MACHINE,
                         timeout_ms=NEVER_SILENT_MS),
            time.monotonic_ns() // 1_000_000,
        )  # fmt: skip


def node_view(name: str, group: str) -> dict[str, Any]:
    """GET /api/v1/node of a healthy follower."""
    members = [{"id": n, "address": f"127.0.0.1:{n[1:]}", "role": "voter"} for n in names(group)]
    return {
        "name": name, "group": group, "cluster": "C", "brokerId": int(name[1:]) + 1, "mode": "raft",
        "engine": "dledger", "version": "0.1.0", "bootTimeMs": 1_700_000_000_000, "pid": 1,
        "role": "follower", "term": 3, "leader": names(group)[0], "leaderReady": False,
        "votedFor": names(group)[0], "recovered": True, "recovering": None, "commitIndex": 10_000,
        "appliedIndex": 10_000, "lastIndex": 10_000, "durableIndex": 10_000, "firstIndex": 1,
        "commitLog": {"minOffset": 0, "maxOffset": 5_000_000, "durableOffset": 5_000_000},
        "disk": {"state": "ok", "reason": "", "totalBytes": 100, "freeBytes": 60, "usedRatio": 0.4},
        "peers": [], "rates": {"sendsPerS": 0.0, "pullsPerS": 0.0}, "members": members,
    }  # fmt: skip


def names(group: str) -> list[str]:
    first = 3 * (ord(group[-1]) - ord("a"))
    return [f"n{number}" for number in range(first, first + 3)]


def replicas(group: str = "broker-a") -> list[FakeNode]:
    """Three that agree; the first leads."""
    made = [FakeNode(name, group) for name in names(group)]
    made[0].view |= {"role": "leader", "leaderReady": True, "brokerId": 0}
    return made
