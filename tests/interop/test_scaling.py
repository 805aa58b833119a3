"""Foreign clients, unmodified, while broker groups join, lose leaders, are drained and leave."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from raftmq.chaos.cluster import groups
from raftmq.chaos.cluster.cluster import Cluster as Processes
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.client import Admin, ClientError, PullConsumer
from tests.interop.driver import ClientError as ForeignError
from tests.interop.driver import Driver
from tests.interop.jvm import Jvm
from tests.interop.python5.sdk import Sdk, SdkError
from tests.interop.targets import SETTINGS
from tests.interop.test_java_client import Cluster, Listener, push_consumer
from tests.interop.toolchain import go5, node5, python5
from tests.mqadmin.page import mqadmin
from tests.waiting import until, wait_until

pytestmark = pytest.mark.timeout(1800)
STAYS, LEAVES = "broker-a", "broker-b"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two groups of one replica, without a grace period for older routes."""
    cluster = Cluster(tmp_path, "drainGraceMs=0", options=("--groups", "2", "--replicas", "1"))
    yield cluster
    cluster.down()


def test_java_sends_do_not_fail_while_a_broker_group_leaves(jvm: Jvm, cluster: Cluster) -> None:
    """Java asks for routes every 30 s only: its sends to the leaving group are rejected, and it
    sends them to the other group. A Java consumer gets every message, then the group is removed."""
    assert admin(cluster, "updateTopic -c DefaultCluster -t Scaled -r 2 -w 2")[0] == 0
    producer = jvm.producer("pg-scaled", cluster.namesrv)  # it is started
    consumer, listener = push_consumer(jvm, cluster, "cg-scaled", "Scaled", "*")
    keys: list[str] = []
    try:

        def send() -> str:
            keys.append(f"k{len(keys)}")
            result = producer.send(jvm.message("Scaled", "*", keys[-1], b"x"))
            assert result.getSendStatus().toString() == "SEND_OK"
            return str(result.getMessageQueue().getBrokerName())

        assert {send() for _ in range(20)} == {STAYS, LEAVES}
        assert admin(cluster, f"drainGroup -b {LEAVES}")[0] == 0
        assert {send() for _ in range(40)} == {STAYS}
        listener.wait_for(lambda: received(listener) >= set(keys))

        def is_removed() -> bool:
            status, said = admin(cluster, f"removeGroup -b {LEAVES}")
            assert status == 0 or "[NOT_EMPTY]" in said, said
            return status == 0

        wait_until(is_removed)  # once the consumer has committed
        wait_until(lambda: LEAVES not in admin(cluster, "clusterList")[1])
        assert send() == STAYS
    finally:
        consumer.shutdown()
        producer.shutdown()


def received(listener: Listener) -> set[str]:
    return {keys for _, _, keys, _ in listener.received}


def admin(cluster: Cluster, line: str) -> tuple[int, str]:
    """Return the exit status and the output of a command."""
    status, out, err = mqadmin(cluster.namesrv, *line.split())
    return status, out + err


# ---- from one group to three and back


REPLICAS = 3
QUEUES = 2
ROUTE_MS = 30_000  # as the clients do without being told
# A leader must not change because the machine is busy.
STEADY = {"electionTimeoutMinMs": "3000", "electionTimeoutMaxMs": "5000"}
ROUTES_S = 40.0  # until all of them know who leads: leaders of two groups do not change before
SEND_TIMEOUT_MS = 20_000  # a busy machine may need more than the 3 s of Java
PACE_S = 0.05
LOOK_S = 0.25
WARM_MESSAGES = 50
LEADERLESS_S = 5.0  # a killed broker is started again after this time
PATIENCE_S = 400.0  # twice the grace period of a drain, and more: a bound against hanging
REMOTING = ("java49", "java53", "go", "node")
GRPC = {"python5": python5, "go5": go5, "node5": node5}


class Client(Protocol):
    """A producer and a push consumer of a foreign client, for a topic of their own."""

    async def start(self, topic: str, group: str) -> None: ...

    async def send(self, body: str) -> None:
        """Send, as patiently as the client does by itself. Raises ForeignError, SdkError."""

    async def heard(self) -> list[str]:
        """Return the bodies that the consumer was given."""
        ...


