"""The route table, with planted cases: stale terms, old channels, silence, deltas, limits."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from raftmq.namesrv import routes
from raftmq.namesrv.routes import (
    BROKERS_PER_GROUP_MAX,
    EXPIRY_MS,
    Registration,
    RegistrationRefused,
    RouteLimits,
    RouteTable,
)
from raftmq.namesrv.views import cluster_body
from raftmq.remoting.codes import ResponseCode
from raftmq.remoting.fair_scheduling import Steps, finish
from raftmq.remoting.registration import DataVersion, TopicConfig

N0, N1, N2, N3 = (f"10.0.0.{number}:10911" for number in range(1, 5))
V1, V2, V3 = DataVersion(1, 0, 5), DataVersion(2, 0, 6), DataVersion(3, 0, 7)


def topic(name: str, queues: int = 4, perm: int = 6) -> TopicConfig:
    return TopicConfig(name, queues, queues, perm)


def claim(address: str, broker_id: int, term: int = 0, **more: Any) -> Registration:
    fields: dict[str, Any] = {
        "cluster": "c",
        "broker_name": "g",
        "version": V1,
        "topics": [topic("A"), topic("B")],
        "ha_address": f"ha of {address}",
    }
    fields.update(more)
    return Registration(address=address, broker_id=broker_id, term=term, **fields)


def group_of_three(term: int = 5) -> RouteTable:
    table = RouteTable()
    table.register(claim(N0, 0, term, channel="ch0"), 0)
    table.register(claim(N1, 2, term, channel="ch1"), 0)
    table.register(claim(N2, 3, term, channel="ch2"), 0)
    return table


def addresses(table: RouteTable, name: str = "g") -> dict[int, str]:
    group = table.group(name)
    return group.addresses if group else {}


def names(table: RouteTable) -> list[str]:
    return sorted(table.topics())


def test_route_table_has_a_registered_group_and_its_topics() -> None:
    table = group_of_three()
    assert addresses(table) == {0: N0, 2: N1, 3: N2}
    assert names(table) == ["A", "B"]
    queues = table.queues("A")
    assert queues is not None
    assert queues["g"]._asdict() == {
        "read_queue_count": 4,
        "write_queue_count": 4,
        "perm": 6,
        "sys_flag": 0,
        "message_type": "",
    }
    assert table.queues("C") is None


def test_registration_reply_has_the_leader_and_whether_the_table_changed() -> None:
    table = RouteTable()
    first = table.register(claim(N1, 2), 0)
    assert (first.leader_address, first.changed, first.need_full) == ("", True, False)
    second = table.register(claim(N0, 0), 0)
    assert (second.leader_address, second.leader_ha_address) == (N0, f"ha of {N0}")
    assert second.changed
    again = table.register(claim(N0, 0), 1)
    assert not again.changed


# --- failover


def test_failover_never_lists_a_node_twice() -> None:
    table = group_of_three(term=5)
    result = table.register(claim(N1, 0, term=6), 1)
    assert result.changed
    assert addresses(table) == {0: N1, 3: N2}  # N0 lost its place, N1 its old id
    assert table.register(claim(N0, 1, term=6), 2).leader_address == N1
    assert addresses(table) == {0: N1, 1: N0, 3: N2}
    table.register(claim(N0, 0, term=7), 3)  # and back
    table.register(claim(N1, 2, term=7), 3)
    assert addresses(table) == {0: N0, 2: N1, 3: N2}


@pytest.mark.parametrize("stale_term", [0, 4, 5])
def test_leader_of_a_stale_term_is_rejected(stale_term: int) -> None:
    table = group_of_three(term=5)
    table.register(claim(N1, 0, term=6, topics=[topic("A"), topic("new")], version=V2), 1)
    with pytest.raises(RegistrationRefused) as caught:
        table.register(claim(N0, 0, term=stale_term, topics=[], version=V3), 2)
    assert caught.value.code == ResponseCode.ILLEGAL_OPERATION
    assert str(caught.value).startswith("[STALE_TERM]")
    assert addresses(table)[0] == N1
    assert names(table) == ["A", "new"]
    group = table.group("g")
    assert group is not None
    assert (group.term, group.version) == (6, V2)


def test_stale_term_rejection_names_the_leader() -> None:
    table = RouteTable()
    table.register(claim(N1, 0, term=6), 0)
    with pytest.raises(RegistrationRefused) as caught:
        table.register(claim(N0, 0, term=5), 0)
    assert (caught.value.leader_address, caught.value.term) == (N1, 6)


def test_second_leader_of_a_term_is_rejected() -> None:
    table = group_of_three(term=5)
    with pytest.raises(RegistrationRefused):
        table.register(claim(N1, 0, term=5), 1)
    table.channel_closed("ch0", 0)
    table.register(claim(N1, 0, term=5), 2)  # nobody is listed: the word of a live node counts
    assert addresses(table)[0] == N1


def test_dead_leaders_term_is_kept_while_its_group_lives() -> None:
    table = group_of_three(term=5)
    table.register(claim(N1, 0, term=6, channel="ch1"), 1)
    table.channel_closed("ch1", 0)
    with pytest.raises(RegistrationRefused):
        table.register(claim(N0, 0, term=5, channel="ch0"), 2)
    assert 0 not in addresses(table)
    table.register(claim(N2, 0, term=7), 3)
    assert addresses(table)[0] == N2


def test_late_registration_of_a_node_does_not_undo_its_newer_one() -> None:
    table = group_of_three(term=5)
    table.register(claim(N1, 0, term=6), 1)
    with pytest.raises(RegistrationRefused):
        table.register(claim(N1, 2, term=5), 2)
    assert addresses(table)[0] == N1


def test_second_master_is_rejected_while_the_first_is_registered() -> None:
    """Neither says a term: sends would go to both in turns."""
    table = RouteTable()
    table.register(claim(N0, 0, channel="ch0"), 0)
    for _ in range(2):
        with pytest.raises(RegistrationRefused) as caught:
            table.register(claim(N1, 0, channel="ch1", topics=[topic("X")], version=V2), EXPIRY_MS)
        refused = caught.value
        assert (refused.code, refused.leader_address) == (ResponseCode.ILLEGAL_OPERATION, N0)
        assert str(refused).startswith(
            f"[OTHER_MASTER] {N1} registers as brokerId 0 of g, as {N0} does, which is there: "
        )
    assert addresses(table) == {0: N0}
    assert names(table) == ["A", "B"]
    table.register(claim(N0, 0, channel="ch0"), 1)
    table.register(claim(N1, 1, channel="ch1"), 1)  # a slave, which takes over later
    assert addresses(table) == {0: N0, 1: N1}


def test_slave_takes_over_as_in_apaches_dledger_groups() -> None:
    """Their terms are not told. The old leader may be cut off, and its connection linger."""
    table = RouteTable()
    table.register(claim(N0, 0, channel="ch0"), 0)
    table.register(claim(N1, 1, channel="ch1"), 0)
    table.register(claim(N1, 0, channel="ch1"), 1)
    assert addresses(table) == {0: N1}


@pytest.mark.parametrize("end", ["closed", "unregistered", "silent", "a slave now"])
def test_master_takes_over_after_the_first_is_gone(end: str) -> None:
    table = RouteTable()
    table.register(claim(N0, 0, channel="ch0"), 0)
    now_ms = 1
    if end == "closed":
        table.channel_closed("ch0", 1)
    elif end == "unregistered":
        table.unregister(N0, "g", 1)
    elif end == "silent":
        now_ms = EXPIRY_MS + 1  # its connection lingers, and nobody has looked at the clock yet
    else:
        table.register(claim(N0, 1, channel="ch0"), 1)
    table.register(claim(N1, 0, channel="ch1"), now_ms)
    assert addresses(table)[0] == N1


def test_master_elected_by_apaches_controller_replaces_the_previous() -> None:
    table = RouteTable()
    table.register(claim(N0, 0, version=DataVersion(9, 1, 5)), 0)
    table.register(claim(N1, 0, version=DataVersion(1, 2, 5)), 1)
    assert addresses(table) == {0: N1}
    assert why_refused(table, claim(N0, 0, version=DataVersion(9, 1, 6)), 2)


def test_replica_with_a_copied_id_and_no_term_is_rejected() -> None:
    """A copied dLegerSelfId and an empty store: no leader reaches it, so it knows no term."""
    table = group_of_three()
    stray = why_refused(table, claim(N3, 3, 4, channel="ch3"), 1)
    assert stray.startswith(f"[OTHER_REPLICA] {N3} registers as brokerId 3 of g in term 4, as {N2}")
    assert addresses(table) == {0: N0, 2: N1, 3: N2}
    table.register(claim(N2, 3, 5, channel="ch2"), 2)


def test_copy_of_a_replica_without_a_leader_is_rejected() -> None:
    """A whole machine or store was copied: it has the term, and no leader speaks to it."""
    table = group_of_three()
    copy = claim(N3, 3, 5, channel="ch3", follows=False)
    why = why_refused(table, copy, 1)
    assert why.startswith(f"[OTHER_REPLICA] {N3} registers as brokerId 3 of g in term 5 without a ")
    assert table.register(claim(N2, 3, 5, channel="ch2", follows=False), 2).changed is False
    assert why_refused(table, copy, 3), "an election is no occasion"
    table.channel_closed("ch2", 4)
    assert why_refused(table, copy, 5) == ""


@pytest.mark.parametrize("double_first", [True, False])
def test_replica_with_a_copied_id_of_the_leader_is_rejected(
    double_first: bool,
) -> None:
    table = RouteTable()
    double = claim(N3, 2, 0, channel="ch3", follows=False)
    if double_first:  # at a name server that was restarted
        table.register(double, 0)
    table.register(claim(N1, 0, 5, channel="ch1", own_id=2), 1)
    assert why_refused(table, double, 2).startswith(f"[OTHER_REPLICA] {N3} registers as brokerId 2")
    assert addresses(table) == {0: N1}
    moved = claim(N3, 2, 6, channel="ch3")  # its machine is gone, and the connection lingers
    assert why_refused(table, moved, 3) == ""
    assert addresses(table) == {0: N1, 2: N3}


@pytest.mark.parametrize("how", ["same term", "closed", "silent", "same address"])
def test_moved_replica_replaces_its_old_address(how: str) -> None:
    table = group_of_three()
    term, now_ms, address = 4, 1, N3
    if how == "same term":
        term = 5
    elif how == "closed":
        table.channel_closed("ch2", 1)
    elif how == "silent":
        now_ms = EXPIRY_MS + 1
    else:
        table.unregister(N2, "g", 1)
        address = N2
    table.register(claim(address, 3, term, channel="ch3"), now_ms)
    assert addresses(table)[3] == address


def test_routes_mark_raft_groups() -> None:
    """By the terms of their brokers, also while none of them leads; a master's group is none."""

    def told(table: RouteTable) -> object:
        return orjson.loads(finish(cluster_body(table)))["brokerAddrTable"]["g"].get("raftGroup")

    table = group_of_three()
    assert told(table) is True
    assert table.unregister(N0, "g", 0)
    assert told(table) is True
    pair = RouteTable()
    pair.register(claim(N0, 0), 0)
    pair.register(claim(N1, 1), 0)
    assert told(pair) is None
    pair.register(claim(N0, 0, 3), 0)  # the group was made a Raft group
    assert told(pair) is True


