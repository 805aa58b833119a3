"""Orderly consumption with planted concurrent work and skipped messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftmq.chaos.checks.verdict import Verdict
from tests.chaos.builder import HistoryBuilder
from tests.chaos.checks.judging import check, failed

TOGETHER = "two consumers in one queue"
SKIPPED = "skipped in an orderly queue"


def handed_over() -> HistoryBuilder:
    """A sent-and-consumed run with work of 1 ms each; a consumer leaves, and the next repeats a
    batch."""
    plant = HistoryBuilder()
    for offset in range(4):
        plant.sent(f"m{offset}", 0, offset, broker="b")
    plant.worked(0, 1, 1)
    plant.consumed(0, (0, "m0"), (1, "m1"), broker="b")
    plant.worked(2, 2, 1, done=False)  # it was interrupted
    plant.worked(1, 2, 1, "consumer-1")  # starts at the committed offset
    plant.worked(3, 3, 1, "consumer-1")
    plant.worked(0, 0, 1, "consumer-1", queue=1)
    plant.consumed(0, (1, "m1"), (2, "m2"), (3, "m3"), broker="b", process="consumer-1")
    plant.drained()
    return plant


def test_queue_handed_over_between_consumers_passes() -> None:
    plant = handed_over()
    assert failed(plant) == set()
    assert check(plant, TOGETHER).verdict is Verdict.PASS
    assert check(plant, SKIPPED).detail == "5 pieces of work on 2 queues"


def began_before_the_other_ended(plant: HistoryBuilder) -> None:
    plant.worked(4, 4, 5, "consumer-0")
    plant.worked(4, 4, 3, "consumer-1")


def lies_within_the_others_work(plant: HistoryBuilder) -> None:
    plant.worked(4, 4, 0.5, "consumer-1")
    plant.worked(4, 4, 50, "consumer-0")


def interrupted_work_counts_too(plant: HistoryBuilder) -> None:
    plant.worked(4, 4, 0.5, "consumer-1", done=False)
    plant.worked(4, 4, 1.5, "consumer-0")


def the_same_consumer_twice(plant: HistoryBuilder) -> None:
    plant.worked(4, 4, 0.5)
    plant.worked(4, 4, 1.5)


def behind_what_is_done(plant: HistoryBuilder) -> None:
    plant.worked(5, 6, 0.5, "consumer-1")


def behind_what_was_interrupted(plant: HistoryBuilder) -> None:
    plant.worked(4, 5, 0.5, "consumer-1", done=False)
    plant.worked(6, 6, 0.5, "consumer-1")


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (began_before_the_other_ended, TOGETHER),
        (lies_within_the_others_work, TOGETHER),
        (interrupted_work_counts_too, TOGETHER),
        (the_same_consumer_twice, TOGETHER),
        (behind_what_is_done, SKIPPED),
        (behind_what_was_interrupted, SKIPPED),
    ],
)
def test_lock_check_finds_each_planted_fault(
    damage: Callable[[HistoryBuilder], None], name: str
) -> None:
    plant = handed_over()
    damage(plant)
    assert failed(plant) == {name}


def test_lock_check_separates_queues_and_groups() -> None:
    plant = handed_over()
    plant.worked(0, 0, 2, "consumer-0", queue=2)
    plant.worked(0, 0, 2, "consumer-1", queue=3)
    assert failed(plant) == set()


def test_lock_check_measures_how_long_a_queue_was_idle() -> None:
    plant = handed_over()
    plant.wait(40)
    plant.worked(4, 4, 1, "consumer-2")
    result = check(plant, "orderly queues standing still")
    assert (result.verdict, result.count) == (Verdict.PASS, 1)  # longer than half a minute
    assert result.detail.startswith("2 hand-overs: p50 40,00")
    alone = HistoryBuilder()
    alone.worked(0, 0, 1)
    assert "no queue went" in check(alone, "orderly queues standing still").detail
