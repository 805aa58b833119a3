"""What replicas report of their clocks, settings, logs and founders, and what follows."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.node.peer_info import (
    CLOCKS_APART_MS,
    DIFFERING_MAX,
    KNOWN_MS,
    SEGMENT_SIZE,
    SEND_INTERVAL_MS,
    Founders,
    PeerInfoExchange,
)
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Change, ChangeKind, Configurations, founding
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import HardState, Role
from raftmq.dledger.transport.peer_info_message import (
    SETTINGS_SIZE_BYTES_MAX,
    VALUE_SIZE_MAX,
    PeerInfo,
    ReplicaState,
    encode_body,
)
from raftmq.dledger.transport.wire import MessageReader, WireError, encode_message
from tests.dledger.group import Group as Cores
from tests.dledger.group import make_frame
from tests.dledger.members import Group, Node
from tests.dledger.test_change_members import address, change

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
EMPTY = ReplicaState(0, 0, 0, 0, 0, 0, True)


class Replica:
    """Replica a of a group of the replicas `names`."""

    wall_ms = NOW_MS

    def __init__(self, names: str = "abc") -> None:
        self.settings = {"maxMessageSize": "100", "fileReservedTime": "72"}
        self.sent: list[PeerInfo] = []
        self.differing: list[tuple[str, str]] = []
        core = RaftCore(
            "a",
            Configurations(0, founding((name, "") for name in names)),
            CoreConfig(),
            LogIndex(),
            HardState(0, None),
            Random(1),
            0,
            0,
            incarnation=1,
            crc_of=lambda index: None,
        )
        kept = SimpleNamespace(
            commitlog=SimpleNamespace(min_offset=4096),
            index=LogIndex(),
            header_crc=lambda index: None,
        )
        self.exchange = PeerInfoExchange(
            core,
            cast(Any, kept),
            lambda: self.settings,
            lambda: self.wall_ms,
            lambda: 0,
            self.sent.append,
            lambda *told: self.differing.append(told),
        )

    @property
    def states(self) -> list[ReplicaState]:
        """The states in the sent messages."""
        return [info.state for info in self.sent if info.state is not None]

    def hear(
        self,
        sender: str,
        *,
        ahead_ms: int = 0,
        expired: int = 0,
        settings: dict[str, str] | None = None,
        founders: Sequence[str] = "abc",
        lead_ms: int = 0,
    ) -> None:
        settings = dict(self.settings) if settings is None else settings
        state = ReplicaState(
            NOW_MS + ahead_ms, lead_ms, 0, expired, 0, 0, True, tuple(founders), settings
        )
        self.exchange.take(PeerInfo(sender, "a", state=state))

    def events(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        result = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return result


def test_agreed_retention_is_what_a_majority_with_this_replica_has_expired() -> None:
    replica = Replica()
    assert replica.exchange.agree(900) == 0  # nobody else has said anything
    replica.hear("b", expired=300)
    assert replica.exchange.agree(900) == 300
    replica.hear("c", expired=100)
    assert replica.exchange.agree(900) == 300
    assert replica.exchange.agree(0) == 300  # they agreed, and it is gone here
    replica = Replica()
    replica.hear("b", expired=10_000)  # its clock is ahead
    replica.hear("c", expired=0)
    assert replica.exchange.agree(0) == 0
    assert replica.exchange.agree(200) == 200
    replica.hear("c", expired=10_000)
    assert replica.exchange.agree(250) == 250  # what is young here stays here


def test_agreed_retention_is_sent_after_local_deletion() -> None:
    replica = Replica()
    replica.hear("b", expired=300)
    replica.exchange.agree(900)
    replica.exchange.tick(0)
    assert {state.expired_position for state in replica.states} == {900}
    replica.sent.clear()
    replica.exchange.agree(0)
    replica.exchange.tick(1)
    assert {state.expired_position for state in replica.states} == {300}


def test_silent_voter_does_not_count_for_agreed_retention() -> None:
    replica = Replica()
    replica.hear("b", ahead_ms=DAY_MS, expired=300)
    replica.exchange.tick(KNOWN_MS - 1)
    assert replica.exchange.agree(100) == 100
    replica.exchange.tick(KNOWN_MS + SEND_INTERVAL_MS)
    assert replica.exchange.agree(200) == 100
    assert replica.exchange.status("b")["ahead_ms"] is None


@pytest.mark.parametrize(
    ("names", "said", "agreed"),
    [
        ("a", "", 900),
        ("ab", "", 0),
        ("ab", "b", 900),
        ("abcd", "b", 0),
        ("abcd", "bc", 900),
        ("abcde", "b", 0),
        ("abcde", "bc", 900),
        ("bcd", "b", 0),  # a learner
        ("bcd", "bc", 900),
    ],
)
def test_retention_needs_agreement_of_a_majority(names: str, said: str, agreed: int) -> None:
    replica = Replica(names)
    for name in said:
        replica.hear(name, expired=1_000)
    assert replica.exchange.agree(900) == agreed


def test_peer_info_is_sent_periodically_and_at_once_when_more_expires() -> None:
    replica = Replica()
    info = replica.exchange.completed(PeerInfo("a", "b"))
    state = ReplicaState(NOW_MS, 0, 4096, 0, 0, 0, True, ("a", "b", "c"), replica.settings)
    assert info == PeerInfo("a", "b", state=state)
    for at_ms, count in ((0, 2), (SEND_INTERVAL_MS - 1, 2), (SEND_INTERVAL_MS, 4)):
        replica.exchange.tick(at_ms)
        assert len(replica.sent) == count
    replica.exchange.agree(700)
    replica.exchange.tick(SEND_INTERVAL_MS + 1)
    assert [info.to for info in replica.sent[4:]] == ["b", "c"]
    assert [state.expired_position for state in replica.states[4:]] == [700, 700]
    replica.exchange.agree(700)
    replica.exchange.tick(SEND_INTERVAL_MS + 2)
    assert len(replica.sent) == 6


def test_differing_clock_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    replica = Replica()
    for at_ms, ahead_ms in ((0, DAY_MS), (SEND_INTERVAL_MS, DAY_MS + 1)):
        replica.exchange.tick(at_ms)
        replica.hear("b", ahead_ms=ahead_ms)
    replica.hear("c", ahead_ms=-CLOCKS_APART_MS)
    assert replica.events(caplog) == [
        "clocks_differ peer=b ahead_s=+86400: one of the two is wrong"
    ]
    assert replica.exchange.status("b")["ahead_ms"] == DAY_MS
    replica.exchange.tick(2 * SEND_INTERVAL_MS)
    replica.hear("b")
    assert replica.events(caplog) == ["clocks_agree peer=b"]
    replica.exchange.tick(3 * SEND_INTERVAL_MS)
    for ahead_s in range(-80, 0, 5):  # they lay in the socket of a process that was frozen
        replica.hear("b", ahead_ms=ahead_s * 1000)
    replica.exchange.tick(4 * SEND_INTERVAL_MS)
    replica.hear("b")
    assert replica.events(caplog) == []
    assert replica.exchange.status("b")["ahead_ms"] == 0


def test_clock_before_1970_is_sent_unchanged_and_agrees_with_no_clock() -> None:
    reported = []
    for wall_ms in (-DAY_MS, -90 * DAY_MS):
        other = Replica()
        other.wall_ms = wall_ms
        said = other.exchange.completed(PeerInfo("a", "b"))
        assert MessageReader("a", "b").receive_data(b"".join(encode_message(said))) == [said]
        assert said.state is not None
        reported.append(said.state.wall_ms)
    assert reported == [-DAY_MS, -90 * DAY_MS]
    replica = Replica()
    for name, wall_ms in zip("bc", reported, strict=True):
        replica.hear(name, ahead_ms=wall_ms - NOW_MS)
    assert not replica.exchange.clock_is_wrong  # it was, by two that were told as 0
    assert replica.exchange.status("b")["ahead_ms"] == -DAY_MS - NOW_MS


@pytest.mark.parametrize("wall_ms", [1 << 62, -1 - (1 << 62), -1 << 63])
def test_clock_outside_the_representable_range_is_rejected(wall_ms: int) -> None:
    """Its difference to this one's would be no number for those who read the status."""
    state = ReplicaState(wall_ms, 0, 0, 0, 0, 0, True)
    said = b"".join(encode_message(PeerInfo("b", "a", state=state)))
    with pytest.raises(WireError):
        MessageReader("b", "a").receive_data(said)