def test_group_may_restart_its_terms_when_all_its_brokers_are_gone() -> None:
    table = RouteTable()
    table.register(claim(N0, 0, term=9, channel="ch"), 0)
    table.channel_closed("ch", 0)
    assert table.group("g") is None
    assert names(table) == []
    table.register(claim(N0, 0, term=1), 1)
    assert addresses(table) == {0: N0}


def test_negative_broker_id_is_rejected() -> None:
    with pytest.raises(RegistrationRefused):
        RouteTable().register(claim(N0, -1), 0)


# --- two groups of one name


P, Q = "0a" * 16, "0b" * 16
Q0, Q1 = "10.0.1.1:10911", "10.0.1.2:10911"
BEFORE: dict[str, Any] = {"any_group": True}  # by a version that says no id


def group_with_an_id(term: int = 1) -> RouteTable:
    table = RouteTable()
    table.register(claim(N0, 0, term, channel="ch0", group_id=P), 0)
    table.register(claim(N1, 2, term, channel="ch1", group_id=P), 0)
    return table


def why_refused(table: RouteTable, wanted: Registration, now_ms: int = 0) -> str:
    try:
        table.register(wanted, now_ms)
    except RegistrationRefused as refused:
        return str(refused)
    return ""


def test_removed_group_cannot_register_again() -> None:
    """By its id, under any name; its name may be that of a new group. Only leaders are believed,
    and an unsigned report has no effect on a signed group."""
    table = RouteTable()
    table.register(claim(N0, 1, 1, broker_name="a", removed=(Q,)), 0)
    assert why_refused(table, claim(Q0, 0, 1, group_id=Q)) == ""
    table.register(claim(N0, 0, 1, broker_name="a", removed=(Q,)), 0)
    for name in ("g", "h"):
        refused = why_refused(table, claim(Q0, 0, 1, broker_name=name, group_id=Q))
        assert refused == f"[REMOVED] group id {Q} of {name} left the cluster"
    table.unregister(Q0, "g", 1)
    assert why_refused(table, claim(N1, 0, 1, group_id=P)) == ""
    assert why_refused(table, claim(Q0, 0, 1, broker_name="s", group_id=Q, signed=True)) == ""
    table.register(claim(N0, 0, 1, broker_name="a", removed=(Q,), signed=True), 0)
    again = claim(Q0, 0, 1, broker_name="s", group_id=Q, signed=True)
    assert why_refused(table, again).startswith("[REMOVED]")