class Remoting:
    def __init__(self, driver: Driver, namesrv: str) -> None:
        self._driver = driver
        self._namesrv = namesrv
        self._topic = ""

    async def start(self, topic: str, group: str) -> None:
        self._topic = topic
        common = {"namesrv": self._namesrv, "route_ms": ROUTE_MS}
        consumer = {
            "kind": "push", "expression": "*", "sql": False, "from": "FIRST_OFFSET",
            "broadcast": False, "strategy": "average", "failures": 0, "topic": topic,
        }  # fmt: skip
        await self._call("consumer", name="C", group=group, **common, **consumer)
        producer = {
            "retries": 3, "selector": "", "transactional": False, "timeout_ms": SEND_TIMEOUT_MS,
        }  # fmt: skip
        await self._call("producer", name="P", group=f"{group}-producers", **common, **producer)

    async def send(self, body: str) -> None:
        messages = [{"body": body}]
        (result,) = await self._call(
            "send", producer="P", how="sync", topic=self._topic, messages=messages
        )
        if not result["ok"]:
            raise ForeignError(result["error"])

    async def heard(self) -> list[str]:
        return [event["body"] for event in self._driver.events("C")]

    async def _call(self, do: str, **fields: Any) -> Any:
        return await asyncio.to_thread(self._driver.call, do, **fields)


class Grpc:
    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk
        self._topic = ""

    async def start(self, topic: str, group: str) -> None:
        self._topic = topic
        await self._sdk.produce(topics=[topic])
        await self._sdk.listen(group=group, topic=topic)

    async def send(self, body: str) -> None:
        await self._sdk.send(topic=self._topic, body=body)

    async def heard(self) -> list[str]:
        return [row[0] for row in await self._sdk.heard()]


