"""Two broker groups in two machine rooms, and what allocation has to do with rooms.

Groups are called `room@name`, as Apache's AllocateMessageQueueByMachineRoom reads them. East is a
Raft group of three processes whose leader is killed; west has one replica.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from raftmq.chaos.cluster.launch import environment
from raftmq.chaos.cluster.ports import HeldPorts
from raftmq.client import (
    Admin,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateMachineRoomNearby,
    AllocationStrategy,
    BlockingConsumer,
    BlockingProducer,
    ClientError,
    ConsumerConfig,
    ConsumeResult,
    InstanceConfig,
    Message,
    MessageExt,
    MessageQueue,
    allocate_averagely,
    allocate_averagely_by_circle,
)
from tests.interop.runs import PACE_S, PATIENCE_S, QUEUES, Consumer, Run
from tests.interop.targets import OVER_S, SETTINGS, UP_S, Target, ask, leader_of, name_server

EAST, WEST = "east@broker-a", "west@broker-b"
REPLICAS = {EAST: 3, WEST: 1}
ROOM_MARK = "-at-"  # a consumer's name says where it is
ROOMS = ("east", "west", "west")  # of three consumers
ANSWER_S = 20.0  # a round of probes, before the next one


class Rooms:
    """The processes, below `directory`; `namesrv` knows both groups."""

    broker = EAST

    def __init__(self, directory: Path, namesrv: str, **settings: str) -> None:
        self.namesrv = namesrv
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}  # → node
        self._logs = directory
        self._killed: list[str] = []
        self._held = HeldPorts("127.0.0.1")  # while a node starts, and while it is killed, too
        ports = iter(self._held.choose(2 * sum(REPLICAS.values()), random.Random()))
        for group, count in REPLICAS.items():
            nodes = {f"{group}-{n}": (next(ports), next(ports)) for n in range(count)}
            peers = ";".join(f"n{n}-127.0.0.1:{peer}" for n, (_, peer) in enumerate(nodes.values()))
            for number, (node, (port, _)) in enumerate(nodes.items()):
                home = directory / node
                home.mkdir(parents=True)
                values = {
                    "brokerName": group,
                    "brokerIP1": "127.0.0.1",
                    "bindAddress": "127.0.0.1",
                    "listenPort": str(port),
                    "namesrvAddr": namesrv,
                    "storePathRootDir": str(home / "store"),
                    "httpEnable": "false",
                    "enableDLegerCommitLog": "true",
                    "dLegerPeers": peers,
                    "dLegerSelfId": f"n{number}",
                    **SETTINGS,
                    **settings,
                }
                conf = home / "broker.conf"
                conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
                self._commands[node] = [
                    sys.executable,
                    "-P",
                    "-m",
                    "raftmq.broker.cli",
                    "-c",
                    str(conf),
                ]
                self._addresses[f"127.0.0.1:{port}"] = node
        try:
            for node in self._commands:
                self._start(node)
            for group in REPLICAS:
                self._leader(group, "", UP_S)
        except BaseException:
            self.down()
            raise

    def strike(self) -> None:
        node = self._leader(EAST, "", OVER_S)
        process = self._processes[node]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._killed.append(node)
        self._leader(EAST, node, OVER_S)

    def heal(self) -> None:
        while self._killed:
            self._start(self._killed.pop())

    def down(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._held.close()

    def _start(self, node: str) -> None:
        with open(self._logs / f"{node}.log", "ab") as log:
            self._processes[node] = subprocess.Popen(
                self._commands[node], env=environment(), stdout=log, stderr=log
            )

    def _leader(self, group: str, other_than: str, patience_s: float) -> str:
        """The node that the name server has for the group's leader."""
        deadline = time.monotonic() + patience_s
        while True:
            info = ask(self.namesrv, lambda admin: admin.cluster.info())
            result = info.brokers.get(group)
            node = self._addresses.get((result and result.leader) or "", "")
            if node and node != other_than:
                return node
            assert time.monotonic() < deadline, f"nobody leads {group}\n{self._log_text()}"
            time.sleep(PACE_S)

    def _log_text(self) -> str:
        """The ends of what the brokers said."""
        texts = {node: (self._logs / f"{node}.log").read_text() for node in self._processes}
        return "\n".join(f"-- {node}\n{text[-1500:]}" for node, text in texts.items())


@contextmanager
def rooms(directory: Path, **settings: str) -> Iterator[Target]:
    directory.mkdir()
    with name_server() as namesrv:
        target = Rooms(directory, namesrv, **settings)
        try:
            yield target
        finally:
            target.down()


# ---- who has which queue


def room_of_client(client_id: str) -> str:
    """Where a consumer is that does not say so: in the west."""
    _, mark, room = client_id.rpartition(ROOM_MARK)
    return room if mark else "west"


STRATEGIES: Mapping[str, AllocationStrategy] = {
    "average": allocate_averagely,
    "circle": allocate_averagely_by_circle,
    "hash": AllocateByConsistentHash(),
    "room": AllocateByMachineRoom(frozenset({"east"})),
    "nearby": AllocateMachineRoomNearby(
        allocate_averagely, lambda queue: queue.broker_name.split("@")[0], room_of_client
    ),
}


def rule_of(client: str, strategy: str) -> AllocationStrategy | None:
    """None: whatever it does, each queue has one owner. Go's ring is its own, and what it calls
    nearby is the average ("TODO" in its source)."""
    if client == "go" and strategy == "hash":
        return None
    return STRATEGIES["average" if (client, strategy) == ("go", "nearby") else strategy]


def short(queue: MessageQueue) -> str:
    return f"{queue.broker_name}/{queue.queue_id}"


