"""A replica comes back with an older store: a disk set back to an earlier image, or the old disk of
one that was filled anew. Who remembers does not believe it, and it recovers."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from raftmq.dledger.node import rollback_detection
from raftmq.dledger.node.rollback_detection import Memory
from raftmq.dledger.raft.configuration import MEMBERS_MAX
from raftmq.dledger.raft.messages import NUMBER_MAX, Role
from raftmq.dledger.storage.log_flusher import FlushMode
from raftmq.dledger.storage.two_slot_file import SlotFile
from raftmq.dledger.transport.peer_info_message import Held, PeerInfo
from tests.dledger.members import Group, Node, TroubledDisk
from tests.dledger.node.test_node import send_and_wait
from tests.notes import notes_in


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_detection, "NOTE_INTERVAL_MS", 20)


async def take_image(node: Node, image: Path) -> None:
    """Of a replica that is stopped for it, in order."""
    await node.stop()
    shutil.copytree(node.disk.root, image)
    await node.start()


def set_back(node: Node, image: Path) -> None:
    assert not node.running
    shutil.rmtree(node.disk.root)
    shutil.copytree(image, node.disk.root)
    node.disk = TroubledDisk(node.disk.root)


def saved(node: Node) -> dict[str, Held]:
    """The notes on a node's disk."""
    path = f"raft/{rollback_detection.NOTES_FILE}"
    if not node.disk.exists(path):
        return {}
    return notes_in(Path(node.disk.root, path).read_bytes())


def damage(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


async def noted(group: Group) -> None:
    """Until all that run have saved that each of them holds what is committed now."""
    leader = await group.leader()
    commit_index = leader.member.core.commit_index
    running = [node for node in group.nodes if node.running]

    def all_know() -> bool:
        return all(
            saved(node).get(other.node_id, Held(0, 0)).index >= commit_index
            for node in running
            for other in running
        )

    await group.until(all_know)


async def test_older_store_of_a_voter_cannot_elect_away_a_committed_frame(tmp_path: Path) -> None:
    """x is acknowledged by leader and victim. Then the victim is set back to before the notes of it
    that the third one has; leader and victim go down, and the two that lack x are on their own."""
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        victim, other = group.others(leader)
        await send_and_wait(group, leader, b"a")
        await take_image(victim, tmp_path / "image")
        leader = await group.leader()
        await group.hand_over(next(n for n in group.nodes if n not in (victim, other)))
        leader = await group.leader()
        await send_and_wait(group, leader, b"b")
        await noted(group)
        await other.kill()
        await send_and_wait(group, leader, b"x")
        await leader.kill()
        await victim.kill()
        set_back(victim, tmp_path / "image")
        await other.start()
        await victim.start()
        await group.until(lambda: not victim.member.core.recovered)
        reason = str(victim.member.status()["recovering"])
        assert f"{other.node_id} says that in term" in reason
        await asyncio.sleep(1.5)  # twice the longest election time-out
        assert other.member.core.role is not Role.LEADER
        assert victim.member.core.role is not Role.LEADER
        await leader.start()
        await group.leader()  # and all are recovered
        await group.all_applied()
        assert {tuple(node.app.payloads) for node in group.nodes} == {(b"a", b"b", b"x")}


async def test_replica_with_an_older_store_recovers_and_counts_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback_detection, "NOTE_INTERVAL_MS", 600_000)
    caplog.set_level(logging.ERROR, "raftmq.dledger")
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        victim, other = group.others(leader)
        await take_image(victim, tmp_path / "image")
        leader = await group.leader()
        if leader is victim:
            await group.hand_over(other)
            leader = other
        await send_and_wait(group, leader, b"a")
        # No notes are sent yet. The leader knows from its own progress what the victim holds.
        await group.until(
            lambda: any(
                node.member.core.held().get(victim.node_id) == node.member.core.last_index
                for node in group.others(victim)
            )
        )
        await victim.kill()
        set_back(victim, tmp_path / "image")
        await victim.start()
        # It may have recovered by the time that this looks at it.
        await group.until(lambda: "store is older" in caplog.text)
        leader = await group.leader()
        await group.until(lambda: victim.member.status()["recovering"] is None)
        await group.all_applied()
        assert victim.app.payloads == [b"a"]
        assert [n for n in group.nodes if n.member.status()["set_back"]] == [victim]
        last = next(n for n in group.others(leader) if n is not victim)
        await last.kill()
        await send_and_wait(group, leader, b"b")


async def test_former_leader_with_an_older_store_does_not_lead(tmp_path: Path) -> None:
    """Its store is whole, and of a term in which it did lead."""
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        victim = await group.leader()
        await take_image(victim, tmp_path / "image")
        await group.hand_over(victim)
        await send_and_wait(group, victim, b"a")
        await noted(group)
        first, second = group.others(victim)
        for node in (victim, first, second):
            await node.kill()
        set_back(victim, tmp_path / "image")
        await victim.start()
        await first.start()
        await group.until(lambda: not victim.member.core.recovered)
        await second.start()
        leader = await group.leader()
        await group.all_applied()
        assert leader.app.payloads == [b"a"]


