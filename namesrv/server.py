"""The name server with its listener, timers and configuration file."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.ops.descriptors import Ports, Shares, descriptor_limit, warn_if_limited
from raftmq.ops.memory import Trimmer
from raftmq.remoting.acl import AclError
from raftmq.remoting.connection import Connection, ConnectionLimits
from raftmq.remoting.errors import RemotingError
from raftmq.remoting.fair_scheduling import Steps, StepTurns
from raftmq.remoting.memory_limits import BudgetLimits, Budgets
from raftmq.remoting.process_tls import ProcessTls
from raftmq.remoting.registration_proof import KeyFileError, load_registration_keys
from raftmq.remoting.server import RemotingServer, ServerLimits
from raftmq.remoting.threads import in_thread_to_its_end
from raftmq.remoting.tls import TlsError, TlsMode
from raftmq.remoting.tls_listener import ArrivalLimits
from raftmq.web.auth import Access as WebAccess
from raftmq.web.settings import WebConfigError

from .access import Access
from .config import NameServerConfig
from .kv import KvConfig
from .metrics import NameServerMetrics
from .processor import LOG, NameServerProcessor, log_gone, route_changed
from .registration_auth import Proofs
from .routes import RouteLimits, RouteTable
from .settings import Settings
from .watchers import CHANGES_MAX, GOES_ON, Pace, RouteWatchers

if TYPE_CHECKING:
    from .http.server import ClusterApi

__all__ = ["KV_FILE_NAME", "NameServer", "NameServerConfig"]

SCAN_INTERVAL_S = 5.0
PUSH_DELAY_S = 0.01  # route changes are collected for this time before a push
KV_FILE_NAME = "kvConfig.json"


START_READ_ERRORS = (AclError, KeyFileError, TlsError, WebConfigError)


def start_reads(config: NameServerConfig) -> Iterator[Callable[[], object]]:
    yield Access(config).prepare
    yield ProcessTls(config).load
    yield partial(load_registration_keys, config.registration_key_file)
    if config.http_enable:
        yield partial(WebAccess.of, config.web, with_sessions=True)


class NameServer:
    """A name server, as `async with NameServer(config) as server:` or with `start` and `stop`."""

    def __init__(self, config: NameServerConfig, limits: RouteLimits | None = None) -> None:
        self._config = config
        self.table = RouteTable(limits, signed_only=config.signed_only)
        self.metrics = NameServerMetrics(self.table)
        self._turns = StepTurns()
        self._tasks: set[asyncio.Task[None]] = set()  # large changes of topics
        self.budgets = Budgets(BudgetLimits())
        self._watchers: RouteWatchers[Connection] = RouteWatchers(self.budgets.kept)
        self.table.run_with(self._in_turns)
        watchers = self._watchers
        self.table.watch(lambda g: self._push_soon(watchers.group_changed(g.name), False))
        self.table.watch_topics(lambda t: self._push_soon(watchers.topic_changed(t), True))
        self._kv_path = Path(config.store, KV_FILE_NAME) if config.store else None
        self.access = Access(config)
        self._shares = Shares(descriptor_limit(), ports_of(config))
        self.tls = ProcessTls(config, limits=ArrivalLimits(arriving_max=self._shares.arriving))
        self.server: RemotingServer | None = None
        self._scan: asyncio.Task[None] | None = None
        self._pushes: dict[bool, asyncio.TimerHandle] = {}  # by whether topics are pushed
        self._paces = {False: Pace(), True: Pace(GOES_ON)}  # of groups, of topics
        self.processor: NameServerProcessor | None = None  # None before the start
        self.http: ClusterApi | None = None  # None before the start, and if httpEnable=false

    @property
    def port(self) -> int:
        assert self.server is not None, "not started"
        return self.server.port

    @property
    def address(self) -> str:
        return f"{self._config.bind}:{self.port}"

    async def start(self) -> None:
        """Start serving. Raises OSError for a port in use or an unusable store; BodyError for a
        damaged store, since an empty configuration would mislead; WebConfigError for an open HTTP
        API; TlsError; AclError for unreadable accounts; KeyFileError."""
        await asyncio.to_thread(self.access.prepare)
        await asyncio.to_thread(self.tls.load)
        kv = await asyncio.to_thread(self._load_kv)
        shown = {"kvConfigPath": str(self._kv_path) if self._kv_path else ""}
        settings = Settings(self._config, shown)
        keys = await asyncio.to_thread(load_registration_keys, self._config.registration_key_file)
        self.processor = processor = NameServerProcessor(
            self.table,
            kv,
            _now_ms,
            self._save_kv,
            settings,
            Proofs(keys, signed_only=self._config.signed_only),
            self._watchers,
            self._turns,
            admins_only=self.access.enabled,
            body_limits=self._config.body_limits,
            warnings=lambda: self.tls.warnings,
        )
        self.server = RemotingServer(
            self.metrics.counted(self.access.guarding(processor.handlers())),
            limits=ConnectionLimits(frame_size_max=self._config.frame_size_max),
            on_connection_closed=processor.channel_closed,
            server_limits=self._server_limits(),
            tls=self.tls.server,
            budgets=self.budgets,
            on_held=Trimmer().poll,
            with_accounts=self.access.enabled,
        )
        await self.server.start(self._config.bind, self._config.port)
        self.metrics.start(self.server, self.tls)
        self.tls.start()
        self._scan = asyncio.create_task(self._scan_forever())
        if self._config.http_enable:
            # aiohttp takes longer to import than all the rest; clients are served in between.
            await asyncio.to_thread(importlib.import_module, "raftmq.namesrv.http.server")
            from .http.server import ClusterApi

            host, port = self._config.bind, self.port
            render = self.metrics.render
            self.http = ClusterApi(
                self._config, self.table, host, port, render, self.tls, self._shares.http
            )
            await self.http.start()

    async def stop(self) -> None:
        self.metrics.stop()
        await self.tls.stop()
        if self.http is not None:
            await self.http.stop()
        for push in self._pushes.values():
            push.cancel()
        own = [*self._tasks, *([] if self._scan is None else [self._scan])]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        if self.server is not None:
            await self.server.stop()

    async def __aenter__(self) -> NameServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _server_limits(self) -> ServerLimits:
        """Return the limits of the client port; log if descriptors lower them."""
        requested, shares = ServerLimits().connections_max, self._shares
        allowed = min(requested, shares.clients())
        warn_if_limited(allowed, requested, shares.limit)
        return ServerLimits(connections_max=allowed, backlog=shares.accepted_at_once)

    def _push_soon(self, requested: bool, with_topics: bool) -> None:
        """Push changed groups soon, or everything when changed topics are due."""
        if not requested or with_topics in self._pushes:
            return
        loop = asyncio.get_running_loop()
        due_s = max(loop.time() + PUSH_DELAY_S, self._paces[with_topics].due_s)
        self._pushes[with_topics] = loop.call_at(due_s, self._push_now, with_topics)

    def _push_now(self, with_topics: bool) -> None:
        del self._pushes[with_topics]
        self._in_turns(self._pushing(with_topics))

    def _pushing(self, with_topics: bool) -> Steps[None]:
        changed = yield from self._watchers.taking(with_topics=with_topics)
        counts = (CHANGES_MAX if c.everything else max(1, len(c.topics)) for _, c in changed)
        self._paces[with_topics].pushed(asyncio.get_running_loop().time(), sum(counts))
        for connection, changes in changed:
            try:
                connection.invoke_oneway(route_changed(self.table, changes))
            except RemotingError as error:  # it polls every 30 s
                LOG.info("route_change_not_told peer=%s: %s", connection.peer_address, error)
            yield

    def _in_turns(self, steps: Steps[None]) -> None:
        task = asyncio.get_running_loop().create_task(self._turns.run(steps))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _scan_forever(self) -> None:
        while True:
            await asyncio.sleep(SCAN_INTERVAL_S)
            await asyncio.to_thread(self.access.check_file)
            while removed := self.table.expire(_now_ms()):
                log_gone(removed, "silent")
                for broker in removed:
                    if isinstance(broker.channel, Connection):
                        broker.channel.close("broker was silent")  # a live broker reconnects
                await asyncio.sleep(0)

    def _load_kv(self) -> KvConfig:
        if self._kv_path is None:
            return KvConfig()
        self._kv_path.parent.mkdir(parents=True, exist_ok=True)
        if not self._kv_path.exists():
            return KvConfig()
        return KvConfig.decode(self._kv_path.read_bytes())

    async def _save_kv(self, data: bytes) -> None:
        if self._kv_path is not None:
            await in_thread_to_its_end(_replace_file, self._kv_path, data)


def _replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically by writing a new file, with fsync of the file and its directory."""
    fresh = path.with_suffix(".tmp")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def ports_of(config: NameServerConfig) -> Ports:
    """Return the ports besides the client port, for the shares of descriptors."""
    http = int(config.http_enable) * (2 if config.http_health_port else 1)
    tls = int(config.tls_server_mode != TlsMode.DISABLED)
    tls += int(config.http_enable and config.http_tls_mode != TlsMode.DISABLED)
    return Ports(http, tls)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