def test_brokers_of_a_removed_group_leave_the_routes() -> None:
    """A name server that was away lists them until a leader reports the removal."""
    table = RouteTable()
    for number, address in enumerate((Q0, Q1)):
        table.register(claim(address, number, 1, channel=address, group_id=Q), 0)
        of_signed = {"broker_name": "s", "group_id": P, "signed": True}
        table.register(claim(f"s{number}:1", number, 1, **of_signed), 0)
    reporter = claim(N0, 0, 1, broker_name="a", removed=(P, Q))
    assert not table.register(reporter, 0).need_full
    assert set(table.queues("A") or ()) == {"a", "s"}
    assert table.channel_closed(Q0, 1) == []
    table.register(replace(reporter, signed=True), 0)
    assert set(table.queues("A") or ()) == {"a"}
    assert table.broker_count == table.signed_broker_count == 1


def test_remembered_removed_groups_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "REMOVED_GROUPS_MAX", 2)
    table = RouteTable()
    ids = [f"{number:032x}" for number in range(3)]
    table.register(claim(N0, 0, 1, broker_name="a", removed=tuple(ids)), 0)
    refused = [bool(why_refused(table, claim(Q0, 0, 1, group_id=one))) for one in ids]
    assert refused == [False, True, True]


@pytest.mark.parametrize("term", [0, 1, 3])
@pytest.mark.parametrize("broker_id", [0, 1, 2, 3])
def test_broker_of_another_group_id_is_rejected(broker_id: int, term: int) -> None:
    table = group_with_an_id()
    with pytest.raises(RegistrationRefused) as caught:
        stranger = claim(Q0, broker_id, term, group_id=Q, topics=[topic("X")], version=V2)
        table.register(stranger, 1)
    assert (caught.value.code, caught.value.leader_address) == (ResponseCode.ILLEGAL_OPERATION, N0)
    assert str(caught.value) == (
        f"[OTHER_GROUP] {Q0} is of group id {Q}; {N0} holds the name g for group id {P}: two "
        "groups must not share a brokerName, give one of them another"
    )
    assert addresses(table) == {0: N0, 2: N1}
    assert names(table) == ["A", "B"]
    assert why_refused(table, claim(N0, 0, 1, group_id=P)) == ""


