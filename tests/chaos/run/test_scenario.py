"""Scenarios are data, which parse, plan, and name the features that a cluster lacks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from raftmq.chaos.cluster.clusterfile import ClusterError, ClusterState
from raftmq.chaos.cluster.topology import Shape, plan, ports_needed
from raftmq.chaos.faults import power
from raftmq.chaos.run.nemesis import simultaneous
from raftmq.chaos.run.scenario import SCENARIOS, find_scenario, make_plan, split_available


def state_of(shape: Shape) -> ClusterState:
    ports = range(20_000, 20_000 + 4 * ports_needed(shape), 4)
    return plan(shape, {}, "127.0.0.1", ports)


@pytest.mark.parametrize("name", SCENARIOS)
def test_raft_cluster_can_run_every_scenario(name: str) -> None:
    scenario = find_scenario(name)
    links = "links" in scenario.needs()
    can, cannot = split_available(scenario, state_of(Shape("raft", links=links, faultable=True)))
    if "loop-device" in scenario.needs() and (reason := power.unavailable()) is not None:
        assert all(text.endswith(reason) for text in cannot), cannot
        return
    assert len(can) == len(scenario.wishes)
    assert cannot == []
    result = make_plan(7, can, 5.0, 2)
    assert result == make_plan(7, can, 5.0, 2)
    assert len(result) == 2 * sum(len(parts) for parts in can)
    assert result != make_plan(8, can, 5.0, 2)


def test_faults_unavailable_in_a_mode_are_reported() -> None:
    state = state_of(Shape("pysyncobj", links=True, faultable=True))
    can, cannot = split_available(find_scenario("planned"), state)
    assert len(can) == 2
    assert len(cannot) == 1
    assert cannot[0].startswith("transfer: ")


def test_fault_names_are_a_scenario() -> None:
    result = find_scenario("kill:leader delay:follower+pause:leader")
    assert [len(parts) for parts in result.wants()] == [1, 2]
    assert result.needs() == {"links"}


@pytest.mark.parametrize("text", ["nonsense", "kill:leader nonsense", "kill,for=soon", " "])
def test_malformed_scenario_is_rejected(text: str) -> None:
    with pytest.raises(ClusterError):
        find_scenario(text)


def test_plan_has_the_rounds_that_fit_and_at_least_one() -> None:
    wants = find_scenario("failover").wants()
    assert len(make_plan(1, wants, 1.0, None)) == 7
    assert len(make_plan(1, wants, 0.05, None)) == 1
    with pytest.raises(ClusterError, match="does not fit"):
        make_plan(1, find_scenario("pause:leader,for=30").wants(), 0.1, 1)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name.startswith("jepsen-")])
def test_each_jepsen_schedule_fits_into_a_minute(name: str) -> None:
    """As in `mqchaos run` without options, fully determined by a seed."""
    wants = find_scenario(name).wants()
    result = make_plan(3, wants, 1.0, None)
    assert result == make_plan(3, wants, 1.0, None)
    assert {(p.kind, p.whom) for p in result} == {
        (want.kind.name, want.whom or want.kind.whom[0]) for parts in wants for want in parts
    }


def test_overlapping_faults_are_injected_together() -> None:
    wants = find_scenario("kill:leader delay:follower,for=3+pause:leader").wants()
    groups = simultaneous(make_plan(3, wants, 1.0, 2))
    assert sorted(len(group) for group in groups) == [1, 1, 2, 2]
    for before, after in pairwise(groups):
        assert max(p.at_s + p.for_s for p in before) <= min(p.at_s for p in after)


@pytest.mark.parametrize("wish", ["transfer:follower+kill:leader", "rolling-restart+delay:leader"])
def test_parts_of_a_wish_are_together_although_the_first_ends_at_once(wish: str) -> None:
    groups = simultaneous(make_plan(1, find_scenario(f"{wish} pause:leader").wants(), 1.0, 2))
    written = ["+".join(f"{p.kind}:{p.whom}" for p in group) for group in groups]
    assert sorted(written) == sorted([wish.replace("restart+", "restart:all+"), "pause:leader"] * 2)
