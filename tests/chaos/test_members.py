"""Replacement of a dead broker under load, with separate processes, as an operator does it."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from raftmq.chaos.cluster import members
from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, Node, load_state
from raftmq.chaos.cluster.launch import broker_conf
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed
from raftmq.client import Message, Producer, SendResult, SendStatus
from raftmq.client.admin import Admin
from raftmq.client.errors import ClientError
from raftmq.remoting.client import RemotingClient
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.command import RemotingCommand
from raftmq.remoting.errors import SendTimeout
from raftmq.store.record import decode_offset_message_id
from tests.chaos.doubles import AgreeingProbe, Programs

PATIENCE_S = 280.0  # only a hang takes this long
SENDERS = 4
SETTINGS = {
    # A busy machine shall not depose the leader.
    "electionTimeoutMinMs": "3000",
    "electionTimeoutMaxMs": "5000",
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": "8388608",
}


async def keep_sending(producer: Producer, sent: dict[bytes, SendResult], lane: int) -> None:
    number = 0
    while True:
        body = b"%d-%d" % (lane, number)
        result = await producer.send(Message("T", body), timeout_ms=120_000)
        assert result.status is SendStatus.OK
        sent[body] = result
        number += 1
        await asyncio.sleep(0.01)


async def shown(admin: Admin) -> dict[int, str]:
    """Return the name server's view, brokerId to address."""
    return dict((await admin.cluster.info()).brokers["broker-a"].addresses)


async def has_all(admin: Admin, node: Node, sent: dict[bytes, SendResult]) -> None:
    """Return once this replica shows every message that was acknowledged."""
    for body, result in sent.items():
        _, offset = decode_offset_message_id(result.offset_msg_id)
        while True:
            try:
                assert (await admin.message.view_at(node.address, offset)).body == body
                break
            except ClientError:  # a follower is behind for a moment
                await asyncio.sleep(0.05)


async def test_dead_broker_is_replaced_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c")
    said: list[str] = []
    sent: dict[bytes, SendResult] = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            result = await cluster.up(settings=SETTINGS)
            leader = await cluster.find("leader")
            dead = next(node for node in result.brokers if node.name != leader.name)
            async with Producer("p", result.namesrv) as producer, Admin(result.namesrv) as admin:
                lanes = [keep_sending(producer, sent, lane) for lane in range(SENDERS)]
                sending = [asyncio.create_task(lane) for lane in lanes]
                while len(sent) < 50:  # noqa: ASYNC110 (of several senders)
                    await asyncio.sleep(0.02)
                await cluster.wait_dead(cluster.signal(dead.name, signal.SIGKILL))
                new = await members.add(cluster, None, said.append, PATIENCE_S)
                gone, how = await members.remove(cluster, dead.name)
                assert (new.name, gone.name, how) == ("n3", dead.name, "was not running")
                count = len(sent)
                while len(sent) < count + 50:
                    assert not any(task.done() for task in sending), sending
                    await asyncio.sleep(0.02)
                for task in sending:
                    task.cancel()
                ended = await asyncio.gather(*sending, return_exceptions=True)
                assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended

                now = cluster.state().brokers
                kept = next(n for n in result.brokers if n.name not in (leader.name, dead.name))
                assert {node.name for node in now} == {leader.name, kept.name, "n3"}
                expected = {0: leader.address, 1 + kept.broker_id: kept.address, 4: new.address}
                while await shown(admin) != expected:  # noqa: ASYNC110 (another process's table)
                    await asyncio.sleep(0.05)
                rows = {row["node_id"]: row for row in await admin.broker.members(leader.address)}
                assert {row["role"] for row in rows.values()} == {"voter"}
                assert set(rows) == {node.name for node in now}
                for node in now:
                    await has_all(admin, node, sent)
        # A founder's broker.conf is unchanged; the dead broker's name is not reused.
        state = load_state(cluster.directory)
        assert dead.name in broker_conf(cluster.directory, state, kept)
        assert "raftJoin=true" in broker_conf(cluster.directory, state, new)
        assert "learner" in said[1]
        with pytest.raises(ClusterError, match=f"no node '{dead.name}'"):
            await members.remove(cluster, dead.name)
    finally:
        await cluster.down()
        await cluster.close()


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("add-learner", "n1 is a learner already"),
        ("promote", "n1 is a voter already"),
        ("remove", "n1 is no member of this group"),
    ],
)
async def test_member_change_with_a_lost_answer_is_repeated_until_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, said: str
) -> None:
    answers = ["", "the change before this one is not committed yet", said]

    async def asked(
        self: RemotingClient, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        text = answers.pop(0)
        if not text:
            raise SendTimeout("no answer", outcome_unknown=True)
        return RemotingCommand.response_to(command, ResponseCode.SYSTEM_ERROR, text)

    monkeypatch.setattr(RemotingClient, "invoke", asked)
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    try:
        result = await cluster.up()
        async with asyncio.timeout(PATIENCE_S):
            await members._change(cluster, result.node("n1"), op, time.monotonic() + PATIENCE_S)
        assert answers == []
    finally:
        await cluster.down()
        await cluster.close()


@pytest.mark.parametrize(
    ("waits_in", "left"),
    [
        ("_until_answering", ""),
        ("add-learner", "n3 runs, and may be a learner of broker-a: look, then promote or remove"),
        ("promote", "n3 stays a learner, or is a voter: look, then promote or remove it"),
    ],
)
async def test_interrupted_addition_is_undone_or_reports_what_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_in: str, left: str
) -> None:
    reached = asyncio.Event()

    async def until_answering(*_: object) -> None:
        await change(None, None, "_until_answering")

    async def change(_cluster: object, _node: object, op: str, *_: object) -> None:
        if op == waits_in:
            reached.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(members, "_until_answering", until_answering)
    monkeypatch.setattr(members, "_change", change)
    cluster = Cluster(tmp_path / "c", AgreeingProbe(), Programs())
    said: list[str] = []
    try:
        before = (await cluster.up()).nodes
        async with asyncio.timeout(PATIENCE_S):
            adding = asyncio.create_task(members.add(cluster, None, said.append))
            await reached.wait()
            new = cluster.state().node("n3")
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
        assert cluster.process_state(new) == ("running" if left else "dead")
        assert (cluster.state().nodes == before) == (not left)
        assert said[-1].startswith(left or "started n3")
    finally:
        await cluster.down()
        await cluster.close()


def test_planned_node_and_the_member_limit() -> None:
    state = plan(Shape(), {}, "127.0.0.1", range(10_000, 10_100))
    node = members.planned(state, "broker-a", "n3", (1, 2, 3))
    assert (node.broker_id, node.port, node.peer_port, node.http_port) == (3, 1, 2, 3)
    full = plan(Shape(replicas=9), {}, "127.0.0.1", range(10_000, 10_100))
    with pytest.raises(ClusterError, match="may not have more"):
        members.planned(full, "broker-a", "n9", (1, 2, 3))


@pytest.mark.parametrize(
    ("shape", "words"),
    [(Shape("sync"), "this cluster is sync"), (Shape(links=True), "with links")],
)
def test_cluster_whose_members_cannot_change_is_rejected(shape: Shape, words: str) -> None:
    state = plan(shape, {}, "127.0.0.1", range(10_000, 10_000 + ports_needed(shape)))
    with pytest.raises(ClusterError, match=words):
        members.changeable(state)
