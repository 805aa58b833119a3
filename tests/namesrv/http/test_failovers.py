"""Events of several processes, in whatever order they arrive, as failovers."""

import random
from typing import Any

from raftmq.namesrv.http.failovers import MARKS_MAX, failovers, last_of


def event(kind: str, at: int, node: str = "", term: int = 0, **detail: Any) -> dict[str, Any]:
    return {"kind": kind, "group": "g", "node": node, "term": term, "at": at, "detail": detail}


def route(at: int, leader: str | None, term: int = 0, follower: str = "n1:1") -> dict[str, Any]:
    addresses = {"2": follower} | ({"0": leader} if leader else {})
    return event("routeChanged", at, "", term, leader=leader, addresses=addresses)


START = [
    event("electionStarted", 100, "n0", 1),
    event("roleChanged", 140, "n0", 1, role="leader"),
    event("roleChanged", 150, "n0", 1, role="leader", ready=True),
    route(155, "n0:1", 1),
    route(160, "n0:1", 1),  # a follower has registered
]
KILLED = [
    route(1000, None, 1),
    event("electionStarted", 1020, "n2", 2),
    event("electionStarted", 1025, "n1", 2),
    event("roleChanged", 1040, "n2", 2, role="leader"),
    event("roleChanged", 1052, "n2", 2, role="leader", ready=True),
    route(1060, "n2:1", 2),
]


def test_failover_of_a_killed_leader() -> None:
    result = failovers("g", START + KILLED)
    assert len(result) == 2
    last = result[1].as_fields()
    assert (last["oldLeader"], last["newLeader"], last["term"]) == ("n0", "n2", 2)
    assert (last["startedAt"], last["durationMs"], last["complete"]) == (1000, 60, True)
    assert [(m["what"], m["sinceMs"], m["node"]) for m in last["marks"]] == [
        ("leaderLost", 0, "n0:1"),
        ("electionStarted", 20, "n2"),
        ("electionStarted", 25, "n1"),
        ("elected", 40, "n2"),
        ("leaderReady", 52, "n2"),
        ("routeChanged", 60, "n2:1"),
    ]
    assert result[0].as_fields()["oldLeader"] == ""
    assert last_of([]) is None


def test_failover_does_not_depend_on_the_order_of_events() -> None:
    expected = [one.as_fields() for one in failovers("g", START + KILLED)]
    for seed in range(20):
        shuffled = START + KILLED
        random.Random(seed).shuffle(shuffled)
        assert [one.as_fields() for one in failovers("g", shuffled)] == expected, seed


def test_failover_is_incomplete_until_a_leader_is_ready() -> None:
    (_, open_one) = failovers("g", START + KILLED[:4])
    fields = open_one.as_fields()
    assert (fields["complete"], fields["durationMs"], fields["newLeader"]) == (False, None, "n2")


def test_failover_of_a_partitioned_leader_and_of_a_planned_transfer() -> None:
    cut = [*START, *KILLED[1:]]  # its connection to the name server stays
    assert next(m.what for m in failovers("g", cut)[1].marks) == "electionStarted"
    planned = [*START, event("transfer", 900, "n0", 1, target="n2"), *KILLED[1:]]
    # n0 registers as a follower before n2 does as the leader.
    planned.insert(-1, route(1055, None, 2, "n0:1"))
    assert len(failovers("g", planned)) == 2
    last = failovers("g", planned)[1].as_fields()
    assert last["planned"]
    assert (last["marks"][0]["what"], last["durationMs"]) == ("transfer", 160)


def test_leader_loss_reported_after_the_election_belongs_to_the_failover() -> None:
    for at, position in ((1045, 3), (1055, 4)):  # elected; ready
        late = [*START, *KILLED[1:], route(at, None, 2)]
        result = failovers("g", late)
        assert len(result) == 2
        marks = [mark.what for mark in result[1].marks]
        assert marks.index("leaderLost") == position
        assert marks[-1] == "routeChanged" and result[1].old_leader == "n0"


def test_registrations_and_late_candidates_are_no_failover() -> None:
    assert failovers("g", [route(5, "n0:1", 3), route(9, "n0:1", 3)]) == []
    late = [*START, event("electionStarted", 170, "n1", 1)]
    assert len(failovers("g", late)) == 1
    assert failovers("h", START) == []


def test_second_leader_loss_before_the_route_change_is_a_new_failover() -> None:
    twice = [*START, *KILLED[:5], event("electionStarted", 1100, "n1", 3),
             event("roleChanged", 1130, "n1", 3, role="leader", ready=True)]  # fmt: skip
    result = failovers("g", twice)
    assert [(one.old_leader, one.new_leader, one.term) for one in result] == [
        ("", "n0", 1), ("n0", "n2", 2), ("n2", "n1", 3)
    ]  # fmt: skip


def test_failover_marks_of_endless_elections_are_limited() -> None:
    split = [event("electionStarted", 1000 + n, "n1", 2 + n) for n in range(MARKS_MAX + 10)]
    assert len(failovers("g", START + split)[1].marks) == MARKS_MAX
