"""What replicas tell each other of their clocks, settings and expired logs, and what follows."""

import logging
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftmq.dledger.node.peer_info import (
    CLOCKS_APART_MS,
    KNOWN_MS,
    LEAD,
    TOLD_MS,
    VALUE_SIZE_MAX,
    Surroundings,
    decode_settings,
    encode_settings,
)
from raftmq.dledger.raft.config import CoreConfig
from raftmq.dledger.raft.configuration import Configurations, founding
from raftmq.dledger.raft.core import RaftCore
from raftmq.dledger.raft.log_index import LogIndex
from raftmq.dledger.raft.messages import HardState
from raftmq.dledger.transport.wire import (
    CIRCUMSTANCES_VERSION,
    SETTINGS_SIZE_BYTES_MAX,
    Circumstances,
    MessageReader,
    WireError,
    encode_message,
)

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class Replica:
    """Replica a of a group of the replicas `names`."""

    wall_ms = NOW_MS

    def __init__(self, names: str = "abc", **versions: int) -> None:
        self.settings = {"maxMessageSize": "100", "fileReservedTime": "72"}
        self.told: list[Circumstances] = []
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
        self.surroundings = Surroundings(
            core,
            cast(Any, SimpleNamespace(commitlog=SimpleNamespace(min_offset=4096))),
            lambda: self.settings,
            lambda: self.wall_ms,
            lambda peer: versions.get(peer, CIRCUMSTANCES_VERSION),
            self.told.append,
            lambda *told: self.differing.append(told),
        )

    def hear(
        self,
        sender: str,
        *,
        ahead_ms: int = 0,
        expired: int = 0,
        data: bytes | None = None,
        lead_ms: int = 0,
    ) -> None:
        doubted = {LEAD: str(lead_ms)} if lead_ms else {}
        data = encode_settings({**doubted, **self.settings}) if data is None else data
        told = Circumstances(sender, "a", NOW_MS + ahead_ms, 0, expired, data)
        self.surroundings.take(told)

    def events(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found


def test_a_log_goes_as_far_as_it_has_expired_for_a_majority_this_replica_among_them() -> None:
    replica = Replica()
    assert replica.surroundings.agree(900) == 0  # nobody else has said anything
    replica.hear("b", expired=300)
    assert replica.surroundings.agree(900) == 300
    replica.hear("c", expired=100)
    assert replica.surroundings.agree(900) == 300
    assert replica.surroundings.agree(0) == 300  # they agreed, and it is gone here
    replica = Replica()
    replica.hear("b", expired=10_000)  # its clock is ahead
    replica.hear("c", expired=0)
    assert replica.surroundings.agree(0) == 0
    assert replica.surroundings.agree(200) == 200
    replica.hear("c", expired=10_000)
    assert replica.surroundings.agree(250) == 250  # what is young here stays here


def test_what_has_been_agreed_is_told_though_it_is_gone_here() -> None:
    replica = Replica()
    replica.hear("b", expired=300)
    replica.surroundings.agree(900)
    replica.surroundings.look(0)
    assert {told.expired_position for told in replica.told} == {900}
    replica.told.clear()
    replica.surroundings.agree(0)
    replica.surroundings.look(1)
    assert {told.expired_position for told in replica.told} == {300}


def test_a_voter_that_has_fallen_silent_agrees_to_nothing_more() -> None:
    replica = Replica()
    replica.hear("b", ahead_ms=DAY_MS, expired=300)
    replica.surroundings.look(KNOWN_MS - 1)
    assert replica.surroundings.agree(100) == 100
    replica.surroundings.look(KNOWN_MS + TOLD_MS)
    assert replica.surroundings.agree(200) == 100
    assert replica.surroundings.status("b")["ahead_ms"] is None


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
def test_how_many_have_to_agree(names: str, said: str, agreed: int) -> None:
    replica = Replica(names)
    for name in said:
        replica.hear(name, expired=1_000)
    assert replica.surroundings.agree(900) == agreed


def test_replicas_that_are_too_old_to_tell_do_not_count() -> None:
    old = CIRCUMSTANCES_VERSION - 1
    assert Replica(b=old, c=old).surroundings.agree(900) == 900
    assert Replica("bc", b=old, c=old).surroundings.agree(900) == 900
    replica = Replica(b=old)
    assert replica.surroundings.agree(900) == 0  # the third can tell, and has not
    replica.hear("c", expired=900)
    assert replica.surroundings.agree(900) == 900
    assert Replica(b=0, c=0).surroundings.agree(900) == 0  # never reached


def test_all_peers_are_told_now_and_then_and_at_once_when_more_has_expired() -> None:
    replica = Replica()
    replica.surroundings.opened("b")
    data = b"extent=0:0:1\nfounders=a;b;c\nmaxMessageSize=100\nfileReservedTime=72\n"
    assert replica.told == [Circumstances("a", "b", NOW_MS, 4096, 0, data)]
    replica.told.clear()
    for at_ms, count in ((0, 2), (TOLD_MS - 1, 2), (TOLD_MS, 4)):
        replica.surroundings.look(at_ms)
        assert len(replica.told) == count
    replica.surroundings.agree(700)
    replica.surroundings.look(TOLD_MS + 1)
    assert [(told.to, told.expired_position) for told in replica.told[4:]] == [
        ("b", 700),
        ("c", 700),
    ]
    replica.surroundings.agree(700)
    replica.surroundings.look(TOLD_MS + 2)
    assert len(replica.told) == 6


def test_a_clock_that_differs_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    replica = Replica()
    for at_ms, ahead_ms in ((0, DAY_MS), (TOLD_MS, DAY_MS + 1)):
        replica.surroundings.look(at_ms)
        replica.hear("b", ahead_ms=ahead_ms)
    replica.hear("c", ahead_ms=-CLOCKS_APART_MS)
    assert replica.events(caplog) == [
        "clocks_differ peer=b ahead_s=+86400: one of the two is wrong"
    ]
    assert replica.surroundings.status("b")["ahead_ms"] == DAY_MS
    replica.surroundings.look(2 * TOLD_MS)
    replica.hear("b")
    assert replica.events(caplog) == ["clocks_agree peer=b"]
    replica.surroundings.look(3 * TOLD_MS)
    for ahead_s in range(-80, 0, 5):  # they lay in the socket of a process that was frozen
        replica.hear("b", ahead_ms=ahead_s * 1000)
    replica.surroundings.look(4 * TOLD_MS)
    replica.hear("b")
    assert replica.events(caplog) == []
    assert replica.surroundings.status("b")["ahead_ms"] == 0


def test_clocks_before_1970_are_told_as_they_are_and_agree_with_none() -> None:
    told = []
    for wall_ms in (-DAY_MS, -90 * DAY_MS):
        other = Replica()
        other.wall_ms = wall_ms
        other.surroundings.opened("b")
        (said,) = other.told
        assert MessageReader("a", "b").receive_data(b"".join(encode_message(said))) == [said]
        told.append(said.wall_ms)
    assert told == [-DAY_MS, -90 * DAY_MS]
    replica = Replica()
    for name, wall_ms in zip("bc", told, strict=True):
        replica.hear(name, ahead_ms=wall_ms - NOW_MS)
    assert not replica.surroundings.clock_is_wrong  # it was, by two that were told as 0
    assert replica.surroundings.status("b")["ahead_ms"] == -DAY_MS - NOW_MS


@pytest.mark.parametrize("wall_ms", [1 << 62, -1 - (1 << 62), -1 << 63])
def test_a_clock_of_another_age_of_the_world_is_refused(wall_ms: int) -> None:
    """Its difference to this one's would be no number for those who read the status."""
    said = b"".join(encode_message(Circumstances("b", "a", wall_ms, 0, 0, b"")))
    with pytest.raises(WireError):
        MessageReader("b", "a").receive_data(said)


def test_settings_that_differ_are_told_of_when_they_do(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    replica = Replica()
    other = b"maxMessageSize=50\nfileReservedTime=72\nonlyThere=1\nno pair\n\xff=\xff"
    for _ in range(2):
        replica.hear("b", data=other)
    (event,) = replica.events(caplog)
    assert event == "settings_differ peer=b maxMessageSize is '50' there, '100' here"
    assert replica.surroundings.status("b")["settings_differ"] == {"maxMessageSize": ("50", "100")}
    replica.settings["maxMessageSize"] = "50"
    replica.hear("b", data=other)
    assert replica.events(caplog) == ["settings_agree peer=b"]
    assert replica.surroundings.status("b")["settings_differ"] == {}


def test_who_is_no_member_is_not_heard_but_for_the_founders_it_names() -> None:
    replica = Replica("a")
    replica.hear("stranger", ahead_ms=DAY_MS, expired=1_000, data=b"founders=a;stranger")
    assert replica.surroundings.status("stranger")["ahead_ms"] is None
    assert [peer for peer, _ in replica.differing] == ["stranger"]
    replica.surroundings.look(0)
    assert [told.to for told in replica.told] == ["stranger"]  # so that it hears of it, too


def test_settings_keep_within_what_a_message_holds() -> None:
    settings = {"line": "a\nb", "long": "x" * 1000} | {f"key{n}": "y" * 300 for n in range(200)}
    data = encode_settings(settings)
    assert SETTINGS_SIZE_BYTES_MAX - VALUE_SIZE_MAX - 10 < len(data) <= SETTINGS_SIZE_BYTES_MAX
    found = decode_settings(data)
    assert found["line"] == "a b"
    assert found["long"] == "x" * VALUE_SIZE_MAX
    told = Circumstances("b", "a", 1, 2, 3, data)
    assert MessageReader("b", "a").receive_data(b"".join(encode_message(told))) == [told]


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
def test_a_clock_is_wrong_if_those_of_a_majority_agree_without_it(
    names: str, ahead_s: dict[str, int], is_wrong: bool
) -> None:
    replica = Replica(names)
    for name, seconds in ahead_s.items():
        replica.hear(name, ahead_ms=seconds * 1000)
    assert replica.surroundings.clock_is_wrong is is_wrong


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
def test_a_leader_knows_whose_clock_is_wrong(
    names: str, ahead_s: dict[str, int], wrong: str
) -> None:
    replica = Replica(names)
    for name, seconds in ahead_s.items():
        replica.hear(name, ahead_ms=seconds * 1000)
    found = "".join(name for name in names[1:] if replica.surroundings.is_wrong_at(name))
    assert found == wrong


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
def test_a_clock_that_its_own_log_contradicts_is_no_evidence(
    own: int, others: dict[str, tuple[int, int]], wrong: str, confirmed: bool
) -> None:
    replica = Replica()
    replica.surroundings.doubt_clock(own)
    for now_ms in range(0, KNOWN_MS + 1, TOLD_MS):
        assert not replica.surroundings.clock_is_confirmed
        replica.surroundings.look(now_ms)
        for name, (ahead_ms, lead_ms) in others.items():
            replica.hear(name, ahead_ms=ahead_ms, lead_ms=lead_ms)
        assert "".join(filter(replica.surroundings.is_wrong_at, "abc")) == wrong
    assert replica.surroundings.clock_is_confirmed is confirmed


def test_clocks_that_jump_together_confirm_each_other_not() -> None:
    """Each has heard of the other's clock before the jump, and not yet of its doubt."""
    replica = Replica()
    for now_ms in range(0, 10 * TOLD_MS, TOLD_MS):
        replica.surroundings.look(now_ms)
        for name in "bc":
            replica.hear(name)
    replica.surroundings.doubt_clock(YEAR)
    replica.hear("b")
    assert not replica.surroundings.clock_is_confirmed
    replica.surroundings.look(now_ms + KNOWN_MS - 1)
    replica.hear("b", lead_ms=YEAR)
    replica.surroundings.look(now_ms + KNOWN_MS)
    assert not replica.surroundings.clock_is_confirmed


def test_peers_learn_at_once_that_a_clock_is_doubted() -> None:
    replica = Replica()
    replica.surroundings.look(0)
    replica.told.clear()
    replica.surroundings.doubt_clock(YEAR)
    replica.surroundings.look(1)
    assert {decode_settings(told.data)[LEAD] for told in replica.told} == {str(YEAR)}
