"""The route of a topic, its broker groups and their replicas.

A group's brokerId 0 is the leader or master; the rest are followers or slaves. `ReplicaGroup` keeps
the data of a group and the order in which its replicas are tried as the leader: the hint from a
refusal, then the presumed leader, the route's id 0, and every known replica. Sends go to replicas
other than the route's id 0 only in a Raft group, whose followers may have elected a new leader
since; a slave never leads. Our name servers mark Raft groups. Pure, without I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .message import MessageQueue

LEADER_ID = 0
PERM_READ = 4
PERM_WRITE = 2
REPLICAS_MAX = 64  # remembered addresses per group; old addresses are dropped first


class RouteError(ValueError):
    """A route body that is not a TopicRouteData."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """The topic's queues in a broker group, and the permission bits (PERM_*)."""

    broker_name: str
    read_count: int
    write_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class BrokerData:
    """A broker group; `addresses` maps brokerId to host:port. `raft` marks a Raft group."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    raft: bool = False

    @property
    def leader(self) -> str | None:
        return self.addresses.get(LEADER_ID)


@dataclass(frozen=True, slots=True)
class TopicRouteData:
    """A name server's answer for a topic."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]

    def write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the writable queues, by group and number. A group without a leader keeps its
        queues, because a new leader is being elected, and a waiting send is better than a failed
        send or a permanent shift to the remaining groups."""
        known = {broker.broker_name for broker in self.brokers}
        return tuple(
            MessageQueue(topic, data.broker_name, number)
            for data in sorted(self.queues, key=lambda q: q.broker_name)
            if data.perm & PERM_WRITE and data.broker_name in known
            for number in range(data.write_count)
        )

    def read_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues, by group and number."""
        return tuple(
            MessageQueue(topic, data.broker_name, number)
            for data in sorted(self.queues, key=lambda q: q.broker_name)
            if data.perm & PERM_READ
            for number in range(data.read_count)
        )


def parse_route(body: Mapping[str, Any]) -> TopicRouteData:
    """Parse a decoded route body. Raises RouteError."""
    try:
        queues = tuple(
            QueueData(
                data["brokerName"],
                int(data["readQueueNums"]),
                int(data["writeQueueNums"]),
                int(data["perm"]),
            )
            for data in body.get("queueDatas") or ()
        )
        brokers = tuple(parse_broker(data) for data in body.get("brokerDatas") or ())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RouteError(f"not a topic route: {error!r}") from error
    return TopicRouteData(queues, brokers)


def parse_broker(data: Mapping[str, Any]) -> BrokerData:
    """Parse a decoded BrokerData; its map keys may be numbers or strings."""
    addresses = {int(key): str(value) for key, value in data["brokerAddrs"].items()}
    raft = data.get("raftGroup") is True
    return BrokerData(data.get("cluster") or "", data["brokerName"], addresses, raft)


class ReplicaGroup:
    """This client's view of a broker group, with its replicas and its leader. `leader` is the
    address of requests, or None while unknown. `version` rises with every change of leader, so that
    a late refusal from an old leader changes nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.raft = False  # any replica may become the leader
        self.leader: str | None = None
        self.version = 0
        self._addresses: dict[str, None] = {}  # insertion-ordered set
        self._ids: dict[int, str] = {}  # the latest route: brokerId → address
        self.route_leader: str | None = None  # the latest route's id 0, presumed to lead or not
        self._hint: str | None = None
        self._doubted: dict[str, None] = {}  # refusing replicas in order, tried last

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._addresses)

    def replica(self, broker_id: int) -> str | None:
        """Return the address of that brokerId in the latest route."""
        return self._ids.get(broker_id)

    @property
    def absent_leader(self) -> str | None:
        """Return the latest route's leader if no replica is presumed to lead and none has named a
        new leader, since it may only have been unreachable for a while. Otherwise None."""
        if self.leader is not None or self._hint is not None:
            return None
        return self._ids.get(LEADER_ID)

    @property
    def target(self) -> str | None:
        """Return the address to ask next, the leader's or the best guess. A refusing replica moves
        to the end of the list (`doubt`), so repeated requests try all replicas in turn."""
        return self.leader or next(iter(self.candidates()), None)

    def learn(self, addresses: Mapping[int, str]) -> tuple[str, ...]:
        """Accept a route answer; return the new addresses. Only a change of the route's id 0 is
        accepted at once, including its return after a route without it. An unchanged route may be
        older than the replicas' own answers since."""
        new = self._remember(addresses[key] for key in sorted(addresses))
        self._ids = dict(addresses)
        route_leader = addresses.get(LEADER_ID)
        if route_leader is None:
            self.route_leader = None
        if route_leader is not None and route_leader != self.route_leader:
            self.route_leader = route_leader
            self._hint = None
            self._doubted.pop(route_leader, None)
            if self.leader != route_leader:
                self._lead(route_leader)
        return new

    def accepted(self, address: str) -> None:
        """Record that `address` answered as a leader."""
        self._hint = None
        self._doubted.clear()
        if self.leader != address:
            self._remember((address,))
            self._lead(address)

    def presume(self, address: str) -> None:
        """Record that `address`, the route's leader, answers again."""
        self._doubted.pop(address, None)
        if self.leader is None:
            self._lead(address)

    def doubt(self, address: str, hint: str | None = None) -> None:
        """Record that `address` refused or its connection broke."""
        if hint is not None and hint != address:
            self._remember((hint,))
            self._hint = hint
            self._doubted.pop(hint, None)
        self._doubted.pop(address, None)
        self._doubted[address] = None
        if self.leader == address:
            self._lead(None)

    def candidates(self) -> tuple[str, ...]:
        """Return the addresses to try as leader, best guess first, each once."""
        order = dict.fromkeys(
            address
            for address in (self._hint, self.leader, self.route_leader, *self._addresses)
            if address is not None
        )
        for doubted in self._doubted:
            if doubted in order and doubted != self.leader:
                del order[doubted]
                order[doubted] = None
        return tuple(order)

    def send_targets(self) -> tuple[str, ...]:
        """Return the addresses to try with a send, in a Raft group `candidates`, otherwise the
        route's id 0 and a leader named by a refusal, which is never a slave."""
        candidates = self.candidates()
        if self.raft:
            return candidates
        return tuple(
            address for address in candidates if address in (self._hint, self.route_leader)
        )

    def _lead(self, address: str | None) -> None:
        self.leader = address
        self.version += 1

    def _remember(self, addresses: Iterable[str]) -> tuple[str, ...]:
        new = tuple(address for address in addresses if address not in self._addresses)
        for address in new:
            self._addresses[address] = None
        while len(self._addresses) > REPLICAS_MAX:
            oldest = next(iter(self._addresses))
            del self._addresses[oldest]
            self._doubted.pop(oldest, None)
        return new
