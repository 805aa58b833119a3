"""RocketMQ's strategies for allocating a topic's queues to the consumers of a group.

Every consumer computes the same result from the same two sorted lists, without coordination. All
consumers of a group must therefore use the same strategy and parameters. Results equal those of
Apache's Java client, so mixed groups share queues correctly. A client missing in the list gets
nothing, because the broker has not registered it yet and its queues would be taken from active
clients. Pure, without I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import md5

from .fast_json import MessageQueue

Queues = tuple[MessageQueue, ...]
# (queues, client ids, own client id) → own queues
AllocationStrategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Queues]


def allocate_averagely(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> Queues:
    """Allocate by AVG, the default: each consumer gets a run of neighbouring queues, and the first
    consumers get an extra queue for a remainder."""
    ordered, clients, position = _sorted_with_position(queues, client_ids, client_id)
    if position is None:
        return ()
    share, rest = divmod(len(ordered), len(clients))
    start = position * share + min(position, rest)
    return tuple(ordered[start : start + share + (1 if position < rest else 0)])


def allocate_averagely_by_circle(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> Queues:
    """Allocate by AVG_BY_CIRCLE, in turn, so each consumer has queues of every group."""
    ordered, clients, position = _sorted_with_position(queues, client_ids, client_id)
    return () if position is None else tuple(ordered[position :: len(clients)])


@dataclass(frozen=True, slots=True)
class AllocateByConsistentHash:
    """The CONSISTENT_HASH strategy moves few queues when a consumer joins or leaves. Each consumer
    has `virtual_nodes` positions on a ring; a queue belongs to the first position at or after its
    own hash."""

    virtual_nodes: int = 10

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Queues:
        ordered, clients, position = _sorted_with_position(queues, client_ids, client_id)
        if position is None:
            return ()
        ring = {_hash(f"{c}-{n}"): c for c in clients for n in range(self.virtual_nodes)}
        points = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            topic, broker_name, queue_id = queue
            name = f"MessageQueue [topic={topic}, brokerName={broker_name}, queueId={queue_id}]"
            return ring[points[bisect_left(points, _hash(name)) % len(points)]]

        return tuple(queue for queue in ordered if owner(queue) == client_id)


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """The MACHINE_ROOM strategy uses only queues of brokers named `datacenter@name` in the given
    data centers. Consumers get equal shares, and the first consumers an extra queue for the
    remainder."""

    rooms: frozenset[str]

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Queues:
        ordered, clients, position = _sorted_with_position(queues, client_ids, client_id)
        if position is None:
            return ()
        ours = [queue for queue in ordered if self._is_ours(queue.broker_name)]
        share, rest = divmod(len(ours), len(clients))
        taken = ours[position * share : (position + 1) * share]
        if position < rest:
            taken.append(ours[share * len(clients) + position])
        return tuple(taken)

    def _is_ours(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class AllocateMachineRoomNearby:
    """The MACHINE_ROOM_NEARBY strategy allocates queues to consumers in their own data center by
    `inner`. All consumers share the queues of data centers without a consumer. The two functions
    map a queue and a client to their data center."""

    inner: AllocationStrategy
    room_of_queue: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Queues:
        ordered, clients, position = _sorted_with_position(queues, client_ids, client_id)
        if position is None:
            return ()
        inhabited = {self.room_of_client(client) for client in clients}
        own = self.room_of_client(client_id)
        here = [queue for queue in ordered if self.room_of_queue(queue) == own]
        neighbours = [client for client in clients if self.room_of_client(client) == own]
        taken = list(self.inner(here, neighbours, client_id))
        for datacenter in sorted({self.room_of_queue(queue) for queue in ordered} - inhabited):
            there = [queue for queue in ordered if self.room_of_queue(queue) == datacenter]
            taken += self.inner(there, clients, client_id)
        return tuple(taken)


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """The CONFIG strategy gives this consumer exactly `queues`, as far as they exist."""

    queues: tuple[MessageQueue, ...]

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Queues:
        there = set(queues)
        return tuple(queue for queue in self.queues if queue in there)


def _sorted_with_position(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> tuple[list[MessageQueue], list[str], int | None]:
    """Return both sorted lists and the client's position; None if the client gets nothing."""
    clients = sorted(set(client_ids))
    if not queues or client_id not in clients:
        return [], clients, None
    return sorted(queues), clients, clients.index(client_id)


def _hash(text: str) -> int:
    """Return the first four bytes of the text's MD5 as an integer."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
