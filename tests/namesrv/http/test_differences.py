"""Differences between replicas' views, told in words."""

from typing import Any

import orjson
import pytest

from raftmq.namesrv.http.differences import FRAMES_APART_MAX, findings
from raftmq.web.schema import to_json

MEMBERS = [{"id": n, "address": f"{n}:9", "role": "voter"} for n in ("n0", "n1", "n2")]


def view(name: str, **more: Any) -> dict[str, Any]:
    node: dict[str, Any] = {
        "name": name,
        "mode": "raft",
        "engine": "dledger",
        "version": "0.1.0",
        "role": "follower",
        "term": 5,
        "leader": "n0",
        "leaderReady": False,
        "commitIndex": 1000,
        "appliedIndex": 1000,
        "recovered": True,
        "members": MEMBERS,
        "disk": {"state": "ok"},
    }
    if name == "n0":
        node |= {"role": "leader", "leaderReady": True}
    return {"address": f"{name}:1", "name": name, "node": node | more, "error": None}


def text(*brokers: dict[str, Any], route: str = "n0:1") -> list[str]:
    return [finding.text for finding in findings("g", brokers, route)]


def test_equal_replica_views_have_no_findings() -> None:
    assert text(view("n0"), view("n1"), view("n2")) == []
    behind = view("n1", commitIndex=1000 - FRAMES_APART_MAX, appliedIndex=800)
    assert text(view("n0"), behind, view("n2")) == []


CASES = [
    ({"n1": {"role": "leader", "leaderReady": True}},
     "g: n0 and n1 both say that they lead in term 5"),
    ({"n1": {"role": "leader", "leaderReady": True, "term": 4, "leader": "n1"}},
     "g: n1 still takes itself for the leader of term 4; n0 leads in term 5"),
    ({"n2": {"term": 7}}, "g: replicas are in different terms (n0 and n1 5, n2 7)"),
    ({"n2": {"leader": "n1"}}, "g: replicas follow different leaders (n0 and n1 n0, n2 n1)"),
    ({"n2": {"leader": None}}, "g: n2 knows of no leader"),
    ({"n2": {"commitIndex": 799, "appliedIndex": 799}}, "g: n2's commit is 201 frames behind"),
    ({"n2": {"appliedIndex": 1}}, "g: n2 has 999 committed frames still to apply"),
    ({"n2": {"members": MEMBERS[:2]}},
     "g: replicas know different members. n0 and n1: n0 (voter), n1 (voter), n2 (voter); "
     "n2: n0 (voter), n1 (voter)"),
    ({"n2": {"logStart": "the log begins at 9, the master's at 0"}},
     "g: n2 lacks older messages of its master: the log begins at 9, the master's at 0"),
    ({"n2": {"disk": {"state": "full", "reason": "no room"}}},
     "g: the disk of n2 is full: no room"),
    ({"n2": {"recovered": False, "recovering": "vote file damaged"}},
     "g: n2 may have lost promises and does not vote: vote file damaged"),
    ({"n2": {"version": "0.2.0"}},
     "g: replicas run different versions (n0 and n1 0.1.0, n2 0.2.0)"),
    ({"n0": {"leaderReady": False}}, "g: n0 leads but is not ready: sends have to wait"),
    ({"n0": {"role": "follower"}}, "g: no replica says that it leads"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), CASES)
def test_each_difference_of_replica_views_is_a_finding(
    changes: dict[str, Any], expected: str
) -> None:
    group = [view(name, **changes.get(name, {})) for name in ("n0", "n1", "n2")]
    assert expected in text(*group)


def test_findings_for_silent_replicas_and_the_route() -> None:
    gone = {"address": "n2:1", "name": "n2", "node": None, "error": "no connection: refused"}
    assert text(view("n0"), view("n1"), gone) == ["g: n2 does not answer (no connection: refused)"]
    assert text(view("n0"), route="n1:1") == [
        "g: n0 leads, but this name server sends clients to n1:1"
    ]
    assert text(view("n0"), route="") == ["g: n0 leads, but this name server knows no leader"]


def test_findings_are_ordered_by_severity_and_name_field_and_nodes() -> None:
    group = [view("n0"), view("n1", version="9"), view("n2", disk={"state": "failed"}, term=4)]
    result = findings("g", group, "n0:1")
    assert [finding.severity for finding in result] == ["critical", "warning", "notice"]
    assert [(finding.field, finding.nodes) for finding in result] == [
        ("disk", ("n2",)), ("term", ("n2",)), ("version", ("n1",))
    ]  # fmt: skip
    assert orjson.loads(to_json(result[0]))["nodes"] == ["n2"]


def test_classic_groups_have_no_term_findings() -> None:
    master = view("m", mode="classic", role="master", term=0, leader=None)
    slave = view("s", mode="classic", role="slave", term=0, leader=None, commitIndex=0)
    assert text(master, slave, route="m:1") == []
    assert text(slave, route="") == ["g: no replica says that it leads"]
