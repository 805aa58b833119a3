from __future__ import annotations

from dataclasses import replace

import pytest

from raftmq.dledger.raft.configuration import (
    MEMBERS_MAX,
    REMOVED_MAX,
    SIZE_BYTES_MAX,
    Change,
    ChangeKind,
    Configuration,
    ConfigurationError,
    Configurations,
    MemberRole,
    check_proposed,
    decode_configuration,
    encode_configuration,
    founding,
)
from raftmq.dledger.raft.errors import ChangeRefused, PreferredChanged

ADD, PROMOTE, REMOVE, MOVE, PREFER = (
    ChangeKind.ADD_LEARNER,
    ChangeKind.PROMOTE,
    ChangeKind.REMOVE,
    ChangeKind.MOVE,
    ChangeKind.PREFER,
)
THREE = founding([("a", "ha:1"), ("b", "hb:2"), ("c", "hc:3")])


def grown() -> Configuration:
    return THREE.after(Change(ADD, "d", "hd:4")).after(Change(PROMOTE, "d"))


def test_configuration_after_each_step_of_a_replacement() -> None:
    learner = THREE.after(Change(ADD, "d", "hd:4"))
    assert (learner.voters, learner.ids) == (frozenset("abc"), frozenset("abcd"))
    after = learner.after(Change(PROMOTE, "d")).after(Change(REMOVE, "b"))
    assert (after.voters, after.removed) == (frozenset("acd"), ("b",))
    assert [(m.node_id, m.broker_id, m.founder) for m in after.members] == [
        ("a", 1, True),
        ("c", 3, True),
        ("d", 4, False),
    ]
    back = after.after(Change(ADD, "b", "hb:9"))
    assert back.removed == ()
    member = back.get("b")
    assert member is not None
    assert (member.broker_id, member.role) == (5, MemberRole.LEARNER)  # no id is given twice


def test_moved_founder_has_the_address_of_the_change() -> None:
    member = THREE.after(Change(MOVE, "b", "elsewhere:7")).get("b")
    assert member is not None
    assert (member.address, member.founder, member.broker_id) == ("elsewhere:7", False, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change(ADD, "a", "h:1"), "a is a voter already"),
        (Change(ADD, "d", "h"), "must read host:port"),
        (Change(ADD, "d", "h:0"), "must read host:port"),
        (Change(ADD, "d", "h" * 300 + ":1"), "too long"),
        (Change(ADD, "", "h:1"), "is no id"),
        (Change(PROMOTE, "a"), "a is a voter already"),
        (Change(PROMOTE, "x"), "x is no member"),
        (Change(REMOVE, "x"), "x is no member"),
        (Change(MOVE, "x", "h:1"), "x is no member"),
        (Change(MOVE, "a", "nowhere"), "must read host:port"),
        (Change(PREFER, "x"), "x is no member"),
    ],
)
def test_configuration_rejects_changes_that_contradict_it(change: Change, reason: str) -> None:
    with pytest.raises(ChangeRefused, match=reason):
        THREE.after(change)


@pytest.mark.parametrize("address", ["hb:2", "HB:2", "[hb]:02"])
def test_configuration_rejects_a_second_member_at_one_address(address: str) -> None:
    for change in (Change(ADD, "d", address), Change(MOVE, "a", address)):
        with pytest.raises(ChangeRefused, match="b has the address"):
            THREE.after(change)
    assert THREE.after(Change(MOVE, "b", address)).get("b") is not None  # its own
    freed = THREE.after(Change(MOVE, "b", "hb:9"))
    assert freed.after(Change(ADD, "d", address)).get("d") is not None
    assert THREE.after(Change(REMOVE, "b")).after(Change(ADD, "d", address)).get("d") is not None


def test_logged_configuration_with_a_duplicate_address_is_accepted() -> None:
    both = replace(THREE, members=(*THREE.members[:2], replace(THREE.members[2], address="hb:2")))
    data = encode_configuration(both)
    check_proposed(data)
    assert decode_configuration(data) == both
    assert both.after(Change(MOVE, "c", "hc:3")).get("c") is not None  # and may be put right
    assert both.after(Change(REMOVE, "c")).ids == frozenset("ab")


def test_configuration_rejects_removal_of_the_only_voter() -> None:
    alone = founding([("a", "h:1")]).after(Change(ADD, "b", "h:2"))
    with pytest.raises(ChangeRefused, match="only voter"):
        alone.after(Change(REMOVE, "a"))


