"""The state of the cluster, with every replica's own view, events and leaders.

A refresh requests the views of all brokers at once. Concurrent callers share a refresh, so a
hundred open pages cost the brokers no more than a single page. A broker that does not answer in
time has an `error` and its last route entry.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from raftmq.remoting.memory_limits import Allowance
from raftmq.remoting.names import NAME_LENGTH_MAX
from raftmq.web.events import GAP, EventHub

from ..routes import LEADER_ID, BrokerGroup, RouteTable
from . import differences, failovers
from .broker_events import Event, RememberedEvents, Streams
from .broker_http import Nodes, NodeSilent
from .directory import Directory, Known, by_group, find, leader_of
from .seen import NodeSeen
from .views import FindingView

REFRESH_PERIOD_S = 1.0  # maximum delay before a new broker's events are followed
FOLLOW_DELAY_S = 0.05  # hundreds of brokers may come in that time
REFRESH_BYTES_MAX = 64 * 1024 * 1024  # of all brokers' answers to a refresh
NODE_PATH = "/api/v1/node"
GROUPS_PER_TURN = 20

Item = dict[str, Any]


class ClusterView:
    """The cluster's state. Call `start` and `stop` once, on the route table's loop."""

    def __init__(
        self, table: RouteTable, directory: Directory, nodes: Nodes, hub: EventHub, name: str,
        streams_max: int,
    ) -> None:  # fmt: skip
        """`name` is this name server's address, its name in answers. At most `streams_max` brokers
        are followed."""
        self.table = table
        self.nodes = nodes
        self.hub = hub
        self.name = name
        self.boot_ms = _wall_ms()
        self._directory = directory
        self._streams = Streams(nodes, self._take, streams_max)
        self._events = RememberedEvents()
        self._names: dict[str, str] = {}  # address → the replica's last name
        self._refreshing: asyncio.Task[Item] | None = None
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        table.watch(self._route_changed)

    def start(self) -> None:
        self._follower = asyncio.create_task(self._follow_forever())

    async def stop(self) -> None:
        tasks = [task for task in (self._follower, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._streams.stop()

    def known(self) -> Sequence[Known]:
        return self._directory.poll(_wall_ms())

    def find(self, group: str, reference: str) -> Known | None:
        """Find a broker by broker id, address, or replica name."""
        known = self.known()
        named = [k for k in known if k.group == group and self._names.get(k.address) == reference]
        return find(known, group, reference) or (named[0] if named else None)

    def group_of(self, address: str) -> str:
        """Return the group of a broker. For an unknown address that is the only group, which has
        the log of brokers that have left; "" if there are several."""
        known = self.known()
        groups = {item.group for item in known}
        result = next((item.group for item in known if item.address == address), "")
        return result or (groups.pop() if len(groups) == 1 else "")

    def forget(self, group: str, address: str) -> bool:
        return self._directory.forget(group, address)

    def leaders(self, only: str = "") -> dict[str, str]:
        """Return group → its leader's HTTP address or "", for all groups or for `only`."""
        groups = self._directory.groups(_wall_ms())
        if only:
            groups = {only: groups[only]} if only in groups else {}
        result = {name: leader_of(members, name) for name, members in groups.items()}
        return {name: item.http_address if item else "" for name, item in result.items()}

    def groups_with(self, topic: str) -> list[str]:
        """Return the groups for a change of a topic. These are the topic's groups, and groups
        without brokers and thus with unknown topics; [] for a topic without groups."""
        having = self.table.queues(topic)
        if not having:
            return []
        removed = [name for name in self.leaders() if self.table.group(name) is None]
        return [*having, *removed]

    async def refresh(self) -> Item:
        """Request the views of all brokers, or join the current refresh. Return {nameServer, at,
        groups, differences, findings}."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._refreshing)

    async def _refresh(self) -> Item:
        known = self.known()
        room = Allowance(REFRESH_BYTES_MAX)
        brokers = await asyncio.gather(*(self._broker(item, room) for item in known))
        members: dict[str, list[Item]] = {}
        for item, broker in zip(known, brokers, strict=True):
            members.setdefault(item.group, []).append(broker)
        groups, result = [], []
        for number, (name, of_group) in enumerate(by_group(known).items(), 1):
            group, findings = self._group(name, members[name], of_group)
            groups.append(group)
            result += findings
            if number % GROUPS_PER_TURN == 0:
                await asyncio.sleep(0)
        return {
            "nameServer": {"address": self.name, "bootTimeMs": self.boot_ms},
            "at": _wall_ms(),
            "topicCount": self.table.topic_count,
            "groups": groups,
            "differences": [finding.text for finding in result],
            "findings": result,
        }

    async def _broker(self, known: Known, room: Allowance) -> Item:
        node, error = None, None
        start_s = time.monotonic()
        try:
            answer = await self.nodes.ask(known.http_address, "GET", NODE_PATH)
            if not answer.ok:
                raise NodeSilent(answer.reason(), sent=False)
            if not room.take(len(answer.body)):
                raise NodeSilent(
                    f"all brokers answer more than {REFRESH_BYTES_MAX} bytes", sent=False
                )
            node = answer.json(NodeSeen)
        except NodeSilent as silent:
            error = silent.reason
        if node is not None and node.get("name"):
            self._names[known.address] = node["name"][:NAME_LENGTH_MAX]
        return {
            "address": known.address,
            "brokerId": known.broker_id,
            "name": self._names.get(known.address) or known.address,
            "httpAddress": known.http_address or None,
            "registered": known.gone_since_ms is None,
            "goneSinceMs": known.gone_since_ms,
            "tookMs": round((time.monotonic() - start_s) * 1000, 1),
            "node": node,
            "error": error,
        }

    def _group(
        self, name: str, brokers: list[Item], known: list[Known]
    ) -> tuple[Item, list[FindingView]]:
        brokers.sort(key=lambda broker: broker["name"])
        routed = leader_of(known, name)
        leading = [b for b in brokers if b["node"] and differences.leads(b["node"])]
        leader = max(leading, key=lambda b: b["node"].get("term") or 0, default=None)
        table = self.table.group(name)
        terms = [b["node"].get("term") or 0 for b in brokers if b["node"]]
        cluster = known[0].cluster
        group = {
            "name": name,
            "cluster": cluster,
            "leader": leader["name"] if leader else None,
            "preferredLeader": leader["node"].get("preferredLeader") if leader else None,
            "leaderAddress": routed.address if routed else None,
            "term": max([*terms, table.term if table else 0]),
            "topicCount": len(table.topics) if table else 0,
            "brokers": brokers,
            "lastFailover": failovers.last_of(self.failovers(name)),
        }
        result = differences.findings(name, brokers, routed.address if routed else "")
        return group, result

    def failovers(self, group: str) -> list[failovers.Failover]:
        return failovers.failovers(group, self._events.of(group))

    def _take(self, http_address: str, event: Event) -> None:
        """Store and publish a broker's event, under the group that it registered."""
        kind = event.get("kind")
        at = event.get("at")
        if not isinstance(kind, str) or kind == GAP or type(at) is not int:
            return
        detail, term = event.get("detail"), event.get("term")
        plain: Event = {
            "kind": kind,
            "node": str(event.get("node") or "")[:NAME_LENGTH_MAX],
            "group": "",
            "term": term if type(term) is int else 0,
            "at": at,
            "detail": dict(detail) if isinstance(detail, Mapping) else {},
        }
        self.known()
        for known in self._directory.at(http_address):
            plain["group"] = known.group
            if plain["node"]:
                self._names[known.address] = plain["node"]
        if kind != "routeChanged":  # only name servers report that
            self._remember(plain)
        self.hub.publish(**plain)

    def _route_changed(self, group: BrokerGroup) -> None:
        addresses = {str(number): address for number, address in group.addresses.items()}
        event: Event = {
            "kind": "routeChanged",
            "node": "",
            "group": group.name,
            "term": group.term,
            "at": _wall_ms(),
            "detail": {
                "leader": group.addresses.get(LEADER_ID) or None,
                "addresses": addresses,
                "nameServer": self.name,
            },
        }
        self._remember(event)
        self.hub.publish(**event)
        self._changed.set()

    def _remember(self, event: Event) -> None:
        group = event["group"]
        if event["kind"] in failovers.KINDS and (
            group in self._events or self.table.group(group) is not None
        ):
            self._events.add(group, event)

    async def _follow_forever(self) -> None:
        while True:
            known = self.known()
            self._streams.follow(item.http_address for item in known)
            self._events.keep_only({item.group for item in known})
            addresses = {item.address for item in known}
            for address in set(self._names).difference(addresses):
                del self._names[address]
            self._changed.clear()
            try:
                async with asyncio.timeout(REFRESH_PERIOD_S):
                    await self._changed.wait()
            except TimeoutError:
                pass  # forget brokers that have left
            await asyncio.sleep(FOLLOW_DELAY_S)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
