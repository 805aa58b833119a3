"""Delayed messages that are early, lost or doubled, and their lateness."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.history.events import HistoryError
from raftmq.chaos.report.figures import lateness_of
from tests.chaos.builder import HistoryBuilder
from tests.chaos.checks.judging import check, failed, suite_of

LOST = "delayed and lost"
EARLY = "delayed but early"
COPIES = "delayed and stored more than once"
LATE = "lateness of delayed messages"


def clean() -> HistoryBuilder:
    """Two messages of 1 s and 2 s, stored at 5000 ms; the second is 40 ms late."""
    plant = HistoryBuilder()
    plant.posted("a", delay_ms=1000)
    plant.posted("b", delay_ms=2000)
    plant.posted("unknown", "unknown", 2, delay_ms=1000)
    plant.posted("failed", "fail", 0, delay_ms=1000)
    plant.wait(1)
    plant.delivered("a", 0, store_ms=6000)
    plant.wait(1)
    plant.delivered("b", 1, store_ms=7040)
    plant.delivered("b", 1, store_ms=7040)  # again, at the same position
    return plant


def end(plant: HistoryBuilder) -> HistoryBuilder:
    plant.stored("a", 5000)
    plant.stored("b", 5000)
    plant.scanned()
    plant.drained()
    return plant


def test_clean_delayed_history_passes_and_reports_lateness() -> None:
    plant = end(clean())
    results = {check.name: check.verdict for check in suite_of(plant.records).results()}
    assert results == dict.fromkeys((LOST, EARLY, COPIES, LATE), Verdict.PASS)
    assert "p50 40" in check(plant, LATE).detail
    assert check(clean(), LATE).detail == "no waiting time is known"


def test_delayed_copy_in_a_second_broker_group_has_its_own_delay() -> None:
    """A client's retry stored "b" in a group that has left since, and 900 ms later here."""
    plant = clean()
    plant.posted("twice", attempts=2, delay_ms=1000)
    plant.wait(2)
    plant.delivered("twice", 2, store_ms=8100, broker="gone")
    plant.delivered("twice", 3, store_ms=9000)
    plant.stored("twice", 8000)
    assert check(end(plant), EARLY).verdict is Verdict.PASS
    plant.delivered("twice", 4, store_ms=8100)
    assert failed(plant) == {EARLY, COPIES}


def test_delayed_lateness_over_time_and_as_percentiles() -> None:
    plant = clean()
    plant.wait(10)
    plant.posted("x", delay_ms=1000)
    plant.wait(1)
    plant.delivered("x", 7, store_ms=9300)
    plant.stored("x", 8000)
    plant.delivered("not known when it began to wait", 8, store_ms=9300)
    late = lateness_of(end(plant).build())
    assert (late["count"], late["ms"]["p50"], late["ms"]["max"]) == (3, 40, 300)
    assert late["series"] == {"at_s": [0, 10], "p50_ms": [0, 300], "max_ms": [40, 300]}
    assert lateness_of(clean().build()) == {}


def lost(plant: HistoryBuilder) -> None:
    plant.posted("x", delay_ms=1000)


def early_by_the_brokers_clocks(plant: HistoryBuilder) -> None:
    plant.posted("x", delay_ms=1000)
    plant.wait(2)
    plant.delivered("x", 7, store_ms=8988)
    plant.stored("x", 8000)


def early_by_the_harness_clock(plant: HistoryBuilder) -> None:
    plant.posted("x", delay_ms=1000)
    plant.wait(0.98)
    plant.delivered("x", 7, store_ms=20_000)
    plant.stored("x", 8000)


def stored_twice(plant: HistoryBuilder) -> None:
    plant.delivered("a", 7, store_ms=6000)


def failed_for_certain_and_delivered(plant: HistoryBuilder) -> None:
    plant.delivered("failed", 7)


def nobody_sent_it(plant: HistoryBuilder) -> None:
    plant.delivered("ghost", 7)


def unknown_three_times(plant: HistoryBuilder) -> None:
    for offset in (7, 8, 9):
        plant.delivered("unknown", offset, store_ms=9000)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lost, LOST),
        (early_by_the_brokers_clocks, EARLY),
        (early_by_the_harness_clock, EARLY),
        (stored_twice, COPIES),
        (failed_for_certain_and_delivered, COPIES),
        (nobody_sent_it, COPIES),
        (unknown_three_times, COPIES),
    ],
)
def test_delayed_check_finds_each_planted_fault(
    damage: Callable[[HistoryBuilder], None], name: str
) -> None:
    plant = clean()
    damage(plant)
    assert failed(end(plant)) == {name}


def test_delayed_check_accepts_permitted_histories() -> None:
    plant = clean()
    plant.delivered("unknown", 7, store_ms=9000)  # its client tried twice
    plant.delivered("unknown", 8, store_ms=9000)
    plant.posted("x", delay_ms=1000)
    plant.wait(2)
    plant.delivered("x", 9, store_ms=8990)  # within the tolerance
    plant.stored("x", 8000)
    sent = {"work": "delayed", "id": "slow", "topic": "T", "delay_ms": 1000}
    op = plant.add("invoke", "post", "producer-0", **sent)
    plant.wait(0.3)  # a busy broker stores it long after the request's arrival
    plant.add("ok", "post", "producer-0", op, **sent, attempts=1)
    plant.wait(1)
    plant.delivered("slow", 10, store_ms=8700)
    plant.stored("slow", 8000)
    assert failed(end(plant)) == set()


def test_early_delivery_is_undecided_where_clocks_were_moved() -> None:
    plant = clean()
    plant.fault("clock-forward", "n0")
    early_by_the_brokers_clocks(plant)
    result = check(end(plant), EARLY)
    assert (result.verdict, result.count) == (Verdict.UNKNOWN, 1)
    plant = clean()
    plant.fault("clock-forward", "n0")
    assert check(end(plant), EARLY).verdict is Verdict.PASS


def test_delayed_loss_is_undecided_without_a_complete_drain() -> None:
    plant = clean()
    lost(plant)
    plant.drained(complete=False)
    assert check(plant, LOST).verdict is Verdict.UNKNOWN


def test_delayed_message_id_is_used_once() -> None:
    plant = clean()
    plant.posted("a", delay_ms=1000)
    with pytest.raises(HistoryError, match="two messages"):
        suite_of(plant.records)
