"""The directory of topics and broker groups, from the name servers' answers.

`Directory` asks any name server that answers, and keeps routes by topic and a `ReplicaGroup` per
broker group. It notifies its watchers of a group's new leader or replica. Concurrent callers share
a refresh.

A route outlives name servers that do not answer, and those without its broker groups, for example
just started, or while a broker is down. It is dropped when name servers that have the leaders of
all its groups do not have the topic, and still do not UNUSED_TOPIC_S later; then it was deleted. (A
leader registers its topics after itself, ours at once, Apache's at its next interval.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from raftmq.remoting.address import parse_address_list
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode, ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError, SendTimeout
from raftmq.remoting.fast_json import loads_object

from .errors import (
    BrokerRefused,
    ClientClosed,
    ClientError,
    NameServerUnreachable,
    NoRoute,
)
from .route import (
    BrokerData,
    ReplicaGroup,
    RouteError,
    TopicRouteData,
    parse_broker,
    parse_route,
)

logger = logging.getLogger(__name__)

# A second name server may be quicker; a silent name server is asked again, as it may only be busy.
NAME_SERVER_TIMEOUTS_MS = (1000, 3000)
# Requests notifications of route changes on this connection (namesrv.watchers; Apache's ignores
# it).
WATCH = {"acceptStandardJsonOnly": "true", "watchRoutes": "true"}
TOPICS_MAX = 100_000  # kept routes; a further topic is rejected
UNUSED_TOPIC_S = 35.0  # Apache's brokers register all of their topics every 30 s
# Refreshes of all routes before an unused route is dropped, if there are many.
UNUSED_MAX = 360
UNUSED_KEPT = 1_000  # always kept, used or not
T = TypeVar("T")


def parse_addresses(namesrv: str | Sequence[str]) -> tuple[str, ...]:
    """Parse "host:port;host:port" or "host:port,host:port", or a sequence of addresses. Raises
    ValueError if none is given."""
    parts = namesrv if isinstance(namesrv, str) else ";".join(namesrv)
    addresses = tuple(parse_address_list(parts))
    if not addresses:
        raise ValueError("no name server address given")
    return addresses


class NameServers:
    """Sends requests to any name server that answers, first the last that did."""

    def __init__(self, remoting: RemotingClient, addresses: Sequence[str]) -> None:
        self._remoting = remoting
        self.addresses = list(addresses)

    async def invoke(self, command: RemotingCommand) -> RemotingCommand:
        """Send `command`; return the first response. Raises NameServerUnreachable."""
        reasons: dict[str, str] = {}
        left = list(self.addresses)
        for timeout_ms in NAME_SERVER_TIMEOUTS_MS:
            silent = []
            for address in left:
                try:
                    response = await self._remoting.invoke(address, command, timeout_ms)
                except RemotingError as error:
                    text = str(error)
                    reasons[address] = text if address in text else f"{address}: {text}"
                    if isinstance(error, SendTimeout):
                        silent.append(address)
                    continue
                if self.addresses[0] != address:
                    self.addresses.remove(address)
                    self.addresses.insert(0, address)
                return response
            left = silent
        raise NameServerUnreachable(f"no name server answered ({'; '.join(reasons.values())})")


class Directory:
    """Routes and groups, for a single event loop."""

    def __init__(self, name_servers: NameServers) -> None:
        self._name_servers = name_servers
        self._routes: dict[str, TopicRouteData] = {}
        self._unused: dict[str, int] = {}  # topic → refreshes of all routes since its last use
        self._unused_topic_s: dict[
            str, float
        ] = {}  # topic → first detection of its deletion (loop time)
        self._groups: dict[str, ReplicaGroup] = {}
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._stopped = False
        self._leader_watchers: list[Callable[[ReplicaGroup], None]] = []
        self._replica_watchers: list[Callable[[tuple[str, ...]], None]] = []
        self._leader_change: asyncio.Future[None] | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics with a kept route."""
        return tuple(self._routes)

    def route_if_known(self, topic: str) -> TopicRouteData | None:
        if topic in self._unused:  # for every send, so without a call
            del self._unused[topic]
        return self._routes.get(topic)

    def group(self, name: str) -> ReplicaGroup:
        """Return the group of that name; empty before its first route."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ReplicaGroup(name)
        return group

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of all replicas of all groups."""
        addresses: dict[str, None] = {}
        for group in self._groups.values():
            addresses.update(dict.fromkeys(group.addresses))
        return tuple(addresses)

    def watch_leaders(self, watcher: Callable[[ReplicaGroup], None]) -> None:
        """Call `watcher(group)` after each change of the presumed leader."""
        self._leader_watchers.append(watcher)

    def watch_replicas(self, watcher: Callable[[tuple[str, ...]], None]) -> None:
        """Call `watcher(addresses)` when unknown replica addresses appear."""
        self._replica_watchers.append(watcher)

    def leader_change(self) -> asyncio.Future[None]:
        """Return the future that the next leader change completes."""
        if self._leader_change is None:
            self._leader_change = asyncio.get_running_loop().create_future()
        return self._leader_change

    def accepted(self, group: ReplicaGroup, address: str) -> None:
        version = group.version
        group.accepted(address)
        self._announce(group, version)

    def presume(self, group: ReplicaGroup, address: str) -> None:
        """Record that `address`, the route's leader, answers again."""
        version = group.version
        group.presume(address)
        self._announce(group, version)

    def doubt(self, group: ReplicaGroup, address: str, hint: str | None = None) -> None:
        """Stop presuming that `address` leads, after its refusal or the end of its connection, and
        ask the name servers at once."""
        version = group.version
        group.doubt(address, hint)
        self._announce(group, version)
        self.refresh_groups_soon()

    async def route(self, topic: str) -> TopicRouteData:
        """Return the topic's route. Raises NoRoute, NameServerUnreachable, ClientClosed."""
        return self.route_if_known(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRouteData:
        """Refresh the topic's route now; concurrent calls share a request."""
        self._unused.pop(topic, None)
        return await self._refreshed(topic)

    def refresh_soon(self, topic: str) -> None:
        """Start `refresh` unless it runs; its failure is logged."""
        self._start("topic " + topic, lambda: self._fetch_route(topic))

    def refresh_groups_soon(self) -> None:
        """Refresh the replicas of all groups (request 106, a single answer for every topic), unless
        that runs already; its failure is logged."""
        self._start("groups", self._fetch_groups)

    def changed(self, brokers: Mapping[str, Any], topics: set[str], everything: bool) -> None:
        """Learn the changed broker groups that a name server reports (30004), and refresh the
        changed topics."""
        try:
            self._learn_table(brokers)
        except RouteError as error:
            logger.debug("route_change_not_read error=%s", error)
            everything = True
        if everything:
            self.refresh_groups_soon()
        for topic in self.topics if everything else sorted(topics):
            self.refresh_soon(topic)

    async def refresh_all(self) -> None:
        """Refresh every kept route; after a failure, which is logged, the old route stays. Of many
        routes, drop long unused routes."""
        for topic in self.topics:
            if topic not in self._routes:
                continue  # dropped during the request
            unused = self._unused[topic] = self._unused.get(topic, 0) + 1
            if unused > UNUSED_MAX and len(self._routes) > UNUSED_KEPT:
                self._drop(topic)
                continue
            try:
                await self._refreshed(topic)
            except (NoRoute, NameServerUnreachable) as error:
                if topic in self._routes:
                    logger.warning("route_refresh_failed topic=%s error=%s", topic, error)

    async def stop(self) -> None:
        """Cancel and await running requests; current and later callers get ClientClosed."""
        self._stopped = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        task = self._running.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(make(), name=f"directory {name}")
            self._running[name] = task
            task.add_done_callback(lambda done: self._finished(name, done))
        return task

    def _finished(self, name: str, task: asyncio.Task[Any]) -> None:
        if self._running.get(name) is task:
            del self._running[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("route_request_failed what=%s error=%s", name, error)

    async def _shared(self, name: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._stopped:
            raise ClientClosed
        task = self._start(name, make)
        await asyncio.wait((task,))  # does not cancel the task, which other callers may share
        if task.cancelled():
            raise ClientClosed
        return task.result()

    async def _refreshed(self, topic: str) -> TopicRouteData:
        return await self._shared("topic " + topic, lambda: self._fetch_route(topic))

    async def _fetch_route(self, topic: str) -> TopicRouteData:
        request = RemotingCommand.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **WATCH}
        )
        response = await self._name_servers.invoke(request)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            if await self._is_deleted(topic):
                self._drop_if_sure(topic)
            else:
                self._unused_topic_s.pop(topic, None)
            raise NoRoute(topic, response.remark or "unknown to the name server")
        if response.code != ResponseCode.SUCCESS:
            raise NoRoute(topic, f"name server answered {response.code}: {response.remark}")
        try:
            route = parse_route(loads_object(response.body))
        except (RouteError, RemotingError) as error:
            raise NoRoute(topic, str(error)) from error
        if topic not in self._routes and len(self._routes) >= TOPICS_MAX:
            raise NoRoute(topic, f"this client already uses {TOPICS_MAX} topics")
        self._routes[topic] = route
        self._unused_topic_s.pop(topic, None)
        for broker in route.brokers:
            self.learn(broker.broker_name, broker)
        return route

    def _drop_if_sure(self, topic: str) -> None:
        """Drop a route at the second report of its absence, otherwise ask again."""
        loop = asyncio.get_running_loop()
        first_s, now_s = self._unused_topic_s.get(topic), loop.time()
        if first_s is None:
            self._unused_topic_s[topic] = now_s
            loop.call_later(UNUSED_TOPIC_S, self._recheck, topic)
        elif now_s - first_s >= UNUSED_TOPIC_S:
            self._drop(topic)

    def _recheck(self, topic: str) -> None:
        if topic in self._unused_topic_s and not self._stopped:
            self.refresh_soon(topic)

    async def _is_deleted(self, topic: str) -> bool:
        """Return whether a name server without this topic should have it, because a leader
        registers all of its topics."""
        route = self._routes.get(topic)
        if route is None:
            return False
        try:
            table = await self._group_table()
            leaders = {
                name
                for name, data in table.items()
                if parse_broker({"brokerName": name, **data}).leader is not None
            }
        except (ClientError, RouteError, RemotingError) as error:
            logger.debug("deletion_not_sure topic=%s error=%s", topic, error)
            return False
        return {broker.broker_name for broker in route.brokers} <= leaders

    def _drop(self, topic: str) -> None:
        self._routes.pop(topic, None)
        self._unused.pop(topic, None)
        self._unused_topic_s.pop(topic, None)

    async def _fetch_groups(self) -> None:
        self._learn_table(await self._group_table())

    def _learn_table(self, brokers: Mapping[str, Any]) -> None:
        """Learn the groups with a used topic. Raises RouteError."""
        try:
            known = [
                parse_broker({"brokerName": name, **data})
                for name, data in brokers.items()
                if name in self._groups
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RouteError(f"no table of broker groups: {error!r}") from error
        for broker in known:
            self.learn(broker.broker_name, broker)

    async def _group_table(self) -> Mapping[str, Any]:
        """Return all broker groups by name from a name server (106)."""
        response = await self._name_servers.invoke(
            RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        )
        if response.code != ResponseCode.SUCCESS:
            raise BrokerRefused(response.code, response.remark or "", "name server")
        table: Mapping[str, Any] = loads_object(response.body).get("brokerAddrTable") or {}
        return table

    def learn(self, name: str, broker: BrokerData) -> None:
        group = self.group(name)
        version = group.version
        group.raft = broker.raft
        new = group.learn(broker.addresses)
        self._announce(group, version)
        if new:
            for watcher in self._replica_watchers:
                watcher(new)

    def _announce(self, group: ReplicaGroup, version_before: int) -> None:
        if group.version != version_before:
            if self._leader_change is not None:
                self._leader_change.set_result(None)
                self._leader_change = None
            for watcher in self._leader_watchers:
                watcher(group)