def test_differing_settings_are_reported_once_and_again_when_they_agree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    replica = Replica()
    other = {"maxMessageSize": "50", "fileReservedTime": "72", "onlyThere": "1"}
    for _ in range(2):
        replica.hear("b", settings=other)
    (event,) = replica.events(caplog)
    assert event == "settings_differ peer=b maxMessageSize is '50' there, '100' here"
    assert replica.exchange.status("b")["settings_differ"] == {"maxMessageSize": ("50", "100")}
    replica.settings["maxMessageSize"] = "50"
    replica.hear("b", settings=other)
    assert replica.events(caplog) == ["settings_agree peer=b"]
    assert replica.exchange.status("b")["settings_differ"] == {}


def test_peer_info_of_a_non_member_is_ignored_except_its_founders() -> None:
    replica = Replica("a")
    replica.hear("stranger", ahead_ms=DAY_MS, expired=1_000, founders=("a", "stranger"))
    assert replica.exchange.status("stranger")["ahead_ms"] is None
    assert [peer for peer, _ in replica.differing] == ["stranger"]
    replica.exchange.tick(0)
    assert [info.to for info in replica.sent] == ["stranger"]  # so that it hears of it, too


def test_settings_in_peer_info_are_truncated_to_the_message_limit() -> None:
    settings = {"line": "a\nb", "long": "x" * 1000} | {f"key{n}": "y" * 300 for n in range(200)}
    state = ReplicaState(1, 2, 3, 4, 5, 6, False, ("a",), settings)
    info = PeerInfo("b", "a", state=state)
    size = len(encode_body(info)) - len(encode_body(PeerInfo("b", "a", state=EMPTY)))
    assert SETTINGS_SIZE_BYTES_MAX - VALUE_SIZE_MAX - 10 < size <= SETTINGS_SIZE_BYTES_MAX + 2
    (read,) = MessageReader("b", "a").receive_data(b"".join(encode_message(info)))
    assert isinstance(read, PeerInfo) and read.state is not None
    assert read.state.settings["line"] == "a b"
    assert read.state.settings["long"] == "x" * VALUE_SIZE_MAX


