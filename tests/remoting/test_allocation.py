"""The allocation strategies: what Apache's Java client (5.3.3) answers, by table, and what must
hold for any group: every queue has one consumer."""

from __future__ import annotations

import pytest

from raftmq.client.message import MessageQueue
from raftmq.remoting.allocation import (
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
)

RING = AllocateByConsistentHash()
SMALL_RING = AllocateByConsistentHash(3)
ROOMS = AllocateByMachineRoom(frozenset({"r1", "r2"}))


def queues(*counts: tuple[str, int]) -> list[MessageQueue]:
    return [MessageQueue("T", name, n) for name, count in counts for n in range(count)]


EIGHT = queues(("a", 8))
TWICE_FOUR = queues(("a", 4), ("b", 4))
SIXTEEN = queues(("broker-a", 16))
IN_ROOMS = queues(("r1@a", 4), ("r2@b", 4), ("r3@c", 4))
THREE = ["c1", "c2", "c3"]
FIVE = [f"10.0.0.{n}@{n}" for n in range(1, 6)]
TWO = ["192.168.0.1@12#1", "192.168.0.2@13#2"]
NINE = [f"c{n}" for n in range(1, 10)]

# strategy, queues, clients → per client, its queues ("a0": queue 0 of broker a)
JAVA = [
    (allocate_averagely, EIGHT, THREE, ["a0 a1 a2", "a3 a4 a5", "a6 a7"]),
    (allocate_averagely_by_circle, EIGHT, THREE, ["a0 a3 a6", "a1 a4 a7", "a2 a5"]),
    (RING, EIGHT, THREE, ["a3", "a0 a4 a6", "a1 a2 a5 a7"]),
    (SMALL_RING, EIGHT, THREE, ["a0", "a3 a4 a6", "a1 a2 a5 a7"]),
    (allocate_averagely, TWICE_FOUR, FIVE, ["a0 a1", "a2 a3", "b0 b1", "b2", "b3"]),
    (allocate_averagely_by_circle, TWICE_FOUR, FIVE, ["a0 b1", "a1 b2", "a2 b3", "a3", "b0"]),
    (RING, TWICE_FOUR, FIVE, ["a3", "b0", "a1 b2", "a2 b1", "a0 b3"]),
    (SMALL_RING, TWICE_FOUR, FIVE, ["a3", "a2 b1", "a1 b2", "", "a0 b0 b3"]),
    (allocate_averagely, EIGHT[:3], NINE[:4], ["a0", "a1", "a2", ""]),
    (allocate_averagely_by_circle, EIGHT[:3], NINE[:4], ["a0", "a1", "a2", ""]),
    (RING, EIGHT[:3], NINE[:4], ["", "a0", "a2", "a1"]),
    (SMALL_RING, EIGHT[:3], NINE[:4], ["a0", "", "a1 a2", ""]),
    (RING, SIXTEEN, TWO, ["0 2 6 8 13 15", "1 3 4 5 7 9 10 11 12 14"]),
    (SMALL_RING, SIXTEEN, TWO, ["2 3 7 8 12", "0 1 4 5 6 9 10 11 13 14 15"]),
    (ROOMS, IN_ROOMS, THREE, ["a0 a1 b2", "a2 a3 b3", "b0 b1"]),
    (ROOMS, IN_ROOMS, NINE, ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", ""]),
]


def short(queue: MessageQueue) -> str:
    name = queue.broker_name.removeprefix("broker-a").removeprefix("r1@").removeprefix("r2@")
    return f"{name}{queue.queue_id}"


@pytest.mark.parametrize(("strategy", "given", "clients", "expected"), JAVA)
def test_allocation_equals_javas(
    strategy: AllocationStrategy,
    given: list[MessageQueue],
    clients: list[str],
    expected: list[str],
) -> None:
    got = [" ".join(map(short, strategy(given[::-1], clients[::-1], client))) for client in clients]
    assert got == expected


@pytest.mark.parametrize(
    "strategy", [allocate_averagely, allocate_averagely_by_circle, RING, SMALL_RING]
)
@pytest.mark.parametrize("queue_count", [1, 2, 7, 16])
@pytest.mark.parametrize("client_count", [1, 2, 3, 17])
def test_every_queue_is_allocated_to_exactly_one_consumer(
    strategy: AllocationStrategy, queue_count: int, client_count: int
) -> None:
    given = queues(("x", queue_count))
    clients = [f"client-{n}" for n in range(client_count)]
    shares = [queue for client in clients for queue in strategy(given, clients, client)]
    assert sorted(shares) == given
    assert strategy(given, clients, "a stranger") == ()
    assert strategy([], clients, clients[0]) == ()


def test_leaving_consumer_moves_only_its_own_queues_on_the_hash_ring() -> None:
    given = queues(("x", 64))
    before = {q: c for c in FIVE for q in RING(given, FIVE, c)}
    after = {q: c for c in FIVE[1:] for q in RING(given, FIVE[1:], c)}
    assert before.keys() == after.keys() == set(given)
    assert all(after[q] == c for q, c in before.items() if c != FIVE[0])


def test_nearby_allocation_gives_rooms_without_consumers_to_all() -> None:
    nearby = AllocateMachineRoomNearby(
        allocate_averagely, lambda q: q.broker_name[:2], lambda client: client[:2]
    )
    clients = ["r1-a", "r1-b", "r2-c"]
    shares = [[short(q) for q in nearby(IN_ROOMS, clients, client)] for client in clients]
    # r3 has no consumer of its own
    assert shares == [
        ["a0", "a1", "r3@c0", "r3@c1"],
        ["a2", "a3", "r3@c2"],
        ["b0", "b1", "b2", "b3", "r3@c3"],
    ]


def test_configured_allocation_takes_existing_queues() -> None:
    config = AllocateByConfig((MessageQueue("T", "a", 1), MessageQueue("T", "gone", 0)))
    assert config(EIGHT, THREE, "c1") == (MessageQueue("T", "a", 1),)