@pytest.mark.parametrize("end", ["closed", "unregistered", "silent"])
def test_broker_name_is_free_when_all_its_brokers_are_gone(end: str) -> None:
    table = group_with_an_id(term=9)
    stranger = claim(Q0, 0, 1, group_id=Q)
    assert table.unregister(N0, "g", 1)
    refused = why_refused(table, stranger, 2)  # a replica that does not lead is enough
    assert refused.startswith(f"[OTHER_GROUP] {Q0} is of group id {Q}; {N1} holds")
    if end == "closed":
        table.channel_closed("ch1", 3)
    elif end == "unregistered":
        table.unregister(N1, "g", 3)
    else:
        table.expire(EXPIRY_MS + 1)
    assert why_refused(table, stranger, EXPIRY_MS + 2) == ""
    assert addresses(table) == {0: Q0}
    assert why_refused(table, claim(N0, 0, 9, group_id=P), EXPIRY_MS + 3).startswith("[OTHER_GR")


@pytest.mark.parametrize("upgraded", [[N1, N2, N0], [N0, N1, N2]])
def test_rolling_upgrade_mixes_brokers_with_and_without_group_id(upgraded: list[str]) -> None:
    """One replica after the other, each stopped first; whoever leads, of whichever version."""
    table, term, ids = RouteTable(), 5, {N0: 1, N1: 2, N2: 3}
    said = {address: dict(BEFORE) for address in ids}
    table.register(claim(N0, 0, term, channel=N0, **BEFORE), 0)
    for stopped in upgraded:
        table.channel_closed(stopped, 0)
        said[stopped] = {"group_id": P}
        term += 1
        leader = next(address for address in ids if address != stopped)
        for address, own_id in ids.items():
            number = 0 if address == leader else own_id
            now = claim(address, number, term, channel=address, **said[address])
            assert why_refused(table, now) == "", (stopped, address)
        assert addresses(table)[0] == leader
        assert len(addresses(table)) == 3
        assert why_refused(table, claim(Q0, 0, 99, group_id=Q)).startswith("[OTHER_GROUP]")
    for address, own_id in ids.items():  # and back to the version before
        now = claim(address, own_id, term + 1, channel=address, **BEFORE)
        assert why_refused(table, now) == ""


@pytest.mark.parametrize("broker_id", [0, 2, 3])
@pytest.mark.parametrize("term", [0, 5])
def test_broker_without_group_id_is_rejected_from_a_name_with_one(
    term: int, broker_id: int
) -> None:
    """A new group before its id is in its log; Apache's brokers, a classic master or slave."""
    table = group_with_an_id()
    refused = why_refused(table, claim(Q0, broker_id, term))
    assert refused.startswith(f"[OTHER_GROUP] {Q0} knows no group id; {N0} holds the name g for")
    assert addresses(table) == {0: N0, 2: N1}


def test_first_group_id_of_a_group_does_not_reject_its_own_replicas() -> None:
    """Replicas learn their first id one after the other, and register meanwhile."""
    table = group_of_three(term=5)
    assert why_refused(table, claim(N1, 2, 5, group_id=P)) == ""
    assert why_refused(table, claim(N0, 0, 5)) == ""
    assert why_refused(table, claim(N2, 3, 5)) == ""
    assert why_refused(table, claim(N2, 0, 6)).startswith("[OTHER_GROUP]")
    assert addresses(table) == {0: N0, 2: N1, 3: N2}