@pytest.mark.parametrize(
    ("names", "ahead_s", "is_wrong"),
    [
        ("abc", {}, False),
        ("abc", {"b": 3_600}, False),  # the third may be with this one
        ("abc", {"b": 3_600, "c": 3_605}, True),
        ("abc", {"b": -3_600, "c": -3_605}, True),
        ("abc", {"b": 3_600, "c": -3_600}, False),  # nobody knows who is right
        ("abc", {"b": 3_600, "c": 59}, False),
        ("ab", {"b": 3_600}, False),
        ("abcde", {"b": 3_600, "c": 3_600}, False),
        ("abcde", {"b": 3_600, "c": 3_600, "d": 3_600}, True),
        ("bcd", {"b": 3_600, "c": 3_600}, True),  # a learner
    ],
)
def test_clock_is_wrong_when_a_majority_of_other_clocks_agree(
    names: str, ahead_s: dict[str, int], is_wrong: bool
) -> None:
    replica = Replica(names)
    for name, seconds in ahead_s.items():
        replica.hear(name, ahead_ms=seconds * 1000)
    assert replica.exchange.clock_is_wrong is is_wrong


@pytest.mark.parametrize(
    ("names", "ahead_s", "wrong"),
    [
        ("abc", {"b": 3_600, "c": 0}, "b"),
        ("abc", {"b": -3_600, "c": 10}, "b"),
        ("abc", {"b": 3_600, "c": 3_600}, ""),  # this one's is
        ("abc", {"b": 3_600}, ""),  # c has not told
        ("ab", {"b": 3_600}, ""),
        ("abcde", {"b": 3_600, "c": -3_600, "d": 0, "e": 0}, "bc"),
    ],
)
def test_leader_identifies_peers_with_wrong_clocks(
    names: str, ahead_s: dict[str, int], wrong: str
) -> None:
    replica = Replica(names)
    for name, seconds in ahead_s.items():
        replica.hear(name, ahead_ms=seconds * 1000)
    result = "".join(name for name in names[1:] if replica.exchange.is_wrong_at(name))
    assert result == wrong


YEAR = 365 * DAY_MS


