"""Replicas whose files name different founders tell of it, and found no group of two kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from raftmq.dledger.node.founders import SEGMENT_SIZE, TOLD_AS, TOLD_BY_MAX, Founders
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Change, ChangeKind, Configurations, founding
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import HardState, Role
from tests.dledger.group import Group as Cores
from tests.dledger.group import make_frame
from tests.dledger.members import Group, Node
from tests.dledger.test_change_members import address, change

KNOWN_MS = 30_000


class Replica:
    """Replica a, whose file names `names`; its log has `frames` frames."""

    def __init__(self, names: list[str], frames: int = 0) -> None:
        index = LogIndex()
        for number in range(1, frames + 1):
            index.append(make_frame(number, 1, index.end_position))
        self.core = RaftCore(
            "a",
            Configurations(0, founding((name, "") for name in names)),
            CoreConfig(),
            index,
            HardState(1, None),
            Random(1),
            0,
            incarnation=1,
        )
        self.said: list[tuple[str, str]] = []
        own = {SEGMENT_SIZE: "1024"}
        self.founders = Founders(
            self.core, lambda: own, lambda *each: self.said.append(each), KNOWN_MS
        )


@pytest.mark.parametrize(
    ("own", "sender", "told", "differ"),
    [
        ("abc", "b", "a;b;c", False),
        ("abc", "b", "b", True),  # it would have founded alone
        ("a", "b", "a;b;c", True),  # so would this one
        ("abc", "b", "a;b", True),
        ("abc", "d", "d;e", False),  # they have nothing to do with each other
        ("abc", "d", "a;d", True),
        ("abc", "b", "", False),  # of an older program, or it is to join, or the log says who
        ("", "b", "a;b", False),  # so it is here
    ],
)
def test_lists_that_concern_each_other_are_compared(
    own: str, sender: str, told: str, differ: bool
) -> None:
    replica = Replica([*own])
    replica.founders.take(sender, {TOLD_AS: told}, 0)
    assert bool(replica.said) is differ
    assert replica.founders.differing == [sender] * differ
    assert replica.core.election.founders_differ is differ


def test_each_says_what_the_two_lists_are_and_what_follows() -> None:
    replica = Replica(["a"], frames=1)
    replica.founders.take("b", {TOLD_AS: "a;b;c"}, 0)
    assert replica.said == [
        (
            "b",
            "dLegerPeers names a, b, c at b, and a at a, which has founded its group without b:"
            " correct the wrong one",
        )
    ]
    replica = Replica(["a", "b", "c"])
    replica.founders.take("b", {TOLD_AS: "b"}, 0)
    ((_, text),) = replica.said
    assert text == (
        "dLegerPeers names b at b, and a, b, c at a: a founds no group until both are alike"
    )


def test_what_a_peer_takes_back_or_does_not_repeat_counts_no_more() -> None:
    replica = Replica(["a", "b"])
    replica.founders.take("b", {TOLD_AS: "b"}, 0)
    replica.founders.take("b", {TOLD_AS: "a;b"}, 1)
    assert not replica.core.election.founders_differ
    assert replica.said[1] == ("b", "")
    replica.founders.take("b", {TOLD_AS: "b"}, 2)
    replica.founders.look(KNOWN_MS + 1)
    assert replica.core.election.founders_differ
    replica.founders.look(KNOWN_MS + 2)
    assert not replica.core.election.founders_differ


def test_a_long_list_is_compared_as_far_as_it_is_told() -> None:
    names = ["a", *[f"{n}" * 40 for n in range(8)]]
    replica = Replica(names)
    told = replica.founders.told[TOLD_AS]
    assert len(told) == 256
    replica.founders.take(names[1], {TOLD_AS: told}, 0)
    assert replica.said == []


def test_strangers_without_number_are_not_remembered() -> None:
    replica = Replica(["a"])
    for number in range(2 * TOLD_BY_MAX):
        replica.founders.take(f"n{number}", {TOLD_AS: f"a;n{number}"}, 0)
    assert len(replica.founders.differing) == TOLD_BY_MAX


@pytest.mark.parametrize(
    ("own", "frames", "sender", "told", "differ"),
    [
        ("abc", 0, "b", "2048", True),
        ("abc", 0, "b", "1024", False),
        ("abc", 0, "b", "", False),  # of a program that does not tell
        ("abc", 0, "d", "2048", False),  # no founder: it is to join, and may be the wrong one
        ("", 0, "d", "2048", True),  # this one is to join
        ("abc", 1, "b", "2048", False),  # its store cannot be changed any more
    ],
)
def test_an_empty_one_waits_while_its_segments_are_not_as_the_founders(
    own: str, frames: int, sender: str, told: str, differ: bool
) -> None:
    replica = Replica([*own], frames)
    replica.founders.take(sender, {SEGMENT_SIZE: told} if told else {}, 0)
    assert replica.core.election.founders_differ is differ
    if differ:
        ((peer, text),) = replica.said
        assert (peer, text) == (
            sender,
            f"mappedFileSizeCommitLog is 2048 at {sender}, and 1024 at a: a, which is empty, takes"
            " no part until both are alike",
        )
        replica.founders.take(sender, {SEGMENT_SIZE: "1024"}, 0)
        assert replica.said[1:] == [(sender, "")]


def test_one_without_a_frame_neither_asks_for_votes_nor_gives_any() -> None:
    group = Cores()
    group["a"].core.election.founders_differ = group["b"].core.election.founders_differ = True
    group.run(3_000)
    assert {group[name].core.role for name in "ab"} == {Role.FOLLOWER}
    assert group["c"].core.role is Role.PRE_CANDIDATE
    group["a"].core.election.founders_differ = False
    group.run(3_000)
    leader = next(group[name] for name in "ac" if group[name].core.role is Role.LEADER)
    assert group["b"].log == []
    group["b"].core.election.founders_differ = False
    group.run(3_000)
    assert group["b"].terms == leader.terms


def test_one_with_frames_goes_on() -> None:
    group = Cores()
    group.run(3_000)
    for name in "abc":
        group[name].core.election.founders_differ = True
    leader = next(name for name in "abc" if group[name].core.role is Role.LEADER)
    group[leader].down = True
    group.run(3_000)
    assert Role.LEADER in {group[name].core.role for name in "abc" if name != leader}


def foreign(node: Node) -> list[str]:
    told = node.member.status()["foreign"]
    assert isinstance(told, list)
    return told


def peers(group: Group, *names: str) -> dict[str, object]:
    return {"peers": {name: group.config.peers[name] for name in names}}


@asynccontextmanager
async def founded_alone(tmp_path: Path, count: int) -> AsyncIterator[Group]:
    """A group whose n0 has founded one by itself before the others began."""
    group = Group(tmp_path, count)
    alone, *others = group.nodes
    alone.settings = peers(group, "n0")
    group.nodes = [alone]
    async with group:
        await group.leader()
        for node in others:
            group.nodes.append(node)
            await node.start()
        yield group


async def test_a_group_of_one_by_mistake_is_told_of_at_both_ends(tmp_path: Path) -> None:
    async with founded_alone(tmp_path, 3) as group:
        alone, *others = group.nodes
        await group.until(lambda: len(foreign(alone)) == 2)
        await group.until(lambda: all(foreign(node) for node in others))
        assert [node.member.core.last_index for node in others] == [0, 0]
        assert {node.member.core.role for node in others} == {Role.FOLLOWER}


@pytest.mark.parametrize("own", [("n0",), ("n0", "n1")])
async def test_nobody_founds_while_files_differ_and_they_do_once_those_are_alike(
    tmp_path: Path, own: tuple[str, ...]
) -> None:
    group = Group(tmp_path)
    group.nodes[0].settings = peers(group, *own)
    async with group:
        await group.until(lambda: all(foreign(node) for node in group.nodes))
        assert [node.member.core.last_index for node in group.nodes] == [0, 0, 0]
        await group.nodes[0].stop()
        group.nodes[0].settings = {}
        await group.nodes[0].start()
        await group.leader()
        await group.until(lambda: not any(foreign(node) for node in group.nodes))


async def test_a_group_that_grows_from_one_alarms_nobody(tmp_path: Path) -> None:
    async with Group(tmp_path, count=1) as group:
        first = await group.leader()
        new = group.joiner("n1")
        await new.start()
        await group.until(lambda: first.member.links.is_open("n1"))
        await change(group, ChangeKind.ADD_LEARNER, "n1", address(new))
        await change(group, ChangeKind.PROMOTE, "n1")
        await new.stop()
        new.settings = {"peers": {**group.config.peers, "n1": new.settings["peers"]["n1"]}}  # type: ignore[index]
        await new.start()  # no joiner any more, as its file says
        await group.leader()
        assert foreign(first) == foreign(new) == []


async def test_who_was_left_out_by_mistake_may_be_added(tmp_path: Path) -> None:
    async with founded_alone(tmp_path, 2) as group:
        alone, other = group.nodes
        await group.until(lambda: bool(foreign(alone) and foreign(other)))
        await alone.member.change_members(Change(ChangeKind.ADD_LEARNER, "n1", address(other)))
        await group.until(lambda: other.member.core.recovered)
        assert not other.member.core.election.founders_differ
        assert foreign(alone) == foreign(other) == []


def takes_none(node: Node) -> str:
    told = node.member.status()["takes_no_frames"]
    assert isinstance(told, str)
    return told


async def test_an_empty_one_with_other_segments_waits_until_it_is_corrected(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader, odd = group.nodes[0], group.nodes[2]
        await group.leader()
        await group.hand_over(leader)
        await odd.lose_disk()
        odd.segment_size_bytes *= 2
        await odd.start()
        await group.until(lambda: odd.member.leader == "n0" and len(foreign(odd)) == 2)
        leader.app.send(b"a")
        await group.until(lambda: leader.app.fates.get(b"a") == "stored")
        assert foreign(odd)[0].startswith("mappedFileSizeCommitLog is 1048576 at n")
        assert odd.member.core.last_index == 0
        assert takes_none(odd) == "its founders differ"
        await odd.lose_disk()
        odd.segment_size_bytes = group.segment_size_bytes
        await odd.start()
        await group.until(lambda: odd.app.payloads == [b"a"])
        assert (takes_none(odd), foreign(odd)) == ("", [])


async def test_nobody_founds_while_segments_differ(tmp_path: Path) -> None:
    group = Group(tmp_path)
    odd = group.nodes[0]
    odd.segment_size_bytes = 2 * group.segment_size_bytes
    async with group:
        await group.until(lambda: all(takes_none(node) for node in group.nodes))
        assert [node.member.core.last_index for node in group.nodes] == [0, 0, 0]
        await odd.stop()
        odd.segment_size_bytes = group.segment_size_bytes
        await odd.start()
        await group.leader()


async def test_one_with_frames_says_that_it_refuses_its_leaders(tmp_path: Path) -> None:
    group = Group(tmp_path)
    odd = group.nodes[2]
    odd.segment_size_bytes, odd.tells = 1 << 16, False  # as of a program that does not tell it
    async with group:
        await group.leader()
        await group.hand_over(group.nodes[0])
        leader = group.nodes[0]
        leader.app.send(b"a")
        await group.until(lambda: all(node.app.payloads == [b"a"] for node in group.nodes))
        assert takes_none(odd) == ""
        for number in range(4):
            leader.app.send(b"%d" % number * 20_000)
            await group.until(lambda: len(leader.app.payloads) == number + 2)  # noqa: B023
        await group.until(lambda: bool(takes_none(odd)))
        assert takes_none(odd).startswith("it refuses those of n0: ")
        assert "mappedFileSizeCommitLog is another one" in takes_none(odd)
        assert takes_none(group.nodes[1]) == ""