def test_broker_registered_before_its_group_id_is_dropped_on_mismatch() -> None:
    """A restarted name server knows nobody: the first group that says its id holds the name."""
    table = RouteTable()
    table.register(claim(Q0, 0, 7), 0)
    table.register(claim(Q1, 3, 7), 0)
    table.register(claim(N1, 2, 1, group_id=P), 0)
    assert addresses(table) == {0: Q0, 2: N1, 3: Q1}
    assert why_refused(table, claim(Q0, 0, 7, group_id=Q), 1).startswith("[OTHER_GROUP]")
    assert why_refused(table, claim(Q1, 3, 7, group_id=Q), 1).startswith("[OTHER_GROUP]")
    assert addresses(table) == {2: N1}
    assert why_refused(table, claim(N0, 0, 1, group_id=P), 2) == ""  # whatever term the other had
    assert addresses(table) == {0: N0, 2: N1}


def test_recreated_group_at_the_same_addresses_gets_its_name() -> None:
    """Its connections from before may be open still, to the name server."""
    table = group_with_an_id(term=9)
    assert why_refused(table, claim(N0, 0, 1, group_id=Q), 1).startswith("[OTHER_GROUP]")
    assert why_refused(table, claim(N1, 2, 1, group_id=Q), 1) == ""
    assert why_refused(table, claim(N0, 0, 1, group_id=Q), 2) == ""
    assert addresses(table) == {0: N0, 2: N1}


def test_broker_name_with_a_changed_group_id_is_accepted_and_reported() -> None:
    """Its stores may have been empty: a wrong path, a volume that was not mounted."""
    table = group_with_an_id()
    table.channel_closed("ch0", 1)
    table.channel_closed("ch1", 1)
    assert table.group("g") is None
    reported = [
        table.register(claim(address, broker_id, 1, group_id=Q), 2).group_id_before
        for address, broker_id in ((N1, 2), (N0, 0), (N1, 2))
    ]
    assert reported == [P, "", ""]
    other = table.register(claim("10.0.2.1:10911", 0, 1, broker_name="h", group_id=P), 2)
    assert other.group_id_before == ""


def test_remembered_group_ids_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "GROUP_IDS_MAX", 2)
    table = RouteTable()

    def told(name: str, group_id: str) -> str:
        brought = claim(N0, 0, 1, broker_name=name, group_id=group_id, channel="ch")
        before = table.register(brought, 0).group_id_before
        table.channel_closed("ch", 0)
        return before

    for name in ("a", "b", "a", "c"):
        assert told(name, P) == ""
    assert told("b", Q) == "", "named longest ago"
    assert told("c", Q) == P


# --- liveness


def test_closed_current_channel_removes_its_broker_at_once() -> None:
    table = group_of_three()
    assert [b.address for b in table.channel_closed("ch0", 0)] == [N0]
    assert addresses(table) == {2: N1, 3: N2}
    assert names(table) == ["A", "B"]
    assert table.channel_closed("ch0", 0) == []


def test_closed_older_channel_does_not_remove_its_broker() -> None:
    table = group_of_three()
    table.register(claim(N0, 0, 5, channel="ch0 again"), 1)
    assert table.channel_closed("ch0", 0) == []
    assert addresses(table)[0] == N0
    assert table.refresh(N1, "g", "ch1 again", 1)
    assert table.channel_closed("ch1", 0) == []
    assert [b.address for b in table.channel_closed("ch1 again", 0)] == [N1]


def test_closed_channel_of_a_replaced_leader_keeps_its_successor() -> None:
    table = group_of_three(term=5)
    table.register(claim(N1, 0, term=6, channel="ch1"), 1)
    table.channel_closed("ch0", 0)
    assert addresses(table) == {0: N1, 3: N2}


def test_silent_brokers_expire() -> None:
    table = group_of_three()
    table.refresh(N1, "g", "ch1", 1000)
    assert table.expire(EXPIRY_MS) == []
    assert sorted(b.address for b in table.expire(EXPIRY_MS + 1)) == [N0, N2]
    assert addresses(table) == {2: N1}
    assert table.expire(EXPIRY_MS + 1001)[0].channel == "ch1"
    assert table.group("g") is None
    assert names(table) == []
    assert table.broker_count == 0


def test_broker_may_name_its_own_time_out() -> None:
    table = RouteTable()
    table.register(claim(N0, 0, timeout_ms=500), 0)
    table.register(claim(N1, 1), 0)
    assert [b.address for b in table.expire(501)] == [N0]
    table.refresh(N1, "g", None, 600, timeout_ms=100)
    assert table.expire(700) == []
    assert [b.address for b in table.expire(701)] == [N1]