@pytest.mark.parametrize(
    ("own", "others", "wrong", "confirmed"),
    [
        # By how much this clock is ahead of its own log; for each other replica by how much its
        # clock is ahead of this one, and of its own log; whose clocks are wrong.
        (0, {"b": (0, 0), "c": (0, 0)}, "", True),
        (0, {"b": (YEAR, YEAR), "c": (YEAR, YEAR)}, "bc", False),  # a majority, and wrong
        (0, {"b": (-YEAR, -YEAR), "c": (-YEAR, -YEAR)}, "bc", False),
        (0, {"b": (YEAR, YEAR), "c": (0, 0)}, "b", False),
        (0, {"b": (YEAR, 0), "c": (YEAR, 0)}, "a", False),  # as before: a majority
        (YEAR, {"b": (0, YEAR), "c": (-YEAR, 0)}, "ab", False),  # one of two wrong ones
        (YEAR, {"b": (0, YEAR), "c": (0, YEAR)}, "", False),  # all, or none: off for a year
        (YEAR, {"b": (-YEAR, 0), "c": (-YEAR, 0)}, "a", False),
        (YEAR, {"b": (0, 0), "c": (0, 0)}, "", True),  # it was off, and the others were not
        (YEAR, {"b": (0, 0)}, "", False),
        (DAY_MS, {"b": (0, DAY_MS), "c": (0, 0)}, "", False),
        (0, {"b": (YEAR, YEAR)}, "b", False),
    ],
)
def test_clock_that_its_own_log_contradicts_does_not_count_as_evidence(
    own: int, others: dict[str, tuple[int, int]], wrong: str, confirmed: bool
) -> None:
    replica = Replica()
    replica.exchange.doubt_clock(own)
    for now_ms in range(0, KNOWN_MS + 1, SEND_INTERVAL_MS):
        assert not replica.exchange.clock_is_confirmed
        replica.exchange.tick(now_ms)
        for name, (ahead_ms, lead_ms) in others.items():
            replica.hear(name, ahead_ms=ahead_ms, lead_ms=lead_ms)
        assert "".join(filter(replica.exchange.is_wrong_at, "abc")) == wrong
    assert replica.exchange.clock_is_confirmed is confirmed


def test_clocks_that_jump_together_do_not_confirm_each_other() -> None:
    """Each has heard of the other's clock before the jump, and not yet of its doubt."""
    replica = Replica()
    for now_ms in range(0, 10 * SEND_INTERVAL_MS, SEND_INTERVAL_MS):
        replica.exchange.tick(now_ms)
        for name in "bc":
            replica.hear(name)
    replica.exchange.doubt_clock(YEAR)
    replica.hear("b")
    assert not replica.exchange.clock_is_confirmed
    replica.exchange.tick(now_ms + KNOWN_MS - 1)
    replica.hear("b", lead_ms=YEAR)
    replica.exchange.tick(now_ms + KNOWN_MS)
    assert not replica.exchange.clock_is_confirmed


def test_doubted_clock_is_reported_to_peers_at_once() -> None:
    replica = Replica()
    replica.exchange.tick(0)
    replica.sent.clear()
    replica.exchange.doubt_clock(YEAR)
    replica.exchange.tick(1)
    assert {state.clock_lead_ms for state in replica.states} == {YEAR}


# -- founders --------------------------------------------------------------------------------------


class Founding:
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


def named(founders: str) -> ReplicaState:
    return replace(EMPTY, founders=tuple(founders.split(";")) if founders else ())


def sized(segment: str) -> ReplicaState:
    return replace(EMPTY, settings={SEGMENT_SIZE: segment} if segment else {})


@pytest.mark.parametrize(
    ("own", "sender", "told", "differ"),
    [
        ("abc", "b", "a;b;c", False),
        ("abc", "b", "b", True),  # it would have founded alone
        ("a", "b", "a;b;c", True),  # so would this one
        ("abc", "b", "a;b", True),
        ("abc", "d", "d;e", False),  # they have nothing to do with each other
        ("abc", "d", "a;d", True),
        ("abc", "b", "", False),  # it is to join, or the log says who
        ("", "b", "a;b", False),  # so it is here
    ],
)
def test_founder_lists_are_compared_only_if_they_name_both_replicas(
    own: str, sender: str, told: str, differ: bool
) -> None:
    replica = Founding([*own])
    replica.founders.take(sender, named(told), 0)
    assert bool(replica.said) is differ
    assert replica.founders.differing == [sender] * differ
    assert replica.core.election.founders_differ is differ


def test_founder_mismatch_report_shows_both_lists_and_the_consequence() -> None:
    replica = Founding(["a"], frames=1)
    replica.founders.take("b", named("a;b;c"), 0)
    assert replica.said == [
        (
            "b",
            "dLegerPeers names a, b, c at b, and a at a, which has founded its group without b:"
            " correct the wrong one",
        )
    ]
    replica = Founding(["a", "b", "c"])
    replica.founders.take("b", named("b"), 0)
    ((_, text),) = replica.said
    assert text == (
        "dLegerPeers names b at b, and a, b, c at a: a founds no group until both are alike"
    )


