"""Broker groups that are added to a running cluster of separate processes, drained and removed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raftmq.chaos.cluster import groups
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, ClusterState
from raftmq.chaos.cluster.linkmap import links_of
from raftmq.chaos.cluster.topology import (
    Shape,
    new_links,
    plan,
    ports_needed,
    standard_ports,
    standard_ports_of_group,
    with_group,
    without_group,
)
from raftmq.client import ConsumeResult, Message, MessageExt, Producer, PushConsumer, SendStatus
from raftmq.client.admin import Admin
from tests.chaos.doubles import ENDS, AgreeingProbe, Programs
from tests.waiting import until

PATIENCE_S = 200.0  # only a hang takes this long
QUEUES = 2
SETTINGS = {
    "drainGraceMs": "500",
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": "8388608",
}


class Traffic:
    """A producer and a consumer that run all the time."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.sent: dict[bytes, str] = {}  # acknowledged body → broker group
        self.consumed: set[bytes] = set()
        self._queues: set[int] = set()

    async def listen(self, messages: list[MessageExt]) -> ConsumeResult:
        self.consumed |= {message.body for message in messages}
        self._queues |= {message.queue_id for message in messages}
        return ConsumeResult.SUCCESS

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop`. Raises SendError for the first send that fails."""
        consumer = PushConsumer("g", self._namesrv, self.listen)
        consumer.subscribe("T")
        async with consumer, Producer("p", self._namesrv) as producer:
            while len(self._queues) < QUEUES:  # the consumer has a position in each
                await producer.send(Message("T", b"first"))
                await asyncio.sleep(0.01)
            while not stop.is_set():
                body = b"%d" % len(self.sent)
                result = await producer.send(Message("T", body))
                assert result.status is SendStatus.OK
                self.sent[body] = result.queue.broker_name
                await asyncio.sleep(0.01)
            await until(lambda: self.consumed >= self.sent.keys())

    async def has_sent_to(self, group: str, count: int = 20) -> None:
        """Return once `count` further messages are stored in a group."""
        expected = list(self.sent.values()).count(group) + count
        await until(lambda: list(self.sent.values()).count(group) >= expected)


async def test_cluster_moves_to_a_second_group_under_load(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path / "c")
    said: list[str] = []
    try:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            namesrv = (await cluster.up(Shape(replicas=1), SETTINGS)).namesrv
            async with Admin(namesrv) as admin:
                await admin.topic.create("T", QUEUES)
            traffic, stop = Traffic(namesrv), asyncio.Event()
            clients = tasks.create_task(traffic.run(stop))
            await traffic.has_sent_to("broker-a")

            (added,) = await groups.add(cluster, None, 1, said.append)
            assert (added.name, added.group) == ("n1", "broker-b")
            await traffic.has_sent_to("broker-b")
            await traffic.has_sent_to("broker-a")
            with pytest.raises(ClusterError, match="is not draining"):
                await groups.remove(cluster, "broker-a", said.append)

            status = await groups.drain(cluster, "broker-a")
            assert status["drainingMs"]
            with pytest.raises(ClusterError, match=r"\[NOT_EMPTY\] the broker group still has"):
                await groups.remove(cluster, "broker-a", said.append)
            (left,) = await groups.remove(cluster, "broker-a", said.append, wait_s=PATIENCE_S)
            assert (left / "store" / "commitlog").is_dir()
            assert any(text.startswith("the broker group still has: ") for text in said)
            assert [node.name for node in cluster.state().nodes] == ["namesrv", "n1"]
            await traffic.has_sent_to("broker-b")
            stop.set()
            await clients
            assert set(traffic.sent.values()) == {"broker-a", "broker-b"}
            with pytest.raises(ClusterError, match="broker-b is the only group"):
                await groups.remove(cluster, "broker-b", said.append, lose=True)
    finally:
        await cluster.down()
        await cluster.close()


async def test_added_group_that_fails_to_start_is_stopped_and_can_be_removed(
    tmp_path: Path,
) -> None:
    probe = AgreeingProbe()
    probe.silent = {"n4"}
    cluster = Cluster(tmp_path / "c", probe, Programs(n4=ENDS))
    try:
        with pytest.raises(ClusterError, match="no cluster in"):
            await groups.add(cluster, None, 3, print)
        before = await cluster.up()
        with pytest.raises(ClusterError, match=r"ended by itself: n4(?s:.*)remove-group --lose"):
            await groups.add(cluster, "more", 2, print)
        assert cluster.state().groups == ("broker-a", "more")
        assert cluster.process_state(cluster.state().node("n3")) == "dead"
        await groups.remove(cluster, "more", print, lose=True)
        assert cluster.state() == before
        assert [n.name for n in await groups.add(cluster, None, 1, print)] == ["n5"]
        await cluster.down()
        assert (await cluster.up()).groups == ("broker-a", "broker-b")
        await cluster.down()
        with pytest.raises(ClusterError, match="does not run"):
            await groups.add(cluster, None, 3, print)
    finally:
        await cluster.down()
        await cluster.close()


@pytest.mark.parametrize(
    ("shape", "name", "words"),
    [
        (Shape("sync"), "b", "this cluster is sync"),
        (Shape(groups=16, replicas=1), "b", "has 16 groups at most"),
        (Shape(), "broker-a", "choose a different name"),
        (Shape(), "a\nb", "is no name of a group"),
    ],
)
def test_group_that_cannot_be_added_is_rejected(
    tmp_path: Path, shape: Shape, name: str, words: str
) -> None:
    with pytest.raises(ClusterError, match=words):
        groups._checked_name(tmp_path, planned(shape), name)


def planned(shape: Shape) -> ClusterState:
    ports = range(10_000, 10_000 + 4 * ports_needed(shape), 4)
    return plan(shape, {}, "127.0.0.1", ports)


def test_group_names_are_not_reused(tmp_path: Path) -> None:
    (tmp_path / "n3").mkdir()
    (tmp_path / "n3" / "broker.conf").write_text("brokerName=broker-b\n")
    assert groups._checked_name(tmp_path, planned(Shape()), None) == "broker-c"


def test_standard_ports_of_further_groups() -> None:
    shape = Shape(groups=2, standard_ports=True)
    state = plan(shape, {}, "127.0.0.1", standard_ports(shape))
    assert standard_ports_of_group(state, 2) == [11111, 11117, 11115, 11121, 11127, 11125]
    assert standard_ports_of_group(without_group(state, "broker-a"), 1) == [10911, 10917, 10915]
    assert standard_ports_of_group(planned(Shape()), 1) == []


def test_added_group_has_links_until_it_is_removed() -> None:
    one, two = planned(Shape(links=True)), planned(Shape(links=True, groups=2))
    nodes = two.members("broker-b")
    names = new_links(one, nodes)
    assert len(names) == 3 * 2 + 3 + 3
    more = with_group(one, nodes, iter(range(20_000, 20_100)))
    assert {link.name for link in links_of(more)} == two.link_ports.keys()
    assert without_group(more, "broker-b") == one
