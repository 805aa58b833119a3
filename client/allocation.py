"""Which queues of a topic belong to which consumer of a group: RocketMQ's strategies. Pure.

Every consumer computes the same answer from the same two sorted lists; nobody coordinates. So all
consumers of a group must use one strategy, of the same parameters: the answers equal those of
Apache's Java client, and mixed groups share queues rightly. Both lists are sorted here. A client
that is not in the list gets nothing: it has not been registered with the broker yet, and taking
queues now would only take them from others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import md5

from raftmq.client.message import MessageQueue

Queues = tuple[MessageQueue, ...]
# (queues, client ids, own client id) → the own queues
AllocationStrategy = Callable[[Sequence[MessageQueue], Sequence[str], str], Queues]


def allocate_averagely(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> Queues:
    """AVG, the default: neighbouring queues to one consumer, the first ones get one more."""
    ordered, clients, position = _places(queues, client_ids, client_id)
    if position is None:
        return ()
    share, rest = divmod(len(ordered), len(clients))
    start = position * share + min(position, rest)
    return tuple(ordered[start : start + share + (1 if position < rest else 0)])


def allocate_averagely_by_circle(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> Queues:
    """AVG_BY_CIRCLE: dealt out one by one, so that each consumer has queues of every group."""
    ordered, clients, position = _places(queues, client_ids, client_id)
    return () if position is None else tuple(ordered[position :: len(clients)])


@dataclass(frozen=True, slots=True)
class AllocateByConsistentHash:
    """CONSISTENT_HASH: few queues move when a consumer comes or goes. Each consumer stands
    `virtual_nodes` times on a ring; a queue belongs to the next one at or behind its own place."""

    virtual_nodes: int = 10

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Queues:
        ordered, clients, position = _places(queues, client_ids, client_id)
        if position is None:
            return ()
        ring = {_hash(f"{c}-{n}"): c for c in clients for n in range(self.virtual_nodes)}
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            topic, broker_name, queue_id = queue
            name = f"MessageQueue [topic={topic}, brokerName={broker_name}, queueId={queue_id}]"
            return ring[places[bisect_left(places, _hash(name)) % len(places)]]

        return tuple(queue for queue in ordered if owner(queue) == client_id)


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """MACHINE_ROOM: only brokers named `room@name` of the given rooms; dealt out averagely, the
    remainder one by one to the first consumers."""

    rooms: frozenset[str]

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Queues:
        ordered, clients, position = _places(queues, client_ids, client_id)
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
    """MACHINE_ROOM_NEARBY: queues go to consumers of their own room, by `inner`; those of rooms
    without a consumer are shared by all. The two functions say where somebody is."""

    inner: AllocationStrategy
    room_of_queue: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Queues:
        ordered, clients, position = _places(queues, client_ids, client_id)
        if position is None:
            return ()
        inhabited = {self.room_of_client(client) for client in clients}
        own = self.room_of_client(client_id)
        here = [queue for queue in ordered if self.room_of_queue(queue) == own]
        neighbours = [client for client in clients if self.room_of_client(client) == own]
        taken = list(self.inner(here, neighbours, client_id))
        for room in sorted({self.room_of_queue(queue) for queue in ordered} - inhabited):
            there = [queue for queue in ordered if self.room_of_queue(queue) == room]
            taken += self.inner(there, clients, client_id)
        return tuple(taken)


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """CONFIG: the queues that are written down here, whoever else there is. Those that the topic
    has not got are left out."""

    queues: tuple[MessageQueue, ...]

    def __call__(
        self, queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> Queues:
        there = set(queues)
        return tuple(queue for queue in self.queues if queue in there)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The change from the queues held to the queues allocated."""

    dropped: Queues
    added: Queues


def assignment_change(
    topic: str, held: Iterable[MessageQueue], allocated: Iterable[MessageQueue]
) -> Assignment:
    """What to give up and what to take, for one topic; queues of other topics are left alone."""
    before = {queue for queue in held if queue.topic == topic}
    after = set(allocated)
    return Assignment(tuple(sorted(before - after)), tuple(sorted(after - before)))


def _places(
    queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
) -> tuple[list[MessageQueue], list[str], int | None]:
    """Both lists sorted, and the client's place; None where it gets nothing."""
    clients = sorted(set(client_ids))
    if not queues or client_id not in clients:
        return [], clients, None
    return sorted(queues), clients, clients.index(client_id)


def _hash(text: str) -> int:
    """The first four bytes of the MD5."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
