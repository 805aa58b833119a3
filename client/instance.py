"""The client instance shared by producer, consumer and admin.

It has connections, directory, heartbeats and requests to leaders. It owns its tasks: `start`
creates them, `stop` cancels and awaits them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from raftmq.remoting.acl.signature import Credentials
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.connection import Connection
from raftmq.remoting.errors import RemotingError, SendTimeout
from raftmq.remoting.fast_json import loads_object
from raftmq.remoting.fields import boolean_or
from raftmq.remoting.tls import ClientTls, Renewed

from .errors import BrokerRefused, BrokerUnreachable, ClientClosed, ClientError
from .log_rate_limit import LogRateLimit
from .metadata import Directory, NameServers, parse_addresses
from .retry import CONTROL, RetryPolicy
from .route import ReplicaGroup

logger = logging.getLogger(__name__)

LEAVE_S = 1.0  # how long heartbeats in flight may delay unregistering
ON_ITS_WAY_S = 0.3  # for the answer of a replica that was just replaced as leader
TLS_CHECK_S = 10.0  # between two checks for changed certificate files
T = TypeVar("T")
_instances = itertools.count()


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """An instance's intervals, in milliseconds, and its security settings. `credentials` sign every
    request; with `tls` every connection uses TLS (changed files are reloaded). Routes are refreshed
    every `route_interval_ms` and on every sign of trouble. A frozen leader keeps its connections
    open and gives no such sign."""

    heartbeat_interval_ms: int = 30_000
    route_interval_ms: int = 5_000
    heartbeat_timeout_ms: int = 3_000
    credentials: Credentials | None = None
    tls: ClientTls | None = None
    registration_key: bytes = field(default=b"", repr=False)  # name servers', for Admin only
    reached_at: Mapping[str, str] = field(default_factory=dict)  # address in routes → dialled here


class ClientInstance:
    """A client identity in a cluster. Each start makes a new identity, because an object built
    before a fork is started in several processes; before that `client_id` is empty."""

    def __init__(self, namesrv: str | Sequence[str], config: InstanceConfig | None = None) -> None:
        self.config = config or InstanceConfig()
        self.client_id = ""
        self._namesrv = parse_addresses(namesrv)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._remoting: RemotingClient | None = None
        self._directory: Directory | None = None
        self._name_servers: NameServers | None = None
        self._heartbeat: Callable[[], Mapping[str, Any]] | None = None
        self._greeted: set[str] = set()
        self._beats: set[asyncio.Task[bool]] = set()  # unanswered heartbeats
        self.log_limit = LogRateLimit()
        self._leaving = False
        self._greeting: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Return whether it was started. Raises ClientClosed on a different event loop."""
        if self._remoting is not None:
            self._own(self._remoting)
        return self._remoting is not None

    @property
    def remoting(self) -> RemotingClient:
        return self._own(self._remoting)

    @property
    def directory(self) -> Directory:
        return self._own(self._directory)

    @property
    def name_servers(self) -> NameServers:
        return self._own(self._name_servers)

    def _own(self, component: T | None) -> T:
        """Return a component. Raises ClientClosed, also on an event loop different from the
        start's, where awaited results would never arrive."""
        if component is None:
            raise ClientClosed
        if asyncio.get_running_loop() is not self._loop:
            raise ClientClosed("the client was started on another event loop, and works only there")
        return component

    async def start(
        self,
        heartbeat: Callable[[], Mapping[str, Any]] | None = None,
        handlers: Mapping[int, Any] | None = None,
        tls: Renewed | None = None,
    ) -> None:
        """Start. `heartbeat()` returns the producer or consumer fields of the HeartbeatData;
        `handlers` serve requests of brokers to this client. `tls` is a context renewed by its
        owner, in place of the configuration's. Raises TlsError."""
        assert not self.running, "already started"
        self._loop = asyncio.get_running_loop()
        self.client_id = make_client_id()
        own_tls = None
        if tls is None and self.config.tls is not None:
            tls = own_tls = await asyncio.to_thread(Renewed, self.config.tls, "client")
        self._remoting = RemotingClient(
            credentials=self.config.credentials, tls=tls, reached_at=self.config.reached_at
        )
        for code, handler in (handlers or {}).items():
            self._remoting.register(code, handler)
        self._name_servers = NameServers(self._remoting, self._namesrv)
        self._directory = Directory(self._name_servers)
        self._remoting.register(int(RequestCode.ROUTE_CHANGED), self._route_changed)
        self._heartbeat = heartbeat
        self._leaving = False
        self.spawn(self._refresh_routes(), "route refresh")
        if own_tls is not None:
            self.spawn(_renew(own_tls), "tls renewal")
        if heartbeat is not None:
            self._directory.watch_replicas(self._greet)
            self._directory.watch_leaders(self._greet_leader)
            self.spawn(self._send_heartbeats(), "heartbeats")

    def _route_changed(self, _: Connection, command: RemotingCommand) -> None:
        """Handle 30004, a name server's notice of changed routes."""
        change = loads_object(command.body)
        everything = boolean_or(command.ext, "everything", False)
        brokers, topics = change.get("brokers") or {}, change.get("topics") or []
        self.directory.changed(brokers, set(map(str, topics)), everything)

    async def stop(self) -> None:
        """Cancel own tasks and close every connection."""
        if not self.running:
            return
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.directory.stop()
        await self.remoting.close()
        self._remoting = None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` as a task that `stop` cancels; its error is logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._reap)
        return task

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("client_task_died task=%s", task.get_name(), exc_info=error)

    async def invoke_leader(
        self,
        broker_name: str,
        command: Callable[[], RemotingCommand],
        timeout_ms: int = 3000,
        *,
        leader_only: bool = False,
        policy: RetryPolicy = CONTROL,
        again: Callable[[RemotingCommand], bool] | None = None,
        deadline_s: float | None = None,
    ) -> RemotingCommand:
        """Ask the group's leader, with a search through a failover for as long as `policy` allows.

        Returns the response with any code except 14, or raises it as BrokerRefused if `again` still
        requests a repetition. With `leader_only` a success proves leadership. Only for idempotent
        requests: an unanswered request is sent again as soon as a different replica leads. Raises
        BrokerUnreachable or BrokerRefused (14) at the end of the policy, or at `deadline_s` (loop
        time), which replaces its time. `outcome_unknown` is set if any request was written and not
        answered."""
        group = self.directory.group(broker_name)
        now = asyncio.get_running_loop().time
        if deadline_s is not None:
            policy = replace(policy, time_ms_max=(deadline_s - now()) * 1000)
        failure: ClientError | None = None
        async for attempt in policy.while_retriable():
            with attempt:
                patience_ms: float = timeout_ms
                if deadline_s is not None:
                    patience_ms = min(patience_ms, (deadline_s - now()) * 1000)
                    if patience_ms <= 0 and failure is not None:
                        raise failure
                    patience_ms = max(1.0, patience_ms)
                try:
                    response = await self._ask_leader(
                        group, command(), patience_ms, leader_only, True
                    )
                    if again is not None and again(response):
                        refusal = BrokerRefused(response.code, response.remark or "", broker_name)
                        refusal.retriable = True
                        raise refusal
                except ClientError as error:
                    if failure is not None and failure.outcome_unknown:
                        error.outcome_unknown = True
                    failure = error
                    raise
                return response
        raise AssertionError("the retry loop returns or raises")

    async def ask_leader_once(
        self,
        broker_name: str,
        command: RemotingCommand,
        timeout_ms: int = 3000,
        *,
        following: bool = False,
    ) -> RemotingCommand:
        """Ask the presumed leader once; with `following`, abandon it when a different replica
        leads. Raises BrokerUnreachable (`outcome_unknown` if the request was written),
        BrokerRefused (14); both are retriable."""
        group = self.directory.group(broker_name)
        return await self._ask_leader(group, command, timeout_ms, False, following)

    async def _ask_leader(
        self,
        group: ReplicaGroup,
        command: RemotingCommand,
        timeout_ms: float,
        leader_only: bool,
        following: bool,
    ) -> RemotingCommand:
        address = group.target
        if address is None:
            self.directory.refresh_groups_soon()
            raise BrokerUnreachable(f"no address of broker group {group.name} is known")
        try:
            if following:
                response = await self._invoke_while_it_leads(group, address, command, timeout_ms)
            else:
                response = await self.remoting.invoke(address, command, timeout_ms)
        except RemotingError as error:
            self.directory.doubt(group, address)
            raise BrokerUnreachable(f"{address}: {error}", error.outcome_unknown) from error
        if response.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self.directory.doubt(group, address, leader_hint(response))
            refusal = BrokerRefused(response.code, response.remark or "", address)
            refusal.retriable = True
            raise refusal
        if leader_only and response.code == ResponseCode.SUCCESS and not from_slave(response):
            self.directory.accepted(group, address)
        return response

    async def _invoke_while_it_leads(
        self, group: ReplicaGroup, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        """Do as `remoting.invoke`, but abandon a silent replica when a different replica leads,
        since it may be frozen and brokers hold back this request."""
        invoked = asyncio.ensure_future(self.remoting.invoke(address, command, timeout_ms))
        try:
            while not invoked.done() and group.leader in (None, address):
                change = self.directory.leader_change()
                await asyncio.wait((invoked, change), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((invoked,), timeout=ON_ITS_WAY_S)
            if not invoked.done():
                raise SendTimeout(f"{address} leads no more", outcome_unknown=True)
            return invoked.result()
        finally:
            invoked.cancel()  # no effect if it is done

    async def heartbeat_all(self, timeout_s: float | None = None) -> None:
        """Send a heartbeat to every known replica concurrently, and wait for the answers, at most
        `timeout_s`; failures are logged."""
        beats = [self._start_beat(address) for address in self.directory.addresses()]
        if beats:
            await asyncio.wait(beats, timeout=timeout_s)

    async def heartbeat_shared(self) -> None:
        """Do as `heartbeat_all`; concurrent calls share a round of heartbeats."""
        if self._greeting is None or self._greeting.done():
            self._greeting = self.spawn(self.heartbeat_all(), "heartbeat")
        await asyncio.wait((self._greeting,))

    async def leave(self, producer_group: str | None, consumer_group: str | None) -> None:
        """Unregister at every replica (35), so that the remaining members rebalance at once, and
        stop. Heartbeats in flight are awaited first, and no more are sent. Apache's brokers process
        heartbeats and unregistrations in different threads, and an overtaken heartbeat would leave
        a ghost member with queues in the group."""
        if not self.running:
            return
        self._leaving = True
        if self._beats:
            await asyncio.wait(self._beats, timeout=LEAVE_S)
        ext = {"clientID": self.client_id}
        if producer_group is not None:
            ext["producerGroup"] = producer_group
        if consumer_group is not None:
            ext["consumerGroup"] = consumer_group
        await asyncio.gather(*(self._goodbye(a, ext) for a in self.directory.addresses()))
        await self.stop()

    async def _goodbye(self, address: str, ext: dict[str, str]) -> None:
        command = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, dict(ext))
        try:
            await self.remoting.invoke(address, command, 1000)
        except RemotingError as error:  # the broker forgets us when the connection closes
            logger.debug("unregister_failed address=%s error=%s", address, error)

    def _greet(self, addresses: tuple[str, ...]) -> None:
        self._greeted.update(addresses)
        for address in addresses:
            self._start_beat(address)

    def _start_beat(self, address: str) -> asyncio.Task[bool]:
        """Send a heartbeat in its own task, awaited even if the caller stops waiting."""
        work = self.beat(address, self.config.heartbeat_timeout_ms)
        task = self.spawn(work, f"heartbeat {address}")
        self._beats.add(task)
        task.add_done_callback(self._beats.discard)
        return task

    def _greet_leader(self, group: ReplicaGroup) -> None:
        """Send a heartbeat to a new leader, which may have restarted and forgotten this client."""
        if group.leader in self._greeted:  # otherwise it gets its heartbeat as a new replica
            self._greet((group.leader,))

    async def beat(self, address: str, timeout_ms: float) -> bool:
        """Send a heartbeat; return whether it was answered, with any code."""
        if self._heartbeat is None or self._leaving:
            return False
        body = {
            "clientID": self.client_id,
            "producerDataSet": [],
            "consumerDataSet": [],
            "heartbeatFingerprint": 0,
            "withoutSub": False,
            **self._heartbeat(),
        }
        command = RemotingCommand.request(RequestCode.HEART_BEAT, None, orjson.dumps(body))
        try:
            response = await self.remoting.invoke(address, command, timeout_ms)
        except RemotingError as error:
            logger.debug("heartbeat_failed address=%s error=%s", address, error)
            return False
        code, remark = response.code, " ".join((response.remark or "").split())
        if code != ResponseCode.SUCCESS and self.log_limit.due((address, code, remark)) is not None:
            # A rejected consumer gets no messages, without any other sign.
            logger.warning("heartbeat_refused address=%s code=%d remark=%s", address, code, remark)
        return True

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self.config.heartbeat_interval_ms / 1000)
            await self.heartbeat_all()

    async def _refresh_routes(self) -> None:
        while True:
            await asyncio.sleep(self.config.route_interval_ms / 1000)
            try:
                await self.directory.refresh_all()
            except ClientError as error:
                logger.warning("route_refresh_failed error=%s", error)


def successful(response: RemotingCommand, who: str) -> RemotingCommand:
    """Return the response if its code is SUCCESS. Raises BrokerRefused."""
    if response.code != ResponseCode.SUCCESS:
        raise BrokerRefused(response.code, response.remark or "", who)
    return response


def leader_hint(response: RemotingCommand) -> str | None:
    """Return the leader's address from a refusal, if known."""
    return (response.ext or {}).get("leaderAddr") or None


def from_slave(response: RemotingCommand) -> bool:
    """Return whether a slave answered; slaves accept offsets in their master's absence."""
    return (response.ext or {}).get("brokerRole") == "SLAVE"


def local_address() -> bytes:
    """Return an IPv4 address of this host, 4 bytes; loopback without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # on a datagram socket this sends nothing
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return b"\x7f\x00\x00\x01"


def make_client_id() -> str:
    """Return ip@pid#nanotime and a counter, unique within a process."""
    address = socket.inet_ntoa(local_address())
    return f"{address}@{os.getpid()}#{time.monotonic_ns()}{next(_instances)}"


async def _renew(tls: Renewed) -> None:
    while True:
        await asyncio.sleep(TLS_CHECK_S)
        await asyncio.to_thread(tls.check)
