"""Links of a real cluster with three brokers and a proxy, and faults between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError
from raftmq.chaos.cluster.probe import RemotingProbe, ReplicaView, leader_of
from raftmq.chaos.cluster.topology import Shape
from raftmq.chaos.cluster.wait_healthy import wait_recovered
from raftmq.chaos.faults.base import Context, Fault, Injection, Planned
from raftmq.chaos.faults.catalogue import make
from raftmq.chaos.faults.links import Links
from raftmq.chaos.history.files import HistoryWriter
from raftmq.client import Admin, ClientError, Message, MessageQueue, Producer
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import RequestCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import RemotingError

PATIENCE_S = 120.0  # only a hang takes this long
SEND_MS = 120_000  # for a send that must succeed
ANSWER_MS = 60_000
SETTINGS = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "electionTimeoutMinMs": "2000",  # a machine that is busy elects nobody for that
    "electionTimeoutMaxMs": "3000",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster for all tests here in turn; each leaves it recovered."""
    directory = tmp_path_factory.mktemp("linked")

    async def do(work: Callable[[Cluster], Awaitable[object]]) -> None:
        cluster = Cluster(directory)
        try:
            await work(cluster)
        finally:
            await cluster.close()

    asyncio.run(do(lambda cluster: cluster.up(Shape(links=True), SETTINGS)))
    yield directory
    asyncio.run(do(lambda cluster: cluster.down()))


class Scene:
    """The cluster, its links, a history, and eyes that look past the proxy."""

    def __init__(self, cluster: Cluster, links: Links, history: HistoryWriter) -> None:
        self.cluster = cluster
        self.links = links
        self.context = Context(cluster, history, links)
        self._number = 0

    def fault(self, kind: str, whom: str, **params: float) -> Fault:
        self._number += 1
        planned = Planned(self._number, 0.0, 1.0, kind, whom, 0.0, params)
        return make(planned, self.context)

    async def views(self) -> dict[str, ReplicaView]:
        status = await self.cluster.status()
        return {s.node.name: s.view for s in status if s.view is not None}

    async def view(self, node: str) -> ReplicaView:
        """Return the view of the links, once available."""
        async with asyncio.timeout(PATIENCE_S):
            while (result := (await self.views()).get(node)) is None:  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.02)
        return result

    async def leader(self, but: str = "") -> ReplicaView:
        """The ready leader, once it is not `but`."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                view = leader_of(list((await self.views()).values()), "broker-a")
                if view is not None and view.node != but and view.leader_ready:
                    return view
                await asyncio.sleep(0.02)

    async def inject(self, kind: str, whom: str, **params: float) -> tuple[Fault, str]:
        """A fault that is injected, and the first node that it hit."""
        fault = self.fault(kind, whom, **params)
        await fault.inject()
        assert isinstance(fault, Injection) and fault.hit is not None
        return fault, fault.hit.names[0]

    async def ask(self, node: str, timeout_ms: int, *, as_client: bool = True) -> bool:
        """Whether a broker answers, at the clients' address or at its own."""
        state = self.cluster.state()
        result = state.node(node)
        address = state.client_address(result) if as_client else result.address
        client = RemotingClient(connect_timeout_ms=timeout_ms)
        try:
            command = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            return (await client.invoke(address, command, timeout_ms)).code == 0
        except RemotingError:
            return False
        finally:
            await client.close()