def test_configuration_limits_members_removed_ids_and_bytes() -> None:
    full = THREE
    for n in range(MEMBERS_MAX - 3):
        full = full.after(Change(ADD, f"n{n}", f"h:{n + 1}"))
    with pytest.raises(ChangeRefused, match="may not have more"):
        full.after(Change(ADD, "one-more", "h:1"))
    for n in range(REMOVED_MAX + 3):
        full = full.after(Change(REMOVE, f"n{n}" if n < 6 else f"m{n}")) if n < 6 else full
    assert len(full.removed) <= REMOVED_MAX
    with pytest.raises(ChangeRefused, match=f"exceed {SIZE_BYTES_MAX} bytes"):
        wide = THREE
        for n in range(5):
            wide = wide.after(Change(ADD, f"{n}" * 200, f"h:{n + 1}"))


def test_preferred_leader_is_a_voter_and_is_removed_with_it() -> None:
    assert THREE.preferred is None
    preferring = THREE.after(Change(PREFER, "b", instead_of=(None, "a")))
    assert preferring.preferred == "b"
    assert (preferring.members, preferring.voters) == (THREE.members, THREE.voters)
    grown_so = preferring.after(Change(ADD, "d", "hd:4"))
    assert grown_so.preferred == grown_so.after(Change(MOVE, "b", "h:9")).preferred == "b"
    with pytest.raises(ChangeRefused, match="d is no voter"):
        grown_so.after(Change(PREFER, "d"))
    assert grown_so.after(Change(PROMOTE, "d")).after(Change(PREFER, "d")).preferred == "d"
    assert preferring.after(Change(REMOVE, "c")).preferred == "b"
    assert preferring.after(Change(REMOVE, "b")).preferred == ""
    assert preferring.after(Change(PREFER, "")).preferred == ""
    with pytest.raises(PreferredChanged, match="the preferred leader is b"):
        preferring.after(Change(PREFER, "c", instead_of=("a", "")))
    with pytest.raises(PreferredChanged, match="is nobody"):
        THREE.after(Change(PREFER, "c", instead_of=("",)))


PREFERRING = grown().after(Change(PREFER, "d"))
NOBODY = grown().after(Change(PREFER, ""))


@pytest.mark.parametrize("configuration", [Configuration(), THREE, grown(), PREFERRING, NOBODY])
def test_configuration_round_trip_and_every_truncation(configuration: Configuration) -> None:
    data = encode_configuration(configuration)
    assert decode_configuration(data) == configuration
    for size in range(len(data)):
        with pytest.raises(ConfigurationError):
            decode_configuration(data[:size])
    with pytest.raises(ConfigurationError):
        decode_configuration(data + b"\0")


def test_malformed_configuration_is_rejected() -> None:
    data = bytearray(encode_configuration(THREE))
    for at, value in ((0, 9), (0, 2), (7, 7), (8, 0x80)):  # version, role, flags
        bad = data.copy()
        bad[at] = value
        with pytest.raises(ConfigurationError):
            decode_configuration(bytes(bad))
    twice = Configuration((*THREE.members, THREE.members[0]))
    with pytest.raises(ConfigurationError, match="twice"):
        decode_configuration(encode_configuration(twice))
    stranger = replace(THREE, preferred="x")
    with pytest.raises(ConfigurationError, match="x should lead and is no voter"):
        decode_configuration(encode_configuration(stranger))


def test_newest_logged_configuration_is_in_force_until_it_is_truncated() -> None:
    log = Configurations(0, THREE)
    learner = THREE.after(Change(ADD, "d", "hd:4"))
    assert log.append(5, learner)
    assert log.append(7, grown())
    assert (log.current, log.index, log.settled) == (grown(), 7, (0, THREE))
    assert log.truncate(6)
    assert (log.current, log.index) == (learner, 5)
    assert not log.truncate(6)
    log.settle(5)
    assert log.settled == (5, learner)
    assert not log.append(4, THREE)  # read again, from before
    assert log.current == learner


def test_removed_voter_counts_as_voter_until_its_removal_is_settled() -> None:
    log = Configurations(0, THREE)
    log.append(3, THREE.after(Change(REMOVE, "c")))
    assert log.ever_voter("c")
    log.settle(3)
    assert not log.ever_voter("c")
