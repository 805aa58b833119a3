"""Popped messages that are lost, redelivered or early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.history.events import HistoryError
from tests.chaos.builder import HistoryBuilder
from tests.chaos.checks.judging import OFFSETS, check, failed, suite_of

LOST = "popped and lost"
AGAIN = "popped again though acknowledged"
EARLY = "popped before its time"
W: dict[str, Any] = {"work": "pop"}
DEAD: dict[str, Any] = {"work": "pop", "topic": "%DLQ%G"}


def clean() -> HistoryBuilder:
    """`fine` is acknowledged, `twice` the second time, `soon` gets a new time, `dead` is given
    up."""
    plant = HistoryBuilder()
    for name in ("fine", "twice", "soon", "dead"):
        plant.posted(name, **W)
        plant.popped(name)
    plant.pop_ended("fine")
    plant.pop_ended("soon", what="change", invisible_ms=100)
    plant.wait(0.2)
    plant.popped("soon", times=1)
    plant.pop_ended("soon")
    plant.wait(1.5)
    plant.popped("twice", times=1)
    plant.pop_ended("twice")
    plant.delivered("dead", 0, times=1, **DEAD)
    return plant


def end(plant: HistoryBuilder) -> HistoryBuilder:
    plant.drained()
    return plant


def test_clean_pop_history_passes() -> None:
    results = {c.name: c.verdict for c in suite_of(end(clean()).records).results()}
    assert results == dict.fromkeys((LOST, AGAIN, EARLY), Verdict.PASS)


def never_popped(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)


def void_and_never_again(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.popped("x")
    plant.pop_ended("x", "fail")


def again_after_its_acknowledgement(plant: HistoryBuilder) -> None:
    plant.wait(5)
    plant.popped("fine", times=1)


def two_at_once(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.popped("x")
    plant.wait(0.5)
    plant.popped("x", process="consumer-1")
    plant.pop_ended("x")


def two_milliseconds_early(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.popped("x")
    plant.wait(0.997)  # and for each record
    plant.popped("x", times=1)
    plant.pop_ended("x")


def sooner_than_it_was_changed_to(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.popped("x")
    plant.pop_ended("x", what="change", invisible_ms=400)
    plant.wait(0.2)
    plant.popped("x", times=1)
    plant.pop_ended("x")


def nobody_sent_it(plant: HistoryBuilder) -> None:
    plant.popped("ghost")


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (never_popped, LOST),
        (void_and_never_again, LOST),
        (again_after_its_acknowledgement, AGAIN),
        (two_at_once, EARLY),
        (two_milliseconds_early, EARLY),
        (sooner_than_it_was_changed_to, EARLY),
        (nobody_sent_it, EARLY),
    ],
)
def test_pop_check_finds_each_planted_fault(
    damage: Callable[[HistoryBuilder], None], name: str
) -> None:
    plant = clean()
    damage(plant)
    assert failed(end(plant)) == {name}


def test_pop_check_accepts_permitted_histories() -> None:
    plant = clean()
    plant.posted("x", **W)
    plant.popped("x")
    plant.pop_ended("x", "unknown")  # it may count
    plant.posted("y", **W)
    began_ms = (len(plant.records) * 1_000_000 + plant.waited_ns) / 1e6
    plant.popped("y", began_ms - 800)  # the request took long
    plant.wait(0.3)
    plant.popped("y", process="consumer-1", times=1)
    plant.pop_ended("y", "fail")  # the first handle
    plant.posted("w", **W)
    plant.popped("w")
    plant.wait(0.9985)  # a broker counts in whole milliseconds
    plant.popped("w", times=1)
    plant.pop_ended("w")
    plant.posted("z", attempts=2, **W)  # there are two of it
    plant.popped("z")
    plant.popped("z", process="consumer-1")
    plant.pop_ended("z")
    plant.wait(1.1)
    plant.popped("z", times=1)
    plant.pop_ended("z")
    plant.pop_ended("y")
    assert failed(end(plant)) == set()


@pytest.mark.parametrize(("first", "second"), [("fail", "unknown"), ("unknown", "fail")])
def test_void_receipt_handle_does_not_affect_another_acknowledgement(
    first: str, second: str
) -> None:
    plant = clean()
    plant.posted("x", **W)
    plant.popped("x")
    late = plant.pop_ended("x", "")
    plant.wait(1.5)
    plant.popped("x", process="consumer-1", times=1)
    plant.pop_ended("x", first)
    plant.pop_ended("x", second, op=late)
    assert failed(end(plant)) == set()


def test_offsets_moved_by_pops_are_not_checked_as_registers() -> None:
    plant = clean()
    plant.committed(0, 3)
    for offset in (5, 4, 7):
        plant.fetched(0, offset)
    assert failed(end(plant)) == set()
    other = HistoryBuilder()
    other.committed(0, 3)
    other.fetched(0, 5)
    assert failed(other) == {OFFSETS}


def test_pop_loss_is_undecided_without_a_complete_drain() -> None:
    plant = clean()
    never_popped(plant)
    plant.drained(complete=False)
    assert check(plant, LOST).verdict is Verdict.UNKNOWN


def test_contradictory_pop_history_is_rejected() -> None:
    plant = HistoryBuilder()
    plant.pop_ended("x")
    with pytest.raises(HistoryError, match="never sent"):
        suite_of(plant.records)
