"""Members change while real members work: real sockets, real files."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from raftmq.dledger.raft.configuration import Change, ChangeKind
from raftmq.dledger.raft.errors import ChangeRefused, NotLeader, OutcomeUnknown
from raftmq.dledger.storage.configuration_file import ConfigurationFile
from raftmq.dledger.storage.log_flusher import FlushMode
from raftmq.dledger.transport.transport import PeerAddress
from tests.dledger.members import Group, Node


def address(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


async def change(group: Group, kind: ChangeKind, node_id: str, where: str = "") -> int:
    """Ask whoever leads, until it is done: a learner may need a moment, a leader may leave."""
    async with asyncio.timeout(60):
        while True:
            recovered = [n for n in group.nodes if n.running and n.member.core.recovered]
            leader = await group.leader(recovered)
            try:
                return await leader.member.change_members(Change(kind, node_id, where))
            except (ChangeRefused, NotLeader):
                await asyncio.sleep(0.02)


async def keep_sending(group: Group, sent: list[bytes], leader: Node) -> None:
    while True:
        message = b"m%d" % len(sent)
        sent.append(message)
        leader.app.send(message)
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_dead_voter_is_replaced_without_a_failed_send(
    tmp_path: Path, flush: FlushMode
) -> None:
    async with Group(tmp_path, flush=flush) as group:
        leader = await group.leader()
        dead = next(n for n in group.others(leader))
        sent: list[bytes] = []
        sending = asyncio.create_task(keep_sending(group, sent, leader))
        await group.until(lambda: len(leader.app.fates) > 20)
        new = group.joiner("n3")
        await new.start()
        assert new.member.status()["membership"] == "none"
        await dead.kill()
        await change(group, ChangeKind.ADD_LEARNER, "n3", address(new))
        await change(group, ChangeKind.PROMOTE, "n3")
        await change(group, ChangeKind.REMOVE, dead.node_id)
        await group.until(lambda: len(leader.app.fates) > 60)
        sending.cancel()
        await asyncio.wait([sending])
        await group.until(lambda: len(leader.app.fates) == len(sent))
        assert set(leader.app.fates.values()) == {"stored"}
        assert leader.member.core.role.value == "leader"  # it led all the time
        await group.until(lambda: new.app.applied_index == leader.app.applied_index)
        assert new.app.payloads == leader.app.payloads
        rows = {row["node_id"]: row for row in new.member.members}
        assert dead.node_id not in rows
        assert (rows["n3"]["role"], rows["n3"]["broker_id"]) == ("voter", 4)
        assert new.member.status()["membership"] == "voter"


async def test_removed_replica_reports_no_membership_and_starts_no_election(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        gone = group.others(leader)[0]
        await change(group, ChangeKind.REMOVE, gone.node_id)
        await group.until(lambda: gone.member.status()["membership"] == "none")
        await group.until(lambda: bool(gone.member.status()["configuration_committed"]))
        term = leader.member.core.term
        await asyncio.sleep(4 * group.config.core.election_ms_max / 1000)
        assert (leader.member.core.term, leader.member.core.role.value) == (term, "leader")
        assert gone.node_id not in leader.member.core.membership.peers
        # After a restart, too: it is told so, and remembers.
        await gone.stop()
        await gone.start()
        assert gone.member.status()["membership"] == "none"


async def test_removed_replica_that_acknowledges_late_still_gets_its_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        gone = group.others(leader)[0]
        await group.until(lambda: gone.member.core.recovered)
        with monkeypatch.context() as silence:
            silence.setattr(gone.member.links, "send", lambda *_, **__: True)
            await change(group, ChangeKind.REMOVE, gone.node_id)  # the other two commit it
        await group.until(lambda: bool(gone.member.status()["configuration_committed"]))
        await group.until(lambda: gone.member.links.refused_as_removed)


async def test_caught_up_learner_is_not_a_successor(tmp_path: Path) -> None:
    async with Group(tmp_path, transfer_on_stop_ms=1_000) as group:
        leader = await group.leader()
        learner = group.joiner("a0")  # the first of those that have most
        await learner.start()
        await change(group, ChangeKind.ADD_LEARNER, "a0", address(learner))
        await group.until(lambda: learner.member.applied_index == leader.member.core.last_index)
        voters = {node.node_id for node in group.others(leader) if node is not learner}
        await group.until(lambda: leader.member.successor() is not None)
        for node in group.nodes:
            if node.node_id in voters:
                assert leader.member.successor() in voters
                await node.stop()
        assert learner.running
        assert leader.member.successor() is None


async def test_returning_member_follows_a_leader_unknown_to_it(tmp_path: Path) -> None:
    """All others were replaced meanwhile: nobody that it knows could tell it."""
    async with Group(tmp_path) as group:
        away, *others = group.others(await group.leader()), await group.leader()
        gone = away[0]
        await gone.stop()
        for number, old in enumerate([*away[1:], *others]):
            new = group.joiner(f"n{3 + number}")
            await new.start()
            await change(group, ChangeKind.ADD_LEARNER, new.node_id, address(new))
            await change(group, ChangeKind.PROMOTE, new.node_id)
            await change(group, ChangeKind.REMOVE, old.node_id)
            await old.stop()
        await gone.start()
        leader = await group.leader([node for node in group.nodes if node.running])
        assert leader.node_id in ("n3", "n4")
        await group.until(lambda: gone.app.applied_index == leader.app.applied_index)
        assert gone.member.core.membership.voters == {gone.node_id, "n3", "n4"}


async def test_removed_leader_transfers_to_a_successor(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        old = await group.leader()
        index = await change(group, ChangeKind.REMOVE, old.node_id)
        new = await group.leader(group.others(old))
        assert old.member.core.role.value == "follower"
        assert new.member.core.membership.configurations.index == index
        with pytest.raises(NotLeader):
            old.member.change_members(Change(ChangeKind.REMOVE, new.node_id))


async def test_rejected_member_change_reports_the_reason(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        with pytest.raises(ChangeRefused, match="no member"):
            await leader.member.change_members(Change(ChangeKind.PROMOTE, "n9"))
        await change(group, ChangeKind.ADD_LEARNER, "n9", "127.0.0.1:1")
        with pytest.raises(ChangeRefused, match="n9"):
            await leader.member.change_members(Change(ChangeKind.PROMOTE, "n9"))
        await change(group, ChangeKind.REMOVE, "n9")


async def test_moved_address_is_dialled(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        moved = group.others(leader)[0]
        await moved.stop()
        moved.held.close()
        again = Node(group, moved.node_id)  # the same disk, another port
        again.disk = moved.disk
        group.nodes[group.nodes.index(moved)] = again
        await change(group, ChangeKind.MOVE, moved.node_id, address(again))
        await again.start()
        await group.until(lambda: again.app.applied_index == leader.app.applied_index)
        assert leader.member.links.is_open(moved.node_id)


async def test_voter_of_two_can_only_move_to_an_address_where_it_answers(tmp_path: Path) -> None:
    async with Group(tmp_path, count=2) as group:
        leader = await group.leader()
        (other,) = group.others(leader)
        for node in (other, leader):
            typo = Change(ChangeKind.MOVE, node.node_id, "127.0.0.1:1")
            with pytest.raises(ChangeRefused, match=f"without {node.node_id}, which was not found"):
                await leader.member.change_members(typo)
            await change(group, ChangeKind.MOVE, node.node_id, address(node))
        await group.all_applied()
        assert leader.member.links.is_open(other.node_id)


async def test_group_with_wrong_logged_addresses_recovers_by_configured_ones(
    tmp_path: Path,
) -> None:
    """The two voters were moved to where nobody is, as earlier versions let them be."""
    async with Group(tmp_path, count=2) as group:
        for node in group.nodes:
            leader = await group.leader()
            leader.member.parts.pump.proposer._is_at = lambda *_: True
            with contextlib.suppress(OutcomeUnknown):
                await change(group, ChangeKind.MOVE, node.node_id, f"127.0.0.1:{node.node_id[1:]}1")
        for node in group.nodes:
            await node.kill()
        for node in group.nodes:
            await node.start()
        leader = await group.leader()
        leader.app.send(b"a")
        await group.until(lambda: leader.app.fates == {b"a": "stored"})
        await group.all_applied()
        members = leader.member.core.membership.configurations.current.members
        assert [member.address for member in members] == ["127.0.0.1:01", "127.0.0.1:11"]
        for node in group.nodes:  # it leads, so that the log can be put right
            await change(group, ChangeKind.MOVE, node.node_id, address(node))
        await group.all_applied()
        rows = leader.member.members
        assert [row["address"] for row in rows] == [address(node) for node in group.nodes]


@pytest.mark.parametrize("join", [False, True])
async def test_blank_replacement_of_an_added_member_starts_at_a_new_address(
    tmp_path: Path, join: bool
) -> None:
    """As docs/runbooks/group-without-leader.md says: all are configured with the new one."""
    async with Group(tmp_path, count=2, flush=FlushMode.ASYNC) as group:
        leader = await group.leader()
        dead = group.joiner("n2")
        await dead.start()
        await change(group, ChangeKind.ADD_LEARNER, "n2", address(dead))
        await change(group, ChangeKind.PROMOTE, "n2")
        leader.app.send(b"a")
        await group.until(lambda: leader.app.fates == {b"a": "stored"})
        await group.all_applied()
        # Replicas that lost their promises campaign by the saved configuration only.
        await group.until(lambda: all(saved_index(node) for node in group.nodes))
        for node in group.nodes:
            await node.kill()
            node.disk.power_cuts += 1
        shutil.rmtree(dead.disk.root)
        dead.held.close()
        group.nodes[2] = blank = Node(group, "n2")
        peers = {n.node_id: PeerAddress(n.node_id, "127.0.0.1", n.port) for n in group.nodes}
        for node in group.nodes:
            node.settings = {"peers": peers, "join": join}
            await node.start()
        leader = await group.leader()  # all of them recovered
        leader.app.send(b"b")
        await group.until(lambda: leader.app.fates == {b"b": "stored"})
        await change(group, ChangeKind.MOVE, "n2", address(blank))
        await group.all_applied()
        assert all({b"a", b"b"} <= set(node.app.payloads) for node in group.nodes)


def saved_index(node: Node) -> int:
    """Return the index of the configuration that a running node has saved; 0 if none."""
    file = ConfigurationFile(node.disk, node.group.config.directory)
    saved = file.load()
    file.close()
    return saved[0] if saved else 0


async def test_moved_member_is_dialled_only_at_its_new_address(
    tmp_path: Path,
) -> None:
    """At the old one may be an old store."""
    async with Group(tmp_path) as group:
        leader = await group.leader()
        moved = group.others(leader)[0]
        await change(group, ChangeKind.MOVE, moved.node_id, "127.0.0.1:1")
        await group.until(lambda: "127.0.0.1" in leader.member.links.last_error(moved.node_id))
        await asyncio.sleep(4 * leader.group.config.links.backoff_ms_max / 1000)
        assert not leader.member.links.is_open(moved.node_id)
        assert leader.member.core.role.value == "leader"
        await change(group, ChangeKind.MOVE, moved.node_id, address(moved))
        await group.all_applied()


async def test_configuration_survives_retention_of_its_frame(tmp_path: Path) -> None:
    async with Group(tmp_path, segment_size_bytes=1 << 16) as group:
        leader = await group.leader()
        gone = group.others(leader)[0]
        await change(group, ChangeKind.REMOVE, gone.node_id)
        await gone.stop()
        for count in range(60):
            leader.app.send(bytes(4000))

            def applied(count: int = count) -> bool:
                return leader.app.applied_index > count

            await group.until(applied)
        index = leader.member.core.membership.configurations.index

        while leader.member.log.index.first_index <= index:
            await leader.member.delete_before(leader.commitlog.max_offset)
            await asyncio.sleep(0.01)
        leader.snapshot_index = leader.app.applied_index
        await leader.stop()
        await leader.start()
        assert leader.member.core.membership.configurations.index == index
        assert gone.node_id not in leader.member.core.membership.voters
