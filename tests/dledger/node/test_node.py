"""Members as they run: elections, replication, loss of leader, disk and tail, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from raftmq.dledger.node.proposals import COMMAND_SIZE_BYTES_MAX, command_bytes_max
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.errors import Busy, CommandTooLarge, NotLeader, OutcomeUnknown, StateTooOld
from raftmq.dledger.raft.messages import Role
from raftmq.dledger.raft.progress import PeerState
from raftmq.dledger.storage.log_flusher import FlushMode
from tests.dledger.members import SEGMENT_SIZE_BYTES, Group, Node, TroubledDisk


def log_bytes(node: Node) -> bytes:
    log = node.commitlog
    return b"".join(log.read(s.start, min(s.end, log.max_offset) - s.start) for s in log.segments())


async def send_and_wait(group: Group, node: Node, *messages: bytes) -> None:
    for message in messages:
        node.app.send(message)
    await group.until(lambda: all(m in node.app.fates for m in messages))
    assert {node.app.fates[m] for m in messages} == {"stored"}


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_group_elects_one_leader_and_logs_are_byte_identical(
    tmp_path: Path, flush: FlushMode
) -> None:
    async with Group(tmp_path, flush=flush) as group:
        leader = await group.leader()
        for n in range(20):
            await send_and_wait(group, leader, b"m%d" % n)
        await group.all_applied()
        for node in group.nodes:
            assert node.app.payloads == [b"m%d" % n for n in range(20)]
        assert len({log_bytes(n) for n in group.nodes}) == 1
        roles = [n.member.core.role for n in group.nodes]
        assert roles.count(Role.LEADER) == 1
        # Replication and apply never went to the file.
        assert [n.member.log.reads_from_file for n in group.nodes] == [0, 0, 0]


async def test_single_replica_group_commits_and_reads(tmp_path: Path) -> None:
    async with Group(tmp_path, count=1, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"alone")
        assert await leader.member.read_barrier() == leader.member.core.commit_index


async def test_concurrent_arrivals_share_frames(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        messages = [b"m%d" % n for n in range(500)]
        for message in messages[:250]:
            leader.app.send(message)
        await asyncio.sleep(0)
        for message in messages[250:]:
            leader.app.send(message)
        await group.until(lambda: len(leader.app.fates) == 500)
        assert len(leader.app.cuts) <= 4
        assert b",".join(leader.app.payloads).split(b",") == messages


async def test_frames_in_flight_are_bounded(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC, frames_in_flight_max=2) as group:
        leader = await group.leader()
        followers = group.others(leader)
        for node in followers:
            node.disk.let_sync.clear()
        for n in range(5):
            leader.app.send(b"m%d" % n)
            await asyncio.sleep(0.02)  # a frame of its own for each that finds room
        core = leader.member.core
        assert core.last_index - core.commit_index == 2
        assert leader.app.cuts == [1, 1]
        for node in followers:
            node.disk.let_sync.set()
        await group.until(lambda: len(leader.app.fates) == 5)
        assert leader.app.cuts == [1, 1, 3]


async def test_killed_leader_is_replaced_without_losing_messages(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        first = await group.leader()
        await send_and_wait(group, first, b"a", b"b")
        await first.kill()
        second = await group.leader()
        assert second is not first
        await send_and_wait(group, second, b"c")
        assert second.app.payloads == [b"a,b", b"c"]
        await first.start()
        await group.all_applied()
        assert first.app.payloads == [b"a,b", b"c"]


async def test_planned_stop_transfers_leadership(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        first = await group.leader()
        await send_and_wait(group, first, b"a")
        term = first.member.core.term
        await first.stop()
        assert first.app.events[-1].role is not Role.LEADER
        second = await group.leader()
        assert second.member.core.term == term + 1


async def test_planned_stop_reports_the_role_change_while_the_disk_is_slow(tmp_path: Path) -> None:
    """The disk is at the new term's vote while another leads already: nothing is closed before the
    application knows, too."""
    async with Group(tmp_path) as group:
        first = await group.leader()
        first.disk.trouble_below = "raft/"
        first.disk.let_sync.clear()
        stopping = asyncio.create_task(first.stop())
        second = await group.leader(group.others(first))
        await group.until(lambda: first.member.core.leader == second.node_id)
        before = len(first.app.events)
        first.disk.let_sync.set()
        await stopping
        assert first.app.events[before - 1].role is Role.LEADER, "it could not have been told yet"
        assert first.app.events[-1].leader == second.node_id


async def test_leadership_transfer_on_request(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        first = await group.leader()
        target = group.others(first)[0]
        await group.hand_over(target)
        with pytest.raises(NotLeader):
            first.member.transfer(target.node_id)


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_group_restarts_with_all_replicas_on_their_old_disks(
    tmp_path: Path, flush: FlushMode
) -> None:
    async with Group(tmp_path, flush=flush) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a", b"b")
        term = leader.member.core.term
        for node in group.nodes:
            await node.kill()
        for node in group.nodes:
            await node.start()
        leader = await group.leader()
        assert leader.member.core.term > term
        await send_and_wait(group, leader, b"c")
        await group.all_applied()
        for node in group.nodes:
            assert node.app.payloads == [b"a,b", b"c"]


async def test_lagging_follower_is_served_from_the_file(tmp_path: Path) -> None:
    """The cache holds two frames, so most come from the file, across segments."""
    async with Group(tmp_path, log_cache_bytes_max=20_000, segment_size_bytes=1 << 18) as group:
        leader = await group.leader()
        late = group.others(leader)[0]
        await late.kill()
        messages = [b"%06d" % n + b"x" * 10_000 for n in range(80)]
        for message in messages:
            await send_and_wait(group, leader, message)
        assert len(leader.commitlog.segments()) > 3
        assert leader.member.log.reads_from_file == 0
        await late.start()
        await group.until(lambda: len(late.app.payloads) == len(messages))
        assert late.app.payloads == messages
        assert leader.member.log.reads_from_file > 0


async def test_restarted_replica_applies_a_long_tail_in_batches(tmp_path: Path) -> None:
    async with Group(tmp_path, count=1, segment_size_bytes=8 << 20) as group:
        node = await group.leader()
        for n in range(30):
            await send_and_wait(group, node, b"%d" % n + b"x" * 200_000)
        await node.stop()
        await node.start()
        await group.until(lambda: len(node.app.payloads) == 30)
        assert node.member.log.reads_from_file >= 5  # 6 MB, at most 1 MB a batch


async def test_uncommitted_tail_is_truncated_and_its_senders_get_not_stored(tmp_path: Path) -> None:
    """The old leader wrote frames that nobody else got; the next leader's take their place."""
    async with Group(tmp_path) as group:
        old = await group.leader()
        followers = group.others(old)
        await send_and_wait(group, old, b"kept")
        for node in followers:
            await node.kill()
        old.app.send(b"lost")
        command = old.member.propose_command(b"lost command")
        await group.until(lambda: old.member.core.last_index > old.member.core.commit_index + 1)
        lost_from = old.member.core.commit_index + 1
        # Cut off: it steps down, and does not know what will become of the two.
        await group.until(lambda: old.member.core.role is not Role.LEADER)
        assert not command.done()
        assert b"lost" not in old.app.fates
        old.member.links.abort()
        for node in followers:
            await node.start()
        new = await group.leader(followers)
        await send_and_wait(group, new, b"new")
        payloads = new.app.payloads
        # The old leader dials again in a new life of its links.
        await old.member.links.stop()
        await old.member.links.start()
        await group.until(lambda: b"lost" in old.app.fates)
        assert old.app.fates[b"lost"] == "not stored"
        assert old.app.truncations == [lost_from]
        with pytest.raises(NotLeader):
            await command
        await group.until(lambda: old.app.payloads == payloads)
        assert log_bytes(old)[: old.commitlog.max_offset] == log_bytes(new)