def test_unregistered_broker_leaves_the_table() -> None:
    table = group_of_three()
    assert not table.unregister(N0, "another group", 0)
    assert table.unregister(N0, "g", 0)
    assert not table.unregister(N0, "g", 0)
    assert addresses(table) == {2: N1, 3: N2}


def test_node_that_moves_to_another_group_leaves_the_first() -> None:
    table = group_of_three()
    table.register(claim(N2, 0, broker_name="h", topics=[topic("A")]), 1)
    assert addresses(table) == {0: N0, 2: N1}
    assert addresses(table, "h") == {0: N2}
    assert set(table.queues("A") or {}) == {"g", "h"}
    assert not table.refresh(N2, "g", None, 2)


def test_heartbeat_of_an_unknown_broker_is_rejected() -> None:
    table = group_of_three(term=5)
    assert not table.refresh("10.0.0.9:1", "g", None, 0)
    assert table.version_known("10.0.0.9:1", "g", 0) is None
    assert table.version_known(N0, "g", 0) == V1
    assert table.version_known(N1, "g", 2) == V1
    table.register(claim(N1, 0, term=6), 1)
    assert table.version_known(N0, "g", 0) is None  # it lost its place
    assert table.version_known(N1, "g", 2) is None  # it changed its id


# --- topics


def test_leaders_topic_table_replaces_the_groups() -> None:
    table = group_of_three()
    result = table.register(claim(N0, 0, 5, version=V2, topics=[topic("B", 8), topic("C")]), 1)
    assert result.changed
    assert names(table) == ["B", "C"]
    queues = table.queues("B")
    assert queues is not None
    assert queues["g"].read_queue_count == 8


def test_topics_of_another_group_are_kept() -> None:
    table = group_of_three()
    table.register(claim("10.0.1.1:1", 0, broker_name="h", topics=[topic("A"), topic("Z")]), 0)
    table.register(claim(N0, 0, 5, version=V2, topics=[topic("B")]), 1)
    assert names(table) == ["A", "B", "Z"]
    assert set(table.queues("A") or {}) == {"h"}


def test_followers_topic_table_counts_only_without_a_leaders() -> None:
    table = RouteTable()
    table.register(claim(N1, 2, topics=[topic("old")]), 0)
    assert names(table) == ["old"]
    table.register(claim(N2, 3, topics=[topic("older")]), 0)
    assert names(table) == ["old"]
    table.register(claim(N0, 0, topics=[topic("new")]), 0)
    assert names(table) == ["new"]
    table.register(claim(N1, 2, version=V3, topics=[topic("old")]), 0)
    assert names(table) == ["new"]


def test_unchanged_topic_table_is_not_requested() -> None:
    table = RouteTable()
    assert table.wants_topics("g", N0, 0, V1)
    table.register(claim(N0, 0, 5), 0)
    assert not table.wants_topics("g", N0, 0, V1)
    assert table.wants_topics("g", N0, 0, V2)
    assert not table.wants_topics("g", N1, 2, V2)
    assert table.wants_topics("g", N1, 0, V1)  # a new leader's table is always looked at
    before = table.topics_version
    assert not table.register(claim(N0, 0, 5, topics=None), 1).changed
    assert table.topics_version == before
    assert names(table) == ["A", "B"]


def test_delta_on_the_known_version_is_merged() -> None:
    table = group_of_three()
    delta = [topic("C"), topic("A", 16), topic("B", 0)]
    result = table.register(claim(N0, 0, 5, version=V2, topics=delta, delta_base=V1), 1)
    assert (result.changed, result.need_full) == (True, False)
    assert names(table) == ["A", "C"]
    queues = table.queues("A")
    assert queues is not None
    assert queues["g"].write_queue_count == 16
    assert table.version_known(N0, "g", 0) == V2


def test_repeated_delta_changes_nothing() -> None:
    table = group_of_three()
    delta = claim(N0, 0, 5, version=V2, topics=[topic("B", 0)], delta_base=V1)
    table.register(delta, 1)
    result = table.register(delta, 2)
    assert (result.changed, result.need_full) == (False, False)
    assert names(table) == ["A"]


def test_delta_on_another_version_requests_the_full_table() -> None:
    table = group_of_three()
    result = table.register(claim(N0, 0, 5, version=V3, topics=[topic("C")], delta_base=V2), 1)
    assert result.need_full
    assert names(table) == ["A", "B"]
    assert table.version_known(N0, "g", 0) == V1  # 322 goes on saying "changed"
    assert len(table.expire(EXPIRY_MS + 1)) == 2  # but it counted as a sign of life:
    assert addresses(table) == {0: N0}
    full = table.register(claim(N0, 0, 5, version=V3, topics=[topic("C")]), EXPIRY_MS)
    assert not full.need_full
    assert names(table) == ["C"]


def test_delta_to_an_empty_name_server_requests_the_full_table() -> None:
    table = RouteTable()
    result = table.register(claim(N0, 0, 5, version=V2, delta_base=V1), 0)
    assert result.need_full
    assert addresses(table) == {0: N0}
    assert names(table) == []