@dataclass
class Load:
    """A client that sends numbers all the time, and what became of them."""

    name: str
    client: Client
    sent: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # with the time and the error
    unsure: set[str] = field(default_factory=set)  # bodies of failed sends
    heard: Counter[str] = field(default_factory=Counter)
    stored_s: dict[str, float] = field(default_factory=dict)  # by group, after it was added
    consumed_s: dict[str, float] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)  # the first body in a group

    @property
    def topic(self) -> str:
        return f"Scaled-{self.name}"

    @property
    def group(self) -> str:
        return f"scaled-{self.name}"

    async def send(self, stop: asyncio.Event, phase: list[str]) -> None:
        number = 0
        while not stop.is_set():
            body, number = str(number), number + 1
            try:
                await self.client.send(body)
                self.sent.append(body)
            except (ForeignError, SdkError) as error:
                self.failed.append(f"{time.strftime('%X')} {phase[-1]}: {error}")
                self.unsure.add(body)
            await asyncio.sleep(PACE_S)

    async def listen(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self.heard = Counter(await self.client.heard())
            await asyncio.sleep(LOOK_S)

    def figures(self) -> dict[str, object]:
        return {
            "sent": len(self.sent),
            "failed": len(self.failed),
            "repeated": self.heard.total() - len(self.heard),
            "lost": len(set(self.sent) - self.heard.keys()),
            "stored_s": {name: round(s, 1) for name, s in self.stored_s.items()},
            "consumed_s": {name: round(s, 1) for name, s in self.consumed_s.items()},
        }


class Outcome(NamedTuple):
    loads: dict[str, Load]
    groups: tuple[str, ...]  # at the end


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All clients at once from one group to three and back, with a killed leader in each phase."""
    return asyncio.run(scaled(tmp_path_factory.mktemp("scaled")))


async def scaled(directory: Path) -> Outcome:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(running(directory / "cluster"))
        loads = [
            Load(name, await started(stack, name, directory, cluster))
            for name in (*REMOTING, *GRPC)
        ]
        namesrv = cluster.state().namesrv
        async with Admin(namesrv) as admin:
            for load in loads:
                await admin.topic.create(load.topic, QUEUES)
        phase = ["one group"]
        stop = asyncio.Event()
        for load in loads:
            await load.client.start(load.topic, load.group)
        async with asyncio.TaskGroup() as tasks:
            for load in loads:
                tasks.create_task(load.listen(stop))
            sending = [asyncio.create_task(load.send(stop, phase)) for load in loads]
            try:
                await until(
                    lambda: all(len(load.heard) >= WARM_MESSAGES for load in loads),
                    lambda: {load.name: len(load.heard) for load in loads},
                    patience_s=PATIENCE_S,
                )
                for name in ("broker-b", "broker-c"):
                    phase.append(f"{name} joins")
                    await joined(cluster, name, loads)
                    phase.append(f"a leader is killed beside {name}")
                    await without_leader(cluster, STAYS if name == "broker-b" else "broker-b")
                for name in ("broker-c", "broker-b"):
                    await asyncio.sleep(ROUTES_S)
                    phase.append(f"{name} is drained")
                    await groups.drain(cluster, name)
                    if name == "broker-c":
                        phase.append("a leader is killed beside a draining group")
                        await without_leader(cluster, STAYS)
                    phase.append(f"{name} leaves")
                    await groups.remove(cluster, name, print, wait_s=PATIENCE_S)
                phase.append("one group again")
                await asyncio.sleep(LEADERLESS_S)
                stop.set()
                await asyncio.gather(*sending)
            finally:
                stop.set()
        for load in loads:

            async def is_complete(load: Load = load) -> bool:
                load.heard = Counter(await load.client.heard())
                return load.heard.keys() >= set(load.sent)

            try:
                await until(is_complete, patience_s=60.0, pause_s=LOOK_S)
            except AssertionError:
                pass  # the test of the client names what is lost
        return Outcome({load.name: load for load in loads}, cluster.state().groups)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Processes]:
    cluster = Processes(directory)
    try:
        await cluster.up(Shape(replicas=REPLICAS, proxies=1), {**SETTINGS, **STEADY})
        yield cluster
    finally:
        await cluster.down()
        await cluster.close()


async def started(stack: AsyncExitStack, name: str, directory: Path, cluster: Processes) -> Client:
    if name in GRPC:
        (proxy,) = cluster.state().grpc_proxies
        sdk = Sdk(directory / name, proxy, launch=GRPC[name])
        return Grpc(await stack.enter_async_context(sdk))
    home = directory / name
    home.mkdir()
    driver = await asyncio.to_thread(Driver, name, home)
    stack.push_async_callback(asyncio.to_thread, driver.close)
    return Remoting(driver, cluster.state().namesrv)


async def joined(cluster: Processes, name: str, loads: list[Load]) -> None:
    """Add a group; return once each client has stored a message there and consumed it."""
    added_s, added_ms = time.monotonic(), time.time() * 1000
    (node, *_) = await groups.add(cluster, name, REPLICAS, print)
    assert node.group == name
    async with PullConsumer("scaled-scanner", cluster.state().namesrv) as scanner:

        async def is_used() -> bool:
            for load in loads:
                if name not in load.stored_s:
                    await find_first(scanner, name, load, added_ms)
                elif name not in load.consumed_s and load.first[name] in load.heard:
                    load.consumed_s[name] = time.monotonic() - added_s
            return all(name in load.consumed_s for load in loads)

        await until(
            is_used,
            lambda: {load.name: (load.stored_s, load.consumed_s) for load in loads},
            patience_s=PATIENCE_S,
            pause_s=LOOK_S,
        )


async def find_first(scanner: PullConsumer, name: str, load: Load, added_ms: float) -> None:
    """Note the first message of a topic in a broker group, if there is one."""
    found = []
    try:
        for queue in await scanner.queues(load.topic):
            if queue.broker_name == name and await scanner.max_offset(queue):
                found += (await scanner.pull(queue, 0, 1)).messages
    except ClientError:
        return
    if found:
        first = min(found, key=lambda message: message.store_timestamp_ms)
        load.first[name] = first.body.decode()
        load.stored_s[name] = (first.store_timestamp_ms - added_ms) / 1000


async def without_leader(cluster: Processes, group: str) -> None:
    """Kill a group's leader, once clients know the other groups' leaders; start it again later, and
    wait until the cluster is whole."""
    await asyncio.sleep(ROUTES_S)
    node = await cluster.find(f"leader:{group}")
    await cluster.wait_dead(cluster.signal(node.name, signal.SIGKILL))
    await asyncio.sleep(LEADERLESS_S)
    cluster.start(node.name)
    await wait_recovered(cluster, PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("name", [*REMOTING, *GRPC])
def test_foreign_loads_lose_nothing_from_one_group_to_three_and_back(
    outcome: Outcome, name: str
) -> None:
    """No send fails, and every acknowledged message is consumed."""
    load = outcome.loads[name]
    print(load.name, load.figures())
    assert outcome.groups == (STAYS,)
    assert not load.failed, load.failed
    assert not set(load.sent) - load.heard.keys()
    assert not load.heard.keys() - set(load.sent) - load.unsure