@pytest.mark.parametrize("flush", list(FlushMode))
async def test_killed_replica_is_not_taken_for_one_with_an_older_store(
    tmp_path: Path, flush: FlushMode
) -> None:
    async with Group(tmp_path, flush=flush) as group:
        for number in range(4):
            leader = await group.leader()
            await send_and_wait(group, leader, b"m%d" % number)
            await noted(group)
            for node in group.nodes:
                await node.kill()
            for node in group.nodes:
                await node.start()
            await group.all_applied()
            for node in group.nodes:
                assert node.member.core.recovered


async def test_damaged_rollback_notes_are_rebuilt(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        await noted(group)
        victim = group.others(leader)[0]
        await victim.kill()
        damage(Path(victim.disk.root, "raft", rollback_detection.NOTES_FILE))
        await victim.start()
        await send_and_wait(group, leader, b"b")
        await noted(group)


async def test_rollback_note_of_a_future_term_is_ignored(tmp_path: Path) -> None:
    """A peer may send any note: one of a later term is ignored, any other costs a recovery."""
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        victim, other = group.others(leader)
        term = leader.member.core.term
        lies = {
            victim.node_id: Held(term + 5, NUMBER_MAX),
            leader.node_id: Held(term, 0),
            "stranger": Held(term, 1),
        }
        lie = PeerInfo(victim.node_id, other.node_id, term, notes=lies)
        other.member.rollback.take(lie)
        await send_and_wait(group, leader, b"a")
        await noted(group)
        assert set(saved(other)) == {node.node_id for node in group.nodes}
        assert max(held.term for held in saved(other).values()) <= other.member.core.term
        # One of a term that was reached costs a recovery, and the next leader's notes end it.
        notes = {other.node_id: Held(term, NUMBER_MAX)}
        lie = PeerInfo(victim.node_id, other.node_id, term, notes=notes)
        other.member.rollback.take(lie)
        assert not other.member.core.recovered
        await group.until(lambda: other.member.core.recovered)
        await leader.kill()
        await leader.start()
        await send_and_wait(group, await group.leader(), b"b")
        await noted(group)
        assert max(held.index for held in saved(other).values()) < NUMBER_MAX


async def test_rollback_notes_of_a_removed_replica_are_deleted(tmp_path: Path) -> None:
    async with Group(tmp_path, flush=FlushMode.SYNC) as group:
        leader = await group.leader()
        await send_and_wait(group, leader, b"a")
        await noted(group)
        other = group.others(leader)[0]
        other.member.rollback._memory.merge([("gone", Held(1, 1))])
        await group.until(lambda: "gone" not in saved(other))


def test_rollback_notes_received_before_the_core_runs_are_bounded(tmp_path: Path) -> None:
    """The newest of each, whoever else dials in: without a core nobody is a stranger yet."""
    notes = rollback_detection.RollbackDetection(
        SlotFile(TroubledDisk(str(tmp_path)), "raft/notes"),
        send=lambda message: None,
        on_failed=lambda reason, error: None,
    )
    for term in range(3):
        for number in range(3 * MEMBERS_MAX):
            notes.take(PeerInfo(f"n{number}", "n0", term, notes={}))
    assert len(notes._early) == MEMBERS_MAX
    assert {message.term for message in notes._early.values()} == {2}


def test_rollback_notes_are_ordered_by_term_then_index() -> None:
    memory = Memory()
    assert memory.merge([("a", Held(3, 10)), ("b", Held(2, 5))]) == {"a", "b"}
    assert not memory.merge([("a", Held(3, 10)), ("a", Held(3, 9)), ("a", Held(2, 99))])
    assert memory.notes == {"a": Held(3, 10), "b": Held(2, 5)}
    # A majority's disks were lost: what their new leader says is what holds.
    assert memory.merge([("a", Held(4, 7)), ("b", Held(2, 5))]) == {"a"}
    assert memory.notes == {"a": Held(4, 7), "b": Held(2, 5)}
    assert memory.outdates("a", Held(3, 10))
    assert not memory.outdates("a", Held(4, 7)) and not memory.outdates("c", Held(1, 1))


@pytest.mark.parametrize(
    ("term", "index", "is_older"),
    [(3, 10, False), (3, 11, False), (9, 10, False), (3, 9, True), (9, 9, True), (2, 99, True)],
)
def test_held_entry_exceeds_an_earlier_term_or_a_lower_index(
    term: int, index: int, is_older: bool
) -> None:
    assert Held(3, 10).exceeds(term, index) is is_older


def test_rollback_memory_drops_ids_that_are_no_members() -> None:
    memory = Memory()
    memory.merge([("a", Held(3, 10)), ("b", Held(3, 10))])
    assert memory.keep({"a", "c"})
    assert not memory.keep({"a", "c"})
    assert memory.notes == {"a": Held(3, 10)}