def test_founder_mismatch_ends_when_the_peer_stops_reporting_it() -> None:
    replica = Founding(["a", "b"])
    replica.founders.take("b", named("b"), 0)
    replica.founders.take("b", named("a;b"), 1)
    assert not replica.core.election.founders_differ
    assert replica.said[1] == ("b", "")
    replica.founders.take("b", named("b"), 2)
    replica.founders.tick(KNOWN_MS + 1)
    assert replica.core.election.founders_differ
    replica.founders.tick(KNOWN_MS + 2)
    assert not replica.core.election.founders_differ


def test_reported_founder_mismatches_are_bounded() -> None:
    replica = Founding(["a"])
    for number in range(2 * DIFFERING_MAX):
        replica.founders.take(f"n{number}", named(f"a;n{number}"), 0)
    assert len(replica.founders.differing) == DIFFERING_MAX


@pytest.mark.parametrize(
    ("own", "frames", "sender", "told", "differ"),
    [
        ("abc", 0, "b", "2048", True),
        ("abc", 0, "b", "1024", False),
        ("abc", 0, "b", "", False),
        ("abc", 0, "d", "2048", False),  # no founder: it is to join, and may be the wrong one
        ("", 0, "d", "2048", True),  # this one is to join
        ("abc", 1, "b", "2048", False),  # its store cannot be changed any more
    ],
)
def test_empty_replica_with_a_different_segment_size_waits(
    own: str, frames: int, sender: str, told: str, differ: bool
) -> None:
    replica = Founding([*own], frames)
    replica.founders.take(sender, sized(told), 0)
    assert replica.core.election.founders_differ is differ
    if differ:
        ((peer, text),) = replica.said
        assert (peer, text) == (
            sender,
            f"mappedFileSizeCommitLog is 2048 at {sender}, and 1024 at a: a, which is empty, takes"
            " no part until both are alike",
        )
        replica.founders.take(sender, sized("1024"), 0)
        assert replica.said[1:] == [(sender, "")]


def test_empty_replica_with_a_founder_mismatch_neither_campaigns_nor_votes() -> None:
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


def test_founder_mismatch_does_not_stop_a_replica_with_frames() -> None:
    group = Cores()
    group.run(3_000)
    for name in "abc":
        group[name].core.election.founders_differ = True
    leader = next(name for name in "abc" if group[name].core.role is Role.LEADER)
    group[leader].down = True
    group.run(3_000)
    assert Role.LEADER in {group[name].core.role for name in "abc" if name != leader}


def foreign(node: Node) -> list[str]:
    status = node.member.status()["foreign"]
    assert isinstance(status, list)
    return status


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


async def test_accidental_single_replica_group_is_reported_by_both_sides(tmp_path: Path) -> None:
    async with founded_alone(tmp_path, 3) as group:
        alone, *others = group.nodes
        await group.until(lambda: len(foreign(alone)) == 2)
        await group.until(lambda: all(foreign(node) for node in others))
        assert [node.member.core.last_index for node in others] == [0, 0]
        assert {node.member.core.role for node in others} == {Role.FOLLOWER}


@pytest.mark.parametrize("own", [("n0",), ("n0", "n1")])
async def test_group_is_founded_only_after_founder_lists_match(
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


async def test_group_grown_from_one_replica_reports_no_founder_mismatch(tmp_path: Path) -> None:
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


async def test_founder_omitted_by_mistake_can_be_added_as_learner(tmp_path: Path) -> None:
    async with founded_alone(tmp_path, 2) as group:
        alone, other = group.nodes
        await group.until(lambda: bool(foreign(alone) and foreign(other)))
        await alone.member.change_members(Change(ChangeKind.ADD_LEARNER, "n1", address(other)))
        await group.until(lambda: other.member.core.recovered)
        assert not other.member.core.election.founders_differ
        assert foreign(alone) == foreign(other) == []
        assert await alone.member.hand_over() is None  # at once: a learner cannot lead


def takes_none(node: Node) -> str:
    status = node.member.status()["takes_no_frames"]
    assert isinstance(status, str)
    return status


async def test_empty_replica_joins_after_its_segment_size_is_corrected(tmp_path: Path) -> None:
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


async def test_group_is_not_founded_while_segment_sizes_differ(tmp_path: Path) -> None:
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


async def test_replica_with_another_segment_size_reports_rejected_frames(tmp_path: Path) -> None:
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