class Ours:
    """A consumer of this project in a foreign group; shaped as `Consumer`."""

    def __init__(self, run: Run, strategy: str) -> None:
        self.name = f"{os.getpid()}#"  # as its client id has it
        self._bodies: list[str] = []
        self._lock = threading.Lock()
        self._consumer = BlockingConsumer(
            run.group,
            run.target.namesrv,
            self._listen,
            config=ConsumerConfig(allocation=STRATEGIES[strategy], rebalance_interval_ms=1_000),
            instance_config=InstanceConfig(heartbeat_interval_ms=1_000),
        )
        self._consumer.subscribe(run.topic)
        self._consumer.start()

    def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        with self._lock:
            self._bodies += [message.body.decode() for message in messages]
        return ConsumeResult.SUCCESS

    def bodies(self) -> list[str]:
        with self._lock:
            return list(self._bodies)

    def stop(self) -> None:
        self._consumer.stop()


@dataclass(slots=True)
class Sharing:
    """A group whose members share a topic's queues by a rule: rounds of one message a queue show
    who has which. A round during a change may show anything; in the end one is right to the queue,
    with every message given out once."""

    run: Run
    producer: BlockingProducer
    members: list[Consumer | Ours]
    rule: AllocationStrategy | None
    rounds: int = 0

    def settle(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        seen: object = "the broker does not know the members"
        while time.monotonic() < deadline:
            expected = self._wanted()
            if expected is None:
                time.sleep(PACE_S)
                continue
            try:
                result = self._round(expected)
            except ClientError as error:  # nobody leads at the moment
                seen = error
                time.sleep(PACE_S)
                continue
            once = all(len(owners) == 1 for owners in result.values())
            if once if self.rule is None else result == expected:
                return
            seen = f"{result}, by the rule {expected}"
        raise AssertionError(f"queues are not shared as they should be: {seen}")

    def _queues(self) -> list[MessageQueue]:
        topic = self.run.topic
        return [MessageQueue(topic, group, n) for group in REPLICAS for n in range(QUEUES)]

    def _wanted(self) -> dict[str, list[str]] | None:
        """By queue, who is to have it; None while the broker does not know just these members."""
        topic, group = self.run.topic, self.run.group

        async def work(admin: Admin) -> tuple[str, ...]:
            return await admin.group.consumers(group, await leader_of(admin, topic, EAST))

        ids = ask(self.run.target.namesrv, work)
        known = {
            client_id: member.name
            for client_id in ids
            for member in self.members
            if f"@{member.name}" in client_id
        }
        if len(ids) != len(self.members) or len(known) != len(ids):
            return None
        expected: dict[str, list[str]] = {short(queue): [] for queue in self._queues()}
        for client_id, name in known.items():
            taken = self.rule(self._queues(), ids, client_id) if self.rule else self._queues()
            for queue in taken:
                expected[short(queue)].append(name)
        return expected

    def _round(self, wanted: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """By queue, who was given this round's message."""
        self.rounds += 1
        for queue in self._queues():
            message = Message(self.run.topic, f"{short(queue)}#{self.rounds}".encode())
            self.producer.send(message, queue=queue)
        deadline = time.monotonic() + ANSWER_S
        while True:
            result = self._found()
            silent = [queue for queue, owners in wanted.items() if owners and not result[queue]]
            if not silent or time.monotonic() > deadline:
                return result
            time.sleep(PACE_S)

    def _found(self) -> dict[str, list[str]]:
        result: dict[str, list[str]] = {short(queue): [] for queue in self._queues()}
        for member in self.members:
            for body in member.bodies():
                queue, _, number = body.partition("#")
                if number == str(self.rounds):
                    result[queue].append(member.name)
        return result


def configured(members: Sequence[Consumer], shares: Sequence[list[str]]) -> AllocationStrategy:
    """The rule of members that were told their queues."""
    reported = {member.name: share for member, share in zip(members, shares, strict=True)}

    def rule(
        queues: Sequence[MessageQueue], client_ids: Sequence[str], client_id: str
    ) -> tuple[MessageQueue, ...]:
        (mine,) = (share for name, share in reported.items() if f"@{name}" in client_id)
        return tuple(queue for queue in queues if short(queue) in mine)

    return rule


def shares(strategy: str, mixed: bool = False) -> Callable[[Run], None]:
    """Three consumers of a group, in both rooms, share two brokers' queues: before a leader dies,
    after it, and when one of them has left. `mixed`: one of the three is this project's."""

    def work(run: Run) -> None:
        run.make_topic()
        complete = [f"{group}/{n}" for group in REPLICAS for n in range(QUEUES)]
        parts = [complete[:3], complete[3:4], complete[4:]]
        members: list[Consumer] = [
            run.consumer(room=room, strategy=strategy, queues=part, rooms=["east"])
            for room, part in list(zip(ROOMS, parts, strict=True))[: 2 if mixed else 3]
        ]
        reported = strategy == "config"
        rule = configured(members, parts) if reported else rule_of(run.client, strategy)
        with ExitStack() as stack:
            everybody: list[Consumer | Ours] = list(members)
            if mixed:
                everybody.append(Ours(run, strategy))
                stack.callback(everybody[-1].stop)
            producer = BlockingProducer(f"P-{run.group}", run.target.namesrv)
            sharing = Sharing(run, stack.enter_context(producer), everybody, rule)
            sharing.settle()
            run.strike()
            run.kill.wait_over()
            sharing.settle()
            if not reported:
                everybody.remove(members[0])
                members[0].stop()
                sharing.settle()

    return work
