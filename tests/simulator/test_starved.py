"""A leader is kept on starved machines; and the checker finds the ones that keep none."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.dledger.core import RaftCore
from raftmq.dledger.electionbackoff import ElectionBackOff
from tests.simulator.checks import CheckFailed
from tests.simulator.starved import Restless, Slow, StarvedNode, StarvedWorld

SEEDS = range(3)


class Hardened(ElectionBackOff):
    """Learns nothing: the time-outs stay what is configured."""

    __slots__ = ()

    def mistaken(self) -> None: ...


class Unforgiving(ElectionBackOff):
    """Never goes back to the time-outs that are configured."""

    __slots__ = ()

    def heard(self, now_ms: float, silent_ms: float) -> None: ...


class ImpatientCore(RaftCore):
    __slots__ = ()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.timer.back_off = Hardened(self.config.election_ms_min, self.config.election_ms_max)


class UnforgivingCore(RaftCore):
    __slots__ = ()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.timer.back_off = Unforgiving(self.config.election_ms_min, self.config.election_ms_max)


CASES = (
    pytest.param(Slow.PROCESSES, StarvedNode, id="processes"),
    # As if a core's shell did not know when it is kept from running.
    pytest.param(Slow.PROCESSES, Restless, id="processes-unattended"),
    pytest.param(Slow.MESSAGES, StarvedNode, id="messages"),
)


@pytest.mark.parametrize(("slow", "node_class"), CASES)
def test_a_leader_is_kept_and_the_next_failover_is_as_fast_as_ever(
    slow: Slow, node_class: type[StarvedNode]
) -> None:
    for seed in SEEDS:
        numbers = StarvedWorld(seed, slow, node_class=node_class).run()
        assert numbers["acknowledged"] > 0
        attended = slow is Slow.PROCESSES and node_class is StarvedNode
        assert (numbers["back_off"] == 1) == attended  # it was needed, or was not


@pytest.mark.parametrize(("slow", "node_class"), CASES[1:])
def test_with_fixed_time_outs_none_is(slow: Slow, node_class: type[StarvedNode]) -> None:
    for seed in SEEDS:
        with pytest.raises(CheckFailed, match="no leader is kept"):
            StarvedWorld(seed, slow, ImpatientCore, node_class=node_class).run()


def test_attention_alone_keeps_it_where_processes_are_slow() -> None:
    StarvedWorld(0, Slow.PROCESSES, ImpatientCore).run()


def test_whoever_forgives_nothing_fails_over_late() -> None:
    with pytest.raises(CheckFailed, match="no failover in the configured time"):
        StarvedWorld(0, Slow.PROCESSES, UnforgivingCore, node_class=Restless).run()
