"""Transactions with planted violations, each found by its own check only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raftmq.chaos.checks.verdict import Verdict
from raftmq.chaos.history.events import HistoryError
from tests.chaos.builder import HistoryBuilder
from tests.chaos.checks.judging import check, failed, suite_of

LOST = "committed but lost"
UNCOMMITTED = "delivered without a commit"
COPIES = "transactions stored more than once"
HALVES = "half messages at the end"
W: dict[str, Any] = {"work": "transactions"}


def clean() -> HistoryBuilder:
    """A transaction of each kind; `end` adds `drained` and the rest."""
    plant = HistoryBuilder()
    plant.posted("commit", **W)
    plant.decided("commit", "commit")
    plant.delivered("commit", 0, **W)
    plant.posted("rollback", **W)
    plant.decided("rollback", "rollback")
    plant.posted("later", **W)
    plant.checked("later", "undecided")
    plant.checked("later", "commit")
    plant.delivered("later", 1, **W)
    plant.delivered("later", 1, **W)  # again, at the same position
    plant.posted("not later", **W)
    plant.checked("not later", "rollback")
    plant.posted("never", **W)
    plant.checked("never", "undecided")
    plant.posted("unknown", "unknown", 2, **W)
    plant.posted("failed", "fail", 0, **W)
    return plant


def end(plant: HistoryBuilder, *left_open: str) -> HistoryBuilder:
    for name in left_open or ("never",):
        plant.stored(name, work="transactions")
    plant.scanned("transactions")
    plant.drained()
    return plant


def test_clean_transaction_history_passes() -> None:
    suite = suite_of(end(clean()).records)
    results = {check.name: check.verdict for check in suite.results()}
    assert results == dict.fromkeys((LOST, UNCOMMITTED, COPIES, HALVES), Verdict.PASS)


def commit_lost(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.decided("x", "commit")


def commit_of_unknown_outcome_lost(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.decided("x", "commit", "unknown")


def commit_by_check_back_lost(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.checked("x", "commit")


def rolled_back_resurrected(plant: HistoryBuilder) -> None:
    plant.delivered("rollback", 7, **W)


def rolled_back_by_check_back_resurrected(plant: HistoryBuilder) -> None:
    plant.delivered("not later", 7, **W)


def undecided_delivered(plant: HistoryBuilder) -> None:
    plant.delivered("unknown", 7, **W)


def failed_half_delivered(plant: HistoryBuilder) -> None:
    plant.delivered("failed", 7, **W)


def delivered_before_the_commit(plant: HistoryBuilder) -> None:
    plant.posted("x", **W)
    plant.delivered("x", 7, **W)
    plant.decided("x", "commit")


def nobody_sent_it(plant: HistoryBuilder) -> None:
    plant.delivered("ghost", 7, **W)


def committed_twice(plant: HistoryBuilder) -> None:
    plant.delivered("commit", 7, **W)


def committed_at_the_same_offset_of_another_queue(plant: HistoryBuilder) -> None:
    plant.delivered("commit", 0, 1, **W)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (commit_lost, LOST),
        (commit_of_unknown_outcome_lost, LOST),
        (commit_by_check_back_lost, LOST),
        (rolled_back_resurrected, UNCOMMITTED),
        (rolled_back_by_check_back_resurrected, UNCOMMITTED),
        (delivered_before_the_commit, UNCOMMITTED),
        (undecided_delivered, UNCOMMITTED),
        (failed_half_delivered, UNCOMMITTED),
        (nobody_sent_it, UNCOMMITTED),
        (committed_twice, COPIES),
        (committed_at_the_same_offset_of_another_queue, COPIES),
    ],
)
def test_transaction_check_finds_each_planted_fault(
    damage: Callable[[HistoryBuilder], None], name: str
) -> None:
    plant = clean()
    damage(plant)
    assert failed(end(plant)) == {name}


@pytest.mark.parametrize(
    ("left_open", "words"),
    [
        (("never", "rollback"), "rollback is open although it was decided"),
        (("never", "later"), "later is open although it was decided"),
        (("never", "ghost"), "ghost is open: nobody sent it"),
        (("unknown",), "never was acknowledged, not decided, and its half message is gone"),
    ],
)
def test_open_half_messages_at_the_end_fail(left_open: tuple[str, ...], words: str) -> None:
    plant = end(clean(), *left_open)
    result = check(plant, HALVES)
    assert (result.verdict, result.examples) == (Verdict.FAIL, (words,))
    assert failed(plant) == {HALVES}


def test_transaction_check_accepts_permitted_histories() -> None:
    plant = clean()
    plant.posted("retried", attempts=2, **W)  # its half message lies there twice
    plant.decided("retried", "commit")
    plant.checked("retried", "commit")
    plant.delivered("retried", 8, **W)
    plant.delivered("retried", 9, **W)
    plant.checked("unknown", "commit")  # its half message was stored after all
    plant.delivered("unknown", 10, **W)
    plant.posted("weak", "unknown", **W)  # its client rolls it back, while a broker asks
    plant.checked("weak", "commit")
    plant.decided("weak", "rollback")
    assert failed(end(plant)) == set()


def test_transaction_loss_is_undecided_without_a_complete_drain() -> None:
    plant = clean()
    commit_lost(plant)
    plant.drained(complete=False)
    assert check(plant, LOST).verdict is Verdict.UNKNOWN
    plant = end(clean())
    commit_lost(plant)  # after the drain
    assert check(plant, LOST).verdict is Verdict.UNKNOWN


def test_contradictory_transaction_history_is_rejected() -> None:
    plant = clean()
    plant.posted("commit", **W)
    with pytest.raises(HistoryError, match="two messages"):
        suite_of(plant.records)
    plant = HistoryBuilder()
    plant.decided("x", "commit")
    with pytest.raises(HistoryError, match="before it began"):
        suite_of(plant.records)
