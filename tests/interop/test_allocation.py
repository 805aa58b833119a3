"""Allocation of queues: Apache's strategies, and groups of foreign consumers in two machine rooms.

Java's classes are asked themselves, in both versions, and must say what remoting.allocation says.
Then live groups, one wave with one kill: three consumers in Java or Node, and groups in which one
of the three is ours. Go and Java 4.9 hear of a new leader late: they are in `make interop`.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.java_gateway import JavaObject

from raftmq.client import (
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    AllocationStrategy,
    MessageQueue,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from tests.interop.figures import OURS
from tests.interop.jvm import Jvm, fetch
from tests.interop.matrix import Pair, drivers, pairs, wave
from tests.interop.rooms import rooms
from tests.interop.runs import Outcome
from tests.interop.scenarios import TABLE

SEED = 7
GROUPS = 24
BROKERS = ["r1@a", "r1@b", "r2@a", "r3@c", "plain", "r1@a@x"]
IN_ROOMS = [row.name for row in TABLE if row.rooms]
SELECTION = [*pairs(["java53", "node"], IN_ROOMS)]
IVY_49 = Path(__file__).with_name("ivy-tools49.xml")
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def jvm49() -> Iterator[Jvm]:
    machine = Jvm(jars=fetch(IVY_49, "rocketmq-tools-4.9.8"))
    yield machine
    machine.close()


class Resolver:
    """Java's MachineRoomResolver: rooms as names have them."""

    def brokerDeployIn(self, queue: JavaObject) -> str:
        return room_of_broker(queue.getBrokerName())

    def consumerDeployIn(self, client_id: str) -> str:
        return client_id.split("-")[0]

    class Java:
        implements = (
            "org.apache.rocketmq.client.consumer.rebalance"
            ".AllocateMachineRoomNearby$MachineRoomResolver",
        )


def room_of_broker(name: str) -> str:
    return name.split("@")[0]


def compare(jvm: Jvm) -> int:
    """Each strategy's answer to each member of some groups; how many queues were given out."""
    rebalance = jvm.rocketmq.client.consumer.rebalance
    average = rebalance.AllocateMessageQueueAveragely()
    room = rebalance.AllocateMessageQueueByMachineRoom()
    room.setConsumeridcs({"r1", "r2"})
    config = rebalance.AllocateMessageQueueByConfig()
    nearby = rebalance.AllocateMachineRoomNearby(average, Resolver())
    theirs_and_ours: list[tuple[JavaObject, AllocationStrategy]] = [
        (average, allocate_averagely),
        (rebalance.AllocateMessageQueueAveragelyByCircle(), allocate_averagely_by_circle),
        (rebalance.AllocateMessageQueueConsistentHash(), AllocateByConsistentHash()),
        (rebalance.AllocateMessageQueueConsistentHash(3), AllocateByConsistentHash(3)),
        (room, AllocateByMachineRoom(frozenset({"r1", "r2"}))),
        (
            nearby,
            AllocateMachineRoomNearby(
                allocate_averagely,
                lambda queue: room_of_broker(queue.broker_name),
                lambda client: client.split("-")[0],
            ),
        ),
    ]
    rng = random.Random(SEED)
    given = 0
    for _ in range(GROUPS):
        brokers = sorted(rng.sample(BROKERS, rng.randint(1, len(BROKERS))))
        queues = [MessageQueue("T", b, n) for b in brokers for n in range(rng.randint(1, 5))]
        clients = sorted({f"r{rng.randint(1, 4)}-{rng.randint(0, 99)}" for _ in range(6)})
        make = jvm.rocketmq.common.message.MessageQueue
        java_queues = [make(q.topic, q.broker_name, q.queue_id) for q in queues]
        written = rng.sample(range(len(queues)), rng.randint(1, len(queues)))
        config.setMessageQueueList([java_queues[n] for n in written])
        own = AllocateByConfig(tuple(queues[n] for n in written))
        compared: list[tuple[JavaObject, AllocationStrategy]] = [*theirs_and_ours, (config, own)]
        for theirs, ours in compared:
            for client in clients:
                answer = theirs.allocate("G", client, java_queues, clients)
                result = [
                    MessageQueue(q.getTopic(), q.getBrokerName(), q.getQueueId()) for q in answer
                ]
                assert result == list(ours(queues, clients, client)), (
                    f"{theirs.getName()} of seed {SEED}: {queues}, {clients}, {client}"
                )
                given += len(result)
    return given


def test_allocation_equals_java_53(jvm: Jvm) -> None:
    assert compare(jvm) > 0


def test_allocation_equals_java_49(jvm49: Jvm) -> None:
    assert compare(jvm49) > 0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Outcome]]:
    directory = Path(tmp_path_factory.mktemp("rooms"))
    with drivers(["java53", "node"], directory) as started:
        with rooms(directory / "group", **OURS) as target:
            result = wave(target, started, SELECTION, "ci")
    yield {(outcome.scenario, outcome.client): outcome for outcome in result}


@pytest.mark.parametrize("pair", SELECTION, ids=lambda pair: f"{pair[0].name}-{pair[1]}")
def test_queues_are_owned_as_the_allocation_strategy_says(
    outcomes: dict[tuple[str, str], Outcome], pair: Pair
) -> None:
    row, client = pair
    outcome = outcomes[row.name, client]
    assert outcome.before, outcome
    assert outcome.after, outcome
    assert outcome.offsets_lost == 0, outcome
