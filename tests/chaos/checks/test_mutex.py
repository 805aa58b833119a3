"""Queue locks as clients see them. Histories without an order are found, and only those."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftmq.chaos.checks.mutex import BELIEVED_NS
from raftmq.chaos.checks.verdict import Verdict
from tests.chaos.builder import HistoryBuilder, clean
from tests.chaos.checks.judging import LOCKS, check, failed

BELIEVED_S = BELIEVED_NS / 1e9


def contended() -> HistoryBuilder:
    """A run in which b is refused while a has the lock, then gets it, and a is refused."""
    plant = clean()
    plant.locked("a")
    plant.locked("b", False)
    plant.unlocked("a")
    plant.locked("b")
    plant.locked("a", False)
    return plant


def test_lock_handed_over_between_clients_passes() -> None:
    plant = contended()
    assert failed(plant) == set()
    result = check(plant, LOCKS)
    assert (result.verdict, result.detail) == (Verdict.PASS, "1 locks, 2 granted, 2 refused")


def granted_twice(plant: HistoryBuilder) -> None:
    plant.locked("c")


def granted_again_to_who_lost_it(plant: HistoryBuilder) -> None:
    plant.locked("a")


def refused_to_its_owner(plant: HistoryBuilder) -> None:
    plant.locked("b", False)


def refused_though_it_was_given_up(plant: HistoryBuilder) -> None:
    plant.unlocked("b")
    plant.locked("c", False)


def freed_by_somebody_else(plant: HistoryBuilder) -> None:
    plant.unlocked("c")
    plant.locked("c")


def granted_to_two_at_the_same_time(plant: HistoryBuilder) -> None:
    plant.unlocked("b")
    one, other = plant.locking("a"), plant.locking("c")
    plant.locked("a", op=one)
    plant.locked("c", op=other)


def refused_by_one_that_certainly_asked_for_nothing(plant: HistoryBuilder) -> None:
    plant.unlocked("b")
    plant.locked("c", outcome="fail")
    plant.locked("a", False)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (granted_twice, "a was refused (2.0 to 3.0 ms); c was granted it"),
        (granted_again_to_who_lost_it, "a was refused (2.0 to 3.0 ms); a was granted it"),
        (refused_to_its_owner, "b was granted it (0.0 to 1.0 ms)"),
        (refused_though_it_was_given_up, "b gave it up"),
        (freed_by_somebody_else, "c was granted it"),
        (granted_to_two_at_the_same_time, "c was granted it"),
        (refused_by_one_that_certainly_asked_for_nothing, "b gave it up"),
    ],
)
def test_mutex_check_finds_each_planted_fault(
    plant: Callable[[HistoryBuilder], None], words: str
) -> None:
    builder = contended()
    plant(builder)
    assert failed(builder) == {LOCKS}
    (example,) = check(builder, LOCKS).examples
    assert example.startswith("G b:T-0: no order explains")
    assert words in example


def somebody_got_it_without_an_answer(plant: HistoryBuilder) -> None:
    plant.locking("c")
    plant.unlocked("b")
    plant.locked("a", False)  # c has it
    plant.locked("c")


def it_was_given_up_without_an_answer(plant: HistoryBuilder) -> None:
    plant.unlocked("b", "unknown")
    plant.locked("a", False)  # not yet
    plant.locked("a")


def renewed(plant: HistoryBuilder) -> None:
    plant.wait(BELIEVED_S)
    plant.locked("b")
    plant.locked("a", False)


def not_renewed_and_granted_to_another(plant: HistoryBuilder) -> None:
    plant.wait(BELIEVED_S)
    plant.locked("a")
    plant.locked("b", False)


def not_renewed_and_taken_by_who_got_no_answer(plant: HistoryBuilder) -> None:
    plant.wait(BELIEVED_S)
    plant.locking("c")
    plant.locked("b", False)
    plant.locked("a", False)


def asked_at_the_same_time(plant: HistoryBuilder) -> None:
    one = plant.locking("a")
    plant.unlocked("b")
    other = plant.locking("c")
    plant.locked("c", False, other)
    plant.locked("a", True, one)


@pytest.mark.parametrize(
    "allow",
    [
        somebody_got_it_without_an_answer,
        it_was_given_up_without_an_answer,
        renewed,
        not_renewed_and_granted_to_another,
        not_renewed_and_taken_by_who_got_no_answer,
        asked_at_the_same_time,
    ],
)
def test_mutex_check_accepts_explainable_histories(allow: Callable[[HistoryBuilder], None]) -> None:
    builder = contended()
    allow(builder)
    assert failed(builder) == set()
    assert check(builder, LOCKS).verdict is Verdict.PASS


def test_renewed_lock_has_not_expired() -> None:
    builder = contended()
    builder.wait(BELIEVED_S * 0.9)
    builder.locked("b")
    builder.wait(BELIEVED_S * 0.9)
    builder.locked("a")
    assert failed(builder) == {LOCKS}


def test_uncontended_locks_are_undecided() -> None:
    builder = clean()
    builder.locked("a")
    assert check(builder, LOCKS).verdict is Verdict.UNKNOWN