async def test_command_is_answered_when_it_is_applied(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        futures = [leader.member.propose_command(b"c%d" % n) for n in range(10)]
        leader.app.send(b"message in between")
        indexes = await asyncio.gather(*futures)
        assert indexes == sorted(indexes)
        by_index = {f.index: bytes(f.payload) for f in leader.app.frames}
        assert [by_index[i] for i in indexes] == [b"c%d" % n for n in range(10)]
        # They take turns with messages: the message did not wait for all ten.
        assert leader.app.payloads.index(b"message in between") == 1
        follower = group.others(leader)[0]
        with pytest.raises(NotLeader) as caught:
            follower.member.propose_command(b"x")
        assert caught.value.leader == leader.node_id
        assert not caught.value.outcome_unknown


async def test_command_without_a_majority_has_an_unknown_outcome(tmp_path: Path) -> None:
    async with Group(tmp_path, command_timeout_ms=900, commands_waiting_max=3) as group:
        leader = await group.leader()
        for node in group.others(leader):
            await node.kill()
        future = leader.member.propose_command(b"who knows")
        with pytest.raises(OutcomeUnknown) as caught:
            await future
        assert caught.value.outcome_unknown


async def test_largest_command_is_stored_and_a_larger_one_is_rejected(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        size_max = command_bytes_max(SEGMENT_SIZE_BYTES)
        with pytest.raises(CommandTooLarge):
            leader.member.propose_command(b"x" * (size_max + 1))
        await leader.member.propose_command(b"x" * size_max)
        await group.all_applied()
        assert not leader.fatal


async def test_command_count_and_size_limits(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC, commands_waiting_max=3) as group:
        leader = await group.leader()
        for node in group.nodes:
            node.disk.let_sync.clear()
        with pytest.raises(CommandTooLarge):
            leader.member.propose_command(b"x" * (COMMAND_SIZE_BYTES_MAX + 1))
        futures = [leader.member.propose_command(b"c") for _ in range(3)]
        with pytest.raises(Busy):
            leader.member.propose_command(b"one too many")
        for node in group.nodes:
            node.disk.let_sync.set()
        assert len(set(await asyncio.gather(*futures))) == 3


async def test_read_barrier_waits_for_a_heartbeat_round_and_needs_leadership(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        indexes = await asyncio.gather(*[leader.member.read_barrier() for _ in range(50)])
        assert set(indexes) == {leader.member.core.commit_index}
        with pytest.raises(NotLeader):
            await group.others(leader)[0].member.read_barrier()
        for node in group.others(leader):
            await node.kill()
        with pytest.raises(NotLeader):  # no majority confirms: it steps down
            await leader.member.read_barrier()


async def test_sync_flush_acknowledges_only_frames_synced_on_a_majority(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        followers = group.others(leader)
        await group.all_applied()
        for node in followers:
            node.disk.let_sync.clear()
        leader.app.send(b"a")
        core = leader.member.core
        await group.until(
            lambda: all(f.member.core.last_index == core.last_index for f in followers)
        )
        await group.until(lambda: core.durable_index == core.last_index)
        await asyncio.sleep(0.2)  # two heartbeats: time enough for a wrong acknowledgement
        assert b"a" not in leader.app.fates
        assert core.commit_index == core.last_index - 1
        followers[0].disk.let_sync.set()  # one follower makes the majority
        await group.until(lambda: leader.app.fates.get(b"a") == "stored")
        assert followers[1].member.core.durable_index == core.last_index - 1


async def test_commit_does_not_wait_for_the_leaders_own_sync(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        leader.disk.let_sync.clear()
        leader.app.send(b"a")
        await group.until(lambda: leader.app.fates.get(b"a") == "stored")  # by the two followers
        assert leader.member.core.durable_index < leader.member.core.commit_index


async def test_failed_sync_ends_the_leader(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        leader.disk.fail_syncs = True
        command = leader.member.propose_command(b"b")
        await group.until(lambda: bool(leader.fatal))
        assert "fdatasync" in leader.fatal[0]
        assert leader.app.events[-1].role is Role.FOLLOWER
        try:  # the followers may have been quicker than the error
            await command
        except OutcomeUnknown:
            pass
        durable = leader.member.log.durable_index
        leader.disk.fail_syncs = False  # a later success would prove nothing
        with pytest.raises(NotLeader):
            leader.member.propose_command(b"c")
        other = await group.leader(group.others(leader))
        await send_and_wait(group, other, b"d")
        assert leader.member.log.durable_index == durable
        assert len(leader.fatal) == 1


async def test_failed_write_ends_the_member_and_its_frames_are_not_sent(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.all_applied()
        last = leader.member.core.last_index
        leader.disk.fail_writes = True
        leader.app.send(b"a")
        await group.until(lambda: bool(leader.fatal))
        assert "cannot write" in leader.fatal[0]
        other = await group.leader(group.others(leader))
        assert other.app.payloads == []
        assert other.member.core.last_index == last + 1  # the new term's no-op
        assert leader.member.status()["failure"] == leader.fatal[0]


async def test_vote_that_cannot_be_saved_is_not_sent(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.all_applied()
        broken, sound = group.others(leader)
        broken.disk.trouble_below = "raft/"
        broken.disk.fail_syncs = True
        await leader.kill()
        await group.until(lambda: bool(broken.fatal))  # as a candidate or as a voter
        assert "input/output error" in broken.fatal[0]
        await asyncio.sleep(0.1)  # its vote would have arrived
        assert sound.member.core.role is not Role.LEADER


async def test_exception_in_the_application_ends_the_member(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        follower = group.others(leader)[0]

        def broken(frames: object) -> None:
            raise ValueError("a bug, says the test")

        follower.app.apply = broken  # type: ignore[method-assign]
        await send_and_wait(group, leader, b"a")
        await group.until(lambda: bool(follower.fatal))
        assert "a bug, says the test" in follower.fatal[0]


async def test_leader_with_a_hanging_sync_steps_down(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC, sync_stall_ms=500) as group:
        leader = await group.leader()
        await group.all_applied()
        leader.disk.let_sync.clear()
        leader.app.send(b"a")
        others = group.others(leader)
        other = await group.leader(others)
        await send_and_wait(group, other, b"b")
        assert not leader.fatal
        status = leader.member.status()
        assert status["disk_state"] == "stalled"
        assert "fdatasync has not returned" in str(status["disk_reason"])
        # Nobody else may be left: it does not come back while its disk hangs.
        term = leader.member.core.term
        for node in sorted(others, key=lambda node: node is other):  # or the last one is elected
            await node.kill()
        await asyncio.sleep(1.5)  # twice the longest election time-out
        assert leader.member.core.role is Role.FOLLOWER
        assert leader.member.core.term == term
        leader.disk.let_sync.set()
        await group.until(lambda: leader.member.core.role is not Role.FOLLOWER)
        assert leader.member.status()["disk_state"] == "ok"


async def test_leader_with_a_failed_disk_transfers_leadership_before_it_ends(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        leader.disk.fail_syncs = True
        leader.app.send(b"b")
        await group.until(lambda: bool(leader.fatal))
        status = leader.member.status()
        assert status["disk_state"] == "failed"
        assert "input/output error" in str(status["disk_reason"])
        others = group.others(leader)
        await group.leader(others)
        reasons = [event.reason for node in others for event in node.app.events]
        assert f"{leader.node_id} hands leadership over" in reasons


def fill_disk(node: Node, full: bool = True) -> None:
    node.disk.write_error = errno.ENOSPC
    node.disk.fail_writes = full


async def test_follower_with_a_full_disk_reports_it_and_catches_up_later(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        full = group.others(leader)[0]
        await group.all_applied()
        before = full.app.applied_index
        fill_disk(full)
        await send_and_wait(group, leader, b"a")
        await send_and_wait(group, leader, b"b")
        await group.until(lambda: full.member.status()["disk_state"] == "full")
        assert "no room" in str(full.member.status()["disk_reason"])
        assert full.app.applied_index == before
        fill_disk(full, False)
        await group.all_applied()
        assert full.app.payloads == leader.app.payloads
        assert full.member.status()["disk_state"] == "ok"
        assert not full.fatal
        assert log_bytes(full) == log_bytes(leader)


async def test_leader_with_a_full_disk_steps_down(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        full = await group.leader()
        await send_and_wait(group, full, b"a")
        fill_disk(full)
        full.app.send(b"b")
        other = await group.leader(group.others(full))
        await send_and_wait(group, other, b"c")
        assert full.member.core.role is Role.FOLLOWER
        assert full.member.status()["disk_state"] == "full"
        assert not full.fatal
        fill_disk(full, False)
        await group.all_applied()
        assert full.app.fates[b"b"] == "not stored"
        assert full.app.payloads == other.app.payloads
        assert log_bytes(full) == log_bytes(other)


async def test_replica_with_a_lost_disk_recovers_from_its_group(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a", b"b")
        victim, other = group.others(leader)
        await victim.lose_disk()
        await other.kill()
        await victim.start()
        status = victim.member.status()
        assert (status["recovered"], status["recovering"]) == (False, "there is no vote file")
        # Its copy is no second one: nothing is committed by the leader and it.
        leader.app.send(b"c")
        await group.until(lambda: victim.member.core.last_index > leader.member.core.commit_index)
        await asyncio.sleep(0.3)  # four heartbeats: time enough for a wrong one
        assert b"c" not in leader.app.fates
        assert not victim.member.core.recovered
        await other.start()
        await group.until(lambda: victim.member.core.recovered)
        await group.until(lambda: victim.member.status()["recovering"] is None)
        await group.all_applied()
        assert victim.app.payloads == leader.app.payloads
        peers = leader.member.status()["peers"]
        assert isinstance(peers, dict)
        await group.until(lambda: leader.member.status()["peers"][victim.node_id]["recovered"])  # type: ignore[index]
        # And it counts again.
        await other.kill()
        await send_and_wait(group, leader, b"d")


async def test_replica_with_a_lost_vote_file_recovers(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        await leader.kill()
        (tmp_path / leader.node_id / "raft" / "hardstate").unlink()
        await leader.start()
        assert not leader.member.core.recovered
        await group.leader()  # all of them recovered
        await group.all_applied()
        assert leader.app.payloads == [b"a"]


async def test_replica_does_not_vote_after_a_power_cut_until_caught_up(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.ASYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        victim = group.others(leader)[0]
        await victim.kill()
        await victim.start()
        assert victim.member.core.recovered  # a kill loses nothing
        await victim.kill()
        victim.disk.power_cuts += 1
        await victim.start()
        assert "machine went down" in str(victim.member.status()["recovering"])
        await group.until(lambda: victim.member.core.recovered)
        await victim.stop()
        victim.disk.power_cuts += 1
        await victim.start()
        assert victim.member.core.recovered  # a clean stop had made everything durable


async def test_stop_with_a_failed_last_sync_counts_as_a_crash(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.ASYNC, flush_interval_ms=60_000) as group:
        leader = await group.leader()
        victim = group.others(leader)[0]
        await send_and_wait(group, leader, b"a")
        await group.all_applied()
        victim.disk.fail_syncs = True
        await victim.stop()
        victim.disk.fail_syncs = False
        victim.disk.power_cuts += 1
        await victim.start()
        assert "machine went down" in str(victim.member.status()["recovering"])


async def test_power_cut_of_all_replicas_keeps_messages_of_the_longest_log(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.ASYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        await group.all_applied()
        for node in group.nodes:
            await node.kill()
            node.disk.power_cuts += 1
        for node in group.nodes[:2]:
            await node.start()
        await asyncio.sleep(1.5)  # twice the longest election time-out
        assert all(n.member.core.leader is None for n in group.nodes[:2])
        await group.nodes[2].start()
        leader = await group.leader()
        assert leader.app.payloads == [b"a"]
        await send_and_wait(group, leader, b"b")


async def test_blank_replacement_restores_a_quorum_after_a_power_cut_of_all(tmp_path: Path) -> None:
    """As docs/runbooks/group-without-leader.md says: under the dead machine's id."""
    async with Group(tmp_path, flush=FlushMode.ASYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        await group.all_applied()
        dead = group.others(leader)[0]
        for node in group.nodes:
            await node.kill()
            node.disk.power_cuts += 1
        for node in group.others(dead):
            await node.start()
        shutil.rmtree(dead.disk.root)  # another machine, with an empty directory
        dead.disk = TroubledDisk(dead.disk.root)
        await dead.start()
        assert dead.member.core.last_index == 0
        leader = await group.leader()  # all of them recovered
        await send_and_wait(group, leader, b"b")
        await group.all_applied()
        assert [node.app.payloads for node in group.nodes] == [[b"a", b"b"]] * 3


async def test_replica_that_dropped_damaged_frames_does_not_vote(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        victim = group.others(leader)[0]
        await victim.kill()
        await victim.start(recovering="frames 3..7 are gone")
        assert victim.member.status()["recovering"] == "frames 3..7 are gone"
        await group.until(lambda: victim.member.core.recovered)


async def test_torn_tail_is_truncated_and_fetched_from_the_leader(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a", b"b", b"c")
        await group.all_applied()
        victim = group.others(leader)[0]
        await victim.kill()
        frame = victim.app.frames[-1]
        path = tmp_path / victim.node_id / "commitlog" / ("0" * 20)
        with path.open("r+b") as file:
            file.seek(frame.end - 2)
            file.write(b"??")
        # As if the power had gone before its last fdatasync.
        mark = tmp_path / victim.node_id / "checkpoint"
        data = bytearray(mark.read_bytes())
        data[24:32] = frame.position.to_bytes(8, "big")
        mark.write_bytes(data)
        await victim.start()
        await group.until(lambda: victim.app.payloads == leader.app.payloads)
        await group.all_applied()
        assert log_bytes(victim) == log_bytes(leader)


async def test_member_status_shows_its_own_role_and_log(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.all_applied()
        await group.until(
            lambda: all(
                p.match_index == leader.member.core.last_index
                for p in leader.member.core.progress.values()
            )
        )
        status = leader.member.status()
        assert status["role"] == "leader"
        assert status["leader"] == leader.node_id
        assert status["leader_ready"] is True
        assert status["commit_index"] == status["last_index"] == status["applied_index"]
        peers = status["peers"]
        assert isinstance(peers, dict)
        assert {p["match"] for p in peers.values()} == {status["last_index"]}
        assert {p["state"] for p in peers.values()} == {"replicate"}
        follower = group.others(leader)[0].member.status()
        assert follower["leader"] == leader.node_id
        assert follower["leader_ready"] is False


async def test_retention_moves_the_first_index(tmp_path: Path) -> None:
    async with Group(tmp_path, segment_size_bytes=1 << 18) as group:
        leader = await group.leader()
        for n in range(60):
            await send_and_wait(group, leader, b"%d" % n + b"x" * 10_000)
        await group.all_applied()
        for node in group.nodes:

            def synced(node: Node = node) -> bool:
                return node.commitlog.durable_offset == node.commitlog.max_offset

            await group.until(synced)
            start = await node.member.delete_before(2 * (1 << 18) + 5)
            assert start == 2 << 18
        first_index = leader.member.status()["first_index"]
        assert isinstance(first_index, int)
        assert first_index > 1
        for node in group.nodes:
            node.snapshot_index = node.app.applied_index
            await node.kill()
            assert node.member.log.index.first_index == first_index
        kept, group.nodes[0].snapshot_index = group.nodes[0].snapshot_index, first_index - 2
        with pytest.raises(StateTooOld):  # the frames in between are nowhere any more
            await group.nodes[0].start()
        await group.nodes[0].stop()
        group.nodes[0].snapshot_index = kept
        for node in group.nodes:
            await node.start()
            assert node.member.log.index.first_index == first_index
        leader = await group.leader()
        await send_and_wait(group, leader, b"after")


async def test_leader_commits_while_a_slow_disk_records_retention(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        for n in range(24):
            await send_and_wait(group, leader, b"%d" % n + b"x" * 100_000)
        first, second = (segment.end for segment in leader.commitlog.segments()[:2])
        leader.disk.trouble_below = "raft/trim"
        leader.disk.let_sync.clear()
        further = asyncio.create_task(leader.member.delete_before(second))
        await asyncio.sleep(0)
        nearer = asyncio.create_task(leader.member.delete_before(first))
        await send_and_wait(group, leader, b"meanwhile")
        assert leader.commitlog.min_offset == 0
        leader.disk.let_sync.set()
        assert set(await asyncio.gather(further, nearer)) == {second}
        leader.snapshot_index = leader.app.applied_index
        await leader.kill()
        await leader.start()
        assert leader.commitlog.min_offset == second


async def test_undeletable_segment_does_not_lower_the_leaders_first_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC, log_cache_bytes_max=1 << 16) as group:
        leader = await group.leader()
        behind = group.others(leader)[0]
        await behind.kill()
        for n in range(12):
            await send_and_wait(group, leader, b"%d" % n + b"x" * 100_000)
        end = leader.commitlog.segments()[0].end
        assert end < leader.commitlog.max_offset

        def refuse(_: TroubledDisk, path: str) -> None:
            raise OSError(errno.EPERM, "not permitted, says the test", path)

        with monkeypatch.context() as patch:
            patch.setattr(TroubledDisk, "remove", refuse)
            with pytest.raises(OSError, match="not permitted"):
                await leader.member.delete_before(end)
        # What the log has forgotten is not sent: the follower is one that lacks its beginning.
        await behind.start()
        progress = leader.member.core.progress[behind.node_id]
        await group.until(lambda: bool(leader.fatal) or progress.state is PeerState.STRANDED)
        assert not leader.fatal
        assert await leader.member.delete_before(end) == end  # the next round tries again
        await send_and_wait(group, leader, b"after")


async def test_blank_replica_recovers_while_many_frames_are_uncommitted(tmp_path: Path) -> None:
    """Its recovery takes a frame of the leader's, while others wait for room: each has a place."""
    core = CoreConfig(uncommitted_bytes_max=100_000)
    async with Group(tmp_path, flush=FlushMode.SYNC, frames_in_flight_max=64, core=core) as group:
        leader = await group.leader()
        await group.all_applied()
        slow, blank = group.others(leader)
        await blank.lose_disk()
        slow.disk.let_sync.clear()
        messages = [bytes([n]) * 40_000 for n in range(4)]
        for message in messages:
            leader.app.send(message)
            await asyncio.sleep(0.05)
        command = leader.member.propose_command(b"C" * 40_000)
        last_index = leader.member.core.last_index
        await group.until(lambda: not leader.member.core.can_propose)
        await blank.start()
        await group.until(lambda: leader.member.core.last_index > last_index)
        slow.disk.let_sync.set()
        await group.until(lambda: all(m in leader.app.fates for m in messages))
        index = await command
        await group.all_applied()
        assert not leader.fatal
        for node in group.nodes:
            assert bytes(node.app.frames[index - 1].payload) == b"C" * 40_000


async def test_leader_without_a_successor_still_stops(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        first = await group.leader()
        others = group.others(first)
        for other in others:
            await other.kill()
        assert await first.member.hand_over() is None


async def test_hand_over_returns_the_successor_after_it_leads(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        first = await group.leader()
        await send_and_wait(group, first, b"a")
        await group.others(first)[0].kill()
        successor = group.others(first)[1].node_id
        assert await first.member.hand_over() == successor
        assert first.member.leader == successor
        assert await first.member.hand_over() is None  # it does not lead any more