def test_new_leader_may_continue_with_deltas() -> None:
    table = group_of_three(term=5)
    delta = claim(N1, 0, 6, version=V2, topics=[topic("C")], delta_base=V1)
    assert not table.register(delta, 1).need_full
    assert names(table) == ["A", "B", "C"]


def test_single_topic_of_an_apache_broker_is_added_to_its_table() -> None:
    """It registers a topic just made alone, and its whole table without saying so."""
    table = RouteTable()
    table.register(claim(N0, 0, 0, topics=[topic("A"), topic("B")], complete=False), 0)
    table.register(claim(N0, 0, 0, version=V2, topics=[topic("C")], complete=False), 1)
    assert names(table) == ["A", "B", "C"]
    assert table.wants_topics("g", N0, 0, V2)  # what comes next may tell more
    table.register(claim(N0, 0, 0, version=V2, topics=[topic("A", 16)], complete=False), 2)
    queues = table.queues("A")
    assert queues is not None
    assert queues["g"].write_queue_count == 16


def test_topics_deleted_by_hand() -> None:
    table = group_of_three()
    table.register(claim("10.0.1.1:1", 0, broker_name="h", cluster="d"), 0)
    assert table.delete_topic("A", "d") == 1
    assert set(table.queues("A") or {}) == {"g"}
    assert table.delete_topic("A") == 1
    assert table.queues("A") is None
    assert table.delete_topic("A") == 0
    assert names(table) == ["B"]


def test_write_permission_of_a_group_is_changed() -> None:
    table = group_of_three()
    assert table.set_writable("g", False) == 2
    queues = table.queues("A")
    assert queues is not None
    assert queues["g"].perm == 4
    assert table.set_writable("g", True) == 2
    assert (table.queues("A") or {})["g"].perm == 6
    assert table.set_writable("nobody", False) == 0


# --- limits


def test_brokers_are_limited_in_number() -> None:
    table = RouteTable(RouteLimits(brokers_max=2))
    table.register(claim(N0, 0), 0)
    table.register(claim(N1, 1), 0)
    with pytest.raises(RegistrationRefused, match="TABLE_FULL"):
        table.register(claim(N2, 2), 0)
    table.register(claim(N1, 1), 1)  # who is in may stay
    assert addresses(table) == {0: N0, 1: N1}


def test_brokers_per_group_are_limited() -> None:
    table = RouteTable()
    for number in range(BROKERS_PER_GROUP_MAX):
        table.register(claim(f"n{number}:1", number), 0)
    with pytest.raises(RegistrationRefused, match=r"\[TABLE_FULL\] g has 128 brokers"):
        table.register(claim("n500:1", 500), 0)
    table.register(claim("n500:1", 5), 0)  # in the place of another
    table.unregister("n7:1", "g", 0)
    table.register(claim("n501:1", 501), 0)


def test_topics_are_limited_and_a_rejection_changes_nothing() -> None:
    table = RouteTable(RouteLimits(topics_max=3))
    table.register(claim(N0, 0, topics=[topic("A"), topic("B"), topic("C")]), 0)
    with pytest.raises(RegistrationRefused, match="TABLE_FULL") as caught:
        table.register(claim(N1, 0, 1, version=V2, topics=[topic("A"), topic("D")]), 1)
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    assert addresses(table) == {0: N0}
    assert names(table) == ["A", "B", "C"]
    table.register(claim(N0, 0, version=V2, topics=[topic("A"), topic("C")]), 1)
    table.register(claim(N0, 0, version=V3, topics=[topic("A"), topic("D")]), 1)
    assert names(table) == ["A", "D"]


def test_topic_entries_are_counted_per_group() -> None:
    table = RouteTable(RouteLimits(topics_max=10, topic_entries_max=4))
    two, three = [topic("A"), topic("B")], [topic("A"), topic("B"), topic("C")]
    table.register(claim("n0:1", 0, broker_name="g", topics=two), 0)
    table.register(claim("n1:1", 0, broker_name="h", topics=two), 0)
    assert table.topic_entry_count == 4
    with pytest.raises(RegistrationRefused, match="limit of 4 topics of groups"):
        table.register(claim("n2:1", 0, broker_name="i", topics=[topic("A")]), 0)
    assert table.group("i") is None
    with pytest.raises(RegistrationRefused, match="TABLE_FULL"):
        table.register(claim("n1:1", 0, broker_name="h", topics=three, version=V2), 0)
    with pytest.raises(RegistrationRefused, match="TABLE_FULL"):
        table.put_queues("g", topic("C"))
    table.put_queues("g", topic("A", 9))
    table.unregister("n1:1", "h", 0)
    table.put_queues("g", topic("C"))
    assert table.topic_entry_count == 3


