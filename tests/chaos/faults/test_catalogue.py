"""The catalogue, where every kind is complete, has its obstacles, and can be wished for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raftmq.chaos.cluster.cluster import Cluster
from raftmq.chaos.cluster.clusterfile import ClusterError, ClusterState, save_state
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed
from raftmq.chaos.faults.base import FAMILIES, Context, Kind, Planned
from raftmq.chaos.faults.catalogue import NEEDS, REGISTRY, find, make, parse_wish, rows, unavailable
from raftmq.chaos.faults.plan import Want
from raftmq.chaos.faults.select import SELECTORS
from raftmq.chaos.history.files import HistoryWriter


def state(shape: Shape) -> ClusterState:
    return plan(shape, {}, "127.0.0.1", range(10_000, 10_000 + ports_needed(shape)))


@pytest.mark.parametrize("name", REGISTRY)
def test_fault_kind_has_every_field(name: str) -> None:
    kind, _ = REGISTRY[name]
    assert kind.name == name and re.fullmatch(r"[a-z][a-z-]+", name)
    assert kind.family in FAMILIES
    assert kind.description and not kind.description.endswith(".")
    assert kind.whom and set(kind.whom) <= set(SELECTORS)
    assert kind.needs <= set(NEEDS)
    assert 0 < kind.lasts_s[0] <= kind.lasts_s[1]
    assert all(low <= high for low, high in kind.params.values())


@pytest.mark.parametrize(
    ("kind", "shape", "words"),
    [
        ("kill", Shape(), None),
        ("cut-node", Shape(), "takes no proxies"),
        ("cut-node", Shape(links=True), None),
        ("transfer", Shape(), None),
        ("transfer", Shape("2m-2s-async"), "mode 2m-2s-async"),
        ("transfer", Shape("pysyncobj"), "mode pysyncobj"),
        ("namesrv-down", Shape(namesrv="1.2.3.4:9876"), "is not this cluster's own"),
        ("namesrv-down", Shape(), None),
        ("namesrv-cut", Shape(), "takes no proxies"),
    ],
)
def test_unavailable_fault_reports_the_obstacle(kind: str, shape: Shape, words: str | None) -> None:
    result = unavailable(find(kind), state(shape))
    assert result is None if words is None else words in (result or "")


def test_fault_kind_may_fit_some_modes_only() -> None:
    only = Kind("x", "process", "x", ("all",), modes=frozenset({"raft", "single"}))
    assert unavailable(only) is None and unavailable(only, state(Shape())) is None
    assert "for raft, single" in (unavailable(only, state(Shape("async"))) or "")


def test_catalogue_rows_list_every_kind_by_family() -> None:
    result = rows(state(Shape()))
    assert {row.kind.name for row in result} == set(REGISTRY)
    families = [FAMILIES.index(row.kind.family) for row in result]
    assert families == sorted(families)
    cannot = {row.kind.name: row.cannot for row in result}
    assert cannot["kill"] == "" and cannot["delay"]
    assert {row.kind.name: row.cannot for row in rows()}["delay"] == ""  # no cluster, no reason


def test_fault_wishes_are_parsed() -> None:
    kill, delay, cut = find("kill"), find("delay"), find("one-way-in")
    assert parse_wish("kill") == (Want(kill),)
    assert parse_wish("kill:n2,for=3") == (Want(kill, "n2", 3.0),)
    assert parse_wish("delay:follower, delay_ms=80, jitter_ms = 2") == (
        Want(delay, "follower", 0.0, {"delay_ms": 80.0, "jitter_ms": 2.0}),
    )
    assert parse_wish("one-way-in:leader + kill:follower") == (
        Want(cut, "leader"),
        Want(kill, "follower"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kil:leader", "no fault 'kil'; there are"),
        ("", "no fault ''"),
        ("kill+", "no fault ''"),
        ("kill,for", "expected NAME=VALUE, found 'for'"),
        ("kill,for=soon", "for must be a number, not 'soon'"),
        ("kill,for=-1", "in the past"),
        ("kill,rate=3", "kill has no rate; it has for"),
        ("delay,rate=3", "delay has no rate; it has for, delay_ms, jitter_ms"),
    ],
)
def test_malformed_fault_wishes_are_rejected(text: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        parse_wish(text)


def test_unavailable_fault_is_not_made(tmp_path: Path) -> None:
    save_state(tmp_path, state(Shape()))
    with HistoryWriter(tmp_path / "h.jsonl") as history:
        context = Context(Cluster(tmp_path), history)
        with pytest.raises(ClusterError, match="cut-node: the cluster's traffic takes no proxies"):
            make(Planned(1, 0, 1, "cut-node", "leader", 0.0), context)
        fault = make(Planned(1, 0, 1, "kill", "leader", 0.0), context)
        assert fault.describe() == "kill -9 of leader, started again later"