@pytest.fixture
async def scene(home: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        cluster = Cluster(home)
        stack.push_async_callback(cluster.close)
        history = stack.enter_context(HistoryWriter(tmp_path / "h.jsonl"))
        links = await stack.enter_async_context(Links.of(cluster))
        await wait_recovered(cluster, PATIENCE_S)
        yield Scene(cluster, links, history)
        assert not [name for name, link in (await links.state()).items() if "rules" in link]


async def test_isolated_leader_is_replaced_and_follows_after_the_heal(scene: Scene) -> None:
    before = await scene.leader()
    async with AsyncExitStack() as stack:
        namesrv = scene.cluster.state().namesrv
        admin = await stack.enter_async_context(Admin(namesrv))
        await admin.topic.create("T", 8)
        producer = await stack.enter_async_context(Producer("links", namesrv))
        await producer.send(Message("T", b"before"), timeout_ms=SEND_MS)
        fault, old = await scene.inject("cut-node", "leader")
        assert fault.describe() == f"{old}: cut off from everybody"
        new = await scene.leader(but=old)
        assert new.term > before.term
        assert not await scene.ask(old, 300)
        await producer.send(Message("T", b"while the old leader is alone"), timeout_ms=SEND_MS)
        await fault.heal()
        await wait_recovered(scene.cluster, PATIENCE_S)
        healed = await scene.view(old)
        assert healed.term >= new.term
        assert healed.role == "follower" or healed.term > new.term  # elected once more
        await producer.send(Message("T", b"after"), timeout_ms=SEND_MS)


async def test_leader_without_peers_steps_down_although_clients_reach_it(scene: Scene) -> None:
    fault, old = await scene.inject("cut-peers", "leader")
    await scene.leader(but=old)
    assert await scene.ask(old, ANSWER_MS)
    await fault.heal()


async def test_leader_that_cannot_send_to_its_peers_is_replaced(scene: Scene) -> None:
    before = await scene.leader()
    fault, old = await scene.inject("one-way-out", "leader")
    cut = {name for name, link in (await scene.links.state()).items() if "rules" in link}
    others = {"n0", "n1", "n2"} - {old}
    assert cut == {f"{old}>{other}" for other in others}
    new = await scene.leader(but=old)
    assert new.term > before.term
    await fault.heal()


async def test_clients_only_cut_leaves_the_leader_in_its_group(scene: Scene) -> None:
    fault, old = await scene.inject("clients-only", "leader")
    assert not await scene.ask(old, 500)
    assert await scene.ask(old, ANSWER_MS, as_client=False)
    assert (await scene.view(old)).role  # nor did the group lose it
    await fault.heal()
    assert await scene.ask(old, ANSWER_MS)


async def test_lost_answers_are_unknown_outcomes_of_executed_sends(scene: Scene) -> None:
    async with AsyncExitStack() as stack:
        namesrv = scene.cluster.state().namesrv
        admin = await stack.enter_async_context(Admin(namesrv))
        await admin.topic.create("Answers", 8)
        producer = await stack.enter_async_context(Producer("answers", namesrv))
        queue = MessageQueue("Answers", "broker-a", 0)
        await producer.send(Message("Answers", b"heard"), timeout_ms=SEND_MS, queue=queue)
        before = await max_offset(scene, "Answers")
        assert before > 0
        fault = scene.fault("answers-lost", "leader")
        await fault.inject()
        with pytest.raises(ClientError) as failed:
            await producer.send(Message("Answers", b"not heard"), queue=queue, timeout_ms=800)
        assert failed.value.outcome_unknown
        async with asyncio.timeout(PATIENCE_S):
            while await max_offset(scene, "Answers") == before:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
        await fault.heal()


async def max_offset(scene: Scene, topic: str) -> int:
    """The leader's next queue offset, read past the proxy."""
    leader = (await scene.leader()).node
    async with RemotingProbe(ANSWER_MS) as probe:
        result = await probe.max_offset(scene.cluster.state().node(leader).address, topic, 0)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("kind", "whom", "params"),
    [
        ("halves", "leader", {}),
        ("bridge", "follower", {}),
        ("one-way-in", "follower", {}),
        ("flapping", "follower", {"every_ms": 60}),
        ("swizzle", "all", {"step_ms": 10}),
        ("reset", "all", {}),
        ("connection-loss", "clients", {"lives_s": 0.1}),
        ("refuse", "leader", {}),
        ("delay", "all", {"delay_ms": 20, "jitter_ms": 10}),
        ("slow-link", "leader", {"rate": 100_000}),
        ("namesrv-cut", "namesrvs", {}),
    ],
)
async def test_cluster_recovers_after_every_link_fault(
    scene: Scene, kind: str, whom: str, params: dict[str, float]
) -> None:
    fault = scene.fault(kind, whom, **params)
    await fault.inject()
    assert fault.describe()
    if kind not in ("reset", "flapping"):
        assert any("rules" in link for link in (await scene.links.state()).values())
    await asyncio.sleep(0.2)
    await fault.heal()
    await fault.heal()
    await wait_recovered(scene.cluster, PATIENCE_S)


async def test_leadership_is_transferred_on_request(scene: Scene) -> None:
    fault, old = await scene.inject("transfer", "leader")
    new = await scene.leader()
    assert new.node != old
    assert fault.describe() == f"leadership taken from {old} to {new.node}"
    await fault.heal()
    back, _ = await scene.inject("transfer", old)
    assert (await scene.leader()).node == old
    await back.heal()


async def test_fault_without_a_link_to_break_is_rejected(scene: Scene) -> None:
    with pytest.raises(ClusterError, match="clients-only: proxy has no such link"):
        await scene.fault("clients-only", "proxy").inject()
