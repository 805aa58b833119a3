"""The route of a topic: the broker groups that hold its queues, and their replicas. Pure.

A group's brokerId 0 is the leader or master, the others are followers or slaves. `ReplicaGroup`
keeps what is known about one group and decides in which order its replicas are tried as the leader:
the hint from a refusal, then the believed leader, the route's id 0, and every known replica. Sends
go to other replicas than the route's id 0 only in a Raft group, whose followers may have elected
one of them since: a slave never leads. Our name servers say which groups are of that kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .message import MessageQueue

LEADER_ID = 0
PERM_READ = 4
PERM_WRITE = 2
REPLICAS_MAX = 64  # addresses remembered per group; old ones go first


class RouteError(ValueError):
    """A route body that is not a TopicRouteData."""


@dataclass(frozen=True, slots=True)
class QueueData:
    """The queues of the topic in one broker group, and the permission bits (PERM_*)."""

    broker_name: str
    read_count: int
    write_count: int
    perm: int


@dataclass(frozen=True, slots=True)
class BrokerData:
    """One broker group; `addresses` maps brokerId to host:port. `raft`: whether the name server
    says that it is a Raft group."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]
    raft: bool = False

    @property
    def leader(self) -> str | None:
        return self.addresses.get(LEADER_ID)


@dataclass(frozen=True, slots=True)
class TopicRouteData:
    """A name server's answer for one topic."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]

    def write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that may be sent to, by group and number.

        A group without a leader keeps its queues: a new leader is being elected, and a send that
        waits for it is better than one that fails or piles onto the other groups for good.
        """
        known = {broker.broker_name for broker in self.brokers}
        return tuple(
            MessageQueue(topic, data.broker_name, number)
            for data in sorted(self.queues, key=lambda q: q.broker_name)
            if data.perm & PERM_WRITE and data.broker_name in known
            for number in range(data.write_count)
        )

    def read_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that may be pulled from, by group and number."""
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
    """Parse one decoded BrokerData; its map keys may be numbers or strings."""
    addresses = {int(key): str(value) for key, value in data["brokerAddrs"].items()}
    raft = data.get("raftGroup") is True
    return BrokerData(data.get("cluster") or "", data["brokerName"], addresses, raft)


class ReplicaGroup:
    """This client's belief about one broker group: its replicas and its leader.

    `leader` is the address requests go to, or None while it is unknown. `version` rises with
    every change of leader, so that a late refusal from an old leader changes nothing.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.raft = False  # any replica may come to lead
        self.leader: str | None = None
        self.version = 0
        self._addresses: dict[str, None] = {}  # insertion-ordered set
        self._ids: dict[int, str] = {}  # the latest route: brokerId → address
        self.route_leader: str | None = None  # the latest route's id 0, believed to lead or not
        self._hint: str | None = None
        self._doubted: dict[str, None] = {}  # those that refused, in order; tried after the others

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return every known replica address."""
        return tuple(self._addresses)

    def replica(self, broker_id: int) -> str | None:
        """Return the address of that brokerId in the latest route."""
        return self._ids.get(broker_id)

    @property
    def absent_leader(self) -> str | None:
        """Return the latest route's leader if no replica is believed to lead and none has named
        another leader; it may only have been unreachable for a while. Else None."""
        if self.leader is not None or self._hint is not None:
            return None
        return self._ids.get(LEADER_ID)

    @property
    def target(self) -> str | None:
        """Return the address to ask next: the leader's, else the best guess. A replica that refuses
        goes to the end of the list (`doubt`), so repeated requests try all of them in turn."""
        return self.leader or next(iter(self.candidates()), None)

    def learn(self, addresses: Mapping[int, str]) -> tuple[str, ...]:
        """Take over a route answer; return the addresses that were not known before.

        Only a change of the route's id 0 is believed at once; its return after a route without it
        counts as one. An unchanged route may be older than what the replicas themselves have told
        us since.
        """
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
        """Take note that `address` answered as a leader does."""
        self._hint = None
        self._doubted.clear()
        if self.leader != address:
            self._remember((address,))
            self._lead(address)

    def presume(self, address: str) -> None:
        """Take note that `address`, the leader according to the route, answers again."""
        self._doubted.pop(address, None)
        if self.leader is None:
            self._lead(address)

    def doubt(self, address: str, hint: str | None = None) -> None:
        """Take note that `address` refused or its connection broke."""
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
        """Return the addresses to try with a send: in a Raft group as `candidates`, else the
        route's id 0 and who was named by a refusal, who is never a slave."""
        found = self.candidates()
        if self.raft:
            return found
        return tuple(address for address in found if address in (self._hint, self.route_leader))

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