def test_http_addresses_and_watchers() -> None:
    table, seen = RouteTable(), []
    table.watch(lambda group: seen.append(dict(group.addresses)))
    table.register(claim("n0:1", 0, 1, http_address="n0:5"), 0)
    table.register(claim("n1:1", 2, 1, http_address="n1:5"), 0)
    table.register(claim("n1:1", 2, 1, http_address="n1:5"), 0)  # nothing new, nobody told
    assert seen == [{0: "n0:1"}, {0: "n0:1", 2: "n1:1"}]
    assert {live.http_address for live in table.brokers("g")} == {"n0:5", "n1:5"}
    table.register(claim("n1:1", 0, 2), 0)  # deposes n0, and has no node API any more
    result = {live.address: live.http_address for live in table.brokers("g")}
    assert result == {"n0:1": "n0:5", "n1:1": ""}
    table.unregister("n1:1", "g", 0)
    assert seen[2:] == [{0: "n1:1"}, {}]


# --- changes of many topics, in steps


class Worker:
    """Makes the table's changes when it is asked to."""

    def __init__(self, table: RouteTable) -> None:
        self.steps: list[Steps[None]] = []
        table.run_with(self.steps.append)

    def work(self) -> int:
        """Make all that there are; return the steps."""
        return sum(1 for steps in iter(lambda: self.steps.pop() if self.steps else None, None)
                   for _ in steps)  # fmt: skip


def many(count: int, prefix: str = "t") -> list[TopicConfig]:
    return [topic(f"{prefix}{number}") for number in range(count)]


def test_many_topics_change_in_steps_and_addresses_at_once() -> None:
    table = RouteTable()
    worker = Worker(table)
    made = table.register(claim(N0, 0, 5, topics=many(10_000)), 0)
    assert made.topics is not None and not made.topics.done and made.changed
    assert addresses(table) == {0: N0}
    assert table.topic_count <= routes.STEPS_AT_ONCE * routes.TOPICS_PER_STEP
    later = table.register(claim(N1, 0, 6, topics=[topic("small")], version=V2), 1)
    assert addresses(table) == {0: N1} and later.topics is not None, "behind the first"
    delta = claim(N1, 0, 6, topics=[topic("more")], version=V3, delta_base=V2)
    assert table.register(delta, 2).need_full
    assert worker.work() >= 10_000 // routes.TOPICS_PER_STEP
    assert (later.topics.done, later.topics.changed) == (True, True)
    assert names(table) == ["small"] and table.topic_entry_count == table.topic_count == 1
    assert not table.register(delta, 3).need_full


def test_removed_group_loses_its_routes_at_once_and_its_topics_in_steps() -> None:
    table = RouteTable()
    worker = Worker(table)
    table.register(claim(N0, 0, topics=many(5_000)), 0)
    worker.work()
    version = table.topics_version
    assert table.unregister(N0, "g", 1)
    assert names(table) == [] and table.queues("t7") is None and not table.has_topic("t7")
    assert table.topics_version > version and table.topic_count > 0
    # The name comes back before the topics of the group before are gone.
    table.register(claim(N1, 0, topics=[topic("t7"), topic("own")]), 2)
    assert names(table) == ["own", "t7"]
    assert worker.work() >= (5_000 - 300) // routes.TOPICS_PER_STEP
    assert names(table) == ["own", "t7"] and table.topic_entry_count == table.topic_count == 2


def test_group_may_be_removed_while_its_topics_change() -> None:
    table = RouteTable()
    worker = Worker(table)
    made = table.register(claim(N0, 0, topics=many(5_000), channel="ch0"), 0)
    started = routes.STEPS_AT_ONCE * routes.TOPICS_PER_STEP
    assert table.set_writable("g", False) == started and table.under_way("g") is not made.topics
    assert len(table.channel_closed("ch0", 1)) == 1
    assert made.topics is not None and made.topics.done and names(table) == []
    worker.work()
    assert table.topic_entry_count == table.topic_count == 0


def test_topic_table_without_a_version_is_known_by_its_bytes() -> None:
    """Apache's brokers send all of it every 30 s."""
    table = RouteTable()
    complete: dict[str, Any] = {"complete": False, "digest": b"1"}

    def wanted(address: str = N0, digest: bytes = b"1") -> bool:
        return table.wants_topics("g", address, 0, V1, digest=digest)

    assert wanted()
    table.register(claim(N0, 0, **complete), 0)
    assert not wanted() and wanted(digest=b"2")
    assert not wanted(N1)  # the same bytes of another replica
    for change in (
        lambda: table.set_writable("g", False),
        lambda: table.delete_topic("A"),
        lambda: table.put_queues("g", topic("C")),
        lambda: table.register(claim(N0, 0, complete=False, digest=b"2", topics=[topic("D")]), 1),
    ):
        table.register(claim(N0, 0, **complete), 1)
        assert not wanted()
        change()
        assert wanted(), "it would bring back what was changed"
